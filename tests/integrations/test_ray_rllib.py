"""RLlib adds episodes to a table, draws what its own buffer would give, and its DQN learns."""

from __future__ import annotations

import copy
import pickle

import echoic
import numpy as np
import pytest
import tiers

pytest.importorskip("ray")
pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytest.importorskip("ray.rllib.utils.replay_buffers", exc_type=ImportError)
import gymnasium
from echoic.errors import ArgumentError, SpecError, WaitTimeoutError
from echoic.integrations.ray import EchoicEpisodeReplayBuffer, ReplayCluster, transition_table
from echoic.integrations.ray.transitions import NSteps
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.minibatch_utils import ShardEpisodesIterator
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer
from rllib_shelf import Shelf

pytestmark = [
    # Starting Ray on a busy machine takes long.
    pytest.mark.timeout(400),
    # Ray leaves files and sockets to the garbage collector, and RLlib calls what it deprecates.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # A second algorithm registers the same environment.
    pytest.mark.filterwarnings("ignore:.*Overriding environment:UserWarning"),
]

TYPE = "echoic.integrations.ray.EchoicEpisodeReplayBuffer"
SPACES = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32), gymnasium.spaces.Discrete(2)


class Numbered(gymnasium.Env):
    """A thousand times the number of the step is its reward, and nothing else matters."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config=None):
        """Begin before the first episode."""
        self._step = 0

    def reset(self, *, seed=None, options=None):
        """Begin anew."""
        self._step = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        """Go on."""
        self._step += 1
        observation = np.full(2, self._step / 100, np.float32)
        return observation, 1000.0 * self._step, self._step == 50, False, {}


def episode(name, steps, *, terminated=True, truncated=False):
    """An episode whose observations say which it is, and at which step; so do the rewards."""
    return SingleAgentEpisode(
        id_=str(name),
        observations=[np.array([name, step], np.float32) for step in range(steps + 1)],
        actions=[np.int64(step % 2) for step in range(steps)],
        rewards=[float(name + step) for step in range(steps)],
        terminated=terminated,
        truncated=truncated,
        len_lookback_buffer=0,
    )


def pieces(whole, cuts, *, numpy=False):
    """An episode as RLlib's environments deliver it: step by step and cut, with a step before."""
    made, current = [], SingleAgentEpisode(id_=whole.id_)
    current.add_env_reset(whole.get_observations(0))
    for step in range(len(whole)):
        is_last = step == len(whole) - 1
        current.add_env_step(
            whole.get_observations(step + 1),
            whole.get_actions(step),
            whole.get_rewards(step),
            terminated=whole.is_terminated and is_last,
            truncated=whole.is_truncated and is_last,
        )
        if step + 1 in cuts or is_last:
            made.append(current)
            current = None if is_last else current.cut(len_lookback_buffer=1)
    return [piece.to_numpy() for piece in made] if numpy else made


def by_step(rows):
    """Transitions by episode and step: reward, last step, ends, and how many steps."""
    found = {}
    for number, (name, step) in enumerate(rows["obs"].astype(int).tolist()):
        assert (name, step) not in found
        last = rows["new_obs"][number]
        assert last[0] == name
        assert rows["actions"][number] == step % 2
        found[name, step] = (
            float(rows["rewards"][number]),
            int(last[1]),
            bool(rows["terminateds"][number]),
            bool(rows["truncateds"][number]),
            int(rows["n_step"][number]),
        )
    return found


