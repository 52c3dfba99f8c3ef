"""Anthropic's Messages API. A thin client of our own; ``http.py`` says why.

It takes no seed and tells no log-probabilities. ``input_tokens`` of its counts leaves out what was
read from the cache and what was written to it; ours includes both, and prices them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic.agents.backbones.base import Capabilities, Completion, whole
from echoic.agents.backbones.hosted import Counted, HostedBackbone
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Unpack

    from echoic.agents.backbones.base import Message, Sampling
    from echoic.agents.backbones.hosted import Settings
    from echoic.agents.episodes import Usage

__all__ = ["AnthropicBackbone"]

_VERSION = "2023-06-01"
_FINISHES = {"max_tokens": "length", "model_context_window_exceeded": "length"}


class AnthropicBackbone(HostedBackbone):
    """A model behind ``/v1/messages``.

    Args:
        model: Its name there.
        key: Shown as ``x-api-key``.
        url: The API's root, without ``/v1``.
        cache: Whether to ask that instructions and all messages but the last be cached. Prompts
            below a vendor's least length are not, and say so in their counts.
        **settings: ``name``, ``price`` and ``http`` of
            :class:`~echoic.agents.backbones.hosted.HostedBackbone`.
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
        headers = {"x-api-key": key, "anthropic-version": _VERSION}
        super().__init__(model, url=url, headers=headers, key=key, **settings)
        self.capabilities = Capabilities()
        self._cache = cache

    def _request(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[str, dict[str, Any]]:
        if sampling.temperature > 1:
            raise ArgumentError(
                f"temperature is at most 1 at Anthropic's, not {sampling.temperature}"
            )
        # Stop texts of nothing but whitespace are refused there.
        if any(not text.strip() for text in sampling.stop):
            raise ArgumentError("a stop text at Anthropic's has more than whitespace")
        chat = [message for message in messages if message.role != "system"]
        said = [{"role": one.role, "content": [_text(one.text)]} for one in chat]
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "messages": said,
        }
        if sampling.stop:
            body["stop_sequences"] = list(sampling.stop)
        if messages[0].role == "system":
            body["system"] = [_text(messages[0].text)]
        if self._cache:
            # A mark says: all up to here. The last message is new each time.
            marked = [body["system"][-1]] if "system" in body else []
            marked += said[-2]["content"][-1:] if len(said) > 1 else []
            for block in marked:
                block["cache_control"] = {"type": "ephemeral"}
        return "/v1/messages", body

    def _counted(self, answer: Mapping[str, Any]) -> Counted:
        usage = answer.get("usage")
        if not usage:
            raise BackboneError(f"{self.client.url} did not count tokens, so its cost is unknown")
        fresh = whole(usage["input_tokens"], "input_tokens")
        told = usage.get("cache_read_input_tokens")
        read = None if told is None else whole(told, "cache_read_input_tokens")
        written = whole(
            usage.get("cache_creation_input_tokens") or 0, "cache_creation_input_tokens"
        )
        out = whole(usage["output_tokens"], "output_tokens")
        return Counted(fresh + (read or 0) + written, read, out, written)

    def _read(self, answer: Mapping[str, Any], usage: Usage) -> Completion:
        blocks = [block for block in answer["content"] if block.get("type") == "text"]
        reason = str(answer.get("stop_reason"))
        finish = "filtered" if reason == "refusal" else _FINISHES.get(reason, "stop")
        return Completion("".join(block["text"] for block in blocks), usage=usage, finish=finish)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
