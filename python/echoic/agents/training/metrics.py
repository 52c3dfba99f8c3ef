"""What a training run measures."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["TrainingMetrics"]


@dataclass
class TrainingMetrics:
    """What a run measured so far; all of it can be written as JSON.

    Attributes:
        episode_rewards: What each episode earned by the environment's own reward.
        episode_lengths: Its steps.
        success_rates: The share of successes of the latest 100 episodes, for each update.
        policy_losses: For each update.
        value_losses: For each update.
        kl_divergences: For each update, how far it moved the policy (``approx_kl``).
        entropy_losses: For each update, the policy's entropy.
        kv_cache_hit_rates: For each update, the share of the encoder's places that a cache had. A
            policy of vectors has no cache: it is 0, measured.
        bandwidth_efficiency: For each update, the tracker's ``eta_bw`` so far.
        tokens_per_second: For each update, places of windows that the encoder of the actors read,
            by seconds of the run; without plans, states.
        wall_clock_times: For each update, seconds since the run began.
        memory_usage: For each update, MiB of this process.
        replay_buffer_stats: Of the replay, at the end.
        execution_metrics: Updates, weights' versions, lags, restarts, steps per second and so on.
        evaluation_history: Of each evaluation, in lists of equal length: ``step``, ``avg_reward``,
            ``success_rate``, ``rewards``, ``successes``.
        total_timesteps: Steps taken.
        total_episodes: Episodes that ended.
        training_time: In seconds; of all parts of a run that was resumed.
    """

    episode_rewards: list[float] = field(default_factory=list)
    episode_lengths: list[int] = field(default_factory=list)
    success_rates: list[float] = field(default_factory=list)
    policy_losses: list[float] = field(default_factory=list)
    value_losses: list[float] = field(default_factory=list)
    kl_divergences: list[float] = field(default_factory=list)
    entropy_losses: list[float] = field(default_factory=list)
    kv_cache_hit_rates: list[float] = field(default_factory=list)
    bandwidth_efficiency: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)
    wall_clock_times: list[float] = field(default_factory=list)
    memory_usage: list[float] = field(default_factory=list)
    replay_buffer_stats: dict[str, Any] = field(default_factory=dict)
    execution_metrics: dict[str, Any] = field(default_factory=dict)
    evaluation_history: dict[str, list[Any]] = field(
        default_factory=lambda: {
            name: [] for name in ("step", "avg_reward", "success_rate", "rewards", "successes")
        }
    )
    total_timesteps: int = 0
    total_episodes: int = 0
    training_time: float = 0.0

    @property
    def evaluation_results(self) -> dict[str, Any]:
        """The latest evaluation: its values under the names of the history; empty before one."""
        return {name: values[-1] for name, values in self.evaluation_history.items() if values}

    def to_dict(self) -> dict[str, Any]:
        """The same as plain lists and numbers."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """The same as a text."""
        return json.dumps(self.to_dict(), default=float)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingMetrics:
        """What :meth:`to_dict` gave, as metrics again."""
        return cls(**values)
