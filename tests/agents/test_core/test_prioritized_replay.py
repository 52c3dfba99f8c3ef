"""Surprise replay: what is kept, what is drawn, and how often."""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.agents.kernels import EMAPlanTracker
from echoic.agents.replay import (
    Experience,
    HotColdBuffer,
    PrioritizedReplayBuffer,
    ReplayConfig,
    SurpriseCalculator,
)
from echoic.errors import ArgumentError, EchoicError, ReplayError

if TYPE_CHECKING:
    from pathlib import Path

DIMS = 8


def config(**settings: Any) -> ReplayConfig:
    return ReplayConfig(**{"min_experiences": 1, "seed": 0, **settings})


def buffer_of(latent_dim: int = DIMS, **settings: Any) -> PrioritizedReplayBuffer:
    return PrioritizedReplayBuffer(config(**settings), latent_dim)


def plans_of(rng: np.random.Generator, rows: int, dims: int = DIMS) -> np.ndarray[Any, Any]:
    """Plans as a layer norm leaves them: mean 0 and variance 1 over their dimensions."""
    plans = rng.normal(size=(rows, dims))
    plans -= plans.mean(-1, keepdims=True)
    return (plans / plans.std(-1, keepdims=True)).astype(np.float32)


def fill(
    buffer: PrioritizedReplayBuffer, rows: int, seed: int = 0, rewards: Any = None
) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    states = np.arange(rows, dtype=np.float32)[:, None] * [1.0, -1.0]
    if rewards is None:
        rewards = rng.normal(size=rows)
    return buffer.add_batch(
        states,
        plans_of(rng, rows, buffer.latent_dim),
        rng.integers(0, 5, rows),
        rewards,
        states + 1,
        np.zeros(rows, bool),
    )


def add(buffer: PrioritizedReplayBuffer, reward: float, plan: Any = None, **more: Any) -> int:
    plan = np.zeros(buffer.latent_dim) if plan is None else plan
    return buffer.add_experience([0.0], plan, 0, reward, [0.0], False, **more)


def rewards_in(buffer: PrioritizedReplayBuffer) -> list[float]:
    batch = buffer.sample_columns(2000, hot_ratio=0.5)
    return sorted({float(reward) for reward in batch["reward"]})


# Names, fields and defaults.


@pytest.mark.parametrize(
    "settings",
    [
        {"hot_buffer_size": 0},
        {"hot_buffer_size": 1.5},
        {"temperature": 0.0},
        {"temperature": math.nan},
        {"surprise_weight": -1.0},
        {"ema_decay": 1.0},
        {"hot_sample_ratio": 1.1},
        {"importance_sampling_beta": -0.1},
        {"score_scale": "other"},
        {"sampling_mode": "other"},
        {"seed": -1},
        {"max_replay_age": -1},
        {"cold_path": "x", "cold_buffer_size": 0},
    ],
)
def test_a_setting_that_means_nothing_is_an_error_that_names_it(settings: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(settings))):
        ReplayConfig(**settings)


def test_an_experience_has_the_published_fields_first() -> None:
    names = [field.name for field in dataclasses.fields(Experience)]
    published = "state latent_plan action reward next_state done timestamp"
    assert names[:10] == [*published.split(), "surprise_score", "priority", "age"]
    assert Experience(0, 0, 0, 0.0, 0, False, 0).age == 0


def test_default_settings_take_no_memory_before_experiences_come() -> None:
    buffer = PrioritizedReplayBuffer(ReplayConfig())
    big = np.zeros(512)
    buffer.add_experience(big, big, 0, 0.0, big, False)
    assert buffer.get_buffer_statistics()["memory_bytes"] < 10_000


# Empty, and not yet full enough.


def test_an_empty_buffer_gives_two_empty_lists() -> None:
    replay_buffer = PrioritizedReplayBuffer(config=ReplayConfig())
    experiences, weights = replay_buffer.sample_batch(batch_size=256, temperature=1.0)
    assert (experiences, weights) == ([], [])
    assert HotColdBuffer(ReplayConfig()).sample_experiences(3) == ([], [])


def test_too_few_experiences_are_not_drawn_and_it_says_so() -> None:
    buffer = buffer_of(min_experiences=3)
    add(buffer, 1.0)
    add(buffer, 2.0)
    with pytest.warns(UserWarning, match="has 2 of min_experiences=3"):
        assert buffer.sample_batch(2) == ([], [])
    with pytest.raises(ReplayError, match="has 2 of min_experiences=3"):
        buffer.sample_columns(2)
    add(buffer, 3.0)
    assert len(buffer.sample_batch(2)[0]) == 2


