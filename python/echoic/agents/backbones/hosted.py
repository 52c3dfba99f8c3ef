"""Models at vendors and on servers: three wire formats over one client.

- :class:`OpenAIBackbone`: any server with OpenAI's chat format, such as OpenAI, Mistral, DeepSeek,
  vLLM, SGLang and llama.cpp. Newer OpenAI models want ``max_completion_tokens``, and Mistral calls
  the seed ``random_seed``: arguments of the constructor name such fields. Cached tokens are
  ``usage.prompt_tokens_details.cached_tokens``, or DeepSeek's ``usage.prompt_cache_hit_tokens``.
- :class:`AnthropicBackbone`: it takes no seed. Its ``input_tokens`` exclude tokens that were read
  from the cache or written to it; here ``tokens_in`` includes both.
- :class:`GeminiBackbone`: thoughts are counted separately there and paid as output; here
  ``tokens_out`` has both. An answer that was withheld is a completion that is ``"filtered"``.

A server that reports no cached tokens gives ``tokens_cached=None``, which is not 0.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from echoic.agents.backbones import prices
from echoic.agents.backbones.base import Backbone, Completion, whole
from echoic.agents.backbones.http import JsonClient
from echoic.agents.episodes import Usage
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Unpack

    from echoic.agents.backbones.base import Message, Sampling
    from echoic.agents.backbones.http import HttpConfig
    from echoic.agents.backbones.prices import Price

__all__ = ["AnthropicBackbone", "GeminiBackbone", "HostedBackbone", "OpenAIBackbone"]

_OPENAI_FINISHES = {"stop": "stop", "length": "length", "content_filter": "filtered"}
_ANTHROPIC_VERSION = "2023-06-01"
_ANTHROPIC_FINISHES = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "filtered",
}
_GEMINI_ROLES = {"user": "user", "assistant": "model"}
_GEMINI_FINISHES = {"STOP": "stop", "MAX_TOKENS": "length"}


class Settings(TypedDict, total=False):
    """Arguments that every wire format passes to :class:`HostedBackbone`, described there."""

    name: str | None
    price: Price | str | None
    http: HttpConfig | None


@dataclass(frozen=True)
class Counted:
    """Tokens as a vendor reports them; ``tokens_in`` includes those cached and written.

    ``tokens_cached`` is None where the vendor does not report it.
    """

    tokens_in: int
    tokens_cached: int | None
    tokens_out: int
    tokens_written: int = 0

    def check(self, url: str) -> None:
        """Raise a ``BackboneError`` if parts are more than the whole."""
        cached = self.tokens_cached or 0
        if cached + self.tokens_written > self.tokens_in:
            raise BackboneError(
                f"{url} reported {cached} tokens read from its cache and {self.tokens_written} "
                f"written to it, of {self.tokens_in} in all"
            )


class HostedBackbone(Backbone):
    """A model behind a vendor's API. Subclasses have the wire formats.

    Args:
        model: The vendor's name of the model.
        url: Root of the API.
        headers: Headers of every request.
        key: Key, which is hidden in errors.
        name: Name in reports; by default the model's.
        price: By default that of ``echoic.agents.backbones.prices``; None: not known, and costs
            are ``nan``.
        http: Bounds.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str,
        headers: Mapping[str, str],
        key: str | None,
        name: str | None = None,
        price: Price | str | None = "listed",
        http: HttpConfig | None = None,
    ) -> None:
        self.model = model
        self.name = name or model
        self.price = prices.price_of(model) if isinstance(price, str) else price
        self.client = JsonClient(url, headers, http, secret=key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, url={self.client.url!r})"

    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer a chat."""
        return await self._ask(*self._request(messages, sampling))

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    # What a wire format is made of.

    @abstractmethod
    def _request(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[str, dict[str, Any]]:
        """The path and the body of a chat."""

    @abstractmethod
    def _counted(self, answer: Mapping[str, Any]) -> Counted:
        """Return the vendor's counts."""

    @abstractmethod
    def _read(self, answer: Mapping[str, Any], usage: Usage) -> Completion:
        """Return the answer."""

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Completion:
        answer = await self.client.post(path, body)
        usage: Usage | None = None
        try:
            counted = self._counted(answer)
            counted.check(self.client.url)
            usage = Usage(
                counted.tokens_in,
                counted.tokens_cached,
                counted.tokens_out,
                prices.cost(
                    self.price,
                    tokens_in=counted.tokens_in,
                    # If unknown, all count as new: the bill can only be lower.
                    tokens_cached=counted.tokens_cached or 0,
                    tokens_out=counted.tokens_out,
                    tokens_written=counted.tokens_written,
                ),
                requests=1,
            )
            completion = self._read(answer, usage)
        except BackboneError as error:
            raise _failed(self.client.hide(str(error)), usage) from None
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            # The cause may show the key too.
            shown = self.client.hide(json.dumps(answer))[:300]
            why = self.client.hide(f"{type(error).__name__}: {error}")[:300]
            raise _failed(
                f"an answer of {self.client.url} can't be read ({why}): {shown}", usage
            ) from None
        if not completion.text and completion.finish == "length":
            raise _failed(
                f"{self.name} returned no text: all {usage.tokens_out} tokens were thoughts, or "
                "none were left for an answer; raise max_tokens",
                usage,
            )
        return completion

    def _counts(self, answer: Mapping[str, Any], field: str) -> Any:
        """Return the part of an answer with the counts of tokens."""
        usage = answer.get(field)
        if not usage:
            raise BackboneError(f"{self.client.url} did not count tokens, so its cost is unknown")
        return usage


