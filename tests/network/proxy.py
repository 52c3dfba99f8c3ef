"""A network between clients and a server that cuts, delays, splits, holds and re-orders.

Each connection of a client becomes a `Link` with a connection of its own to the server and one
thread for each direction. Tests change the proxy's settings while bytes flow.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# An abrupt end: unsent bytes are thrown away and the other side sees a reset.
ABORT = struct.pack("ii", 1, 0)


class Link:
    """One client's connection and the one to the server that stands for it."""

    def __init__(self, client: socket.socket, server: socket.socket, limit: float) -> None:
        self.client = client
        self.server = server
        # How many more bytes pass in both directions together before the link is cut.
        self.limit = limit
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._over = False
        self._severed = False
        self._running = 2

    def cut(self, *, abruptly: bool = True) -> None:
        """End both connections: with a reset, or as if each side had closed its own."""
        self._over = True
        self._flowing.set()
        for end in (self.client, self.server):
            _end(end, abruptly=abruptly)

    def hold(self) -> None:
        """Keep what the client sends from now on."""
        self._flowing.clear()

    def sever_client(self) -> None:
        """End the client's connection only: what is held can reach the server later."""
        self._severed = True
        _end(self.client, abruptly=False)

    def release(self) -> None:
        """Pass on what was held."""
        self._flowing.set()

    def pump(self, proxy: Proxy, *, upwards: bool) -> None:
        """Pass on one direction until it ends."""
        source, sink = (self.client, self.server) if upwards else (self.server, self.client)
        try:
            while data := self._receive(source, proxy.piece):
                proxy.pace(len(data))
                if upwards:
                    self._flowing.wait()
                self._send(sink, self._within_limit(data))
                if self.limit <= 0:
                    self.cut(abruptly=proxy.abruptly)
            if not self._over:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            if not self._severed:
                self.cut()
        finally:
            self._finish()

    def _receive(self, source: socket.socket, count: int) -> bytes:
        while not self._over:
            with contextlib.suppress(TimeoutError):
                return source.recv(count)
        return b""

    def _send(self, sink: socket.socket, data: bytes) -> None:
        while data and not self._over:
            with contextlib.suppress(TimeoutError):
                data = data[sink.send(data) :]

    def _within_limit(self, data: bytes) -> bytes:
        with self._lock:
            allowed = data[: int(min(len(data), max(self.limit, 0)))]
            self.limit -= len(allowed)
            return allowed

    def _finish(self) -> None:
        with self._lock:
            self._running -= 1
            over = self._running == 0
        if over:
            self.client.close()
            self.server.close()


class Proxy:
    """Listens on a port of its own and passes everything on, as well as its settings allow."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.links: list[Link] = []
        # Seconds that every piece is late.
        self.delay = 0.0
        # Bytes in a second, of each direction of each link.
        self.rate = float("inf")
        # The most bytes that are passed on at once.
        self.piece = 1 << 16
        # After how many bytes each of the next connections ends, and how.
        self.limits: Iterator[float] = iter(())
        self.abruptly = True
        # So many connections are awaited, and then made to the server in reverse order.
        self.together = 1
        self._flowing = threading.Event()
        self._flowing.set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def stall(self) -> None:
        """Let nothing through, in no direction, until `resume`."""
        self._flowing.clear()

    def resume(self) -> None:
        """Let everything through again."""
        self._flowing.set()

    def cut(self, *, abruptly: bool = True) -> None:
        """Cut all links."""
        for link in list(self.links):
            link.cut(abruptly=abruptly)

    def pace(self, count: int) -> None:
        """Wait as long as so many bytes take to get through."""
        self._flowing.wait()
        seconds = self.delay + count / self.rate
        if seconds:
            time.sleep(seconds)

    def close(self) -> None:
        """End everything."""
        _end(self._listener, abruptly=False)
        self._listener.close()
        self.resume()
        self.delay, self.rate = 0.0, float("inf")
        self.cut()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a thread of the proxy hangs"

    def _start(self, function: object, *arguments: object, **rest: object) -> None:
        thread = threading.Thread(target=function, args=arguments, kwargs=rest, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        waiting: list[socket.socket] = []
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                break
            waiting.append(client)
            if len(waiting) >= self.together:
                for late in reversed(waiting):
                    self._open(late)
                waiting = []
        for client in waiting:
            client.close()

    def _open(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # So that a thread which waits for a peer sees that its link was cut.
            end.settimeout(0.1)
        link = Link(client, server, next(self.limits, float("inf")))
        self.links.append(link)
        self._start(link.pump, self, upwards=True)
        self._start(link.pump, self, upwards=False)


def _end(end: socket.socket, *, abruptly: bool) -> None:
    """End a connection that threads use; the last of them closes it."""
    with contextlib.suppress(OSError):
        if abruptly:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        # Abruptly, only our side is woken: the other is to hear of it by the reset.
        end.shutdown(socket.SHUT_RD if abruptly else socket.SHUT_RDWR)