# What is kept.


def test_what_was_added_comes_back() -> None:
    buffer = buffer_of(latent_dim=2)
    known = {"log_prob": -0.5, "value": 2.5, "episode_id": 7, "policy_version": 3}
    index = buffer.add_experience(
        np.array([1.0, 2.0]), [3.0, 4.0], np.int64(2), -1.5, np.array([5.0, 6.0]), True, **known
    )
    ([one], [weight]) = buffer.sample_batch(1)
    assert one.state.tolist() == [1.0, 2.0]
    assert one.latent_plan.tolist() == [3.0, 4.0]
    assert one.next_state.tolist() == [5.0, 6.0]
    assert (one.action, one.reward, one.done, one.timestamp) == (2, -1.5, True, 0)
    assert (one.log_prob, one.value, one.episode_id, one.policy_version) == (-0.5, 2.5, 7, 3)
    assert (one.index, one.age, weight) == (index, 0, 1.0)


def test_what_nobody_told_is_marked_as_unknown() -> None:
    buffer = buffer_of()
    add(buffer, 0.0)
    [one] = buffer.sample_batch(1)[0]
    assert math.isnan(one.log_prob)
    assert math.isnan(one.value)
    assert (one.episode_id, one.policy_version) == (-1, -1)


def test_threads_that_add_the_first_experiences_lose_none() -> None:
    for _ in range(20):
        buffer, ready = buffer_of(), threading.Barrier(4)

        def first(buffer: PrioritizedReplayBuffer = buffer, ready: Any = ready) -> None:
            ready.wait()
            fill(buffer, 3)

        threads = [threading.Thread(target=first) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(buffer) == 12


def test_a_refused_first_experience_does_not_say_what_others_look_like(tmp_path: Path) -> None:
    buffer = buffer_of(cold_path=tmp_path / "cold")
    with pytest.raises(EchoicError):
        add(buffer, math.nan)
    assert buffer.surprise_calculator.get_statistics()["ema_count"] == 0
    # Other shapes, and the file is not in the way.
    fill(buffer, 3)
    assert len(buffer) == 3


def test_a_batch_is_added_as_one_by_one() -> None:
    rng = np.random.default_rng(1)
    plans = plans_of(rng, 300)
    states, rewards = rng.normal(size=(300, 3)), rng.normal(size=300)
    many, single = buffer_of(), buffer_of()
    done = np.zeros(300, bool)
    many.add_batch(states, plans, np.arange(300), rewards, states, done)
    for at in range(300):
        single.add_experience(states[at], plans[at], at, rewards[at], states[at], False)
    one, other = many.sample_columns(64), single.sample_columns(64)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


def test_tensors_of_torch_are_taken() -> None:
    torch = pytest.importorskip("torch")
    buffer = buffer_of(latent_dim=2)
    plan = torch.ones(2, requires_grad=True)
    buffer.add_experience(
        torch.ones(3), plan, torch.tensor(1), torch.tensor(0.5), torch.ones(3), False
    )
    [one] = buffer.sample_batch(1)[0]
    assert (one.state.tolist(), one.action, one.reward) == ([1.0] * 3, 1, 0.5)


@pytest.mark.parametrize("scale", ["zscore", "mean", "sum"])
def test_the_lowest_goes_when_there_are_too_many_and_not_the_highest(scale: str) -> None:
    buffer = buffer_of(hot_buffer_size=3, score_scale=scale, score_clip=0.001)
    for reward in (1.0, 5.0, 2.0, 3.0):
        add(buffer, reward)
    assert rewards_in(buffer) == [2.0, 3.0, 5.0]
    assert buffer.get_buffer_statistics()["evicted"] == 1


def test_of_equal_scores_the_oldest_goes() -> None:
    buffer = buffer_of(hot_buffer_size=3, surprise_weight=0.0, reward_weight=0.0)
    for reward in range(5):
        add(buffer, float(reward))
    assert rewards_in(buffer) == [2.0, 3.0, 4.0]


def test_the_total_is_kept_by_letting_the_lowest_of_both_strata_go() -> None:
    buffer = buffer_of(max_experiences=3, age_threshold=0, score_clip=0.001)
    for reward in (4.0, 1.0):
        add(buffer, reward)
    buffer.update_experience_ages()
    for reward in (3.0, 2.0):
        add(buffer, reward)
    assert rewards_in(buffer) == [2.0, 3.0, 4.0]


def test_eviction_is_that_of_a_sorted_list() -> None:
    buffer = buffer_of(hot_buffer_size=50, cold_buffer_size=30, age_threshold=3, score_clip=0.001)
    rng = np.random.default_rng(3)
    hot: list[tuple[float, int, int]] = []
    cold: list[tuple[float, int, int]] = []
    for moment in range(600):
        reward = float(np.float32(rng.integers(0, 40)))
        add(buffer, reward)
        hot.append((reward, moment, moment // 20))
        if len(hot) > 50:
            hot.remove(min(hot))
        if moment % 20 == 19:
            buffer.update_experience_ages()
            now = moment // 20 + 1
            for one in [one for one in hot if now - one[2] > 3]:
                hot.remove(one)
                cold.append(one)
                if len(cold) > 30:
                    cold.remove(min(cold))
    stats = buffer.get_buffer_statistics()
    assert (stats["hot_size"], stats["cold_size"]) == (len(hot), len(cold))
    batch = buffer.sample_columns(20_000, hot_ratio=0.5)
    found = {side: set(batch["timestamp"][batch["hot"] == side].tolist()) for side in (True, False)}
    assert found[True] == {moment for _, moment, _ in hot}
    assert found[False] == {moment for _, moment, _ in cold}


# Ages.


def test_an_experience_is_hot_up_to_the_threshold_and_gone_behind_the_last_age() -> None:
    buffer = buffer_of(age_threshold=2, max_replay_age=4)
    add(buffer, 1.0)
    sizes = []
    for _ in range(5):
        buffer.update_experience_ages()
        stats = buffer.get_buffer_statistics()
        sizes.append((stats["hot_size"], stats["cold_size"]))
    assert sizes == [(1, 0), (1, 0), (0, 1), (0, 1), (0, 0)]


def test_what_may_not_get_cold_is_dropped_while_it_is_hot() -> None:
    buffer = buffer_of(max_replay_age=1)
    add(buffer, 1.0)
    assert buffer.update_experience_ages() == (0, 0, 1)
    assert buffer.update_experience_ages()[1] == 1
    assert len(buffer) == 0


def test_ages_are_those_of_updates() -> None:
    buffer = buffer_of(age_threshold=10)
    for reward in (1.0, 2.0, 3.0):
        add(buffer, reward)
        buffer.update_experience_ages(5)
    batch = buffer.sample_columns(300, hot_ratio=0.5)
    ages = dict(zip(batch["reward"].tolist(), batch["age"].tolist(), strict=True))
    assert ages == {1.0: 15, 2.0: 10, 3.0: 5}
    assert batch["hot"].tolist() == [age <= 10 for age in batch["age"].tolist()]


# Draws.


@pytest.mark.parametrize(("batch", "ratio", "hot"), [(10, 0.7, 7), (256, 0.7, 179), (90, 0.7, 63)])
def test_the_hot_share_of_a_batch_is_rounded_down(batch: int, ratio: float, hot: int) -> None:
    buffer = buffer_of(age_threshold=0)
    fill(buffer, 50)
    buffer.update_experience_ages()
    fill(buffer, 50)
    assert buffer.sample_columns(batch, hot_ratio=ratio)["hot"].sum() == hot


def test_an_empty_side_leaves_the_batch_to_the_other() -> None:
    buffer = buffer_of(age_threshold=0)
    fill(buffer, 50)
    assert buffer.sample_columns(10)["hot"].all()
    buffer.update_experience_ages()
    batch = buffer.sample_columns(10)
    assert not batch["hot"].any()
    assert batch["weight"].max() == 1.0


def naive_probabilities(
    scores: np.ndarray[Any, Any], hot: np.ndarray[Any, Any], batch: int, temperature: float
) -> np.ndarray[Any, Any]:
    """``n / B * softmax(z / T)`` of each experience, by the definition."""
    z = np.clip((scores - scores.mean()) / scores.std(), -3, 3)
    share = math.floor(batch * 0.7 + 1e-9) / batch
    result = np.zeros(len(scores))
    for side, part in ((hot, share), (~hot, 1 - share)):
        powers = np.exp((z[side] - z[side].max()) / temperature)
        result[side] = part * powers / powers.sum()
    return result


@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.01, 1e-4, 50.0])
def test_probabilities_and_weights_are_those_of_the_formulas(temperature: float) -> None:
    # Without surprise a score does not change, so that the test knows all of them.
    buffer = buffer_of(age_threshold=0, surprise_weight=0.0)
    rng = np.random.default_rng(5)
    rewards = rng.exponential(size=2000).astype(np.float32)
    fill(buffer, 1200, rewards=rewards[:1200])
    buffer.update_experience_ages()
    fill(buffer, 800, rewards=rewards[1200:])
    hot = np.arange(2000) >= 1200
    batch = buffer.sample_columns(100, temperature)
    expected = naive_probabilities(rewards.astype(np.float64), hot, 100, temperature)
    drawn = expected[batch["timestamp"]]
    np.testing.assert_allclose(batch["probability"], drawn, rtol=1e-9)
    weights = (2000 * drawn) ** -0.4
    np.testing.assert_allclose(batch["weight"], weights / weights.max(), rtol=1e-6)


def test_draws_are_as_frequent_as_their_probabilities() -> None:
    buffer = buffer_of(surprise_weight=0.0)
    rewards = np.linspace(0, 4, 40, dtype=np.float32)
    fill(buffer, 40, rewards=rewards)
    batch = buffer.sample_columns(100_000)
    counts = np.bincount(batch["timestamp"], minlength=40)
    z = np.clip((rewards - rewards.mean()) / rewards.std(), -3, 3)
    expected = np.exp(z) / np.exp(z).sum() * 100_000
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 62.4, "the 99 % quantile of chi-square with 39 degrees of freedom"


def test_importance_weighted_means_are_unbiased() -> None:
    buffer = buffer_of(age_threshold=0, hot_buffer_size=5000)
    fill(buffer, 3000, seed=1)
    buffer.update_experience_ages()
    fill(buffer, 2000, seed=2)
    probe = np.sin(np.arange(5000.0))
    truth = probe.mean()
    estimates = []
    for _ in range(300):
        batch = buffer.sample_columns(100)
        estimates.append(float(np.mean(probe[batch["timestamp"]] / (5000 * batch["probability"]))))
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth) < 3 * error
    # With beta=1 weights are those factors, up to one that all of a batch share.
    batch = buffer.sample_columns(50_000, beta=1.0)
    values = probe[batch["timestamp"]]
    mean = float((batch["weight"] * values).sum() / batch["weight"].sum())
    assert abs(mean - truth) < 3 * 1.3 * values.std() / math.sqrt(50_000)


