"""The tracker adds up what it is told, and the scheduler puts no one last for ever."""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from typing import Any

import numpy as np
import pytest
from echoic.agents.bandwidth import (
    BandwidthAwareScheduler,
    BandwidthConfig,
    BandwidthEfficiencyTracker,
)
from echoic.errors import ArgumentError, DtypeError

# Settings.


def test_fields_and_their_defaults() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(BandwidthConfig)}
    assert (
        fields.items()
        >= {
            "attention_scale": 1.0,
            "schedule_epsilon": 1e-6,
            "bandwidth_weight": 1.0,
            "queue_weight": 1.0,
            "history_size": 1000,
            "enable_bandwidth_scheduling": True,
        }.items()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_scale", -1.0),
        ("bandwidth_weight", math.nan),
        ("queue_weight", math.inf),
        ("schedule_epsilon", 0.0),
        ("history_size", 0),
        ("aging_bound", 0.0),
        ("aging_bound", math.nan),
    ],
)
def test_a_setting_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ArgumentError, match=name):
        BandwidthConfig(**{name: value})  # type: ignore[arg-type]


# The tracker.


def test_both_terms_of_the_efficiency_are_reported() -> None:
    tracker = BandwidthEfficiencyTracker()
    assert tracker.record_rollout_step(reward=0.5, seq_len=64, reuse_len=48) == 904
    tracker.record_learner_update(weighted_pg_loss=-0.02)
    metrics = tracker.snapshot()
    saved = f"\u03b7_bw = {metrics.eta_bw:.4f}, saved = {metrics.total_bandwidth_saved:.2f}"
    assert saved == "\u03b7_bw = 0.0006, saved = 1176.00"
    assert dataclasses.asdict(metrics) == {
        "total_reward": 0.5,
        "total_rollout_cost": 2080.0,
        "total_effective_rollout_cost": 904.0,
        "total_bandwidth_saved": 1176.0,
        "total_learner_cost": 0.02,
        "eta_bw": pytest.approx(5.530851e-4, rel=1e-6),
        "kv_reuse_rate": 0.75,
        "num_rollout_steps": 1,
        "num_updates": 1,
    }


def test_nothing_recorded_is_no_efficiency() -> None:
    metrics = BandwidthEfficiencyTracker().snapshot()
    assert (metrics.eta_bw, metrics.kv_reuse_rate, metrics.num_rollout_steps) == (0, 0, 0)
    assert BandwidthEfficiencyTracker().get_summary()["mean_effective_rollout_cost"] == 0


def test_the_tracker_is_the_sum_of_its_steps() -> None:
    rng = random.Random(1)
    config = BandwidthConfig(history_size=7, attention_scale=0.5)
    tracker = BandwidthEfficiencyTracker(config)
    steps = []
    for _ in range(50):
        tokens = rng.randrange(300)
        steps.append((rng.random(), tokens, rng.randint(0, tokens)))
        tracker.record_rollout_step(*steps[-1])
    summary = tracker.get_summary()
    effective = [sum(range(reused + 1, tokens + 1)) * 0.5 for _, tokens, reused in steps]
    assert summary["total_effective_rollout_cost"] == sum(effective)
    assert summary["mean_effective_rollout_cost"] == sum(effective) / 50
    assert summary["recent_effective_rollout_cost"] == sum(effective[-7:])
    assert summary["recent_reward"] == sum(reward for reward, _, _ in steps[-7:])
    tokens, reused = (sum(step[at] for step in steps) for at in (1, 2))
    assert summary["kv_reuse_rate"] == reused / tokens
    assert summary["recent_kv_reuse_rate"] == (
        sum(step[2] for step in steps[-7:]) / sum(step[1] for step in steps[-7:])
    )


def test_costs_are_exact_beside_a_large_total() -> None:
    tracker = BandwidthEfficiencyTracker()
    tracker.record_rollout_step(0.0, 94_906_265)
    for _ in range(100):
        tracker.record_rollout_step(0.0, 1)
    total = 94_906_265 * 94_906_266 // 2 + 100
    assert tracker.snapshot().total_effective_rollout_cost == total


