"""The numbers of a moment of training, and a file with a line of JSON for each moment."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.errors import ClosedError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["METRIC_NAMES", "MetricsLogger", "PerformanceMetrics", "plain"]


class _Given:
    """Notes by which names it was made: a default of 0 is no measurement."""

    _given: set[str]

    def __new__(cls, *args: Any, **named: Any) -> Self:
        self = super().__new__(cls)
        self._given = {*METRIC_NAMES[: len(args)], *named}
        return self


@dataclass
class PerformanceMetrics(_Given):
    """The numbers of a moment. What was not measured is 0, and not in :attr:`measured`.

    Attributes:
        timestamp: In seconds, of :func:`time.time`.
        step: Steps of the environment so far.
        episode: Episodes so far.
        policy_loss: Of the last update.
        value_loss: As above.
        kl_divergence: As above.
        entropy_loss: As above.
        total_reward: Of an episode.
        episode_length: Its steps.
        success_rate: The share of episodes that succeeded.
        cpu_usage: Percent of all processors.
        memory_usage: Percent of the machine's memory.
        gpu_usage: Percent of the time that the accelerator computed.
        gpu_memory: Percent of its memory.
        kv_cache_hit_rate: The share of tokens that the cache had.
        tokens_per_second: Read and written.
        replay_buffer_size: Experiences in the replay.
        hot_buffer_hit_rate: The share of samples from its hot part.
        cold_buffer_hit_rate: The same of its cold part.
        bandwidth_efficiency: What the tracker calls ``eta_bw``.
        rollout_bandwidth_cost: What rollouts cost beyond what was reused.
        rollout_time: Seconds of acting.
        training_time: Seconds of learning.
        total_time: Seconds since monitoring began.
    """

    timestamp: float
    step: int
    episode: int
    policy_loss: float = 0.0
    value_loss: float = 0.0
    kl_divergence: float = 0.0
    entropy_loss: float = 0.0
    total_reward: float = 0.0
    episode_length: float = 0.0
    success_rate: float = 0.0
    cpu_usage: float = 0.0
    memory_usage: float = 0.0
    gpu_usage: float = 0.0
    gpu_memory: float = 0.0
    kv_cache_hit_rate: float = 0.0
    tokens_per_second: float = 0.0
    replay_buffer_size: float = 0.0
    hot_buffer_hit_rate: float = 0.0
    cold_buffer_hit_rate: float = 0.0
    bandwidth_efficiency: float = 0.0
    rollout_bandwidth_cost: float = 0.0
    rollout_time: float = 0.0
    training_time: float = 0.0
    total_time: float = 0.0

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of what was given, or set to more than 0 since, in the order of the fields."""
        return tuple(
            name for name in METRIC_NAMES if name in self._given or getattr(self, name) != 0
        )


METRIC_NAMES = tuple(field.name for field in fields(PerformanceMetrics))


def plain(value: Any) -> float | None:
    """A number of Python, whatever it was of; None for what JSON does not have."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


class MetricsLogger:
    """Adds a line to a file for each moment; threads may do so at once."""

    def __init__(self, log_file: str | os.PathLike[str]) -> None:
        self.log_file = Path(log_file)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        # A line is there for readers when it is written.
        self._file = self.log_file.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def log_metrics(self, metrics: PerformanceMetrics | Mapping[str, Any]) -> None:
        """Add a line: all numbers that were measured, or those of a mapping."""
        if isinstance(metrics, PerformanceMetrics):
            metrics = {name: getattr(metrics, name) for name in metrics.measured}
        line = json.dumps({name: plain(value) for name, value in metrics.items()})
        with self._lock:
            if self._file.closed:
                raise ClosedError(f"{self.log_file} is closed")
            self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