def test_one_seed_gives_the_same_draws() -> None:
    draws = []
    for _ in range(2):
        buffer = buffer_of(seed=42)
        fill(buffer, 500)
        draws.append([buffer.sample_columns(50)["index"].tolist() for _ in range(3)])
    assert draws[0] == draws[1]
    assert draws[0][0] != draws[0][1]
    other = buffer_of(seed=43)
    fill(other, 500)
    assert other.sample_columns(50)["index"].tolist() != draws[0][0]


# Draws do not collapse.


def test_draws_of_random_plans_of_512_dimensions_do_not_collapse() -> None:
    buffer = PrioritizedReplayBuffer(ReplayConfig(seed=0))
    fill(buffer, 3000, rewards=np.zeros(3000))
    sizes = buffer.effective_sample_size()
    assert sizes["hot"] >= 0.1 * 3000
    drawn = buffer.sample_columns(256)["index"]
    assert len(set(drawn.tolist())) > 150


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_draws_do_not_collapse_to_a_few_large_rewards(share: float) -> None:
    buffer = PrioritizedReplayBuffer(ReplayConfig(seed=0))
    rewards = np.where(np.random.default_rng(0).random(3000) < share, 1000.0, 0.0)
    fill(buffer, 3000, rewards=rewards)
    assert buffer.effective_sample_size()["hot"] >= 0.1 * 3000


