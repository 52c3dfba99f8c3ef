"""The interface of a benchmark's methods, which may train and then act, and their registry."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from echoic.agents.episodes import Policy

__all__ = ["Cell", "Method", "maker_of", "method_names", "method_of", "register_method"]


@dataclass(frozen=True)
class Cell:
    """What a method is made for."""

    task: str  # the name of an environment
    task_config: Mapping[str, Any] = field(default_factory=dict)
    backbone: Any = None  # a language model, where the method needs one
    seed: int = 0
    steps: int = 100_000  # of the environment, that training may take
    folder: Path = Path("runs")  # of checkpoints and logs; a method resumes from its own
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method


class Method(ABC):
    """A way to act in environments, with or without training."""

    name: ClassVar[str]
    needs_backbone: ClassVar[bool] = False  # it acts through a language model
    needs_commands: ClassVar[bool] = False  # it can't act where any text is a command
    trains: ClassVar[bool] = False
    #: Evaluations during training, each with ``step`` and ``success_rate``; set by :meth:`train`.
    curve: Sequence[Mapping[str, Any]] = ()

    def __init__(self, cell: Cell) -> None:
        if self.needs_backbone and cell.backbone is None:
            raise ArgumentError(f"{self.name} acts through a language model, and got no backbone")
        self.check(cell.settings)
        self.cell = cell

    @classmethod  # noqa: B027 - some have any settings
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Raise an ``ArgumentError`` for settings that no cell of this method can have."""

    @property
    def environment_settings(self) -> Mapping[str, Any]:
        """Settings that its environments must have; they override those of the task."""
        return {}

    async def train(self) -> Mapping[str, float]:
        """Train within the cell's steps, resuming an earlier run; return measurements."""
        return {}

    @abstractmethod
    def policy(self) -> Policy:
        """Return a new policy for episodes, one after another; several may act side by side."""

    async def aclose(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the method holds."""


# Module and class of each method, imported when it is first used, because some import torch.
_OURS = {
    "echo-rl": ("trained", "EchoRL"),
    "impala": ("trained", "IMPALA"),
    "ppo": ("trained", "PPO"),
    "ppo-rlhf": ("trained", "PPORLHF"),
    "react": ("prompted", "ReAct"),
    "rlaif": ("trained", "RLAIF"),
    "tot": ("prompted", "TreeOfThoughts"),
}
_USERS: dict[str, Callable[[Cell], Method]] = {}


def register_method(name: str, make: Callable[[Cell], Method]) -> None:
    """Register a method under a name, usually by its class; the latest of a name counts."""
    if not name or not callable(make):
        raise ArgumentError("a method needs a name and a function that makes it")
    _USERS[name] = make


def method_names() -> tuple[str, ...]:
    """Return all names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_USERS}))


def maker_of(name: str) -> Callable[[Cell], Method]:
    """Return what makes the method of a name: its class, for ours."""
    if name in _USERS:
        return _USERS[name]
    if name not in _OURS:
        raise ArgumentError(f"there is no method {name!r}; there are {', '.join(method_names())}")
    module, class_name = _OURS[name]
    found = importlib.import_module(f"echoic.agents.baselines.{module}")
    return getattr(found, class_name)  # type: ignore[no-any-return]


def method_of(name: str, cell: Cell) -> Method:
    """Make the method of a name for a cell."""
    return maker_of(name)(cell)
