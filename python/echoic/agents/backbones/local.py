"""A local language model, run by the engine.

Requests are batched, and a prefix that several have in common is computed once: ``tokens_cached``
of a usage is the engine's count. To train a model, see :class:`echoic.agents.llm.LLMTrainer`.

A stop text may end in the middle of a token, and is found when its last token was drawn. The engine
may draw one more token before it is cancelled; that one is in ``usage.tokens_out``, since it was
computed.

Importing this module imports torch.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from echoic.agents.backbones.base import (
    Backbone,
    Completion,
    Scores,
    check_messages,
    earliest,
)
from echoic.agents.backbones.prices import FREE, Price, cost
from echoic.agents.episodes import Usage
from echoic.agents.llm import AsyncExecutionEngine, ExecutionConfig, SamplingParams
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echoic.agents.backbones.base import Message, Sampling
    from echoic.agents.llm import RolloutResult

__all__ = ["LocalBackbone"]

_CONFIG = ExecutionConfig(max_cache_size=8192, max_concurrent_rollouts=16, timeout=600.0)
# A text has at most as many tokens as bytes in UTF-8.
_BYTES = "utf-8"


class LocalBackbone(Backbone):
    """A causal language model of transformers, or any that the engine runs.

    Args:
        model: See :class:`~echoic.agents.llm.AsyncExecutionEngine`.
        tokenizer: With ``encode``, ``decode`` and, for chats, ``apply_chat_template``.
        name: Name in reports.
        config: Settings of the engine.
        device: Device of a model of transformers.
        price: Price of its tokens; by default 0.
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
        price: Price | None = FREE,
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.price = price
        self.engine = AsyncExecutionEngine(config or _CONFIG, model, device)
        self._ends = _end_tokens(model, tokenizer)
        # The token that ends an answer: of several, the tokenizer's.
        end = getattr(tokenizer, "eos_token_id", None)
        self._end = end if isinstance(end, int) else next(iter(self._ends), None)

    @classmethod
    def smollm2(cls, device: Any = "auto", **settings: Any) -> LocalBackbone:
        """Load SmolLM2-135M-Instruct; see ``echoic.agents.backbones.smollm2``."""
        from echoic.agents.backbones import smollm2

        model, tokenizer = smollm2.load(device)
        return cls(model, tokenizer, device=device, **{"name": "smollm2", **settings})

    def __repr__(self) -> str:
        return f"LocalBackbone({type(self.model).__name__}, name={self.name!r})"

    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer a chat."""
        prompt = self._prompt(messages)
        stop = sampling.stop
        params = SamplingParams(
            max_new_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            stop=self._ends,
            seed=sampling.seed,
        )
        if not stop:
            result = await self.engine.generate(prompt, params)
            kept, found = len(result.tokens), False
        else:
            result, kept, found = await self._until(prompt, params, stop)
        # Only if it was cancelled here: otherwise there is no answer.
        stopped = result.finish_reason == "cancelled" and found
        if not result.success and not stopped:
            raise BackboneError(f"{self.name}: {result.error or result.finish_reason}")
        text = self._text(result.tokens[:kept])
        if (place := earliest(text, stop)) is not None:
            text = text[:place]
            stopped = True
        usage = self._usage(
            result.prompt_tokens, result.reused_tokens or 0, result.tokens_generated
        )
        return Completion(
            text,
            usage,
            "stop" if stopped or result.finish_reason == "stop" else "length",
        )

    async def score(
        self, messages: Sequence[Message], answers: Sequence[str], *, begin: str = ""
    ) -> Scores:
        """Return the likelihood of each answer; what they have in common is computed once."""
        check_messages(messages)
        if not answers or not all(answers):
            raise ArgumentError("expected at least one answer to score, and no empty one")
        prompt = [*self._prompt(messages), *self._bare(begin)]
        end = () if self._end is None else (self._end,)
        given = [(*self._bare(answer), *end) for answer in answers]
        results = await asyncio.gather(
            *(
                self.engine.generate(prompt, SamplingParams(len(one), 0.0, forced=one))
                for one in given
            )
        )
        for result in results:
            if not result.success:
                raise BackboneError(f"{self.name}: {result.error or result.finish_reason}")
        tokens_in = sum(one.prompt_tokens + one.tokens_generated for one in results)
        return Scores(
            tuple(math.fsum(one.logprobs) for one in results),
            tuple(len(one) for one in given),
            self._usage(tokens_in, sum(one.reused_tokens or 0 for one in results), 0),
        )

    async def aclose(self) -> None:
        """End the engine's thread."""
        await self.engine.aclose()

    def _usage(self, tokens_in: int, cached: int, out: int) -> Usage:
        counted = {"tokens_in": tokens_in, "tokens_cached": cached, "tokens_out": out}
        return Usage(**counted, cost=cost(self.price, **counted), requests=1)

    async def _until(
        self, prompt: list[int], sampling: SamplingParams, stop: Sequence[str]
    ) -> tuple[RolloutResult, int, bool]:
        """Draw until a stop text; return also the number of tokens then, and whether it came."""
        # Number of last tokens that hold any stop text which the newest one has ended.
        tail = max(len(text.encode(_BYTES)) for text in stop) + 8
        name = await self.engine.submit_rollout(prompt, sampling=sampling)
        drawn: list[int] = []
        found = False
        try:
            async for token in self.engine.stream(name):
                drawn.append(token.token)
                if earliest(self._text(drawn[-tail:]), stop) is not None:
                    found = True
                    break
            if found:
                self.engine.cancel(name)
            result = await self.engine.get_result(name)
        except BaseException:
            self.engine.cancel(name)
            raise
        return result, len(drawn) if found else len(result.tokens), found

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        return list(
            self.tokenizer.apply_chat_template(
                [{"role": one.role, "content": one.text} for one in messages],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
            )["input_ids"]
        )

    def _bare(self, text: str) -> list[int]:
        """Return the tokens of a text without the start token of some tokenizers."""
        tokens = list(self.tokenizer.encode(text))
        begins = getattr(self.tokenizer, "bos_token_id", None)
        return tokens[1:] if begins is not None and tokens[:1] == [begins] else tokens

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def _end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end an answer, of the model and the tokenizer."""
    given = [
        getattr(tokenizer, "eos_token_id", None),
        getattr(getattr(model, "generation_config", None), "eos_token_id", None),
    ]
    ends: set[int] = set()
    for one in given:
        ends.update(one if isinstance(one, (list, tuple)) else () if one is None else (one,))
    return tuple(sorted(ends))