def test_without_a_scale_draws_do_collapse() -> None:
    """The reason for the scale: this is the published formula, taken literally."""
    buffer = PrioritizedReplayBuffer(ReplayConfig(seed=0, score_scale="sum"))
    fill(buffer, 1000, rewards=np.zeros(1000))
    assert buffer.effective_sample_size()["hot"] < 60


def test_a_lower_temperature_prefers_higher_scores() -> None:
    buffer = buffer_of()
    fill(buffer, 1000)
    sizes = [buffer.effective_sample_size(t)["total"] for t in (2.0, 1.0, 0.5, 0.1)]
    assert sizes == sorted(sizes, reverse=True)
    means = [buffer.sample_columns(500, t)["priority"].mean() for t in (2.0, 0.5, 0.1)]
    assert means == sorted(means)


def test_a_temperature_for_one_draw_changes_no_other() -> None:
    buffer, other = buffer_of(surprise_weight=0.0), buffer_of(surprise_weight=0.0)
    for one in (buffer, other):
        fill(one, 500)
    buffer.sample_columns(10, 0.2)
    other.sample_columns(10)
    one, two = buffer.sample_columns(50), other.sample_columns(50)
    np.testing.assert_array_equal(one["probability"], two["probability"])


@pytest.mark.parametrize("settings", [{"score_scale": "sum"}, {"sampling_mode": "power"}])
def test_weights_are_numbers_at_the_smallest_temperature(settings: dict[str, Any]) -> None:
    buffer = buffer_of(**settings)
    for reward in (1.0, 1e30, 3.0):
        add(buffer, reward)
    batch = buffer.sample_columns(8, 5e-324)
    assert np.isfinite(batch["weight"]).all()
    assert np.isfinite(batch["probability"]).all()