def test_overrides_leave_the_callers_config_alone() -> None:
    config = BandwidthConfig()
    tracker = BandwidthEfficiencyTracker(config, history_size=3, attention_scale=2.0)
    assert config == BandwidthConfig()
    assert (tracker.config.history_size, tracker.config.attention_scale) == (3, 2.0)
    assert tracker.record_rollout_step(1.0, 3) == 12


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ((1.0, 4, 5), "from 0 to the 4 tokens"),
        ((1.0, 4, -1), "got -1"),
        ((1.0, -1, 0), "-1 tokens"),
        ((math.nan, 4, 0), "`reward` must be finite"),
    ],
)
def test_what_nobody_can_have_measured_is_refused(step: Any, text: str) -> None:
    tracker = BandwidthEfficiencyTracker()
    with pytest.raises(ArgumentError, match=text):
        tracker.record_rollout_step(*step)
    with pytest.raises(ArgumentError, match="weighted_pg_loss"):
        tracker.record_learner_update(math.inf)
    assert tracker.snapshot() == BandwidthEfficiencyTracker().snapshot()


def test_threads_lose_no_step() -> None:
    tracker = BandwidthEfficiencyTracker(history_size=10)

    def record() -> None:
        for _ in range(2_000):
            tracker.record_rollout_step(1.0, 4, 2)
            tracker.record_learner_update(0.5)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics = tracker.snapshot()
    assert (metrics.num_rollout_steps, metrics.num_updates) == (8_000, 8_000)
    assert metrics.total_effective_rollout_cost == 8_000 * 7
    assert (metrics.total_reward, metrics.total_learner_cost) == (8_000, 4_000)


# The scheduler.


def test_the_priority_has_the_known_value() -> None:
    scheduler = BandwidthAwareScheduler(BandwidthConfig(bandwidth_weight=1.0))
    got = scheduler.compute_priority(reward=1.0, seq_len=128, queue_time=0.5, reuse_len=96)
    assert got == pytest.approx(2.777392e-4, rel=1e-6)


def test_rewards_from_epsilon_on_count_as_they_are() -> None:
    scheduler = BandwidthAwareScheduler(BandwidthConfig(bandwidth_weight=2.0, queue_weight=3.0))
    for reward in (1e-6, 0.5, 7.0):
        got = scheduler.compute_priority(reward, 10, 0.25, 5)
        assert got == reward / (2 * 40 + 3 * 0.25 + 1e-6)


def test_one_request_and_a_batch_have_the_same_priorities() -> None:
    rng = np.random.default_rng(1)
    rewards = rng.normal(size=1_000) * rng.choice([1e-7, 1, 1e3], 1_000)
    lengths = rng.integers(0, 500, 1_000)
    reuse = rng.integers(0, 500, 1_000)
    waits = rng.exponential(2.5, 1_000)
    for enabled in (True, False):
        config = BandwidthConfig(
            attention_scale=0.1, queue_weight=3.0, enable_bandwidth_scheduling=enabled
        )
        scheduler = BandwidthAwareScheduler(config)
        batch = scheduler.compute_priorities_batch(rewards, lengths, waits, reuse)
        single = [
            scheduler.compute_priority(*request)
            for request in zip(rewards, lengths, waits, reuse, strict=True)
        ]
        assert batch.tolist() == single
        assert np.isinf(batch).any()


@pytest.mark.parametrize("reward", [-1e9, -5.0, -1.0, 0.0, 1e-9, 1.0, 5.0])
def test_of_equal_rewards_the_cheaper_goes_first(reward: float) -> None:
    scheduler = BandwidthAwareScheduler()
    cheap, dear = (scheduler.compute_priority(reward, length, 0.0) for length in (10, 1_000))
    assert cheap > dear > 0
    assert scheduler.order([reward] * 2, [1_000, 10], [0.0] * 2).tolist() == [1, 0]


