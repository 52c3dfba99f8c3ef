"""What a method of the benchmark is: something that may train, and then acts.

A method is made for one cell of the benchmark: a task, a backbone where it needs one, and a seed.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echoic.agents.episodes import Policy

__all__ = ["Cell", "Method", "maker_of", "method_names", "method_of", "register_method"]


@dataclass(frozen=True)
class Cell:
    """What a method is made for.

    Attributes:
        task: The name of an environment.
        task_config: Its settings.
        backbone: A :class:`~echoic.agents.backbones.Backbone`, where the method needs one.
        seed: Of everything random in training.
        steps: How many steps of the environment training may take.
        folder: Where checkpoints and logs go; a method that finds its own there goes on from them.
        settings: More, by the method's own names.
    """

    task: str
    task_config: Mapping[str, Any] = field(default_factory=dict)
    backbone: Any = None
    seed: int = 0
    steps: int = 100_000
    folder: Path = Path("runs")
    settings: Mapping[str, Any] = field(default_factory=dict)


class Method(ABC):
    """A way to act in environments, with or without training."""

    name: ClassVar[str]
    #: Whether it acts through a language model.
    needs_backbone: ClassVar[bool] = False
    #: Whether there is something to train.
    trains: ClassVar[bool] = False

    def __init__(self, cell: Cell) -> None:
        if self.needs_backbone and cell.backbone is None:
            raise ArgumentError(f"{self.name} acts through a language model, and got no backbone")
        self.cell = cell

    @property
    def environment_settings(self) -> Mapping[str, Any]:
        """What the environments of its episodes must be made with, such as the width of a vector.

        It goes before the settings of the task.
        """
        return {}

    async def train(self) -> Mapping[str, float]:
        """Train within the cell's steps; what was measured on the way.

        Evaluations on the way are lines of ``evaluations.jsonl`` in the cell's folder, each with
        ``step`` and ``success_rate``: steps to a threshold are counted by them.
        """
        return {}

    @abstractmethod
    def policy(self) -> Policy:
        """A new policy for episodes, one after another; several may act side by side."""

    async def aclose(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what the method holds."""


# Where ours are: a module and its class. Imported when asked for, because some bring torch.
_OURS = {
    "echo-rl": ("trained", "EchoRL"),
    "impala": ("trained", "IMPALA"),
    "ppo-rlhf": ("trained", "PPORLHF"),
    "react": ("react", "ReAct"),
    "rlaif": ("trained", "RLAIF"),
    "tot": ("tree_of_thoughts", "TreeOfThoughts"),
}
_USERS: dict[str, Callable[[Cell], Method]] = {}


def register_method(name: str, make: Callable[[Cell], Method]) -> None:
    """Give a name to a method; the newest of a name counts.

    ``make`` is usually the class. A function that makes one may have the attributes
    ``needs_backbone`` and ``trains``; without, it is taken as one that has neither.
    """
    if not name or not callable(make):
        raise ArgumentError("a method needs a name and a function that makes it")
    _USERS[name] = make


def method_names() -> tuple[str, ...]:
    """All names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_USERS}))


def maker_of(name: str) -> Callable[[Cell], Method]:
    """What makes the method of a name: its class, for ours."""
    if name in _USERS:
        return _USERS[name]
    if name not in _OURS:
        raise ArgumentError(f"there is no method {name!r}; there are {', '.join(method_names())}")
    module, class_name = _OURS[name]
    made: Callable[[Cell], Method] = getattr(
        importlib.import_module(f"echoic.agents.baselines.{module}"), class_name
    )
    return made


def method_of(name: str, cell: Cell) -> Method:
    """Make the method of a name for a cell."""
    return maker_of(name)(cell)
