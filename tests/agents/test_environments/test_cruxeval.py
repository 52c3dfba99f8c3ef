"""CRUXEval: answers are compared as literals, and only the data set's own functions are run."""

import json
import os
from pathlib import Path

import pytest
from conformance import (
    is_deterministic,
    is_gymnasium,
    is_hard_for_chance,
    is_patient,
    is_solved,
)
from echoic.agents.environments import CRUXEvalConfig, CRUXEvalEnvironment, make_environment
from echoic.agents.environments import code as module
from echoic.agents.environments.code import (
    arguments_of,
    literal_of,
    load_functions,
)
from echoic.agents.environments.sandbox import Ran, run_code, why_no_bubblewrap
from echoic.errors import ArgumentError

# The data set's own file: where it is said to be, or beside the repository.
OFFICIAL = Path(
    os.environ.get(
        "ECHOIC_CRUXEVAL", Path(__file__).parents[3].parent / "shared" / "data" / "cruxeval.jsonl"
    )
)
needs_bubblewrap = pytest.mark.skipif(
    why_no_bubblewrap() is not None, reason=f"no bubblewrap: {why_no_bubblewrap()}"
)
needs_official = pytest.mark.skipif(not OFFICIAL.is_file(), reason="no file of CRUXEval here")


def make(**settings):
    return CRUXEvalEnvironment(CRUXEvalConfig(timeout_penalty=0.0, **settings))


def answer(said, **settings):
    environment = make(**settings)
    environment.reset(options={"index": 3})
    return environment.step(f"answer: {said}")


def test_it_conforms():
    is_gymnasium(make)
    is_solved(make, range(24))
    is_deterministic(make)
    is_patient(make)
    is_hard_for_chance(make, range(24), words=("answer: 0", "answer: 'a'", "answer: []"), steps=5)


@needs_bubblewrap
def test_inputs_are_solved_too():
    is_solved(lambda: make(prediction="input"), range(4))


@needs_bubblewrap
def test_the_own_functions_return_what_their_file_says():
    together = "\n".join(
        f"{one.code}\nassert {one.call} == {one.output}" for one in load_functions()
    )
    assert run_code(together).status == "ok"


@pytest.mark.parametrize(
    "said",
    ["12", " 12 ", "12.0", "assert f(84, 36) == 12", "0xc", "[12][0]"],
)
def test_outputs_are_compared_as_literals_without_running_anything(said, monkeypatch):
    monkeypatch.setattr(module, "run_code", lambda *_: pytest.fail("something was run"))
    assert answer(said)[1] == float(said != "[12][0]")


def test_tags_of_the_data_sets_prompts_are_understood():
    environment = make()
    environment.reset(options={"index": 3})
    said = "[THOUGHT]\nIt is [1, 2].\n[/THOUGHT]\n[ANSWER]\nassert f(84, 36) == 12\n[/ANSWER]"
    assert environment.step(said)[1] == 1.0


def test_a_double_equals_sign_within_a_text_is_part_of_it():
    assert literal_of("'a == b'") == "'a == b'"
    assert literal_of("assert f('a==b') == 'b'") == "'b'"
    assert arguments_of("assert f([1], b=2) == 3") == "f([1], b=2)"
    assert arguments_of("f('a == b') == 3") == "f('a == b')"


def test_equality_is_as_loose_as_the_data_sets_own():
    environment = make()
    environment.reset(options={"index": 17})
    assert environment._function.output == "False"
    assert environment.step("answer: 0")[1] == 1.0


@pytest.mark.parametrize("said", ["f(84, 36)", "open('x')", "", "twelve", "12 ==", "9" * 9000])
def test_an_answer_that_is_no_literal_is_wrong_and_counts(said):
    _, reward, terminated, _, info = answer(said)
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("f(84, 36)", True),
        ("f(12, 24) == 12", True),
        ("assert f(b=36, a=84) == 12", True),
        ("f(range(3), 2)", False),
        ("f(84)", False),
        ("f(1, 2)", False),
        ("12", False),
        ("(84, 36)", False),
        ("g(84, 36)", False),
    ],
)
def test_inputs_are_run_by_the_data_sets_own_function(said, right):
    assert answer(said, prediction="input")[4]["success"] is right


@pytest.mark.parametrize(
    "said",
    [
        "f(__import__('os').getpid(), 1)",
        "f((lambda: 84)(), 36)",
        "f(*[84, 36])",
        "f(**{'a': 84})",
        "f(set(open('x')), 1)",
        "f([x for x in (1, 2)], 1)",
        "f(84, 36) or f(1, 1)",
        "f(f(84, 36), 12)",
        "f.__call__(84, 36)",
    ],
)
def test_nothing_else_than_literals_is_ever_run(said, monkeypatch):
    monkeypatch.setattr(module, "why_no_bubblewrap", lambda: None)
    monkeypatch.setattr(module, "run_code", lambda *_: pytest.fail("something was run"))
    assert arguments_of(said) is None
    assert answer(said, prediction="input")[1:3] == (0.0, True)


@needs_bubblewrap
def test_a_function_that_never_ends_is_a_wrong_answer(tmp_path):
    row = {"code": "def f(n):\n    while n: pass\n    return 1", "input": "0", "output": "1"}
    path = tmp_path / "loop.jsonl"
    path.write_text(json.dumps({**row, "id": "loop"}))
    environment = make(path=str(path), prediction="input", timeout_seconds=0.5)
    environment.reset()
    assert environment.step("answer: f(7)")[1:3] == (0.0, True)
    environment.reset()
    assert environment.step("answer: f(0)")[1] == 1.0


