"""How a remote engine behaves when servers are slow, full or gone."""

from __future__ import annotations

import dataclasses

from echoic.errors import ArgumentError

__all__ = ["RemoteConfig"]


@dataclasses.dataclass(frozen=True)
class RemoteConfig:
    """Limits of a :class:`RemoteEngine`.

    Attributes:
        max_concurrent_rollouts: How many requests are under way at once, at all replicas together.
        priority_queue_size: How many more may wait; then whoever submits waits.
        timeout: After how many seconds a rollout has failed, its waiting included.
        stall: How many seconds a server may be silent, before or between tokens, until it counts as
            gone.
        attempts: How often a rollout is tried before it has failed.
        backoff: Seconds before the second attempt; it doubles with each. A server's ``Retry-After``
            counts where it says one.
        max_backoff: The most seconds between two attempts, also if a server asks for more.
        aging: What a second of waiting adds to a priority, so that nobody waits for ever.
        max_results: How many results are kept until somebody asks; then the oldest are dropped.
        affinity_block: Tokens, or bytes of text, in a block of the router.
        affinity_slack: How much busier than the idlest the router lets a replica be.
        seed: Of the randomness in waits between attempts.
    """

    max_concurrent_rollouts: int = 128
    priority_queue_size: int = 1000
    timeout: float = 30.0
    stall: float = 10.0
    attempts: int = 5
    backoff: float = 0.25
    max_backoff: float = 10.0
    aging: float = 0.1
    max_results: int = 10_000
    affinity_block: int = 64
    affinity_slack: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_concurrent_rollouts", "priority_queue_size", "attempts", "max_results"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("timeout", "stall"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be above 0 seconds, not {getattr(self, name)}")
        for name in ("backoff", "max_backoff", "aging"):
            if not getattr(self, name) >= 0:
                raise ArgumentError(f"{name} must not be negative, and is {getattr(self, name)}")
