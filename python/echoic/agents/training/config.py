"""All settings of a training run."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echoic.agents import _checks
from echoic.agents.async_execution.config import ExecutionConfig
from echoic.agents.bandwidth import BandwidthConfig
from echoic.agents.prioritized_replay.config import ReplayConfig
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from echoic.agents.latent_planning.config import PlanningConfig
    from echoic.agents.learners import PPOConfig

__all__ = ["TrainingConfig", "as_json", "from_json"]

BACKENDS = ("threads", "processes", "ray")
ALGORITHMS = ("ppo", "impala")
REPLAYS = ("surprise", "uniform", "none")
_COUNTS = (
    *("total_timesteps", "train_frequency", "target_update_interval", "evaluation_frequency"),
    *("save_frequency", "state_dim", "action_dim", "latent_dim", "num_actors", "num_learners"),
    *("batch_size", "num_workers", "evaluation_episodes", "keep_checkpoints"),
)


def _planning() -> PlanningConfig:
    from echoic.agents.latent_planning.config import PlanningConfig

    return PlanningConfig()


def _ppo() -> PPOConfig:
    from echoic.agents.learners import PPOConfig

    return PPOConfig()


@dataclass
class TrainingConfig:
    """Settings of a training run. Steps are steps of environments, over all actors together.

    Attributes:
        env_name: The name of an environment.
        env_config: Its settings. ``state_encoding_dim`` and ``action_space_size`` are set to
            ``state_dim`` and ``action_dim``; others in here are an error, not a surprise.
        total_timesteps: How many steps are taken.
        learning_starts: How many are taken before the first update. They go into the replay.
        train_frequency: How many steps each actor takes between two updates: the length of a
            segment. An update learns from ``num_actors`` segments.
        target_update_interval: After how many steps the reference, to which ``kl_coef`` ties the
            policy, becomes a copy of the policy as it is.
        evaluation_frequency: After how many steps the policy is evaluated, on seeds that training
            never sees.
        save_frequency: After how many steps a checkpoint is written.
        state_dim: Numbers of a state.
        action_dim: The width of the policy.
        latent_dim: Numbers of a plan. It has to be ``planning_config.embedding_dim``; a
            ``planning_config`` that is not given is made to fit.
        planning_config: Settings of plans.
        execution_config: ``timeout`` is for how many seconds a worker may be silent before it is
            replaced, and ``max_concurrent_rollouts`` how many actors one forward pass of the policy
            serves at most. What concerns caches of keys and values has nothing to do here: a
            policy of vectors has none.
        replay_config: Settings of the replay.
        ppo_config: Settings of learning; ``batch_size`` in it is that of a minibatch.
        bandwidth_config: Settings of the tracker.
        device: Where the learner computes; actors compute on the CPU.
        seed: Of everything; drawn, and written down, when ``None``.
        num_actors: How many environments are acted in side by side.
        num_learners: In how many parts the gradient of a minibatch is computed, side by side: the
            step is made along their mean.
        batch_size: How many replayed steps an update learns from, beside the new ones.
        log_level: Of the run's log, which is ``results_dir/train.log``.
        tensorboard_log: Where TensorBoard's files go, if one of its writers is installed. Empty for
            nowhere.
        checkpoint_dir: Where checkpoints go.
        results_dir: Where ``metrics.jsonl``, one line for each update and evaluation, and the
            workers' logs go.
        backend: Where actors and parts of the learner run: in threads of this process, in lock-step
            unless ``asynchronous``, or in processes of their own, or as Ray's actors.
        num_workers: Threads or processes that the actors are divided among. What comes out depends
            on it, as on a seed.
        asynchronous: Whether actors go on while the learner learns; ``None``: unless in threads.
        algorithm: ``"ppo"``, or ``"impala"``: one step along V-trace's gradient for each batch.
        use_plans: Whether there is a planner. Without one, a policy acts on states alone.
        plan_history: How many states before the current one a plan is made of; all of the window
            when ``None``. With 0 the networks are as large, and have no memory.
        replay: ``"surprise"``, ``"uniform"`` (the same buffer, with equal scores), or ``"none"``.
        mask_commands: Whether the policy chooses among the commands that an environment lists.
        reward_scale: What rewards are multiplied by for learning.
        evaluation_episodes: Of each evaluation.
        evaluation_greedy: Whether evaluations take the likeliest action, or draw as actors do.
        early_stop_success: Training ends when an evaluation has this share of successes.
        max_episode_steps: After how many steps the trainer cuts an episode off, if the environment
            has not.
        keep_checkpoints: How many checkpoints stay.
        max_restarts: How often workers are replaced, all together, before the run gives up; with
            Ray, how often each of them is.
        worker_imports: Modules that workers in processes import first, to register environments.
        environment_timeout: With a number of seconds each environment runs in a process of its own,
            and one that takes longer for a step is killed and made anew; the step is lost, the run
            goes on. ``None`` runs them where their actors are: that is faster, and one that hangs
            holds its worker. As many processes as actors and evaluations side by side are started.
        progress: Whether a progress bar is shown.
        wandb_project: Where to log with Weights & Biases, if it is installed.

    >>> TrainingConfig(env_name="alfworld", total_timesteps=100_000, latent_dim=64).num_actors
    128
    """

    env_name: str = "alfworld"
    env_config: dict[str, Any] = field(default_factory=dict)
    total_timesteps: int = 1_000_000
    learning_starts: int = 10_000
    train_frequency: int = 4
    target_update_interval: int = 1000
    evaluation_frequency: int = 10_000
    save_frequency: int = 50_000
    state_dim: int = 512
    action_dim: int = 20
    latent_dim: int = 512
    planning_config: PlanningConfig = None  # type: ignore[assignment]
    execution_config: ExecutionConfig = field(default_factory=ExecutionConfig)
    replay_config: ReplayConfig = field(default_factory=ReplayConfig)
    ppo_config: PPOConfig = field(default_factory=_ppo)
    bandwidth_config: BandwidthConfig = field(default_factory=BandwidthConfig)
    device: str = "cuda"
    seed: int | None = None
    num_actors: int = 128
    num_learners: int = 2
    batch_size: int = 256
    log_level: str = "INFO"
    tensorboard_log: str = "./logs/tensorboard"
    checkpoint_dir: str = "./checkpoints"
    results_dir: str = "./results"

    backend: str = "threads"
    num_workers: int = 2
    asynchronous: bool | None = None
    algorithm: str = "ppo"
    use_plans: bool = True
    plan_history: int | None = None
    replay: str = "surprise"
    mask_commands: bool = True
    reward_scale: float = 1.0
    evaluation_episodes: int = 20
    evaluation_greedy: bool = False
    early_stop_success: float | None = None
    max_episode_steps: int = 1000
    keep_checkpoints: int = 3
    max_restarts: int = 20
    worker_imports: tuple[str, ...] = ()
    environment_timeout: float | None = None
    progress: bool = False
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        _checks.whole(self, *_COUNTS, "max_episode_steps")
        _checks.whole(self, "learning_starts", "max_restarts", least=0)
        _checks.one_of(self, "backend", BACKENDS)
        _checks.one_of(self, "algorithm", ALGORITHMS)
        _checks.one_of(self, "replay", REPLAYS)
        if not isinstance(logging.getLevelName(self.log_level.upper()), int):
            raise ArgumentError(f"log_level must be that of a log, not {self.log_level!r}")
        _checks.number(self, "reward_scale", above=0)
        if self.environment_timeout is not None:
            _checks.number(self, "environment_timeout", above=0)
        if self.early_stop_success is not None:
            _checks.number(self, "early_stop_success", above=0, most=1)
        if self.asynchronous is False and self.backend != "threads":
            raise ArgumentError(f'backend="{self.backend}" is asynchronous; threads need not be')
        self._check_plans()
        self._check_sizes()
        # Given as a list, by a file of settings.
        self.worker_imports = tuple(self.worker_imports)

    def _check_plans(self) -> None:
        if self.planning_config is None:
            self.planning_config = dataclasses.replace(_planning(), embedding_dim=self.latent_dim)
        elif self.planning_config.embedding_dim != self.latent_dim:
            raise ArgumentError(
                "latent_dim and planning_config.embedding_dim are both the numbers of a plan: got "
                f"{self.latent_dim} and {self.planning_config.embedding_dim}"
            )
        most = self.planning_config.state_window_size
        if self.plan_history is not None:
            _checks.whole(self, "plan_history", least=0, most=most)

    def _check_sizes(self) -> None:
        for setting, name in (
            ("state_encoding_dim", "state_dim"),
            ("action_space_size", "action_dim"),
        ):
            given = self.env_config.get(setting, getattr(self, name))
            if given != getattr(self, name):
                raise ArgumentError(
                    f"env_config says {setting}={given}, and {name} is {getattr(self, name)}: "
                    f"set {name}, the environment follows"
                )

    @property
    def environment_settings(self) -> dict[str, Any]:
        """What the environment is made with."""
        return {
            "state_encoding_dim": self.state_dim,
            "action_space_size": self.action_dim,
            "device": "cpu",
            **self.env_config,
        }

    @property
    def is_asynchronous(self) -> bool:
        """Whether actors go on while the learner learns."""
        return self.backend != "threads" if self.asynchronous is None else self.asynchronous

    @property
    def context(self) -> int:
        """How many states a segment has before its first step: those of the window before it."""
        return self.planning_config.state_window_size + 1 if self.use_plans else 0

    @property
    def plan_dim(self) -> int:
        """Numbers of what the policy has as a plan; one zero without plans."""
        return self.latent_dim if self.use_plans else 1


def as_json(config: TrainingConfig) -> dict[str, Any]:
    """The settings as JSON has them."""
    return dataclasses.asdict(config)


def from_json(settings: dict[str, Any]) -> TrainingConfig:
    """What :func:`as_json` gave, as settings again."""
    from echoic.agents.latent_planning.config import PlanningConfig
    from echoic.agents.learners import PPOConfig

    parts: dict[str, Any] = {
        "planning_config": PlanningConfig,
        "execution_config": ExecutionConfig,
        "replay_config": ReplayConfig,
        "ppo_config": PPOConfig,
        "bandwidth_config": BandwidthConfig,
    }
    made = {name: kind(**settings[name]) for name, kind in parts.items()}
    return TrainingConfig(**{**settings, **made})
