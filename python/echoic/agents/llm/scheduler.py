"""The order of admission of waiting rollouts: the highest score goes first.

    r / (w_b * b_eff + w_q * q + eps) * (1 + latency_weight * waited),

where r is ``reward_weight`` times its priority, made positive as in ``BandwidthAwareScheduler``,
b_eff the cost of its tokens that are not cached, and q the longest time that any rollout is waiting
now, in seconds. (With each rollout's own time, longer waiting would lower the score.) Rollouts that
have waited for half of the config's ``timeout`` come before all others, so that none starves. Equal
scores keep the order of arrival.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.bandwidth import BandwidthAwareScheduler, BandwidthConfig
from echoic.agents.llm.cache import as_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.agents.llm.config import ExecutionConfig
    from echoic.agents.llm.requests import RolloutRequest

__all__ = ["LatencyScheduler"]


def costs(config: ExecutionConfig) -> BandwidthConfig:
    """Return the settings that weigh costs."""
    return BandwidthConfig(
        attention_scale=config.bandwidth_scale,
        schedule_epsilon=config.schedule_epsilon,
        bandwidth_weight=config.bandwidth_weight,
        queue_weight=config.queue_weight,
        enable_bandwidth_scheduling=config.enable_bandwidth_scheduling,
        aging_bound=config.timeout / 2,
    )


class LatencyScheduler:
    """Waiting rollouts; ``clock`` is that of the requests' ``timestamp``."""

    def __init__(
        self, config: ExecutionConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._costs = BandwidthAwareScheduler(costs(config))
        # With the tokens of each, and how many of these are cached.
        self._waiting: dict[str, tuple[RolloutRequest, int, int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add_request(
        self, request: RolloutRequest, seq_len: int | None = None, reuse_len: int = 0
    ) -> None:
        """Add a request of ``seq_len`` tokens, of which ``reuse_len`` are cached."""
        length = len(as_tokens(request.state_sequence)) if seq_len is None else seq_len
        self._waiting[request.request_id] = request, length, reuse_len

    def get_next_request(self) -> RolloutRequest | None:
        """Take the request with the highest score; None if none is waiting."""
        request = next(iter(self.order()), None)
        if request is not None:
            self.remove(request.request_id)
        return request

    def remove(self, request_id: str) -> None:
        """Remove a request, if it is waiting."""
        self._waiting.pop(request_id, None)

    def order(self) -> list[RolloutRequest]:
        """Return the waiting requests, the best first."""
        if not self._waiting:
            return []
        requests, lengths, reused = zip(*self._waiting.values(), strict=True)
        waited = np.maximum(self._clock() - np.array([one.timestamp for one in requests]), 0.0)
        bound = self._costs.config.aging_bound
        slowest = min(waited.max(), np.nextafter(bound, 0.0))
        scores = self._costs.compute_priorities_batch(
            [self._config.reward_weight * one.priority for one in requests],
            lengths,
            np.where(waited < bound, slowest, waited),
            reused,
        )
        scores *= 1.0 + self._config.latency_weight * waited
        return [requests[index] for index in np.argsort(-scores, kind="stable")]

    def get_queue_stats(self) -> dict[str, Any]:
        """Return the size of the queue, and the longest seconds that one of them has waited."""
        times = [request.timestamp for request, _, _ in list(self._waiting.values())]
        oldest = self._clock() - min(times) if times else 0.0
        return {"queue_size": len(times), "oldest_waiting": oldest}
