"""The replay examples learn, keep the ratio that they state, and compute what they say.

No test here looks at a speed.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import echoic
import numpy as np
import pytest
import tiers
from echoic import selectors

from examples import dqn, per, qlearning, r2d2, training
from examples.training import EPISODES, Options, Outcome, Scores, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = {"dqn": dqn.train, "per": per.train, "r2d2": r2d2.train}
# More than the first steps, which nobody learns from.
SHORT = Options(steps=2_000, target=1_000.0, seed=3)
# Random actions hold the pole for about 22 steps.
UNTRAINED = 22


# Whole runs.


class Run(NamedTuple):
    """What an example's training ended with, and how many keys its updates of priorities had."""

    name: str
    outcome: Outcome
    updated: list[int]


# Others are run by their command line, until they reach a lower target.
@pytest.fixture(scope="module", params=tiers.rotating(*EXAMPLES))
def run(request: pytest.FixtureRequest) -> Run:
    """Train an example, once for all that is asserted of its run."""
    update = echoic.Table.update_priorities
    updated: list[int] = []

    def count(table: echoic.Table, keys: Any, priorities: Any) -> int:
        there = update(table, keys, priorities)
        assert there == len(keys)
        updated.append(there)
        return there

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(echoic.Table, "update_priorities", count)
        outcome = EXAMPLES[request.param](Options(steps=25_000, target=4 * UNTRAINED))
    return Run(request.param, outcome, updated)


def test_learned_policy_is_four_times_as_good_as_a_random_one(run: Run) -> None:
    assert run.outcome.reached
    assert np.mean(run.outcome.scores.returns[:20]) < 2 * UNTRAINED
    assert np.mean(run.outcome.scores.returns[-EPISODES:]) >= 4 * UNTRAINED


def test_samples_keep_their_ratio_to_inserts(run: Run) -> None:
    table = run.outcome.table
    assert table.samples > 0
    lead = table.inserts * table.samples_per_insert - table.samples
    assert table.min_diff <= lead <= table.max_diff


def test_every_batch_is_learned_from(run: Run) -> None:
    size = sys.modules[f"examples.{run.name}"].BATCH
    assert run.outcome.table.samples == run.outcome.updates * size


def test_priority_of_everything_that_was_sampled_is_updated(run: Run) -> None:
    assert run.outcome.table.deletions == 0  # So that every key is still there.
    has_priorities = run.name != "dqn"
    assert len(run.updated) == has_priorities * run.outcome.updates
    assert sum(run.updated) == has_priorities * run.outcome.table.samples


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_seed_repeats_a_run_in_which_actor_and_learner_take_turns(name: str) -> None:
    def returns(options: Options) -> list[float]:
        return EXAMPLES[name](options).scores.returns

    first = returns(SHORT)
    assert returns(SHORT) == first
    assert returns(replace(SHORT, seed=4)) != first


def test_error_of_the_actor_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(training.Game):
        def step(self, action: int) -> Any:
            raise LookupError("no game today")

    monkeypatch.setattr(per, "Game", Broken)
    with pytest.raises(LookupError, match="no game today"):
        per.train(SHORT)


