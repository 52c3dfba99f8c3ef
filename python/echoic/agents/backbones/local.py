"""A language model on this machine, through our engine.

Requests are batched, and a prefix that several have in common is computed once: ``tokens_cached``
of a usage is what the engine counted. Ids and log-probabilities are those that were drawn, so that
a learner can use them, and the weights are here to be trained: :attr:`LocalBackbone.model`, then
:meth:`LocalBackbone.update_weights`, which empties the cache.

A stop text may end in the middle of a token, and is seen when its last token was drawn. The engine
may draw one more until it hears of it; that one is in ``usage.tokens_out``, since it was computed,
and not in ``tokens``.

Importing this module imports torch.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from echoic.agents.async_execution import AsyncExecutionEngine, ExecutionConfig, SamplingParams
from echoic.agents.backbones.base import (
    Backbone,
    Capabilities,
    Completion,
    Scores,
    check_messages,
    earliest,
)
from echoic.agents.backbones.prices import FREE, Price, cost
from echoic.agents.episodes import Usage
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from echoic.agents.async_execution import RolloutResult
    from echoic.agents.backbones.base import Message, Sampling

__all__ = ["LocalBackbone"]

_CONFIG = ExecutionConfig(max_cache_size=8192, max_concurrent_rollouts=16, timeout=600.0)
# Of UTF-8. A text of so many bytes has at most so many tokens.
_BYTES = "utf-8"


class LocalBackbone(Backbone):
    """A causal language model of transformers, or any that the engine runs.

    Args:
        model: See :class:`~echoic.agents.async_execution.AsyncExecutionEngine`.
        tokenizer: With ``encode``, ``decode`` and, for chats, ``apply_chat_template``.
        name: For reports.
        config: Of the engine.
        device: Where a model of transformers is put.
        price: Of its tokens, for who pays for the machine; by default nothing.
    """

    capabilities = Capabilities(
        complete=True, log_probs=True, tokens=True, seed=True, kv=True, gradients=True, score=True
    )

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
        # What an answer of the assistant ends with: of several, the tokenizer's.
        told = getattr(tokenizer, "eos_token_id", None)
        self._end = told if isinstance(told, int) else next(iter(self._ends), None)

    @classmethod
    def smollm2(cls, device: Any = "auto", **settings: Any) -> LocalBackbone:
        """SmolLM2-135M-Instruct; see ``echoic.agents.backbones.smollm2``."""
        from echoic.agents.backbones import smollm2

        model, tokenizer = smollm2.load(device)
        return cls(model, tokenizer, device=device, **{"name": "smollm2", **settings})

    def __repr__(self) -> str:
        return f"LocalBackbone({type(self.model).__name__}, name={self.name!r})"

    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer a chat."""
        return await self._drawn(self._prompt(messages), sampling)

    async def go_on(self, prompt: str, sampling: Sampling) -> Completion:
        """Go on with a text."""
        return await self._drawn(list(self.tokenizer.encode(prompt)), sampling)

    async def score(
        self, messages: Sequence[Message], answers: Sequence[str], *, begin: str = ""
    ) -> Scores:
        """Tell how likely each of some answers is; what they have in common is computed once."""
        check_messages(messages)
        if not answers or not all(answers):
            raise ArgumentError("there is at least one answer to score, and none of them is empty")
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
        counted = {
            "tokens_in": sum(one.prompt_tokens + one.tokens_generated for one in results),
            "tokens_cached": sum(one.reused_tokens or 0 for one in results),
            "tokens_out": 0,
        }
        return Scores(
            tuple(math.fsum(one.logprobs) for one in results),
            tuple(len(one) for one in given),
            Usage(**counted, cost=cost(self.price, **counted), requests=1),
        )

    async def update_weights(
        self, weights: Mapping[str, Any] | Callable[[Any], None], version: int | None = None
    ) -> int:
        """Take new weights between two tokens; see the engine's method of this name."""
        return await self.engine.update_weights(weights, version)

    async def aclose(self) -> None:
        """End the engine's thread."""
        await self.engine.aclose()

    async def _drawn(self, prompt: list[int], sampling: Sampling) -> Completion:
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
        # Cancelled by ourselves: by anybody else, it is no answer.
        stopped = result.finish_reason == "cancelled" and found
        if not result.success and not stopped:
            raise BackboneError(f"{self.name}: {result.error or result.finish_reason}")
        tokens = tuple(result.tokens[:kept])
        text = self._text(tokens)
        if (place := earliest(text, stop)) is not None:
            text = text[:place]
            stopped = True
        counted = {
            "tokens_in": result.prompt_tokens,
            "tokens_cached": result.reused_tokens or 0,
            "tokens_out": result.tokens_generated,
        }
        usage = Usage(**counted, cost=cost(self.price, **counted), requests=1)
        return Completion(
            text,
            tokens,
            tuple(result.logprobs[:kept]),
            usage,
            "stop" if stopped or result.finish_reason == "stop" else "length",
        )

    async def _until(
        self, prompt: list[int], sampling: SamplingParams, stop: Sequence[str]
    ) -> tuple[RolloutResult, int, bool]:
        """Draw until a stop text is there; also how many tokens there were then, and if it is."""
        # Of the last tokens these hold any stop text that the newest one has ended.
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
        """Tokens of a text that goes on: without the one that some tokenizers begin with."""
        tokens = list(self.tokenizer.encode(text))
        begins = getattr(self.tokenizer, "bos_token_id", None)
        return tokens[1:] if begins is not None and tokens[:1] == [begins] else tokens

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def _end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end an answer, as the model and the tokenizer say."""
    told = [
        getattr(tokenizer, "eos_token_id", None),
        getattr(getattr(model, "generation_config", None), "eos_token_id", None),
    ]
    ends: set[int] = set()
    for one in told:
        ends.update(one if isinstance(one, (list, tuple)) else () if one is None else (one,))
    return tuple(sorted(ends))
