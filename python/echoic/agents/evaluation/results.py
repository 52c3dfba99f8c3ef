"""From rows to numbers: what each method reached, with intervals, and how methods compare.

An *arm* is a method with its language model, if it has one. Numbers are of one arm on one task, or
of one arm on all tasks that every seed of it was evaluated on.

Decisions:

- The success of a run is the share of its episodes that the environment called a success. Episodes
  that ended with an error or a time-out count as failures: leaving them out would favour methods
  that fail early. Their numbers stand beside it.
- Intervals are over runs, since episodes of one trained policy are not independent of each other.
  For methods without training they are over episodes of all seeds: runs do not differ otherwise.
- Pairs of a comparison are runs with the same seed, of the episodes that both have. If neither
  method trains, they are episodes with the same seed of the environment. All comparisons of a
  benchmark are corrected together.
- Tokens per second are those that a model read or wrote, by the seconds of the episodes, the
  environment's included. Tokens from a cache are in it, and counted apart.
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


@dataclass
class TaskResult:
    """The result of an arm on a task.

    Attributes:
        task: The name of the environment.
        provenance: The same with where its data comes from, such as ``"webshop-generated"``.
        method: The name of the method.
        backbone: That of the language model, or ``"-"``.
        model: The language model that the backbone's name meant.
        settings: With task, method and backbone, the filter of its rows in ``rows.jsonl``.
        seeds: The seeds that have all their episodes.
        episodes: Number of episodes.
        success_rate: The share of them that succeeded.
        success_interval: 95 % of such intervals hold the true one: Wilson's over episodes, or for
            methods that train the bootstrap's over runs, None for fewer than five or equal ones.
        avg_reward: Mean reward of an episode.
        reward_interval: The bootstrap's, over the same.
        avg_steps: Mean steps of an episode.
        success_rates: Of each seed, in their order.
        tokens: Read and written per episode; None for methods that act without a language model.
        cached_share: Share of the tokens read that came from a cache; None if a server does not
            report it.
        tokens_per_second: Read and written; see above.
        computed_tokens_per_second: The same without those from a cache.
        steps_per_second: Steps of the environment.
        cost: Cost of all episodes in US dollars; None where a price is not known.
        cost_per_success: The same by successes; None without one.
        timeouts: Episodes that took too long.
        errors: Episodes that ended with an error.
        trained_steps: Most steps of a training.
        training_seconds: Mean over seeds; None where it is not known of one.
        training_cost: Mean cost of judging in US dollars, over seeds.
        steps_to_threshold: For each seed, the step of training at which an evaluation reached the
            threshold, or None.
    """

    task: str
    provenance: str
    method: str
    backbone: str
    model: str
    settings: str
    seeds: list[int]
    episodes: int
    success_rate: float
    success_interval: Interval
    avg_reward: float
    reward_interval: Interval
    avg_steps: float
    success_rates: list[float]
    tokens: float | None
    cached_share: float | None
    tokens_per_second: float | None
    computed_tokens_per_second: float | None
    steps_per_second: float
    cost: float | None
    cost_per_success: float | None
    timeouts: int
    errors: int
    trained_steps: int | None = None
    training_seconds: float | None = None
    training_cost: float | None = None
    steps_to_threshold: list[float | None] = field(default_factory=list)

    @property
    def arm(self) -> str:
        """The name of the arm."""
        return self.method if self.backbone == NO_BACKBONE else f"{self.method} ({self.backbone})"

    @property
    def filter(self) -> dict[str, str]:
        """The entries that its rows share."""
        return {name: getattr(self, name) for name in ("task", "method", "backbone", "settings")}


@dataclass
class Comparison:
    """The reference beside another arm, on a task.

    Attributes:
        task: The name of the environment.
        provenance: The same with where its data comes from.
        reference: The arm that others are compared with.
        other: The other.
        unit: What a pair is: ``"run"`` or ``"episode"``.
        pairs: Number of pairs.
        difference: The reference's success rate less the other's.
        interval: Its interval, as those of results.
        p: Of the permutation test, on its own.
        p_corrected: The same for all comparisons together, after Holm.
        least: The least ``p`` that this number of pairs can give.
    """

    task: str
    provenance: str
    reference: str
    other: str
    unit: str
    pairs: int
    difference: float
    interval: Interval
    p: float
    p_corrected: float
    least: float


@dataclass
class BenchmarkResult:
    """The result of a benchmark.

    Dicts are by task and arm, such as ``success_rates["minigrid"]["react (gpt-4o)"]``.

    Attributes:
        config: Its settings.
        tasks: The result of each arm on each task.
        success_rates: Shares of episodes.
        avg_rewards: Mean rewards of an episode.
        tokens_per_second: Read and written; None for methods without a language model.
        cost_efficiency: US dollars for a success; None where there is none or no price.
        confidence_intervals: Of success rates.
        significance_tests: The reference beside the other arms.
        overall: By arm, over tasks: ``iqm``, ``iqm_interval``, ``mean``, ``mean_interval`` of the
            runs' success rates, ``tasks`` and ``runs``.
        skipped: Cells for which something was missing, with reasons.
        failed: Cells that went wrong, with reasons.
        not_applicable: Cells whose method can't act in their task, with reasons.
        missing: Cells that are not done, or not all their episodes.
        seconds: Duration of this run.
        files: Files that were written, by name.
    """

    config: dict[str, Any]
    tasks: list[TaskResult] = field(default_factory=list)
    success_rates: dict[str, dict[str, float]] = field(default_factory=dict)
    avg_rewards: dict[str, dict[str, float]] = field(default_factory=dict)
    tokens_per_second: dict[str, dict[str, float | None]] = field(default_factory=dict)
    cost_efficiency: dict[str, dict[str, float | None]] = field(default_factory=dict)
    confidence_intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)
    significance_tests: list[Comparison] = field(default_factory=list)
    overall: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: list[Row] = field(default_factory=list)
    failed: list[Row] = field(default_factory=list)
    not_applicable: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    seconds: float = 0.0
    files: dict[str, str] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Return the same as dicts, lists and numbers."""
        return asdict(self)


