"""n-step returns, sequences and hindsight: which transitions follow each other."""

from __future__ import annotations

import numpy as np
import pytest
from echoic.buffers import PrioritizedReplayBuffer, ReplayBuffer
from echoic.errors import ReplayError, SpecError
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered import transition, vectors


def episodes_of(lengths, envs):
    """Steps of episodes of environments that take turns: (env, episode, t, ended)."""
    queues = [[] for _ in range(envs)]
    for episode, length in enumerate(lengths):
        steps = [(episode % envs, episode, t, t == length - 1) for t in range(length)]
        queues[episode % envs].extend(steps)
    order = []
    while any(queues):
        order.extend(queue.pop(0) for queue in queues if queue)
    return order


def push_all(buffer, steps, *, truncated=False) -> None:
    for env, episode, t, ended in steps:
        obs = np.array([episode, t], np.float32)
        flags = (False, ended) if truncated else (ended, False)
        buffer.add(
            transition(obs, [0.0], 100.0 * episode + t, *flags, obs + np.float32([0, 1])), env=env
        )


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(
    lengths=LENGTHS,
    envs=st.integers(1, 3),
    n_step=st.integers(1, 5),
    capacity=st.integers(3, 60),
    truncated=st.booleans(),
    shared=st.booleans(),
    kind=st.sampled_from([ReplayBuffer, PrioritizedReplayBuffer]),
)
def test_n_step_returns_are_those_of_a_loop(
    lengths, envs, n_step, capacity, truncated, shared, kind
) -> None:
    mode = "shared" if shared else "stored"
    buffer = kind(
        vectors(2, 1), capacity, seed=0, n_step=n_step, gamma=0.9, next_obs=mode, episodes=True
    )
    steps = episodes_of(lengths, envs)
    push_all(buffer, steps, truncated=truncated)
    kept = steps[-len(buffer) :]
    batch = buffer.sample(40)
    for row in range(40):
        episode, t = batch["obs"][row].astype(int)
        rest = [s for s in kept if s[1] == episode and s[2] >= t][:n_step]
        total = sum(0.9**k * (100 * episode + s[2]) for k, s in enumerate(rest))
        np.testing.assert_allclose(batch["rewards"][row], total, rtol=1e-5)
        np.testing.assert_array_equal(batch["next_obs"][row], [episode, rest[-1][2] + 1])
        assert batch["truncated" if truncated else "terminated"][row] == rest[-1][3]
        if n_step > 1:
            np.testing.assert_allclose(batch["discounts"][row], 0.9 ** len(rest), rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(lengths=LENGTHS, envs=st.integers(1, 3), length=st.integers(1, 7), shared=st.booleans())
def test_sequences_are_steps_of_one_episode_in_their_order(lengths, envs, length, shared) -> None:
    mode = "shared" if shared else "stored"
    buffer = ReplayBuffer(vectors(2, 1), 30, seed=0, episodes=True, next_obs=mode)
    steps = episodes_of(lengths, envs)
    push_all(buffer, steps)
    kept = steps[-len(buffer) :]
    burn_in = length // 2
    batch = buffer.sample_sequences(20, length, burn_in=burn_in)
    assert batch["obs"].shape == (20, length, 2)
    for row in range(20):
        episode = int(batch["obs"][row, 0, 0])
        own = [s for s in kept if s[1] == episode]
        count = min(length, len(own))
        assert batch["mask"][row].tolist() == [at < count for at in range(length)]
        learn = [burn_in <= at < count for at in range(length)]
        assert batch["learn"][row].tolist() == learn
        times = batch["obs"][row, :count, 1]
        assert (np.diff(times) == 1).all()
        assert (batch["obs"][row, :count, 0] == episode).all()
        assert (batch["obs"][row, count:] == 0).all()
        assert (batch["rewards"][row, :count] == 100 * episode + times).all()


def test_every_step_of_a_long_episode_comes_in_some_sequence() -> None:
    buffer = ReplayBuffer(vectors(2, 1), 100, seed=0, episodes=True)
    push_all(buffer, episodes_of([20], 1))
    times = buffer.sample_sequences(400, 5)["obs"][:, :, 1]
    assert set(times.ravel()) == set(range(20))
    assert set(times[:, 0]) == set(range(16))


def test_an_episode_can_end_without_a_flag() -> None:
    buffer = ReplayBuffer(vectors(2, 1), 100, seed=0, episodes=True)
    push_all(buffer, [(0, 0, t, False) for t in range(3)])
    assert buffer.num_episodes == 1
    buffer.end_episode()
    push_all(buffer, [(0, 1, t, False) for t in range(3)])
    assert buffer.num_episodes == 2
    batch = buffer.sample_sequences(50, 6)
    assert (batch["mask"].sum(1) == 3).all()


def test_environments_may_come_in_one_array() -> None:
    buffer = ReplayBuffer(vectors(2, 1), 100, seed=0, episodes=True)
    for t in range(5):
        obs = np.stack([np.arange(3), np.full(3, t)], 1).astype(np.float32)
        flags = np.zeros(3, bool)
        buffer.extend(
            transition(
                obs, np.zeros(3), 100.0 * np.arange(3) + t, flags, flags, obs + np.float32([0, 1])
            ),
            env=range(3),
        )
    batch = buffer.sample_sequences(50, 5)
    assert batch["mask"].all()
    assert (np.diff(batch["obs"][:, :, 1]) == 1).all()
    assert (batch["obs"][:, :, 0] == batch["obs"][:, :1, 0]).all()
    rows = np.zeros((2, 2)), [0.0, 0.0], [0, 0], [0, 0], [0, 0], np.zeros((2, 2))
    with pytest.raises(ReplayError, match="environments"):
        buffer.extend(transition(*rows), env=[0, 1, 2])
    with pytest.raises(ReplayError, match="env is a number from 0"):
        buffer.extend(transition(*rows), env=[0, -1])


@pytest.mark.parametrize("burn_in", [-1, 4, 9])
def test_a_burn_in_leaves_something_to_learn(burn_in) -> None:
    buffer = ReplayBuffer(vectors(2, 1), 10, episodes=True)
    push_all(buffer, episodes_of([5], 1))
    with pytest.raises(ReplayError, match="burn_in"):
        buffer.sample_sequences(1, 4, burn_in=burn_in)
    with pytest.raises(ReplayError, match="length"):
        buffer.sample_sequences(1, 0)


GOAL = {
    "observation": np.zeros(1),
    "achieved_goal": np.zeros(1),
    "desired_goal": np.zeros(1),
}


def reach(achieved, desired, info):
    assert info == {}
    assert achieved.shape == desired.shape
    return -(np.abs(achieved - desired).sum(-1) > 0.5).astype(np.float64)


def goal_buffer(shared: str = "stored") -> ReplayBuffer:
    """Two episodes of ten steps: at step t the goal t + 1 is achieved, and 99 is desired."""
    step = {"obs": GOAL, "actions": 0, "rewards": 0.0, "terminated": False, "next_obs": GOAL}
    buffer = ReplayBuffer(step, 50, seed=0, episodes=True, next_obs=shared)
    for episode in range(2):
        for t in range(10):

            def obs(at, episode=episode):
                return {
                    "observation": np.array([100.0 * episode + at]),
                    "achieved_goal": np.array([100.0 * episode + at]),
                    "desired_goal": np.array([99.0]),
                }

            buffer.add(transition(obs(t), t, -1.0, t == 9, next_obs=obs(t + 1)))
    return buffer


@pytest.mark.parametrize("shared", ["stored", "shared"])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_hindsight_takes_goals_that_were_reached(strategy, shared) -> None:
    batch = goal_buffer(shared).sample_hindsight(2000, reach, strategy=strategy, share=0.75)
    moved = batch["relabeled"]
    # Six standard deviations of the share of 2000 are 0.058.
    assert abs(moved.mean() - 0.75) < 0.06
    now = batch["obs"]["observation"][:, 0]
    goal = batch["obs"]["desired_goal"][:, 0]
    np.testing.assert_array_equal(batch["next_obs"]["desired_goal"][:, 0], goal)
    assert (goal[~moved] == 99).all()
    assert (batch["rewards"][~moved] == -1).all()
    assert (now[moved] // 100 == (goal[moved] - 1) // 100).all()
    lead = goal[moved] - now[moved]
    if strategy == "future":
        assert lead.min() == 1
    elif strategy == "final":
        assert (goal[moved] % 100 == 10).all()
    else:
        assert lead.min() < 0
    np.testing.assert_array_equal(batch["rewards"][moved], np.where(lead == 1, 0.0, -1.0))


def test_hindsight_may_end_episodes_and_needs_goals() -> None:
    buffer = goal_buffer()
    batch = buffer.sample_hindsight(
        200, reach, share=1.0, compute_terminated=lambda a, d, _: reach(a, d, {}) == 0
    )
    np.testing.assert_array_equal(batch["terminated"], batch["rewards"] == 0)
    with pytest.raises(ReplayError, match="strategy"):
        buffer.sample_hindsight(1, reach, strategy="past")
    with pytest.raises(ReplayError, match="share"):
        buffer.sample_hindsight(1, reach, share=2.0)
    plain = ReplayBuffer(vectors(2, 1), 10, episodes=True)
    push_all(plain, episodes_of([3], 1))
    with pytest.raises(SpecError, match="achieved_goal"):
        plain.sample_hindsight(1, reach)