def test_of_equal_costs_the_higher_reward_goes_first() -> None:
    scheduler = BandwidthAwareScheduler()
    rewards = [-1e9, -100.0, -1.0, -1e-3, 0.0, 1e-9, 1e-7, 1e-6, 2e-6, 0.5, 1.0, 1e9]
    priorities = scheduler.compute_priorities_batch(rewards, [50] * 12, [0.0] * 12)
    assert (np.diff(priorities) > 0).all()
    assert (priorities > 0).all()


def test_what_a_cache_has_goes_first() -> None:
    scheduler = BandwidthAwareScheduler()
    assert scheduler.order([1.0] * 3, [100] * 3, [0.0] * 3, [0, 90, 50]).tolist() == [1, 2, 0]
    off = BandwidthAwareScheduler(BandwidthConfig(enable_bandwidth_scheduling=False))
    assert off.order([1.0] * 3, [100] * 3, [0.0] * 3, [0, 90, 50]).tolist() == [0, 1, 2]
    got = off.compute_priority(1.0, 100, 0.5)
    assert got == pytest.approx(1 / 0.500001)


def test_a_thousand_equal_requests_stay_in_the_order_of_arrival() -> None:
    scheduler = BandwidthAwareScheduler()
    order = scheduler.order([0.0] * 1_000, [7] * 1_000, [0.0] * 1_000)
    assert order.tolist() == list(range(1_000))


def longest_wait(bound: float) -> float:
    """One dear request, and a better one that comes with every tick; one is served in a tick."""
    scheduler = BandwidthAwareScheduler(BandwidthConfig(aging_bound=bound))
    queue = [(0.0, 0.01, 4_000)]
    for tick in range(400):
        now = tick * 0.1
        queue += [(now, 1.0, 10), (now, 1.0, 10)] if tick < 60 else [(now, 1.0, 10)]
        since, rewards, lengths = zip(*queue, strict=True)
        waits = [now - then for then in since]
        first = int(scheduler.order(rewards, lengths, waits)[0])
        if queue.pop(first)[2] == 4_000:
            return waits[first]
    return math.inf


def test_no_request_starves() -> None:
    assert longest_wait(math.inf) == math.inf
    # It came first, so it is the first to be overdue.
    assert longest_wait(2.0) == pytest.approx(2.0, abs=0.11)


def test_overdue_requests_go_in_the_order_of_arrival() -> None:
    scheduler = BandwidthAwareScheduler(BandwidthConfig(aging_bound=5.0))
    order = scheduler.order([0.0, 9.0, 9.0, 1.0], [500, 1, 1, 1], [9.0, 7.0, 0.0, 5.0])
    assert order.tolist() == [0, 1, 3, 2]
    assert scheduler.compute_priority(0.0, 500, 5.0) == math.inf


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ((math.nan, 1, 0.0, 0), "finite"),
        ((1.0, -1, 0.0, 0), "at least 0"),
        ((1.0, 1, -1.0, 0), "at least 0"),
        ((1.0, 1, math.inf, 0), "finite"),
        ((1.0, 1, 0.0, -1), "at least 0"),
    ],
)
def test_a_request_that_can_not_be_is_refused(request_: Any, text: str) -> None:
    scheduler = BandwidthAwareScheduler()
    with pytest.raises(ArgumentError, match=text):
        scheduler.compute_priority(*request_)
    with pytest.raises(ArgumentError, match=text):
        scheduler.compute_priorities_batch(*([value] for value in request_))


def test_shapes_and_kinds_of_a_batch_must_fit() -> None:
    scheduler = BandwidthAwareScheduler()
    with pytest.raises(ArgumentError, match="has shape"):
        scheduler.compute_priorities_batch([1.0, 2.0], [1], [0.0, 0.0])
    with pytest.raises(DtypeError, match="whole numbers"):
        scheduler.compute_priorities_batch([1.0], [1.5], [0.0])
    assert scheduler.compute_priorities_batch([], [], []).shape == (0,)
    # Numbers of numpy in single precision cost no digits.
    single = scheduler.compute_priority(np.float32(1.0), np.int64(128), np.float32(0.5), 96)
    assert single == scheduler.compute_priority(1.0, 128, 0.5, 96)
    assert type(single) is float
