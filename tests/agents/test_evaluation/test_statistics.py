"""Statistics, beside what they must be by definition, by count, and by simulation."""

from itertools import product

import numpy as np
import pytest
import tiers
from echoic.agents.evaluation.results import (
    bootstrap_interval,
    holm,
    least_p,
    permutation_test,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("runs", "tasks", "trim"),
    tiers.rotating(pytest.param(10, 1, 0.0), pytest.param(10, 4, 0.25), pytest.param(5, 4, 0.0)),
)
def test_intervals_hold_the_true_value_as_often_as_they_should(runs, tasks, trim):
    rng = np.random.default_rng(7)
    samples = rng.normal(size=(800, tasks, runs))
    held = 0
    for number, sample in enumerate(samples):
        low, high = bootstrap_interval(list(sample), trim=trim, resamples=500, seed=number)
        held += low <= 0 <= high
    assert 0.93 <= held / len(samples) <= 0.97


@pytest.mark.parametrize("share", [0.02, 0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("trials", [20, 100])
def test_intervals_of_shares_hold_the_true_one(share, trials):
    counts = np.random.default_rng(7).binomial(trials, share, size=2000)
    ends = {count: wilson_interval(int(count), trials) for count in set(counts)}
    held = np.mean([ends[count][0] <= share <= ends[count][1] for count in counts])
    assert held >= 0.9


def test_nothing_but_failures_does_not_make_sure():
    low, high = wilson_interval(0, 10)
    assert (low, round(high, 4)) == (0.0, 0.2775)
    assert wilson_interval(10, 10) == pytest.approx((1 - high, 1.0))


def test_an_interval_is_drawn_within_strata():
    # Tasks differ, and runs do in one of them alone.
    low, high = bootstrap_interval([[0.0] * 5, [0.8, 0.9, 1.0, 0.9, 0.9]])
    assert 0.4 <= low < 0.45 < high <= 0.5
    # Runs that are all equal show nothing of how they differ.
    assert bootstrap_interval([[0.0] * 5, [1.0] * 5]) is None
    assert bootstrap_interval([[0.0, 1.0], [1.0]]) is None
    # Of too few there is none.
    assert bootstrap_interval([[0.0, 1.0, 0.5, 0.2]]) is None
    assert bootstrap_interval([[0.0, 1.0, 0.5], [0.0, 1.0, 0.5]]) is not None


def counted(differences, measure):
    observed = measure(differences)
    ways = [
        measure(np.array(signs) * differences)
        for signs in product((-1, 1), repeat=len(differences))
    ]
    return np.mean([way >= observed - 1e-12 for way in ways])


def test_the_permutation_test_counts_all_ways():
    rng = np.random.default_rng(3)
    for size in (3, 6, 8):
        differences = rng.normal(0.5, 1.0, size)
        expected = counted(np.array(differences), lambda values: abs(values.sum()))
        assert permutation_test(differences) == pytest.approx(expected)


def test_many_pairs_are_tested_by_drawing():
    differences = np.random.default_rng(5).normal(0.4, 1.0, 40)
    z = abs(differences.sum()) / np.sqrt((differences**2).sum())
    normal = 2 * (1 - 0.5 * (1 + float(np.vectorize(__import__("math").erf)(z / np.sqrt(2)))))
    assert permutation_test(differences) == pytest.approx(normal, abs=0.01)
    assert permutation_test(np.full(40, 1.0)) == pytest.approx(1 / 20_001)


def test_no_difference_is_nothing():
    assert permutation_test([0.0, 0.0]) == permutation_test([]) == permutation_test([0.5]) == 1.0


def test_tests_are_wrong_as_seldom_as_they_say():
    rng = np.random.default_rng(8)
    found = [permutation_test(rng.normal(size=8)) <= 0.05 for _ in range(tiers.size(200, 400))]
    assert 0.025 <= np.mean(found) <= 0.075


def test_holm_steps_down_and_never_back():
    assert holm([]) == []
    assert holm([0.04, 0.01, 0.04, 0.9]) == pytest.approx([0.12, 0.04, 0.12, 0.9])
    assert holm([0.6, 0.5]) == [1.0, 1.0]


def test_five_pairs_can_not_be_significant():
    assert least_p(5) == permutation_test([1.0] * 5) == 0.0625