@pytest.mark.parametrize("name", EXAMPLES)
def test_command_line_says_whether_the_target_was_reached(name: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", f"examples.{name}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    reached = run("--quick")
    assert reached.returncode == 0, reached.stderr
    assert "Reached the target of 60:" in reached.stdout
    missed = run("--steps", "300", "--seed", "1")
    assert missed.returncode == 1, missed.stderr
    assert "Missed the target of" in missed.stdout
    assert "after 300 steps" in missed.stdout


# What goes into the tables.


def test_items_of_several_steps_reach_to_the_end_of_their_episode() -> None:
    gamma = qlearning.DISCOUNT
    steps = per.NSteps()
    items = []
    for t in range(4):
        here, there = np.full(4, t), np.full(4, t + 1)
        items += steps.add(here, t % 2, Step(1.0 + t, there, fell=t == 3, over=t == 3))
    assert [item["obs"][0] for item in items] == [0, 1, 2, 3]
    assert [item["action"] for item in items] == [0, 1, 0, 1]
    assert [item["next_obs"][0] for item in items] == [3, 4, 4, 4]
    assert [item["reward"] for item in items] == pytest.approx(
        [1 + 2 * gamma + 3 * gamma**2, 2 + 3 * gamma + 4 * gamma**2, 3 + 4 * gamma, 4]
    )
    assert [item["discount"] for item in items] == pytest.approx([gamma**3, 0, 0, 0])


def test_item_that_a_time_limit_cut_short_still_expects_something() -> None:
    obs = np.zeros(4)
    *_, last = per.NSteps().add(obs, 0, Step(1.0, obs, fell=False, over=True))
    assert last["discount"] == pytest.approx(qlearning.DISCOUNT)


def played_sequences(steps: int) -> tuple[r2d2.Learner, dict[str, NDArray[Any]]]:
    """Play without learning; return all sequences, the oldest first."""
    learner = r2d2.Learner(np.random.default_rng(5))
    table = echoic.Table("sequences", sampler=selectors.Epoch(), capacity=1_000, seed=1)
    with echoic.Server(table) as server:
        client = echoic.connect(server)
        with client.trajectory_writer(num_keep_alive_refs=r2d2.LENGTH) as writer:
            actor = r2d2.Actor(writer, learner, seed=7)
            for _ in range(steps):
                actor.step(epsilon=0.5, priority=1.0)
            writer.flush()
            actor.game.close()
        batch = client.table("sequences").sample(len(table))
    order = np.argsort(batch.keys)
    assert len(set(batch.keys.tolist())) == len(table)
    return learner, {name: leaf[order] for name, leaf in batch.data.items()}


def test_sequences_overlap_and_hold_the_state_that_the_network_reaches() -> None:
    learner, data = played_sequences(600)
    assert data["inputs"].shape[1:] == (r2d2.LENGTH, r2d2.INPUTS)
    assert data["state"].shape[1:] == (r2d2.HIDDEN,)
    time_first = data["inputs"].swapaxes(0, 1)
    states = learner.network.states(learner.params, time_first, data["state"])
    follow = 0
    for i in range(len(states[0]) - 1):
        if not data["state"][i + 1].any():
            continue  # An episode begins there.
        follow += 1
        for name in ("inputs", "action", "reward", "real"):
            later, earlier = data[name][i + 1][: r2d2.PERIOD], data[name][i][-r2d2.PERIOD :]
            np.testing.assert_array_equal(later, earlier)
        reached = states[r2d2.LENGTH - r2d2.PERIOD - 1, i]
        np.testing.assert_allclose(data["state"][i + 1], reached, atol=1e-5)
    assert follow > 3


def test_every_step_is_in_a_sequence_and_those_that_fill_one_are_not_real() -> None:
    _, data = played_sequences(600)
    real = data["real"]
    # Nothing real comes after what is not.
    assert (np.diff(real, axis=1) <= 0).all()
    assert not data["reward"][real == 0].any()
    ends = (data["discount"] == 0) & (real == 1)
    assert ends.sum() > 10
    # The action that was taken is what the network is told next.
    i, t = np.nonzero(real[:, :-1])
    assert (data["inputs"][i, t + 1, 2 + data["action"][i, t]] == 1).mean() > 0.9


# The mathematics.


def test_gradient_through_time_agrees_with_differences() -> None:
    rng = np.random.default_rng(2)
    network = r2d2.RecurrentQ()
    params = network.initial(rng).astype(np.float64)
    inputs = rng.normal(size=(5, 3, r2d2.INPUTS))
    before = rng.normal(size=(3, r2d2.HIDDEN))
    weights = rng.normal(size=(5, 3, r2d2.ACTIONS))

    def loss(at: NDArray[np.float64]) -> float:
        return float((network.values(at, network.states(at, inputs, before)) * weights).sum())

    states = network.states(params, inputs, before)
    gradient = network.backward(params, inputs, before, states, weights)
    # All directions would take a minute.
    for direction in rng.normal(size=(20, network.size)):
        slope = difference(loss, params, direction)
        assert gradient @ direction == pytest.approx(slope, abs=1e-5)


def difference(
    loss: Callable[[NDArray[np.float64]], float],
    params: NDArray[np.float64],
    direction: NDArray[np.float64],
) -> float:
    step = 1e-6 * direction
    return (loss(params + step) - loss(params - step)) / 2e-6


def test_temporal_difference_has_no_value_where_the_pole_fell() -> None:
    learner = qlearning.QLearner(np.random.default_rng(1))
    rng = np.random.default_rng(2)
    data = {
        "obs": rng.normal(size=(2, 4)),
        "action": np.array([0, 1]),
        "reward": np.array([1.0, 1.0]),
        "next_obs": rng.normal(size=(2, 4)),
        "discount": np.array([0.9, 0.0]),
    }
    values = learner.network.forward(learner.params, data["obs"])[-1]
    following = learner.network.forward(learner.params, data["next_obs"])[-1].max(axis=1)
    scaled = qlearning.REWARD_SCALE
    expected = [
        abs(values[0, 0] - scaled - 0.9 * following[0]),
        abs(values[1, 1] - scaled),
    ]
    assert learner.learn(data) == pytest.approx(expected)


def test_weight_of_zero_teaches_nothing() -> None:
    learner = qlearning.QLearner(np.random.default_rng(1))
    start = learner.params.copy()
    data = {name: np.stack([leaf, leaf]) for name, leaf in qlearning.TRANSITION.items()}
    data["reward"] += 1
    learner.learn(data, np.zeros(2))
    np.testing.assert_array_equal(learner.params, start)
    learner.learn(data, np.ones(2))
    assert (learner.params != start).any()


def test_evaluation_begins_each_episode_with_a_fresh_policy() -> None:
    made = 0

    def policy() -> Callable[[Any], int]:
        nonlocal made
        made += 1
        return lambda _: 1

    returns = training.evaluate(policy, seed=1)
    assert made == len(returns) == training.EVALUATION_EPISODES
    # Who always pushes to one side is soon done.
    assert all(8 <= each <= 11 for each in returns)
    assert training.evaluate(policy, seed=1) == returns


def test_score_needs_enough_episodes() -> None:
    scores = Scores(Options(steps=10_000, target=5.0))
    for _ in range(EPISODES - 1):
        scores.add(9.0, over=True)
    assert not scores.reached
    scores.add(1.0, over=False)
    scores.add(8.0, over=True)
    assert scores.reached
    assert scores.mean == 9


def test_limiter_of_the_table_is_the_one_that_its_module_states() -> None:
    for example in (dqn, per, r2d2):
        table = example.make_table(0)
        assert table.stats().samples_per_insert == example.SAMPLES_PER_INSERT
        assert table.stats().min_size == example.MIN_SIZE
        # A batch fits between the bounds, or nobody could move.
        assert table.stats().max_diff - table.stats().min_diff >= 2 * example.BATCH