@pytest.mark.parametrize("beta", [-0.1, 1.1, math.nan])
def test_an_exponent_of_weights_that_means_nothing_is_an_error(beta: float) -> None:
    buffer = buffer_of()
    fill(buffer, 4)
    with pytest.raises(ReplayError, match="beta"):
        buffer.sample_columns(2, beta=beta)


def test_powers_of_scores_are_drawn_in_power_mode() -> None:
    rewards = np.array([1.0, 16.0], np.float32)
    buffer = buffer_of(sampling_mode="power", priority_alpha=0.5, surprise_weight=0.0)
    fill(buffer, 2, rewards=rewards)
    batch = buffer.sample_columns(100)
    by_reward = dict(zip(batch["reward"].tolist(), batch["probability"].tolist(), strict=True))
    assert by_reward == pytest.approx({1.0: 0.2, 16.0: 0.8})


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_means_nothing_is_an_error(temperature: float) -> None:
    buffer = buffer_of()
    fill(buffer, 10)
    with pytest.raises(EchoicError, match="temperature"):
        buffer.sample_columns(1, temperature)


# Scores.


def test_the_published_score_of_a_plan() -> None:
    calculator = SurpriseCalculator(config(reward_weight=0.1, score_scale="sum"), 3)
    assert calculator.compute_surprise_score([1, 2, 3], 0.5) == pytest.approx(14.05, abs=1e-6)
    assert calculator.compute_surprise_score([1, 2, 3], -0.5) == pytest.approx(14.05, abs=1e-6)


def test_a_plan_is_scored_before_it_moves_the_mean() -> None:
    buffer = buffer_of(latent_dim=2, score_scale="sum", ema_decay=0.5)
    add(buffer, 0.0, [3.0, 4.0])
    np.testing.assert_array_equal(buffer.surprise_calculator.get_ema_plan(), [3.0, 4.0])
    add(buffer, 0.0, [3.0, 6.0])
    np.testing.assert_array_equal(buffer.surprise_calculator.get_ema_plan(), [3.0, 5.0])
    batch = buffer.sample_columns(200, 50.0)
    priorities = dict(zip(batch["timestamp"].tolist(), batch["priority"].tolist(), strict=True))
    assert priorities == {0: 25.0, 1: 4.0}, "by a mean of nothing, then by that of the first"


def test_scores_are_computed_anew_when_they_are_drawn_and_in_turns() -> None:
    buffer = buffer_of(latent_dim=1, score_scale="mean", refresh_per_update=0)
    add(buffer, 0.0, [10.0])
    for _ in range(2000):
        buffer.surprise_calculator.update_ema_plan([0.0])
    first = buffer.sample_columns(1)
    assert first["priority"][0] == 100.0
    assert first["surprise_score"][0] == pytest.approx(100.0, abs=0.01)
    buffer.surprise_calculator.update_ema_plan([10.0])
    second = buffer.sample_columns(1)
    assert second["priority"][0] == first["surprise_score"][0]
    assert second["surprise_score"][0] == pytest.approx(99.0**2 / 100 * 1.0, abs=0.1)

    turns = buffer_of(latent_dim=1, score_scale="mean", refresh_per_update=3)
    turns.add_batch(
        np.zeros((5, 1)), np.full((5, 1), 2.0), [0] * 5, [0.0] * 5, np.zeros((5, 1)), [False] * 5
    )
    assert [turns.update_experience_ages()[2] for _ in range(2)] == [3, 3]
    assert turns.get_buffer_statistics()["mean_score"] == 0.0


