"""Kernels of agents: known values, plain Python as the oracle, and what is refused.

The oracles say what a kernel computes in the fewest lines, and know nothing of blocks or vectors.
"""

from __future__ import annotations

import math
import pickle
import random
import struct
import threading
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from echoic.agents import kernels
from echoic.errors import ArgumentError, DtypeError

CASES = 10_000


# Oracles.


class Generator:
    """xoshiro256++ seeded with SplitMix64 (Blackman and Vigna, 2019)."""

    MASK = 2**64 - 1

    def __init__(self, seed: int) -> None:
        self.state = []
        for _ in range(4):
            seed = (seed + 0x9E3779B97F4A7C15) & self.MASK
            mixed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 & self.MASK
            mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & self.MASK
            self.state.append(mixed ^ (mixed >> 31))

    def turn(self, value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & self.MASK

    def unit(self) -> float:
        a, b, c, d = self.state
        result = (self.turn((a + d) & self.MASK, 23) + a) & self.MASK
        c, d = c ^ a, d ^ b
        self.state = [a ^ d, b ^ c, c ^ (b << 17 & self.MASK), self.turn(d, 45)]
        return (result >> 11) * 2.0**-53


def squared_distance(a: list[float], b: list[float]) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def cost(tokens: int, reused: int, scale: float) -> float:
    return float(sum(range(min(reused, tokens) + 1, tokens + 1))) * scale


def fnv(numbers: list[float]) -> int:
    result = 0xCBF29CE484222325
    for number in numbers:
        for byte in struct.pack("<d", number + 0.0):
            result = (result ^ byte) * 0x100000001B3 % 2**64
    return result


def longest_prefix(hashes: list[int], entries: list[tuple[int, int]], least: int) -> Any:
    for length in range(len(hashes), 0, -1):
        reused = min(length, len(hashes) - 1)
        for value, index in entries:
            if value == hashes[length - 1] and length >= least and reused >= least:
                return index, reused
    return -1, 0


def softmax_draws(
    priorities: list[float], size: int, temperature: float, beta: float, seed: int
) -> tuple[list[int], list[float]]:
    top = max(priorities)
    masses = [math.exp((priority - top) / temperature) for priority in priorities]
    total = math.fsum(masses)
    generator = Generator(seed)
    indices = []
    for _ in range(min(size, len(priorities))):
        target, index, reached = generator.unit() * total, 0, masses[0]
        while reached <= target and index + 1 < len(masses):
            index += 1
            reached += masses[index]
        indices.append(index)
    weights = [(len(masses) * masses[index] / total) ** -beta for index in indices]
    return indices, [weight / max(weights) for weight in weights]


# Known values.


def test_costs_have_the_known_values() -> None:
    assert kernels.attention_bandwidth_cost(3) == 6
    assert kernels.attention_bandwidth_cost(10) == 55
    assert kernels.effective_bandwidth_cost(10, 5) == 40
    assert kernels.effective_bandwidth_cost(3, 2) == 3
    assert kernels.effective_bandwidth_cost(seq_len=128, reuse_len=96, scale=1.0) == 3600


def test_the_priority_has_the_known_value() -> None:
    costs = kernels.effective_bandwidth_cost_batch([128], [96])
    [priority] = kernels.bandwidth_aware_priorities([1.0], costs, [0.5])
    assert priority == pytest.approx(2.777392e-4, rel=1e-6)
    assert kernels.schedule_priorities([1.0], [0.5]) == pytest.approx(1 / 0.500001, rel=1e-15)


def test_plans_have_the_known_values() -> None:
    assert kernels.temporal_kl([1, 0], [0, 0], 0.01) == pytest.approx(50, rel=1e-12)
    assert kernels.plan_surprise([1, 2, 3], [0, 0, 0], 0.5, 1, 0.1) == pytest.approx(14.05)


def test_the_prefix_has_the_known_value() -> None:
    assert kernels.prefix_match([10, 20, 30], [(20, 0), (10, 1)]) == (0, 2)


def test_the_efficiency_has_the_known_value() -> None:
    assert kernels.bandwidth_efficiency(0.5, 904.0, 0.02) == pytest.approx(5.530851e-4, rel=1e-6)
    assert kernels.bandwidth_efficiency(0.5, 0.0, 1e-12) == 0


def test_kernels_are_always_there() -> None:
    assert kernels.kernels_available() is True


# Plain Python.


def test_costs_are_those_of_plain_python() -> None:
    rng = random.Random(1)
    for _ in range(CASES):
        tokens, reused, scale = rng.randrange(200), rng.randrange(220), rng.choice([1, 0.5, 3e4])
        got = kernels.effective_bandwidth_cost(tokens, reused, scale)
        assert got == cost(tokens, reused, scale)
    lengths = np.array([[rng.randrange(200) for _ in range(100)] for _ in range(100)])
    reuse = lengths.T.astype(np.int32)
    expected = [cost(*pair, 2.0) for pair in zip(lengths.flat, reuse.flat, strict=True)]
    got = kernels.effective_bandwidth_cost_batch(lengths, reuse, 2.0)
    assert (got.shape, got.ravel().tolist()) == ((100, 100), expected)
    alone = kernels.attention_bandwidth_cost_batch(lengths, 2.0)
    assert (alone == kernels.effective_bandwidth_cost_batch(lengths, None, 2.0)).all()


def test_priorities_are_those_of_plain_python() -> None:
    rng = np.random.default_rng(2)
    rewards, costs, waits = rng.normal(size=CASES), *rng.exponential([[9.0], [2.0]], (2, CASES))
    got = kernels.bandwidth_aware_priorities(
        rewards, costs, waits, 1e-3, bandwidth_weight=0.5, queue_weight=3.0
    )
    expected = [
        reward / (0.5 * cost + 3.0 * wait + 1e-3)
        for reward, cost, wait in zip(rewards, costs, waits, strict=True)
    ]
    assert got.tolist() == expected
    legacy = kernels.schedule_priorities(rewards, waits, 1e-3)
    assert legacy == pytest.approx(rewards / (waits + 1e-3), rel=1e-15)


def test_plans_are_scored_as_in_plain_python() -> None:
    rng = np.random.default_rng(3)
    for case in range(CASES):
        dim = case % 20 + 1
        plan, average = rng.normal(size=(2, dim))
        reward, sigma = rng.normal(), rng.uniform(0.01, 2)
        if case % 2:
            plan = plan.astype(np.float32)
        distance = squared_distance(plan.tolist(), average.tolist())
        surprise = kernels.plan_surprise(plan, average, reward, 0.3, 1.7)
        assert surprise == pytest.approx(0.3 * distance + 1.7 * abs(reward), rel=1e-12)
        divergence = kernels.temporal_kl(plan, average, sigma)
        assert divergence == pytest.approx(distance / (2 * sigma), rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batches_of_plans_are_their_rows(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    plans, others = rng.normal(size=(2, 300, 37)).astype(dtype)
    average, rewards = rng.normal(size=37), rng.normal(size=300)
    surprise = kernels.plan_surprise_batch(plans, average, rewards, 2.0, 0.5)
    divergence = kernels.temporal_kl_batch(plans, others, 0.1)
    assert surprise.dtype == divergence.dtype == np.float64
    for at in range(300):
        assert surprise[at] == kernels.plan_surprise(plans[at], average, rewards[at], 2.0, 0.5)
        assert divergence[at] == kernels.temporal_kl(plans[at], others[at], 0.1)


def test_the_average_plan_is_that_of_plain_python() -> None:
    rng = np.random.default_rng(5)
    for case in range(CASES // 10):
        dim, decay = case % 9 + 1, rng.uniform()
        plans = rng.normal(size=(10, dim)).astype([np.float32, np.float64][case % 2])
        one, batch = kernels.EMAPlanTracker(dim, decay), kernels.EMAPlanTracker(dim, decay)
        expected = plans[0].tolist()
        for at, plan in enumerate(plans.tolist()):
            one.update(plans[at])
            if at:
                expected = [
                    decay * mean + (1 - decay) * x for mean, x in zip(expected, plan, strict=True)
                ]
        batch.update(plans)
        assert one.get_ema().tolist() == batch.get_ema().tolist() == expected


def test_hashes_are_those_of_plain_python() -> None:
    rng = np.random.default_rng(6)
    for case in range(CASES):
        state = rng.normal(size=case % 12)
        state[rng.random(len(state)) < 0.2] = -0.0
        if case % 2:
            state = state.astype(np.float32)
        assert kernels.state_hash(state) == fnv(state.tolist())
    states = rng.normal(size=(50, 2, 3))
    expected = [fnv(state.ravel().tolist()) for state in states]
    assert kernels.state_hash_batch(states).tolist() == expected


def test_prefixes_are_those_of_plain_python() -> None:
    rng = random.Random(7)
    sequences, entries = [], []
    for _ in range(CASES):
        hashes = [rng.randrange(30) for _ in range(rng.randrange(12))]
        entries = [(rng.randrange(30), at) for at in range(rng.randrange(12))]
        least = rng.randrange(1, 5)
        expected = longest_prefix(hashes, entries, least)
        assert kernels.prefix_match(hashes, entries, least) == expected
        assert kernels.prefix_match(np.array(hashes, np.uint64), entries, least) == expected
        sequences.append(hashes)
    indices, lengths = kernels.prefix_match_batch(sequences, entries, 2)
    got = list(zip(indices.tolist(), lengths.tolist(), strict=True))
    assert got == [longest_prefix(hashes, entries, 2) for hashes in sequences]


def test_draws_are_those_of_plain_python() -> None:
    rng = np.random.default_rng(8)
    for seed in range(CASES):
        size = seed % 8 + 1
        priorities = rng.normal(scale=3, size=int(rng.integers(1, 12)))
        temperature, beta = rng.uniform(0.2, 3), rng.uniform(0, 1)
        indices, weights = kernels.priority_sample(priorities, size, temperature, beta, seed)
        expected, expected_weights = softmax_draws(
            priorities.tolist(), size, temperature, beta, seed
        )
        assert indices.tolist() == expected
        assert weights == pytest.approx(expected_weights, rel=1e-6)


def test_draws_from_many_are_those_of_plain_python() -> None:
    rng = np.random.default_rng(9)
    for count in (255, 256, 257, 5_000):
        priorities = rng.normal(size=count)
        indices, _ = kernels.priority_sample(priorities, 200, 0.7, seed=count)
        assert indices.tolist() == softmax_draws(priorities.tolist(), 200, 0.7, 0.4, count)[0]


# Draws.


def test_items_are_drawn_as_often_as_their_probabilities_say() -> None:
    count, rounds = 64, 3_000
    priorities = np.random.default_rng(10).normal(size=count)
    drawn = np.concatenate(
        [kernels.priority_sample(priorities, count, seed=seed)[0] for seed in range(rounds)]
    )
    masses = np.exp(priorities)
    expected = masses / masses.sum() * count * rounds
    statistic = ((np.bincount(drawn, minlength=count) - expected) ** 2 / expected).sum()
    # The 99 % quantile of chi-square with 63 degrees of freedom: p > 0.01 is below it.
    assert statistic < 92.01


def test_weighted_means_are_without_bias() -> None:
    rng = np.random.default_rng(11)
    priorities, values = rng.normal(size=(2, 400))
    means = []
    for seed in range(300):
        indices, weights = kernels.priority_sample(priorities, 400, 1.0, 1.0, seed)
        means.append((weights * values[indices]).sum() / weights.sum())
    error = np.std(means) / math.sqrt(len(means))
    # A ratio of sums has a bias of the order of 1/400 of its variance, below the error here.
    assert abs(np.mean(means) - values.mean()) < 3 * error


def test_a_seed_gives_the_same_draws_and_another_gives_others() -> None:
    priorities = np.random.default_rng(12).normal(size=1_000)
    first, again, other = (kernels.priority_sample(priorities, 50, seed=seed) for seed in (1, 1, 2))
    assert (first[0] == again[0]).all()
    assert (first[1] == again[1]).all()
    assert (first[0] != other[0]).any()
    single = kernels.priority_sample(priorities.astype(np.float32), 50, seed=1)[0]
    assert (single == first[0]).all()


def test_exponents_do_not_overflow() -> None:
    indices, weights = kernels.priority_sample([1e6, 1e6 - 1, 0.0], 3, 1.0, 1.0, seed=4)
    assert set(indices.tolist()) <= {0, 1}
    assert np.isfinite(weights).all()
    assert weights.max() == 1
    indices, weights = kernels.priority_sample([-1e308, 1e308], 2, 1e-300)
    assert (indices.tolist(), weights.tolist()) == ([1, 1], [1, 1])


def test_squared_distances_in_many_dimensions_collapse_only_at_a_low_temperature() -> None:
    # What the temperature is for: distances of 512 dimensions differ by tens.
    plans = np.random.default_rng(13).normal(size=(300, 512))
    scores = kernels.plan_surprise_batch(plans, np.zeros(512), np.zeros(300))
    cold, _ = kernels.priority_sample(scores, 256, 1.0)
    warm, _ = kernels.priority_sample(scores, 256, 100.0)
    assert len(set(cold.tolist())) < 10
    assert len(set(warm.tolist())) > 100


def test_sizes_of_draws() -> None:
    for count, size in ((5, 3), (5, 9), (0, 3), (5, 0)):
        indices, weights = kernels.priority_sample(np.zeros(count), size)
        assert len(indices) == len(weights) == min(count, size)
        assert (indices.dtype, weights.dtype) == (np.int64, np.float32)


def test_minus_infinity_is_never_drawn() -> None:
    priorities = np.full(1_000, -np.inf)
    priorities[[3, 700]] = 0
    indices, _ = kernels.priority_sample(priorities, 1_000)
    assert set(indices.tolist()) == {3, 700}


# Exactness.


@pytest.mark.parametrize("tokens", [5_793, 8_191, 100_001, 94_906_265])
def test_costs_stay_exact_where_single_precision_ends(tokens: int) -> None:
    assert kernels.attention_bandwidth_cost(tokens) == tokens * (tokens + 1) // 2
    assert kernels.effective_bandwidth_cost(tokens, tokens - 1) == tokens
    [batch] = kernels.effective_bandwidth_cost_batch([tokens], [tokens - 1])
    assert batch == tokens


def test_the_longest_sequence_costs_the_nearest_number() -> None:
    tokens = 2**63 - 1
    exact = Fraction(tokens * (tokens + 1), 2)
    assert kernels.attention_bandwidth_cost(tokens) == float(exact)


def test_single_precision_plans_are_summed_in_double() -> None:
    plan = np.ones(1_025, np.float32)
    plan[0] = 65_536
    assert kernels.plan_surprise(plan, np.zeros(1_025), 0.0) == 65_536.0**2 + 1_024


def test_the_more_precise_of_two_plans_is_not_rounded() -> None:
    assert kernels.temporal_kl(np.float32([1.0]), np.array([1.0 + 1e-9]), 0.5) > 0


# The average plan.


def test_there_is_no_average_before_the_first_plan() -> None:
    tracker = kernels.EMAPlanTracker(3)
    assert (tracker.initialized, tracker.count, tracker.dim, tracker.decay) == (False, 0, 3, 0.99)
    with pytest.raises(ArgumentError, match="before the first"):
        tracker.get_ema()


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 4), (1, 1, 3), ()])
def test_a_plan_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    tracker = kernels.EMAPlanTracker(3)
    tracker.update([1.0, 2.0, 3.0])
    with pytest.raises(ArgumentError, match="`plan` has shape"):
        tracker.update(np.zeros(shape))
    assert (tracker.count, tracker.get_ema().tolist()) == (1, [1, 2, 3])


def test_a_plan_that_is_not_finite_is_refused_with_all_of_its_batch() -> None:
    tracker = kernels.EMAPlanTracker(2)
    with pytest.raises(ArgumentError, match="element 3"):
        tracker.update([[1.0, 2.0], [3.0, np.nan]])
    assert not tracker.initialized


def test_the_average_is_a_copy() -> None:
    tracker = kernels.EMAPlanTracker(2)
    tracker.update([1.0, 2.0])
    tracker.get_ema()[:] = 9
    assert tracker.get_ema().tolist() == [1, 2]


def test_a_tracker_goes_on_from_its_state() -> None:
    tracker = kernels.EMAPlanTracker(4, 0.9)
    rng = np.random.default_rng(14)
    tracker.update(rng.normal(size=(5, 4)))
    other = kernels.EMAPlanTracker(4)
    other.load_state_dict(tracker.state_dict())
    copy, plan = pickle.loads(pickle.dumps(tracker)), rng.normal(size=4)
    for each in (tracker, other, copy):
        each.update(plan)
    assert tracker.get_ema().tobytes() == other.get_ema().tobytes() == copy.get_ema().tobytes()
    assert repr(copy) == "EMAPlanTracker(dim=4, decay=0.9, count=6)"
    tracker.reset()
    assert not tracker.initialized


def test_a_state_of_another_tracker_is_refused() -> None:
    state = kernels.EMAPlanTracker(3).state_dict()
    tracker = kernels.EMAPlanTracker(2)
    with pytest.raises(ArgumentError, match="has shape"):
        tracker.load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"has no .ema."):
        tracker.load_state_dict({"decay": 0.5, "count": 1})
    with pytest.raises(ArgumentError, match="no tracker can have"):
        tracker.load_state_dict({"decay": 1.5, "count": 1, "ema": [0.0, 0.0]})