def table_of(buffer):
    """All that a buffer's table has, by episode and step."""
    return by_step(buffer.table.get(buffer.table.items().keys).data)


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("n_step", [1, 3, 7])
def test_every_step_becomes_one_transition_wherever_episodes_are_cut(n_step, numpy):
    random = np.random.default_rng(n_step)
    makes = NSteps(n_step, 0.9)
    # Terminated, truncated, shorter than a transition, and one that goes on.
    wholes = [
        episode(100, 20),
        episode(200, 9, terminated=False, truncated=True),
        episode(300, 2),
        episode(400, 15, terminated=False),
    ]
    queues = [pieces(one, random.integers(1, 20, 5), numpy=numpy) for one in wholes]
    taken = []
    while any(queues):
        rows = makes.take([queue.pop(0) for queue in queues if queue])
        if rows is not None:
            taken.append(rows)
    found = by_step({name: np.concatenate([rows[name] for rows in taken]) for name in taken[0]})
    expected = {}
    for whole in wholes:
        name, length = int(whole.id_), len(whole)
        for step in range(length if whole.is_done else length - n_step + 1):
            last = min(step + n_step, length)
            rewards = [0.9**later * (name + step + later) for later in range(last - step)]
            is_end = whole.is_done and last == length
            ends = is_end and whole.is_terminated, is_end and whole.is_truncated
            expected[name, step] = pytest.approx(sum(rewards)), last, *ends, last - step
    assert found == expected


def test_steps_of_a_transition_are_drawn_from_the_given_range():
    rows = NSteps((2, 5), 1.0, seed=3).take([episode(0, 400)])
    assert set(rows["n_step"][:390].tolist()) == {2, 3, 4}
    for (_, step), (reward, last, *_, count) in by_step(rows).items():
        assert last == step + count
        assert reward == sum(range(step, last))
    with pytest.raises(ArgumentError, match="n_step must be at least 1"):
        NSteps((3, 3))


def test_steps_before_a_piece_that_is_missing_become_no_transitions():
    first, _, third = pieces(episode(7, 9), [3, 6])
    makes = NSteps(3, 1.0)
    assert sorted(by_step(makes.take([first]))) == [(7, 0)]
    assert sorted(by_step(makes.take([third]))) == [(7, 6), (7, 7), (7, 8)]


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_draw_is_what_rllibs_own_buffer_gives_of_the_same_step(n_step):
    episodes = [episode(100, 12), episode(200, 7, terminated=False, truncated=True)]
    own = PrioritizedEpisodeReplayBuffer(capacity=100)
    ours = EchoicEpisodeReplayBuffer(100, n_step=n_step, gamma=0.8)
    for buffer in (own, ours):
        buffer.add(episodes)
    asked = {"n_step": n_step, "gamma": 0.8, "beta": 0.4, "sample_episodes": True}

    def drawn(buffer):
        found = {}
        for one in buffer.sample(num_items=400, **asked):
            first, last = one.get_observations(slice(0, 2))
            found[tuple(first.tolist())] = (
                last.tolist(),
                one.get_actions(0),
                pytest.approx(one.get_rewards(0)),
                one.is_terminated,
                one.is_truncated,
                one.get_extra_model_outputs("n_step", 0),
                one.get_extra_model_outputs("weights", 0),
            )
        return found

    theirs, mine = drawn(own), drawn(ours)
    # RLlib's leaves out the last steps of an episode, where there are fewer than `n_step`.
    ends = {step: value for step, value in mine.items() if value[5] < n_step}
    assert len(ends) == 2 * (n_step - 1)
    assert theirs == {step: value for step, value in mine.items() if step not in ends}


