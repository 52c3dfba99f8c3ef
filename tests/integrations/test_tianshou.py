"""`echoic.integrations.tianshou` beside Tianshou's own buffers: same calls, same results."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic.errors import ReplayError, SpecError

pytest.importorskip("tianshou", reason="no tianshou here")

import gymnasium as gym
import torch
from echoic.integrations import tianshou as ours
from tianshou import data as theirs
from tianshou.algorithm import DQN, PPO, SAC, TD3
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector
from tianshou.data.collector import EpisodeRolloutHookMCReturn
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.nightly

KINDS = {
    "ReplayBuffer": {},
    "PrioritizedReplayBuffer": {"alpha": 0.6, "beta": 0.4},
    "VectorReplayBuffer": {"buffer_num": 3},
    "PrioritizedVectorReplayBuffer": {"buffer_num": 3, "alpha": 0.6, "beta": 0.4},
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"ignore_obs_next": True},
    {"stack_num": 3},
    {"stack_num": 3, "ignore_obs_next": True, "sample_avail": True},
    {"save_only_last_obs": True, "stack_num": 2},
]


def pair(kind: str, size: int = 30, **options: Any) -> list[Any]:
    settings = {**KINDS[kind], **options}
    first = {"total_size" if "Vector" in kind else "size": size}
    return [getattr(module, kind)(**first, **settings) for module in (ours, theirs)]


def observation(rng: np.random.Generator, form: str, rows: int) -> Any:
    if form == "dict":
        inner = {"b": rng.integers(0, 9, (rows, 1)), "c": rng.random((rows, 2, 2))}
        return Batch(a=rng.random((rows, 2)).astype(np.float32), deep=Batch(inner))
    if form == "words":
        return np.array([f"at {n}" for n in rng.integers(0, 9, rows)], object)
    shape = {"vector": (rows, 3), "image": (rows, 2, 4, 4), "number": (rows,)}[form]
    return rng.integers(0, 200, shape).astype(np.uint8)


def transitions(form: str = "vector", envs: int = 3, steps: int = 40) -> Iterator[tuple[Any, Any]]:
    """Yield batches, and the environments that they are of: not always all, as of collectors."""
    rng = np.random.default_rng(5)
    for step in range(steps):
        ids = np.arange(envs) if step % 4 else np.flatnonzero(rng.random(envs) < 0.7)
        if not len(ids):
            continue
        terminated = rng.random(len(ids)) < 0.2
        info = Batch(env_id=ids, extra=Batch(at=rng.random(len(ids))))
        if step > 20:
            info.late = rng.random((len(ids), 2))
        yield (
            Batch(
                obs=observation(rng, form, len(ids)),
                act=rng.integers(0, 4, len(ids)),
                rew=rng.random(len(ids)),
                terminated=terminated,
                truncated=~terminated & (rng.random(len(ids)) < 0.1),
                obs_next=observation(rng, form, len(ids)),
                info=info,
                policy=Batch(),
            ),
            ids,
        )


def fill(kind: str, both: list[Any], form: str = "vector", steps: int = 40) -> None:
    vector = "Vector" in kind
    for batch, ids in transitions(form, 3 if vector else 1, steps):
        mine, their = (one.add(batch, buffer_ids=ids) for one in both)
        for left, right in zip(mine, their, strict=True):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype


def same(mine: Any, their: Any, where: str = "") -> None:
    if isinstance(their, Batch):
        assert isinstance(mine, Batch), where
        assert set(mine.keys()) == set(their.keys()), where
        for key in their.keys():  # noqa: SIM118 (a batch iterates over rows)
            same(mine[key], their[key], f"{where}.{key}")
    else:
        np.testing.assert_array_equal(mine, their, err_msg=where)
        assert getattr(mine, "dtype", None) == getattr(their, "dtype", None), where


def compare(mine: Any, their: Any) -> None:
    assert len(mine) == len(their)
    np.testing.assert_array_equal(mine.last_index, their.last_index)
    np.testing.assert_array_equal(mine.unfinished_index(), their.unfinished_index())
    everything = mine.sample_indices(0)
    np.testing.assert_array_equal(everything, their.sample_indices(0))
    for index in (everything, everything[::-1], everything[:1]):
        same(mine[index], their[index])
        np.testing.assert_array_equal(mine.next(index[0]), their.next(index[0]))
    same(mine[:], their[:])
    same(mine[2:5], their[2:5])
    same(mine[int(everything[0])], their[int(everything[0])])
    for _ in range(3):
        # Tianshou draws by priority from numpy's global numbers.
        state = np.random.get_state()
        batch, indices = mine.sample(16)
        np.random.set_state(state)
        expected, at = their.sample(16)
        np.testing.assert_array_equal(indices, at)
        same(batch, expected)
        if hasattr(their, "update_weight"):
            for one in (mine, their):
                one.update_weight(indices, batch.rew + 0.1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_same_calls_give_the_same_results(kind: str, options: dict[str, Any]) -> None:
    both = pair(kind, **options)
    form = "image" if "save_only_last_obs" in options else "vector"
    fill(kind, both, form, steps=7)
    compare(*both)
    fill(kind, both, form)
    compare(*both)
    for one in both:
        one.reset(keep_statistics=True)
    if "Prioritized" in kind:
        # Tianshou's own would go on to draw what was removed.
        both[1].weight[np.arange(30)] = 0.0
    fill(kind, both, form, steps=9)
    compare(*both)


@pytest.mark.parametrize("form", ["dict", "number", "words"])
@pytest.mark.parametrize("kind", ["ReplayBuffer", "VectorReplayBuffer"])
def test_observations_of_any_form_come_back(kind: str, form: str) -> None:
    both = pair(kind)
    fill(kind, both, form)
    compare(*both)
    for key in ("obs", "act", "obs_next", "rew", "done", "info"):
        same(getattr(both[0], key), getattr(both[1], key))


def test_a_transition_without_an_axis_of_rows_is_stored() -> None:
    both = pair("ReplayBuffer", 4)
    for step in range(6):
        batch = Batch(obs=[step, 1], act=step, rew=step, terminated=step == 2, truncated=0)
        mine, their = (one.add(batch) for one in both)
        assert [list(a) for a in mine] == [list(a) for a in their]
    compare(*both)


def test_rewards_may_be_vectors() -> None:
    both = pair("VectorReplayBuffer")
    for batch, ids in transitions():
        batch.rew = np.stack([batch.rew, -batch.rew], axis=1)
        mine, their = (one.add(batch, buffer_ids=ids) for one in both)
        for left, right in zip(mine, their, strict=True):
            np.testing.assert_array_equal(left, right)
    index = both[1].sample_indices(0)
    same(both[0][index], both[1][index])
    same(*(one.get(index, "obs", stack_num=2) for one in both))
    same(*(one.get(index[3], "obs_next", stack_num=2) for one in both))


def test_nothing_is_left_after_a_reset() -> None:
    buffer, control = pair("VectorReplayBuffer")
    fill("VectorReplayBuffer", [buffer, control])
    buffer.reset()
    assert len(buffer) == 0
    assert buffer.obs.shape == control.obs.shape
    assert not buffer.obs.any()
    assert len(buffer[buffer.sample_indices(0)]) == 0


def test_what_was_removed_is_not_drawn_by_its_priority() -> None:
    mine = pair("PrioritizedReplayBuffer")[0]
    rows = list(transitions("words", 1))
    for batch, ids in rows:
        # So that all is in Tianshou's own columns.
        batch.act = batch.obs_next = batch.obs
        mine.add(batch, buffer_ids=ids)
    mine.reset()
    for batch, ids in rows[:3]:
        mine.add(batch, buffer_ids=ids)
    assert set(mine.sample_indices(64)) <= {0, 1, 2}


def test_what_tianshou_cannot_do_for_several_environments_is_refused() -> None:
    buffer = ours.VectorReplayBuffer(12, 3)
    for call in (lambda: buffer.update(buffer), buffer.dropnull):
        with pytest.raises(NotImplementedError):
            call()


@pytest.mark.parametrize("kind", ["ReplayBuffer", "VectorReplayBuffer"])
def test_a_value_of_another_form_is_refused_and_nothing_stored(kind: str) -> None:
    both = pair(kind)
    fill(kind, both)
    envs = [0, 1, 2] if "Vector" in kind else [0]
    wrong = list(transitions("image", len(envs), steps=2))[-1][0]
    with pytest.raises(SpecError, match="obs"):
        both[0].add(wrong, buffer_ids=envs)
    compare(*both)


@pytest.mark.parametrize("ids", [[0, 1, 7], [0, 1, 2]])
def test_a_wrong_environment_or_too_few_rows_change_nothing(ids: list[int]) -> None:
    both = pair("VectorReplayBuffer")
    fill("VectorReplayBuffer", both)
    batch = list(transitions(steps=2))[-1][0]
    rows = batch if 7 in ids else batch[:2]
    for _ in range(3):
        with pytest.raises(IndexError):
            both[0].add(rows, buffer_ids=ids)
    compare(*both)


def test_a_batch_that_lacks_a_key_is_refused() -> None:
    buffer = ours.VectorReplayBuffer(12, 3)
    batch = next(transitions())[0]
    batch.pop("rew")
    with pytest.raises(ValueError, match="rew"):
        buffer.add(batch)
    with pytest.raises(ValueError, match=r"buffer_ids=\[0\]"):
        ours.ReplayBuffer(4).add(batch, buffer_ids=[1])
    assert len(buffer) == 0


def test_columns_of_observations_cannot_be_written_to() -> None:
    buffer = pair("VectorReplayBuffer")[0]
    fill("VectorReplayBuffer", [buffer, pair("VectorReplayBuffer")[1]])
    with pytest.raises(ValueError, match="read-only"):
        buffer.obs[0] = 1
    with pytest.raises(ReplayError, match="`obs`"):
        buffer.set_array_at_key(np.zeros(2), "obs", [0, 1])
    buffer.set_array_at_key(np.array([3.0, 4.0]), "more", [0, 1], default_value=0.0)
    assert buffer[np.array([1, 0])].more.tolist() == [4.0, 3.0]


def test_an_index_without_a_transition_is_an_error() -> None:
    buffer = ours.ReplayBuffer(10)
    with pytest.raises(KeyError):
        buffer[0]
    buffer.add(Batch(obs=1.0, act=1, rew=1.0, terminated=False, truncated=False))
    with pytest.raises(IndexError, match="index 3"):
        buffer[np.array([0, 3])]
    with pytest.raises(IndexError):
        buffer[10]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_buffer_is_loaded_here_and_by_tianshou(kind: str, tmp_path: Path) -> None:
    mine, their = pair(kind)
    fill(kind, [mine, their])
    mine.save_hdf5(str(tmp_path / "mine"))
    their.save_hdf5(str(tmp_path / "theirs"))
    loaded = [
        pickle.loads(pickle.dumps(mine)),
        type(mine).load_hdf5(str(tmp_path / "mine")),
        type(mine).load_hdf5(str(tmp_path / "theirs")),
        type(their).load_hdf5(str(tmp_path / "mine")),
    ]
    for one in loaded:
        for key in ("obs", "act", "obs_next", "rew", "done", "info"):
            same(getattr(one, key), getattr(their, key))
    # The loaded ones go on as the saved one would have.
    for one in loaded[:3]:
        control = pickle.loads(pickle.dumps(their))
        if "Vector" in kind:
            # Tianshou's sub-buffers lose their share of the columns.
            control._set_batch_for_children()
        fill(kind, [one, control])
        compare(one, control)


def test_transitions_of_another_buffer_are_added() -> None:
    both = pair("ReplayBuffer", 20)
    fill("ReplayBuffer", both)
    others = pair("ReplayBuffer", 15)
    for one, other in zip(others, both, strict=True):
        assert one.update(other).tolist() == [*range(15), *range(5)]
    compare(*others)
    fill("ReplayBuffer", others, steps=5)
    compare(*others)
    assert ours.ReplayBuffer(3).update(ours.ReplayBuffer(2)).tolist() == []
    # What they have of a stack of frames is the last one already.
    both = pair("ReplayBuffer", 20, save_only_last_obs=True)
    fill("ReplayBuffer", both, "image")
    others = pair("ReplayBuffer", 15, save_only_last_obs=True)
    for one, other in zip(others, both, strict=True):
        one.update(other)
    compare(*others)


def test_a_data_set_becomes_a_buffer() -> None:
    rng = np.random.default_rng(0)
    obs = rng.random((9, 2)).astype(np.float32)
    flags = np.zeros(9, bool)
    arrays = (obs, np.arange(9), rng.random(9), flags, flags, flags, obs + 1)
    mine, their = (kind.from_data(*arrays) for kind in (ours.ReplayBuffer, theirs.ReplayBuffer))
    same(mine[np.array([8, 0])], their[np.array([8, 0])])
    batch = Batch(
        obs=[7.0, 7.0], act=1, rew=1.0, terminated=True, truncated=False, obs_next=[8.0, 8.0]
    )
    mine.add(batch)
    their.add(batch)
    same(mine[:], their[:])


@pytest.mark.parametrize("kind", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_transitions_with_nan_are_dropped(kind: str) -> None:
    mine = pair(kind, 10)[0]
    for step in range(4):
        reward = float("nan") if step == 1 else 1.0
        batch = Batch(obs=[step], act=0, rew=reward, terminated=False, truncated=False)
        mine.add(batch)
    assert mine.hasnull()
    mine.dropnull()
    assert mine[:].obs.tolist() == [[0], [2], [3]]
    assert set(mine.sample(64)[1]) == {0, 1, 2}
    assert mine.add(batch)[0].tolist() == [3]


def dqn() -> Any:
    env = gym.make("CartPole-v1")
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[32, 32])
    policy = DiscreteQLearningPolicy(
        model=net, action_space=env.action_space, eps_training=0.1, eps_inference=0.0
    )
    optim = AdamOptimizerFactory(lr=1e-3)
    return DQN(
        policy=policy, optim=optim, gamma=0.95, n_step_return_horizon=3, target_update_freq=100
    )


def sac() -> Any:
    env = gym.make("Pendulum-v1")
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=(3,), hidden_sizes=[32, 32]),
        action_shape=(1,),
        unbounded=True,
        conditioned_sigma=True,
    )
    form = {"state_shape": (3,), "action_shape": (1,), "hidden_sizes": [32, 32], "concat": True}
    optim = AdamOptimizerFactory(lr=1e-3)
    return SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space),
        policy_optim=optim,
        critic=ContinuousCritic(preprocess_net=Net(**form)),
        critic_optim=optim,
        critic2=ContinuousCritic(preprocess_net=Net(**form)),
        critic2_optim=optim,
        alpha=AutoAlpha(-1.0, 0.0, AdamOptimizerFactory(lr=3e-4)),
        n_step_return_horizon=2,
    )


def td3() -> Any:
    env = gym.make("Pendulum-v1")
    form = {"state_shape": (3,), "action_shape": (1,), "hidden_sizes": [32], "concat": True}
    optim = AdamOptimizerFactory(lr=1e-3)
    body = Net(state_shape=(3,), hidden_sizes=[32])
    actor = ContinuousActorDeterministic(preprocess_net=body, action_shape=(1,), max_action=2)
    policy = ContinuousDeterministicPolicy(
        actor=actor,
        action_space=env.action_space,
        action_scaling=False,
        action_bound_method=None,
        exploration_noise=GaussianNoise(sigma=0.1),
    )
    return TD3(
        policy=policy,
        policy_optim=optim,
        critic=ContinuousCritic(preprocess_net=Net(**form)),
        critic_optim=optim,
        critic2=ContinuousCritic(preprocess_net=Net(**form)),
        critic2_optim=optim,
    )


def ppo() -> Any:
    env = gym.make("CartPole-v1")
    form = {"state_shape": (4,), "hidden_sizes": [32]}
    policy = ProbabilisticActorPolicy(
        actor=DiscreteActor(preprocess_net=Net(**form), action_shape=(2,), softmax_output=False),
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=env.action_space,
        action_scaling=False,
        action_bound_method=None,
    )
    critic = DiscreteCritic(preprocess_net=Net(**form))
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=1e-3))


def train(make: Any, env: str, buffer: Any, steps: int, test_episodes: int = 0) -> tuple[Any, Any]:
    """Train with Tianshou's own trainer, and return the algorithm and the best test result."""
    np.random.seed(3)
    torch.manual_seed(3)
    algorithm = make()
    envs = DummyVectorEnv([lambda: gym.make(env) for _ in range(4)])
    envs.seed(3)
    on_policy = make is ppo
    collector = Collector(algorithm, envs, buffer, exploration_noise=not on_policy)
    settings: dict[str, Any] = {
        "training_collector": collector,
        "max_epochs": 1,
        "epoch_num_steps": steps,
        "verbose": False,
        "show_progress": False,
    }
    if test_episodes:
        tests = DummyVectorEnv([lambda: gym.make(env)])
        tests.seed(9)
        settings["test_collector"] = Collector(algorithm, tests)
        settings["test_step_num_episodes"] = test_episodes
    if on_policy:
        params: Any = OnPolicyTrainerParams(
            collection_step_num_env_steps=256, update_step_num_repetitions=4, **settings
        )
    else:
        collector.reset()
        collector.collect(n_step=200, random=True)
        params = OffPolicyTrainerParams(
            collection_step_num_env_steps=8,
            update_step_num_gradient_steps_per_sample=0.25,
            **settings,
        )
    result = algorithm.run_training(params)
    return algorithm, result.best_reward