def test_given_priorities_are_drawn_by_and_stay() -> None:
    buffer = buffer_of(score_clip=10.0)
    indices = fill(buffer, 100)
    assert buffer.update_priorities(indices[:1], [1000.0]) == 1
    buffer.update_experience_ages()
    batch = buffer.sample_columns(500, 0.5)
    counts = np.unique(batch["index"], return_counts=True)
    assert counts[0][counts[1].argmax()] == indices[0]
    again = buffer.sample_columns(500, 0.5)
    assert set(again["priority"][again["index"] == indices[0]].tolist()) == {1000.0}
    experiences, _ = buffer.sample_batch(4)
    assert buffer.update_priorities(experiences, [1.0] * 4) == 4


def test_priorities_of_what_is_gone_hit_nobody() -> None:
    buffer = buffer_of(max_replay_age=0)
    old = add(buffer, 1.0)
    buffer.update_experience_ages()
    new = add(buffer, 2.0)
    assert old != new
    assert buffer.update_priorities([old, new], [9.0, 5.0]) == 1
    assert buffer.sample_columns(1)["priority"].tolist() == [5.0]


@pytest.mark.parametrize(("index", "priority"), [(99, 1.0), (-1, 1.0), (0, -1.0), (0, math.nan)])
def test_a_wrong_priority_changes_nothing(index: int, priority: float) -> None:
    buffer = buffer_of()
    own = add(buffer, 1.0)
    before = buffer.sample_columns(1)["surprise_score"].tolist()
    with pytest.raises(EchoicError):
        buffer.update_priorities([own, index], [3.0, priority])
    assert buffer.sample_columns(1)["priority"].tolist() == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_plans_and_rewards_that_are_no_numbers_are_refused(bad: float) -> None:
    buffer = buffer_of()
    add(buffer, 1.0)
    with pytest.raises(EchoicError, match="reward"):
        add(buffer, bad)
    with pytest.raises(EchoicError, match="latent_plan"):
        add(buffer, 0.0, np.full(DIMS, bad))
    assert len(buffer) == 1


def test_a_plan_of_another_size_is_refused_by_name() -> None:
    buffer = buffer_of()
    with pytest.raises(EchoicError, match="latent_plan"):
        add(buffer, 0.0, np.zeros(DIMS + 1))
    with pytest.raises(ArgumentError, match="`plan` has shape"):
        buffer.surprise_calculator.update_ema_plan(np.zeros(3))


def test_a_shared_mean_is_moved_by_one_part_only() -> None:
    tracker = EMAPlanTracker(DIMS, 0.99)
    shared = SurpriseCalculator(config(), DIMS, tracker=tracker)
    buffer = PrioritizedReplayBuffer(config(), DIMS, surprise_calculator=shared, update_ema=False)
    add(buffer, 0.0, np.ones(DIMS))
    assert shared.get_statistics()["ema_count"] == 0
    tracker.update(np.ones(DIMS))
    assert buffer.sample_columns(1)["surprise_score"].tolist() == [0.0]
    buffer.clear_buffer()
    assert tracker.count == 1, "it is not this buffer's to forget"
    with pytest.raises(ArgumentError, match=r"decay=0\.99"):
        SurpriseCalculator(config(), DIMS, tracker=EMAPlanTracker(DIMS, 0.5))


# Clear, save and load.


def test_a_cleared_buffer_keeps_its_dimensions() -> None:
    buffer = buffer_of()
    fill(buffer, 50)
    buffer.clear_buffer()
    assert (len(buffer), buffer.latent_dim) == (0, DIMS)
    assert buffer.sample_batch(3) == ([], [])
    np.testing.assert_array_equal(buffer.surprise_calculator.get_ema_plan(), np.zeros(DIMS))
    fill(buffer, 50)
    assert len(buffer.sample_batch(3)[0]) == 3


def same_future(one: PrioritizedReplayBuffer, other: PrioritizedReplayBuffer) -> None:
    for step in range(6):
        left, right = one.sample_columns(40), other.sample_columns(40)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], name)
        for buffer in (one, other):
            fill(buffer, 30, seed=step)
            buffer.update_experience_ages()
    assert one.surprise_calculator.get_ema_plan().tolist() == (
        other.surprise_calculator.get_ema_plan().tolist()
    )


