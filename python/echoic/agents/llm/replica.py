"""A server that speaks OpenAI's protocol of completions, and how kinds of servers differ.

:data:`DIALECTS` has only what a server's documentation or source says. A feature that a server
lacks is None, and the engine raises an error where it is needed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from typing import TYPE_CHECKING, Any

import httpx

from echoic.agents.backbones.http import WORTH_ANOTHER_TRY, retry_after
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

__all__ = ["DIALECTS", "Dialect", "Fault", "Piece", "Replica", "Usage"]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """One kind of server.

    Attributes:
        token_prompts: Whether a prompt may be token ids instead of text.
        token_ids: The request's field that asks for the ids of the tokens.
        stop_ids: The request's field for token ids that end an answer.
        salted: Whether requests may carry a ``cache_salt``: prompts with different salts share
            nothing.
        reset: The path that empties the prefix cache, if there is one.
        extra: Fields of every request.
    """

    name: str
    token_prompts: bool = False
    token_ids: str | None = None
    stop_ids: str | None = None
    salted: bool = False
    reset: str | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("openai"),
        Dialect(
            "vllm",
            token_prompts=True,
            token_ids="return_token_ids",
            stop_ids="stop_token_ids",
            salted=True,
            reset="/reset_prefix_cache",
            # Defaults of a model's configuration that would change the distribution.
            extra={"top_k": -1, "repetition_penalty": 1.0},
        ),
        Dialect("sglang", token_prompts=True, stop_ids="stop_token_ids", reset="/flush_cache"),
        Dialect("llama.cpp", token_prompts=True, extra={"cache_prompt": True}),
        # The server of llama-cpp-python: text prompts, one request at a time, no numbers of its
        # cache.
        Dialect("llama-cpp-python"),
    )
}


# An event of a stream has one token's text and its numbers; this is a thousand times as much.
MAX_LINE = 1 << 20
# Characters of a server's error in a message.
MAX_ERROR = 500
# What rounding may add to a log-probability of 0.
_ROUNDING = 1e-3
_UNREADABLE = (
    *(ValueError, TypeError, AttributeError, LookupError),
    *(OverflowError, RecursionError),
)


class Fault(Exception):
    """A request failed at this replica.

    Attributes:
        again: Whether the same request may succeed later, or at another replica.
        after: Seconds that the server asks to wait.
        worked: Whether the server may have computed something for it.
    """

    def __init__(
        self, reason: str, *, again: bool, after: float | None = None, worked: bool = True
    ) -> None:
        super().__init__(reason)
        self.again = again
        self.after = after
        self.worked = worked


@dataclasses.dataclass(frozen=True)
class Usage:
    """A server's counts: prompt tokens, those from its cache (None if unknown), and new tokens."""

    prompt: int
    made: int
    cached: int | None


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of an answer; the last one of a stream may have the usage only."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    finish: str | None = None
    usage: Usage | None = None


