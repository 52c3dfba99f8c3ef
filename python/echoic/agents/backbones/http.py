"""JSON over HTTP with retries, within bounds.

Every vendor's backbone uses a :class:`JsonClient`, with a thin class for each wire format, and not
the vendors' packages: those bring some eighty distributions, each retries and counts in its own
way, and only one request and one answer are needed.

All bounds are from :class:`HttpConfig`: requests under way, attempts, seconds of an attempt and of
the whole call with its waiting, and bytes of an answer. What a vendor bills for an attempt that
broke off is not known, and not counted.

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
from typing import TYPE_CHECKING, Any

import httpx

from echoic.agents import _checks
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["WORTH_ANOTHER_TRY", "HttpConfig", "JsonClient", "retry_after"]

WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MAX_ERROR = 500
_MAX_SHOWN = 80


@dataclass(frozen=True)
class HttpConfig:
    """Bounds of a client.

    Attributes:
        timeout: Seconds of a call in all: waiting, attempts and pauses.
        attempt_timeout: Seconds of one attempt, from its start to the last byte.
        attempts: Most attempts of a request.
        backoff: Seconds before the second attempt; doubled with each, and half of it is random, so
            that clients that failed together do not retry together.
        max_backoff: Most seconds of a pause. A server that asks for more has failed.
        max_concurrent: Most requests under way at a time.
        max_answer: Most bytes of an answer.
        seed: Seed of the random parts of pauses.
    """

    timeout: float = 300.0
    attempt_timeout: float = 120.0
    attempts: int = 5
    backoff: float = 0.5
    max_backoff: float = 60.0
    max_concurrent: int = 16
    max_answer: int = 16 << 20
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.number(self, "timeout", "attempt_timeout", above=0)
        _checks.number(self, "backoff", "max_backoff", least=0)
        _checks.whole(self, "attempts", "max_concurrent", "max_answer")


class _Loop:
    """The connections of one event loop."""

    def __init__(self, config: HttpConfig, headers: Mapping[str, str]) -> None:
        self.running = asyncio.get_running_loop()
        self.places = asyncio.Semaphore(config.max_concurrent)
        self.http = httpx.AsyncClient(
            headers=dict(headers),
            timeout=config.attempt_timeout,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=config.max_concurrent
            ),
        )


class JsonClient:
    """Posts JSON to one server and returns its answers.

    It is used from one event loop at a time; another may follow after :meth:`aclose`.

    Args:
        url: Address of the server.
        headers: Headers of every request.
        config: Bounds.
        secret: Text that is hidden in errors; visible characters of ASCII, as in a header.
        clock: Monotonic clock in seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        config: HttpConfig | None = None,
        *,
        secret: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ArgumentError(
                f"a server's url must start with http:// or https://, unlike {url!r}"
            )
        if secret is not None and not (secret.isascii() and secret.isprintable()):
            # Naming them would show a part of it.
            raise ArgumentError(
                f"the key for {url} has characters that are not visible ASCII: was a line end or "
                "something else copied with it?"
            )
        self.url = url.rstrip("/")
        self.config = config or HttpConfig()
        self._headers = dict(headers)
        self._secret = secret
        self._clock = clock
        self._sleep = sleep
        self._random = random.Random(self.config.seed)
        # Time until which the server asked for no requests.
        self._rest_until = -math.inf
        self._loop: _Loop | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post a body and return the answer.

        Args:
            path: Path after the url.
            body: Body, sent as JSON.

        Raises:
            BackboneError: If the server refused, or did not answer within the bounds.
        """
        deadline = self._clock() + self.config.timeout
        here = self._here()
        content = json.dumps(body).encode()
        try:
            await asyncio.wait_for(here.places.acquire(), self.config.timeout)
        except asyncio.TimeoutError:
            raise BackboneError(
                f"{self.url}: none of {self.config.max_concurrent} places became free within "
                f"{self.config.timeout:g} s"
            ) from None
        try:
            return await self._try(here, path, content, deadline)
        finally:
            here.places.release()

    def hide(self, text: str) -> str:
        """Return a text without the key, which servers may repeat."""
        if self._secret:
            # As it is, and as Python and JSON escape it.
            forms = {self._secret, repr(self._secret)[1:-1], json.dumps(self._secret)[1:-1]}
            for form in sorted(forms, key=len, reverse=True):
                text = text.replace(form, "[key]")
        return text

    async def aclose(self) -> None:
        """Close the connections."""
        here, self._loop = self._loop, None
        if here is not None and here.running is asyncio.get_running_loop():
            await here.http.aclose()

    def _here(self) -> _Loop:
        # Connections of a closed loop can't be closed.
        if self._loop is None or self._loop.running is not asyncio.get_running_loop():
            if self._loop is not None and not self._loop.running.is_closed():
                raise ArgumentError("a backbone is used from one event loop at a time")
            self._loop = _Loop(self.config, self._headers)
        return self._loop

    async def _try(self, here: _Loop, path: str, content: bytes, deadline: float) -> Any:
        for attempt in range(1, self.config.attempts + 1):
            await self._rest(deadline)
            seconds = max(0.0, min(self.config.attempt_timeout, deadline - self._clock()))
            try:
                return await asyncio.wait_for(self._once(here, path, content), seconds)
            except asyncio.TimeoutError:
                failure = _Again(f"there was no answer within {seconds:g} s")
            except httpx.HTTPError as error:
                what = self.hide(str(error)) or type(error).__name__
                failure = _Again(f"the connection failed: {what}")
            except _Again as again:
                failure = again
            pause = self._pause(attempt, failure.after)
            over = self._clock() + pause > deadline
            if attempt == self.config.attempts or over or pause > self.config.max_backoff:
                raise BackboneError(
                    f"{self.url}{path}: {failure} (attempt {attempt} of {self.config.attempts}"
                    + (f"; it asks to wait {pause:g} s)" if failure.after else ")")
                )
            await self._sleep(pause)
        raise BackboneError(f"{self.url}{path}: no attempt was made")

    async def _rest(self, deadline: float) -> None:
        """Wait until the time for which the server asked for no requests has passed."""
        pause = self._rest_until - self._clock()
        if self._clock() + pause > deadline:
            raise BackboneError(
                f"{self.url}: the server asks to wait {pause:.0f} s, and a request may take "
                f"{self.config.timeout:g} s in all"
            )
        if pause > 0:
            await self._sleep(pause)

    async def _once(self, here: _Loop, path: str, content: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        url = self.url + path
        async with here.http.stream("POST", url, content=content, headers=headers) as answer:
            body = b""
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > self.config.max_answer:
                    raise BackboneError(f"{url} answered with more than {self.config.max_answer} B")
        status = answer.status_code
        if status != httpx.codes.OK:
            text = self.hide(body.decode(errors="replace"))[:_MAX_ERROR]
            message = f"the server answered {status}: {text}"
            if status not in WORTH_ANOTHER_TRY:
                raise BackboneError(f"{url}: {message}")
            after = retry_after(answer.headers)
            if after is not None and after <= self.config.max_backoff:
                self._rest_until = max(self._rest_until, self._clock() + after)
            raise _Again(message, after)
        with contextlib.suppress(ValueError):
            read = json.loads(body)
            if isinstance(read, dict):
                return read
        text = self.hide(body.decode(errors="replace"))[:_MAX_SHOWN]
        raise BackboneError(f"{url} answered with no JSON object: {text!r}")

    def _pause(self, attempt: int, after: float | None) -> float:
        if after is not None:
            return after
        longest: float = min(self.config.backoff * 2 ** (attempt - 1), self.config.max_backoff)
        return longest * (0.5 + 0.5 * self._random.random())


class _Again(Exception):
    """An attempt failed; another one may succeed."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


def retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds that a server asks to wait: given as such, in thousandths or as a date."""
    value = headers.get("retry-after-ms")
    if value is not None:
        with contextlib.suppress(ValueError):
            return _seconds(float(value) / 1000)
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return _seconds(float(value))
    except ValueError:
        pass
    try:
        return _seconds(email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _seconds(number: float) -> float | None:
    return max(0.0, number) if math.isfinite(number) else None
