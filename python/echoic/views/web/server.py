"""Serve the page over HTTP: its files, the state of servers, and items of their tables.

The address of the page has a secret in its path: other users of this machine can reach it, and it
may show data that only a token gives access to. It listens on this machine alone unless
``insecure`` is given, since the secret goes over HTTP. Only GET is answered; it changes nothing.
Other origins may not read answers. Against DNS rebinding, the Host header must be an IP address,
localhost, or a name of this machine.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from echoic.views.web.items import ItemError, Items
from echoic.views.web.state import state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from echoic.views.monitor import Monitor

__all__ = ["WebServer"]

_FILES = ("index.html", "page.css", "page.js", "charts.js", "items.js", "icon.svg")
_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# The most requests that are answered at once. A browser has six connections at most.
_ANSWERS = 64
_MOST_ITEMS = 1000


class WebServer:
    """Serves the page at an address, in threads, from ``__enter__`` to ``__exit__``.

    Args:
        monitors: The monitors of the servers to show.
        options: Options of ``echoic.connect`` to read items.
        host: The host to listen at.
        port: The port; 0 is any free one.
        insecure: Whether other machines may reach it.

    Raises:
        ValueError: If other machines can reach it, and ``insecure`` is not given.
        OSError: If the address can't be used.
    """

    def __init__(
        self,
        monitors: Sequence[Monitor],
        options: Mapping[str, Any] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        insecure: bool = False,
    ) -> None:
        family, _, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not ipaddress.ip_address(at[0]).is_loopback and not insecure:
            raise ValueError(
                f"{host} can be reached from other machines, and the page goes over plain HTTP"
            )
        self._server = _Server(family, at, _Answers(monitors, options or {}, host))
        bound = self._server.server_address[1]
        name = f"[{at[0]}]" if family == socket.AF_INET6 else at[0]
        self.url = f"http://{name}:{bound}/{self._server.answers.secret}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Answers:
    """The answers to requests."""

    def __init__(self, monitors: Sequence[Monitor], options: Mapping[str, Any], host: str) -> None:
        self._monitors = monitors
        self._items = [Items(monitor.address, options) for monitor in monitors]
        self.secret = secrets.token_urlsafe(16)
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}
        page = resources.files("echoic.views.web").joinpath("page")
        self._files = {
            f"/{name}": (page.joinpath(name).read_bytes(), _KINDS[name.partition(".")[2]])
            for name in _FILES
        }
        self._files["/"] = self._files["/index.html"]

    def is_for_us(self, host: str) -> bool:
        """Return whether a Host header names this machine."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return False
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def answer(self, target: str) -> tuple[int, bytes, str]:
        """Return a status, a body and its type."""
        try:
            parts = urlsplit(target)
        except ValueError:
            return _json({"error": "the request is invalid"}, HTTPStatus.BAD_REQUEST)
        _, _, rest = parts.path.partition("/")
        secret, slash, path = rest.partition("/")
        if not slash or not secrets.compare_digest(secret.encode(), self.secret.encode()):
            text = "the address lacks the secret: open the one that `echoic dashboard` printed"
            return _json({"error": text}, HTTPStatus.FORBIDDEN)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        return self._find("/" + path, query)

    def _find(self, path: str, query: dict[str, str]) -> tuple[int, bytes, str]:
        if path in self._files:
            return HTTPStatus.OK, *self._files[path]
        find = {"/state": self._state, "/items": self._list, "/item": self._item}.get(path)
        if find is None:
            return _json({"error": "the page has no such path"}, HTTPStatus.NOT_FOUND)
        try:
            server = range(len(self._monitors))[int(query.get("server", "0"))]
            return _json(find(server, query))
        except ItemError as error:
            return _json({"error": str(error)}, HTTPStatus.BAD_GATEWAY)
        except (LookupError, ValueError, OverflowError):
            return _json({"error": "the request is invalid"}, HTTPStatus.BAD_REQUEST)

    def _state(self, server: int, query: dict[str, str]) -> dict[str, Any]:
        return state(self._monitors, server, max(int(query.get("seconds", "300")), 1))

    def _list(self, server: int, query: dict[str, str]) -> dict[str, Any]:
        count = min(max(int(query["count"]), 1), _MOST_ITEMS)
        return self._items[server].keys(query["table"], count)

    def _item(self, server: int, query: dict[str, str]) -> dict[str, Any]:
        return self._items[server].item(query["table"], int(query["key"]))


def _json(value: dict[str, Any], status: int = HTTPStatus.OK) -> tuple[int, bytes, str]:
    body = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    return status, body, "application/json"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Closing does not wait for requests in progress.
    block_on_close = False

    def __init__(self, family: int, at: Any, answers: _Answers) -> None:
        self.address_family = family
        self.answers = answers
        self.turns = threading.BoundedSemaphore(_ANSWERS)
        super().__init__(at, _Handler)

    def server_bind(self) -> None:
        # Not that of HTTPServer, which asks the DNS for a name that is not needed.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.turns.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.turns.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A browser that goes away is normal.
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    # Seconds that a request may take to arrive.
    timeout: ClassVar[float] = 10.0
    server: _Server
    server_version = "echoic"
    sys_version = ""

    def do_GET(self) -> None:
        answers = self.server.answers
        if not answers.is_for_us(self.headers.get("Host", "")):
            self._send(
                HTTPStatus.MISDIRECTED_REQUEST, b"not the name of this machine", "text/plain"
            )
            return
        self._send(*answers.answer(self.path))

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
        """Log nothing: a page asks every second."""