def test_observations_may_be_trees():
    buffer = EchoicEpisodeReplayBuffer(10)
    buffer.add(
        SingleAgentEpisode(
            observations=[{"a": np.float32(step), "b": np.zeros(3)} for step in range(4)],
            actions=[(np.int64(1), np.ones(2, np.float32))] * 3,
            rewards=[1.0] * 3,
            len_lookback_buffer=0,
        )
    )
    one = buffer.sample(num_items=5, n_step=1)[0].to_numpy()
    assert one.get_observations(1)["a"] == one.get_observations(0)["a"] + 1
    assert one.get_actions(0)[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("learners", [0, 1, 2, 3])
def test_errors_find_the_transitions_that_they_are_of(learners):
    buffer = EchoicEpisodeReplayBuffer(1000, alpha=1.0, num_learners=learners, seed=5)
    buffer.add(episode(0, 300))
    drawn = buffer.sample(num_items=60, n_step=1, beta=1.0)
    # As RLlib deals them out and puts their errors together.
    shares = ShardEpisodesIterator(drawn, num_shards=max(1, learners))
    errors = [one.get_rewards(0) for share in shares for one in share]
    buffer.update_priorities(np.array(errors, np.float32), "default_policy")
    known = buffer.table.items()
    rewards = buffer.table.get(known.keys).data["rewards"]
    hit = {one.get_rewards(0) for one in drawn}
    for reward, priority in zip(rewards.tolist(), known.info.priorities.tolist(), strict=True):
        assert priority == (max(reward, 1e-12) if reward in hit else 1.0)
    # What comes next is as important as the most important so far.
    buffer.add(episode(1000, 1))
    assert buffer.table.items().info.priorities.max() == max(hit)
    assert (buffer.table.items().info.priorities == max(hit)).sum() == 2
    with pytest.raises(ArgumentError, match="each of the 0 that were drawn last, got 1"):
        buffer.update_priorities(np.ones(1))


def test_numbers_are_converted_to_those_of_the_table():
    table = transition_table("replay", *SPACES, capacity=100)
    with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
        buffer = EchoicEpisodeReplayBuffer(client=server.address)
        one = episode(100, 10).to_numpy()
        one.actions.data = one.actions.data.astype(np.int32)
        buffer.add(one)
        buffer.close()
        assert table_of(EchoicEpisodeReplayBuffer(client=server.address)).keys() == {
            (100, step) for step in range(10)
        }
        one.actions.data = one.actions.data.astype(np.float32)
        wrong = EchoicEpisodeReplayBuffer(client=server.address)
        with pytest.raises(SpecError, match="actions"):
            wrong.add(one)


def test_what_the_table_has_not_is_refused():
    buffer = EchoicEpisodeReplayBuffer(10, n_step=3, gamma=0.9, timeout=0.05)
    with pytest.raises(ArgumentError, match="before the first sample"):
        buffer.sample(num_items=1)
    buffer.add(episode(0, 5))
    for wrong, said in (
        ({"n_step": 1}, "the algorithm wants 1"),
        ({"n_step": (1, 3)}, r"the algorithm wants \(1, 3\)"),
        ({"gamma": 0.99}, "the algorithm wants 0.99"),
        ({"batch_length_T": 20}, "batch_length_T"),
        ({"lookback": 1, "include_infos": True}, "include_infos, lookback"),
        ({"batch_size_B": 3}, "got both"),
    ):
        with pytest.raises(ArgumentError, match=said):
            buffer.sample(num_items=1, **wrong)
    with pytest.raises(ArgumentError, match="episodes of one agent, got a dict"):
        buffer.add([{}])
    with pytest.raises(TypeError, match="alhpa"):
        EchoicEpisodeReplayBuffer(alhpa=1.0)


def test_a_state_has_the_transitions_of_a_table_in_this_process():
    buffer = EchoicEpisodeReplayBuffer(100, seed=1)
    buffer.add([episode(100, 10), episode(200, 5)])
    buffer.sample(num_items=8)
    buffer.update_priorities(np.arange(8.0))
    copied = EchoicEpisodeReplayBuffer(100)
    copied.set_state(pickle.loads(pickle.dumps(buffer.get_state())))
    assert table_of(copied) == table_of(buffer)
    found, expected = (one.table.items().info.priorities.tolist() for one in (copied, buffer))
    assert found == expected
    assert len(copied) == copied.get_added_timesteps() == 15
    assert copied.get_sampled_timesteps() == 8


def queue(name="replay", size=5):
    """A table that takes no more than so many items before they are drawn, each of them once."""
    return transition_table(
        name,
        *SPACES,
        capacity=100,
        alpha=0,
        limiter=echoic.limiters.Queue(size),
        max_times_sampled=1,
        remover=echoic.selectors.Fifo(),
    )


def drawn_steps(buffer, count):
    """The names and steps of so many transitions that are drawn."""
    drawn = buffer.sample(num_items=count)
    return sorted(tuple(one.get_observations(0).astype(int).tolist()) for one in drawn)


def test_what_a_limiter_cut_off_goes_first_with_the_next_add():
    shelf = Shelf(queue())
    buffer = EchoicEpisodeReplayBuffer(client=shelf, timeout=0.05)
    first, second, third = pieces(episode(100, 12), [8, 10])
    with pytest.raises(
        WaitTimeoutError, match=r"let 5 of 8 .* 3 are kept for the next add"
    ) as info:
        buffer.add(first, weight=3.0)
    assert (info.value.stored, buffer.waiting, len(buffer)) == (5, 3, 5)
    # They are this buffer's, whether the table has them yet or not.
    assert buffer.get_added_timesteps() == 8
    drawn_steps(buffer, 2)
    with pytest.raises(WaitTimeoutError, match="1 new episodes were not taken") as info:
        buffer.add(second)
    assert (info.value.stored, buffer.waiting) == (2, 1)
    assert buffer.get_added_timesteps() == 8
    drawn_steps(buffer, 5)
    buffer.add([])
    assert (buffer.waiting, len(buffer)) == (0, 1)
    # What was not taken may be added again, and what comes after it fits.
    buffer.add([second, third])
    assert len(buffer) == 5
    assert drawn_steps(buffer, 5) == [(100, step) for step in range(7, 12)]


def test_what_is_kept_is_in_a_state_and_delivered_by_close():
    shelf = Shelf(queue())
    buffer = EchoicEpisodeReplayBuffer(client=shelf, timeout=0.05)
    with pytest.raises(WaitTimeoutError):
        buffer.add(episode(100, 8))
    state = pickle.loads(pickle.dumps(buffer.get_state()))
    with pytest.raises(WaitTimeoutError):
        buffer.close()
    assert shelf.closed
    shelf.table("replay").sample(5)
    other = EchoicEpisodeReplayBuffer(client=shelf, timeout=0.05)
    other.set_state(state)
    assert other.waiting == 3
    other.close()
    assert drawn_steps(other, 3) == [(100, step) for step in range(5, 8)]


def test_a_draw_of_more_than_there_are_has_some_twice_as_rllibs_own():
    own = PrioritizedEpisodeReplayBuffer(capacity=100)
    ours = EchoicEpisodeReplayBuffer(100, seed=1)
    for buffer in (own, ours):
        buffer.add(episode(100, 3))
        drawn = buffer.sample(num_items=5, n_step=1, gamma=0.99, beta=0.4, sample_episodes=True)
        assert len(drawn) == 5
        assert {one.get_rewards(0) for one in drawn} <= {100.0, 101.0, 102.0}
        # One that came twice has the last of its errors.
        buffer.update_priorities(np.arange(1.0, 6.0), "default_policy")
    known = ours.table.items()
    rewards = ours.table.get(known.keys).data["rewards"].tolist()
    expected = dict.fromkeys(rewards, 1.0)
    expected.update({one.get_rewards(0): at + 1.0 for at, one in enumerate(drawn)})
    assert dict(zip(rewards, known.info.priorities.tolist(), strict=True)) == expected


def test_buffers_of_several_drivers_have_one_table_which_is_there_when_they_are_gone():
    table = transition_table("replay", *SPACES, capacity=100, alpha=0.6)
    with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
        settings = {"client": server.address, "timeout": 20.0}
        # A configuration is copied, and written down.
        settings = pickle.loads(pickle.dumps(copy.deepcopy(settings)))
        first, second = (EchoicEpisodeReplayBuffer(**settings) for _ in range(2))
        first.add(episode(100, 10))
        first.close()
        assert len(second.sample(num_items=4, n_step=1)) == 4
        second.update_priorities(np.full(4, 7.0))
        second.close()
        assert len(table) == 10
        assert set(table.items().info.priorities.tolist()) == {1.0, 7.0}
        table.clear()
        # Of the close too, which waits for an answer.
        third = EchoicEpisodeReplayBuffer(**settings | {"timeout": 1.0})
        with pytest.raises(WaitTimeoutError):
            third.sample(num_items=1)
        third.close()


def dqn(env, buffer, **training):
    """Settings of a small DQN."""
    return (
        DQNConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4, rollout_fragment_length=8)
        .training(
            replay_buffer_config={"type": TYPE, **buffer},
            num_steps_sampled_before_learning_starts=500,
            dueling=False,
            **training,
        )
        .rl_module(
            model_config={
                "fcnet_hiddens": [64, 64],
                "fcnet_activation": "relu",
                "head_fcnet_hiddens": [],
            }
        )
        .reporting(min_sample_timesteps_per_iteration=500, min_time_s_per_iteration=0)
        .debugging(seed=1, log_level="ERROR")
    )


