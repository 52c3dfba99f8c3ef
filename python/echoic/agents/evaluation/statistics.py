"""What a handful of runs says of a method, and how sure that is.

All of it is computed from numbers of runs, by definitions that others use too, and nothing assumes
that these are normally distributed.

The intervals are *expanded* percentile intervals of a stratified bootstrap (Hesterberg, "What
Teachers Should Know About the Bootstrap", 2015). Plain ones are too narrow for few runs: with ten,
95 % of them hold the true mean in about 91 cases of 100, and the expanded ones in about 95.
With five runs of a single task they still do so in 90 only: five values show too little of tails.

A bootstrap can't know what it never saw: of twenty episodes that succeed once in twenty, a third
have no success at all, and it would be sure of 0. Shares of episodes therefore have Wilson's
interval, and where runs are all the same there is no bootstrap of them.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "bootstrap_interval",
    "holm",
    "interquartile_mean",
    "least_p",
    "permutation_test",
    "steps_to_threshold",
    "wilson_interval",
]

_EXACT = 16
# Five runs of one task.
_LEAST_FREEDOM = 4


def interquartile_mean(values: ArrayLike) -> float:
    """The mean without the lowest and the highest quarter, each rounded down to whole numbers.

    >>> interquartile_mean([0, 1, 2, 9])
    1.5
    """
    flat = np.asarray(values, np.float64).reshape(-1)
    if not flat.size:
        raise ArgumentError("no value has no mean")
    return float(stats.trim_mean(flat, 0.25))


def bootstrap_interval(
    strata: Sequence[ArrayLike],
    *,
    statistic: str = "mean",
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    expand: bool = True,
) -> tuple[float, float] | None:
    """An interval for a statistic of all values together; runs are drawn anew within each stratum.

    Args:
        strata: The values of the runs of each task; one list for one task.
        statistic: ``"mean"`` or ``"iqm"``.
        confidence: How often such intervals should hold the true value.
        resamples: How often runs are drawn.
        seed: Of the drawing.
        expand: Whether it is widened for few runs, as it should be.

    Returns:
        The ends, or None of too few runs: where a stratum has one, or a single one fewer than five.
        An interval between the least and the most of three would hold the truth in 75 of 100. None
        too where the runs of every stratum are equal: they show nothing of how runs differ.

    >>> bootstrap_interval([[1.0]]) is None
    True
    """
    groups = [np.asarray(values, np.float64).reshape(-1) for values in strata]
    if not groups or any(not group.size for group in groups):
        raise ArgumentError("every stratum needs at least one value")
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence must be between 0 and 1, not {confidence}")
    # The share of values that is left out at either end.
    kinds = {"mean": 0.0, "iqm": 0.25}
    if statistic not in kinds:
        raise ArgumentError(f"statistic must be mean or iqm, not {statistic!r}")
    smallest = min(group.size for group in groups)
    freedom = sum(group.size for group in groups) - len(groups)
    if smallest == 1 or freedom < _LEAST_FREEDOM:
        return None
    if all((group == group[0]).all() for group in groups):
        return None
    rng = np.random.default_rng(seed)
    drawn = np.concatenate(
        [group[rng.integers(group.size, size=(resamples, group.size))] for group in groups], axis=1
    )
    tail = (1 - confidence) / 2
    if expand:
        wider = math.sqrt(smallest / (smallest - 1)) * float(stats.t.ppf(1 - tail, freedom))
        tail = NormalDist().cdf(-wider)
    low, high = np.quantile(stats.trim_mean(drawn, kinds[statistic], axis=1), (tail, 1 - tail))
    return float(low), float(high)


def wilson_interval(
    successes: int, trials: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Wilson's interval for the share of trials that succeed, of any number of them.

    >>> [round(end, 3) for end in wilson_interval(0, 20)]
    [0.0, 0.161]
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ArgumentError(f"{successes} of {trials} trials is no share")
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence must be between 0 and 1, not {confidence}")
    found = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def permutation_test(differences: ArrayLike, *, resamples: int = 20_000, seed: int = 0) -> float:
    """How likely a mean difference of pairs as large as this is, if there is none (two-sided).

    If methods do not differ, each pair might as well be the other way round. For up to 16 pairs
    that differ all ways are counted, and for more, ``resamples`` ways are drawn.

    >>> permutation_test([1.0, 1.0, 1.0, 1.0, 1.0])
    0.0625
    """
    pairs = _pairs(differences)
    # Pairs without a difference are the same both ways: they change no count.
    pairs = pairs[pairs != 0]
    if not pairs.size:
        return 1.0
    # Some sums that are equal differ by rounding.
    observed = abs(pairs.sum()) * (1 - 1e-12)
    if pairs.size <= _EXACT:
        ways = (np.arange(1 << pairs.size)[:, None] >> np.arange(pairs.size)) & 1
        return float(np.mean(np.abs((2.0 * ways - 1) @ pairs) >= observed))
    rng, hits, left = np.random.default_rng(seed), 0, resamples
    while left:
        some = min(left, max(1, 2_000_000 // pairs.size))
        signs = rng.integers(0, 2, size=(some, pairs.size)) * 2.0 - 1
        hits += int(np.count_nonzero(np.abs(signs @ pairs) >= observed))
        left -= some
    # With the way that was observed, which is one too.
    return (hits + 1) / (resamples + 1)


def _pairs(differences: ArrayLike) -> NDArray[np.float64]:
    pairs = np.asarray(differences, np.float64).reshape(-1)
    if not np.isfinite(pairs).all():
        raise ArgumentError("differences must be finite numbers")
    return pairs


def least_p(pairs: int) -> float:
    """The least probability that a test of so many pairs can give."""
    return min(1.0, 2.0 ** (1 - pairs)) if pairs <= _EXACT else 1 / 20_001


def holm(probabilities: Sequence[float]) -> list[float]:
    """Holm's correction of several tests: what is below 0.05 after is so for all together.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(probabilities)), key=lambda index: probabilities[index])
    corrected, most = [1.0] * len(probabilities), 0.0
    for place, index in enumerate(order):
        most = max(most, min(1.0, (len(probabilities) - place) * probabilities[index]))
        corrected[index] = most
    return corrected


def steps_to_threshold(
    steps: Sequence[float], values: Sequence[float], threshold: float
) -> float | None:
    """The first step at which a curve is at a threshold; None if it never is.

    >>> steps_to_threshold([100, 200, 300], [0.1, 0.9, 0.7], 0.8)
    200
    """
    if len(steps) != len(values):
        raise ArgumentError(f"{len(steps)} steps have {len(values)} values")
    return next(
        (step for step, value in zip(steps, values, strict=True) if value >= threshold), None
    )
