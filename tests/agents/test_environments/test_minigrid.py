"""MiniGrid's worlds as text and as vectors."""

import itertools

import numpy as np
import pytest

pytest.importorskip("minigrid")

import gymnasium
from conformance import (
    cannot_be_farmed,
    index_is_command,
    is_deterministic,
    is_gymnasium,
    is_hard_for_chance,
    is_patient,
)
from echoic.agents.environments import MiniGridConfig, MiniGridEnvironment
from echoic.agents.environments.minigrid import _TABLE, COMMANDS
from echoic.errors import ArgumentError

TASKS = (
    {"task_type": "key_door"},
    {"task_type": "navigation"},
    {"task_type": "multi_object"},
    {"task_type": "memory", "grid_size": 9},
)
# Ways to solve worlds: settings, a seed, and the indices of commands.
WAYS = [
    ({}, 0, "121325222212"),
    ({}, 1, "020322152222122222"),
    ({}, 2, "0023002202252212"),
    ({"grid_size": 5}, 0, "23152212"),
    ({"grid_size": 6}, 2, "0031252212"),
    ({"grid_size": 16}, 0, "002220230020522222222212"),
    ({"task_type": "navigation"}, 0, "1222212222"),
    ({"task_type": "navigation"}, 1, "2202222"),
    ({"task_type": "multi_object"}, 0, "022312214"),
    ({"task_type": "multi_object"}, 1, "3124"),
    ({"task_type": "multi_object", "num_objects": 2}, 0, "002230024"),
    ({"task_type": "multi_object", "num_objects": 4}, 0, "21222213124"),
    ({"task_type": "memory", "grid_size": 9}, 0, "222202"),
    ({"task_type": "memory", "grid_size": 9}, 2, "202"),
    ({"task_type": "BabyAI-GoToLocal-v0"}, 0, "12"),
    ({"task_type": "BabyAI-UnlockPickup-v0"}, 0, "00031251402222203"),
    ({"task_type": "MiniGrid-MultiRoom-N4-S5-v1"}, 0, "020252212252202125222212"),
]


def maker(**fixed):
    return lambda **settings: MiniGridEnvironment(MiniGridConfig(**fixed, **settings))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["task_type"])
def test_it_conforms(task):
    make = maker(**task)
    is_deterministic(make)
    is_patient(make)
    cannot_be_farmed(make, range(5), most=1.0)
    index_is_command(make)


@pytest.mark.parametrize(("settings", "seed", "way"), WAYS)
def test_worlds_are_solved_by_what_solves_them(settings, seed, way):
    environment = maker(**settings)()
    environment.reset(seed=seed)
    for action in way:
        assert not environment.state.done
        _, reward, ended, _, info = environment.step(COMMANDS[int(action)])
    assert (ended, info["success"], info["score"]) == (True, True, 1.0)
    assert 0.1 < reward < 1.0


def test_it_is_gymnasiums():
    is_gymnasium(maker())


def test_chance_solves_next_to_none():
    is_hard_for_chance(maker(), range(8), steps=150)
    is_hard_for_chance(maker(task_type="multi_object"), range(20))


def test_chance_finds_a_goal_without_obstacles_sometimes():
    environment = maker(task_type="navigation")()
    rng = np.random.default_rng(0)
    won = 0
    for seed in range(8):
        environment.reset(seed=seed)
        done = False
        while not done:
            _, _, ended, cut, info = environment.step(int(rng.integers(3)))
            done = ended or cut
        won += info["success"]
    assert won >= 2, "the guide says that this task is easy for chance"


@pytest.mark.parametrize("number", [2, 3, 4])
def test_so_many_objects_lie_around(number):
    environment = maker(task_type="multi_object", num_objects=number)()
    environment.reset(seed=0)
    grid = environment._world.grid
    assert sum(cell is not None and cell.can_pickup() for cell in grid.grid) == number


def test_worlds_and_rewards_are_the_packages():
    environment, bare = maker()(), gymnasium.make("MiniGrid-DoorKey-8x8-v0").unwrapped
    environment.reset(seed=0)
    for number, action in enumerate(map(int, WAYS[0][2])):
        _, earned, *_, info = environment.step(action)
        if not number:
            bare.reset(seed=info["package_seed"])
        seen, reward, *_ = bare.step(action)
        assert (environment._image == seen["image"]).all()
        assert earned == reward


def test_the_packages_limit_of_steps_cuts_off():
    environment = maker(task_type="multi_object")()
    environment.reset(seed=0)
    steps = 0
    cut = False
    while not cut:
        *_, reward, ended, cut, info = environment.step("turn left")
        steps += 1
        assert not ended
    assert (steps, reward, info["success"]) == (40, 0.0, False)


@pytest.mark.parametrize("nonsense", ["let me think", 7])
def test_talk_is_not_free(nonsense):
    environment = maker()()
    rewards = []
    for talk in (0, 5):
        environment.reset(seed=0)
        for action in [*[nonsense] * talk, *map(int, WAYS[0][2])]:
            reward = environment.step(action)[1]
        rewards.append(reward)
    assert rewards[1] == pytest.approx(rewards[0] - 0.9 * 5 / 640)


def test_no_two_cells_have_the_same_numbers():
    distinct = {}
    for kind, color, state in itertools.product(range(10), range(6), range(3)):
        if kind < 2 and (color or state):
            continue  # nothing has no colour
        if kind != 4 and state:
            continue  # only doors have a state
        distinct[(kind, color, state)] = _TABLE[kind, color, state].tobytes()
    assert len(set(distinct.values())) == len(distinct)
    assert np.abs(_TABLE).max() == 1


def test_the_text_says_what_is_seen():
    environment = maker(grid_size=6)()
    texts = []
    environment.reset(seed=2)
    for action in WAYS[4][2]:
        texts.append(environment.state.observation)
        environment.step(int(action))
    assert environment.state.done
    assert environment.expert() is None
    assert all(text.startswith("Mission: use the key to open the door") for text in texts)
    assert any("- a yellow key: 1 ahead" in text for text in texts)
    assert any("carry a yellow key" in text for text in texts)
    assert any("In front of you: a locked yellow door." in text for text in texts)
    assert any("In front of you: an open yellow door." in text for text in texts)
    assert any("the goal: " in text for text in texts)


def test_levels_are_made_in_silence(capfd):
    environment = maker(task_type="BabyAI-PutNextS5N2-v0")()
    for seed in range(30):
        environment.reset(seed=seed)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grid_size": 7}, "key_door has grid_size 5, 6, 8, 16, not 7"),
        ({"task_type": "memory"}, "memory has grid_size 7, 9, 11, 13, 17, not 8"),
        ({"task_type": "keys"}, "one of key_door, navigation, memory, multi_object, or an id"),
        ({"task_type": "multi_object", "num_objects": 5}, "num_objects must be from 2 to 4"),
        ({"task_type": "multi_object", "grid_size": 5}, "grid_size 6 or more, not 5"),
        ({"state_encoding_dim": 445}, "state_encoding_dim must be at least 446, not 445"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        MiniGridConfig(**settings)


def test_unknown_ids_are_refused():
    with pytest.raises(ArgumentError, match="no 'MiniGrid-Nowhere-v0'"):
        maker(task_type="MiniGrid-Nowhere-v0")()
