"""Google's Gemini API. A thin client of our own; ``http.py`` says why.

Thoughts are counted apart there and paid as output; our ``tokens_out`` has both. An answer that was
withheld has no candidate, or one without parts: it is a completion that is ``"filtered"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic.agents.backbones.base import Capabilities, Completion, whole
from echoic.agents.backbones.hosted import Counted, HostedBackbone
from echoic.errors import BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Unpack

    from echoic.agents.backbones.base import Message, Sampling
    from echoic.agents.backbones.hosted import Settings
    from echoic.agents.episodes import Usage

__all__ = ["GeminiBackbone"]

_ROLES = {"user": "user", "assistant": "model"}
_FINISHES = {"STOP": "stop", "MAX_TOKENS": "length"}


class GeminiBackbone(HostedBackbone):
    """A model behind ``models/NAME:generateContent``.

    Args:
        model: Its name there.
        key: Shown as ``x-goog-api-key``.
        url: The API's root, with its version.
        **settings: ``name``, ``price`` and ``http`` of
            :class:`~echoic.agents.backbones.hosted.HostedBackbone`.
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
        self.capabilities = Capabilities(seed=True)

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
                {"role": _ROLES[one.role], "parts": [{"text": one.text}]}
                for one in messages
                if one.role != "system"
            ],
            "generationConfig": settings,
        }
        if messages[0].role == "system":
            body["systemInstruction"] = {"parts": [{"text": messages[0].text}]}
        return f"/models/{self.model}:generateContent", body

    def _counted(self, answer: Mapping[str, Any]) -> Counted:
        usage = answer.get("usageMetadata")
        if not usage:
            raise BackboneError(f"{self.client.url} did not count tokens, so its cost is unknown")
        return Counted(
            whole(usage["promptTokenCount"], "promptTokenCount"),
            # Left out where there were none, as all zeros are in this format.
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
        finish = _FINISHES.get(str(candidates[0].get("finishReason")), "filtered")
        return Completion(text, usage=usage, finish=finish)
