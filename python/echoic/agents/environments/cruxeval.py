"""CRUXEval: say what a function returns, or which input makes it return that.

The functions are in :mod:`~echoic.agents.environments.cruxeval_functions`. One answer ends an
episode; it is right or wrong.

Decisions:

- What to predict is a setting. It is never guessed from a file's name.
- An output is compared as a literal, without running anything: ``literal == literal``, as loosely
  as the data set's own scorer (``True`` is ``1``, a dict has no order).
- An input is a call ``f(...)`` with literal arguments. The data set's own function is run on it, in
  a process with limits. No code that a model wrote runs there.
- Every answer counts. The data set's scorer leaves some that it can't read out of the denominator;
  here they are wrong.
- With ``multi_turn`` there is an interpreter: ``python: code``. That is code that a model wrote, so
  it runs within bubblewrap or not at all, unless ``allow_rlimits_only`` says otherwise.
"""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.environments.cruxeval_functions import (
    Function,
    arguments_of,
    download,
    literal_of,
    load_functions,
    shape_of,
    value_of,
)
from echoic.agents.environments.sandbox import (
    Sandbox,
    bubblewrap_works,
    limits_work,
    why_no_bubblewrap,
)
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CRUXEvalConfig", "CRUXEvalEnvironment"]

_ANSWER = re.compile(r"answer:(.*)|.*\[answer\](.*?)(?:\[/answer\].*)?", re.IGNORECASE | re.DOTALL)
_TOOL = re.compile(r"python:(.*)", re.IGNORECASE | re.DOTALL)
_FENCE = re.compile(r"```(?:python)?\n(.*?)\n?```", re.DOTALL)
_SEEN_OUTPUT = 4096
# One in so many is chance's success where answers are listed.
_FEWEST_CHOICES = 12


