"""What a benchmark compares, on what, and for how long; and what makes its rows comparable.

A cell is a task, a method, a language model where the method acts through one, and a seed. Its
*settings* are everything that its numbers depend on, and rows carry a short hash of them: a second
run in the same folder with other settings does not take the rows of the first for its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echoic.agents import _checks
from echoic.agents.backbones.registry import backbone_target
from echoic.agents.baselines.base import maker_of, method_names
from echoic.agents.environments import environment_names
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from echoic.agents.backbones.registry import Target

__all__ = ["ECHO_RL", "HELD_OUT", "NO_BACKBONE", "BenchmarkConfig", "CellName", "cells_of"]

#: The first of the seeds that environments are evaluated with. Training is to stay below 2^30, and
#: a trainer's own evaluations, by which it may stop, between the two. All are below 2^31.
HELD_OUT = 3 << 29
#: How far apart the seeds of two runs are, and so how many episodes a run may have.
MOST_EPISODES = 100_000
MOST_SEEDS = 5_000
#: The name of the method that the others are compared with.
ECHO_RL = "echo-rl"

TASKS = ("alfworld", "webshop", "cruxeval", "arc", "minigrid")
BACKBONES = (
    "gpt-4o",
    "claude-3.5-sonnet",
    "gemini-1.5-pro",
    "llama-4",
    "qwen-7b",
    "deepseek-r1",
)
BASELINES = ("react", "tot", "ppo-rlhf", "rlaif", "impala")


@dataclass
class BenchmarkConfig:
    """Settings of a benchmark.

    Attributes:
        tasks: Names of environments.
        task_configs: Their settings, by name.
        backbones: Names of language models, for the methods that act through one.
        baselines: Names of the methods to compare with; that of this package is always there,
            unless ``reference`` is another.
        num_seeds: How often each method is trained and evaluated, each time with another seed.
        num_episodes: Episodes of each evaluation.
        max_steps_per_episode: After how many steps an episode of an evaluation is cut off. An
            environment may do so earlier by its own setting.
        evaluation_timeout: After how many seconds an episode is.
        echo_rl_configs: ``total_timesteps``, how many steps of the environment *every* method that
            trains may take; the rest are settings of ``"echo-rl"``.
        output_dir: Where rows, report and checkpoints go. A second run with the same folder does
            what is missing there.
        save_detailed_results: Whether the steps of the first episodes of each cell are kept, for
            the viewer. The rows of all episodes always are.
        generate_plots: Whether the report has pictures; they need matplotlib.
        generate_report: Whether there is a report, in Markdown and in HTML.
        baseline_configs: Settings of the other methods, by name.
        evaluation_task_configs: What is set otherwise in evaluation than in training, by task: for
            data sets that have a part of their own for that.
        reference: Which method the others are compared with.
        seed: The first of the seeds.
        parallel_episodes: How many episodes of a cell may run side by side. Their order in the
            file then varies, not what is in them.
        detailed_episodes: Of how many episodes of each cell the steps are kept.
        success_threshold: The success rate that steps are counted to.
        retry_failed: Whether a second run tries again what ended with an error.
        environment_timeout: With a number of seconds, environments of evaluations run in processes
            of their own, and one that takes longer for a step is killed: its episode ends with an
            error, and nothing of it stays. ``None`` runs them in threads, where one that hangs is
            given up after ``evaluation_timeout``, and its thread stays.
        worker_imports: Modules that such processes import first, to register environments.

    >>> BenchmarkConfig(num_seeds=0)
    Traceback (most recent call last):
    echoic.errors.ArgumentError: num_seeds must be from 1 to 5000, not 0
    """

    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    task_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    backbones: list[str] = field(default_factory=lambda: list(BACKBONES))
    baselines: list[str] = field(default_factory=lambda: list(BASELINES))
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
    retry_failed: bool = True
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
        self._check_names()

    def _check_names(self) -> None:
        """Refuse settings of what there is not: they would be without effect."""
        if ECHO_RL in self.baseline_configs:
            raise ArgumentError(f"settings of {ECHO_RL} are echo_rl_configs, not baseline_configs")
        tasks = {*self.tasks, *environment_names()}
        for name, known in (
            ("task_configs", tasks),
            ("evaluation_task_configs", tasks),
            ("baseline_configs", {*self.methods, *method_names()}),
        ):
            for one in getattr(self, name):
                if one not in known:
                    raise ArgumentError(f"{name} has settings of {one!r}, which there is not")

    @property
    def training_steps(self) -> int:
        """How many steps of the environment every method that trains may take."""
        steps: int = self.echo_rl_configs.get("total_timesteps", 100_000)
        return steps

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods, the reference first."""
        return tuple(dict.fromkeys((self.reference, *self.baselines)))

    @property
    def seeds(self) -> range:
        """The seeds of training."""
        return range(self.seed, self.seed + self.num_seeds)

    def settings_of(self, method: str) -> dict[str, Any]:
        """The settings of a method, without the number of steps."""
        own = self.echo_rl_configs if method == ECHO_RL else self.baseline_configs.get(method, {})
        return {name: value for name, value in own.items() if name != "total_timesteps"}

    @staticmethod
    def episode_seed(seed: int, episode: int) -> int:
        """The seed of the environment in an episode of the evaluation of a run.

        It is the same for all methods, so that they meet the same tasks; it is different for each
        run and episode; and none of training is as high.
        """
        return HELD_OUT + seed * MOST_EPISODES + episode


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
