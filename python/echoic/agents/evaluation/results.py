"""From rows to numbers: what each method reached, how sure that is, and how they compare.

An *arm* is a method with its language model, if it has one. Numbers are of one arm on one task, or
of one arm on all tasks that every seed of it was evaluated on.

Decisions:

- The success of a run is the share of its episodes that the environment called a success. One that
  ended with an error or a time-out is none: leaving it out would favour those who fail early. How
  many there were stands beside it.
- Intervals are over runs, since episodes of one trained policy are not independent of each other.
  Of methods that don't train they are over episodes of all seeds: runs do not differ otherwise.
- Pairs of a comparison are runs with the same seed, of the episodes that both have. If neither
  method trains, they are episodes with the same seed of the environment.
- All comparisons of a benchmark are corrected together.
- Tokens per second are those that a model read or wrote, by the seconds of the episodes, the
  environment's included. Those that a cache had are in it, and counted apart.
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

__all__ = ["BenchmarkResult", "Comparison", "TaskResult", "arm_of", "summarize"]

Row = dict[str, Any]
Interval = tuple[float, float] | None


def arm_of(method: str, backbone: str) -> str:
    """What an arm is called."""
    return method if backbone == NO_BACKBONE else f"{method} ({backbone})"


@dataclass
class TaskResult:
    """What an arm reached on a task.

    Attributes:
        task: The name of the environment.
        method: The name of the method.
        backbone: That of the language model, or ``"-"``.
        model: The language model that the backbone's name meant.
        settings: Which rows it is computed of, with task, method and backbone: ``rows.jsonl`` has
            them.
        seeds: The seeds that have all their episodes.
        episodes: How many there are.
        success_rate: The share of them that succeeded.
        success_interval: 95 % of such intervals hold the true one: Wilson's over episodes, and for
            methods that train the bootstrap's over runs, None for fewer than five or equal ones.
        avg_reward: The mean reward of an episode.
        reward_interval: The bootstrap's, over the same.
        avg_steps: Steps of an episode.
        success_rates: Of each seed, in their order.
        tokens: Read and written, by an episode. None for methods that ask no language model when
            they act.
        cached_share: The share of the tokens read that a cache had; None where a server does not
            tell.
        tokens_per_second: Read and written; see above.
        computed_tokens_per_second: The same without those that a cache had.
        steps_per_second: Of the environment.
        cost: Of all episodes, in US dollars; None where a price is not known.
        cost_per_success: The same by successes; None without one.
        timeouts: Episodes that took too long.
        errors: Episodes that ended with an error.
        trained_steps: How many steps training took, at most.
        training_seconds: The mean over seeds; None where it is not known of one.
        training_cost: What judging cost, in US dollars; the mean over seeds as well.
        steps_to_threshold: Of each seed, the step of training at which an evaluation reached the
            threshold; None where none did.
    """

    task: str
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
        """What the arm is called."""
        return arm_of(self.method, self.backbone)

    @property
    def filter(self) -> dict[str, str]:
        """What its rows have in common."""
        return {
            "task": self.task,
            "method": self.method,
            "backbone": self.backbone,
            "settings": self.settings,
        }


@dataclass
class Comparison:
    """The reference beside another arm, on a task.

    Attributes:
        task: The name of the environment.
        reference: The arm that others are compared with.
        other: The other.
        unit: What a pair is: ``"run"`` or ``"episode"``.
        pairs: How many there are.
        difference: Of success rates, the reference's less the other's.
        interval: For it, as those of results.
        p: Of the permutation test, on its own.
        p_corrected: The same for all comparisons together, after Holm.
        least: The least ``p`` that so many pairs can give.
    """

    task: str
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
    """What a benchmark found.

    Dicts are by task and arm, such as ``success_rates["minigrid"]["react (gpt-4o)"]``.

    Attributes:
        config: Its settings.
        tasks: What each arm reached on each task.
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
        missing: Cells that are not done, or not all their episodes.
        seconds: How long this run took.
        files: What was written, by name.
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
    missing: list[str] = field(default_factory=list)
    seconds: float = 0.0
    files: dict[str, str] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """The same as dicts, lists and numbers."""
        return asdict(self)


def summarize(
    config: BenchmarkConfig, cells: Sequence[CellName], rows: Iterable[Row]
) -> BenchmarkResult:
    """Compute what the rows of these cells say."""
    result = BenchmarkResult(config=asdict(config))
    episodes, trainings = _sort(config, {cell.id for cell in cells}, rows, result)
    ended = {row["id"] for row in (*result.skipped, *result.failed)}
    for cell in cells:
        # A model that is dead or a task that breaks says nothing of a method.
        if all_errors(own := episodes[cell.id]) and len(own) == config.num_episodes:
            del episodes[cell.id]
            if cell.id not in ended:
                ended.add(cell.id)
                told = {"status": "failed", "reason": f"only errors, such as {own[-1]['error']}"}
                result.failed.append({"id": cell.id, "kind": "cell", **cell.labels, **told})
    arms: dict[tuple[str, str, str, str], list[CellName]] = defaultdict(list)
    for cell in cells:
        if len(episodes[cell.id]) == config.num_episodes:
            arms[cell.task, cell.method, cell.backbone, cell.settings].append(cell)
        elif cell.id not in ended:
            result.missing.append(cell.id)
    found: dict[tuple[str, str], list[list[Row]]] = {}
    for done in arms.values():
        runs = [sorted(episodes[cell.id], key=lambda row: row["episode"]) for cell in done]
        trained = [trainings[cell.id] for cell in done if cell.id in trainings]
        one = _task_result(done, runs, trained, config)
        found[one.task, one.arm] = runs
        result.tasks.append(one)
    _index(result)
    _compare(result, found, config.reference)
    _overall(result)
    return result


