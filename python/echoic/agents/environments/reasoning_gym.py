"""Tasks of the reasoning-gym package by name: one question, one answer, the package's own score.

Decisions:

- The question is made from the episode's seed, so there is no end of them, and none is stored.
- Some of the package's scorers *evaluate* an answer as Python, by ``eval`` or by sympy's parser,
  which is ``eval`` too: an answer could run any code. What they may see here is arithmetic or a
  literal, checked first; an answer that is neither is wrong. Data sets whose answers are formulas
  can't be checked so, and are refused.
- The package's score is the reward. For some data sets a wrong answer still earns 0.01 or so.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.environments.game24 import parse_expression
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReasoningGymConfig", "ReasoningGymEnvironment"]

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_EVALUATES = re.compile(r"(?<![\w.])(?:sp\.|sympy\.)?(?:eval|exec|parse_expr|sympify)\(")
# Longer answers are not given to a scorer that evaluates them.
_LONGEST_EVALUATED = 2000


@dataclass
class ReasoningGymConfig(EnvironmentConfig):
    """Settings of a data set of reasoning-gym.

    Attributes:
        dataset: Its name in the package, such as ``"puzzle24"``.
        dataset_settings: What the package makes it with; not ``seed`` and ``size``.
    """

    dataset: str = "puzzle24"
    dataset_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if taken := {"seed", "size"} & set(self.dataset_settings):
            raise ArgumentError(f"dataset_settings can't have {min(taken)!r}: reset sets it")


def _is_arithmetic(answer: str) -> bool:
    """Whether it is an expression that this package's own parser reads."""
    return parse_expression(answer) is not None


def _is_literal(answer: str) -> bool:
    """Whether evaluating it does nothing: literals and names, or what is no Python at all."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True
    except (MemoryError, RecursionError):
        return False
    kinds = (
        ast.Expression, ast.List, ast.Tuple, ast.Constant, ast.Name, ast.Load, ast.UnaryOp,
        ast.USub,
    )  # fmt: skip
    return all(isinstance(node, kinds) for node in ast.walk(tree))


# Data sets whose scorer evaluates the answer, and what an answer must be for that to be harmless.
_GUARDS: dict[str, Callable[[str], bool]] = {
    "puzzle24": _is_arithmetic,
    "countdown": _is_arithmetic,
    "binary_matrix": _is_literal,
    "n_queens": _is_literal,
    "spiral_matrix": _is_literal,
    "string_insertion": _is_literal,
}

# What it evaluates is its own answer.
_HARMLESS = ("number_sorting",)


class ReasoningGymEnvironment(EchoRLEnvironment):
    """A data set of reasoning-gym: the question is the observation, any text is an answer.

    The episode ends with the first answer. What is between ``<answer>`` and ``</answer>`` counts,
    if there is such a thing. There are no listed commands, so no discrete policy can play. The
    package's own answer is never shown; :meth:`expert` says it, where there is one.
    """

    def __init__(self, config: ReasoningGymConfig | None = None) -> None:
        self.settings = config or ReasoningGymConfig()
        super().__init__(self.settings)
        self.instructions = (
            "Answer the question with nothing but the answer, or with the answer between <answer> "
            "and </answer>. You have one answer."
        )
        self._data = self._make(seed=0)
        self._guard = _guard_of(self.settings.dataset, self._data)
        self._entry: dict[str, Any] = {}

    def _make(self, seed: int) -> Any:
        try:
            import reasoning_gym
        except ImportError as error:
            raise ArgumentError(
                "ReasoningGymEnvironment needs: pip install reasoning-gym"
            ) from error
        settings = self.settings
        try:
            return reasoning_gym.create_dataset(
                settings.dataset, seed=seed, size=1, **settings.dataset_settings
            )
        except (ValueError, TypeError, AssertionError) as error:
            raise ArgumentError(f"reasoning-gym makes no {settings.dataset!r}: {error}") from error

    def _start(self, options: dict[str, Any]) -> str:
        self._data = self._make(int(self.np_random.integers(2**31)))
        self._entry = self._data[0]
        return str(self._entry["question"])

    def _apply(self, command: str) -> Outcome | None:
        tagged = _TAGGED.findall(command)
        answer = (tagged[-1] if tagged else command).strip()
        if not answer:
            return None
        score = self._score(answer)
        return Outcome(f"Your answer scores {score:g}.", score, ended=True, score=score)

    def _score(self, answer: str) -> float:
        if self._guard is not None and (
            len(answer) > _LONGEST_EVALUATED or not self._guard(answer)
        ):
            return 0.0
        try:
            score = float(self._data.score_answer(answer=answer, entry=self._entry))
        except Exception:  # scorers of many kinds; what they can't read is wrong
            return 0.0
        return min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0

    def _expert(self) -> str | None:
        """The package's own answer; None for data sets that only check."""
        answer = self._entry.get("answer")
        return None if answer is None else str(answer)


def _guard_of(name: str, data: Any) -> Callable[[str], bool] | None:
    if name in _GUARDS or name in _HARMLESS:
        return _GUARDS.get(name)
    if name == "composite":
        raise ArgumentError("composite can't be scored safely: its parts bring their own scorers")
    source = inspect.getsource(type(data).score_answer)
    if _EVALUATES.search(source):
        raise ArgumentError(
            f"{name} can't be scored safely: the package evaluates its answers as Python"
        )
    return None
