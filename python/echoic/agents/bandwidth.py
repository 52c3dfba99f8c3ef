"""Priorities of requests by their bandwidth of attention, and the return per cost.

A rollout of ``t`` tokens of which a cache had the first ``t'`` costs
``b_eff = scale * (t (t + 1) - t' (t' + 1)) / 2``. The scheduler ranks requests by it, and the
tracker adds it up. Both get ``t'`` from the cache and never estimate it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents import _checks, kernels
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "BandwidthAwareScheduler",
    "BandwidthConfig",
    "BandwidthEfficiencyTracker",
    "BandwidthMetrics",
]


@dataclass(frozen=True)
class BandwidthConfig:
    """Settings of the scheduler and of the tracker.

    Attributes:
        attention_scale: Cost of one pair of a token and one that it attends to. With
            ``2 * layers * kv_heads * head_dim * bytes``, costs are bytes of keys and values read.
        schedule_epsilon: Added to the denominator of a priority, and the least value of a reward.
        history_size: Number of latest steps behind the tracker's recent numbers.
        enable_bandwidth_scheduling: Whether costs count in priorities.
        aging_bound: Seconds after which a request goes before all that waited less, whatever its
            priority. Infinity: never; then requests can starve.
    """

    attention_scale: float = 1.0
    schedule_epsilon: float = 1e-6
    bandwidth_weight: float = 1.0
    queue_weight: float = 1.0
    history_size: int = 1000
    enable_bandwidth_scheduling: bool = True
    aging_bound: float = 5.0

    def __post_init__(self) -> None:
        _checks.number(self, "attention_scale", "bandwidth_weight", "queue_weight", least=0)
        # The inverse of the smallest normal number is finite.
        _checks.number(self, "schedule_epsilon", least=sys.float_info.min)
        _checks.number(self, "aging_bound", above=0, finite=False)
        _checks.whole(self, "history_size")


@dataclass(frozen=True)
class BandwidthMetrics:
    """Rewards and costs since the tracker was made.

    Costs of rollouts are in pairs of tokens times the scale, those of learning in magnitudes of a
    loss. ``eta_bw`` is the reward by the sum of both, 0 without costs; ``kv_reuse_rate`` is the
    share of tokens that a cache had.
    """

    total_reward: float = 0.0
    total_rollout_cost: float = 0.0
    total_effective_rollout_cost: float = 0.0
    total_bandwidth_saved: float = 0.0
    total_learner_cost: float = 0.0
    eta_bw: float = 0.0
    kv_reuse_rate: float = 0.0
    num_rollout_steps: int = 0
    num_updates: int = 0


class BandwidthEfficiencyTracker:
    """Adds up rewards and costs of rollouts and of learning. Several threads may use it.

    Pairs of tokens are counted in whole numbers, so no cost is lost beside a large total.
    ``history_size`` and ``attention_scale`` are used in place of the config's.

    >>> tracker = BandwidthEfficiencyTracker()
    >>> tracker.record_rollout_step(reward=0.5, seq_len=64, reuse_len=48)
    904.0
    >>> tracker.record_learner_update(weighted_pg_loss=0.02)
    >>> metrics = tracker.snapshot()
    >>> f"{metrics.eta_bw:.4f} {metrics.total_bandwidth_saved:.2f} {metrics.kv_reuse_rate}"
    '0.0006 1176.00 0.75'
    """

    def __init__(
        self,
        config: BandwidthConfig | None = None,
        history_size: int | None = None,
        attention_scale: float | None = None,
    ) -> None:
        given = {"history_size": history_size, "attention_scale": attention_scale}
        changes: Any = {name: value for name, value in given.items() if value is not None}
        self.config = replace(config or BandwidthConfig(), **changes)
        self._lock = threading.Lock()
        # Reward, steps, tokens, those of a cache, pairs of tokens, those of a cache; the cost of
        # learning, and updates.
        self._total: list[Any] = [0.0, 0, 0, 0, 0, 0, 0.0, 0]
        self._latest: deque[list[Any]] = deque(maxlen=self.config.history_size)

    def record_rollout_step(self, reward: float, seq_len: int, reuse_len: int = 0) -> float:
        """Record a step of ``seq_len`` tokens, and return its cost.

        ``reuse_len`` of them, from the start, were in the cache, by its own count.
        """
        reward, tokens, reused = float(reward), int(seq_len), int(reuse_len)
        if not math.isfinite(reward):
            raise ArgumentError(f"`reward` must be finite, got {reward}")
        if not 0 <= reused <= tokens:
            raise ArgumentError(
                f"`reuse_len` must be from 0 to the {seq_len} tokens of `seq_len`, got {reuse_len}"
            )
        pairs, saved = (n * (n + 1) // 2 for n in (tokens, reused))
        step = [reward, 1, tokens, reused, pairs, saved, 0.0, 0]
        with self._lock:
            self._total = _sum([self._total, step])
            self._latest.append(step)
        return (pairs - saved) * self.config.attention_scale

    def record_learner_update(self, weighted_pg_loss: float) -> None:
        """Record an update by the magnitude of its weighted policy-gradient loss."""
        if not math.isfinite(weighted_pg_loss):
            raise ArgumentError(f"`weighted_pg_loss` must be finite, got {weighted_pg_loss}")
        with self._lock:
            learned = [0.0, 0, 0, 0, 0, 0, abs(float(weighted_pg_loss)), 1]
            self._total = _sum([self._total, learned])

    def state_dict(self) -> dict[str, Any]:
        """Return all records, for a checkpoint."""
        with self._lock:
            return {"total": self._total, "latest": list(self._latest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        with self._lock:
            self._total = state["total"]
            self._latest = deque(state["latest"], maxlen=self.config.history_size)

    def snapshot(self) -> BandwidthMetrics:
        """Return the metrics since the tracker was made."""
        with self._lock:
            return self._metrics(self._total)

    def get_summary(self) -> dict[str, float]:
        """Return the fields of :meth:`snapshot` and more.

        ``recent_reward``, ``recent_effective_rollout_cost`` and ``recent_kv_reuse_rate`` are of the
        latest ``history_size`` steps; ``mean_effective_rollout_cost`` is of all.
        """
        with self._lock:
            metrics = self._metrics(self._total)
            recent = self._metrics(_sum(self._latest)) if self._latest else BandwidthMetrics()
        cost = metrics.total_effective_rollout_cost
        return {
            **vars(metrics),
            "recent_reward": recent.total_reward,
            "recent_effective_rollout_cost": recent.total_effective_rollout_cost,
            "recent_kv_reuse_rate": recent.kv_reuse_rate,
            "mean_effective_rollout_cost": cost / max(metrics.num_rollout_steps, 1),
        }

    def _metrics(self, sums: list[Any]) -> BandwidthMetrics:
        reward, steps, tokens, reused, pairs, saved, learned, updates = sums
        scale = self.config.attention_scale
        cost = (pairs - saved) * scale
        return BandwidthMetrics(
            total_reward=reward,
            total_rollout_cost=pairs * scale,
            total_effective_rollout_cost=cost,
            total_bandwidth_saved=saved * scale,
            total_learner_cost=learned,
            eta_bw=kernels.bandwidth_efficiency(reward, cost, learned),
            kv_reuse_rate=reused / max(tokens, 1),
            num_rollout_steps=steps,
            num_updates=updates,
        )


def _sum(records: Iterable[list[Any]]) -> list[Any]:
    return [sum(each) for each in zip(*records, strict=True)]


class BandwidthAwareScheduler:
    """Ranks requests by expected reward per cost: the highest goes first.

    ``priority = value / (w_b * b_eff + w_q * queue_time + epsilon)``, where ``value`` is the reward
    if that is at least ``epsilon``, and otherwise ``epsilon / (1 + epsilon - reward)``. So values
    are above zero and rise with the reward; with negative ones the dearest request would go first.

    By the formula, waiting lowers the priority. From ``aging_bound`` seconds on it is infinite:
    those requests go before all others, in the order of arrival.

    >>> scheduler = BandwidthAwareScheduler(BandwidthConfig(bandwidth_weight=1.0))
    >>> priority = scheduler.compute_priority(1.0, seq_len=128, queue_time=0.5, reuse_len=96)
    >>> f"{priority:.6e}"
    '2.777392e-04'
    >>> scheduler.order([-1.0, -1.0, 0.0], [1000, 10, 1000], [0.0, 0.0, 0.0]).tolist()
    [1, 2, 0]
    """

    def __init__(self, config: BandwidthConfig | None = None) -> None:
        self.config = config or BandwidthConfig()

    def compute_priority(
        self, reward: float, seq_len: int, queue_time: float, reuse_len: int = 0
    ) -> float:
        """Return the priority of one request, as in :meth:`compute_priorities_batch`."""
        one = self.compute_priorities_batch([reward], [seq_len], [queue_time], [reuse_len])
        return float(one[0])

    def compute_priorities_batch(
        self,
        rewards: ArrayLike,
        seq_lengths: ArrayLike,
        queue_times: ArrayLike,
        reuse_lengths: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return the priority of each request; arguments are arrays of one shape.

        They are expected rewards, tokens of the sequences, seconds waited, and the tokens that a
        cache has, from the start; by default 0.
        """
        config, epsilon = self.config, self.config.schedule_epsilon
        rewards = np.asarray(rewards, np.float64)
        queue_times = np.asarray(queue_times, np.float64)
        if not np.isfinite(rewards).all():
            raise ArgumentError("`rewards` must be finite")
        low = epsilon / (1.0 + epsilon - np.minimum(rewards, epsilon))
        priorities: NDArray[np.float64] = kernels.bandwidth_aware_priorities(
            np.where(rewards >= epsilon, rewards, low),
            kernels.effective_bandwidth_cost_batch(
                seq_lengths, reuse_lengths, config.attention_scale
            ),
            queue_times,
            epsilon,
            bandwidth_weight=config.bandwidth_weight * config.enable_bandwidth_scheduling,
            queue_weight=config.queue_weight,
        )
        priorities[queue_times >= config.aging_bound] = math.inf
        return priorities

    def order(self, *requests: ArrayLike, **named: ArrayLike) -> NDArray[np.intp]:
        """Return the indices of requests, the first one to serve first.

        Arguments are those of :meth:`compute_priorities_batch`, with one axis, in the order of
        arrival, in which equal priorities stay.
        """
        return np.argsort(-self.compute_priorities_batch(*requests, **named), kind="stable")