@pytest.mark.nightly
def test_dqn_learns_from_a_cluster_and_another_goes_on_with_what_it_left(ray_nodes):
    def tables():
        env = gymnasium.make("CartPole-v1")
        spaces = env.observation_space, env.action_space
        return [transition_table("replay", *spaces, capacity=50_000)]

    with ReplayCluster(tables, num_shards=2, name="rllib", timeout=60.0) as shards:
        config = dqn(
            "CartPole-v1",
            {"client": shards.client(seed=1), "n_step": 2},
            n_step=2,
            lr=1e-3,
            train_batch_size_per_learner=64,
            target_network_update_freq=500,
            training_intensity=16,
            epsilon=[(0, 1.0), (3000, 0.05)],
        )
        algorithm = config.build_algo()
        best = steps = 0.0
        while best < 100 and steps < 20_000:
            told = algorithm.train()["env_runners"]
            best = max(best, told.get("episode_return_mean", 0.0))
            steps = told["num_env_steps_sampled_lifetime"]
        algorithm.stop()
        algorithm.local_replay_buffer.close()
        # Chance has 22.
        assert best >= 100
        another = config.copy(copy_frozen=False).build_algo()
        buffer = another.local_replay_buffer
        # All but the last step of each of the four episodes that went on.
        assert steps - 4 <= len(buffer) <= steps
        assert len(buffer.sample(num_items=64, n_step=2, gamma=0.99)) == 64
        buffer.close()
        another.stop()


