"""CRUXEval: predict what a function returns, or an input that makes it return a value.

One answer ends an episode; it is right or wrong. 24 functions of our own come with this package;
reports call them ``cruxeval-style``. The data set's 800 are read from its file.

- An output is compared as a literal, without running anything: ``literal == literal``, as loosely
  as the data set's own scorer (``True`` is ``1``, a dict has no order). Text that can't be read is
  a wrong answer.
- An input is a call ``f(...)`` with literal arguments, on which the data set's own function is run
  in a sandbox. With ``multi_turn`` code of a model runs there, too: ``python: code``.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from echoic.agents import _checks
from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.environments.sandbox import run_code, why_no_bubblewrap
from echoic.errors import ArgumentError

__all__ = ["CRUXEvalConfig", "CRUXEvalEnvironment"]

OWN = Path(__file__).parent / "data" / "cruxeval_own.jsonl"
URL = "https://raw.githubusercontent.com/facebookresearch/cruxeval/main/data/cruxeval.jsonl"
SHA256 = "8368b81047dc5014e4caf5a2f97604eff7644e0ecd7415e3ceeb184bbc2e0c96"
_MAX_BYTES = 64 << 20
_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


@dataclass(frozen=True)
class Function:
    """A function ``f``, a call of it, and its result, all as text."""

    code: str
    call: str
    output: str
    id: str


@lru_cache(maxsize=4)
def load_functions(path: str | None = None) -> tuple[Function, ...]:
    """Read a file of functions, or our own if there is no path.

    Each line is a JSON object with the texts ``code``, ``input``, ``output`` (a Python literal) and
    ``id``.
    """
    place = OWN if path is None else Path(path)
    if not place.is_file():
        raise ArgumentError(f"there is no file {place}; the data set's own is at {URL}")
    if place.stat().st_size > _MAX_BYTES:
        raise ArgumentError(f"{place} is larger than {_MAX_BYTES} bytes: no file of CRUXEval")
    functions = []
    for number, line in enumerate(place.read_text("utf-8").split("\n"), 1):
        if not line.strip():
            continue
        where = f"{place.name}, line {number}"
        try:
            row = json.loads(line)
        except ValueError:
            raise ArgumentError(f"{where} is no JSON") from None
        for key in ("code", "input", "output", "id"):
            if not isinstance(row, dict) or not isinstance(row.get(key), str):
                raise ArgumentError(f"{where} has no text {key!r}")
        one = Function(row["code"], f"f({row['input']})", row["output"], row["id"])
        if literal_of(one.output) is None:
            raise ArgumentError(f"{where}: the output is no literal: {one.output[:80]}")
        functions.append(one)
    if not functions:
        raise ArgumentError(f"{place} has no functions")
    return tuple(functions)


def literal_of(answer: str) -> str | None:
    """Find the literal in an answer, or None. It may stand after ``==``, as in an assertion."""
    tree = _side_of(answer, -1)
    return ast.unparse(tree) if tree is not None and _is_literal(tree) else None


def arguments_of(answer: str) -> str | None:
    """Find the call ``f(...)`` in an answer, or None. Its arguments are literals."""
    tree = _side_of(answer, 0)
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "f"):
        return None
    values = [*tree.args, *(one.value for one in tree.keywords)]
    by_name = all(one.arg is not None for one in tree.keywords)
    return ast.unparse(tree) if by_name and all(map(_is_literal, values)) else None


def _is_literal(node: ast.expr) -> bool:
    with contextlib.suppress(*_UNREADABLE):
        ast.literal_eval(node)
        ast.unparse(node)  # which may be too deep
        return True
    return False


def _side_of(answer: str, side: int) -> ast.expr | None:
    """Parse an expression; of ``one == other``, only the first (0) or the last side (-1)."""
    text = answer.strip().removeprefix("assert ").strip()
    # A backslash in a string may give a warning, which is no reason to refuse an answer.
    with contextlib.suppress(*_UNREADABLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.Compare) and [type(one) for one in tree.ops] == [ast.Eq]:
            return (tree.left, tree.comparators[0])[side]
        return tree
    return None


_ANSWER = re.compile(r"answer:(.*)|.*\[answer\](.*?)(?:\[/answer\].*)?", re.IGNORECASE | re.DOTALL)
_TOOL = re.compile(r"python:(.*)", re.IGNORECASE | re.DOTALL)
_FENCE = re.compile(r"```(?:python)?\n(.*?)\n?```", re.DOTALL)
_SEEN_OUTPUT = 4096


@dataclass
class CRUXEvalConfig(EnvironmentConfig):
    """Settings of CRUXEval.

    Attributes:
        language: ``"python"``; the data set has no other.
        max_code_length: Longest function, and longest code for the interpreter, in characters.
        max_test_cases: Uses of the interpreter in an episode.
        timeout_seconds: Processor time of a function or of the interpreter.
        path: A file of functions. Default: the 24 of this package.
        prediction: ``"output"`` or ``"input"``.
        multi_turn: Whether there is an interpreter.
        rows: First and last (not included) function of the file that are used.
    """

    action_space_size: int = 30
    language: str = "python"
    max_code_length: int = 1000
    max_test_cases: int = 10
    timeout_seconds: float = 5
    path: str | None = None
    prediction: str = "output"
    multi_turn: bool = False
    rows: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.one_of(self, "language", ("python",))
        _checks.one_of(self, "prediction", ("output", "input"))
        _checks.whole(self, "max_code_length", "max_test_cases")
        _checks.number(self, "timeout_seconds", above=0, most=600)
        rows = (0, 1) if self.rows is None else self.rows
        if [type(one) for one in rows] != [int, int] or not 0 <= rows[0] < rows[1]:
            raise ArgumentError(f"rows must be two whole numbers, first and last, not {rows}")

    @property
    def provenance(self) -> str:
        """The name of the data: that of the benchmark only with the file that it has."""
        if self.path is None:
            return f"cruxeval-style ({len(load_functions())} functions)"
        place = Path(self.path)
        if place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() == SHA256:
            return "cruxeval"
        return f"cruxeval-style ({place.name})"


class CRUXEvalEnvironment(EchoRLEnvironment):
    """Predicts results or inputs of Python functions.

    ``reset(options={"index": 3})`` chooses a function; otherwise the seed does. ``info`` of an
    answer has its ``id``. There are no listed commands, so discrete policies can't play.
    """

    config: CRUXEvalConfig

    def __init__(self, config: CRUXEvalConfig | None = None) -> None:
        config = config or CRUXEvalConfig()
        super().__init__(config)
        if config.prediction == "input" and (why := why_no_bubblewrap()) is not None:
            raise ArgumentError(f"prediction='input' runs functions within bubblewrap: {why}")
        functions = load_functions(config.path)[slice(*(config.rows or (None,)))]
        self.functions = tuple(one for one in functions if len(one.code) <= config.max_code_length)
        if not self.functions:
            raise ArgumentError("no function is left: look at path, rows and max_code_length")
        self.instructions = _INSTRUCTIONS[config.prediction]
        if config.multi_turn:
            self.instructions += _ABOUT_TOOL.format(config.max_test_cases)

    def _start(self, options: dict[str, Any]) -> str:
        self._function = self.functions[self._index_of(options, "index", len(self.functions))]
        self._used = 0
        return self._task()

    def _task(self) -> str:
        one = self._function
        if self.config.prediction == "output":
            return f"What does the last line return?\n\n{one.code}\n\n{one.call}"
        return f"Which call of f returns this?\n\n{one.code}\n\n{one.output}"

    def _expert(self) -> str:
        """Return the data set's own answer."""
        one = self._function
        return f"answer: {one.output if self.config.prediction == 'output' else one.call}"

    def _apply(self, command: str) -> Outcome | None:
        details = {"id": self._function.id}
        if match := _ANSWER.fullmatch(command):
            right = self._is_right(next(one for one in match.groups() if one is not None).strip())
            text = "Right." if right else "Wrong."
            return Outcome(text, float(right), True, float(right), details)
        if self.config.multi_turn and (match := _TOOL.fullmatch(command)):
            return Outcome(f"{self._interpret(match[1])}\n\n{self._task()}", details=details)
        return None

    def _is_right(self, said: str) -> bool:
        one = self._function
        if self.config.prediction == "output":
            literal = literal_of(said)
            if literal is None:
                return False
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return bool(ast.literal_eval(literal) == ast.literal_eval(one.output.strip()))
        # Some inputs of the data set are more than literals, for example a lambda.
        call = one.call if said == one.call else arguments_of(said)
        if call is None:
            return False
        ran = run_code(one.code, f"({call}) == ({one.output})", seconds=self.config.timeout_seconds)
        return ran.status == "ok" and ran.output.endswith("True")

    def _interpret(self, code: str) -> str:
        if self._used >= self.config.max_test_cases:
            return f"refused: the interpreter was used {self._used} times"
        if len(code) > self.config.max_code_length:
            return f"refused: code has at most {self.config.max_code_length} characters"
        self._used += 1
        if fenced := _FENCE.search(code):
            code = fenced[1]
        ran = run_code(
            f"{self._function.code}\n{code.strip()}",
            seconds=self.config.timeout_seconds,
            output=_SEEN_OUTPUT,
        )
        if ran.status == "refused":
            return f"refused: no sandbox ({ran.output})"
        # The cause of the end, where the output does not have it.
        note = "" if ran.status in ("ok", "error") else f"[{ran.status}]"
        return "\n".join(part for part in (ran.output.rstrip(), note) if part) or "(no output)"


_INSTRUCTIONS = {
    "output": (
        "You are given a Python function and a call of it. Say what the call returns, as a Python "
        "literal, like this:\nanswer: [1, 'two']\nThere is one try."
    ),
    "input": (
        "You are given a Python function and a value. Say a call of the function that returns the "
        "value, with literal arguments, like this:\nanswer: f([1], 'two')\nThere is one try."
    ),
}
_ABOUT_TOOL = (
    "\nBefore that you may run Python, in which f is defined and of which you see what is printed, "
    "up to {} times, like this:\npython: print(f(1))"
)
