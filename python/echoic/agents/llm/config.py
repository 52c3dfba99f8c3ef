"""Bounds of an engine, and weights of its order of admission."""

from __future__ import annotations

from dataclasses import dataclass

from echoic.agents import _checks
from echoic.errors import ArgumentError

__all__ = ["ExecutionConfig"]


@dataclass(frozen=True)
class ExecutionConfig:
    """Bounds and weights of an engine.

    Attributes:
        max_cache_size: Pages, each with keys and values of a token, of rollouts and prefix cache.
        cache_cleanup_interval: Seconds between two cleanings. One frees the ends of cached prefixes
            that were not used since the cleaning before; ``math.inf`` leaves all to eviction.
        max_concurrent_rollouts: Most rollouts that run at a time.
        priority_queue_size: Most rollouts that wait to be admitted; further calls of
            ``submit_rollout`` wait for room.
        kv_reuse_threshold: A rollout waits while another one computes a prefix of at least this
            share of its tokens. So sixteen rollouts of one prompt compute it once. 1: never.
        latency_weight: Share of a score that each second of waiting adds to it.
        reward_weight: Factor of the priority given to ``submit_rollout``.
        timeout: Seconds from submission until a rollout is stopped, where it has no other. A
            rollout that has waited half of them is admitted before all that have not.
        schedule_epsilon: Keeps the priority of a rollout without costs finite.
        bandwidth_scale: Cost of one pair of tokens in attention.
        enable_bandwidth_scheduling: Whether a priority is divided by the cost of the tokens that
            the cache lacks; otherwise only by the time waited.
        bandwidth_weight: Weight of that cost.
        queue_weight: Weight of the seconds waited.
        token_budget: Most tokens of one forward pass.
        enable_prefix_cache: Whether keys and values outlive their rollout.
    """

    max_cache_size: int = 10_000
    cache_cleanup_interval: float = 60.0
    max_concurrent_rollouts: int = 128
    priority_queue_size: int = 1_000
    kv_reuse_threshold: float = 0.5
    latency_weight: float = 0.1
    reward_weight: float = 1.0
    timeout: float = 30.0
    schedule_epsilon: float = 1e-6
    bandwidth_scale: float = 1.0
    enable_bandwidth_scheduling: bool = True
    bandwidth_weight: float = 1.0
    queue_weight: float = 1.0

    token_budget: int = 512
    enable_prefix_cache: bool = True

    def __post_init__(self) -> None:
        for name in ("enable_bandwidth_scheduling", "enable_prefix_cache"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} must be True or False, not {getattr(self, name)!r}")
        _checks.whole(self, "max_cache_size", "max_concurrent_rollouts", "priority_queue_size")
        _checks.whole(self, "token_budget")
        _checks.number(self, "cache_cleanup_interval", "timeout", above=0, finite=False)
        _checks.number(self, "schedule_epsilon", "bandwidth_scale", above=0, finite=False)
        _checks.number(self, "latency_weight", "reward_weight", "bandwidth_weight", least=0)
        _checks.number(self, "queue_weight", "kv_reuse_threshold", least=0)
