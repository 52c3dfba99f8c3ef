"""Of several agents, each module has a table, and learns from what its own agents did."""

from __future__ import annotations

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
from echoic.errors import ArgumentError, WaitTimeoutError
from echoic.integrations.ray import (
    EchoicEpisodeReplayBuffer,
    EchoicMultiAgentEpisodeReplayBuffer,
    transition_table,
)
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.minibatch_utils import ShardEpisodesIterator
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

TYPE = "echoic.integrations.ray.EchoicMultiAgentEpisodeReplayBuffer"
MODULES = {"a": "red", "b": "red", "c": "blue"}
# Modules see other things and do others.
WIDTHS = {"red": 3, "blue": 2}
ACTIONS = {"red": 2, "blue": 3}
# Rewards of the blue are of another size.
SCALE = {"red": 1.0, "blue": 1000.0}
LENGTHS = {"a": 50, "b": 20, "c": 50}


def box(module):
    """What a module sees."""
    return gymnasium.spaces.Box(-1e6, 1e6, (WIDTHS[module],), np.float32)


def discrete(module):
    """What a module does."""
    return gymnasium.spaces.Discrete(ACTIONS[module])


def module_of(agent, episode=None, **_):
    """RLlib's mapping."""
    return MODULES[agent]


def observation(agent, step):
    """It says of which agent it is, and at which step."""
    seen = np.zeros(WIDTHS[MODULES[agent]], np.float32)
    seen[:2] = ord(agent) - 97, step / 10
    return seen


class Team(MultiAgentEnv):
    """Three agents, of which one ends early; a reward is the number of the step, in two sizes."""

    def __init__(self, config=None):
        """Begin before the first episode."""
        super().__init__()
        self.possible_agents = list(MODULES)
        self.observation_spaces = {agent: box(module) for agent, module in MODULES.items()}
        self.action_spaces = {agent: discrete(module) for agent, module in MODULES.items()}
        self.agents = list(MODULES)
        self._step = 0

    def reset(self, *, seed=None, options=None):
        """Begin anew."""
        self.agents = list(MODULES)
        self._step = 0
        return {agent: observation(agent, 0) for agent in self.agents}, {}

    def step(self, actions):
        """Go on."""
        self._step += 1
        seen = {agent: observation(agent, self._step) for agent in actions}
        rewards = {agent: SCALE[MODULES[agent]] * self._step for agent in actions}
        ends = {agent: self._step == LENGTHS[agent] for agent in actions}
        self.agents = [agent for agent in self.agents if self._step < LENGTHS[agent]]
        return seen, rewards, {**ends, "__all__": not self.agents}, {"__all__": False}, {}


def played(cuts=(), *, numpy=False):
    """An episode of the team in pieces, as RLlib's environments deliver them."""
    env = Team()
    made, current = (
        [],
        MultiAgentEpisode(
            id_="one",
            observation_space=env.observation_spaces,
            action_space=env.action_spaces,
            agent_to_module_mapping_fn=module_of,
        ),
    )
    current.add_env_reset(observations=env.reset()[0], infos={})
    step = 0
    while not current.is_done:
        actions = {agent: np.int64(step % 2) for agent in env.agents}
        seen, rewards, ends, truncateds, _ = env.step(actions)
        current.add_env_step(seen, actions, rewards, {}, terminateds=ends, truncateds=truncateds)
        step += 1
        if step in cuts or current.is_done:
            made.append(current)
            if not current.is_done:
                current = current.cut(len_lookback_buffer=1)
    return [piece.to_numpy() for piece in made] if numpy else made


def rows_of(table):
    """The transitions of a table by agent and step: reward, last step and whether it ended."""
    data = table.get(table.items().keys).data
    found = {}
    for number, seen in enumerate(data["obs"]):
        key = chr(97 + int(seen[0])), round(float(seen[1]) * 10)
        assert key not in found
        last = data["new_obs"][number]
        assert last[0] == seen[0]
        assert data["actions"][number] == key[1] % 2
        ended = bool(data["terminateds"][number])
        assert not data["truncateds"][number]
        found[key] = float(data["rewards"][number]), round(float(last[1]) * 10), ended
    return found


