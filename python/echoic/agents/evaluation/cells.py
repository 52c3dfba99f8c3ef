"""Which cells a benchmark has, and what makes the rows of one comparable.

A cell is a task, a method, a language model where the method acts through one, and a seed. Its
*settings* are everything that its numbers depend on, and rows carry a short hash of them: a second
run in the same folder with other settings does not take the rows of the first for its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoic.agents.backbones.registry import backbone_target
from echoic.agents.baselines.base import maker_of
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from echoic.agents.backbones.registry import Target
    from echoic.agents.evaluation.config import BenchmarkConfig

__all__ = ["NO_BACKBONE", "CellName", "cells_of"]

#: Stands for the language model of a method that has none.
NO_BACKBONE = "-"


@dataclass(frozen=True)
class CellName:
    """A cell of a benchmark.

    Attributes:
        task: The name of an environment.
        method: The name of a method.
        backbone: That of a language model, or ``"-"``.
        seed: Of training.
        settings: A hash of all that its rows depend on.
        model: The language model that the backbone's name means here.
        problem: Why the method can't be had, if it can't.
        missing: Whether that is because a package is missing.
    """

    task: str
    method: str
    backbone: str
    seed: int
    settings: str
    model: str = NO_BACKBONE
    problem: str | None = None
    missing: bool = False

    @property
    def id(self) -> str:
        """What its rows' ids begin with."""
        return f"{self.task}/{self.method}/{self.backbone}/{self.seed}/{self.settings}"

    @property
    def labels(self) -> dict[str, Any]:
        """What its rows have in common."""
        return {
            "task": self.task,
            "method": self.method,
            "backbone": self.backbone,
            "model": self.model,
            "seed": self.seed,
            "settings": self.settings,
        }

    def folder(self, root: Path) -> Path:
        """Where its checkpoints go."""
        return root / "cells" / re.sub(r"[^\w.-]+", "_", self.id)


def cells_of(config: BenchmarkConfig) -> Iterator[CellName]:
    """All cells: seed by seed, so that an early end leaves something of every method."""
    kinds = {name: _kind(name) for name in config.methods}
    for seed in config.seeds:
        for task in dict.fromkeys(config.tasks):
            for method, (needs_backbone, problem, missing) in kinds.items():
                for backbone in (
                    dict.fromkeys(config.backbones) if needs_backbone else (NO_BACKBONE,)
                ):
                    target = backbone_target(backbone)
                    settings = _settings(config, task, method, target)
                    yield CellName(
                        task, method, backbone, seed, settings, target.model, problem, missing
                    )


def _kind(method: str) -> tuple[bool, str | None, bool]:
    """Whether a method needs a language model, why it can't be had, and if a package is missing."""
    try:
        return bool(getattr(maker_of(method), "needs_backbone", False)), None, False
    except ImportError as error:
        return False, f"{type(error).__name__}: {error}", True
    except ArgumentError as error:
        return False, str(error), False


def _settings(config: BenchmarkConfig, task: str, method: str, target: Target) -> str:
    told: dict[str, Any] = {
        "task": config.task_configs.get(task, {}),
        "evaluation": config.evaluation_task_configs.get(task, {}),
        "method": config.settings_of(method),
        "training_steps": config.training_steps,
        "max_steps": config.max_steps_per_episode,
        "timeout": config.evaluation_timeout,
    }
    if config.environment_timeout is not None:
        told["environment_timeout"] = config.environment_timeout
    if target.moved:
        # The name alone says no longer which model it was.
        told["backbone"] = target
    try:
        text = json.dumps(told, sort_keys=True, default=_plain)
    except TypeError as error:
        raise ArgumentError(
            f"settings of {task} and {method} must be plain data: {error}"
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not")
