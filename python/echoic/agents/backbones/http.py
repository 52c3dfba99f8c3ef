"""JSON over HTTP within bounds: the client of all servers that answer, at vendors or here.

What a vendor bills for an attempt that broke off is not known, and not counted.

Invariant: a key is in a header only. No error message shows it, or a part of it: a server's text is
cut only after the key is hidden.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from echoic.agents import _checks
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

__all__ = ["MAX_ERROR", "WORTH_ANOTHER_TRY", "Fault", "HttpClient", "HttpConfig"]

T = TypeVar("T")

WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
#: Characters of a server's text in a message.
MAX_ERROR = 500


@dataclass(frozen=True)
class HttpConfig:
    """Bounds of calls.

    Attributes:
        timeout: Seconds of a call in all: waiting, attempts and pauses.
        attempt_timeout: Seconds of one attempt, from its start to the last byte; where an answer
            comes token by token, seconds that the server may be silent.
        attempts: Most attempts of a request.
        backoff: Seconds before the second attempt; doubled with each, and half of it is random, so
            that clients that failed together do not retry together.
        max_backoff: Most seconds of a pause. A server that asks for more has failed.
        max_concurrent: Most requests under way at a time.
        max_answer: Most bytes of an answer.
    """

    timeout: float = 300.0
    attempt_timeout: float = 120.0
    attempts: int = 5
    backoff: float = 0.5
    max_backoff: float = 60.0
    max_concurrent: int = 16
    max_answer: int = 16 << 20

    def __post_init__(self) -> None:
        _checks.number(self, "timeout", "attempt_timeout", above=0, finite=False)
        _checks.number(self, "backoff", "max_backoff", least=0)
        _checks.whole(self, "attempts", "max_concurrent", "max_answer")

    async def persist(self, once: Callable[[], Awaitable[T]], faults: list[str]) -> T:
        """Repeat what fails with a :class:`Fault`, and add the reasons to ``faults``."""
        longest = self.backoff
        while True:
            try:
                return await once()
            except Fault as fault:
                faults.append(str(fault))
                asked = fault.after
                last = len(faults) == self.attempts or (asked or 0) > self.max_backoff
                if last or not fault.again:
                    count = f"attempt {len(faults)} of {self.attempts}"
                    wish = f"; it asks to wait {asked:g} s" if asked else ""
                    raise BackboneError(f"{fault} ({count}{wish})") from None
            pause = longest / 2 if asked is None else asked
            await asyncio.sleep(pause + longest / 2 * random.random())
            longest = min(2 * longest, self.max_backoff)


class Fault(BackboneError):
    """A request failed; ``again``: it may succeed later, or at another server.

    The server asks to wait for ``after`` seconds.
    """

    def __init__(self, reason: str, *, again: bool, after: float | None = None) -> None:
        super().__init__(reason)
        self.again = again
        self.after = after


class HttpClient:
    """Posts JSON to one server, from one event loop at a time; another may follow.

    ``config`` bounds :meth:`post`, and ``key`` is hidden in errors.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        config: HttpConfig | None = None,
        key: str | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ArgumentError(f"a server's url starts with http:// or https://, unlike {url!r}")
        # Such a key is the same in all texts: nothing escapes its characters.
        if key is not None and not (key.isprintable() and json.dumps(key) == f'"{key}"'):
            # Naming them would show a part of it.
            raise ArgumentError(
                f"the key for {url} has quotes, or characters that are not visible ASCII: was a "
                "line end or something else copied with it?"
            )
        self.url = url.rstrip("/")
        self.config = config or HttpConfig()
        # Packed bytes could be a thousand times as many when they are read.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._key = key
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post a body and return the answer, within the bounds of the configuration.

        Raises:
            BackboneError: If the server refused, or did not answer within the bounds.
        """
        self._connect()
        url, config = self.url + path, self.config
        faults: list[str] = []

        async def call() -> dict[str, Any]:
            async with self._places:
                return await config.persist(lambda: self._once(url, body), faults)

        try:
            return await asyncio.wait_for(call(), config.timeout)
        except asyncio.TimeoutError:
            last = f"; the last attempt: {faults[-1]}" if faults else ""
            raise BackboneError(
                f"{url}: there was no answer in {config.timeout:g} s, waiting for one of "
                f"{config.max_concurrent} places included{last}"
            ) from None

    @contextlib.asynccontextmanager
    async def stream(
        self, url: str, body: Mapping[str, Any] | None, silence: float
    ) -> AsyncIterator[httpx.Response]:
        """Post a body and give the answer, whose status is 200.

        A :class:`Fault` says that the server is gone, refuses, or is silent for ``silence``
        seconds, also while the answer is read.
        """
        try:
            async with self._connect().stream("POST", url, json=body, timeout=silence) as answer:
                if answer.status_code != httpx.codes.OK:
                    text = self.shown(await _start(answer, 1 << 16))
                    raise Fault(
                        f"{url}: the server answered {answer.status_code}: {text}",
                        again=answer.status_code in WORTH_ANOTHER_TRY,
                        after=_retry_after(answer.headers),
                    )
                yield answer
        except httpx.TimeoutException:
            raise Fault(f"{url} was silent for {silence:g} s", again=True) from None
        except httpx.HTTPError as error:
            what = self.shown(str(error)) or type(error).__name__
            raise Fault(f"the connection to {url} failed: {what}", again=True) from None

    def shown(self, text: str | bytes, most: int = MAX_ERROR) -> str:
        """Return the beginning of a server's text, without the key that it may repeat."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return (text.replace(self._key, "[key]") if self._key else text)[:most]

    async def aclose(self) -> None:
        """Close the connections. Requests under way fail."""
        here, self._loop = self._loop, None
        if here is asyncio.get_running_loop():
            await self._http.aclose()

    def _connect(self) -> httpx.AsyncClient:
        running = asyncio.get_running_loop()
        if self._loop is not running:
            # Connections of a closed loop can't be closed.
            if self._loop is not None and not self._loop.is_closed():
                raise ArgumentError("a client is used from one event loop at a time")
            self._loop = running
            self._places = asyncio.Semaphore(self.config.max_concurrent)
            # The places are the bound: a second one would make requests wait unnoticed.
            limits = httpx.Limits(max_connections=None)
            # Certificates take a while to read, and http has none.
            verify = self.url.startswith("https://")
            self._http = httpx.AsyncClient(headers=self._headers, limits=limits, verify=verify)
        return self._http

    async def _once(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        seconds, most = self.config.attempt_timeout, self.config.max_answer

        async def read() -> bytes:
            async with self.stream(url, body, seconds) as answer:
                return await _start(answer, most)

        try:
            content = await asyncio.wait_for(read(), seconds)
        except asyncio.TimeoutError:
            raise Fault(f"{url}: there was no answer within {seconds:g} s", again=True) from None
        if len(content) > most:
            raise Fault(f"{url} answered with more than {most} B", again=False)
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(content), dict):
                return found
        raise Fault(f"{url} answered with no JSON object: {self.shown(content, 80)!r}", again=False)


async def _start(answer: httpx.Response, most: int) -> bytes:
    """Read an answer until its end, or until it is longer than this."""
    content = bytearray()
    async for part in answer.aiter_bytes():
        content += part
        if len(content) > most:
            break
    return bytes(content)


def _retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds that a server asks to wait, given as such or as a date."""
    text = headers.get("retry-after", "")
    with contextlib.suppress(ValueError):
        seconds = float(text)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None