@dataclass
class CRUXEvalConfig(EnvironmentConfig):
    """Settings of CRUXEval.

    Attributes:
        language: ``"python"``; the data set has no other.
        max_code_length: Functions of more characters are left out, and longer code for the
            interpreter is not run.
        max_test_cases: How often the interpreter may be used in an episode.
        timeout_seconds: Of processor time, for running a function or the interpreter once; on the
            wall clock four times as much.
        path: A file of functions; without one, the 24 of this package.
        prediction: ``"output"`` or ``"input"``.
        multi_turn: Whether there is an interpreter.
        allow_rlimits_only: Whether the interpreter may run with limits only where there is no
            bubblewrap, which gives a warning. The model's code then acts as you: it can read and
            delete your files, use your network, read the environment and tokens of your other
            processes, and end them, this one included. (Where root trains, it acts as nobody.)
            For trusted models only.
        choices: How many answers are listed as commands, one of them right. 0 means none: say it
            yourself. None means 0 for actions in text, and all that fit for discrete ones. Listing
            answers makes it another, easier task.
        rows: First and last (not included) function of the file, so that training and evaluation
            can use different ones.
    """

    action_space_size: int = 30
    language: str = "python"
    max_code_length: int = 1000
    max_test_cases: int = 10
    timeout_seconds: float = 5
    path: str | None = None
    prediction: str = "output"
    multi_turn: bool = False
    allow_rlimits_only: bool = False
    choices: int | None = None
    rows: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.language != "python":
            raise ArgumentError(f"language must be 'python', not {self.language!r}")
        if self.prediction not in ("output", "input"):
            raise ArgumentError(f"prediction must be 'output' or 'input', not {self.prediction!r}")
        for name in ("max_code_length", "max_test_cases"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.timeout_seconds <= 600:
            raise ArgumentError(
                f"timeout_seconds must be above 0 and at most 600, not {self.timeout_seconds}"
            )
        if self.rows is not None and not _is_range(self.rows):
            raise ArgumentError(f"rows must be two whole numbers, first and last, not {self.rows}")
        if self.choices is None:
            self.choices = self.action_space_size if self.action_format == "discrete" else 0
        if self.choices and not _FEWEST_CHOICES <= self.choices <= self.action_space_size:
            raise ArgumentError(
                f"choices must be 0, or from {_FEWEST_CHOICES} to action_space_size "
                f"({self.action_space_size}), not {self.choices}"
            )


def _is_range(rows: Sequence[Any]) -> bool:
    return len(rows) == 2 and all(isinstance(one, int) for one in rows) and 0 <= rows[0] < rows[1]


class CRUXEvalEnvironment(EchoRLEnvironment):
    """Predicts what Python functions do.

    ``reset(options={"index": 3})`` chooses a function; otherwise the seed does. ``info`` of an
    answer has its ``id``.

    >>> environment = CRUXEvalEnvironment(CRUXEvalConfig())
    >>> seen, info = environment.reset(options={"index": 3})
    >>> print(seen["text"].splitlines()[-1])
    f(84, 36)
    >>> _, reward, ended, _, info = environment.step("answer: 12")
    >>> reward, ended, info["success"]
    (1.0, True, True)
    """

    config: CRUXEvalConfig

    def __init__(self, config: CRUXEvalConfig | None = None) -> None:
        config = config or CRUXEvalConfig()
        super().__init__(config)
        if config.prediction == "input" and not limits_work():
            raise ArgumentError(
                "prediction='input' runs functions in a process with limits, which this system "
                "does not have"
            )
        functions = load_functions(config.path)
        if config.rows is not None:
            functions = functions[slice(*config.rows)]
        self.functions = tuple(one for one in functions if len(one.code) <= config.max_code_length)
        if not self.functions:
            raise ArgumentError("no function is left: look at path, rows and max_code_length")
        if config.choices and len({self._right(one) for one in self.functions}) < _FEWEST_CHOICES:
            raise ArgumentError(
                f"listing answers needs functions with {_FEWEST_CHOICES} different ones, not "
                f"{len(self.functions)} functions: look at path and rows"
            )
        self._checker = Sandbox("limits", seconds=config.timeout_seconds)
        wrapped = bubblewrap_works() or not config.allow_rlimits_only
        if config.multi_turn and not wrapped:
            warnings.warn(
                f"allow_rlimits_only: there is no working bubblewrap here ({why_no_bubblewrap()}), "
                "so code of the model acts as you. It can read and delete your files, use your "
                "network, read the environment of your processes and end them, this one included. "
                "Install bubblewrap, or train as a user who has nothing to lose.",
                stacklevel=2,
            )
        self._interpreter = Sandbox(
            "bubblewrap" if wrapped else "limits",
            seconds=config.timeout_seconds,
            output=_SEEN_OUTPUT,
        )
        self.instructions = _INSTRUCTIONS[config.prediction]
        if config.multi_turn:
            self.instructions += _ABOUT_TOOL.format(config.max_test_cases)
        self._function = self.functions[0]
        self._answers: tuple[str, ...] = ()
        self._used = 0

    def _start(self, options: dict[str, Any]) -> str:
        index = options.get("index")
        drawn = int(self.np_random.integers(len(self.functions)))
        if index is None:
            index = drawn
        elif not isinstance(index, int) or not 0 <= index < len(self.functions):
            raise ArgumentError(f"index must be from 0 to {len(self.functions) - 1}, not {index!r}")
        self._function = self.functions[index]
        self._used = 0
        self._answers = self._list_answers() if self.config.choices else ()
        return self._task()

    def _task(self) -> str:
        one = self._function
        if self.config.prediction == "output":
            return f"What does the last line return?\n\n{one.code}\n\n{one.call}"
        return f"Which call of f returns this?\n\n{one.code}\n\n{one.output}"

    def _list_answers(self) -> tuple[str, ...]:
        """The right answer among others of its kind, in an order that the seed says."""
        right = self._right(self._function)
        order = self.np_random.permutation(len(self.functions))
        others = [self.functions[i] for i in order]
        if self.config.prediction == "output":
            # Answers of another type than the rest would give the right one away.
            kind = type(value_of(self._function.output))
            others.sort(key=lambda one: type(value_of(one.output)) is not kind)
        else:
            # So would calls with other arguments than the function takes.
            shape = shape_of(self._function.call)
            others.sort(key=lambda one: _unlike(shape, shape_of(one.call)))
        known = {right: None}
        for one in others:
            if len(known) == self.config.choices:
                break
            known[self._right(one)] = None
        answers = list(known)
        self.np_random.shuffle(answers)
        return tuple(answers)

    def _right(self, one: Function) -> str:
        return f"answer: {one.output if self.config.prediction == 'output' else one.call}"

    def _commands(self) -> Sequence[str]:
        return self._answers

    def _expert(self) -> str:
        """The data set's own answer."""
        return self._right(self._function)

    def _apply(self, command: str) -> Outcome | None:
        if match := _ANSWER.fullmatch(command):
            said = next(one for one in match.groups() if one is not None).strip()
            right = self._is_right(said)
            text = "Right." if right else "Wrong."
            return Outcome(text, float(right), True, float(right), {"id": self._function.id})
        if self.config.multi_turn and (match := _TOOL.fullmatch(command)):
            shown = self._interpret(match[1])
            return Outcome(f"{shown}\n\n{self._task()}", details={"id": self._function.id})
        return None

    def _is_right(self, said: str) -> bool:
        one = self._function
        if self.config.prediction == "output":
            literal = literal_of(said)
            return literal is not None and bool(value_of(literal) == value_of(one.output))
        call = arguments_of(said, known=one.call)
        if call is None:
            return False
        ran = self._checker.run(one.code, f"({call}) == ({one.output})")
        return ran.status == "ok" and ran.output.endswith("True")

    def _interpret(self, code: str) -> str:
        if self._used >= self.config.max_test_cases:
            return f"refused: the interpreter was used {self._used} times"
        if len(code) > self.config.max_code_length:
            return f"refused: code has at most {self.config.max_code_length} characters"
        self._used += 1
        if fenced := _FENCE.search(code):
            code = fenced[1]
        ran = self._interpreter.run(f"{self._function.code}\n{code.strip()}")
        if ran.status == "refused":
            return f"refused: no sandbox ({ran.output})"
        # Why it ended is said where the output does not say it.
        note = "" if ran.status in ("ok", "error") else f"[{ran.status}]"
        return "\n".join(part for part in (ran.output.rstrip(), note) if part) or "(no output)"


def _unlike(shape: tuple[str, ...], other: tuple[str, ...]) -> int:
    """0 for arguments of the same types, 1 for as many of others, 2 for another number of them."""
    return 0 if shape == other else 1 + (len(shape) != len(other))


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


def main(arguments: list[str]) -> int:
    """Get the data set's file: ``python -m echoic.agents.environments.cruxeval download PATH``."""
    if len(arguments) != 2 or arguments[0] != "download":
        sys.stderr.write(f"usage: python -m {__spec__.name} download PATH\n")
        return 2
    sys.stdout.write(f"{arguments[1]}: {download(arguments[1])} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
