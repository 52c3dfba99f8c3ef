"""Training of a causal language model from rewards: engine, rollout table and token learner.

Each step is in lock-step:

1. The engine draws ``answers_per_prompt`` answers to each of ``prompts_per_step`` prompts. The
   prompt's keys and values are computed once.
2. A reward function scores the answers, and they fill the groups of a :class:`RolloutTable`.
3. The learner takes the batch, and the engine flushes what earlier weights computed.

Engine and learner use one module, with LoRA too: no weights are copied, and ratios of fresh answers
are 1 up to rounding.

Importing this module imports torch.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echoic.agents import _checks
from echoic.agents.llm import (
    AsyncExecutionEngine,
    ExecutionConfig,
    GRPOConfig,
    GRPOLearner,
    RLOOConfig,
    RLOOLearner,
    SamplingParams,
    TokenLearner,
)
from echoic.errors import ArgumentError, CollectorError
from echoic.rollouts import RolloutTable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from echoic.agents.llm import RolloutResult
    from echoic.rollouts import Reservation

__all__ = ["Answer", "LLMConfig", "LLMTrainer"]


class Answer(NamedTuple):
    """An answer for the reward function: the prompt as given, the tokens, and their text."""

    prompt: Any
    tokens: list[int]
    text: str


@dataclass(frozen=True)
class LLMConfig:
    """Settings of an :class:`LLMTrainer`.

    Attributes:
        steps: Updates of a run.
        prompts_per_step: Prompts that are answered for each update.
        answers_per_prompt: Answers that are compared with each other.
        max_new_tokens: Most tokens of an answer.
        stop: Token ids that end an answer; by default the tokenizer's end token.
        learner: Settings of GRPO or RLOO. Answers are drawn at its ``temperature``.
        execution: Settings of the engine.
        seed: Seed of the choice of prompts and of the answers.
    """

    steps: int = 100
    prompts_per_step: int = 4
    answers_per_prompt: int = 8
    max_new_tokens: int = 64
    stop: tuple[int, ...] = ()
    learner: GRPOConfig | RLOOConfig = field(default_factory=GRPOConfig)
    execution: ExecutionConfig = field(default_factory=lambda: ExecutionConfig(timeout=600.0))
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.whole(self, "steps", "prompts_per_step", "max_new_tokens")
        _checks.whole(self, "answers_per_prompt", least=2)
        if not isinstance(self.learner, GRPOConfig | RLOOConfig):
            kind = type(self.learner).__name__
            raise ArgumentError(f"expected a GRPOConfig or RLOOConfig as learner, got {kind}")


class LLMTrainer:
    """Trains a causal language model.

    Args:
        model: A causal language model of transformers, or a ``CausalModel`` that is a module, such
            as ``TinyTransformer``. With ``LoRAConfig`` its layers get adapters.
        prompts: Texts, chats (lists of ``{"role": ..., "content": ...}``), or lists of token ids.
            Texts and chats need a tokenizer.
        reward: Scores an answer.
        config: Settings.
        tokenizer: With ``encode``, ``decode`` and, for chats, ``apply_chat_template``.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.

    >>> import asyncio
    >>> from echoic.agents.llm import TinyConfig, TinyTransformer
    >>> model = TinyTransformer(TinyConfig(vocab_size=8, dim=16, hidden=16), device="cpu")
    >>> config = LLMConfig(steps=2, prompts_per_step=1, answers_per_prompt=4, max_new_tokens=3)
    >>> trainer = LLMTrainer(model, [[1, 2]], lambda one: one.tokens.count(5), config, device="cpu")
    >>> [round(step["ratio_mean"], 3) for step in asyncio.run(trainer.train())]
    [1.0, 1.0]
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Any],
        reward: Callable[[Answer], float],
        config: LLMConfig | None = None,
        *,
        tokenizer: Any = None,
        device: Any = "auto",
    ) -> None:
        self.config = config = config or LLMConfig()
        self.tokenizer = tokenizer
        self.reward = reward
        self.prompts = list(prompts)
        if not self.prompts:
            raise ArgumentError("expected at least one prompt, got none")
        self._tokens = [self._encode(prompt) for prompt in self.prompts]
        if not all(self._tokens):
            raise ArgumentError(
                f"expected at least one token, got none in prompt {self._tokens.index([])}"
            )
        self._model = model
        #: The learner; its ``policy`` is the trained model, with adapters if there are any.
        self.learner: TokenLearner = (
            RLOOLearner(model, config.learner, device=device)
            if isinstance(config.learner, RLOOConfig)
            else GRPOLearner(model, config.learner, device=device)
        )
        #: Metrics of each update: the learner's, and ``step``, ``tokens_per_second``,
        #: ``kv_reuse_rate``, ``answer_seconds`` and ``learner_seconds``.
        self.history: list[dict[str, float]] = []
        end = getattr(tokenizer, "eos_token_id", None)
        self._stop = config.stop or (() if end is None else (end,))

    async def train(self) -> list[dict[str, float]]:
        """Train until ``steps`` updates are made, those before :meth:`load` included.

        Returns:
            The ``history``.

        Raises:
            ArgumentError: If a prompt and ``max_new_tokens`` are longer than the model or the
                engine's cache takes, or a reward is not a finite number.
            CollectorError: If the engine failed to answer a prompt.
        """
        config, version = self.config, self.learner.updates
        table = RolloutTable(
            "answers",
            {"tokens": "int32", "logprobs": "float32", "mask": "uint8"},
            {"reward": "float32"},
            group_size=config.answers_per_prompt,
            batch_groups=config.prompts_per_step,
            max_lag=0,
        )
        device = self.learner.device
        with table:
            async with AsyncExecutionEngine(config.execution, self._model, device) as engine:
                self._check_lengths(engine)
                if version:
                    table.publish_version(version)
                    await engine.update_weights(_unchanged, version)
                while self.learner.updates < config.steps:
                    await self._step(engine, table)
        return self.history

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state of training to a file."""
        self.learner.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save`, of the same first model and settings."""
        self.learner.load(path)

    def _check_lengths(self, engine: AsyncExecutionEngine) -> None:
        """Raise at the start of a run what the engine would raise in the step of the prompt."""
        new, lengths = self.config.max_new_tokens, [len(tokens) for tokens in self._tokens]
        longest = max(lengths)
        room = min(self.config.execution.max_cache_size, engine.model.max_length)
        if longest + new > room:
            raise ArgumentError(
                f"expected at most {room} tokens of a prompt and its answer, got {longest} in "
                f"prompt {lengths.index(longest)} and max_new_tokens={new}"
            )

    async def _step(self, engine: AsyncExecutionEngine, table: RolloutTable) -> None:
        config, step = self.config, self.learner.updates
        before = (
            (engine.cache.reused_tokens, engine.cache.computed_tokens) if engine.cache else (0, 0)
        )
        began = time.monotonic()
        random = np.random.default_rng([config.seed, step])
        count = config.prompts_per_step
        chosen = random.choice(len(self.prompts), count, replace=count > len(self.prompts))
        seeds = random.integers(0, 2**62, (count, config.answers_per_prompt)).tolist()
        await asyncio.gather(
            *(
                self._group(engine, table.reserve(key=str(prompt), version=step), prompt, own)
                for prompt, own in zip(chosen.tolist(), seeds, strict=True)
            )
        )
        answered = time.monotonic()
        batch = table.sample()
        update = asyncio.ensure_future(asyncio.to_thread(self.learner.update, batch))
        # A thread cannot be cancelled: the run ends after the update.
        try:
            metrics = await asyncio.shield(update)
        except asyncio.CancelledError:
            await asyncio.wait({update})
            raise
        table.publish_version(self.learner.updates)
        reused, computed = 0, 0
        if engine.cache is not None:
            reused = engine.cache.reused_tokens - before[0]
            computed = engine.cache.computed_tokens - before[1]
        await engine.update_weights(_unchanged, self.learner.updates)
        seconds = answered - began
        self.history.append(
            {
                "step": step,
                **metrics,
                "tokens_per_second": metrics["tokens"] / seconds,
                "kv_reuse_rate": reused / max(reused + computed, 1),
                "answer_seconds": seconds,
                "learner_seconds": time.monotonic() - answered,
            }
        )

    async def _group(
        self, engine: AsyncExecutionEngine, reservation: Reservation, prompt: int, seeds: list[int]
    ) -> None:
        """Answer a prompt several times, and add the answers to a group."""
        tokens, learner = self._tokens[prompt], self.config.learner
        results = await asyncio.gather(
            *(
                engine.generate(
                    tokens,
                    SamplingParams(
                        self.config.max_new_tokens,
                        temperature=learner.temperature,
                        stop=self._stop,
                        seed=seed,
                    ),
                )
                for seed in seeds
            )
        )
        for result in results:
            if not result.success:
                reservation.fail()
                raise CollectorError(f"prompt {prompt} was not answered: {result.error}")
            self._add(reservation, prompt, result)

    def _add(self, reservation: Reservation, prompt: int, result: RolloutResult) -> None:
        given, drawn = self._tokens[prompt], result.tokens
        text = (
            "" if self.tokenizer is None else self.tokenizer.decode(drawn, skip_special_tokens=True)
        )
        reward = float(self.reward(Answer(self.prompts[prompt], drawn, text)))
        if not math.isfinite(reward):
            raise ArgumentError(
                f"expected a finite reward, got {reward} for an answer to prompt {prompt}"
            )
        columns = {
            "tokens": np.array([*given, *drawn], np.int32),
            "logprobs": np.array([0.0] * len(given) + result.logprobs, np.float32),
            "mask": np.array([0] * len(given) + [1] * len(drawn), np.uint8),
        }
        versions = np.array([result.versions[0]] * len(given) + result.versions)
        reservation.add(columns, {"reward": reward}, versions=versions)

    def _encode(self, prompt: Any) -> list[int]:
        if not isinstance(prompt, str) and all(isinstance(token, int) for token in prompt):
            return list(prompt)
        if self.tokenizer is None:
            raise ArgumentError(f"a prompt of text needs a tokenizer: {prompt!r}")
        if isinstance(prompt, str):
            return list(self.tokenizer.encode(prompt))
        chat = self.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return list(chat["input_ids"])


def _unchanged(_module: Any) -> None:
    """Load no weights: the engine runs the module that was trained."""
