"""Stable-Baselines3's algorithms on our buffers, of this process and of a server."""

from __future__ import annotations

import subprocess
import sys
import warnings
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="no stable_baselines3 here")

import echoic
import gymnasium as gym
import torch
from echoic import Server, Table, selectors
from echoic.errors import ReplayError, SpecError
from echoic.integrations import stable_baselines3 as ours
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common import buffers as theirs
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her import HerReplayBuffer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Box(-2, 2, (2,), np.float32)


def fill(buffer: Any, count: int, n_envs: int, lengths: int = 5) -> None:
    """Add steps of episodes of ``lengths``; each second episode ends by its time limit."""
    for step in range(count):
        obs = np.full((n_envs, 3), step, np.float32) + 100 * np.arange(n_envs)[:, None]
        done = step % lengths == lengths - 1
        cut = done and step % (2 * lengths) != lengths - 1
        buffer.add(
            obs,
            obs + 1,
            np.full((n_envs, 2), step / count, np.float32),
            np.full(n_envs, 1.0 + step),
            np.full(n_envs, done),
            [{"TimeLimit.truncated": cut}] * n_envs,
        )


def both(name: str, size: int, n_envs: int, count: int, **settings: Any) -> tuple[Any, Any]:
    """Return our buffer and theirs with the same steps."""
    made = []
    for module in (ours, theirs):
        made.append(getattr(module, name)(size, BOX, ACTIONS, "cpu", n_envs, **settings))
        fill(made[-1], count, n_envs)
    return made[0], made[1]


def rows(sample: Any) -> dict[tuple[float, ...], tuple[Any, ...]]:
    """Return the rest of a sample by its observation, which says which step it is."""
    parts = [part.tolist() for part in sample if part is not None]
    return {tuple(row[0]): tuple(map(tuple, row[1:])) for row in zip(*parts, strict=True)}


@pytest.mark.parametrize(("size", "n_envs"), [(100, 1), (30, 1), (60, 4), (24, 4)])
@pytest.mark.parametrize("kind", ["ReplayBuffer", "NStepReplayBuffer"])
def test_samples_have_what_those_of_the_original_have(kind: str, size: int, n_envs: int) -> None:
    mine, own = both(kind, size, n_envs, 43)
    got, due = rows(mine.sample(4000)), rows(own.sample(4000))
    assert got.keys() == due.keys()
    for key, row in got.items():
        np.testing.assert_allclose(np.concatenate(row), np.concatenate(due[key]), rtol=1e-5)
    one, other = mine.sample(2), own.sample(2)
    for name in one._fields:
        part, expected = getattr(one, name), getattr(other, name)
        assert type(part) is type(expected), name
        if part is not None:
            assert (part.shape, part.dtype) == (expected.shape, expected.dtype), name


@pytest.mark.parametrize(("size", "n_envs"), [(100, 1), (60, 4), (24, 4)])
def test_arrays_are_copies_in_the_original_order(size: int, n_envs: int) -> None:
    mine, own = both("ReplayBuffer", size, n_envs, 43)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(own, name), name)
        assert np.asarray(getattr(mine, name)).dtype == getattr(own, name).dtype
    assert (mine.pos, mine.full, mine.size()) == (own.pos, own.full, own.size())
    assert isinstance(mine, theirs.ReplayBuffer)


def test_samples_are_normalized() -> None:
    env = VecNormalize(make_vec_env("Pendulum-v1"))
    env.reset()
    for _ in range(50):
        env.step(np.array([env.action_space.sample()]))
    settings = (1000, env.observation_space, env.action_space, "cpu")
    for kind in (ours.ReplayBuffer, ours.NStepReplayBuffer):
        buffer, plain = kind(*settings, seed=1), kind(*settings, seed=1)
        for each in (buffer, plain):
            each.add(np.ones((1, 3)), np.ones((1, 3)), np.ones(1), [-30.0], np.array([False]), [{}])
        sample, raw = buffer.sample(4, env), plain.sample(4)
        due = env.normalize_obs(raw.observations.numpy())
        np.testing.assert_allclose(sample.observations, due)
        np.testing.assert_allclose(sample.rewards, env.normalize_reward(raw.rewards.numpy()))