@tiers.turn(0, of=3)
def test_a_loaded_algorithm_goes_on_with_the_buffers_state_that_was_saved_beside_it(
    ray_nodes, tmp_path
):
    config = dqn(
        Numbered,
        {"capacity": 10_000, "n_step": 2, "alpha": 0.6},
        n_step=2,
        train_batch_size_per_learner=32,
    )
    algorithm = config.build_algo()
    algorithm.train()
    algorithm.save_to_path(tmp_path / "saved")
    buffer = algorithm.local_replay_buffer
    (tmp_path / "buffer").write_bytes(pickle.dumps(buffer.get_state()))
    known = buffer.table.items()
    algorithm.stop()
    loaded = Algorithm.from_checkpoint(tmp_path / "saved")
    other = loaded.local_replay_buffer
    # RLlib's checkpoints have no buffer, whatever `store_buffer_in_checkpoints` says.
    assert len(other) == 0
    other.set_state(pickle.loads((tmp_path / "buffer").read_bytes()))
    assert len(other) == len(buffer) > 400
    for name, leaf in other.table.get(other.table.items().keys).data.items():
        np.testing.assert_array_equal(leaf, buffer.table.get(known.keys).data[name])
    np.testing.assert_array_equal(other.table.items().info.priorities, known.info.priorities)
    assert (known.info.priorities != 1.0).any()
    assert other.get_added_timesteps() == buffer.get_added_timesteps()
    loaded.train()
    assert len(other) > len(buffer)
    loaded.stop()


@pytest.mark.nightly
def test_two_learners_get_shares_and_each_error_comes_to_its_transition(ray_nodes):
    config = dqn(
        Numbered,
        {"num_learners": 2, "alpha": 1.0, "capacity": 10_000},
        train_batch_size_per_learner=32,
        training_intensity=2,
    ).learners(num_learners=2, num_gpus_per_learner=0, num_cpus_per_learner=1)
    algorithm = config.build_algo()
    algorithm.train()
    table = algorithm.local_replay_buffer.table
    known = table.items()
    rewards = table.get(known.keys).data["rewards"]
    algorithm.stop()
    # A batch gave some transitions their errors, which are about as large as the rewards.
    told = known.info.priorities != 1.0
    assert told.sum() > 20
    np.testing.assert_allclose(known.info.priorities[told], rewards[told], atol=300)