def test_a_collector_with_a_hook_and_dict_observations_fills_the_same_buffer() -> None:
    def make() -> gym.Env[Any, Any]:
        return gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1"), flatten=False)

    both = pair("VectorReplayBuffer", 600)
    for buffer in both:
        envs = DummyVectorEnv([make for _ in range(3)])
        envs.seed(4)
        hook = EpisodeRolloutHookMCReturn()
        collector = Collector(dqn().policy, envs, buffer, on_episode_done_hook=hook)
        for at, space in enumerate(envs.action_space):
            space.seed(at)
        collector.collect(n_episode=10, random=True, reset_before_collect=True)
    compare(*both)
    assert set(both[0].obs.keys()) == {"obs", "time"}
    assert both[0][np.arange(5)].mc_return_to_go.min() >= 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("make", "env", "kind", "options"),
    [
        (dqn, "CartPole-v1", "VectorReplayBuffer", {}),
        (dqn, "CartPole-v1", "VectorReplayBuffer", {"ignore_obs_next": True}),
        (dqn, "CartPole-v1", "PrioritizedVectorReplayBuffer", {}),
        (sac, "Pendulum-v1", "VectorReplayBuffer", {}),
        (td3, "Pendulum-v1", "VectorReplayBuffer", {}),
        (ppo, "CartPole-v1", "VectorReplayBuffer", {}),
    ],
)
def test_training_gives_the_very_same_networks(
    make: Any, env: str, kind: str, options: dict[str, Any]
) -> None:
    mine, their = (
        list(train(make, env, buffer, 600)[0].parameters())
        for buffer in pair(kind, 500, buffer_num=4, **options)
    )
    assert mine
    assert all(map(torch.equal, mine, their))
    torch.manual_seed(3)
    assert not all(map(torch.equal, mine, make().parameters()))


