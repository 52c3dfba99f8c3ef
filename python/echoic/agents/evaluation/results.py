"""The rows of a benchmark, and from rows to numbers: what each method reached, and how sure.

A row is a JSON object on a line, added as episodes end, never changed. Its ``kind`` is
``"episode"``, ``"training"`` (measurements of a training), or ``"cell"`` (one that was skipped,
failed or is not applicable, with the reason). The last row of an ``id`` counts. Numbers that JSON
does not have, such as the cost of a model without a price, are null.
"""

from __future__ import annotations

import fcntl
import json
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from echoic._json import finite
from echoic.agents.evaluation.config import NO_BACKBONE
from echoic.agents.evaluation.statistics import (
    bootstrap_interval,
    holm,
    least_p,
    permutation_test,
    wilson_interval,
)
from echoic.errors import StorageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self

    from echoic.agents.evaluation.config import BenchmarkConfig, CellName

__all__ = ["BenchmarkResult", "Comparison", "Rows", "TaskResult", "read_rows", "summarize"]

Row = dict[str, Any]
Interval = tuple[float, float] | None
_LABELS = ("task", "provenance", "method", "backbone", "model", "settings")
_QUARTER = 0.25


def read_rows(path: str | os.PathLike[str]) -> dict[str, Row]:
    """Read the rows that count, by ``id``, in the order of their first appearance.

    A partial last line, of a benchmark that was killed, is left out.

    Args:
        path: The file, or a benchmark's folder.

    Raises:
        StorageError: If a line is no row.
    """
    file = Path(path)
    file = file / "rows.jsonl" if file.is_dir() else file
    rows: dict[str, Row] = {}
    content = file.read_bytes() if file.exists() else b""
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        row: Any = None
        with suppress(ValueError):
            row = json.loads(line)
        if not isinstance(row, dict) or not {"id", "kind"} <= set(row):
            raise StorageError(f"line {number} of {file} is no row: {line[:80]!r}")
        rows[row["id"]] = row
    return rows


class Rows(dict[str, Row]):
    """The rows of a folder by id, opened by one process to add more; those that are there stay.

    Raises:
        StorageError: If another process has opened them, or a line is no row.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder) / "rows.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._file = stack.enter_context(path.open("ab+", buffering=0))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"another benchmark is writing to {path}") from None
            super().__init__(read_rows(path))
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
            stack.pop_all()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, whole or not at all. A loss of power may lose it."""
        data: Row = finite(dict(row))
        # Answers of models may not be UTF-8, such as half of a pair of surrogates.
        line = json.dumps(data, allow_nan=False).encode("ascii") + b"\n"
        before = self._file.seek(0, 2)
        try:
            while line:
                line = line[self._file.write(line) :]
        except BaseException:
            self._file.truncate(before)
            raise
        self[data["id"]] = data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@dataclass
class TaskResult:
    """The result of an arm, which is a method with its language model, on a task.

    Intervals are over runs for methods that train, since episodes of one trained policy are not
    independent of each other, and else over episodes. They are None for fewer than five values, or
    equal ones. What is not known is None too: tokens of methods that act without a language model,
    those without a cache's if a server does not report it, costs without a price.
    """

    task: str
    provenance: str  # the task with where its data comes from, such as "webshop-generated"
    method: str
    backbone: str
    model: str  # what the backbone's name meant
    settings: str
    seeds: list[int]  # those with all their episodes
    episodes: int
    success_rate: float  # errors and time-outs are failures
    success_interval: Interval
    avg_reward: float
    success_rates: list[float]  # of each seed
    tokens: float | None  # read and written, per episode
    tokens_per_second: float | None  # by the seconds of the episodes, the environment's included
    computed_tokens_per_second: float | None  # without those from a cache
    cost: float | None  # US dollars
    cost_per_success: float | None
    timeouts: int
    errors: int
    trained_steps: int | None
    # For each training, the step of the first evaluation that reached the threshold.
    steps_to_threshold: list[float | None]

    @property
    def arm(self) -> str:
        """The name of the arm."""
        return self.method if self.backbone == NO_BACKBONE else f"{self.method} ({self.backbone})"


@dataclass
class Comparison:
    """The reference beside another arm, on a task.

    Pairs are runs with the same seed, of the episodes that both have. If neither method trains,
    they are episodes with the same seed of the environment.
    """

    task: str
    provenance: str
    reference: str
    other: str
    unit: str  # what a pair is: "run" or "episode"
    pairs: int
    difference: float  # the reference's success rate less the other's
    interval: Interval
    p: float  # of the permutation test, on its own
    p_corrected: float  # for all comparisons together, after Holm
    least_p: float  # the least p that this number of pairs can give


@dataclass
class BenchmarkResult:
    """The result of a benchmark.

    The dicts are by task and arm; ``cost_efficiency`` has costs per success. Cells that were
    skipped, failed or are not applicable are rows with a reason, and in no number.
    """

    config: dict[str, Any]
    tasks: list[TaskResult] = field(default_factory=list)
    success_rates: dict[str, dict[str, float]] = field(default_factory=dict)
    avg_rewards: dict[str, dict[str, float]] = field(default_factory=dict)
    tokens_per_second: dict[str, dict[str, float | None]] = field(default_factory=dict)
    cost_efficiency: dict[str, dict[str, float | None]] = field(default_factory=dict)
    confidence_intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)
    significance_tests: list[Comparison] = field(default_factory=list)
    overall: dict[str, dict[str, Any]] = field(default_factory=dict)  # by arm, over tasks
    skipped: list[Row] = field(default_factory=list)  # something was missing
    failed: list[Row] = field(default_factory=list)  # something went wrong
    not_applicable: list[Row] = field(default_factory=list)  # the method can't act in the task
    seconds: float = 0.0  # of this run
    files: dict[str, str] = field(default_factory=dict)