@pytest.mark.nightly
# Gymnasium warns of its own CartPole.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_trials_of_tune_have_a_table_each(ray_nodes, tmp_path):
    env = gymnasium.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    tables = [transition_table(name, *spaces, capacity=5000) for name in ("slow", "fast")]
    with echoic.Server(*tables, listen="tcp://127.0.0.1:0") as server:
        buffer = {"client": server.address, "table": tune.grid_search(["slow", "fast"])}
        results = tune.Tuner(
            "DQN",
            param_space=dqn("CartPole-v1", buffer, train_batch_size_per_learner=32),
            run_config=tune.RunConfig(
                stop={"training_iteration": 2}, storage_path=str(tmp_path), verbose=0
            ),
        ).fit()
        assert [one.error for one in results] == [None, None]
        for one in results:
            name = one.config["replay_buffer_config"]["table"]
            table = next(table for table in tables if table.name == name)
            steps = one.metrics["env_runners"]["num_env_steps_sampled_lifetime"]
            # RLlib closes no buffer; what was drawn after was there, but for the last pieces.
            assert 500 <= len(table) <= steps
            assert (table.items().info.priorities != 1.0).any()


def sac(buffer):
    """Settings of a small SAC that learns as often as it steps."""
    return (
        SACConfig()
        .environment("Pendulum-v1")
        .env_runners(num_env_runners=0, rollout_fragment_length=16)
        .training(
            replay_buffer_config={"type": EchoicEpisodeReplayBuffer, **buffer},
            n_step=2,
            gamma=0.9,
            train_batch_size_per_learner=32,
            num_steps_sampled_before_learning_starts=64,
        )
        .reporting(min_sample_timesteps_per_iteration=128, min_time_s_per_iteration=0)
        .debugging(seed=1, log_level="ERROR")
    )


@tiers.turn(1, of=3)
def test_sac_draws_from_the_buffer_of_its_configuration(ray_nodes, tmp_path):
    algorithm = sac({"capacity": 1000, "n_step": 2, "gamma": 0.9}).build_algo()
    algorithm.train()
    known = algorithm.local_replay_buffer.table.items()
    algorithm.save_to_path(tmp_path / "saved")
    algorithm.stop()
    # All but the last step of the episode that goes on; those that were drawn have their errors.
    assert len(known) == 127
    assert (known.info.priorities != 1.0).sum() > 32
    loaded = Algorithm.from_checkpoint(tmp_path / "saved")
    assert type(loaded.local_replay_buffer) is EchoicEpisodeReplayBuffer
    loaded.stop()


@pytest.mark.nightly
def test_sac_draws_from_a_table_of_a_server(ray_nodes):
    env = gymnasium.make("Pendulum-v1")
    spaces = env.observation_space, env.action_space
    table = transition_table("replay", *spaces, capacity=1000, alpha=0.6)
    with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
        buffer = {"client": server.address, "n_step": 2, "gamma": 0.9}
        algorithm = sac(buffer).build_algo()
        for _ in range(2):
            algorithm.train()
        algorithm.local_replay_buffer.close()
        algorithm.stop()
        # Each episode of 200 steps ends, and all but the last step of the next are there.
        assert len(table) == 255
        assert (table.items().info.priorities != 1.0).sum() > 64


def test_the_class_of_the_buffer_equals_only_itself_and_the_name_that_sac_knows():
    assert EchoicEpisodeReplayBuffer == EchoicEpisodeReplayBuffer
    assert EchoicEpisodeReplayBuffer == "EpisodeReplayBuffer"
    assert EchoicEpisodeReplayBuffer != "PrioritizedEpisodeReplayBuffer"
    assert EchoicEpisodeReplayBuffer != PrioritizedEpisodeReplayBuffer
    assert pickle.loads(pickle.dumps({EchoicEpisodeReplayBuffer: 1})) == {
        EchoicEpisodeReplayBuffer: 1
    }