def expected(n_step, gamma):
    """What the tables have of an episode of the team."""
    tables = {"red": {}, "blue": {}}
    for agent, module in MODULES.items():
        for step in range(LENGTHS[agent]):
            last = min(step + n_step, LENGTHS[agent])
            sums = [gamma**at * SCALE[module] * (step + at + 1) for at in range(last - step)]
            reward = pytest.approx(sum(sums))
            tables[module][agent, step] = reward, last, last == LENGTHS[agent]
    return tables


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_each_step_of_an_agent_becomes_a_transition_in_the_table_of_its_module(n_step, numpy):
    buffer = EchoicMultiAgentEpisodeReplayBuffer(1000, n_step=n_step, gamma=0.9)
    for piece in played([7, 8, 20, 35], numpy=numpy):
        buffer.add(piece)
    assert {name: rows_of(table) for name, table in buffer.table.items()} == expected(n_step, 0.9)
    assert len(buffer) == buffer.get_added_timesteps() == 120
    assert buffer.get_num_timesteps("red") == 70


def turns(cuts, length=13):
    """An episode in which two agents take turns, in pieces; a reward is the number of the step."""
    spaces = {agent: gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32) for agent in "ac"}
    made, current = (
        [],
        MultiAgentEpisode(
            id_="one",
            observation_space=gymnasium.spaces.Dict(spaces),
            action_space=gymnasium.spaces.Dict(dict.fromkeys("ac", gymnasium.spaces.Discrete(2))),
            agent_to_module_mapping_fn=module_of,
        ),
    )
    current.add_env_reset(observations={"a": np.zeros(1, np.float32)}, infos={})
    for step in range(1, length + 1):
        turn, other = "ac" if step % 2 else "ca"
        done = step == length
        seen = dict.fromkeys("ac" if done else other, np.full(1, step, np.float32))
        current.add_env_step(
            seen,
            {turn: np.int64(0)},
            {turn: float(step)},
            {},
            terminateds={"__all__": done},
            truncateds={"__all__": False},
        )
        if step in cuts or done:
            made.append(current)
            current = current if done else current.cut(len_lookback_buffer=1)
    return made


@pytest.mark.parametrize("cuts", [(), (4,), (5,), (3, 4, 8), (1, 2, 3)])
def test_agents_that_take_turns_have_the_steps_between_their_own(cuts):
    buffer = EchoicMultiAgentEpisodeReplayBuffer(100, n_step=1)
    for piece in turns(cuts):
        buffer.add(piece)
    for module, begin in (("red", 0), ("blue", 1)):
        table = buffer.table[module]
        data = table.get(table.items().keys).data
        found = zip(data["obs"][:, 0], data["new_obs"][:, 0], data["rewards"], strict=True)
        # The last step is where both end.
        assert sorted(found) == [(at, min(at + 2, 13), at + 1) for at in range(begin, 13, 2)]
        assert data["terminateds"].sum() == 1


def test_only_the_modules_that_were_named_are_kept():
    buffer = EchoicMultiAgentEpisodeReplayBuffer(1000, modules=["blue"])
    with pytest.raises(ArgumentError, match="before the first sample"):
        buffer.sample(num_items=1)
    buffer.add(played())
    assert list(buffer.table) == ["blue"]
    assert {one.module_id for one in buffer.sample(num_items=3)} == {"blue"}


@pytest.mark.parametrize("learners", [0, 2])
def test_a_draw_has_as_many_of_each_module_and_errors_find_them(learners):
    buffer = EchoicMultiAgentEpisodeReplayBuffer(1000, alpha=1.0, seed=3, num_learners=learners)
    buffer.add(played())
    drawn = buffer.sample(num_items=32, n_step=1)
    assert [one.module_id for one in drawn] == ["red"] * 32 + ["blue"] * 32
    # RLlib puts rows of one name together, and these are to stay apart.
    assert len({one.multi_agent_episode_id for one in drawn}) == 64
    assert {len(one.get_observations(0)) for one in drawn[:32]} == {3}
    assert {len(one.get_observations(0)) for one in drawn[32:]} == {2}
    for module in ("blue", "red"):
        # As RLlib deals them out and puts the errors of each module together.
        shares = ShardEpisodesIterator(drawn, num_shards=max(1, learners))
        dealt = [one for share in shares for one in share if one.module_id == module]
        errors = [one.get_rewards(0) + 0.5 for one in dealt]
        buffer.update_priorities(np.array(errors), module)
        table = buffer.table[module]
        known = table.items()
        told = known.info.priorities != 1.0
        assert told.sum() >= 15
        rewards = table.get(known.keys).data["rewards"]
        np.testing.assert_allclose(known.info.priorities[told], rewards[told] + 0.5)
    assert buffer.get_sampled_timesteps() == 32
    assert len(buffer.sample(num_items=4, modules_to_sample=["red"])) == 4


