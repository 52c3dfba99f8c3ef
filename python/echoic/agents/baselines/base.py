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

__all__ = ["Cell", "Method", "method_names", "method_of", "register_method"]


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

    async def train(self) -> Mapping[str, float]:
        """Train within the cell's steps; what was measured on the way."""
        return {}

    @abstractmethod
    def policy(self) -> Policy:
        """A new policy for episodes, one after another; several may act side by side."""

    async def aclose(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what the method holds."""


# Where ours are: a module and a class. Imported when asked for, because some need packages.
_OURS = {
    "echo-rl": ("echo", "EchoRL"),
    "impala": ("impala", "IMPALA"),
    "ppo-rlhf": ("ppo_rlhf", "PPORLHF"),
    "react": ("react", "ReAct"),
    "rlaif": ("rlaif", "RLAIF"),
    "tot": ("tree_of_thoughts", "TreeOfThoughts"),
}
_MAKERS: dict[str, Callable[[Cell], Method]] = {}


def register_method(name: str, make: Callable[[Cell], Method]) -> None:
    """Give a name to a method; the newest of a name counts."""
    if not name or not callable(make):
        raise ArgumentError("a method needs a name and a function that makes it")
    _MAKERS[name] = make


def method_names() -> tuple[str, ...]:
    """All names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_MAKERS}))


def method_of(name: str, cell: Cell) -> Method:
    """Make the method of a name for a cell."""
    if name in _MAKERS:
        return _MAKERS[name](cell)
    if name not in _OURS:
        raise ArgumentError(f"there is no method {name!r}; there are {', '.join(method_names())}")
    module_name, class_name = _OURS[name]
    module = importlib.import_module(f"echoic.agents.baselines.{module_name}")
    method: Method = getattr(module, class_name)(cell)
    return method