def summarize(
    config: BenchmarkConfig, cells: Sequence[CellName], rows: Iterable[Row]
) -> BenchmarkResult:
    """Compute the result from the rows of these cells."""
    result = BenchmarkResult(config=asdict(config))
    without = {
        "skipped": result.skipped,
        "failed": result.failed,
        "not applicable": result.not_applicable,
    }
    known = {cell.id for cell in cells}
    episodes: dict[str, list[Row]] = defaultdict(list)
    trainings: dict[str, Row] = {}
    ended = set()
    for row in rows:
        cell_id = row["id"] if row["kind"] == "cell" else row["id"].rpartition("/")[0]
        if cell_id not in known:  # of other settings, or other names
            continue
        if row["kind"] == "training":
            trainings[cell_id] = row
        elif row["kind"] == "episode" and row["episode"] < config.num_episodes:
            episodes[cell_id].append(row)
        elif row.get("status") in without:
            without[row["status"]].append(row)
            ended.add(cell_id)
    arms: dict[tuple[str, ...], list[CellName]] = defaultdict(list)
    for cell in cells:
        own = episodes[cell.id]
        if len(own) < config.num_episodes:
            if cell.id not in ended:
                result.missing.append(cell.id)
        elif not all_errors(own):
            arms[cell.task, cell.method, cell.backbone, cell.settings].append(cell)
        elif cell.id not in ended:
            # A dead model or a broken task shows nothing of a method.
            more = {"status": "failed", "reason": f"only errors, such as {own[-1]['error']}"}
            result.failed.append({"id": cell.id, "kind": "cell", **cell.labels, **more})
    found: dict[tuple[str, str], list[list[Row]]] = {}
    for done in arms.values():
        runs = [sorted(episodes[cell.id], key=lambda row: row["episode"]) for cell in done]
        trained = [trainings[cell.id] for cell in done if cell.id in trainings]
        one = _task_result(done, runs, trained, config.success_threshold)
        found[one.task, one.arm] = runs
        result.tasks.append(one)
        for target, value in (
            (result.success_rates, one.success_rate),
            (result.avg_rewards, one.avg_reward),
            (result.tokens_per_second, one.tokens_per_second),
            (result.cost_efficiency, one.cost_per_success),
            (result.confidence_intervals, one.success_interval),
        ):
            by_task: dict[str, Any] = target
            by_task.setdefault(one.task, {})[one.arm] = value
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
    count = len(rows)

    def total(name: str) -> float:
        return float(sum(row[name] for row in rows))

    def interval(name: str) -> Interval:
        values = [[float(row[name]) for row in run] for run in runs]
        if trainings:
            return bootstrap_interval([[float(np.mean(run)) for run in values]])
        return bootstrap_interval([[value for run in values for value in run]])

    seconds = max(total("seconds"), 1e-9)
    successes = sum(bool(row["success"]) for row in rows)
    # A judge's tokens are of training: acting uses no model then.
    speaks = total("requests") > 0
    judged = [row["measures"]["judge_cost"] for row in trainings if "judge_cost" in row["measures"]]
    read, both = total("tokens_in"), total("tokens_in") + total("tokens_out")
    # Unknown of one answer is unknown of all.
    known = speaks and all(row["tokens_cached"] is not None for row in rows)
    cached = total("tokens_cached") if known else None
    priced = speaks and all(row["cost"] is not None for row in rows)
    cost = total("cost") if priced else None
    curves = [row["curve"] for row in trainings if row["curve"]]
    first = cells[0]
    return TaskResult(
        task=first.task,
        provenance=first.provenance,
        method=first.method,
        backbone=first.backbone,
        model=first.model,
        settings=first.settings,
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
        training_cost=_mean(judged),
        training_seconds=_mean([row["seconds"] for row in trainings]),
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
            differences = _differences(
                found[first.task, first.arm], found[other.task, other.arm], by_run=trained
            )
            if not differences:
                continue
            result.significance_tests.append(
                Comparison(
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
            )
    corrected = holm([one.p for one in result.significance_tests])
    for one, probability in zip(result.significance_tests, corrected, strict=True):
        one.p_corrected = probability


def _differences(first: list[list[Row]], other: list[list[Row]], *, by_run: bool) -> list[float]:
    of_other = {row["environment_seed"]: float(row["success"]) for run in other for row in run}
    runs = [
        [
            float(row["success"]) - of_other[row["environment_seed"]]
            for row in run
            if row["environment_seed"] in of_other
        ]
        for run in first
    ]
    if by_run:
        return [float(np.mean(run)) for run in runs if run]
    return [one for run in runs for one in run]


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
