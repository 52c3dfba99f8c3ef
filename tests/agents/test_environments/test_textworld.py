"""Games of TextWorld, played by TextWorld where it is installed; what holds without it, always."""

import subprocess
import sys
from pathlib import Path

import pytest
from conformance import (
    cannot_be_farmed,
    index_is_command,
    is_deterministic,
    is_patient,
    is_solved,
)
from echoic.agents.environments import (
    EnvironmentProcessError,
    TextWorldConfig,
    TextWorldEnvironment,
    make_environment,
)
from echoic.errors import ArgumentError
from games import interpreter, without_packages


@pytest.fixture
def make(tmp_path_factory, monkeypatch):
    python = interpreter("textworld", "ECHOIC_TEXTWORLD_PYTHON", "ECHOIC_ALFWORLD_PYTHON")
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("ECHOIC_CACHE", str(cache))
    made = []

    def make(**settings):
        small = {"world_size": 2, "num_objects": 4, "quest_length": 2, "num_games": 4}
        config = TextWorldConfig(**{"python": python, **small, **settings})
        made.append(TextWorldEnvironment(config))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_it_conforms(make):
    is_solved(make, range(4))
    is_deterministic(make, steps=8)
    is_patient(make)
    cannot_be_farmed(make, range(2), most=1.0, steps=40)
    index_is_command(make)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_cooking_games_are_solvable_and_a_lost_one_is_no_success(make):
    settings = {"theme": "cooking", "world_size": 1, "num_objects": 1, "quest_length": 3}
    is_solved(lambda: make(**settings), range(2))
    environment = make(**settings)
    for seed in range(4):
        environment.reset(seed=seed)
        for _ in range(16):
            known = environment._seen["commands"]
            burn = [one for one in known if one.startswith("cook ")]
            take = [one for one in known if one.startswith("take ")]
            food = [one for one in take if "cookbook" not in one and "knife" not in one]
            rest = [one for one in known if one.startswith("open ")]
            command = next(iter(burn or food or rest), "look")
            _, _, ended, _, info = environment.step(command)
            if ended:
                assert info["lost"]
                assert (info["success"], info["score"]) == (False, 0.0)
                return
    pytest.fail("no game was lost by burning what the recipe needs")


@pytest.mark.nightly
def test_nothing_of_it_is_imported_here(make):
    make().reset(seed=0)
    assert not {"textworld", "jericho"} & set(sys.modules)


def test_no_module_of_ours_imports_it():
    text = (
        "import sys, echoic.agents.environments.textworld, echoic.agents.environments.alfworld\n"
        "assert not {'textworld', 'jericho', 'alfworld', 'fast_downward'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_without_the_package_reset_says_how_to_get_it(tmp_path):
    environment = make_environment("textworld", python=without_packages(tmp_path))
    with pytest.raises(ModuleNotFoundError, match=r"TextWorld is not installed for .*pip install"):
        environment.reset(seed=0)
    environment.close()


def test_an_interpreter_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("ECHOIC_TEXTWORLD_PYTHON", str(tmp_path / "none"))
    environment = TextWorldEnvironment()
    assert Path(environment.python).name == "none"
    with pytest.raises(EnvironmentProcessError, match="can't be started"):
        environment.reset(seed=0)


def test_settings_are_checked():
    for settings, message in (
        ({"quest_length": 0}, "quest_length must be at least 1, not 0"),
        ({"theme": "space"}, "one of house, basic, cooking, not 'space'"),
        ({"theme": "cooking", "world_size": 2}, "must be 1, 6, 9 or 12, not 2"),
        ({"theme": "cooking", "world_size": 6, "num_objects": 6}, "from 1 to 5, not 6"),
    ):
        with pytest.raises(ArgumentError, match=message):
            TextWorldConfig(**settings)


def test_all_settings_reach_the_game():
    base = TextWorldConfig().as_game()
    for name, value in (("world_size", 9), ("num_objects", 3), ("quest_length", 4)):
        assert TextWorldConfig(**{name: value}).as_game() != base
    assert TextWorldConfig(theme="basic").as_game() != base
