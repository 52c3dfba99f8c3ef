"""Settings of a benchmark, and the cells that they make.

A cell is a task, a method, a language model where the method acts through one, and a seed. Rows
carry a short hash of all settings that they depend on: rows of other settings are not reused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echoic.agents import _checks
from echoic.agents.backbones.base import backbone_target
from echoic.agents.baselines.base import maker_of, method_names
from echoic.agents.environments.base import environment_names, provenance_of
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["ECHO_RL", "HELD_OUT", "NO_BACKBONE", "BenchmarkConfig", "CellName", "cells_of"]

#: First seed of evaluation environments. Training stays below 2^30, and a trainer's own
#: evaluations, by which it may stop, between the two. All are below 2^31.
HELD_OUT = 3 << 29
#: Distance of the seeds of two runs, and so the most episodes of a run.
MOST_EPISODES = 100_000
MOST_SEEDS = 5_000
#: The method that the others are compared with by default.
ECHO_RL = "echo-rl"
#: Stands for the language model of a method that has none.
NO_BACKBONE = "-"


@dataclass
class BenchmarkConfig:
    """Settings of a benchmark.

    Names may be registered after the settings are made: unknown ones fail when
    :class:`~echoic.agents.evaluation.EchoRLBenchmark` is made from them.

    Attributes:
        tasks: Names of environments.
        task_configs: Their settings, by name.
        backbones: Names of language models, for the methods that act through one.
        baselines: Names of the methods to compare with the reference. ``"ppo-rlhf"`` is reported as
            ``"ppo"`` unless its ``baseline_configs`` have ``{"reward": "preferences"}``.
        num_seeds: Runs of each method, each with another seed.
        num_episodes: Episodes of each evaluation.
        max_steps_per_episode: Steps after which an episode is cut off.
        evaluation_timeout: Seconds after which an episode is stopped.
        echo_rl_configs: ``total_timesteps``, the steps of the environment that *every* method that
            trains may take; the rest are settings of ``"echo-rl"``.
        output_dir: Folder of rows, report and checkpoints. A second run does what is missing there.
        save_detailed_results: Whether the steps of the first episodes of each cell are kept.
        generate_plots: Whether the report has pictures; they need matplotlib.
        generate_report: Whether there is a report, in Markdown.
        baseline_configs: Settings of the other methods, by name.
        evaluation_task_configs: Settings that differ in evaluation from those in training, by task:
            for data sets with a part of their own for that.
        reference: The method that the others are compared with.
        seed: The first of the seeds.
        parallel_episodes: Most episodes of a cell that run side by side.
        detailed_episodes: Episodes of each cell of which the steps are kept.
        success_threshold: The success rate to which steps are counted.
        environment_timeout: Seconds that a step of an environment may take. Environments of
            evaluations then run in processes of their own; one that takes longer is killed, and its
            episode ends with an error. Default: no limit, and threads.
        worker_imports: Modules that such processes import first, to register environments.

    >>> BenchmarkConfig(num_seeds=0)
    Traceback (most recent call last):
    echoic.errors.ArgumentError: num_seeds must be from 1 to 5000, not 0
    """

    tasks: list[str] = field(
        default_factory=lambda: ["alfworld", "webshop", "cruxeval", "arc", "minigrid"]
    )
    task_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    backbones: list[str] = field(
        default_factory=lambda: [
            "gpt-4o", "claude-3.5-sonnet", "gemini-1.5-pro", "llama-4", "qwen-7b", "deepseek-r1",
        ]
    )  # fmt: skip
    baselines: list[str] = field(
        default_factory=lambda: ["react", "tot", "ppo-rlhf", "rlaif", "impala"]
    )
    num_seeds: int = 10
    num_episodes: int = 100
    max_steps_per_episode: int = 1000
    evaluation_timeout: float = 300.0
    echo_rl_configs: Mapping[str, Any] = field(default_factory=dict)
    output_dir: str = "./benchmark_results"
    save_detailed_results: bool = True
    generate_plots: bool = True
    generate_report: bool = True
    baseline_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluation_task_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reference: str = ECHO_RL
    seed: int = 0
    parallel_episodes: int = 1
    detailed_episodes: int = 2
    success_threshold: float = 0.8
    environment_timeout: float | None = None
    worker_imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _checks.whole(self, "num_seeds", most=MOST_SEEDS)
        _checks.whole(self, "num_episodes", most=MOST_EPISODES)
        _checks.whole(self, "max_steps_per_episode", most=1_000_000_000)
        _checks.whole(self, "parallel_episodes", most=1024)
        _checks.whole(self, "detailed_episodes", least=0, most=MOST_EPISODES)
        _checks.whole(self, "seed", least=0, most=MOST_SEEDS - self.num_seeds)
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
        # Settings of an unknown name would have no effect.
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
        steps: int = self.echo_rl_configs.get("total_timesteps", 100_000)
        return steps

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods under the names of reports, the reference first."""
        return tuple(dict.fromkeys(map(self._called, (self.reference, *self.baselines))))

    def _called(self, method: str) -> str:
        learned = "reward" in self.baseline_configs.get("ppo-rlhf", {})
        return "ppo" if method == "ppo-rlhf" and not learned else method

    @property
    def seeds(self) -> range:
        """The seeds of training."""
        return range(self.seed, self.seed + self.num_seeds)

    def settings_of(self, method: str) -> dict[str, Any]:
        """Return the settings of a method, without the number of steps."""
        own = self.echo_rl_configs if method == ECHO_RL else self.baseline_configs.get(method, {})
        if method == "ppo" and self._called("ppo-rlhf") == "ppo":
            own = {**self.baseline_configs.get("ppo-rlhf", {}), **own}
        return {name: value for name, value in own.items() if name != "total_timesteps"}

    @staticmethod
    def episode_seed(seed: int, episode: int) -> int:
        """Return the seed of an episode of an evaluation: held out, the same for all methods."""
        return HELD_OUT + seed * MOST_EPISODES + episode


