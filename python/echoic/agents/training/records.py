"""Records of a run: JSON lines, a log, and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.agents.runs import log_to
from echoic.integrations.loggers import log_function, summary_writer

if TYPE_CHECKING:
    from echoic.agents.training.config import TrainingConfig

__all__ = ["Records", "TrainingMetrics"]

_log = logging.getLogger("echoic.agents.training")


@dataclass
class TrainingMetrics:
    """Measurements of a run, all of which can be written as JSON.

    Lists from ``success_rates`` to ``memory_usage`` have one value for each update.

    Attributes:
        episode_rewards: Of each episode, by the environment's own reward.
        success_rates: Share of successes of the latest 100 episodes.
        kl_divergences: How far the update moved the policy (``approx_kl``).
        entropy_losses: The policy's entropy.
        kv_cache_hit_rates: Share of the encoder's places that a cache had: 0 for vectors.
        bandwidth_efficiency: The tracker's ``eta_bw`` so far.
        tokens_per_second: Places of windows that actors read, by seconds of the run.
        memory_usage: MiB of this process.
        execution_metrics: The seed, updates, steps per second and so on.
        history: ``step``, ``avg_reward``, ``success_rate``, ``rewards`` and ``successes`` of each
            evaluation.
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
    history: dict[str, list[Any]] = field(
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
        return {name: values[-1] for name, values in self.history.items() if values}


class Records:
    """Writes the numbers of a run.

    One that goes on at the step of a checkpoint adds to the lines there, and drops those of later
    steps; a new one, with None, replaces them.
    """

    def __init__(self, config: TrainingConfig, *, goes_on_at: int | None) -> None:
        folder = Path(config.results_dir)
        folder.mkdir(parents=True, exist_ok=True)
        lines = folder / "metrics.jsonl"
        if goes_on_at is not None and lines.exists():
            _cut(lines, goes_on_at)
        with contextlib.ExitStack() as stack:
            mode = "w" if goes_on_at is None else "a"
            self._lines = stack.enter_context(lines.open(mode, encoding="utf-8"))
            stack.enter_context(log_to(folder / "train.log", config.log_level))
            board = config.tensorboard_log
            self._board = summary_writer(board) if board else None
            if self._board is not None:
                stack.callback(self._board.close)
            self._closing = stack.pop_all()

    def add(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        """Write some numbers of a step. What was not measured, NaN, is null in JSON."""
        plain = {
            name: float(value) if math.isfinite(value) else None for name, value in numbers.items()
        }
        self._lines.write(json.dumps({"kind": kind, "step": step, **plain}) + "\n")
        self._lines.flush()
        if self._board is not None:
            known = {f"{kind}/{name}": one for name, one in plain.items() if one is not None}
            log_function(self._board)(known, step)
        level = logging.INFO if kind != "update" else logging.DEBUG
        _log.log(level, "%s at step %d: %s", kind, step, plain)

    def close(self) -> None:
        """Close the files."""
        self._closing.close()


def _cut(file: Path, step: int) -> None:
    """Keep the lines of a file up to a step; drop damaged ones."""
    kept = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if json.loads(line)["step"] <= step:
                kept.append(line)
    whole = file.with_suffix(".new")
    whole.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    whole.replace(file)