def summarize(
    config: BenchmarkConfig, cells: Iterable[CellName], rows: Mapping[str, Row]
) -> BenchmarkResult:
    """Compute the result from the rows of these cells."""
    result = BenchmarkResult(config=asdict(config))
    # By arm and task the episodes of each seed, and the trainings.
    runs: dict[tuple[str, str, str], dict[int, list[Row]]] = defaultdict(dict)
    trainings: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for cell in cells:
        key = cell.task, cell.method, cell.backbone
        ids = [f"{cell.id}/{number}" for number in range(config.num_episodes)]
        found = [rows[one] for one in ids if one in rows]
        # A dead model or a broken task shows nothing of a method.
        if len(found) == len(ids) and any(row["ended"] != "error" for row in found):
            runs[key][cell.seed] = found
            trainings[key] += filter(None, [rows.get(f"{cell.id}/training")])
        elif cell.id in rows:
            row = rows[cell.id]
            getattr(result, row["status"].replace(" ", "_")).append(row)
    for key, own in runs.items():
        one = _task_result(own, trainings[key], config.success_threshold)
        result.tasks.append(one)
        for name, value in (
            ("success_rates", one.success_rate),
            ("avg_rewards", one.avg_reward),
            ("tokens_per_second", one.tokens_per_second),
            ("cost_efficiency", one.cost_per_success),
            ("confidence_intervals", one.success_interval),
        ):
            getattr(result, name).setdefault(one.task, {})[one.arm] = value
    _compare(result, runs, config.reference)
    for arm in {one.arm: None for one in result.tasks}:
        result.overall[arm] = _overall([one for one in result.tasks if one.arm == arm])
    return result


def _task_result(
    runs: Mapping[int, Sequence[Row]], trainings: Sequence[Row], threshold: float
) -> TaskResult:
    rows = [row for run in runs.values() for row in run]
    count, wins = len(rows), sum(row["success"] for row in rows)
    rates = [sum(row["success"] for row in run) / len(run) for run in runs.values()]

    def total(name: str) -> Any:
        values = [row[name] for row in rows]
        # Unknown of one answer is unknown of all.
        return None if None in values else sum(values)

    seconds = max(total("seconds"), 1e-9)
    # A judge's tokens are of training: acting uses no model then.
    speaks = total("requests") > 0
    tokens = total("tokens_in") + total("tokens_out") if speaks else None
    cached, cost = (total(name) if speaks else None for name in ("tokens_cached", "cost"))
    return TaskResult(
        **{name: rows[0][name] for name in _LABELS},
        seeds=list(runs),
        episodes=count,
        success_rate=wins / count,
        success_interval=bootstrap_interval([rates]) if trainings else wilson_interval(wins, count),
        avg_reward=total("reward") / count,
        success_rates=rates,
        tokens=None if tokens is None else tokens / count,
        tokens_per_second=None if tokens is None else tokens / seconds,
        computed_tokens_per_second=None if cached is None else (tokens - cached) / seconds,
        cost=cost,
        cost_per_success=cost / wins if cost is not None and wins else None,
        timeouts=sum(row["ended"] == "timeout" for row in rows),
        errors=sum(row["ended"] == "error" for row in rows),
        trained_steps=max((row["steps"] for row in trainings), default=None),
        steps_to_threshold=[
            next((at["step"] for at in row["curve"] if at["success_rate"] >= threshold), None)
            for row in trainings
            if row["curve"]
        ],
    )


def _compare(
    result: BenchmarkResult,
    runs: Mapping[tuple[str, str, str], Mapping[int, Sequence[Row]]],
    reference: str,
) -> None:
    def successes(one: TaskResult) -> dict[int, Any]:
        by_seed = runs[one.task, one.method, one.backbone].items()
        return {seed: np.array([row["success"] for row in run], float) for seed, run in by_seed}

    for first in (one for one in result.tasks if one.method == reference):
        for other in result.tasks:
            # Another model is another comparison than another method.
            models = {first.backbone, other.backbone} - {NO_BACKBONE}
            if other.task != first.task or other.method == reference or len(models) > 1:
                continue
            ours, theirs = successes(first), successes(other)
            gaps = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
            if not gaps:
                continue
            trained = first.trained_steps is not None or other.trained_steps is not None
            differences = [gap.mean() for gap in gaps] if trained else np.concatenate(gaps)
            comparison = Comparison(
                task=first.task,
                provenance=first.provenance,
                reference=first.arm,
                other=other.arm,
                unit="run" if trained else "episode",
                pairs=len(differences),
                difference=float(np.mean(differences)),
                interval=bootstrap_interval([differences]),
                p=permutation_test(differences),
                p_corrected=1.0,
                least_p=least_p(len(differences)),
            )
            result.significance_tests.append(comparison)
    corrected = holm([one.p for one in result.significance_tests])
    for one, probability in zip(result.significance_tests, corrected, strict=True):
        one.p_corrected = probability


def _overall(tasks: Sequence[TaskResult]) -> dict[str, Any]:
    """Compute the mean and the interquartile mean of an arm's runs of all tasks."""
    strata = [one.success_rates for one in tasks]
    runs = [value for values in strata for value in values]
    return {
        "iqm": float(stats.trim_mean(runs, _QUARTER)),
        "iqm_interval": bootstrap_interval(strata, trim=_QUARTER),
        # Each task counts the same, however many runs it has.
        "mean": float(np.mean([np.mean(values) for values in strata])),
        "tasks": [one.provenance for one in tasks],
        "runs": len(runs),
    }
