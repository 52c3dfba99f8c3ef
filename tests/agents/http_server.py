"""The part of HTTP that servers of tests have: a thread, connections that stay, whole requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class HttpServer(ABC):
    """Serves until it is closed, in a thread of its own; a subclass answers.

    A subclass sets its own attributes before it calls this constructor: requests come at once.
    """

    def __init__(self) -> None:
        self.active = self.most_active = 0
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,))
        self._thread.start()
        started.wait()

    @abstractmethod
    async def answer(
        self, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        """Answer a request for a target, such as ``POST /v1/completions``.

        A ConnectionError ends the connection. Names of headers are in small letters.
        """

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count a request while it is answered."""
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            yield
        finally:
            self.active -= 1

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(head[0].rpartition(" ")[0], headers, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def send(writer: asyncio.StreamWriter, status: int, text: str, headers: Any = ()) -> None:
    """Answer with a text."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text.encode())}"]
    lines += [f"{name}: {value}" for name, value in dict(headers).items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n" + text).encode())
    await writer.drain()
