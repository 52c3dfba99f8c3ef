"""The examples for one process learn, repeat themselves with a seed, and compute what they say.

No test here looks at a speed.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiers
from echoic import buffers, collectors
from echoic.demo import ACTOR, CRITIC, split

from examples.local import dqn, images, offline, per_dqn, ppo
from examples.training import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
# Random actions hold the pole for about 22 steps.
UNTRAINED = 22
# Long enough for some batches, too short for much else.
SHORT = {
    "dqn": Options(steps=1_500, target=1_000.0, seed=3),
    "per_dqn": Options(steps=1_500, target=1_000.0, seed=3),
    "offline": Options(steps=20, target=1_000.0, seed=3),
    "images": Options(steps=2_500, target=1_000.0, seed=3),
}
TRAIN = {
    "dqn": dqn.train,
    "per_dqn": per_dqn.train,
    "offline": offline.train,
    "images": images.train,
    "ppo": ppo.train,
}


# Whole runs.


@pytest.mark.parametrize(
    ("name", "steps"), [("dqn", 20_000), ("per_dqn", 25_000), ("ppo", 200_000)]
)
def test_learned_policy_is_four_times_as_good_as_a_random_one(name: str, steps: int) -> None:
    result = TRAIN[name](Options(steps=steps, target=4 * UNTRAINED))
    assert result.reached
    assert np.mean(result.history[:20]) < 2 * UNTRAINED
    assert result.score >= 4 * UNTRAINED


@tiers.turn(0, of=2)
def test_offline_learner_is_better_than_its_data_and_a_clone_of_it() -> None:
    result = offline.train(Options(steps=offline.STEPS, target=offline.TARGET))
    of_data, of_clone, score = result.history
    assert score >= 1.3 * of_data
    assert score >= 1.3 * of_clone
    # The clone is one: it is neither much better nor much worse than the data.
    assert 0.6 < of_clone / of_data < 1.5


@tiers.turn(1, of=2)
def test_most_balls_are_caught_in_the_end_and_few_in_the_beginning() -> None:
    result = images.train(Options(steps=30_000, target=0.7))
    assert result.reached
    assert np.mean(result.history[:100]) < 0.5


@pytest.mark.parametrize("name", SHORT)
def test_seed_repeats_a_run(name: str) -> None:
    first = TRAIN[name](SHORT[name])
    again = TRAIN[name](SHORT[name])
    other = TRAIN[name](replace(SHORT[name], seed=4))
    assert again.history == first.history
    np.testing.assert_array_equal(again.params, first.params)
    assert (other.params != first.params).any()


@pytest.mark.parametrize(("name", "few"), [("dqn", "300"), ("ppo", "2000")])
def test_command_line_says_whether_the_target_was_reached(name: str, few: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", f"examples.local.{name}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    reached = run("--target", "40")
    assert reached.returncode == 0, reached.stderr
    assert "Reached the target of 40:" in reached.stdout
    missed = run("--steps", few, "--target", "400")
    assert missed.returncode == 1, missed.stderr
    assert "Missed the target of 400:" in missed.stdout


# What goes into the buffers and comes out.


def test_all_sampled_priorities_are_updated_and_beta_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[int] = []
    betas: list[float] = []

    class Counting(buffers.PrioritizedReplayBuffer):
        def sample(self, n: int, *, beta: float = 1.0, **options: Any) -> Any:
            betas.append(beta)
            return super().sample(n, beta=beta, **options)

        def update_priorities(self, keys: Any, priorities: Any) -> int:
            assert (priorities > 0).all()
            updates.append(super().update_priorities(keys, priorities))
            return updates[-1]

    monkeypatch.setattr(buffers, "PrioritizedReplayBuffer", Counting)
    per_dqn.train(SHORT["per_dqn"])
    assert set(updates) == {per_dqn.BATCH}
    assert betas == sorted(betas)
    assert per_dqn.FIRST_BETA <= betas[0] < betas[-1] < 1


def test_network_of_the_example_is_the_one_that_the_collector_plays_with() -> None:
    with collectors.CandleCollector(
        env_id="CartPole-v1", n_envs=3, obs_dim=4, n_actions=2, n_steps=20, hidden=64, seed=5
    ) as collector:
        flat = collector.get_weights()
        batch = collector.recv()
    params = ppo.to_ours(flat)
    np.testing.assert_array_equal(ppo.to_native(params), flat)
    actor, critic = split(params)
    obs = batch["observations"].reshape(-1, 4)
    values = CRITIC.forward(critic, obs)[-1][:, 0]
    np.testing.assert_allclose(values, batch["values"].reshape(-1), atol=1e-4)
    logits = ACTOR.forward(actor, obs)[-1]
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    chosen = log_probs[np.arange(len(obs)), batch["actions"].reshape(-1).astype(int)]
    np.testing.assert_allclose(chosen, batch["log_probs"].reshape(-1), atol=1e-4)


def test_dataset_is_normalised_and_half_of_its_actions_are_random() -> None:
    data = offline.make_dataset(1)
    batch = data.sample(4096)
    assert np.abs(batch["obs"].mean(axis=0)).max() < 0.1
    assert batch["obs"].std(axis=0) == pytest.approx(1, abs=0.1)
    stats = data.stats()
    plain = batch["obs"] * stats.obs_std + stats.obs_mean
    balancing = plain[:, 2] + plain[:, 3] > 0
    assert np.mean(batch["actions"] == balancing) == pytest.approx(0.75, abs=0.03)


def test_frames_come_back_from_memory_and_file_as_they_were(tmp_path: Path) -> None:
    game = images.Catch(1)
    stored: list[tuple[NDArray[np.uint8], float]] = []
    with buffers.MmapReplayBuffer(
        images.TRANSITION, 256, tmp_path / "frames.bin", hot_capacity=16, seed=1
    ) as buffer:
        for index in range(200):
            obs = game.obs
            _, down, image = game.step(index % 3)
            step = {"obs": obs, "actions": index % 3, "rewards": float(index), "terminated": down}
            buffer.add({**step, "next_obs": image})
            stored.append((obs, down))
        batch = buffer.sample(1000)
    assert batch["obs"].dtype == np.uint8
    numbers = batch["rewards"].astype(int)
    # Far more than are in memory.
    assert len(np.unique(numbers)) > 150
    for row, number in enumerate(numbers):
        np.testing.assert_array_equal(batch["obs"][row], stored[number][0])
        assert batch["terminated"][row] == stored[number][1]


# The game and the mathematics.


def test_ball_is_caught_by_who_follows_it_and_missed_by_who_flees() -> None:
    def play(towards: int) -> list[float]:
        game, rewards = images.Catch(2), []
        while len(rewards) < 50:
            ball = int(game.obs[:-1].max(axis=0).argmax())
            paddle = int(np.flatnonzero(game.obs[-1]).mean())
            reward, down, image = game.step(1 + towards * int(np.sign(ball - paddle)))
            assert image.shape == (images.ROWS, images.COLUMNS)
            if down:
                rewards.append(reward)
        return rewards

    assert np.mean(play(1)) > 0.9
    assert np.mean(play(-1)) < -0.9


def test_imitation_is_the_slope_of_the_likelihood() -> None:
    rng = np.random.default_rng(3)
    logits, actions, weight = rng.normal(size=(6, 2)), rng.integers(0, 2, 6), rng.random(6)

    def loss(at: NDArray[np.float64]) -> float:
        log_probs = at - np.log(np.exp(at).sum(axis=1, keepdims=True))
        return float(-(weight * log_probs[np.arange(6), actions]).sum())

    slope = offline.imitation(actions, weight)(logits)
    for direction in rng.normal(size=(5, 6, 2)):
        assert (slope * direction).sum() == pytest.approx(difference(loss, logits, direction))


def difference(
    loss: Callable[[NDArray[np.float64]], float],
    at: NDArray[np.float64],
    direction: NDArray[np.float64],
) -> float:
    step = 1e-6 * direction
    return (loss(at + step) - loss(at - step)) / 2e-6


def test_value_of_a_state_tends_to_the_better_of_its_actions() -> None:
    learner = offline.Learner(np.random.default_rng(1))
    rng = np.random.default_rng(2)
    for _ in range(600):
        actions = rng.integers(0, 2, 64)
        learner.learn(
            {
                "obs": np.ones((64, 4), np.float32),
                "next_obs": np.ones((64, 4), np.float32),
                "actions": actions,
                # Action 1 is worth 1, action 0 nothing, and that is the end.
                "rewards": actions / offline.REWARD_SCALE,
                "terminated": np.ones(64, bool),
            }
        )
    state = np.ones((1, 4), np.float32)
    # The expectile of 0 and 1, each of them as likely.
    assert learner.value(state)[0, 0] == pytest.approx(offline.EXPECTILE, abs=0.05)
    logits = learner.policy(state)[0]
    assert logits[1] - logits[0] > 3
