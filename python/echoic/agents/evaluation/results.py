"""From the rows of a benchmark to numbers: what each method reached, and how sure that is."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special, stats

from echoic.agents.evaluation.config import NO_BACKBONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike

    from echoic.agents.evaluation.config import BenchmarkConfig, CellName

__all__ = ["BenchmarkResult", "Comparison", "TaskResult", "summarize", "wilson_interval"]

Row = dict[str, Any]
Interval = tuple[float, float] | None
_LABELS = ("task", "provenance", "method", "backbone", "model", "settings")
_QUARTER = 0.25
# Most ways to choose signs that are counted; of more, this many are drawn.
_WAYS = 20_000


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


def bootstrap_interval(
    strata: Sequence[ArrayLike], *, trim: float = 0.0, resamples: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Compute a 95 % interval of a mean without a share ``trim`` of its lowest and highest values.

    Runs are resampled within the strata, which are tasks. It is a percentile interval, expanded for
    few runs as Hesterberg describes ("What Teachers Should Know About the Bootstrap", 2015); None
    if a stratum has one run, a single stratum fewer than five, or each stratum equal ones.
    """
    groups = [np.asarray(values, np.float64) for values in strata]
    smallest = min(map(len, groups))
    freedom = sum(map(len, groups)) - len(groups)
    if smallest == 1 or freedom < 4 or not any(map(np.ptp, groups)):
        return None

    def of(*drawn: Any, axis: int) -> Any:
        return stats.trim_mean(np.concatenate(drawn, axis), trim, axis)

    wider = math.sqrt(smallest / (smallest - 1)) * special.stdtrit(freedom, 0.975)
    found = stats.bootstrap(
        groups,
        of,
        n_resamples=resamples,
        confidence_level=1 - 2 * special.ndtr(-wider),
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Compute Wilson's 95 % interval for the share of trials that succeed.

    >>> [round(end, 3) for end in wilson_interval(0, 20)]
    [0.0, 0.161]
    """
    found = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def permutation_test(differences: ArrayLike) -> float:
    """Compute the two-sided p of a mean difference of pairs under random signs.

    >>> permutation_test([1.0, 1.0, 1.0, 1.0, 1.0])
    0.0625
    """
    pairs = np.asarray(differences, np.float64)
    # Pairs without a difference are the same both ways, and change no count.
    pairs = pairs[pairs != 0]
    if pairs.size < 2:  # one pair has two ways, which are as extreme as each other
        return 1.0
    found = stats.permutation_test(
        (pairs,),
        lambda values, axis: np.abs(values.sum(axis)),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=_WAYS,
        batch=500,  # all ways at once would need 320 kB for each pair
        random_state=np.random.default_rng(0),
    )
    return float(found.pvalue)


def least_p(pairs: int) -> float:
    """Return the least p that a test of this number of pairs can give."""
    return min(1.0, 2.0 ** (1 - pairs)) if pairs <= math.log2(_WAYS) else 1 / (_WAYS + 1)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Correct several tests together, after Holm.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(probabilities, np.float64)
    order, left = np.argsort(given, kind="stable"), np.arange(given.size, 0, -1)
    corrected = np.empty_like(given)
    corrected[order] = np.minimum(np.maximum.accumulate(left * given[order]), 1.0)
    return [float(one) for one in corrected]
