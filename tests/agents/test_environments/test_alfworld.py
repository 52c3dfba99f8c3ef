"""ALFWorld's games, played by ALFWorld where it is installed; what holds without it, always."""

import subprocess
import sys

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

# Writes two games in the form of the official ones, which are too large to be downloaded here. The
# package has their rules and words.
WRITE = '''
import json, pathlib, sys
from alfworld import info
from alfworld.agents.utils.misc import add_task_to_grammar
data = pathlib.Path(info.__file__).parent / "data"
PROBLEM = """(define (problem little) (:domain alfred)
(:objects agent1 - agent loc_bar_0 - location loc_bar_1 - location loc_bar_2 - location
 CoffeeTable_bar_1 - receptacle Sofa_bar_1 - receptacle {0}_bar_1 - object
 CoffeeTableType - rtype FridgeType - rtype MicrowaveType - rtype SinkBasinType - rtype
 SofaType - rtype ButterKnifeType - otype KnifeType - otype {0}Type - otype)
(:init (atLocation agent1 loc_bar_0)
 (receptacleType CoffeeTable_bar_1 CoffeeTableType)
 (receptacleAtLocation CoffeeTable_bar_1 loc_bar_1)
 (receptacleType Sofa_bar_1 SofaType) (receptacleAtLocation Sofa_bar_1 loc_bar_2)
 (objectType {0}_bar_1 {0}Type) (inReceptacle {0}_bar_1 CoffeeTable_bar_1)
 (objectAtLocation {0}_bar_1 loc_bar_1) (pickupable {0}_bar_1)
 (canContain CoffeeTableType {0}Type) (canContain SofaType {0}Type))
(:goal (and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r)
 (objectType ?o {0}Type) (receptacleType ?r SofaType)))))))"""
for thing in ("Laptop", "Newspaper"):
    trial = {
        "task_id": "trial_T0",
        "task_type": "pick_and_place_simple",
        "pddl_params": {
            "object_target": thing, "parent_target": "Sofa", "toggle_target": "",
            "mrecep_target": "", "object_sliced": False,
        },
        "scene": {"floor_plan": "FloorPlan202", "scene_num": 202},
    }
    home = pathlib.Path(sys.argv[1]) / f"pick_and_place_simple-{thing}-None-Sofa-202" / "trial_T0"
    home.mkdir(parents=True)
    (home / "traj_data.json").write_text(json.dumps(trial))
    game = {
        "pddl_domain": (data / "alfred.pddl").read_text(),
        "grammar": add_task_to_grammar((data / "alfred.twl2").read_text(), trial),
        "pddl_problem": PROBLEM.format(thing),
        "solvable": True,
        "walkthrough": [
            "go to coffeetable 1", f"take {thing.lower()} 1 from coffeetable 1",
            "go to sofa 1", f"move {thing.lower()} 1 to sofa 1",
        ],
    }
    (home / "game.tw-pddl").write_text(json.dumps(game))
'''


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_official_games_are_played(tmp_path, monkeypatch):
    python = interpreter("alfworld", "ECHOIC_ALFWORLD_PYTHON")
    home = tmp_path / "json_2.1.1" / "valid_seen"
    subprocess.run([python, "-c", WRITE, str(home)], check=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    monkeypatch.setenv("ECHOIC_ALFWORLD_PYTHON", python)
    made = []

    def make(**settings):
        config = ALFWorldConfig(**{"split": "valid_seen", **settings})
        made.append(ALFWorldEnvironment(config))
        return made[-1]

    assert make().config.provenance == "alfworld"
    is_solved(make, range(4))
    is_hard_for_chance(make, range(6), steps=4, most=0.34)
    is_deterministic(make, steps=8)
    is_patient(make)
    cannot_be_farmed(make, range(2), most=1.0, steps=40)
    index_is_command(make)

    environment = make()
    observation, info = environment.reset(seed=1)
    assert "Your task is to" in observation["text"]
    assert (info["score"], info["success"]) == (0.0, False)
    assert environment.step("look")[1:3] == (0.0, False)
    assert environment.expert() is None, "off the way of the walkthrough"
    with pytest.raises(FileNotFoundError, match=r"there are no games of .*look_at_obj_in_light"):
        make(task_type="look_at_obj").reset(seed=0)
    with pytest.raises(FileNotFoundError, match=r"games are not installed: .*alfworld-download"):
        make(split="train").reset(seed=0)
    for one in made:
        one.close()


def test_it_is_made_without_the_package_and_reset_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ECHOIC_ALFWORLD_PYTHON", without_packages(tmp_path))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = ALFWorldConfig(task_type="pick_and_place", max_objects=10)
    assert config.provenance == "alfworld (official games: not installed)"
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
        ({"split": "test"}, "split must be one of train, valid_seen, valid_unseen, not 'test'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ALFWorldConfig(**settings)
