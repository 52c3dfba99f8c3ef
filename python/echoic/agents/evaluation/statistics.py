"""Statistics of a few runs, by scipy, which assume no normal distribution.

The intervals are percentile intervals of a stratified bootstrap, *expanded* as Hesterberg describes
("What Teachers Should Know About the Bootstrap", 2015): of ten normally distributed runs, those of
95 % hold the true mean in 94 cases of 100, and BCa intervals in 90; of five runs, in 93 and in 84.
Runs that are all equal have no bootstrap interval, and shares of episodes have Wilson's, since a
bootstrap of nothing but failures would be sure of 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special, stats

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

# Most ways to choose signs that are counted; of more, this many are drawn.
_WAYS = 20_000


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
    strata: Sequence[ArrayLike], *, statistic: str = "mean", resamples: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Compute a 95 % interval for a statistic; runs are resampled within each stratum.

    Args:
        strata: The values of the runs of each task; one list for one task.
        statistic: ``"mean"`` or ``"iqm"``.
        resamples: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The ends; None if a stratum has one run, a single stratum fewer than five, or all runs of
        every stratum are equal.

    >>> bootstrap_interval([[1.0]]) is None
    True
    """
    groups = [np.asarray(values, np.float64).reshape(-1) for values in strata]
    if not groups or any(not group.size for group in groups):
        raise ArgumentError("every stratum needs at least one value")
    if statistic not in ("mean", "iqm"):
        raise ArgumentError(f"statistic must be mean or iqm, not {statistic!r}")
    smallest = min(group.size for group in groups)
    freedom = sum(group.size for group in groups) - len(groups)
    if smallest == 1 or freedom < 4 or all(np.ptp(group) == 0 for group in groups):
        return None

    def of(*drawn: Any, axis: int) -> Any:
        values = np.concatenate(drawn, axis)
        return values.mean(axis) if statistic == "mean" else stats.trim_mean(values, 0.25, axis)

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
    if not 0 <= successes <= trials or trials < 1:
        raise ArgumentError(f"{successes} of {trials} trials is no share")
    found = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def permutation_test(differences: ArrayLike, *, seed: int = 0) -> float:
    """Compute the two-sided p of a mean difference of pairs under random signs.

    If methods do not differ, each pair might as well be the other way round. For up to 14 pairs
    that differ all ways are counted, and for more, 20,000 ways are drawn.

    >>> permutation_test([1.0, 1.0, 1.0, 1.0, 1.0])
    0.0625
    """
    pairs = np.asarray(differences, np.float64).reshape(-1)
    if not np.isfinite(pairs).all():
        raise ArgumentError("differences must be finite numbers")
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
        random_state=np.random.default_rng(seed),
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


def steps_to_threshold(
    steps: Sequence[float], values: Sequence[float], threshold: float
) -> float | None:
    """Return the first step at which a curve is at a threshold; None if it never is.

    >>> steps_to_threshold([100, 200, 300], [0.1, 0.9, 0.7], 0.8)
    200
    """
    if len(steps) != len(values):
        raise ArgumentError(f"{len(steps)} steps have {len(values)} values")
    curve = zip(steps, values, strict=True)
    return next((step for step, value in curve if value >= threshold), None)