def test_what_tables_of_several_agents_have_not_is_refused():
    buffer = EchoicMultiAgentEpisodeReplayBuffer(100)
    with pytest.raises(ArgumentError, match="of several agents, got a SingleAgentEpisode"):
        buffer.add(SingleAgentEpisode())
    with pytest.raises(ArgumentError, match="are for EchoicMultiAgentEpisodeReplayBuffer"):
        EchoicEpisodeReplayBuffer(100).add(played())
    buffer.add(played())
    with pytest.raises(ArgumentError, match="'independent', got 'synchronized'"):
        buffer.sample(num_items=1, replay_mode="synchronized")
    with pytest.raises(ArgumentError, match=r"modules \['blue', 'red'\], got 'green'"):
        buffer.update_priorities(np.ones(1), "green")


@pytest.mark.parametrize("buffer", [EchoicEpisodeReplayBuffer, EchoicMultiAgentEpisodeReplayBuffer])
def test_rllib_knows_a_buffer_by_its_class_as_by_its_name(buffer):
    # Tune hands it the class, and RLlib asks this of it.
    assert "EpisodeReplayBuffer" in buffer
    assert "MultiAgentReplayBuffer" not in buffer


def test_a_state_has_the_transitions_of_all_modules():
    buffer = EchoicMultiAgentEpisodeReplayBuffer(1000)
    buffer.add(played())
    buffer.sample(num_items=8)
    copied = EchoicMultiAgentEpisodeReplayBuffer(1000)
    copied.set_state(pickle.loads(pickle.dumps(buffer.get_state())))
    assert {name: rows_of(table) for name, table in copied.table.items()} == expected(1, 0.9)
    assert copied.get_added_timesteps() == 120
    assert copied.get_sampled_timesteps() == 8


def test_a_table_that_takes_nothing_keeps_no_other_back():
    queue = {"limiter": echoic.limiters.Queue(5), "max_times_sampled": 1}
    red, blue = (
        transition_table(
            f"replay/{module}", box(module), discrete(module), capacity=1000, alpha=0, **options
        )
        for module, options in (("red", queue), ("blue", {}))
    )
    buffer = EchoicMultiAgentEpisodeReplayBuffer(client=Shelf(red, blue), timeout=0.05)
    with pytest.raises(WaitTimeoutError, match="'replay/red' let 5 of 70") as info:
        buffer.add(played())
    assert (info.value.stored, buffer.waiting, len(red), len(blue)) == (5, 65, 5, 50)
    with pytest.raises(WaitTimeoutError, match="1 new episodes were not taken"):
        buffer.add(played())
    assert (buffer.waiting, len(blue)) == (65, 50)
    assert buffer.get_added_timesteps() == 120


@tiers.turn(2, of=3)
def test_dqn_trains_two_policies_each_with_its_own_errors(ray_nodes):
    config = (
        DQNConfig()
        .environment(Team)
        .env_runners(num_env_runners=0, rollout_fragment_length=10)
        .multi_agent(policies={"red", "blue"}, policy_mapping_fn=module_of)
        .training(
            replay_buffer_config={"type": TYPE, "capacity": 10_000, "alpha": 1.0},
            num_steps_sampled_before_learning_starts=300,
            train_batch_size_per_learner=32,
            training_intensity=4,
            dueling=False,
        )
        .rl_module(
            rl_module_spec=MultiRLModuleSpec(
                rl_module_specs={
                    module: RLModuleSpec(model_config={"fcnet_hiddens": [16]}) for module in WIDTHS
                }
            )
        )
        .reporting(min_sample_timesteps_per_iteration=500, min_time_s_per_iteration=0)
        .debugging(seed=1, log_level="ERROR")
    )
    algorithm = config.build_algo()
    before = {name: pickle.dumps(one) for name, one in weights(algorithm).items()}
    told = algorithm.train()
    tables = algorithm.local_replay_buffer.table
    after = weights(algorithm)
    algorithm.stop()
    assert told["env_runners"]["num_env_steps_sampled_lifetime"] >= 500
    for module, table in tables.items():
        assert pickle.dumps(after[module]) != before[module]
        known = table.items()
        rewards = table.get(known.keys).data["rewards"]
        # Batches gave transitions their errors, which are about as large as the rewards. What
        # came later has the greatest error before it, which others have as well, but for a few.
        _, kind, counts = np.unique(known.info.priorities, return_inverse=True, return_counts=True)
        told = counts[kind] == 1
        assert told.sum() > 20
        off = np.abs(known.info.priorities[told] - rewards[told])
        assert (off < 5 * SCALE[module]).mean() > 0.95


def weights(algorithm):
    """What the modules of an algorithm's learners have learned."""
    state = algorithm.learner_group.get_weights()
    return {name: {key: np.asarray(one) for key, one in state[name].items()} for name in WIDTHS}
