"""From rows to numbers: what each method reached, with intervals, and how methods compare.

An *arm* is a method with its language model, if it has one. Numbers are of one arm on one task, or
on all tasks that a seed of it was evaluated on.

- The success of a run is the share of its episodes that the environment called a success. Episodes
  that ended with an error or a time-out count as failures: leaving them out would favour methods
  that fail early. Their numbers stand beside it.
- Intervals are over runs, since episodes of one trained policy are not independent of each other.
  For methods without training they are over episodes of all seeds: runs do not differ otherwise.
- Pairs of a comparison are runs with the same seed, of the episodes that both have. If neither
  method trains, they are episodes with the same seed of the environment. All comparisons of a
  benchmark are corrected together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.evaluation.config import NO_BACKBONE
from echoic.agents.evaluation.statistics import (
    bootstrap_interval,
    holm,
    interquartile_mean,
    least_p,
    permutation_test,
    steps_to_threshold,
    wilson_interval,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from echoic.agents.evaluation.config import BenchmarkConfig, CellName

__all__ = ["BenchmarkResult", "Comparison", "TaskResult", "summarize"]

Row = dict[str, Any]
Interval = tuple[float, float] | None
_LABELS = ("task", "provenance", "method", "backbone", "model", "settings")


@dataclass
class TaskResult:
    """The result of an arm on a task.

    Intervals hold the true value in 95 of 100 cases: Wilson's over episodes for success rates of
    methods that do not train, else the bootstrap's, over runs for methods that train. They are None
    for fewer than five values, or equal ones. What is not known is None too: tokens of methods that
    act without a language model, cached ones if a server does not report them, costs without a
    price, and costs per success without one.
    """

    task: str
    provenance: str  # the task with where its data comes from, such as "webshop-generated"
    method: str
    backbone: str
    model: str  # what the backbone's name meant
    settings: str
    seeds: list[int]  # those with all their episodes
    episodes: int
    success_rate: float
    success_interval: Interval
    avg_reward: float
    reward_interval: Interval
    avg_steps: float
    success_rates: list[float]  # of each seed
    tokens: float | None  # read and written, per episode
    cached_share: float | None  # of the tokens read
    tokens_per_second: float | None  # by the seconds of the episodes, the environment's included
    computed_tokens_per_second: float | None  # without those from a cache
    steps_per_second: float
    cost: float | None  # US dollars
    cost_per_success: float | None
    timeouts: int
    errors: int
    trained_steps: int | None = None
    training_seconds: float | None = None  # mean over seeds
    training_cost: float | None = None  # of judging, mean over seeds
    # For each training, its evaluations, and the step of the first that reached the threshold.
    curves: list[list[Row]] = field(default_factory=list)
    steps_to_threshold: list[float | None] = field(default_factory=list)

    @property
    def arm(self) -> str:
        """The name of the arm."""
        return self.method if self.backbone == NO_BACKBONE else f"{self.method} ({self.backbone})"


@dataclass
class Comparison:
    """The reference beside another arm, on a task."""

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
    least: float  # the least p that this number of pairs can give


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
    missing: list[str] = field(default_factory=list)  # cells that are not done
    seconds: float = 0.0  # of this run
    files: dict[str, str] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Return the same as dicts, lists and numbers."""
        return asdict(self)


def summarize(
    config: BenchmarkConfig, cells: Sequence[CellName], rows: Iterable[Row]
) -> BenchmarkResult:
    """Compute the result from the rows of these cells."""
    result = BenchmarkResult(config=asdict(config))
    reasons = {
        "skipped": result.skipped,
        "failed": result.failed,
        "not applicable": result.not_applicable,
    }
    known = {cell.id for cell in cells}
    episodes: dict[str, list[Row]] = defaultdict(list)
    trainings: dict[str, Row] = {}
    ended: dict[str, Row] = {}
    for row in rows:
        cell_id = row["id"] if row["kind"] == "cell" else row["id"].rpartition("/")[0]
        if cell_id not in known:  # of other settings, or other names
            continue
        if row["kind"] == "training":
            trainings[cell_id] = row
        elif row["kind"] == "episode" and row["episode"] < config.num_episodes:
            episodes[cell_id].append(row)
        elif row.get("status") in reasons:
            ended[cell_id] = row
    arms: dict[tuple[str, ...], list[CellName]] = defaultdict(list)
    for cell in cells:
        own = episodes[cell.id]
        if len(own) == config.num_episodes and not all_errors(own):
            arms[cell.task, cell.method, cell.backbone, cell.settings].append(cell)
        elif cell.id in ended:
            reasons[ended[cell.id]["status"]].append(ended[cell.id])
        elif len(own) < config.num_episodes:
            result.missing.append(cell.id)
        else:  # a dead model or a broken task shows nothing of a method
            more = {"status": "failed", "reason": f"only errors, such as {own[-1]['error']}"}
            result.failed.append({"id": cell.id, "kind": "cell", **cell.labels, **more})
    found: dict[tuple[str, str], list[list[Row]]] = {}
    for done in arms.values():
        runs = [sorted(episodes[cell.id], key=lambda row: row["episode"]) for cell in done]
        trained = [trainings[cell.id] for cell in done if cell.id in trainings]
        one = _task_result(done, runs, trained, config.success_threshold)
        found[one.task, one.arm] = runs
        result.tasks.append(one)
        for name, value in (
            ("success_rates", one.success_rate),
            ("avg_rewards", one.avg_reward),
            ("tokens_per_second", one.tokens_per_second),
            ("cost_efficiency", one.cost_per_success),
            ("confidence_intervals", one.success_interval),
        ):
            getattr(result, name).setdefault(one.task, {})[one.arm] = value
    _compare(result, found, config.reference)
    _overall(result)
    return result