@pytest.mark.timeout(900)
def test_dqn_learns_to_balance_the_pole() -> None:
    _, reward = train(dqn, "CartPole-v1", ours.VectorReplayBuffer(20_000, 4), 12_000, 5)
    # Without learning it is about 10.
    assert reward > 100


@pytest.mark.timeout(900)
def test_sac_learns_to_swing_the_pendulum_up() -> None:
    _, reward = train(sac, "Pendulum-v1", ours.VectorReplayBuffer(20_000, 4), 24_000, 5)
    # Without learning it is about -1200.
    assert reward > -600


def served(rows: int = 300) -> tuple[Any, Any]:
    step = {
        "obs": np.zeros(4, np.float32),
        "actions": np.int64(0),
        "rewards": np.float32(0),
        "terminated": False,
        "truncated": False,
        "next_obs": np.zeros(4, np.float32),
    }
    table = echoic.Table("replay", step, capacity=1000, seed=1)
    server = echoic.Server(table, listen="tcp://127.0.0.1:0").start()
    rng = np.random.default_rng(2)
    with echoic.connect(server.address) as worker:
        worker.table("replay").extend(
            {
                "obs": rng.random((rows, 4)).astype(np.float32),
                "actions": rng.integers(0, 2, rows),
                "rewards": rng.random(rows).astype(np.float32),
                "terminated": rng.random(rows) < 0.3,
                "truncated": np.zeros(rows, bool),
                "next_obs": rng.random((rows, 4)).astype(np.float32),
            }
        )
    return server, echoic.connect(server.address)