@dataclass(frozen=True)
class CellName:
    """A cell of a benchmark."""

    task: str
    provenance: str  # the task with where its data comes from, such as "webshop-generated"
    method: str
    backbone: str
    seed: int
    settings: str  # a hash of all that its rows depend on
    model: str = NO_BACKBONE  # what the backbone's name means here
    missing: str | None = None  # the error of a package that the method misses

    @property
    def id(self) -> str:
        """The beginning of its rows' ids."""
        return f"{self.task}/{self.method}/{self.backbone}/{self.seed}/{self.settings}"

    @property
    def labels(self) -> dict[str, Any]:
        """The entries that its rows share."""
        names = ("task", "provenance", "method", "backbone", "model", "seed", "settings")
        return {name: getattr(self, name) for name in names}

    def folder(self, root: Path) -> Path:
        """Return the folder of its checkpoints."""
        parts = (self.provenance, self.method, self.backbone, str(self.seed), self.settings)
        return root / "cells" / re.sub(r"[^\w.-]+", "_", "/".join(parts))


def cells_of(config: BenchmarkConfig) -> Iterator[CellName]:
    """Iterate over all cells, seed by seed, so that an early end leaves some of every method."""
    cells = []
    for task in dict.fromkeys(config.tasks):
        own = [one.get(task, {}) for one in (config.task_configs, config.evaluation_task_configs)]
        provenance = provenance_of(task, {**own[0], **own[1]})
        for method in config.methods:
            needs_backbone, missing = False, None
            try:
                needs_backbone = bool(getattr(maker_of(method), "needs_backbone", False))
            except ImportError as error:
                missing = f"{type(error).__name__}: {error}"
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
                names = (task, provenance, method, backbone)
                cells.append((names, _hash(settings), target.model, missing))
    for seed in config.seeds:
        for names, settings_hash, model, missing in cells:
            yield CellName(*names, seed, settings_hash, model, missing)


def _hash(settings: dict[str, Any]) -> str:
    try:
        text = json.dumps(settings, sort_keys=True, default=_plain)
    except TypeError as error:
        raise ArgumentError(f"settings of tasks and methods must be plain data: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else dataclasses.asdict(value)
