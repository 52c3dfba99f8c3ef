"""Wrappers change what they say, and nothing else."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from conformance import Expert, play
from echoic.agents.environments import (
    ActionSpaceWrapper,
    EnvironmentWrapper,
    Game24Config,
    Game24Environment,
    RewardShapingWrapper,
    RoomsConfig,
    RoomsEnvironment,
    StatePreprocessingWrapper,
)
from echoic.errors import ArgumentError


def game(**settings):
    return Game24Environment(Game24Config(device="cpu", **settings))


def rooms():
    return RoomsEnvironment(RoomsConfig(num_rooms=4, locked_doors=0, containers=0))


BACK = {"go north": "go south", "go south": "go north", "go east": "go west", "go west": "go east"}
ROOMS_WAYS = ("go north", "go east", "go south", "go west")


def double(vector):
    return np.concatenate([vector, vector])


WRAPPED = (
    EnvironmentWrapper,
    lambda inner: RewardShapingWrapper(inner, lambda observation, info: info["score"]),
    lambda inner: ActionSpaceWrapper(inner, ["1 + 1", "2 * 2"]),
    lambda inner: StatePreprocessingWrapper(inner, double, 1024),
    lambda inner: EnvironmentWrapper(StatePreprocessingWrapper(inner, double, 1024)),
)


@pytest.mark.parametrize("wrap", WRAPPED)
def test_episodes_are_the_inner_ones(wrap):
    inner = game()
    environment = wrap(inner)
    episode = play(environment, Expert(environment), 3)
    assert episode.success
    assert episode.turns[0].observation == game().reset(seed=3)[0]["text"]
    assert environment.get_statistics() == inner.get_statistics()
    assert environment.instructions == inner.instructions
    assert environment.config is inner.config
    assert environment.unwrapped is inner
    with pytest.raises(AttributeError):
        _ = environment.nothing_of_this_name


def test_shaping_by_a_potential_sums_to_nothing_around_a_loop():
    # A room beside the first one, and back: a loop.
    environment = RewardShapingWrapper(
        rooms(), lambda observation, info: len(observation["text"]), discount=1.0, scale=2.0
    )
    first, _ = environment.reset(seed=0)
    there = next(
        way for way in BACK if environment.reset(seed=0)[1]["command_mask"][ROOMS_WAYS.index(way)]
    )
    rewards = []
    for said in (there, "nonsense", BACK[there]):
        observation, reward, _, _, info = environment.step(said)
        rewards.append(reward)
        assert info["reward"] == 0.0
    assert observation["text"] == first["text"]
    assert all(rewards)
    assert sum(rewards) == pytest.approx(0.0)


def test_the_potential_of_an_end_is_nothing():
    environment = RewardShapingWrapper(game(), lambda observation, info: 0.5, discount=0.9)
    environment.reset(options={"numbers": [1, 2, 3, 4]})
    _, reward, ended, _, info = environment.step("1 * 2 * 3 * 4")
    assert (ended, info["reward"], reward) == (True, 1.0, 0.5)


def test_actions_are_those_of_the_list():
    environment = ActionSpaceWrapper(game(), ["4 + 3", "9 + 9", "4 * 3"])
    _, info = environment.reset(options={"numbers": [1, 2, 3, 4]})
    assert environment.action_space.n == environment.get_action_space_size() == 3
    assert info["command_mask"].tolist() == [True, False, True]
    assert environment.step(1)[4]["valid"] is False
    assert environment.step(3)[4]["valid"] is False
    observation, *_, info = environment.step(np.int64(2))
    assert "Left are 1, 2, 12" in observation["text"]
    assert not info["command_mask"].any()
    with pytest.raises(ArgumentError, match="all different"):
        ActionSpaceWrapper(game(), ["1 + 1", "1 + 1"])


def test_vectors_are_changed_everywhere():
    torch = pytest.importorskip("torch")
    environment = StatePreprocessingWrapper(game(), double, 1024)
    observation, _ = environment.reset(seed=0)
    assert observation in environment.observation_space
    assert observation["vector"].shape == (1024,)
    assert environment.get_state_dim() == 1024
    told = environment.get_state_representation()
    assert torch.equal(told, torch.as_tensor(observation["vector"]))
    wrong = StatePreprocessingWrapper(game(), double, 512)
    with pytest.raises(ArgumentError, match=r"must give 512 numbers, not shape \(1024,\)"):
        wrong.reset(seed=0)


def test_the_mask_of_listed_actions_is_the_inner_one():
    commands = ("take trophy", "go west", "fly", "go north", "go south", "go east")
    environment = ActionSpaceWrapper(rooms(), commands)
    _, info = environment.reset(seed=0)
    some_refused = ended = False
    while not ended:
        inner = environment.unwrapped.state.info
        mask = inner["command_mask"][: len(inner["commands"])]
        possible = {one for one, can in zip(inner["commands"], mask, strict=True) if can}
        assert info["command_mask"].tolist() == [one in possible for one in commands]
        some_refused |= "go west" not in possible
        _, _, ended, _, info = environment.step(environment.expert())
    assert some_refused
    assert not info["command_mask"].any()
