"""The order of admission: a heap of waiting rollouts.

A rollout's score is

    r / (w_b * b_eff + w_q * q + eps) * (1 + latency_weight * waited),

where r is ``reward_weight`` times its priority, made positive as in ``BandwidthAwareScheduler``,
b_eff the cost of its tokens that are not cached, and q the longest time that any rollout is waiting
now, in seconds. (With each rollout's own time, longer waiting would lower the score.)

No rollout starves. The factor grows with waiting, so that a rollout whose quotient is k times
larger can overtake only for (k - 1) / latency_weight seconds; and rollouts that have waited for
half of the config's ``timeout`` are admitted before all others. Equal scores keep the order of
arrival.
"""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.bandwidth import BandwidthAwareScheduler, BandwidthConfig
from echoic.agents.llm.cache import as_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.agents.llm.config import ExecutionConfig
    from echoic.agents.llm.requests import RolloutRequest

__all__ = ["LatencyScheduler"]

# Seconds for which an order is kept while time passes. Rollouts take longer.
_FRESH = 0.02


def costs(config: ExecutionConfig) -> BandwidthConfig:
    """Return the part of an engine's settings that weighs costs."""
    return BandwidthConfig(
        attention_scale=config.bandwidth_scale,
        schedule_epsilon=config.schedule_epsilon,
        bandwidth_weight=config.bandwidth_weight,
        queue_weight=config.queue_weight,
        enable_bandwidth_scheduling=config.enable_bandwidth_scheduling,
        aging_bound=config.timeout / 2,
    )


@dataclass
class Waiting:
    """A waiting rollout, its number in the order of arrival, and its key in the heap."""

    request: RolloutRequest
    number: int
    seq_len: int
    reuse_len: int
    key: float = 0.0


class LatencyScheduler:
    """Waiting rollouts, the best first.

    ``clock`` is that of the requests' ``timestamp``.
    """

    def __init__(
        self, config: ExecutionConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._costs = BandwidthAwareScheduler(costs(config))
        self._waiting: dict[str, Waiting] = {}
        self._heap: list[tuple[float, int, Waiting]] = []
        self._numbers = itertools.count()
        self._ordered = float("-inf")
        self._admitted = 0
        self._waited = 0.0
        self._longest = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add_request(
        self, request: RolloutRequest, seq_len: int | None = None, reuse_len: int = 0
    ) -> None:
        """Add a request of ``seq_len`` tokens, of which ``reuse_len`` are cached."""
        length = len(as_tokens(request.state_sequence)) if seq_len is None else seq_len
        self._waiting[request.request_id] = Waiting(request, next(self._numbers), length, reuse_len)
        self._ordered = float("-inf")

    def get_next_request(self) -> RolloutRequest | None:
        """Take the request with the highest score; None if none is waiting."""
        entry = self.take()
        if entry is None:
            return None
        self.count(entry)
        return entry.request

    def take(self) -> Waiting | None:
        """Take the rollout with the highest score, to be counted or put back."""
        now = self._clock()
        if now - self._ordered > _FRESH:
            self._order(now)
        while self._heap:
            _, number, entry = heapq.heappop(self._heap)
            name = entry.request.request_id
            current = self._waiting.get(name)
            if current is not None and current.number == number:
                del self._waiting[name]
                return entry
        return None

    def put_back(self, entry: Waiting) -> None:
        """Put a rollout that was taken back in its place."""
        self._waiting[entry.request.request_id] = entry
        heapq.heappush(self._heap, (entry.key, entry.number, entry))

    def count(self, entry: Waiting) -> None:
        """Count a rollout that was taken as admitted."""
        waited = max(0.0, self._clock() - entry.request.timestamp)
        self._admitted += 1
        self._waited += waited
        self._longest = max(self._longest, waited)

    def remove(self, request_id: str) -> None:
        """Remove a rollout, if it is waiting."""
        self._waiting.pop(request_id, None)

    def flushed(self) -> None:
        """Count no tokens as cached any longer."""
        for entry in self._waiting.values():
            entry.reuse_len = 0
        self._ordered = float("-inf")

    def get_queue_stats(self) -> dict[str, Any]:
        """Return the size of the queue, and the measured seconds of waiting of those admitted."""
        now = self._clock()
        oldest = [now - entry.request.timestamp for entry in self._waiting.values()]
        return {
            "queue_size": len(self._waiting),
            "admitted": self._admitted,
            "mean_queue_time": self._waited / self._admitted if self._admitted else 0.0,
            "max_queue_time": self._longest,
            "oldest_waiting": max(oldest, default=0.0),
        }

    def _order(self, now: float) -> None:
        entries = list(self._waiting.values())
        self._heap = []
        if entries:
            waited = now - np.array([entry.request.timestamp for entry in entries])
            waited = np.maximum(waited, 0.0)
            bound = self._costs.config.aging_bound
            slowest = min(waited.max(), np.nextafter(bound, 0.0))
            scores = self._costs.compute_priorities_batch(
                [self._config.reward_weight * entry.request.priority for entry in entries],
                [entry.seq_len for entry in entries],
                np.where(waited < bound, slowest, waited),
                [entry.reuse_len for entry in entries],
            )
            scores = scores * (1.0 + self._config.latency_weight * waited)
            for entry, score in zip(entries, scores, strict=True):
                entry.key = -float(score)
            self._heap = [(entry.key, entry.number, entry) for entry in entries]
            heapq.heapify(self._heap)
        self._ordered = now
