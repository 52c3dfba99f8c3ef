"""Settings of a benchmark, and the cells that they make."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echoic.agents import _checks
from echoic.agents.backbones.base import backbone_target
from echoic.agents.baselines import maker_of, method_names
from echoic.agents.environments.base import environment_names, provenance_of
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["ECHO_RL", "HELD_OUT", "NO_BACKBONE", "BenchmarkConfig", "CellName", "cells_of"]

#: First seed of evaluation environments. Training stays below 2^30, and a trainer's own
#: evaluations, by which it may stop, between the two. All are below 2^31.
HELD_OUT = 3 << 29
# The former is also the distance of the seeds of two runs.
_MOST_EPISODES, _MOST_SEEDS = 100_000, 5_000
ECHO_RL = "echo-rl"
#: Stands for the language model of a method that has none.
NO_BACKBONE = "-"


@dataclass
class BenchmarkConfig:
    """Settings of a benchmark.

    >>> BenchmarkConfig(num_seeds=0)
    Traceback (most recent call last):
    echoic.errors.ArgumentError: num_seeds must be from 1 to 5000, not 0
    """

    #: Names of environments.
    tasks: list[str] = field(
        default_factory=lambda: ["alfworld", "webshop", "cruxeval", "arc", "minigrid"]
    )
    #: Settings of tasks, by name.
    task_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Names of language models, for the methods that act through one.
    backbones: list[str] = field(
        default_factory=lambda: [
            "gpt-4o", "claude-3.5-sonnet", "gemini-1.5-pro", "llama-4", "qwen-7b", "deepseek-r1",
        ]
    )  # fmt: skip
    #: Methods to compare with the reference. ``"ppo-rlhf"`` is reported as ``"ppo"`` unless its
    #: ``baseline_configs`` have ``{"reward": "preferences"}``.
    baselines: list[str] = field(
        default_factory=lambda: ["react", "tot", "ppo-rlhf", "rlaif", "impala"]
    )
    num_seeds: int = 10  # runs of each method, each with another seed
    num_episodes: int = 100  # of each evaluation
    max_steps_per_episode: int = 1000
    evaluation_timeout: float = 300.0  # seconds after which an episode is stopped
    #: ``total_timesteps``, the steps of the environment that *every* method that trains may take;
    #: the rest are settings of ``"echo-rl"``.
    echo_rl_configs: Mapping[str, Any] = field(default_factory=dict)
    #: Folder of rows, report and checkpoints. A second run does what is missing there.
    output_dir: str = "./benchmark_results"
    save_detailed_results: bool = True  # rows of a cell's first two episodes have their steps
    generate_plots: bool = True  # the report has a picture, which needs matplotlib
    generate_report: bool = True  # in Markdown
    #: Settings of the other methods, by name.
    baseline_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Settings of tasks that differ in evaluation from those in training: for data sets with a part
    #: of their own for that.
    evaluation_task_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reference: str = ECHO_RL  # the method that the others are compared with
    parallel_episodes: int = 1  # most episodes of a cell that run side by side
    success_threshold: float = 0.8  # the success rate to which steps are counted
    #: Seconds that a step of an environment may take. Environments of evaluations then run in
    #: processes of their own; one that takes longer is killed, and its episode ends with an error.
    environment_timeout: float | None = None
    worker_imports: tuple[str, ...] = ()  # modules that such processes import first

    def __post_init__(self) -> None:
        _checks.whole(self, "num_seeds", most=_MOST_SEEDS)
        _checks.whole(self, "num_episodes", most=_MOST_EPISODES)
        _checks.whole(self, "max_steps_per_episode", most=1_000_000_000)
        _checks.whole(self, "parallel_episodes", most=1024)
        _checks.whole(self, "training_steps")
        _checks.number(self, "evaluation_timeout", above=0)
        if self.environment_timeout is not None:
            _checks.number(self, "environment_timeout", above=0)
        _checks.number(self, "success_threshold", above=0, most=1)
        for name in ("tasks", "backbones", "baselines"):
            names = getattr(self, name)
            if isinstance(names, str) or any(not isinstance(one, str) or not one for one in names):
                raise ArgumentError(f"{name} must be a list of names, not {names!r}")
        if not self.tasks:
            raise ArgumentError("tasks must name at least one environment")
        if ECHO_RL in self.baseline_configs:
            raise ArgumentError(f"settings of {ECHO_RL} are echo_rl_configs, not baseline_configs")
        tasks = {*self.tasks, *environment_names()}
        methods = {self.reference, *self.baselines, *method_names()}
        for name in ("task_configs", "evaluation_task_configs", "baseline_configs"):
            known = methods if name == "baseline_configs" else tasks
            if unknown := sorted(set(getattr(self, name)) - known):
                listed = ", ".join(sorted(known))
                raise ArgumentError(f"{name} has {unknown[0]!r}, which is not one of {listed}")

    @property
    def training_steps(self) -> int:
        """Steps of the environment that every method that trains may take."""
        return self.echo_rl_configs.get("total_timesteps", 100_000)  # type: ignore[no-any-return]

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods under the names of reports, the reference first."""
        return tuple(dict.fromkeys(map(self._called, (self.reference, *self.baselines))))

    def _called(self, method: str) -> str:
        learned = "reward" in self.baseline_configs.get("ppo-rlhf", {})
        return "ppo" if method == "ppo-rlhf" and not learned else method

    def settings_of(self, method: str) -> dict[str, Any]:
        """Return the settings of a method, without the number of steps."""
        own = self.echo_rl_configs if method == ECHO_RL else self.baseline_configs.get(method, {})
        if method == "ppo" and self._called("ppo-rlhf") == "ppo":
            own = {**self.baseline_configs.get("ppo-rlhf", {}), **own}
        return {name: value for name, value in own.items() if name != "total_timesteps"}

    @staticmethod
    def episode_seed(seed: int, episode: int) -> int:
        """Return the seed of an episode of an evaluation: held out, the same for all methods."""
        return HELD_OUT + seed * _MOST_EPISODES + episode