def test_dict_observations_are_dicts_of_tensors() -> None:
    space = spaces.Dict({"a": BOX, "b": spaces.Discrete(5)})
    buffer = ours.DictReplayBuffer(100, space, spaces.Discrete(3), "cpu", 2)
    obs = {"a": np.ones((2, 3), np.float32), "b": np.array([1, 4])}
    buffer.add(obs, obs, np.array([0, 2]), np.ones(2), np.array([False, True]), [{}, {}])
    sample = buffer.sample(16)
    assert sample.observations["a"].shape == (16, 3)
    assert set(sample.next_observations["b"][:, 0].tolist()) == {1, 4}
    assert buffer.observations["b"].shape == (50, 2, 1)


def test_priorities_choose_and_weigh() -> None:
    buffer = ours.PrioritizedReplayBuffer(100, BOX, ACTIONS, "cpu", alpha=1.0, beta=1.0)
    fill(buffer, 20, 1)
    sample = buffer.sample(1000)
    assert sample.weights.shape == (1000, 1)
    assert torch.all(sample.weights == 1)
    errors = torch.where(sample.observations[:, 0] == 7, 9.0, 1.0)
    assert buffer.update_priorities(sample.keys, errors.requires_grad_()) == 1000
    sample = buffer.sample(28_000)
    rare = sample.observations[:, 0] == 7
    assert 0.3 < rare.float().mean() < 0.34  # 9 of 28
    assert torch.allclose(sample.weights[rare], torch.tensor(1 / 9))
    assert torch.all(sample.weights[~rare] == 1)


def goal_buffers(
    kinds: Any, n_envs: int, episodes: int, size: int = 4000, **settings: Any
) -> tuple[Any, ...]:
    """Return buffers with the same steps, and their environment."""
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=True), n_envs)
    spaces_of = (env.observation_space, env.action_space)
    buffers = [kind(size, *spaces_of, env, "cpu", n_envs, **settings) for kind in kinds]
    rng = np.random.default_rng(3)
    obs = env.reset()
    for _ in range(4 * episodes):
        actions = rng.uniform(-1, 1, (n_envs, 4))
        new_obs, rewards, dones, infos = env.step(actions)
        next_obs = deepcopy(new_obs)
        for at in np.flatnonzero(dones):
            for key in next_obs:
                next_obs[key][at] = infos[at]["terminal_observation"][key]
        for buffer in buffers:
            buffer.add(obs, next_obs, actions, rewards, dones, infos)
        obs = new_obs
    return (*buffers, env)


def goal_buffer(n_envs: int, episodes: int, **settings: Any) -> tuple[Any, Any]:
    return goal_buffers([ours.HerReplayBuffer], n_envs, episodes, **settings)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize(("n_envs", "size"), [(1, 4000), (3, 4000), (1, 61), (3, 100)])
def test_goals_are_those_that_the_library_draws(strategy: str, n_envs: int, size: int) -> None:
    kinds = [ours.HerReplayBuffer, HerReplayBuffer]
    settings = {"goal_selection_strategy": strategy, "copy_info_dict": True}
    mine, own, env = goal_buffers(kinds, n_envs, 40, size, **settings)
    copied = deepcopy(mine)
    copied.set_env(env)
    batches = []
    for buffer in (mine, own, copied):
        np.random.seed(8)
        batches.append([buffer.sample(57), buffer.sample(57)])
    for got, due, again in zip(*batches, strict=True):
        for name in ("actions", "dones", "rewards"):
            assert torch.equal(getattr(got, name), getattr(due, name)), name
            assert torch.equal(getattr(again, name), getattr(due, name)), name
        for name in ("observations", "next_observations"):
            for key, value in getattr(due, name).items():
                assert torch.equal(getattr(got, name)[key], value), (name, key)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_replaced_and_rewards_computed_again(strategy: str) -> None:
    buffer, _ = goal_buffer(2, 50, goal_selection_strategy=strategy, n_sampled_goal=3)
    assert isinstance(buffer, HerReplayBuffer)
    sample = buffer.sample(2000)
    goals, achieved = (sample.next_observations[f"{name}_goal"] for name in ("desired", "achieved"))
    assert torch.equal(sample.observations["desired_goal"], goals)
    reached = (goals == achieved).all(1)
    # The reward of this environment is 0 at the goal and -1 elsewhere.
    assert torch.equal(sample.rewards[:, 0] == 0, reached)
    # The environment's own goal is all ones.
    other = (goals != 1).any(1).float().mean()
    assert 0.6 < other < 0.76


