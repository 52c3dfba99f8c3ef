"""Measurements of a training run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["TrainingMetrics"]


@dataclass
class TrainingMetrics:
    """Measurements of a run, all of which can be written as JSON.

    Lists from ``success_rates`` to ``memory_usage`` have one value for each update.

    Attributes:
        episode_rewards: Reward of each episode, by the environment's own reward.
        episode_lengths: Steps of each episode.
        success_rates: Share of successes of the latest 100 episodes.
        policy_losses: The policy's loss.
        value_losses: The values' loss.
        kl_divergences: How far the update moved the policy (``approx_kl``).
        entropy_losses: The policy's entropy.
        kv_cache_hit_rates: Share of the encoder's places that a cache had. A policy of vectors has
            no cache: the measured value is 0.
        bandwidth_efficiency: The tracker's ``eta_bw`` so far.
        tokens_per_second: Places of windows that the actors' encoder read, by seconds of the run;
            without plans, states.
        wall_clock_times: Seconds since the run started.
        memory_usage: MiB of this process.
        replay_buffer_stats: Statistics of the replay, at the end.
        execution_metrics: Updates, weights' versions, lags, restarts, steps per second and so on.
        evaluation_history: ``step``, ``avg_reward``, ``success_rate``, ``rewards`` and
            ``successes`` of each evaluation.
        total_timesteps: Steps taken.
        total_episodes: Episodes that ended.
        training_time: Seconds, of all parts of a run that was resumed.
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
        """The latest evaluation, under the names of the history; empty before the first."""
        return {name: values[-1] for name, values in self.evaluation_history.items() if values}

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements as plain lists and numbers."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return the measurements as JSON."""
        return json.dumps(self.to_dict(), default=float)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingMetrics:
        """Make metrics from what :meth:`to_dict` returned."""
        return cls(**values)
