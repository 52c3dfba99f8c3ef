"""A local language model, run by the engine.

Requests are batched, and a prefix that several have in common is computed once: ``tokens_cached``
of a usage is the engine's count. The engine may draw one more token after a stop text before it is
cancelled; that one is in ``usage.tokens_out``, since it was computed.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from echoic.agents.backbones import smollm2
from echoic.agents.backbones.base import Backbone, Completion, Scores, check_messages
from echoic.agents.episodes import Usage
from echoic.agents.llm import AsyncExecutionEngine, ExecutionConfig, SamplingParams
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echoic.agents.backbones.base import Message, Sampling
    from echoic.agents.llm import RolloutResult

__all__ = ["LocalBackbone"]

_CONFIG = ExecutionConfig(max_cache_size=8192, max_concurrent_rollouts=16, timeout=600.0)


class LocalBackbone(Backbone):
    """A causal language model of transformers, or any that the engine runs.

    The tokenizer has ``encode``, ``decode`` and, for chats, ``apply_chat_template``. ``config`` is
    of the engine.
    """

    can_score = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "local",
        config: ExecutionConfig | None = None,
        device: Any = "auto",
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.engine = AsyncExecutionEngine(config or _CONFIG, model, device)
        # The token that ends an answer: of several, the tokenizer's.
        end = getattr(tokenizer, "eos_token_id", None)
        ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ends = {end, *(ends if isinstance(ends, (list, tuple)) else [ends])} - {None}
        self._ends = tuple(sorted(ends))
        self._end = self._ends[:1] if end is None else (end,)

    @classmethod
    def smollm2(cls, device: Any = "auto", **settings: Any) -> LocalBackbone:
        """Load SmolLM2-135M-Instruct; see ``echoic.agents.backbones.smollm2``."""
        model, tokenizer = smollm2.load(device)
        return cls(model, tokenizer, device=device, **{"name": "smollm2", **settings})

    def __repr__(self) -> str:
        return f"LocalBackbone({type(self.model).__name__}, name={self.name!r})"

    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer a chat."""
        params = SamplingParams(
            sampling.max_tokens, sampling.temperature, stop=self._ends, seed=sampling.seed
        )
        stop = sampling.stop
        # Number of last tokens that hold any stop text which the newest one has ended: a text has
        # at most as many tokens as bytes.
        tail = max((len(text.encode()) for text in stop), default=0) + 8
        name = await self.engine.submit_rollout(self._prompt(messages), sampling=params)
        drawn: list[int] = []
        found = False
        try:
            async for token in self.engine.stream(name):
                drawn.append(token.token)
                if found := _earliest(self._text(drawn[-tail:]), stop) is not None:
                    break
        finally:
            self.engine.cancel(name)
        result = await self.engine.get_result(name)
        if not found:
            self._check(result)
        text = self._text(drawn)
        place = _earliest(text, stop)
        stopped = found or place is not None or result.finish_reason == "stop"
        usage = Usage(
            result.prompt_tokens, result.reused_tokens, result.tokens_generated, requests=1
        )
        return Completion(text[:place], usage, "stop" if stopped else "length")

    async def score(
        self, messages: Sequence[Message], answers: Sequence[str], *, begin: str = ""
    ) -> Scores:
        """Return the likelihood of each answer; what they have in common is computed once."""
        check_messages(messages)
        if not answers or not all(answers):
            raise ArgumentError("expected at least one answer to score, and no empty one")
        prompt = [*self._prompt(messages), *self._bare(begin)]
        given = [(*self._bare(answer), *self._end) for answer in answers]
        forced = [SamplingParams(len(one), 0.0, forced=one) for one in given]
        results = await asyncio.gather(*(self.engine.generate(prompt, one) for one in forced))
        for result in results:
            self._check(result)
        tokens_in = sum(one.prompt_tokens + one.tokens_generated for one in results)
        return Scores(
            tuple(math.fsum(one.logprobs) for one in results),
            tuple(len(one) for one in given),
            Usage(tokens_in, sum(one.reused_tokens or 0 for one in results), requests=1),
        )

    async def aclose(self) -> None:
        """End the engine's thread."""
        await self.engine.aclose()

    def _check(self, result: RolloutResult) -> None:
        if not result.success:
            raise BackboneError(f"{self.name}: {result.error or result.finish_reason}")

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        chat = [{"role": one.role, "content": one.text} for one in messages]
        made = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return list(made["input_ids"])

    def _bare(self, text: str) -> list[int]:
        """Return the tokens of a text without the start token of some tokenizers."""
        tokens = list(self.tokenizer.encode(text))
        begins = getattr(self.tokenizer, "bos_token_id", None)
        return tokens[1:] if begins is not None and tokens[:1] == [begins] else tokens

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def _earliest(text: str, stop: Sequence[str]) -> int | None:
    """Return where the first of these texts starts, or None without any."""
    return min((place for one in stop if (place := text.find(one)) >= 0), default=None)
