"""The replay buffer of CleanRL's scripts: its interface, a script in their style, and theirs."""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from echoic import Table
from echoic.errors import ReplayError, SpecError
from echoic.integrations.cleanrl import ReplayBuffer
from gymnasium import spaces
from torch import nn

BOX = spaces.Box(-1, 1, (3,), np.float32)


def steps_of(count: int, n_envs: int = 1) -> list[tuple[Any, ...]]:
    """Steps whose values say which they are; each fifth ends an episode, each tenth by its time."""
    found = []
    for step in range(count):
        obs = np.arange(n_envs)[:, None] + np.full((n_envs, 3), 10.0 * step, np.float32)
        done = np.full(n_envs, step % 5 == 4)
        infos = [{"TimeLimit.truncated": bool(step % 10 == 9)} for _ in range(n_envs)]
        actions = np.full(n_envs, step % 2)
        found.append((obs, obs + 10, actions, np.full(n_envs, float(step)), done, infos))
    return found


def filled(count: int, n_envs: int = 1, size: int = 100, **settings: Any) -> ReplayBuffer:
    rb = ReplayBuffer(size, BOX, spaces.Discrete(2), "cpu", n_envs, **settings)
    for step in steps_of(count, n_envs):
        rb.add(*step)
    return rb


@pytest.mark.parametrize("n_envs", [1, 4])
def test_a_batch_has_the_values_shapes_and_dtypes_of_the_original(n_envs: int) -> None:
    data = filled(20, n_envs).sample(64)
    step = data.rewards[:, 0].long()
    assert data.observations.shape == (64, 3)
    assert [data.actions.shape, data.rewards.shape, data.dones.shape] == [(64, 1)] * 3
    assert (data.actions.dtype, data.rewards.dtype) == (torch.int64, torch.float32)
    assert data.dones.dtype == data.observations.dtype == torch.float32
    assert torch.equal(data.next_observations, data.observations + 10)
    assert torch.equal(data.observations[:, 0].long() // 10, step)
    assert torch.equal(data.actions[:, 0], step % 2)
    # An episode that its time limit ended is not over.
    assert torch.equal(data.dones[:, 0].bool(), (step % 5 == 4) & (step % 10 != 9))


def test_a_batch_goes_to_another_device() -> None:
    rb = ReplayBuffer(100, BOX, spaces.Discrete(2), "meta")
    rb.add(*steps_of(1)[0])
    data = rb.sample(64)
    assert all(tensor.is_meta for tensor in data)
    assert (data.observations.shape, data.rewards.shape) == ((64, 3), (64, 1))


def test_without_handling_timeouts_done_is_what_was_given_and_infos_are_not_read() -> None:
    rb = ReplayBuffer(10, BOX, spaces.Discrete(2), "cpu", handle_timeout_termination=False)
    obs, next_obs, actions, rewards, _, _ = steps_of(1)[0]
    rb.add(obs, next_obs, actions, rewards, np.array([True]), {"final_info": []})
    assert rb.sample(1).dones.item() == 1


def test_the_oldest_steps_are_replaced() -> None:
    rb = filled(13, n_envs=2, size=10)
    assert (rb.pos, rb.full, rb.size(), rb.buffer_size) == (3, True, 5, 5)
    assert set(rb.sample(200).rewards[:, 0].tolist()) == {8, 9, 10, 11, 12}
    # Step 10 is in row 0, as in the original.
    assert rb.rewards[:, 0].tolist() == [10, 11, 12, 8, 9]
    assert rb.observations[0].tolist() == [[100] * 3, [101] * 3]
    rb.reset()
    assert (rb.pos, rb.full, rb.size()) == (0, False, 0)


def test_memory_of_observations_is_shared_and_batches_are_the_same() -> None:
    shared = filled(50, n_envs=2, optimize_memory_usage=True)
    stored = filled(50, n_envs=2)
    assert np.array_equal(shared.next_observations, stored.next_observations)
    assert np.array_equal(shared.dones, stored.dones)
    data = shared.sample(64)
    assert torch.equal(data.next_observations, data.observations + 10)


def test_runs_with_the_same_seed_of_numpy_draw_the_same() -> None:
    draws = []
    for _ in range(2):
        np.random.seed(5)
        draws.append(filled(30).sample(16).rewards)
    assert torch.equal(*draws)
    assert not torch.equal(draws[0], filled(30, seed=1).sample(16).rewards)


def test_values_are_converted_as_assigning_to_an_array_does() -> None:
    rb = ReplayBuffer(10, BOX, spaces.Box(-2, 2, (2, 2), np.float64), "cpu")
    action = np.full((2, 2), 0.5)
    rb.add(np.ones((1, 3), np.int64), np.ones((1, 3)), action, [1], np.array([0.0]), [{}])
    data = rb.sample(1)
    assert data.actions.tolist() == [[0.5] * 4]
    assert data.actions.dtype == torch.float32
    assert data.observations.tolist() == [[1, 1, 1]]


def test_discrete_observations_have_an_axis() -> None:
    rb = ReplayBuffer(10, spaces.Discrete(7), spaces.Discrete(2), "cpu", n_envs=2)
    numbers = np.array([3, 4])
    none = np.array([False, False])
    rb.add(numbers, numbers, numbers % 2, np.ones(2), none, [{}, {}])
    data = rb.sample(8)
    assert data.observations.shape == (8, 1)
    assert torch.equal(data.observations % 2, data.actions)


def test_wrong_values_say_what_was_expected_and_store_nothing() -> None:
    rb = filled(3)
    obs, next_obs, actions, rewards, done, infos = steps_of(1)[0]
    with pytest.raises(SpecError, match=r"`obs`: expected 1 rows of shape \(3,\)"):
        rb.add(np.ones((1, 4), np.float32), next_obs, actions, rewards, done, infos)
    with pytest.raises(SpecError, match=r"`rewards`: expected 1 rows of shape \(\), .* got shape"):
        rb.add(obs, next_obs, actions, np.ones(2), done, infos)
    with pytest.raises(SpecError, match="expected a dict for each environment, got a dict"):
        rb.add(obs, next_obs, actions, rewards, np.array([True]), {"final_info": []})
    assert rb.size() == 3
    with pytest.raises(SpecError, match="a space of arrays"):
        ReplayBuffer(10, spaces.Text(5), spaces.Discrete(2))
    with pytest.raises(ReplayError, match="empty"):
        ReplayBuffer(10, BOX, spaces.Discrete(2)).sample(1)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))])
