"""Any server that speaks OpenAI's chat format: OpenAI, Mistral, DeepSeek, vLLM, SGLang, llama.cpp.

A thin client of our own; ``http.py`` says why. Where servers differ, fields of the request have
names that a constructor's argument sets: newer OpenAI models want ``max_completion_tokens``,
Mistral calls the seed ``random_seed``.

Cached tokens are ``usage.prompt_tokens_details.cached_tokens``, or DeepSeek's
``usage.prompt_cache_hit_tokens``. Of a server that tells neither they are None: not told.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from echoic.agents.backbones.base import Capabilities, Completion, whole
from echoic.agents.backbones.hosted import Counted, HostedBackbone
from echoic.agents.backbones.http import guess_tokens
from echoic.errors import BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Unpack

    from echoic.agents.backbones.base import Message, Sampling
    from echoic.agents.backbones.hosted import Settings
    from echoic.agents.episodes import Usage

__all__ = ["OpenAIBackbone"]

_FINISHES = {"stop": "stop", "length": "length", "content_filter": "filtered"}


class OpenAIBackbone(HostedBackbone):
    """A model behind ``/chat/completions``.

    Args:
        model: Its name there.
        key: Shown as a bearer token; None where a server wants none.
        url: The API's root, with its ``/v1``.
        log_probs: Whether to ask for them; not all servers know them.
        completions: Whether the server has ``/completions`` for bare texts, as vLLM, SGLang and
            llama.cpp have.
        seed_field: What the request calls the seed; None if the server takes none.
        limit_field: What it calls the most tokens of an answer.
        extra: More fields of every request.
        **settings: ``name``, ``price`` and ``http`` of
            :class:`~echoic.agents.backbones.hosted.HostedBackbone`.
    """

    def __init__(
        self,
        model: str,
        *,
        key: str | None = None,
        url: str = "https://api.openai.com/v1",
        log_probs: bool = False,
        completions: bool = False,
        seed_field: str | None = "seed",
        limit_field: str = "max_tokens",
        extra: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(model, url=url, headers=headers, key=key, **settings)
        self.capabilities = Capabilities(
            complete=completions, log_probs=log_probs, seed=seed_field is not None
        )
        self._seed_field = seed_field
        self._limit_field = limit_field
        self._extra = dict(extra or {})

    async def go_on(self, prompt: str, sampling: Sampling) -> Completion:
        """Go on with a text."""
        body = self._body(sampling) | {"prompt": prompt}
        if self.capabilities.log_probs:
            body["logprobs"] = 1
        # The older format has the older name for everybody.
        body["max_tokens"] = body.pop(self._limit_field)
        return await self._ask("/completions", body, guess_tokens(len(prompt), sampling.max_tokens))

    def _body(self, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            **self._extra,
            "model": self.model,
            self._limit_field: sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None and self._seed_field is not None:
            body[self._seed_field] = sampling.seed
        return body

    def _request(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[str, dict[str, Any]]:
        body = self._body(sampling)
        body["messages"] = [{"role": one.role, "content": one.text} for one in messages]
        if self.capabilities.log_probs:
            body["logprobs"] = True
        return "/chat/completions", body

    def _counted(self, answer: Mapping[str, Any]) -> Counted:
        usage = answer.get("usage")
        if not usage:
            raise BackboneError(f"{self.client.url} does not count tokens, so its cost is unknown")
        told = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if told is None:
            told = usage.get("prompt_cache_hit_tokens")
        return Counted(
            whole(usage["prompt_tokens"], "prompt_tokens"),
            None if told is None else whole(told, "cached_tokens"),
            whole(usage["completion_tokens"], "completion_tokens"),
        )

    def _read(self, answer: Mapping[str, Any], usage: Usage) -> Completion:
        choice = answer["choices"][0]
        # A message's content is None where all tokens went into thinking.
        text = choice["text"] if "text" in choice else choice["message"].get("content") or ""
        log_probs = None
        if self.capabilities.log_probs:
            log_probs = _log_probs(choice.get("logprobs"))
            if log_probs is None:
                raise BackboneError(f"{self.client.url} was asked for log-probabilities, told none")
        return Completion(
            str(text),
            log_probs=log_probs,
            usage=usage,
            finish=_FINISHES.get(str(choice.get("finish_reason")), "stop"),
        )


def _log_probs(told: Any) -> tuple[float, ...] | None:
    """Of chats and of bare texts, which have different forms."""
    if not told:
        return None
    if told.get("content") is not None:
        return tuple(float(one["logprob"]) for one in told["content"])
    if told.get("token_logprobs") is not None:
        return tuple(math.nan if one is None else float(one) for one in told["token_logprobs"])
    return None
