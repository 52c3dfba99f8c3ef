"""Statistics of a few runs, which assume no normal distribution.

The intervals are *expanded* percentile intervals of a stratified bootstrap (Hesterberg, "What
Teachers Should Know About the Bootstrap", 2015). Plain ones are too narrow for few runs: with ten,
95 % of them hold the true mean in about 91 cases of 100, and the expanded ones in about 95. With
five runs of a single task they still do so in 90 only: five values show too little of the tails.

A bootstrap can't know what it never saw: of twenty episodes that succeed once in twenty, a third
have no success at all, and it would be sure of 0. Shares of episodes therefore have Wilson's
interval, and where runs are all the same there is no bootstrap of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

__all__ = [
    "bootstrap_interval",
    "holm",
    "interquartile_mean",
    "least_p",
    "permutation_test",
    "steps_to_threshold",
    "wilson_interval",
]

_UPPER = 0.975
# Most pairs of which all permutations are counted.
_EXACT = 16
_DRAWN = 20_000
# Five runs of one task.
_LEAST_FREEDOM = 4
# The share of values that a statistic leaves out at either end.
_TRIMMED = {"mean": 0.0, "iqm": 0.25}


def interquartile_mean(values: ArrayLike) -> float:
    """Compute the mean without the lowest and the highest quarter, each rounded down.

    >>> interquartile_mean([0, 1, 2, 9])
    1.5
    """
    flat = np.asarray(values, np.float64).reshape(-1)
    if not flat.size:
        raise ArgumentError("expected at least one value")
    return float(stats.trim_mean(flat, 0.25))


def bootstrap_interval(
    strata: Sequence[ArrayLike],
    *,
    statistic: str = "mean",
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Compute a 95 % interval for a statistic; runs are resampled within each stratum.

    Args:
        strata: The values of the runs of each task; one list for one task.
        statistic: ``"mean"`` or ``"iqm"``.
        resamples: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The ends; None if a stratum has one run, a single stratum fewer than five (an interval
        between the least and the most of three would hold the truth in 75 of 100), or all runs of
        every stratum are equal, which shows nothing of how runs differ.

    >>> bootstrap_interval([[1.0]]) is None
    True
    """
    groups = [np.asarray(values, np.float64).reshape(-1) for values in strata]
    if not groups or any(not group.size for group in groups):
        raise ArgumentError("every stratum needs at least one value")
    if statistic not in _TRIMMED:
        raise ArgumentError(f"statistic must be mean or iqm, not {statistic!r}")
    smallest = min(group.size for group in groups)
    freedom = sum(group.size for group in groups) - len(groups)
    equal = all((group == group[0]).all() for group in groups)
    if smallest == 1 or freedom < _LEAST_FREEDOM or equal:
        return None
    wider = math.sqrt(smallest / (smallest - 1)) * float(stats.t.ppf(_UPPER, freedom))
    tail = float(stats.norm.cdf(-wider))
    rng = np.random.default_rng(seed)
    # By hand, because scipy's bootstrap takes three times as long.
    drawn = np.concatenate(
        [group[rng.integers(group.size, size=(resamples, group.size))] for group in groups], axis=1
    )
    found = stats.trim_mean(drawn, _TRIMMED[statistic], axis=1)
    low, high = np.quantile(found, (tail, 1 - tail))
    return float(low), float(high)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Compute Wilson's 95 % interval for the share of trials that succeed.

    >>> [round(end, 3) for end in wilson_interval(0, 20)]
    [0.0, 0.161]
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ArgumentError(f"{successes} of {trials} trials is no share")
    found = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def permutation_test(differences: ArrayLike, *, seed: int = 0) -> float:
    """Compute the two-sided p of a mean difference of pairs under random signs.

    If methods do not differ, each pair might as well be the other way round. For up to 16 pairs
    that differ all ways are counted, and for more, 20,000 ways are drawn.

    >>> permutation_test([1.0, 1.0, 1.0, 1.0, 1.0])
    0.0625
    """
    pairs = np.asarray(differences, np.float64).reshape(-1)
    if not np.isfinite(pairs).all():
        raise ArgumentError("differences must be finite numbers")
    # Pairs without a difference are the same both ways, and change no count.
    pairs = pairs[pairs != 0]
    # Some sums that are equal differ by rounding.
    observed = abs(pairs.sum()) * (1 - 1e-12)
    # By matrix products: scipy's test calls Python for each way, which takes seconds.
    if pairs.size <= _EXACT:
        ways = (np.arange(1 << pairs.size)[:, None] >> np.arange(pairs.size)) & 1
        return float(np.mean(np.abs((2.0 * ways - 1) @ pairs) >= observed))
    rng = np.random.default_rng(seed)
    # In parts: all ways at once would need 160 kB for each pair.
    sums = [rng.choice((-1.0, 1.0), (_DRAWN // 20, pairs.size)) @ pairs for _ in range(20)]
    hits = int(np.count_nonzero(np.abs(sums) >= observed))
    # With the observed way, which is one too.
    return (hits + 1) / (_DRAWN + 1)


def least_p(pairs: int) -> float:
    """Return the least p that a test of this number of pairs can give."""
    return min(1.0, 2.0 ** (1 - pairs)) if pairs <= _EXACT else 1 / (_DRAWN + 1)


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


def steps_to_threshold(
    steps: Sequence[float], values: Sequence[float], threshold: float
) -> float | None:
    """Return the first step at which a curve is at a threshold; None if it never is.

    >>> steps_to_threshold([100, 200, 300], [0.1, 0.9, 0.7], 0.8)
    200
    """
    if len(steps) != len(values):
        raise ArgumentError(f"{len(steps)} steps have {len(values)} values")
    return next(
        (step for step, value in zip(steps, values, strict=True) if value >= threshold), None
    )
