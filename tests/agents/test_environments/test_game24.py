"""The game of 24."""

from fractions import Fraction

import pytest

pytest.importorskip("gymnasium")

from conformance import (
    cannot_be_farmed,
    index_is_command,
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
    is_solved(make, range(60))
    is_solved(lambda: make(allow_fractions=False), range(20))
    is_hard_for_chance(make, range(200))
    is_deterministic(make)
    is_patient(make)
    cannot_be_farmed(make, range(20), most=1.0)
    index_is_command(make)


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
    for seed in range(30):
        environment.reset(seed=seed)
        while not environment.state.done:
            environment.step(environment.expert())
            assert all(one.denominator == 1 for one in environment._left)
        assert environment.state.info["success"]


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


def test_attempts_are_counted():
    environment = game(1, 2, 3, 4, attempts=2)
    assert environment.step("1 + 2 + 3 + 4")[2] is False
    assert environment.step("1 * 2 * 3 * 4")[1:3] == (1.0, True)
    environment = game(1, 2, 3, 4, attempts=2)
    environment.step("1 + 2 + 3 + 4")
    assert environment.step("1 + 2 + 3 * 4")[1:3] == (0.0, True)


def test_steps_take_the_place_of_their_numbers():
    environment = game(8, 8, 3, 3)
    for said, left in (("8 / 3", "Left are 8/3, 3, 8"), ("3 - (8/3)", "Left are 1/3, 8")):
        assert left in environment.step(said)[0]["text"]
    observation, reward, ended, _, _ = environment.step("8 / (1/3)")
    assert (observation["text"], reward, ended) == ("24 is left.", 1.0, True)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("9-5", "4, 4, 10"),
        (" 5+9 ", "4, 10, 14"),
        ("5 × 9", "4, 10, 45"),
        ("4 - 10", "-6, 5, 9"),
        ("5/10", "1/2, 4, 9"),
        ("(10)*(4)", "5, 9, 40"),
    ],
)
def test_steps_are_said_in_any_order_and_with_any_spaces(said, left):
    environment = game(4, 5, 9, 10)
    observation, *_, info = environment.step(said)
    assert info["valid"]
    assert observation["text"].endswith(f"Left are {left}.")


def test_steps_of_negative_numbers_and_fractions_are_said_with_parentheses_or_without():
    for said in ("5 - (-6)", "5--6"):
        environment = game(4, 5, 9, 10)
        environment.step("4 - 10")
        assert environment.step(said)[0]["text"].endswith("Left are 9, 11.")
    environment = game(8, 8, 3, 3)
    environment.step("8/3")
    assert environment.step("8/3 * 3")[0]["text"].endswith("Left are 8, 8.")


@pytest.mark.parametrize("said", ["1 0 - 4", "9 - 9", "10 / 4", "9 - 5 - 4", "9 5", "9"])
def test_other_steps_are_none(said):
    environment = game(4, 5, 9, 10, allow_fractions=False)
    assert not environment.step(said)[4]["valid"]


def test_a_last_step_to_another_number_loses():
    environment = game(1, 1, 11, 11)
    for said in ("11 + 11", "22 + 1"):
        environment.step(said)
    assert environment.step("23 * 1")[1:3] == (0.0, True)
    assert environment.expert() is None


def test_the_list_is_cut_by_kind_and_not_by_what_solves():
    environment = game(13, 11, 7, 2)
    commands = environment.state.info["commands"]
    assert len(commands) == 20
    signs = [said.split()[1] for said in commands]
    assert signs[:18] == ["+"] * 6 + ["-"] * 6 + ["*"] * 6
    assert commands[18:] == ("13 / 11", "11 / 13")
    assert len(game(13, 11, 7, 2, action_space_size=40).state.info["commands"]) == 30


def test_too_long_expressions_are_none():
    said = "(" * 20 + "1" + ")" * 20 + " * 2 * 3 * 4"
    assert game(1, 2, 3, 4).step(said)[1] == 1.0
    assert game(1, 2, 3, 4, max_expression_length=20).step(said)[4]["valid"] is False


def test_chosen_numbers_are_checked():
    environment = make()
    for numbers in ([1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 14], "1234", 5):
        with pytest.raises(ArgumentError, match="four from 1 to 13"):
            environment.reset(options={"numbers": numbers})
    with pytest.raises(ArgumentError, match="attempts must be at least 1, not 0"):
        make(attempts=0)