def test_a_learner_samples_what_others_wrote_into_a_table() -> None:
    server, link = served()
    with server, link:
        buffer = ours.TableReplayBuffer(link.table("replay"))
        algorithm = dqn()
        algorithm.n_step = 1
        before = [value.clone() for value in algorithm.policy.parameters()]
        with policy_within_training_step(algorithm.policy):
            stats = algorithm.update(buffer=buffer, sample_size=64)
        assert np.isfinite(stats.loss)
        after = algorithm.policy.parameters()
        assert not all(map(torch.equal, before, after))
        # The returns are those of the batch, computed by hand.
        batch, indices = buffer.sample(64)
        batch = algorithm._preprocess_batch(batch, buffer, indices)
        with torch.no_grad():
            target = algorithm._target_q(buffer, indices).numpy()
        expected = batch.rew + 0.95 * target * ~batch.terminated
        np.testing.assert_allclose(batch.returns.numpy().ravel(), expected, rtol=1e-5)
        assert len(buffer) == 300


def test_a_table_refuses_what_needs_neighbours() -> None:
    server, link = served()
    with server, link:
        buffer = ours.TableReplayBuffer(link.table("replay"))
        algorithm = dqn()
        with (
            policy_within_training_step(algorithm.policy),
            pytest.raises(ReplayError, match="n_step_return_horizon=1"),
        ):
            algorithm.update(buffer=buffer, sample_size=64)
        for size in (0, None):
            with pytest.raises(ReplayError, match="batch_size"):
                buffer.sample(size)
        with pytest.raises(ReplayError, match="VectorReplayBuffer"):
            buffer.add(Batch())
    store = echoic.Table("replay", {"obs": 0, "actions": 0, "rewards": 0.0}, capacity=4)
    store.add({"obs": 1, "actions": 1, "rewards": 1.0})
    with pytest.raises(ReplayError, match="no next_obs, terminated, truncated: make it with"):
        ours.TableReplayBuffer(store).sample(1)


@pytest.mark.timeout(300)
def test_the_examples_of_the_guide_run() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "tianshou.md"
    blocks = re.findall(r"```py\n(.*?)```", guide.read_text(), re.DOTALL)
    assert len(blocks) == 3
    server, link = served()
    algorithm = dqn()
    algorithm.n_step = 1
    names = {
        "Collector": Collector,
        "OffPolicyTrainerParams": OffPolicyTrainerParams,
        "address": server.address,
        "algorithm": algorithm,
        "envs": DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)]),
        "policy_within_training_step": policy_within_training_step,
    }
    with server, link:
        for block in blocks:
            exec(block, names)
