"""The game of 24: four numbers, the four operations, and 24 to be made of all of them.

Numbers are exact fractions. What a policy says is read by a parser that knows numbers, ``+ - * /``
and parentheses, and nothing else: no text is ever evaluated by Python.

Decisions:

- Two ways to play, which may be mixed. An expression of the four numbers is an answer. Two of the
  numbers that are left, combined, are a step, after which one number takes their place.
- A wrong answer ends the episode after ``attempts`` of them, one by default; so does a third step
  that leaves another number than 24. An expression that can't be read is no answer, only a step
  wasted.
- A step may be said of any two numbers that are left, in either order, with spaces or without; a
  difference may be negative. Only those of the higher and the lower one are listed.
- Every game has a solution within the rules that the settings tell.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echoic.agents import _checks
from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Expression", "Game24Config", "Game24Environment", "parse_expression"]

TARGET = Fraction(24)
_HIGHEST = 13
# Of a step's text: no two numbers need more.
_LONGEST_STEP = 200
_TWO_NUMBERS = re.compile(r"[0-9]\s+[0-9]")
_PART = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))")
# What models write for the same.
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})  # noqa: RUF001
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
# Numbers of the vector for each number that is left: whole ones up to 27 each have their place.
_PLACES = 28
_PER_NUMBER = _PLACES + 4


@dataclass
class Game24Config(EnvironmentConfig):
    """Settings of the game of 24.

    Attributes:
        allow_fractions: Whether results on the way may be fractions, as in ``8 / (3 - 8 / 3)``.
            Without, games are such as have a solution of whole numbers.
        max_expression_length: Longer texts are no expressions.
        attempts: Wrong answers until the episode ends.
        action_space_size: Steps that are listed at most; see :class:`Game24Environment`.
        state_encoding_dim: At least 128, which say the numbers that are left; others are zero.
    """

    allow_fractions: bool = True
    max_expression_length: int = 64
    attempts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole(self, "max_expression_length", "attempts")
        if self.state_encoding_dim < 4 * _PER_NUMBER:
            raise ArgumentError(
                f"state_encoding_dim must be at least {4 * _PER_NUMBER}, "
                f"not {self.state_encoding_dim}"
            )


class Expression(NamedTuple):
    """What an expression is worth, and of what.

    Attributes:
        value: None where it divides by zero.
        numbers: Those that stand in it, in order.
        whole: Whether all results on the way are whole numbers.
    """

    value: Fraction | None
    numbers: tuple[int, ...]
    whole: bool


def parse_expression(text: str) -> Expression | None:
    """Read an expression of whole numbers, ``+ - * /`` and parentheses; None if it is none.

    >>> parse_expression("8 / (3 - 8 / 3)")
    Expression(value=Fraction(24, 1), numbers=(8, 3, 8, 3), whole=False)
    >>> parse_expression("__import__('os')") is None
    True
    """
    parts = _parts(text)
    order = None if parts is None else _postfix(parts)
    if parts is None or order is None:
        return None
    values: list[Fraction | None] = []
    whole = True
    for part in order:
        if part.isdigit():
            values.append(Fraction(int(part)))
            continue
        right, left = values.pop(), values.pop()
        value = None if left is None or right is None else _operate(left, part, right)
        values.append(value)
        whole &= value is not None and value.denominator == 1
    numbers = tuple(int(part) for part in parts if part.isdigit())
    return Expression(values[0], numbers, whole)


def _parts(text: str) -> list[str] | None:
    """The numbers and signs of a text, if it is made of nothing else."""
    text = text.translate(_SIGNS).strip()
    parts, place = [], 0
    while place < len(text):
        found = _PART.match(text, place)
        if found is None or len(found[1] or "") > 9:
            return None
        parts.append(found[1] or found[2])
        place = found.end()
    return parts


def _postfix(parts: list[str]) -> list[str] | None:
    """Each operation after its numbers; None if parentheses or places are wrong.

    By a stack of its own, so that parentheses can't exhaust Python's.
    """
    order: list[str] = []
    waiting: list[str] = []
    value_before = False
    for part in parts:
        if value_before == (part.isdigit() or part == "("):
            return None
        if part.isdigit():
            order.append(part)
        elif part == "(":
            waiting.append(part)
        else:
            while waiting and waiting[-1] != "(" and _BINDS[waiting[-1]] >= _BINDS.get(part, 0):
                order.append(waiting.pop())
            if part != ")":
                waiting.append(part)
            elif not waiting or waiting.pop() != "(":
                return None
        value_before = part.isdigit() or part == ")"
    if not value_before or "(" in waiting:
        return None
    return order + waiting[::-1]


def _operate(left: Fraction, sign: str, right: Fraction) -> Fraction | None:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    return left / right if right else None


class _Step(NamedTuple):
    """Two numbers combined: how it is said, what comes of it, and what is left then."""

    said: str
    sign: str
    value: Fraction
    left: tuple[Fraction, ...]


@lru_cache(maxsize=50_000)
def _steps(numbers: tuple[Fraction, ...], fractions: bool) -> tuple[_Step, ...]:
    """All different steps: sums, differences, products, whole quotients, and then the others.

    Each kind in the order of the numbers, which are sorted from high to low. Differences are of
    the higher and the lower one, for no game needs a negative number.
    """
    kinds: dict[int, list[_Step]] = {rank: [] for rank in range(5)}
    said = set()
    for i, j in itertools.combinations(range(len(numbers)), 2):
        high, low = numbers[i], numbers[j]
        rest = [one for k, one in enumerate(numbers) if k not in (i, j)]
        for rank, (left, sign, right) in enumerate(
            ((high, "+", low), (high, "-", low), (high, "*", low), (high, "/", low),
             (low, "/", high))
        ):  # fmt: skip
            value = _operate(left, sign, right)
            text = f"{_written(left)} {sign} {_written(right)}"
            if value is None or text in said or (not fractions and value.denominator != 1):
                continue
            said.add(text)
            after = tuple(sorted([*rest, value], reverse=True))
            kinds[4 if value.denominator != 1 else min(rank, 3)].append(
                _Step(text, sign, value, after)
            )
    return tuple(itertools.chain.from_iterable(kinds.values()))


def _written(number: Fraction) -> str:
    return str(number) if number.denominator == 1 and number >= 0 else f"({number})"


def _step_said(numbers: tuple[Fraction, ...], said: str, fractions: bool) -> _Step | None:
    """The step that a text says, of any two of the numbers; None if it says none."""
    if len(said) > _LONGEST_STEP or _TWO_NUMBERS.search(said):
        return None
    bare = "".join(said.translate(_SIGNS).split())
    for i, j in itertools.permutations(range(len(numbers)), 2):
        left, right = numbers[i], numbers[j]
        for sign in _BINDS:
            if not _says(bare, left, sign, right):
                continue
            value = _operate(left, sign, right)
            if value is None or (not fractions and value.denominator != 1):
                return None
            rest = [one for k, one in enumerate(numbers) if k not in (i, j)]
            text = f"{_written(left)} {sign} {_written(right)}"
            return _Step(text, sign, value, tuple(sorted([*rest, value], reverse=True)))
    return None


def _says(bare: str, left: Fraction, sign: str, right: Fraction) -> bool:
    """Whether a text without spaces is this step, with parentheses or without."""
    # Divided by a fraction without parentheses would be two divisions.
    rights = {f"({right})"} if sign == "/" and right.denominator != 1 else {str(right)}
    return any(
        bare == f"{one}{sign}{other}"
        for one in (str(left), f"({left})")
        for other in (*rights, f"({right})")
    )


@lru_cache(maxsize=50_000)
def _way(numbers: tuple[Fraction, ...], fractions: bool, listed: int) -> tuple[_Step, ...] | None:
    """Steps to 24, of those that are among the first ``listed`` each time; None if none lead."""
    if len(numbers) == 1:
        return () if numbers[0] == TARGET else None
    for step in _steps(numbers, fractions)[:listed]:
        rest = _way(step.left, fractions, listed)
        if rest is not None:
            return (step, *rest)
    return None


_ALL = 1000


class Game24Environment(EchoRLEnvironment):
    """The game of 24, with numbers from 1 to 13.

    The listed commands are the steps that there are now: sums, differences, products, quotients
    that are whole, and then quotients that are not; the list is cut after ``action_space_size`` of
    them. There are at most 30, so with 20 the last ones, fractions before all, can only be said as
    text. The cut does not look at solutions: some games can't be won by listed steps alone.

    ``options={"numbers": [4, 4, 10, 10]}`` of ``reset`` chooses the game.
    """

    def __init__(self, config: Game24Config | None = None) -> None:
        self.settings = config or Game24Config()
        super().__init__(self.settings)
        whole = "" if self.settings.allow_fractions else " All results must be whole numbers."
        self.instructions = (
            "Make 24 of the four numbers with + - * / and parentheses. Each number must be used "
            f"exactly once.{whole} Answer with the expression alone, such as (9 - 5) * (10 - 4). "
            "Or combine two of the numbers at a time, such as 9 - 5: the result takes their place."
        )
        self._numbers: tuple[Fraction, ...] = ()
        self._left: tuple[Fraction, ...] = ()
        self._wrong = 0

    def _start(self, options: dict[str, Any]) -> str:
        chosen = options.get("numbers")
        self._numbers = self._draw() if chosen is None else _checked(chosen)
        self._left = self._numbers
        self._wrong = 0
        return self._tell()

    def _apply(self, command: str) -> Outcome | None:
        said = " ".join(command.split())
        step = _step_said(self._left, said, self.settings.allow_fractions)
        return self._answer(said) if step is None else self._combine(step)

    def _combine(self, step: _Step) -> Outcome:
        self._left = step.left
        if len(step.left) > 1:
            return Outcome(self._tell())
        right = step.value == TARGET
        return Outcome(f"{step.value} is left.", float(right), ended=True, score=float(right))

    def _answer(self, said: str) -> Outcome | None:
        if len(said) > self.settings.max_expression_length:
            return None
        found = parse_expression(re.sub(r"\s*=\s*24\.?$", "", said))
        # One number, or two of which no step is made, are no try at an answer.
        if found is None or len(found.numbers) < len(self._numbers):
            return None
        if sorted(found.numbers, reverse=True) != list(self._numbers):
            fault = "That does not use each of the numbers exactly once."
        elif found.value is None:
            fault = "That divides by zero."
        elif not found.whole and not self.settings.allow_fractions:
            fault = "There is a result on the way that is no whole number."
        elif found.value != TARGET:
            fault = f"That makes {found.value}, not 24."
        else:
            return Outcome(f"{said} makes 24.", 1.0, ended=True, score=1.0)
        self._wrong += 1
        over = self._wrong >= self.settings.attempts
        return Outcome(fault if over else f"{fault}\n{self._tell()}", ended=over)

    def _commands(self) -> tuple[str, ...]:
        return tuple(step.said for step in _steps(self._left, self.settings.allow_fractions))

    def _vector(self, text: str) -> NDArray[np.float32]:
        vector = np.zeros(self.settings.state_encoding_dim, np.float32)
        for i, number in enumerate(self._left):
            own = vector[i * _PER_NUMBER : (i + 1) * _PER_NUMBER]
            if number.denominator == 1 and 0 <= number < _PLACES:
                own[int(number)] = 1
            size = float(np.log1p(abs(float(number))) / 12)
            own[_PLACES:] = (1, min(size, 1.0), number.denominator == 1, number < 0)
        return vector

    def _expert(self) -> str | None:
        """The next step of a solution, of listed ones if they suffice; None if it is too late."""
        fractions = self.settings.allow_fractions
        way = _way(self._left, fractions, self.settings.action_space_size)
        if way is None:
            way = _way(self._left, fractions, _ALL)
        return way[0].said if way else None

    def _draw(self) -> tuple[Fraction, ...]:
        while True:
            drawn = self.np_random.integers(1, _HIGHEST + 1, 4).tolist()
            numbers = tuple(Fraction(one) for one in sorted(drawn, reverse=True))
            if _way(numbers, self.settings.allow_fractions, _ALL) is not None:
                return numbers

    def _tell(self) -> str:
        if self._left == self._numbers:
            return f"The numbers are {', '.join(map(str, sorted(self._numbers)))}."
        return (
            f"The numbers were {', '.join(map(str, sorted(self._numbers)))}. "
            f"Left are {', '.join(map(str, sorted(self._left)))}."
        )


def _checked(numbers: Any) -> tuple[Fraction, ...]:
    listed = isinstance(numbers, (list, tuple, np.ndarray))
    right = (
        listed
        and len(numbers) == 4
        and all(isinstance(one, (int, np.integer)) and 1 <= one <= _HIGHEST for one in numbers)
    )
    if not right:
        raise ArgumentError(f"numbers must be four from 1 to {_HIGHEST}, not {numbers!r}")
    return tuple(Fraction(int(one)) for one in sorted(numbers, reverse=True))