def test_threads_share_a_tracker() -> None:
    tracker = kernels.EMAPlanTracker(64)
    plans = np.ones((500, 64))
    threads = [threading.Thread(target=tracker.update, args=(plans,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tracker.count, tracker.get_ema().tolist()) == (4_000, [1.0] * 64)


# Prefixes.


def test_a_repeated_sequence_reuses_all_but_its_last_step() -> None:
    assert kernels.prefix_match([10, 20, 30], [(30, 7)]) == (7, 2)
    assert kernels.prefix_match([10], [(10, 7)]) == (-1, 0)


def test_equal_states_have_one_hash_in_every_precision() -> None:
    numbers = [0.5, -0.0, 3.0]
    hashes = {
        kernels.state_hash(numbers),
        kernels.state_hash(np.float16(numbers)),
        kernels.state_hash(np.array([[0.5], [0.0], [3.0]])),
        kernels.state_hash(np.array([0.5, 9, 0.0, 9, 3.0])[::2]),
    }
    assert len(hashes) == 1
    assert kernels.state_hash([1.0]) != kernels.state_hash([1.0 + 1e-12])


def test_hashes_may_use_all_64_bits() -> None:
    top = 2**64 - 1
    assert kernels.prefix_match([top, 1], [(top, 2)]) == (2, 1)
    assert kernels.prefix_match(np.array([top, 1], np.uint64), [(top, 2)]) == (2, 1)


# What is refused.

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "dim": (lambda: kernels.EMAPlanTracker(0), ArgumentError, "`dim` must be from 1"),
    "decay": (lambda: kernels.EMAPlanTracker(2, 1.1), ArgumentError, "`decay` must be from 0"),
    "dims of a plan": (
        lambda: kernels.plan_surprise([1.0, 2.0], [1.0], 0.0),
        ArgumentError,
        "`ema_plan` has shape",
    ),
    "axes of plans": (
        lambda: kernels.plan_surprise_batch([1.0], [1.0], [0.0]),
        ArgumentError,
        r"shape \(n, dim\)",
    ),
    "rewards of plans": (
        lambda: kernels.plan_surprise_batch([[1.0]], [1.0], [0.0, 1.0]),
        ArgumentError,
        "`rewards` has shape",
    ),
    "variance": (lambda: kernels.temporal_kl([1.0], [1.0], 0.0), ArgumentError, "sigma_squared"),
    "dims of neighbours": (
        lambda: kernels.temporal_kl([1.0], [1.0, 2.0], 1.0),
        ArgumentError,
        "`prev` has shape",
    ),
    "length": (lambda: kernels.attention_bandwidth_cost(-1), ArgumentError, "at least 0, got -1"),
    "lengths": (
        lambda: kernels.attention_bandwidth_cost_batch([3, -1]),
        ArgumentError,
        "`seq_lengths` must be at least 0, but element 1",
    ),
    "parts of tokens": (
        lambda: kernels.attention_bandwidth_cost_batch([1.5]),
        DtypeError,
        "whole numbers",
    ),
    "shapes of lengths": (
        lambda: kernels.effective_bandwidth_cost_batch([3, 4], [1]),
        ArgumentError,
        "`reuse_lengths` has shape",
    ),
    "scale": (lambda: kernels.attention_bandwidth_cost(1, math.nan), ArgumentError, "`scale`"),
    "costs": (
        lambda: kernels.bandwidth_aware_priorities([1.0], [-1.0], [0.0]),
        ArgumentError,
        "`bandwidth_costs` must be at least 0",
    ),
    "rewards": (
        lambda: kernels.schedule_priorities([math.inf], [0.0]),
        ArgumentError,
        "`rewards` must be finite",
    ),
    "epsilon": (lambda: kernels.schedule_priorities([1.0], [0.0], 0.0), ArgumentError, "`epsilon`"),
    "spent": (lambda: kernels.bandwidth_efficiency(1.0, -1.0, 0.0), ArgumentError, "rollout_cost"),
    "hashes": (lambda: kernels.prefix_match([-1], []), DtypeError, "`sequence_hashes`"),
    "entries": (lambda: kernels.prefix_match([1], [1]), DtypeError, "`cache_entries`"),
    "shortest": (lambda: kernels.prefix_match([1], [], 0), ArgumentError, "`min_prefix_len`"),
    "priority": (
        lambda: kernels.priority_sample([0.0, math.nan], 1),
        ArgumentError,
        "got NaN at 1",
    ),
    "nothing": (
        lambda: kernels.priority_sample([-math.inf], 1),
        ArgumentError,
        "nothing above minus infinity",
    ),
    "temperature": (lambda: kernels.priority_sample([0.0], 1, 0.0), ArgumentError, "`temperature`"),
    "beta": (
        lambda: kernels.priority_sample([0.0], 1, 1.0, -1.0),
        ArgumentError,
        "`importance_beta`",
    ),
    "seed": (lambda: kernels.priority_sample([0.0], 1, seed=-1), ArgumentError, "`seed`"),
    "size": (lambda: kernels.priority_sample([0.0], -1), ArgumentError, "`sample_size`"),
    "axes": (lambda: kernels.priority_sample([[0.0]], 1), ArgumentError, "one axis"),
    "text": (lambda: kernels.state_hash("text"), DtypeError, "real numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_a_reason(name: str) -> None:
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call()


# Threads and frameworks.


def test_large_inputs_leave_the_gil_to_others() -> None:
    priorities = np.zeros(4_000_000)
    done, counted = threading.Event(), 0

    def sample() -> None:
        kernels.priority_sample(priorities, 256)
        done.set()

    thread = threading.Thread(target=sample)
    thread.start()
    while not done.is_set():
        counted += 1
        time.sleep(0)
    thread.join()
    # Held, it would be let go once or twice: when the call begins and when it ends.
    assert counted > 10


def test_kernels_and_replay_need_no_framework(run_script: Any) -> None:
    done = run_script(
        "import sys, echoic.agents.bandwidth\n"
        "from echoic.agents import PrioritizedReplayBuffer, ReplayConfig\n"
        "PrioritizedReplayBuffer(ReplayConfig()).sample_batch(1)\n"
        "from echoic.agents.kernels import kernels_available\n"
        "heavy = {'torch', 'transformers', 'gymnasium'}\n"
        "print(kernels_available(), sorted(heavy & set(sys.modules)))"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True []\n", "")