def test_infos_reach_compute_reward() -> None:
    buffer, env = goal_buffer(2, 0, copy_info_dict=True, n_sampled_goal=10**6)
    given: list[Any] = []

    def compute_reward(name: str, achieved: Any, desired: Any, infos: Any, indices: Any) -> Any:
        given.extend(zip(achieved[:, 0], (info["step"] for info in infos), strict=True))
        return [np.zeros(len(achieved))]

    env.env_method = compute_reward
    for step in range(30):
        obs = {key: np.full((2, 4), step % 2) for key in env.observation_space.spaces}
        infos = [{"step": step}, {"step": step}]
        buffer.add(obs, obs, np.zeros((2, 4)), np.zeros(2), np.array([step % 4 == 3] * 2), infos)
    buffer.sample(300)
    assert len(given) == 299
    assert all(step % 2 == first for first, step in given)


def test_the_last_trajectory_is_truncated_once() -> None:
    buffer, _ = goal_buffer(2, 0)
    with pytest.raises(ReplayError, match="an episode that has ended, got none"):
        buffer.sample(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.truncate_last_trajectory()
    obs = {key: np.ones((2, 4)) for key in buffer.observation_space.spaces}
    buffer.add(obs, obs, np.zeros((2, 4)), np.zeros(2), np.array([False, False]), [{}, {}])
    with pytest.warns(UserWarning, match="will be truncated"):
        buffer.truncate_last_trajectory()
    assert np.all(buffer.dones[buffer.pos - 1] == 1)
    assert np.all(buffer.timeouts[buffer.pos - 1] == 1)
    assert buffer.sample(5).rewards.shape == (5, 1)
    buffer.reset()
    assert buffer.size() == 0
    other = deepcopy(buffer)
    assert other.env is None
    with pytest.raises(ReplayError, match="call set_env first"):
        other.sample(1)


def test_settings_that_do_not_fit_are_refused() -> None:
    table = Table("replay", 0.0, capacity=10)
    with pytest.raises(SpecError, match="a field `actions` of float32"):
        ours.ReplayBuffer(10, BOX, ACTIONS, table=table)
    with pytest.raises(ReplayError, match="n_steps=3 needs the order of steps"):
        ours.NStepReplayBuffer(10, BOX, ACTIONS, table=table)
    with pytest.raises(SpecError, match="achieved_goal"):
        ours.HerReplayBuffer(10, spaces.Dict({"a": BOX}), ACTIONS, None)
    goals = spaces.Dict({"achieved_goal": BOX, "desired_goal": BOX})
    with pytest.raises(ReplayError, match="has no optimize_memory_usage"):
        ours.HerReplayBuffer(10, goals, ACTIONS, None, optimize_memory_usage=True)


RUNS = {
    "DQN": (DQN, "CartPole-v1", 6000, {"learning_starts": 500, "learning_rate": 2e-3}),
    "SAC": (SAC, "Pendulum-v1", 2500, {"learning_rate": 2e-3}),
    "TD3": (TD3, "Pendulum-v1", 2500, {"learning_rate": 2e-3, "learning_starts": 500}),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_learn_as_with_the_buffer_of_the_library(name: str) -> None:
    model_class, env, steps, settings = RUNS[name]
    if name == "DQN":
        settings = {**settings, "target_update_interval": 250, "exploration_fraction": 0.3}
    found: dict[Any, list[float]] = {}
    for kind in (ours.ReplayBuffer, theirs.ReplayBuffer):
        for seed in range(3):
            model = model_class(
                *("MlpPolicy", env),
                seed=seed,
                buffer_size=10_000,
                replay_buffer_class=kind,
                policy_kwargs={"net_arch": [64, 64]},
                train_freq=2,
                gradient_steps=2,
                **settings,
            )
            mean, _ = evaluate_policy(model.learn(steps), gym.make(env), 10, warn=False)
            found.setdefault(kind, []).append(float(mean))
    mine, own = (np.array(found[kind]) for kind in (ours.ReplayBuffer, theirs.ReplayBuffer))
    sys.stdout.write(f"{name}: {mine} with our buffer, {own} with the library's\n")
    # A random policy has about 22 in CartPole, and -1200 in Pendulum.
    least = 80 if name == "DQN" else -700
    assert np.median(mine) > least
    noise = max(np.ptp(own), np.ptp(mine), 40.0 if name == "DQN" else 150.0)
    assert abs(np.median(mine) - np.median(own)) <= noise, (mine, own)


def test_a_run_with_a_seed_can_be_repeated() -> None:
    weights = []
    for _ in range(2):
        model = DQN("MlpPolicy", "CartPole-v1", seed=3, replay_buffer_class=ours.ReplayBuffer)
        model.learn(300)
        weights.append(model.policy.state_dict()["q_net.q_net.0.weight"])
    assert torch.equal(*weights)


def test_a_saved_buffer_goes_on(tmp_path: Path) -> None:
    kinds = {"replay_buffer_class": ours.NStepReplayBuffer, "replay_buffer_kwargs": {"n_steps": 3}}
    env = make_vec_env("CartPole-v1", 2)
    model = DQN("MlpPolicy", env, buffer_size=500, optimize_memory_usage=True, seed=1, **kinds)
    model.learn(400)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    other = DQN.load(tmp_path / "model", env)
    other.load_replay_buffer(tmp_path / "replay")
    one, two = model.replay_buffer.sample(32), other.replay_buffer.sample(32)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert other.replay_buffer.pos == 200
    # The environments are reset, so running episodes end here.
    with pytest.warns(UserWarning, match="will be truncated"):
        other.learn(100)
    assert np.all(other.replay_buffer.dones[199] == 1)


WORKER = """
import sys
import echoic, gymnasium as gym
from numpy import float32
env = gym.make("Pendulum-v1")
obs, _ = env.reset(seed=1)
connection = echoic.connect(sys.argv[1])
table = connection.table("replay")
env.action_space.seed(1)
for step in range(1000):
    action = env.action_space.sample()
    next_obs, reward, terminated, truncated, _ = env.step(action)
    table.add(dict(obs=obs, actions=action, rewards=float32(reward), terminated=terminated,
                   truncated=truncated, next_obs=next_obs))
    obs = next_obs
    if terminated or truncated:
        obs, _ = env.reset()
connection.flush()
"""


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_learner_samples_what_another_process_collects(prioritized: bool, tmp_path: Path) -> None:
    env = gym.make("Pendulum-v1")
    obs, action = env.observation_space.sample(), env.action_space.sample()
    ends = {"terminated": False, "truncated": False}
    step = {"obs": obs, "actions": action, "rewards": np.float32(0), **ends, "next_obs": obs}
    sampler = selectors.Prioritized(0.6) if prioritized else selectors.Uniform()
    kind = ours.PrioritizedReplayBuffer if prioritized else ours.ReplayBuffer
    table = Table("replay", step, capacity=50_000, sampler=sampler)
    with Server(table, listen="tcp://127.0.0.1:0") as server:
        address = server.address
        worker = subprocess.Popen([sys.executable, "-c", WORKER, address])
        with echoic.connect(address) as connection:
            remote = connection.table("replay")
            settings = {"replay_buffer_class": kind, "replay_buffer_kwargs": {"table": remote}}
            model = SAC("MlpPolicy", env, learning_starts=20, batch_size=64, **settings)
            model.learn(100)
            assert worker.wait(600) == 0
            connection.flush()
            assert model.replay_buffer.size() == len(table) == 1100
            # Actions in the table are torques up to 2, those of samples between -1 and 1.
            assert np.abs(table.sample(1000).data["actions"]).max() > 1.8
            sample = model.replay_buffer.sample(1000)
            assert 0.9 < sample.actions.abs().max() <= 1
            if prioritized:
                found = model.replay_buffer.update_priorities(sample.keys, torch.ones(1000))
                assert found == 1000
            model.save(tmp_path / "model", exclude=["replay_buffer_kwargs"])
            loaded = SAC.load(tmp_path / "model", env, **settings)
            assert loaded.learn(10).replay_buffer.size() == 1110


class PrioritizedDQN(DQN):
    """The example of the guide."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            with torch.no_grad():
                best = self.q_net_target(data.next_observations).amax(1, keepdim=True)
                target = data.rewards + (1 - data.dones) * self.gamma * best
            errors = self.q_net(data.observations).gather(1, data.actions.long()) - target
            loss = (data.weights * errors**2).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            self.policy.optimizer.step()
            self.replay_buffer.update_priorities(data.keys, errors.abs() + 1e-6)


def test_the_subclass_of_the_guide_learns() -> None:
    settings = {"learning_starts": 500, "learning_rate": 2e-3, "exploration_fraction": 0.3}
    model = PrioritizedDQN(
        *("MlpPolicy", "CartPole-v1"),
        **settings,
        seed=0,
        buffer_size=10_000,
        target_update_interval=250,
        train_freq=2,
        gradient_steps=2,
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=ours.PrioritizedReplayBuffer,
        replay_buffer_kwargs={"alpha": 0.6, "beta": 0.4},
    )
    mean, _ = evaluate_policy(model.learn(6000), gym.make("CartPole-v1"), 10, warn=False)
    assert mean > 80
