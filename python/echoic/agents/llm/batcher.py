"""What happens tick by tick on the engine's thread: continuous batching.

Each tick is one forward pass: a token of each rollout that generates, then pieces of prompts up to
``token_budget``. If budget is left, waiting rollouts are admitted, as long as all pages that one
may ever need fit beside what the others may need, so that none runs out of pages. Prompts are
published to the prefix cache when they are computed, generated tokens when the rollout ends.

New weights flush the cache, and running rollouts compute keys and values of their tokens again. So
every log-probability is that of one version's policy; old keys would make it that of a mixture.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.llm.cache import KVCacheManager, Node, common
from echoic.agents.llm.model import CausalModel, PagedBatch, Window
from echoic.agents.llm.requests import (
    Handle,
    RolloutRequest,
    RolloutResult,
    RolloutToken,
    SamplingParams,
)
from echoic.agents.llm.scheduler import LatencyScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from echoic.agents.bandwidth import BandwidthEfficiencyTracker
    from echoic.agents.llm.config import ExecutionConfig

__all__ = ["Batcher", "Rollout", "draw"]

# Tokens from which on a common beginning is worth products of its own.
_LEAST_STEM = 16
_COUNTS = ("submitted", "completed", "failed", "forwards", "prompt_tokens", "generated_tokens")


def draw(
    logits: Any,
    params: Sequence[SamplingParams],
    chances: Sequence[float],
    forced: Sequence[int | None] = (),
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw a token for each row of ``logits``, [rows, vocab].

    Of each row, ``chances`` has a random number from 0 to below 1, and ``forced`` the token that is
    taken instead of drawing, or None. Returns tokens, and the logarithm of the probability of each
    under ``softmax(logits / temperature)``, where greedy rows have temperature 1. ``top_p`` does
    not change it, so that it equals what a learner computes from the same logits.
    """

    def column(numbers: list[float], dtype: Any = torch.float64) -> Any:
        return torch.tensor(numbers, dtype=dtype, device=logits.device)[:, None]

    scaled = logits.float() / column([p.temperature or 1.0 for p in params], torch.float32)
    total = scaled.logsumexp(-1, keepdim=True)
    tokens = scaled.argmax(-1, keepdim=True)
    rows = [row for row, p in enumerate(params) if not p.greedy]
    if rows:
        likely, order = (scaled[rows] - total[rows]).exp(), None
        limits = [params[row].top_p for row in rows]
        if min(limits) < 1:
            likely, order = likely.double().sort(-1, descending=True)
            limit = column(limits)
            # A token stays if those before it have not filled the limit, so that one always does.
            before = likely.cumsum(-1) - likely
            likely = torch.where((before < limit) | (limit >= 1), likely, 0.0)
        sums = likely.cumsum(-1, dtype=torch.float64)
        every = sums[:, -1:].contiguous()
        picks = torch.searchsorted(sums, column([chances[row] for row in rows]) * every, right=True)
        # Rounding could point behind the last token with a probability.
        picks = torch.minimum(picks, torch.searchsorted(sums, every))
        tokens[rows] = picks if order is None else order.gather(-1, picks)
    for row, token in enumerate(forced):
        if token is not None:
            tokens[row] = token
    taken = scaled.gather(-1, tokens) - total
    return tokens[:, 0].cpu().numpy(), taken[:, 0].double().cpu().numpy()


