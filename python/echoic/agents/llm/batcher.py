"""Continuous batching: each tick is one forward pass over tokens of many rollouts.

A tick has these steps:

1. Every rollout that is generating has one token to compute.
2. The rest of ``token_budget`` goes to prompts, in the order of admission and in pieces.
3. If budget is left, the best waiting rollouts are admitted, as long as their pages are certain.
4. One forward pass. Rollouts whose last token was in it draw the next one.

A rollout is admitted only if all pages that it may ever need fit beside those that the others may
need. So no rollout runs out of pages or is evicted. Pages are taken as they are filled.

Prompts are published to the prefix cache when they are computed, and generated tokens when the
rollout ends. A rollout is held back while another one computes a prefix that it could use soon: see
``ExecutionConfig.kv_reuse_threshold``.

New weights are loaded between ticks. The cache is flushed, and running rollouts go on with the new
weights: they keep their tokens, and compute keys and values of all of them again. That costs one
pass over each prompt (shared, as always), and makes every log-probability that of one version's
policy, given all that came before. With old keys it would be that of a mixture of two policies.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.llm.model import PagedBatch, Span
from echoic.agents.llm.radix import common
from echoic.agents.llm.requests import Rollout, RolloutToken, draw
from echoic.agents.llm.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from echoic.agents.llm.cache import KVCacheManager
    from echoic.agents.llm.model import CausalModel

__all__ = ["Batcher"]


class Batcher(Runner):
    """Runs rollouts of a causal model.

    Args:
        model: The model.
        cache: Pages of the model's shape.
        arguments: Those of :class:`Runner`.
    """

    def __init__(self, model: CausalModel, cache: KVCacheManager, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.model = model
        self.cache = cache
        self.running: dict[str, Rollout] = {}
        # Rollouts that lost their keys and values to new weights; they are admitted first.
        self._again: deque[Rollout] = deque()
        # Pages that running rollouts may still take.
        self._promised = 0
        # Called with the rollouts that draw and their logits, for tests.
        self.watch: Callable[[list[Rollout], Any], None] | None = None

    def _tick(self) -> None:
        self.cache.clean(self.clock())
        budget = int(self.config.token_budget)
        planned: list[tuple[Rollout, int]] = []
        prompts = []
        for rollout in self.running.values():
            if len(rollout.tokens) - rollout.filled == 1:
                if budget > 0:
                    planned.append((rollout, 1))
                    budget -= 1
            else:
                prompts.append(rollout)
        for rollout in prompts:
            budget -= self._plan(rollout, budget, planned)
        while budget > 0 and len(self.running) < self.config.max_concurrent_rollouts:
            admitted = self._admit()
            if admitted is None:
                break
            budget -= self._plan(admitted, budget, planned)
        if planned:
            self._forward(planned)

    def _plan(self, rollout: Rollout, budget: int, planned: list[tuple[Rollout, int]]) -> int:
        count = min(len(rollout.tokens) - rollout.filled, budget)
        if count > 0:
            planned.append((rollout, count))
        return max(count, 0)

    def _admit(self) -> Rollout | None:
        """Admit the best rollout that may run now."""
        if self._again:
            rollout = self._again[0]
            if self._held_back(rollout) or not self._begin(rollout):
                return None
            return self._again.popleft()
        aside = []
        admitted = None
        while (entry := self.scheduler.take()) is not None:
            rollout = self.rollouts[entry.request.request_id]
            if self._held_back(rollout):
                aside.append(entry)
                continue
            if not self._begin(rollout):
                # Admitting smaller ones first could starve this one.
                aside.append(entry)
                break
            self.scheduler.count(entry)
            rollout.admitted = self.clock()
            rollout.reused = rollout.filled
            self.counts["prompt_tokens"] += rollout.prompt
            self._note(entry.request.request_id).admitted = True
            admitted = rollout
            break
        for entry in aside:
            self.scheduler.put_back(entry)
        return admitted

    def _held_back(self, rollout: Rollout) -> bool:
        """Whether another rollout is computing a prefix worth waiting for."""
        least = self.config.kv_reuse_threshold * len(rollout.tokens)
        if not self.config.enable_prefix_cache or least >= len(rollout.tokens):
            return False
        tokens = tuple(rollout.tokens[:-1])
        best = 0
        for other in self.running.values():
            if not other.published:
                best = max(best, common(tokens, tuple(other.tokens)))
        return best >= max(least, 1) and best > self.cache.tree.length(tokens)

    def _begin(self, rollout: Rollout) -> bool:
        """Start computing ``rollout`` behind its cached prefix, if its pages are certain."""
        node, pages = self.cache.begin(tuple(rollout.tokens))
        need = rollout.limit - len(pages)
        if need > self.cache.available - self._promised:
            self.cache.tree.unpin(node)
            return False
        self._promised += need
        self.cache.count(len(pages))
        rollout.node = node
        rollout.pages = np.empty(rollout.limit, np.int64)
        rollout.pages[: len(pages)] = pages
        rollout.filled = rollout.shared = rollout.began = len(pages)
        rollout.published = False
        self.running[rollout.request.request_id] = rollout
        return True

    def _forward(self, planned: list[tuple[Rollout, int]]) -> None:
        spans = []
        for rollout, count in planned:
            end = rollout.filled + count
            rollout.pages[rollout.filled : end] = self.cache.take(count)
            self._promised -= count
            spans.append(
                Span(rollout.tokens[rollout.filled : end], rollout.filled, rollout.pages[:end])
            )
            rollout.filled = end
        self.counts["forwards"] += 1
        self.counts["forward_tokens"] += sum(count for _, count in planned)
        rows = [
            i for i, (rollout, _) in enumerate(planned) if rollout.filled == len(rollout.tokens)
        ]
        drawing = [planned[row][0] for row in rows]
        try:
            tokens, logprobs = self._compute(spans, rows, drawing)
        except Exception as error:  # the result of these rollouts; others go on
            for rollout, _ in planned:
                self.counts["failed"] += 1
                self._end(rollout, "error", f"{type(error).__name__}: {error}")
            return
        for rollout, token, logprob in zip(drawing, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                # Its keys and values are not published.
                self.counts["failed"] += 1
                self._end(rollout, "error", "the model's logits are not finite")
                continue
            if not rollout.published:
                self._publish(rollout)
            self._drawn(rollout, RolloutToken(int(token), float(logprob), self.version))

    def _compute(
        self, spans: list[Span], rows: list[int], drawing: list[Rollout]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Run the model on ``spans``, and draw for ``drawing``, whose spans are ``rows``."""
        with torch.inference_mode():
            batch = PagedBatch(spans, self.cache.pool.planes, self.model.device)
            logits = self.model.forward_paged(batch)
            if not drawing:
                return np.empty(0, np.int64), np.empty(0)
            if len(rows) < len(spans):
                logits = logits[torch.tensor(rows, device=logits.device)]
            if self.watch is not None:
                self.watch(drawing, logits)
            params = [rollout.sampling for rollout in drawing]
            forced = [rollout.forced for rollout in drawing]
            return draw(logits, params, [rollout.chance() for rollout in drawing], forced)

    def _drawn(self, rollout: Rollout, token: RolloutToken) -> None:
        self.counts["generated_tokens"] += 1
        forced = rollout.forced is not None
        rollout.tokens.append(token.token)
        rollout.drawn.append(token)
        self._note(rollout.request.request_id).tokens.append(token)
        stopped = token.token in rollout.sampling.stop and not forced
        if stopped or len(rollout.drawn) >= rollout.sampling.max_new_tokens:
            self.counts["completed"] += 1
            self._end(rollout, "stop" if stopped else "length")

    def _publish(self, rollout: Rollout) -> None:
        rollout.published = True
        if self.config.enable_prefix_cache and rollout.node is not None:
            rollout.node, pages = self.cache.publish(
                tuple(rollout.tokens[: rollout.filled]),
                rollout.pages[: rollout.filled],
                rollout.node,
                rollout.shared,
            )
            rollout.pages[: rollout.filled] = pages
            rollout.shared = rollout.filled

    def _release(self, rollout: Rollout, *, keep: bool) -> None:
        name = rollout.request.request_id
        if self.running.pop(name, None) is None or rollout.node is None:
            if rollout in self._again:
                self._again.remove(rollout)
            return
        if keep:
            self._publish(rollout)
        self.cache.pool.give_back(rollout.pages[rollout.shared : rollout.filled])
        self.cache.tree.unpin(rollout.node)
        rollout.node = None
        self._promised -= rollout.limit - rollout.filled
        reward = float(rollout.request.metadata.get("reward", 0.0)) if keep else 0.0
        self.tracker.record_rollout_step(reward, rollout.filled, rollout.began)

    def _load(self, weights: Mapping[str, Any] | Callable[[Any], None], version: int) -> None:
        stopped = list(self.running.values())
        for rollout in stopped:
            self._release(rollout, keep=False)
            rollout.filled = rollout.shared = 0
        self._again = deque([*stopped, *self._again])
        # Also if loading fails: earlier keys and values are not used again.
        self.cache.flush(self.version)
        self.model.load_weights(weights)
        self.cache.version = version
        self.scheduler.refresh(lambda _: 0)

    def _reusable(self, rollout: Rollout) -> int:
        return self.cache.tree.length(tuple(rollout.tokens[:-1]))

    def _copy(self, rollout: Rollout) -> Any:
        if rollout.filled == 0:
            return None
        return torch.stack(self.cache.pool.read(rollout.pages[: rollout.filled]))
