"""A server that speaks OpenAI's protocol of completions, and how kinds of servers differ."""

from __future__ import annotations

import json
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.agents.backbones.http import MAX_ERROR, WORTH_ANOTHER_TRY, Fault, HttpClient
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import httpx

    from echoic.agents.llm.requests import RolloutResult, SamplingParams

__all__ = ["DIALECTS", "Dialect", "Fault", "Replica"]


class Dialect(NamedTuple):
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
    extra: Mapping[str, Any] = {}


#: What a server's documentation or source says, and no more.
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
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)


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
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = HttpClient(url, headers, key=key)
        self.url = self.client.url
        self.model = model
        if isinstance(dialect, str):
            if dialect not in DIALECTS:
                known = ", ".join(sorted(DIALECTS))
                raise ArgumentError(f"there is no dialect {dialect!r}; there are {known}")
            dialect = DIALECTS[dialect]
        self.dialect = dialect

    def __repr__(self) -> str:
        return f"Replica({self.url!r}, model={self.model!r}, dialect={self.dialect.name!r})"

    async def complete(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        result: RolloutResult,
        *,
        version: int,
        salt: str,
        stall: float,
    ) -> str:
        """Add the tokens that a result lacks as they arrive, and return why the answer ended.

        Raises:
            Fault: If the server is gone, silent or full, or refuses. What was added is valid.
        """
        dialect, drawn = self.dialect, len(result.tokens)
        if drawn == sampling.max_new_tokens:
            return "length"
        if -1 in result.tokens and not isinstance(prompt, str):
            why = f"the rest can't be requested, since {self!r} does not return token ids"
            raise Fault(why, again=False)
        so_far = prompt + result.text if isinstance(prompt, str) else [*prompt, *result.tokens]
        body: dict[str, Any] = {
            **dialect.extra,
            "model": self.model,
            "prompt": so_far,
            "max_tokens": sampling.max_new_tokens - drawn,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "logprobs": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.seed is not None:
            # The rest of an answer must not repeat the random numbers of its beginning.
            body["seed"] = sampling.seed + drawn
        if dialect.stop_ids is not None and sampling.stop:
            body[dialect.stop_ids] = sampling.stop
        if dialect.token_ids is not None:
            body[dialect.token_ids] = True
        if dialect.salted:
            body["cache_salt"] = salt
        finish = None
        try:
            async with self.client.stream(f"{self.url}/completions", body, stall) as answer:
                async for event in _events(answer):
                    if event == "[DONE]":
                        break
                    finish = self._add(event, result, sampling.max_new_tokens) or finish
                    result.versions += [version] * (len(result.tokens) - len(result.versions))
                else:
                    raise Fault(f"the answer of {self.url} ended in the middle", again=True)
        except Fault as fault:
            # An error after the end of an answer costs only its usage.
            if finish is None or not fault.again:
                raise
        if finish not in ("stop", "length"):
            # Such as "abort".
            raise Fault(f"{self!r} ended its answer with the reason {finish!r}", again=True)
        return finish

    def _add(self, event: str, result: RolloutResult, most: int) -> str | None:
        """Add an event to a result, with -1 for an unknown id; return why the answer ended."""
        try:
            answer = json.loads(event)
            if error := answer.get("error"):
                code = error.get("code") if isinstance(error, dict) else None
                why = f"{self.url} failed in the middle: {self.client.shown(str(error))}"
                raise Fault(why, again=code in WORTH_ANOTHER_TRY)
            choice = (answer.get("choices") or [{}])[0]
            text = str(choice.get("text") or "")
            given = choice.get("logprobs") or {}
            # llama.cpp returns log-probabilities of completions in the form of chats.
            entries = given.get("content") or ()
            log_probs = given.get("token_logprobs") or [entry["logprob"] for entry in entries]
            log_probs = [_log_prob(one) for one in log_probs]
            ids = choice.get("token_ids") or [entry["id"] for entry in entries if "id" in entry]
            ids = [_token(one) for one in ids] or [-1] * (len(log_probs) or bool(text))
            log_probs = log_probs or [math.nan] * len(ids)
            if usage := answer.get("usage"):
                prompt = _token(usage["prompt_tokens"])
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
                # What can't be is unknown.
                result.reused_tokens = cached if cached in range(prompt + 1) else None
                result.prompt_tokens = result.prompt_tokens or prompt
            finish = choice.get("finish_reason")
        except _UNREADABLE:
            shown = self.client.shown(event)
            raise Fault(f"an event of {self.url} can't be read: {shown!r}", again=False) from None
        if len(ids) != len(log_probs):
            why = f"{self.url} sent {len(ids)} tokens with {len(log_probs)} log-probabilities"
            raise Fault(why, again=False)
        if len(result.tokens) + len(ids) > most:
            raise Fault(f"{self.url} sent more tokens than were requested", again=False)
        if len(result.text) + len(text) > MAX_LINE:
            raise Fault(f"{self.url} sent more than {MAX_LINE} characters", again=False)
        result.text += text
        result.tokens += ids
        result.logprobs += log_probs
        return None if finish is None else str(finish)[:MAX_ERROR]


async def _events(answer: httpx.Response) -> AsyncIterator[str]:
    """Yield the data of server-sent events; with all known servers each is one line."""
    line = bytearray()
    async for part in answer.aiter_bytes():
        end, *others = part.split(b"\n")
        line += end
        if len(line) > MAX_LINE:
            raise Fault(f"{answer.request.url} sent a line of more than {MAX_LINE} B", again=False)
        for other in others:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode(errors="replace")
            line = bytearray(other)


def _token(given: Any) -> int:
    token = operator.index(given)
    if not 0 <= token < 1 << 31:
        raise ValueError(given)
    return token


def _log_prob(given: Any) -> float:
    number = math.nan if given is None else float(given)
    # Rounding may add a little to a log-probability of 0.
    if number > 1e-3:
        raise ValueError(given)
    return number
