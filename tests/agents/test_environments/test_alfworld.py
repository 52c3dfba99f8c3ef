"""ALFWorld's games, played by ALFWorld where it is installed; what holds without it, always."""

import shutil
import sys
from pathlib import Path

import pytest
from conformance import (
    cannot_be_farmed,
    index_is_command,
    is_deterministic,
    is_hard_for_chance,
    is_patient,
    is_solved,
)
from echoic.agents.environments import ALFWorldConfig, ALFWorldEnvironment, make_environment
from echoic.errors import ArgumentError
from games import interpreter, without_packages

TASKS = (
    "pick_and_place",
    "look_at_obj",
    "pick_clean_then_place",
    "pick_heat_then_place",
    "pick_cool_then_place",
    "pick_two_obj",
)


@pytest.fixture
def make(tmp_path_factory, monkeypatch):
    python = interpreter("alfworld", "ECHOIC_ALFWORLD_PYTHON")
    monkeypatch.setenv("ECHOIC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    made = []

    def make(**settings):
        config = ALFWorldConfig(**{"python": python, "num_games": 3, **settings})
        made.append(ALFWorldEnvironment(config))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_it_conforms(make):
    is_solved(make, range(3))
    is_hard_for_chance(make, range(6), steps=30, most=0.34)
    is_deterministic(make, steps=8)
    is_patient(make)
    cannot_be_farmed(make, range(2), most=1.0, steps=40)
    index_is_command(make)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", TASKS)
def test_all_six_tasks_are_solvable_and_not_done_at_the_start(make, task):
    environment = make(task_type=task)
    _, info = environment.reset(seed=0)
    assert (info["score"], info["success"]) == (0.0, False)
    is_solved(lambda: make(task_type=task), range(2), 100)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_wait_is_no_success_and_the_expert_finds_back(make):
    environment = make()
    environment.reset(seed=1)
    for command in ("wait", "look", "inventory"):
        assert environment.step(command)[1:3] == (0.0, False)
    ended, steps = False, 0
    while not ended and steps < 60:
        _, reward, ended, _, info = environment.step(environment.expert())
        steps += 1
    assert (reward, info["success"]) == (1.0, True)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_sizes_are_those_of_the_settings(make):
    small, large = make(room_size=3, max_objects=2), make(room_size=9, max_objects=30)
    counts = []
    for environment in (small, large):
        environment.reset(seed=0)
        counts.append(sum(one.startswith("go to ") for one in environment._told["commands"]))
    assert counts[0] <= 4 < counts[1] <= 9


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_games_of_a_folder_are_played_as_the_official_ones_are(make, monkeypatch, tmp_path):
    generated = make(num_games=1)
    text = generated.reset(seed=0)[0]["text"]
    made = generated._game()
    games = list((Path(made["folder"]) / "0").rglob("game.tw-pddl"))
    home = tmp_path / "json_2.1.1" / "valid_seen"
    shutil.copytree(games[0].parent.parent, home / games[0].parent.parent.name)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    official = make(split="valid_seen")
    assert official.reset(seed=5)[0]["text"] == text
    assert official._game()["settings"]["games"] == "official"
    with pytest.raises(ValueError, match="there are no games of"):
        make(split="train").reset(seed=0)


def test_it_is_made_without_the_package_and_reset_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ECHOIC_ALFWORLD_PYTHON", without_packages(tmp_path))
    config = ALFWorldConfig(task_type="pick_and_place", max_objects=10)
    environment = ALFWorldEnvironment(config)
    assert environment.get_state_dim() == 512
    assert environment.get_action_space_size() == 20
    with pytest.raises(ModuleNotFoundError, match=r"ALFWorld is not installed for .*pip install"):
        environment.reset(seed=0)
    environment.close()
    assert not {"alfworld", "textworld", "jericho", "fast_downward"} & set(sys.modules)


def test_either_name_of_the_vectors_size_counts():
    assert ALFWorldConfig(text_encoding_dim=64).state_encoding_dim == 64
    assert ALFWorldConfig(state_encoding_dim=64).text_encoding_dim == 64
    environment = make_environment("alfworld", text_encoding_dim=32)
    assert environment.observation_space["vector"].shape == (32,)
    with pytest.raises(ArgumentError, match="are the same, not 32 and 64"):
        ALFWorldConfig(text_encoding_dim=32, state_encoding_dim=64)


def test_settings_are_checked():
    for settings, message in (
        ({"use_vision": True}, "use_vision must be False: rooms are drawn by a simulator"),
        ({"task_type": "cook"}, "task_type must be one of pick_and_place, .*any, not 'cook'"),
        ({"max_objects": 1}, "max_objects must be at least 2, not 1"),
        ({"room_size": 1}, "room_size must be at least 2, not 1"),
        ({"split": "test"}, "split must be one of train, valid_seen, valid_unseen, not 'test'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ALFWorldConfig(**settings)
    assert len(ALFWorldConfig(task_type="any").task_names()) == 6
    assert ALFWorldConfig(task_type="look_at_obj_in_light").task_names() == ["look_at_obj_in_light"]
