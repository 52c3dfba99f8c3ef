"""What a benchmark compares, on what, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echoic.agents.baselines.base import method_names
from echoic.agents.environments import environment_names
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ECHO_RL", "HELD_OUT", "BenchmarkConfig"]

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
        limits = {
            "num_seeds": (1, MOST_SEEDS),
            "num_episodes": (1, MOST_EPISODES),
            "max_steps_per_episode": (1, 1_000_000_000),
            "parallel_episodes": (1, 1024),
            "detailed_episodes": (0, MOST_EPISODES),
            "seed": (0, MOST_SEEDS - self.num_seeds),
            "training_steps": (1, 1 << 62),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise ArgumentError(f"{name} must be from {least} to {most}, not {value!r}")
        if not (math.isfinite(self.evaluation_timeout) and self.evaluation_timeout > 0):
            raise ArgumentError(
                f"evaluation_timeout must be above 0 seconds, not {self.evaluation_timeout}"
            )
        limit = self.environment_timeout
        if limit is not None and not 0 < limit < math.inf:
            raise ArgumentError(f"environment_timeout must be above 0 seconds, not {limit}")
        if not 0 < self.success_threshold <= 1:
            raise ArgumentError(
                f"success_threshold must be above 0 and at most 1, not {self.success_threshold}"
            )
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
