"""Models at vendors and on servers: one client, and a table of how each protocol asks and answers.

A server that reports no cached tokens gives ``tokens_cached=None``, which is not 0.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.agents.backbones.base import PRICES, Backbone, Completion
from echoic.agents.backbones.http import HttpClient
from echoic.agents.episodes import Usage
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from echoic.agents.backbones.base import Message, Price, Sampling
    from echoic.agents.backbones.http import HttpConfig

__all__ = ["HostedBackbone"]

Json = dict[str, Any]
# Tokens of the prompt, those of them read from a cache, if reported, those written to it, and those
# of the answer.
Counted = tuple[int, "int | None", int, int]

# What ends an answer before its own end.
_FINISHES = {
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "filtered",
    "refusal": "filtered",
}


class HostedBackbone(Backbone):
    """A model behind an API.

    Args:
        model: Its name there.
        protocol: ``"openai"`` (its vendor's, and that of Gemini, Mistral, DeepSeek, vLLM, SGLang
            and llama.cpp), or ``"anthropic"``, which takes no seed.
        key: Its key; None for a server without keys.
        url: Root of the API, such as ``https://api.openai.com/v1``.
        price: By default that in ``PRICES``; None: not known, and costs are ``nan``.
        rename: Other names of fields of a request, or None for those that the server does not
            take, such as ``{"max_tokens": "max_completion_tokens", "seed": None}``.
    """

    def __init__(
        self,
        model: str,
        protocol: str = "openai",
        *,
        url: str,
        key: str | None = None,
        name: str | None = None,
        price: Price | str | None = "listed",
        rename: Mapping[str, str | None] | None = None,
        http: HttpConfig | None = None,
    ) -> None:
        if protocol not in _PROTOCOLS:
            known = ", ".join(_PROTOCOLS)
            raise ArgumentError(f"a protocol must be one of {known}, not {protocol!r}")
        self.model = model
        self.name = name or model
        if isinstance(price, str) and model not in PRICES:
            raise ArgumentError(
                f"no price of {model!r} is known: expected one in PRICES or price=Price(...), or "
                "price=None, and its cost is nan"
            )
        self.price = PRICES[model] if isinstance(price, str) else price
        self._protocol = _PROTOCOLS[protocol]
        self._rename = dict(rename or {})
        headers = self._protocol.headers.items() if key else ()
        filled = {header: value.format(key=key) for header, value in headers}
        self.client = HttpClient(url, filled, http, key)

    def __repr__(self) -> str:
        return f"HostedBackbone({self.model!r}, url={self.client.url!r})"

    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer a chat."""
        asked = self._protocol.ask(self.model, messages, sampling)
        named = [(self._rename.get(name, name), value) for name, value in asked.items()]
        body = {name: value for name, value in named if name is not None}
        answer = await self.client.post(self._protocol.path, body)
        usage = None
        try:
            usage = self._usage(self._protocol.counts(answer))
            text, reason = self._protocol.read(answer)
            finish = _FINISHES.get(str(reason), "stop")
        except BackboneError as error:
            why = str(error)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            why = f"it can't be read ({type(error).__name__}: {error})"
        else:
            if text or finish != "length":
                return Completion(str(text), usage, finish)
            why = (
                f"it has no text: all {usage.tokens_out} tokens were thoughts, or none were left "
                "for an answer; raise max_tokens"
            )
        shown = self.client.shown(f"{why}: {json.dumps(answer)}")
        failed = BackboneError(f"an answer of {self.name} at {self.client.url}: {shown}")
        failed.usage = usage
        raise failed

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    def _usage(self, counted: Counted) -> Usage:
        tokens_in, cached, written, out = counted
        # If unknown, all count as new: the bill can only be lower.
        read = cached or 0
        if read + written > tokens_in:
            raise BackboneError(
                f"it reports {read} tokens read from its cache and {written} written to it, of "
                f"{tokens_in} in all"
            )
        dollars = math.nan
        if (price := self.price) is not None:
            dollars = (tokens_in - read - written) * price.input + out * price.out
            dollars += read * (price.input if price.cached is None else price.cached)
            dollars += written * (price.input if price.written is None else price.written)
        return Usage(tokens_in, cached, out, dollars / 1e6, requests=1)


def _maybe(counts: Json | None, name: str) -> int | None:
    """Return a count that a server may leave out."""
    number = (counts or {}).get(name)
    if number is None:
        return None
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    # JSON numbers may be infinite here.
    if not is_number or not 0 <= number < math.inf or number != int(number):
        raise BackboneError(f"expected a whole number as {name}, got {number!r}")
    return int(number)


def _count(counts: Json | None, name: str) -> int:
    if (number := _maybe(counts, name)) is None:
        raise BackboneError(f"it does not count {name}, so its cost is unknown")
    return number


# OpenAI's format.


def _ask_openai(model: str, messages: Sequence[Message], sampling: Sampling) -> Json:
    body: Json = {
        "model": model,
        "messages": [{"role": one.role, "content": one.text} for one in messages],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def _count_openai(answer: Json) -> Counted:
    usage = answer.get("usage") or {}
    cached = _maybe(usage.get("prompt_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _maybe(usage, "prompt_cache_hit_tokens")
    tokens_in, out = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    # Gemini counts thoughts in the total only, and bills them as output.
    return tokens_in, cached, 0, max(out, (_maybe(usage, "total_tokens") or 0) - tokens_in)


def _read_openai(answer: Json) -> tuple[str, Any]:
    choice = answer["choices"][0]
    # A message's content is None if all tokens were used for thinking.
    return choice["message"].get("content") or "", choice.get("finish_reason")


# Anthropic's. It excludes tokens that were read from the cache or written to it from its count.


def _ask_anthropic(model: str, messages: Sequence[Message], sampling: Sampling) -> Json:
    turns: list[Json] = [
        {"role": one.role, "content": [{"type": "text", "text": one.text}]} for one in messages
    ]
    # A mark caches all up to its block. The last message is new each time.
    marked = [turns[0]] if messages[0].role == "system" else []
    for turn in [*marked, *turns[-2:-1]]:
        turn["content"][0]["cache_control"] = {"type": "ephemeral"}
    body: Json = {
        "model": model,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "messages": turns[len(marked) :],
    }
    if marked:
        body["system"] = turns[0]["content"]
    if sampling.stop:
        body["stop_sequences"] = list(sampling.stop)
    return body


def _count_anthropic(answer: Json) -> Counted:
    usage = answer.get("usage")
    read = _maybe(usage, "cache_read_input_tokens")
    written = _maybe(usage, "cache_creation_input_tokens") or 0
    total = _count(usage, "input_tokens") + (read or 0) + written
    return total, read, written, _count(usage, "output_tokens")


def _read_anthropic(answer: Json) -> tuple[str, Any]:
    texts = [block["text"] for block in answer["content"] if block.get("type") == "text"]
    return "".join(texts), answer.get("stop_reason")


class _Protocol(NamedTuple):
    """How a server is asked and answers: its headers and its JSON."""

    path: str
    headers: Mapping[str, str]
    ask: Callable[[str, Sequence[Message], Sampling], Json]
    counts: Callable[[Json], Counted]
    read: Callable[[Json], tuple[str, Any]]


_PROTOCOLS = {
    "openai": _Protocol(
        "/chat/completions",
        {"Authorization": "Bearer {key}"},
        *(_ask_openai, _count_openai, _read_openai),
    ),
    "anthropic": _Protocol(
        "/v1/messages",
        {"x-api-key": "{key}", "anthropic-version": "2023-06-01"},
        *(_ask_anthropic, _count_anthropic, _read_anthropic),
    ),
}