def test_a_copy_has_the_contents_and_goes_on(make: Any) -> None:
    rb = filled(13, n_envs=2, size=10)
    other = make(rb)
    assert torch.equal(rb.sample(20).observations, other.sample(20).observations)
    for step in steps_of(2, 2):
        other.add(*step)
    assert (other.pos, rb.pos) == (0, 3)


def test_extend_adds_steps() -> None:
    rb = filled(0, n_envs=2)
    columns = list(zip(*steps_of(20, 2), strict=True))
    rb.extend(*columns)
    assert np.array_equal(rb.rewards, filled(20, n_envs=2).rewards)
    with pytest.raises(ValueError, match="zip"):
        rb.extend(*columns[:-1], columns[-1][:3])


FIELDS = {
    "obs": np.zeros(3, np.float32),
    "actions": 0,
    "rewards": np.float32(0),
    "terminated": False,
    "truncated": False,
    "next_obs": np.zeros(3, np.float32),
}


def test_a_table_holds_the_transitions() -> None:
    table = Table("replay", FIELDS, capacity=1000)
    # As another process has them.
    table.add({**FIELDS, "obs": np.full(3, 77, np.float32), "terminated": True})
    rb = filled(10, n_envs=2, table=table)
    assert (len(table), rb.size()) == (21, 10)
    data = rb.sample(500)
    assert data.dones[data.observations[:, 0] == 77].mean() == 1
    with pytest.raises(ReplayError, match="in the table 'replay', which is not copied"):
        pickle.dumps(rb)


def test_a_table_with_other_fields_is_refused() -> None:
    table = Table("replay", {**FIELDS, "obs": np.zeros(4, np.float32)}, capacity=10)
    with pytest.raises(
        SpecError, match=r"a field `obs` of float32\[3\], got \('float32', \(4,\)\)"
    ):
        ReplayBuffer(10, BOX, spaces.Discrete(2), table=table)


@pytest.mark.timeout(600)
def test_a_script_in_the_style_of_cleanrl_learns() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")])
    space, actions_of = envs.single_observation_space, envs.single_action_space
    actions_of.seed(1)
    q_network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    target_network = copy.deepcopy(q_network)
    optimizer = torch.optim.Adam(q_network.parameters(), 1e-3)
    rb = ReplayBuffer(10_000, space, actions_of, "cpu", handle_timeout_termination=False)
    obs, _ = envs.reset(seed=1)
    returns, total, fresh = [], 0.0, False
    for step in range(4000):
        if random.random() < max(0.05, 1 - step / 1000):
            actions = np.array([actions_of.sample()])
        else:
            actions = q_network(torch.tensor(obs)).argmax(1).numpy()
        next_obs, rewards, terminated, truncated, infos = envs.step(actions)
        if not fresh:
            rb.add(obs, next_obs, actions, rewards, terminated, infos)
            total += rewards[0]
        obs, fresh = next_obs, bool(terminated[0] or truncated[0])
        if fresh:
            returns, total = [*returns, total], 0.0
        if step > 500 and step % 2 == 0:
            data = rb.sample(128)
            with torch.no_grad():
                best = target_network(data.next_observations).max(1, keepdim=True).values
                target = data.rewards + 0.99 * best * (1 - data.dones)
            loss = (q_network(data.observations).gather(1, data.actions) - target).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 250 == 0:
            target_network.load_state_dict(q_network.state_dict())
    envs.close()
    # A random policy has about 22.
    assert np.mean(returns[-10:]) > 40, returns


SHORT = ["--total-timesteps", "900", "--learning-starts", "300"]
SCRIPTS = {
    **{name: ["--env-id", "CartPole-v1", *SHORT] for name in ("dqn", "c51")},
    **{
        f"{name}_continuous_action": ["--env-id", "Pendulum-v1", *SHORT]
        for name in ("sac", "td3", "ddpg")
    },
}
IMPORT = re.compile(
    r"^from (stable_baselines3\.common|cleanrl_utils)\.buffers import ReplayBuffer$", re.MULTILINE
)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", SCRIPTS)
def test_its_own_script_runs_with_one_import_changed(script: str, tmp_path: Path) -> None:
    folder = os.environ.get("ECHOIC_UPSTREAM_CLEANRL")
    if not folder:
        pytest.skip("no checkout of its sources: set ECHOIC_UPSTREAM_CLEANRL")
    source = Path(folder, "cleanrl", f"{script}.py").read_text()
    if "import gymnasium" not in source:
        pytest.skip("no checkout of its sources: this script is of the years before Gymnasium")
    source, changed = IMPORT.subn("from echoic.integrations.cleanrl import ReplayBuffer", source)
    assert changed == 1
    path = tmp_path / f"{script}.py"
    path.write_text(source)
    said = subprocess.run(
        [sys.executable, path, *SCRIPTS[script]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])},
        check=False,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert said.returncode == 0, said.stderr[-4000:]
    assert "SPS:" in said.stdout