class Replica:
    """A server that speaks OpenAI's protocol of completions.

    Args:
        url: Where its API is, as ``http://host:8000/v1``.
        model: The model's name there.
        dialect: The kind of server: see :data:`DIALECTS`.
        key: The bearer token.
    """

    def __init__(
        self, url: str, *, model: str, dialect: str | Dialect = "vllm", key: str | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ArgumentError(f"a replica's url begins with http:// or https://, unlike {url!r}")
        self.url = url.rstrip("/")
        self.model = model
        if isinstance(dialect, str):
            if dialect not in DIALECTS:
                known = ", ".join(sorted(DIALECTS))
                raise ArgumentError(f"there is no dialect {dialect!r}; there are {known}")
            dialect = DIALECTS[dialect]
        self.dialect = dialect
        # Packed bytes could be a thousand times as many when they are read.
        headers = {"Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        # Engines bound the number of requests; a second bound would make them wait unnoticed.
        self._http = httpx.AsyncClient(headers=headers, limits=httpx.Limits(max_connections=None))

    def __repr__(self) -> str:
        return f"Replica({self.url!r}, model={self.model!r}, dialect={self.dialect.name!r})"

    async def complete(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int,
        sampling: Mapping[str, Any],
        salt: str | None,
        stall: float,
    ) -> AsyncGenerator[Piece, None]:
        """Yield the answer as it arrives.

        Raises:
            Fault: If the server is gone, silent or full, or refuses. Earlier pieces are valid.
        """
        body = {
            **self.dialect.extra,
            **sampling,
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else [int(token) for token in prompt],
            "max_tokens": max_tokens,
            "logprobs": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.dialect.token_ids is not None:
            body[self.dialect.token_ids] = True
        if salt is not None and self.dialect.salted:
            body["cache_salt"] = salt
        wait = httpx.Timeout(stall)
        try:
            async with self._http.stream(
                "POST", f"{self.url}/completions", json=body, timeout=wait
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise await _refusal(answer)
                async for event in _events(answer):
                    if event == "[DONE]":
                        return
                    yield _piece(event)
        except httpx.TimeoutException as error:
            raise Fault(f"{self.url} was silent for {stall:g} s", again=True) from error
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise Fault(f"the connection to {self.url} broke: {what}", again=True) from error
        raise Fault(f"the answer of {self.url} ended in the middle", again=True)

    async def reset_cache(self, timeout: float) -> None:
        """Empty the prefix cache; a :class:`Fault` if that failed."""
        path = self.dialect.reset
        if path is None:
            raise Fault(f"a {self.dialect.name} server can not empty its cache", again=False)
        url = self.url.removesuffix("/v1") + path
        try:
            async with self._http.stream("POST", url, timeout=timeout) as answer:
                if answer.status_code != httpx.codes.OK:
                    refusal = await _refusal(answer)
                    raise Fault(f"a cache was not emptied: {refusal}", again=refusal.again)
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise Fault(f"the cache of {self.url} was not emptied: {what}", again=True) from error

    async def close(self) -> None:
        """Close the connections. Requests under way fail."""
        await self._http.aclose()


async def _refusal(answer: httpx.Response) -> Fault:
    """Make the fault of a status that is not 200."""
    body = b""
    async for part in answer.aiter_raw():
        body += part
        if len(body) > MAX_ERROR:
            break
    text = body[:MAX_ERROR].decode(errors="replace")
    return Fault(
        f"{answer.request.url} answered {answer.status_code}: {text}",
        again=answer.status_code in WORTH_ANOTHER_TRY,
        after=retry_after(answer.headers),
        worked=False,
    )


async def _events(answer: httpx.Response) -> AsyncIterator[str]:
    """Yield the data of server-sent events; with all known servers each is one line."""
    line = bytearray()
    async for part in answer.aiter_raw():
        end, *others = part.split(b"\n")
        line += end
        if len(line) > MAX_LINE:
            raise Fault(f"{answer.request.url} sent a line of more than {MAX_LINE} B", again=False)
        for other in others:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode(errors="replace")
            line = bytearray(other)


def _piece(event: str) -> Piece:
    """Parse an event as a piece; any other form is a fault."""
    try:
        answer = json.loads(event)
        if "error" in answer:
            raise _error(answer["error"])
        choices = answer.get("choices") or [{}]
        choice = choices[0]
        given = choice.get("logprobs") or {}
        # llama.cpp returns log-probabilities of completions in the form of chats.
        entries = given.get("content") or ()
        log_probs = given.get("token_logprobs") or [entry["logprob"] for entry in entries]
        ids = choice.get("token_ids") or [entry["id"] for entry in entries if "id" in entry]
        finish = choice.get("finish_reason")
        return Piece(
            text=str(choice.get("text") or ""),
            token_ids=tuple(map(_token, ids)),
            log_probs=tuple(map(_log_prob, log_probs)),
            finish=None if finish is None else str(finish)[:MAX_ERROR],
            usage=_usage(answer.get("usage")),
        )
    except _UNREADABLE as error:
        shown = event if len(event) <= MAX_ERROR else event[:MAX_ERROR] + "…"
        raise Fault(f"an event of the answer can't be read: {shown!r}", again=False) from error


def _token(given: Any) -> int:
    token = operator.index(given)
    if not 0 <= token < 1 << 31:
        raise ValueError(given)
    return token


def _log_prob(given: Any) -> float:
    number = math.nan if given is None else float(given)
    if number > _ROUNDING:
        raise ValueError(given)
    return number


def _error(given: Any) -> Fault:
    code = given.get("code") if isinstance(given, dict) else None
    again = isinstance(code, int) and code in WORTH_ANOTHER_TRY
    return Fault(f"the server failed in the middle: {str(given)[:MAX_ERROR]}", again=again)


def _usage(given: Any) -> Usage | None:
    if not given:
        return None
    cached = (given.get("prompt_tokens_details") or {}).get("cached_tokens")
    prompt, made = int(given["prompt_tokens"]), int(given.get("completion_tokens") or 0)
    if min(prompt, made) < 0:
        raise ValueError(given)
    cached = -1 if cached is None else int(cached)
    return Usage(prompt, made, cached if 0 <= cached <= prompt else None)
