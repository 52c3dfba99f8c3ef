"""Tasks of reasoning-gym, whose answers are never run: ``make parity`` runs this."""

import warnings

import pytest
from conformance import (
    cannot_be_farmed,
    is_deterministic,
    is_gymnasium,
    is_hard_for_chance,
    is_solved,
)
from echoic.agents.environments import ReasoningGymConfig, ReasoningGymEnvironment
from echoic.agents.environments.puzzles import _is_literal
from echoic.errors import ArgumentError

try:
    with warnings.catch_warnings():
        # Its dependencies' own.
        warnings.simplefilter("ignore")
        import reasoning_gym
except ImportError:
    reasoning_gym = None

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        reasoning_gym is None, reason="reasoning-gym is not installed; see `make parity`"
    ),
]


def make(**settings):
    return ReasoningGymEnvironment(ReasoningGymConfig(**settings))


def test_it_conforms():
    is_gymnasium(make)
    is_solved(make, range(5))
    is_hard_for_chance(make, range(10), words=("24", "1 + 2 + 3 + 4", "no"))
    is_deterministic(make)
    cannot_be_farmed(make, range(3), most=1.0)


@pytest.mark.parametrize("name", ["countdown", "spiral_matrix", "chain_sum", "number_sorting"])
def test_data_sets_have_their_names(name):
    is_solved(lambda: make(dataset=name), range(3))


def test_an_answer_is_one_and_may_be_tagged():
    environment = make(dataset="chain_sum")
    environment.reset(seed=1)
    *_, info = environment.step("   ")
    assert (info["valid"], environment.state.done) == (False, False)
    answer = environment.expert()
    _, reward, ended, _, info = environment.step(f"I add. <answer> {answer}\n</answer> Done.")
    assert (reward, ended, info["success"]) == (1.0, True, True)


@pytest.mark.parametrize(
    "name",
    ["puzzle24", "countdown", "spiral_matrix", "string_insertion", "binary_matrix", "n_queens"],
)
def test_an_answer_is_never_run(name, tmp_path):
    trace = tmp_path / "trace"
    environment = make(dataset=name)
    for answer in (
        f"open({str(trace)!r}, 'w')",
        f"[open({str(trace)!r}, 'w')]",
        f"[x for x in open({str(trace)!r}, 'w')]",
        f"__import__('pathlib').Path({str(trace)!r}).touch()",
        "9**9**9**9",
        "(" * 100_000,
    ):
        environment.reset(seed=0)
        _, reward, ended, _, info = environment.step(answer)
        assert (reward, ended, info["success"]) == (0.0, True, False)
    assert not trace.exists()


@pytest.mark.parametrize("answer", ["ABCDE", "[1, -2]", "1 2 3", "['a', 'b']", "Q _\n_ Q", ""])
def test_literals_and_what_is_no_python_are_harmless(answer):
    assert _is_literal(answer)


@pytest.mark.parametrize("answer", ["f()", "a.b", "[1] * 9", "f'{x}'", "(x := 1)", "lambda: 1"])
def test_all_else_is_not(answer):
    assert not _is_literal(answer)


@pytest.mark.parametrize(
    "name", ["simple_integration", "intermediate_integration", "polynomial_multiplication"]
)
def test_scorers_that_run_formulas_are_refused(name):
    with pytest.raises(ArgumentError, match="can't be scored safely"):
        make(dataset=name)


def test_a_mixture_is_refused():
    with pytest.raises(ArgumentError, match=r"composite"):
        make(dataset="composite")


def test_unknown_names_and_settings_are_refused():
    with pytest.raises(ArgumentError, match=r"has no 'nothing'; it has .*, puzzle24, "):
        make(dataset="nothing")
    with pytest.raises(ArgumentError, match="makes no 'puzzle24'"):
        make(dataset_settings={"nothing": 1})
    with pytest.raises(ArgumentError, match="can't have 'seed'"):
        make(dataset_settings={"seed": 1})


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("prime_factorization", "I do not know."),
        ("boxnet", "[[1]]"),
        ("boxnet", "null"),
        ("boxnet", "-1"),
        ("game_of_life", "{}"),
        ("coin_flip", "1e400"),
    ],
)
def test_an_answer_that_a_scorer_fails_at_is_wrong(name, answer):
    environment = make(dataset=name)
    environment.reset(seed=0)
    assert environment.step(answer)[1:3] == (0.0, True)