class Rollout(Handle):
    """A rollout of a local model. Ticks change it; others read it, and set ``cancelled``.

    ``pages[:shared]`` are the tree's, pinned through ``node``; ``pages[shared:filled]`` are its
    own, with the keys and values of ``sequence[:filled]``. Random numbers are its own, so that what
    it draws depends on its seed and its logits, and not on the rest of the batch.
    """

    def __init__(self, request: RolloutRequest, sequence: tuple[Hashable, ...], seed: int) -> None:
        super().__init__(request.request_id)
        self.request = request
        self.sampling = request.sampling
        #: The prompt, and what was drawn.
        self.sequence: list[Any] = list(sequence)
        self.prompt = len(sequence)
        #: Most tokens whose keys and values it may need: all but the last one drawn.
        self.limit = self.prompt + self.sampling.max_new_tokens - 1
        self.cancelled = False
        self.admitted: float | None = None
        # Tokens reused when it was first admitted, and when it was last started.
        self.reused = self.began = 0
        self.node: Node | None = None
        self.pages: NDArray[np.int64] = np.empty(0, np.int64)
        self.filled = self.shared = 0
        self.published = False
        self.window: Window | None = None
        # Random numbers for exploration, not for secrets.
        self.random = random.Random(seed if self.sampling.seed is None else self.sampling.seed)

    @property
    def missing(self) -> int:
        """Tokens whose keys and values are not computed."""
        return len(self.sequence) - self.filled

    @property
    def forced(self) -> int | None:
        """The next token, if it is given and not drawn."""
        given, place = self.sampling.forced, len(self.tokens)
        return given[place] if place < len(given) else None

    def end(self, now: float, reason: str, error: str | None = None, kv_cache: Any = None) -> None:
        """Set the result."""
        began = now if self.admitted is None else self.admitted
        self.result = result = RolloutResult(
            request_id=self.request_id,
            success=error is None,
            kv_cache=kv_cache,
            execution_time=now - began,
            error=error,
            metadata=self.request.metadata,
            finish_reason=reason,
            prompt_tokens=self.prompt,
            reused_tokens=self.reused,
            queue_time=began - self.request.timestamp,
        )
        result.add(self.tokens)