class OpenAIBackbone(HostedBackbone):
    """A model behind ``/chat/completions``.

    Args:
        model: Its name there.
        key: The bearer token; None for a server without keys.
        url: The API's root, with its ``/v1``.
        seed_field: Name of the seed in a request; None if the server takes none.
        limit_field: Name of the most tokens of an answer.
        extra: More fields of every request.
        **settings: ``name``, ``price`` and ``http`` of :class:`HostedBackbone`.
    """

    def __init__(
        self,
        model: str,
        *,
        key: str | None = None,
        url: str = "https://api.openai.com/v1",
        seed_field: str | None = "seed",
        limit_field: str = "max_tokens",
        extra: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(model, url=url, headers=headers, key=key, **settings)
        self._seed_field = seed_field
        self._limit_field = limit_field
        self._extra = dict(extra or {})

    def _request(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            **self._extra,
            "model": self.model,
            "messages": [{"role": one.role, "content": one.text} for one in messages],
            self._limit_field: sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None and self._seed_field is not None:
            body[self._seed_field] = sampling.seed
        return "/chat/completions", body

    def _counted(self, answer: Mapping[str, Any]) -> Counted:
        usage = self._counts(answer, "usage")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached is None:
            cached = usage.get("prompt_cache_hit_tokens")
        return Counted(
            whole(usage["prompt_tokens"], "prompt_tokens"),
            None if cached is None else whole(cached, "cached_tokens"),
            whole(usage["completion_tokens"], "completion_tokens"),
        )

    def _read(self, answer: Mapping[str, Any], usage: Usage) -> Completion:
        choice = answer["choices"][0]
        # A message's content is None if all tokens were used for thinking.
        text = choice["message"].get("content") or ""
        finish = _OPENAI_FINISHES.get(str(choice.get("finish_reason")), "stop")
        return Completion(str(text), usage=usage, finish=finish)


class AnthropicBackbone(HostedBackbone):
    """A model behind ``/v1/messages``.

    Args:
        model: Its name there.
        key: Sent as ``x-api-key``.
        url: The API's root, without ``/v1``.
        cache: Whether to request caching of instructions and of all messages but the last. Prompts
            below the vendor's least length are not cached, as their counts show.
        **settings: ``name``, ``price`` and ``http`` of :class:`HostedBackbone`.
    """

    def __init__(
        self,
        model: str,
        *,
        key: str,
        url: str = "https://api.anthropic.com",
        cache: bool = True,
        **settings: Unpack[Settings],
    ) -> None:
        headers = {"x-api-key": key, "anthropic-version": _ANTHROPIC_VERSION}
        super().__init__(model, url=url, headers=headers, key=key, **settings)
        self._cache = cache

    def _request(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[str, dict[str, Any]]:
        if sampling.temperature > 1:
            raise ArgumentError(
                f"temperature must be at most 1 at Anthropic's, not {sampling.temperature}"
            )
        if any(not text.strip() for text in sampling.stop):
            raise ArgumentError("a stop text at Anthropic's must have more than whitespace")
        chat = [message for message in messages if message.role != "system"]
        turns = [{"role": one.role, "content": [_text(one.text)]} for one in chat]
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "messages": turns,
        }
        if sampling.stop:
            body["stop_sequences"] = list(sampling.stop)
        if messages[0].role == "system":
            body["system"] = [_text(messages[0].text)]
        if self._cache:
            # A mark caches all up to its block. The last message is new each time.
            marked = [body["system"][-1]] if "system" in body else []
            marked += turns[-2]["content"][-1:] if len(turns) > 1 else []
            for block in marked:
                block["cache_control"] = {"type": "ephemeral"}
        return "/v1/messages", body

    def _counted(self, answer: Mapping[str, Any]) -> Counted:
        usage = self._counts(answer, "usage")
        fresh = whole(usage["input_tokens"], "input_tokens")
        reported = usage.get("cache_read_input_tokens")
        read = None if reported is None else whole(reported, "cache_read_input_tokens")
        written = whole(
            usage.get("cache_creation_input_tokens") or 0, "cache_creation_input_tokens"
        )
        out = whole(usage["output_tokens"], "output_tokens")
        return Counted(fresh + (read or 0) + written, read, out, written)

    def _read(self, answer: Mapping[str, Any], usage: Usage) -> Completion:
        blocks = [block for block in answer["content"] if block.get("type") == "text"]
        finish = _ANTHROPIC_FINISHES.get(str(answer.get("stop_reason")), "stop")
        return Completion("".join(block["text"] for block in blocks), usage=usage, finish=finish)


class GeminiBackbone(HostedBackbone):
    """A model behind ``models/NAME:generateContent``.

    Args:
        model: Its name there.
        key: Sent as ``x-goog-api-key``.
        url: The API's root, with its version.
        **settings: ``name``, ``price`` and ``http`` of :class:`HostedBackbone`.
    """

    def __init__(
        self,
        model: str,
        *,
        key: str,
        url: str = "https://generativelanguage.googleapis.com/v1beta",
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(model, url=url, headers={"x-goog-api-key": key}, key=key, **settings)

    def _request(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[str, dict[str, Any]]:
        settings: dict[str, Any] = {
            "maxOutputTokens": sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        if sampling.stop:
            settings["stopSequences"] = list(sampling.stop)
        if sampling.seed is not None:
            # A signed number of 32 bits there.
            settings["seed"] = sampling.seed % (1 << 31)
        body: dict[str, Any] = {
            "contents": [
                {"role": _GEMINI_ROLES[one.role], "parts": [{"text": one.text}]}
                for one in messages
                if one.role != "system"
            ],
            "generationConfig": settings,
        }
        if messages[0].role == "system":
            body["systemInstruction"] = {"parts": [{"text": messages[0].text}]}
        return f"/models/{self.model}:generateContent", body

    def _counted(self, answer: Mapping[str, Any]) -> Counted:
        usage = self._counts(answer, "usageMetadata")
        return Counted(
            whole(usage["promptTokenCount"], "promptTokenCount"),
            # This format leaves zeros out.
            whole(usage.get("cachedContentTokenCount") or 0, "cachedContentTokenCount"),
            whole(usage.get("candidatesTokenCount") or 0, "candidatesTokenCount")
            + whole(usage.get("thoughtsTokenCount") or 0, "thoughtsTokenCount"),
        )

    def _read(self, answer: Mapping[str, Any], usage: Usage) -> Completion:
        candidates = answer.get("candidates") or []
        if not candidates:
            return Completion("", usage=usage, finish="filtered")
        parts = (candidates[0].get("content") or {}).get("parts") or []
        text = "".join(part.get("text", "") for part in parts if not part.get("thought"))
        finish = _GEMINI_FINISHES.get(str(candidates[0].get("finishReason")), "filtered")
        return Completion(text, usage=usage, finish=finish)


def _failed(why: str, usage: Usage | None) -> BackboneError:
    """Make an error with the usage of a failed call."""
    error = BackboneError(why)
    error.usage = usage
    return error


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