def _sort(
    config: BenchmarkConfig, known: set[str], rows: Iterable[Row], result: BenchmarkResult
) -> tuple[dict[str, list[Row]], dict[str, Row]]:
    """Episodes and trainings by cell; what was skipped or failed goes into the result."""
    episodes: dict[str, list[Row]] = defaultdict(list)
    trainings: dict[str, Row] = {}
    for row in rows:
        cell_id = row["id"] if row["kind"] == "cell" else row["id"].rpartition("/")[0]
        if cell_id not in known:
            # Of other settings, or other names.
            continue
        if row["kind"] == "episode":
            if row["episode"] < config.num_episodes:
                episodes[cell_id].append(row)
        elif row["kind"] == "training":
            trainings[cell_id] = row
        elif row["status"] in {"skipped", "failed"}:
            (result.skipped if row["status"] == "skipped" else result.failed).append(row)
    return episodes, trainings


def _task_result(
    cells: Sequence[CellName],
    runs: Sequence[Sequence[Row]],
    trainings: Sequence[Row],
    config: BenchmarkConfig,
) -> TaskResult:
    rows = [row for run in runs for row in run]

    def total(name: str) -> float:
        return float(sum(row[name] for row in rows))

    def interval(name: str) -> Interval:
        values = [[float(row[name]) for row in run] for run in runs]
        if trainings:
            return bootstrap_interval([[float(np.mean(run)) for run in values]])
        return bootstrap_interval([[value for run in values for value in run]])

    seconds = max(total("seconds"), 1e-9)
    successes = sum(bool(row["success"]) for row in rows)
    # A judge's words are of training: acting asks nobody.
    speaks = total("requests") > 0
    judged = [row["measures"]["judge_cost"] for row in trainings if "judge_cost" in row["measures"]]
    read, written = total("tokens_in"), total("tokens_out")
    # What one answer did not tell is not known of all.
    told = all(row["tokens_cached"] is not None for row in rows)
    cached = total("tokens_cached") if speaks and told else None
    costs = [row["cost"] for row in rows]
    cost = float(sum(costs)) if speaks and None not in costs else None
    return TaskResult(
        task=cells[0].task,
        method=cells[0].method,
        backbone=cells[0].backbone,
        model=cells[0].model,
        settings=cells[0].settings,
        seeds=[cell.seed for cell in cells],
        episodes=len(rows),
        success_rate=successes / len(rows),
        success_interval=(
            interval("success") if trainings else wilson_interval(successes, len(rows))
        ),
        avg_reward=total("reward") / len(rows),
        reward_interval=interval("reward"),
        avg_steps=total("steps") / len(rows),
        success_rates=[float(np.mean([row["success"] for row in run])) for run in runs],
        tokens=(read + written) / len(rows) if speaks else None,
        cached_share=cached / read if cached is not None and read else None,
        tokens_per_second=(read + written) / seconds if speaks else None,
        computed_tokens_per_second=(
            (read - cached + written) / seconds if cached is not None else None
        ),
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
                [one["step"] for one in row["curve"]],
                [one["success_rate"] for one in row["curve"]],
                config.success_threshold,
            )
            for row in trainings
            if row["curve"]
        ],
    )


def all_errors(rows: Iterable[Row]) -> bool:
    """Whether there are episodes, and all of them ended with an error."""
    ends = {row["ended"] for row in rows}
    return ends == {"error"}


def _mean(values: Sequence[float | None]) -> float | None:
    """None without values, or if one of them is not known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _index(result: BenchmarkResult) -> None:
    for one in result.tasks:
        result.success_rates.setdefault(one.task, {})[one.arm] = one.success_rate
        result.avg_rewards.setdefault(one.task, {})[one.arm] = one.avg_reward
        result.tokens_per_second.setdefault(one.task, {})[one.arm] = one.tokens_per_second
        result.cost_efficiency.setdefault(one.task, {})[one.arm] = one.cost_per_success
        result.confidence_intervals.setdefault(one.task, {})[one.arm] = one.success_interval


def _compare(
    result: BenchmarkResult, found: dict[tuple[str, str], list[list[Row]]], reference: str
) -> None:
    for first in (one for one in result.tasks if one.method == reference):
        for other in result.tasks:
            if other.task != first.task or other.method == reference:
                continue
            models = {first.backbone, other.backbone} - {NO_BACKBONE}
            if len(models) > 1:
                # Another model is another comparison than another method.
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
    of_other = {row["environment_seed"]: row for run in other for row in run}
    found = []
    for run in first:
        own = [
            float(row["success"]) - float(of_other[row["environment_seed"]]["success"])
            for row in run
            if row["environment_seed"] in of_other
        ]
        if by_run and own:
            found.append(float(np.mean(own)))
        elif not by_run:
            found += own
    return found


def _overall(result: BenchmarkResult) -> None:
    by_arm: dict[str, list[TaskResult]] = defaultdict(list)
    for one in result.tasks:
        by_arm[one.arm].append(one)
    for arm, of_arm in by_arm.items():
        strata = [one.success_rates for one in of_arm]
        runs = [value for values in strata for value in values]
        result.overall[arm] = {
            "iqm": interquartile_mean(runs),
            "iqm_interval": bootstrap_interval(strata, statistic="iqm"),
            # Each task counts the same, however many runs it has.
            "mean": float(np.mean([np.mean(values) for values in strata])),
            "mean_interval": bootstrap_interval(strata)
            if len({len(s) for s in strata}) == 1
            else None,
            "tasks": [one.task for one in of_arm],
            "runs": len(runs),
        }