class Batcher:
    """Runs rollouts of a causal model; ``clock`` is that of the requests' ``timestamp``."""

    def __init__(
        self,
        model: CausalModel,
        config: ExecutionConfig,
        tracker: BandwidthEfficiencyTracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.config = config
        self.cache = KVCacheManager(config, model.device, shape=model.shape, dtype=model.dtype)
        self.tracker = tracker
        self.clock = clock
        self.version = 0
        self.scheduler = LatencyScheduler(config, clock=clock)
        #: All that have not ended, and those of them that were admitted.
        self.rollouts: dict[str, Rollout] = {}
        self.running: dict[str, Rollout] = {}
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.busy_seconds = 0.0
        self._submitted: deque[Rollout] = deque()
        # Those that changed in this tick, in order.
        self._changed: dict[Rollout, None] = {}
        # Of the rollouts that generate: by the last node of the stem, and the width of rows.
        self._windows: dict[tuple[Node, int], Window] = {}
        # Tokens that windows have room for: rollouts that share nothing always fit.
        self._most = 2 * config.max_cache_size + 64 * config.max_concurrent_rollouts

    @property
    def busy(self) -> bool:
        """Whether a tick would have something to do."""
        return bool(self._submitted or self.rollouts)

    def submit(self, rollout: Rollout) -> None:
        """Queue a rollout for the next tick. Any thread may call this."""
        self._submitted.append(rollout)

    def step(self) -> list[Rollout]:
        """Run a tick; return the rollouts that were admitted, drew a token or ended."""
        began = time.perf_counter()
        while self._submitted:
            rollout = self._submitted.popleft()
            self.counts["submitted"] += 1
            self.rollouts[rollout.request_id] = rollout
            reused = self.cache.tree.length(tuple(rollout.sequence[:-1]))
            self.scheduler.add_request(rollout.request, rollout.prompt, reused)
        now = self.clock()
        for rollout in list(self.rollouts.values()):
            limit = rollout.request.timeout
            if rollout.cancelled:
                self._end(rollout, "cancelled", "cancelled")
            elif rollout.request.timestamp + limit <= now:
                self._end(rollout, "timeout", f"not done after {limit:g} seconds")
        if self.rollouts:
            self._tick()
        self.busy_seconds += time.perf_counter() - began
        changed, self._changed = list(self._changed), {}
        return changed

    def load(self, weights: Mapping[str, Any] | Callable[[Any], None], version: int) -> None:
        """Load new weights between two ticks; on an error the old ones stay in use."""
        for rollout in self.rollouts.values():
            if rollout.node is not None:
                self._release(rollout, keep=False)
            # Earlier keys and values are not used again, also if loading fails.
            self.scheduler.add_request(rollout.request, len(rollout.sequence))
        self.cache.flush()
        self.model.load_weights(weights)
        self.version = version

    def _tick(self) -> None:
        self.cache.clean(self.clock())
        budget = self.config.token_budget
        planned: dict[Rollout, int] = {}
        # Those that generate come first.
        running = sorted(self.running.values(), key=lambda rollout: rollout.missing > 1)
        for rollout in chain(running, self._admitted()):
            planned[rollout] = min(rollout.missing, budget)
            budget -= planned[rollout]
            if not budget:
                break
        if planned:
            self._forward(planned)

    def _admitted(self) -> Iterator[Rollout]:
        """Admit the best waiting rollouts that may run now."""
        if len(self.running) >= self.config.max_concurrent_rollouts:
            return
        waiting = [self.rollouts[request.request_id] for request in self.scheduler.order()]
        # Those that lost keys and values to new weights come first.
        for rollout in sorted(waiting, key=lambda rollout: rollout.admitted is None):
            if self._held_back(rollout):
                continue
            # Admitting smaller ones first could starve one whose pages are not certain.
            if len(self.running) >= self.config.max_concurrent_rollouts or not self._begin(rollout):
                return
            yield rollout

    def _held_back(self, rollout: Rollout) -> bool:
        """Whether another rollout is computing a prefix worth waiting for."""
        least = self.config.kv_reuse_threshold * len(rollout.sequence)
        if not self.config.enable_prefix_cache or least >= len(rollout.sequence):
            return False
        tokens = tuple(rollout.sequence[:-1])
        others = (other for other in self.running.values() if not other.published)
        best = max((common(tokens, tuple(other.sequence)) for other in others), default=0)
        return best >= max(least, 1) and best > self.cache.tree.length(tokens)

    def _begin(self, rollout: Rollout) -> bool:
        """Start computing ``rollout`` behind its cached prefix, if its pages are certain."""
        node, pages = self.cache.begin(tuple(rollout.sequence))
        promised = sum(other.limit - other.filled for other in self.running.values())
        if rollout.limit - len(pages) > self.cache.available - promised:
            self.cache.tree.pin(node, -1)
            return False
        self.scheduler.remove(rollout.request_id)
        self.cache.reused_tokens += len(pages)
        rollout.node, rollout.published = node, False
        rollout.pages = np.empty(rollout.limit, np.int64)
        rollout.pages[: len(pages)] = pages
        rollout.filled = rollout.shared = rollout.began = len(pages)
        self.running[rollout.request_id] = rollout
        if rollout.admitted is None:
            rollout.admitted, rollout.reused = self.clock(), len(pages)
            self.counts["prompt_tokens"] += rollout.prompt
            self._changed[rollout] = None
        return True

    def _forward(self, planned: dict[Rollout, int]) -> None:
        """Compute these numbers of tokens, and draw."""
        try:
            drawing, tokens, logprobs = self._compute(planned)
        except Exception as error:  # of the model, or memory was not enough
            for rollout in planned:
                self._end(rollout, "error", f"{type(error).__name__}: {error}")
            return
        for rollout, token, logprob in zip(drawing, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                # Its keys and values are not published.
                self._end(rollout, "error", "the model's logits are not finite")
                continue
            if not rollout.published:
                self._publish(rollout)
            stopped = token in rollout.sampling.stop and rollout.forced is None
            rollout.sequence.append(int(token))
            rollout.tokens.append(RolloutToken(int(token), float(logprob), self.version))
            self.counts["generated_tokens"] += 1
            self._changed[rollout] = None
            if stopped or len(rollout.tokens) >= rollout.sampling.max_new_tokens:
                self._end(rollout, "stop" if stopped else "length")

    def _compute(self, planned: dict[Rollout, int]) -> tuple[list[Rollout], Any, Any]:
        """Run the model; return the rollouts that draw, their tokens and log-probabilities."""
        self._join([one for one in planned if one.missing == 1 and one.window is None])
        lengths = {rollout: len(rollout.sequence) for rollout in planned}
        windows = [window for window in self._windows.values() if window.begin(lengths)]
        order = [rollout for window in windows for rollout in window.members]
        order += [rollout for rollout in planned if rollout.window is None]
        spans = []
        for rollout in order:
            start, end = rollout.filled, rollout.filled + planned[rollout]
            rollout.pages[start:end] = self.cache.take(end - start)
            rollout.filled = end
            spans.append((rollout.sequence[start:end], rollout.pages[:end]))
        self.counts["forwards"] += 1
        with torch.inference_mode():
            batch = PagedBatch(spans, self.cache.pages, windows)
            logits = self.model.forward_paged(batch)
            rows = [row for row, rollout in enumerate(order) if not rollout.missing]
            if len(rows) < len(order):
                logits = logits[rows]
            drawing = [order[row] for row in rows]
            params = [rollout.sampling for rollout in drawing]
            chances = [rollout.random.random() for rollout in drawing]
            return drawing, *draw(logits, params, chances, [one.forced for one in drawing])

    def _join(self, rollouts: list[Rollout]) -> None:
        """Give rollouts that begin to generate rows in windows, by what they share."""
        groups: dict[tuple[Node, int], list[Rollout]] = {}
        for rollout in rollouts:
            if rollout.node is None or rollout.sampling.max_new_tokens == 1:
                continue
            # The beginning that spares most: its tokens are read once for all that have it.
            shared = [
                node for node in rollout.node.upwards() if node.pins > 1 and node.end >= _LEAST_STEM
            ]
            root = self.cache.tree.root
            stem = max(shared, key=lambda node: node.end * (1 - 1 / node.pins), default=root)
            width = 1 << max(6, (rollout.limit - stem.end - 1).bit_length())
            groups.setdefault((stem, width), []).append(rollout)
        for (stem, width), group in groups.items():
            pages = group[0].pages[: stem.end]
            window = self._windows.get((stem, width)) or Window(self.cache.pages, pages, width)
            others = sum(one.size() for one in self._windows.values() if one is not window)
            if others + window.size(len(group)) > self._most:
                # Attention gathers its pages.
                continue
            window.add({rollout: rollout.pages[: rollout.filled] for rollout in group})
            self._windows[stem, width] = window
            for rollout in group:
                rollout.window = window

    def _publish(self, rollout: Rollout) -> None:
        rollout.published = True
        if self.config.enable_prefix_cache and rollout.node is not None:
            tokens = tuple(rollout.sequence[: rollout.filled])
            pages = rollout.pages[: rollout.filled]
            rollout.node, pages[:] = self.cache.publish(tokens, pages, rollout.node, rollout.shared)
            rollout.shared = rollout.filled

    def _end(self, rollout: Rollout, reason: str, error: str | None = None) -> None:
        self.counts["failed" if error else "completed"] += 1
        kv_cache = None
        if rollout.request.return_kv and error is None:
            kv_cache = self.cache.read(rollout.pages[: rollout.filled])
        self.scheduler.remove(rollout.request_id)
        if rollout.node is not None:
            self._release(rollout, keep=error is None)
        del self.rollouts[rollout.request_id]
        rollout.end(self.clock(), reason, error, kv_cache)
        self._changed[rollout] = None

    def _release(self, rollout: Rollout, *, keep: bool) -> None:
        """Free what a rollout has. With ``keep``, its keys and values may be cached."""
        del self.running[rollout.request_id]
        if keep:
            self._publish(rollout)
        if rollout.window is not None:
            rollout.window.remove(rollout)
            rollout.window = None
            self._windows = {key: one for key, one in self._windows.items() if one.rows}
        self.cache.give_back(rollout.pages[rollout.shared : rollout.filled])
        assert rollout.node is not None
        self.cache.tree.pin(rollout.node, -1)
        rollout.node = None
        reward = float(rollout.request.metadata.get("reward", 0.0)) if keep else 0.0
        self.tracker.record_rollout_step(reward, rollout.filled, rollout.began)
        rollout.filled = rollout.shared = 0
