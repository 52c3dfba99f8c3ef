"""Statistics of a few runs, by scipy, which assume no normal distribution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special, stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

__all__ = ["bootstrap_interval", "holm", "least_p", "permutation_test", "wilson_interval"]

# Most ways to choose signs that are counted; of more, this many are drawn.
_WAYS = 20_000


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