def all_errors(rows: Iterable[Row]) -> bool:
    """Return whether there are episodes, and all of them ended with an error."""
    return {row["ended"] for row in rows} == {"error"}


def _task_result(
    cells: Sequence[CellName],
    runs: Sequence[Sequence[Row]],
    trainings: Sequence[Row],
    threshold: float,
) -> TaskResult:
    rows = [row for run in runs for row in run]
    first, count = cells[0], len(rows)
    successes = sum(bool(row["success"]) for row in rows)

    def total(name: str) -> float:
        return float(sum(row[name] for row in rows))

    def interval(name: str) -> Interval:
        values = [[float(row[name]) for row in run] for run in runs]
        if trainings:
            return bootstrap_interval([[float(np.mean(run)) for run in values]])
        return bootstrap_interval([[value for run in values for value in run]])

    seconds = max(total("seconds"), 1e-9)
    # A judge's tokens are of training: acting uses no model then.
    speaks = total("requests") > 0
    read, both = total("tokens_in"), total("tokens_in") + total("tokens_out")
    # Unknown of one answer is unknown of all.
    cached, cost = (
        total(name) if speaks and all(row[name] is not None for row in rows) else None
        for name in ("tokens_cached", "cost")
    )
    judged = [row["measures"]["judge_cost"] for row in trainings if "judge_cost" in row["measures"]]
    curves = [row["curve"] for row in trainings if row["curve"]]
    return TaskResult(
        **{name: getattr(first, name) for name in _LABELS},
        seeds=[cell.seed for cell in cells],
        episodes=count,
        success_rate=successes / count,
        success_interval=interval("success") if trainings else wilson_interval(successes, count),
        avg_reward=total("reward") / count,
        reward_interval=interval("reward"),
        avg_steps=total("steps") / count,
        success_rates=[float(np.mean([row["success"] for row in run])) for run in runs],
        tokens=both / count if speaks else None,
        cached_share=cached / read if cached is not None and read else None,
        tokens_per_second=both / seconds if speaks else None,
        computed_tokens_per_second=None if cached is None else (both - cached) / seconds,
        steps_per_second=total("steps") / seconds,
        cost=cost,
        cost_per_success=cost / successes if cost is not None and successes else None,
        timeouts=sum(row["ended"] == "timeout" for row in rows),
        errors=sum(row["ended"] == "error" for row in rows),
        trained_steps=max((row["steps"] for row in trainings), default=None),
        training_seconds=_mean([row["seconds"] for row in trainings]),
        training_cost=_mean(judged),
        curves=curves,
        steps_to_threshold=[
            steps_to_threshold(
                [one["step"] for one in curve], [one["success_rate"] for one in curve], threshold
            )
            for curve in curves
        ],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Compute a mean; None without values, or if one of them is not known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _compare(
    result: BenchmarkResult, found: dict[tuple[str, str], list[list[Row]]], reference: str
) -> None:
    for first in (one for one in result.tasks if one.method == reference):
        for other in result.tasks:
            # Another model is another comparison than another method.
            models = {first.backbone, other.backbone} - {NO_BACKBONE}
            if other.task != first.task or other.method == reference or len(models) > 1:
                continue
            trained = first.trained_steps is not None or other.trained_steps is not None
            theirs = {
                row["environment_seed"]: float(row["success"])
                for run in found[other.task, other.arm]
                for row in run
            }
            runs = [
                [
                    row["success"] - theirs[row["environment_seed"]]
                    for row in run
                    if row["environment_seed"] in theirs
                ]
                for run in found[first.task, first.arm]
            ]
            pairs = [run if not trained else [float(np.mean(run))] for run in runs if run]
            differences = [one for run in pairs for one in run]
            if differences:
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
                    least=least_p(len(differences)),
                )
                result.significance_tests.append(comparison)
    corrected = holm([one.p for one in result.significance_tests])
    for one, probability in zip(result.significance_tests, corrected, strict=True):
        one.p_corrected = probability


def _overall(result: BenchmarkResult) -> None:
    by_arm: dict[str, list[TaskResult]] = defaultdict(list)
    for one in result.tasks:
        by_arm[one.arm].append(one)
    for arm, of_arm in by_arm.items():
        strata = [one.success_rates for one in of_arm]
        runs = [value for values in strata for value in values]
        even = len({len(one) for one in strata}) == 1
        result.overall[arm] = {
            "iqm": interquartile_mean(runs),
            "iqm_interval": bootstrap_interval(strata, statistic="iqm"),
            # Each task counts the same, however many runs it has.
            "mean": float(np.mean([np.mean(values) for values in strata])),
            "mean_interval": bootstrap_interval(strata) if even else None,
            "tasks": [one.provenance for one in of_arm],
            "runs": len(runs),
        }