@dataclass(frozen=True)
class CellName:
    """A cell: a task, a method, a language model if the method acts through one, and a seed."""

    task: str
    provenance: str  # the task with where its data comes from, such as "webshop-generated"
    method: str
    backbone: str
    seed: int
    settings: str  # a hash of all that its rows depend on
    model: str  # what the backbone's name means here

    @property
    def id(self) -> str:
        """The beginning of its rows' ids."""
        return f"{self.provenance}/{self.method}/{self.backbone}/{self.seed}/{self.settings}"

    def folder(self, root: Path) -> Path:
        """Return the folder of its checkpoints."""
        return root / "cells" / re.sub(r"[^\w.-]+", "_", self.id)


def cells_of(config: BenchmarkConfig) -> Iterator[CellName]:
    """Iterate over all cells, seed by seed, so that an early end leaves some of every method."""
    cells = []
    for task in dict.fromkeys(config.tasks):
        own = [one.get(task, {}) for one in (config.task_configs, config.evaluation_task_configs)]
        provenance = provenance_of(task, {**own[0], **own[1]})
        for method in config.methods:
            needs_backbone = False
            with contextlib.suppress(ImportError):  # its cells are skipped
                needs_backbone = bool(getattr(maker_of(method), "needs_backbone", False))
            method_settings = config.settings_of(method)
            # A method may train a language model.
            trained = method_settings.get("backbone", "mlp")
            own_name = NO_BACKBONE if trained == "mlp" else trained
            for backbone in dict.fromkeys(config.backbones) if needs_backbone else (own_name,):
                target = backbone_target(backbone)
                settings = {
                    "task": own[0],
                    "evaluation": own[1],
                    "method": method_settings,
                    "training_steps": config.training_steps,
                    "max_steps": config.max_steps_per_episode,
                    "timeout": config.evaluation_timeout,
                    "environment_timeout": config.environment_timeout,
                    "provenance": provenance,
                    # The name alone does not say which model it is.
                    **({"backbone": target} if target.moved else {}),
                }
                first = CellName(
                    task, provenance, method, backbone, 0, _hash(settings), target.model
                )
                cells.append(first)
    for seed in range(config.num_seeds):
        for cell in cells:
            yield dataclasses.replace(cell, seed=seed)


def _hash(settings: dict[str, Any]) -> str:
    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else dataclasses.asdict(value)

    try:
        text = json.dumps(settings, sort_keys=True, default=plain)
    except TypeError as error:
        raise ArgumentError(f"settings of tasks and methods must be plain data: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()[:8]
