"""The game of 24."""

from fractions import Fraction

import pytest

pytest.importorskip("gymnasium")

from conformance import (
    cannot_be_farmed,
    is_deterministic,
    is_gymnasium,
    is_hard_for_chance,
    is_patient,
    is_solved,
)
from echoic.agents.environments import Game24Config, Game24Environment
from echoic.agents.environments.puzzles import parse_expression
from echoic.errors import ArgumentError


def make(**settings):
    return Game24Environment(Game24Config(**settings))


def game(*numbers, **settings):
    environment = make(**settings)
    environment.reset(seed=0, options={"numbers": list(numbers)})
    return environment


def test_it_conforms():
    is_gymnasium(make)
    is_solved(make, range(20))
    is_solved(lambda: make(allow_fractions=False), range(10))
    is_hard_for_chance(make, range(20), words=("1 + 2 + 3 + 4", "5 * 5 - 6 + 5", "24"), steps=5)
    is_deterministic(make)
    is_patient(make)
    cannot_be_farmed(make, range(20), most=1.0)
    assert make().reset(seed=0)[1]["commands"] == (), "discrete policies can't play"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/(3-8/3)", Fraction(24)),
        ("(1 + 2) × (9 − 1)", Fraction(24)),
        ("2 - 3 - 4", Fraction(-5)),
        ("12 / 2 / 3 * 4", Fraction(8)),
        ("1 / (2 - 2)", None),
        ("((((7))))", Fraction(7)),
    ],
)
def test_expressions_are_read_exactly(text, value):
    assert parse_expression(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2 ** 99",
        "9**9**9**9",
        "2 3",
        "2(3)",
        "(2 + 3",
        "2 + 3)",
        ")2(",
        "+ 2",
        "-2 + 3",
        "2 +",
        "()",
        "1.5 * 16",
        "0x18",
        "1e3",
        "24 if 1 else 0",
        "__import__('os').system('true')",
        "1_0 + 2",
        "(" * 50_000,
        "1" * 5000,
        "²",
        "٣ + ٤",
    ],
)
def test_nothing_else_is_an_expression(text):
    assert parse_expression(text) is None


def test_whole_games_have_whole_solutions():
    environment = make(allow_fractions=False)
    for seed in range(20):
        environment.reset(seed=seed)
        assert parse_expression(environment.expert()).whole
        assert environment.step(environment.expert())[4]["success"]


def test_an_answer_wins_at_once():
    environment = game(3, 3, 8, 8)
    _, reward, ended, _, info = environment.step("8 / (3 - 8 / 3) = 24")
    assert (reward, ended, info["success"], info["score"]) == (1.0, True, True, 1.0)


def test_fractions_on_the_way_are_refused_where_the_settings_say_so():
    environment = game(3, 3, 8, 8, allow_fractions=False)
    observation, reward, ended, _, info = environment.step("8 / (3 - 8 / 3)")
    assert "no whole number" in observation["text"]
    assert (reward, ended, info["success"]) == (0.0, True, False)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("1 + 2 + 3 + 4", "That makes 10, not 24."),
        ("4 * 3 * 2 * 1 * 1", "does not use each of the numbers exactly once"),
        ("4 * 4 * 3 / 2", "does not use each of the numbers exactly once"),
        ("4 * 3 / (2 - 1 - 1)", "does not use each"),
        ("24 + 3 - 2 - 1", "does not use each"),
    ],
)
def test_a_wrong_answer_is_told_and_ends(said, fault):
    environment = game(1, 2, 3, 4)
    observation, reward, ended, _, info = environment.step(said)
    assert fault in observation["text"]
    assert (reward, ended, info["success"], info["valid"]) == (0.0, True, False, True)


@pytest.mark.parametrize("said", ["9 - 5", "1 0 - 4", "9 5", "9", "(4 + 5) * 9"])
def test_an_expression_of_fewer_numbers_is_no_attempt(said):
    environment = game(4, 5, 9, 10)
    _, reward, ended, _, info = environment.step(said)
    assert (reward, ended, info["valid"]) == (0.0, False, False)


def test_a_game_without_a_solution_has_no_expert():
    assert game(1, 1, 1, 1).expert() is None


def test_too_long_expressions_are_none():
    said = "(" * 20 + "1" + ")" * 20 + " * 2 * 3 * 4"
    assert game(1, 2, 3, 4).step(said)[1] == 1.0
    assert game(1, 2, 3, 4, max_expression_length=20).step(said)[4]["valid"] is False


def test_chosen_numbers_are_checked():
    environment = make()
    for numbers in ([1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 14], "1234", 5):
        with pytest.raises(ArgumentError, match="four from 1 to 13"):
            environment.reset(options={"numbers": numbers})
    with pytest.raises(ArgumentError, match="max_expression_length must be at least 1, not 0"):
        make(max_expression_length=0)