@pytest.mark.parametrize("scale", ["zscore", "mean"])
@pytest.mark.parametrize("file", [False, True])
def test_a_loaded_buffer_does_what_the_other_would_have_done(
    tmp_path: Path, scale: str, file: bool
) -> None:
    settings: dict[str, Any] = {
        "score_scale": scale,
        "age_threshold": 2,
        "max_replay_age": 6,
        "hot_buffer_size": 100,
        "cold_buffer_size": 80,
        "refresh_per_update": 7,
    }
    first = {"cold_path": tmp_path / "one"} if file else {}
    second = {"cold_path": tmp_path / "two"} if file else {}
    one = buffer_of(**settings, **first)
    for step in range(8):
        fill(one, 40, seed=step + 50)
        indices = one.sample_columns(20)["index"]
        one.update_priorities(indices[:3], [1.0, 2.0, 3.0])
        one.update_experience_ages()
    one.save_buffer(tmp_path / "saved.npz")
    other = buffer_of(**{**settings, "seed": 99}, **second)
    if scale == "mean":
        fill(other, 500)
    other.load_buffer(tmp_path / "saved.npz")
    assert one.get_buffer_statistics().keys() == other.get_buffer_statistics().keys()
    same_future(one, other)


def test_an_empty_buffer_is_saved_and_loaded(tmp_path: Path) -> None:
    one = buffer_of()
    one.surprise_calculator.update_ema_plan(np.ones(DIMS))
    one.save_buffer(tmp_path / "empty.npz")
    other = buffer_of()
    other.load_buffer(tmp_path / "empty.npz")
    assert other.surprise_calculator.get_ema_plan().tolist() == [1.0] * DIMS


def test_an_empty_buffer_that_was_loaded_draws_as_the_other_will(tmp_path: Path) -> None:
    first = buffer_of(seed=None)
    first.save_buffer(tmp_path / "buffer.npz")
    fresh, used = buffer_of(seed=None), buffer_of(seed=None, cold_path=tmp_path / "cold")
    fill(used, 7)
    drawn = []
    for buffer in (first, fresh, used):
        if buffer is not first:
            buffer.load_buffer(tmp_path / "buffer.npz")
        assert len(buffer) == 0
        fill(buffer, 100)
        drawn.append(buffer.sample_columns(32)["index"].tolist())
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_file_that_is_refused_does_not_say_what_experiences_look_like(tmp_path: Path) -> None:
    full, small = buffer_of(), buffer_of(max_experiences=5)
    fill(full, 10)
    full.save_buffer(tmp_path / "buffer.npz")
    with pytest.raises(ReplayError):
        small.load_buffer(tmp_path / "buffer.npz")
    small.add_experience(np.zeros(3), np.zeros(DIMS), [1.0, 2.0], 0.0, np.zeros(3), False)
    assert len(small) == 1


@pytest.mark.parametrize("rows", [0, 10])
def test_a_mean_that_another_part_moves_is_not_loaded(tmp_path: Path, rows: int) -> None:
    first = buffer_of()
    if rows:
        fill(first, rows)
    first.save_buffer(tmp_path / "buffer.npz")
    shared = SurpriseCalculator(config(), DIMS)
    shared.update_ema_plan(np.ones((3, DIMS)))
    second = PrioritizedReplayBuffer(config(), DIMS, surprise_calculator=shared, update_ema=False)
    second.load_buffer(tmp_path / "buffer.npz")
    assert len(second) == rows
    assert shared.get_statistics()["ema_count"] == 3
    assert shared.get_ema_plan().tolist() == [1.0] * DIMS


@pytest.mark.parametrize("first", [np.int32(1), np.uint8(1), True, np.int8(0)])
def test_another_action_may_need_more_bits(first: Any) -> None:
    buffer = buffer_of()
    for action in (first, 2**40, -129):
        buffer.add_experience([0.0], np.zeros(DIMS), action, 0.0, [0.0], False)
    assert set(buffer.sample_columns(200)["action"].tolist()) == {int(first), 2**40, -129}