def test_the_target_is_not_in_the_observation():
    environment = make()
    for index, one in enumerate(environment.functions):
        observation, info = environment.reset(options={"index": index})
        assert observation["text"] == f"What does the last line return?\n\n{one.code}\n\n{one.call}"
        assert info["commands"] == ()
    wrong = environment.step("answer: 'no'")
    assert wrong[0]["text"] == "Wrong."


@needs_bubblewrap
def test_the_interpreter_runs_code_and_knows_the_function():
    environment = make(multi_turn=True, max_test_cases=2, max_code_length=200)
    assert "up to 2 times" in environment.instructions
    first = environment.reset(options={"index": 3})[0]["text"]
    text = environment.step("python: print(f(84, 36))")[0]["text"]
    assert text == f"12\n\n{first}"
    assert "at most 200 characters" in environment.step("python: " + "#" * 201)[0]["text"]
    assert environment.step("python:\n```python\nx = 1\n```")[0]["text"].startswith("(no output)")
    _, reward, terminated, _, info = environment.step("python: print(1)")
    assert environment.state.observation.startswith("refused: the interpreter was used 2 times")
    assert (reward, terminated, info["score"]) == (0.0, False, 0.0)
    assert environment.step("answer: 12")[1] == 1.0


def test_without_a_sandbox_code_of_a_model_is_refused(monkeypatch):
    refusal = Ran("refused", "there is no working bubblewrap here: it was taken away")
    monkeypatch.setattr(module, "run_code", lambda *_, **__: refusal)
    environment = make(multi_turn=True)
    environment.reset(options={"index": 3})
    text = environment.step("python: print('I ran')")[0]["text"]
    assert text.startswith(
        "refused: no sandbox (there is no working bubblewrap here: it was taken away)"
    )


@needs_bubblewrap
def test_the_interpreter_has_no_network_and_no_files():
    environment = make(multi_turn=True)
    environment.reset(options={"index": 3})
    assert environment.step("python: print(f(9, 6))")[0]["text"].startswith("3\n")
    text = environment.step("python: open('/etc/passwd')")[0]["text"]
    assert text.startswith("FileNotFoundError")


def test_without_bubblewrap_inputs_are_no_task(monkeypatch):
    monkeypatch.setattr(module, "why_no_bubblewrap", lambda: "it is not there")
    with pytest.raises(ArgumentError, match="within bubblewrap: it is not there"):
        make(prediction="input")
    make(prediction="output")


def test_without_an_interpreter_its_command_makes_no_sense():
    environment = make()
    environment.reset(seed=0)
    assert environment.step("python: print(1)")[4]["valid"] is False


def test_training_and_evaluation_can_have_functions_of_their_own():
    train, test = make(rows=(0, 16)), make(rows=(16, 24))
    assert not {one.id for one in train.functions} & {one.id for one in test.functions}
    assert len(train.functions) + len(test.functions) == 24
    with pytest.raises(ArgumentError, match="index must be from 0 to 7, not 8"):
        test.reset(options={"index": 8})


@needs_official
@pytest.mark.parametrize("prediction", ["output", "input"])
def test_the_data_sets_own_answers_are_right(prediction):
    environment = make(path=str(OFFICIAL), prediction=prediction, max_code_length=10_000)
    assert len(environment.functions) == 800
    # Inputs are run, each in a process: every fortieth, and some of those with more than literals.
    some = range(800) if prediction == "output" else [*range(0, 800, 40), 344, 364, 152, 378]
    for index in some:
        environment.reset(options={"index": index})
        assert environment.step(environment.expert())[1] == 1.0, index


@needs_official
def test_only_the_data_sets_own_file_has_its_name(tmp_path):
    data = OFFICIAL.read_bytes()
    assert not data.endswith(b"\n"), "the last line counts, too"
    assert len(load_functions(str(OFFICIAL))) == 800
    other = tmp_path / "mine.jsonl"
    other.write_bytes(data + b"\n")
    names = [CRUXEvalConfig(path=path).provenance for path in (str(OFFICIAL), str(other), None)]
    assert names == ["cruxeval", "cruxeval-style (mine.jsonl)", "cruxeval-style (24 functions)"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("oops", "line 1 is no JSON"),
        ("[1]", "line 1 has no text 'code'"),
        ('{"code": "", "input": "", "output": 3, "id": "a"}', "line 1 has no text 'output'"),
        ('{"code": "", "input": "", "output": "g()", "id": "a"}', "output is no literal: g()"),
        ("", "has no functions"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(line)
    with pytest.raises(ArgumentError) as caught:
        make(path=str(path))
    assert message in str(caught.value)


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(ArgumentError, match="own is at https://"):
        make(path=str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"language": "rust"}, "language must be one of python, not 'rust'"),
        ({"prediction": "both"}, "prediction must be one of output, input, not 'both'"),
        ({"max_code_length": 0}, "max_code_length must be at least 1, not 0"),
        ({"max_test_cases": 0}, "max_test_cases must be at least 1, not 0"),
        ({"timeout_seconds": 0}, "timeout_seconds must be above 0"),
        ({"rows": (9, 3)}, "rows must be two whole numbers"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        CRUXEvalConfig(**settings)


def test_settings_are_used():
    assert len(make(max_code_length=100).functions) < 24
    with pytest.raises(ArgumentError, match="no function is left"):
        make(max_code_length=1)
    environment = make_environment("cruxeval", state_encoding_dim=64)
    observation, info = environment.reset(seed=1)
    assert observation["vector"].shape == (64,)
    assert info["commands"] == ()
    assert environment.get_action_space_size() == 30