@pytest.mark.parametrize("name", ["state", "action", "next_state", "done", "episode_id"])
def test_a_value_that_does_not_fit_is_refused_by_name(name: str) -> None:
    buffer = buffer_of()
    given: dict[str, Any] = {"state": np.uint8([1, 2]), "latent_plan": np.zeros(DIMS), "action": 3}
    given |= {"reward": 1, "next_state": np.uint8([3, 4]), "done": 0, "episode_id": 5}
    buffer.add_experience(**given)
    buffer.add_experience(**{**given, "action": 2**40})
    wrong = {"state": [300, 0], "next_state": [0.5, 0.5], "action": 1.5, "done": "no"}
    with pytest.raises(EchoicError, match=name):
        buffer.add_experience(**{**given, name: wrong.get(name, 0.5)})
    assert len(buffer) == 2
    [one] = buffer.sample_batch(1)[0]
    assert (one.state.dtype, one.reward, one.done, one.episode_id) == (np.uint8, 1.0, False, 5)


def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "saved.npz"
    one = buffer_of()
    fill(one, 20)
    one.save_buffer(path)
    for settings, what in [
        ({"latent_dim": 3}, "'latent_dim': 8"),
        ({"score_scale": "mean"}, "score_scale"),
        ({"hot_buffer_size": 5}, "room"),
    ]:
        other = buffer_of(**settings)
        add(other, 7.0)
        if "latent_dim" not in settings and "score_scale" not in settings:
            other = buffer_of(**settings)
            fill(other, 5)
        before = len(other)
        with pytest.raises(ReplayError, match=what):
            other.load_buffer(path)
        assert len(other) == before
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ReplayError, match="can't be loaded"):
        one.load_buffer(path)
    with pytest.raises(FileNotFoundError):
        one.load_buffer(tmp_path / "none.npz")


# The cold side in a file.


def test_a_buffer_with_a_file_does_what_one_in_memory_does(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "age_threshold": 1,
        "max_replay_age": 12,
        "hot_buffer_size": 200,
        "cold_buffer_size": 300,
        "surprise_weight": 0.0,
    }
    memory = buffer_of(**settings)
    file = buffer_of(**settings, cold_path=tmp_path / "cold.bin")
    for step in range(60):
        for buffer in (memory, file):
            fill(buffer, 90, seed=step)
            buffer.update_experience_ages()
        one, other = memory.sample_columns(50), file.sample_columns(50)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], name)
    stats = file.get_buffer_statistics()
    assert stats["cold_size"] == 300
    assert stats["migrated"] > 3 * (2 * 300 + 1024), "the file was written over several times"
    assert (tmp_path / "cold.bin").exists()
    del file, buffer
    assert not (tmp_path / "cold.bin").exists()


def test_threads_save_load_clear_and_draw_at_once(tmp_path: Path) -> None:
    """None waits for another that waits for it."""
    buffer = buffer_of(seed=1)
    fill(buffer, 200)
    buffer.save_buffer(tmp_path / "first.npz")

    def saves() -> None:
        for _ in range(15):
            buffer.save_buffer(tmp_path / "buffer.npz")

    def loads() -> None:
        for _ in range(15):
            buffer.load_buffer(tmp_path / "first.npz")

    def others() -> None:
        for step in range(60):
            fill(buffer, 20, seed=step)
            buffer.update_experience_ages()
            buffer.clear_buffer()

    threads = [threading.Thread(target=one, daemon=True) for one in (saves, saves, loads, others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    buffer.load_buffer(tmp_path / "first.npz")
    assert len(buffer) == 200


def test_a_file_that_is_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cold.bin"
    path.write_bytes(b"somebody else's")
    with pytest.raises(EchoicError):
        add(buffer_of(cold_path=path), 0.0)
    assert path.read_bytes() == b"somebody else's"


# The strata by themselves.


def scored(score: float) -> Experience:
    return Experience(np.zeros(2), np.zeros(3), 0, 0.0, np.zeros(2), False, 0, priority=score)


def test_strata_take_scores_as_they_are_given() -> None:
    strata = HotColdBuffer(config(hot_buffer_size=3, age_threshold=1))
    for score in (1.0, 5.0, 2.0, 3.0):
        strata.add_experience(scored(score))
    experiences, weights = strata.sample_experiences(200, temperature=2.0)
    assert {one.priority for one in experiences} == {5.0, 2.0, 3.0}
    assert len(weights) == 200
    assert strata.update_priorities(experiences[:1], [4.0]) == 1
    assert strata.advance_ages(2) == (3, 0, 0)
    assert (strata.migrate_aged_experiences(), strata.evict_stale_experiences()) == (0, 0)
    stats = strata.get_statistics()
    assert (stats["hot_size"], stats["cold_size"], len(strata)) == (0, 3, 3)
