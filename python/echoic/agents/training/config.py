"""Settings of a training run."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echoic.agents import _checks
from echoic.agents.bandwidth import BandwidthConfig
from echoic.agents.llm.config import ExecutionConfig
from echoic.agents.plans.config import PlanningConfig
from echoic.agents.replay.config import ReplayConfig
from echoic.errors import ArgumentError

__all__ = ["PPOConfig", "TrainingConfig", "from_json"]

BACKENDS = ("threads", "processes")
ALGORITHMS = ("ppo", "impala")
REPLAYS = ("surprise", "uniform", "none")
# Sizes of the default planner: 100,000 steps of the environments here take minutes on two cores.
_SMALL = {"encoder_dim": 128, "num_layers": 2, "hidden_dim": 256}
_COUNTS = (
    *("total_timesteps", "train_frequency", "target_update_interval", "evaluation_frequency"),
    *("save_frequency", "state_dim", "action_dim", "latent_dim", "num_actors", "num_learners"),
    *("batch_size", "num_workers", "evaluation_episodes", "keep_checkpoints"),
)


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO.

    Attributes:
        learning_rate: Of Adam, for policy and values.
        clip_epsilon: How far a ratio of probabilities may move for its gain; also how far a value
            may, with ``value_clip``.
        value_loss_coef: Weight of the values' loss.
        entropy_coef: Weight of the policy's entropy, which is rewarded.
        kl_coef: Weight of ``KL(π || reference)``. The reference is that of ``set_reference``, or
            without it the policy at the start of the update.
        max_grad_norm: Length that a gradient is clipped to.
        gae_lambda: λ of GAE.
        gamma: The discount.
        num_epochs: Passes over the steps.
        batch_size: Steps of a minibatch.
        target_kl: Estimated ``KL(old || new)`` at which an update ends; infinity: never.
        value_clip: Whether values may move by ``clip_epsilon`` only.
        normalize_advantages: Whether advantages get mean 0 and deviation 1 over the steps of an
            update.
    """

    learning_rate: float = 3e-4
    clip_epsilon: float = 0.2
    value_loss_coef: float = 0.5
    entropy_coef: float = 0.01
    kl_coef: float = 0.1
    max_grad_norm: float = 1.0
    gae_lambda: float = 0.95
    gamma: float = 0.99
    num_epochs: int = 4
    batch_size: int = 256
    target_kl: float = 0.01
    value_clip: bool = True
    normalize_advantages: bool = True

    def __post_init__(self) -> None:
        _checks.number(self, "learning_rate", "clip_epsilon", "max_grad_norm", above=0)
        _checks.number(self, "value_loss_coef", "entropy_coef", "kl_coef", least=0)
        _checks.number(self, "gae_lambda", "gamma", least=0, most=1)
        _checks.whole(self, "num_epochs", "batch_size")
        _checks.number(self, "target_kl", above=0, finite=False)


@dataclass
class TrainingConfig:
    """Settings of a training run. Steps are steps of environments, over all actors together.

    Attributes:
        env_name: Name of an environment.
        env_config: Its settings. ``state_encoding_dim`` and ``action_space_size`` are set to
            ``state_dim`` and ``action_dim``; other values of these are an error.
        total_timesteps: Steps of the run.
        learning_starts: Steps before the first update. They are added to the replay.
        train_frequency: Steps of each actor between two updates: the length of a segment. An
            update learns from ``num_actors`` segments.
        target_update_interval: Steps after which the reference, to which ``kl_coef`` ties the
            policy, becomes a copy of the current policy.
        evaluation_frequency: Steps between two evaluations, on seeds that training never uses.
        save_frequency: Steps between two checkpoints.
        state_dim: Numbers of a state.
        action_dim: Width of the policy.
        latent_dim: Numbers of a plan, equal to ``planning_config.embedding_dim``; by default
            ``planning_config`` is made to fit.
        planning_config: Settings of plans; by default those of ``PlanningConfig`` with a smaller
            encoder and policy.
        execution_config: ``timeout`` is for how many seconds a worker may be silent before it is
            replaced, and ``max_concurrent_rollouts`` how many actors one forward pass serves at
            most. Other fields are not used: a policy of vectors has no cache of keys and values.
        replay_config: Settings of the replay.
        ppo_config: Settings of learning; its ``batch_size`` is that of a minibatch.
        bandwidth_config: Settings of the tracker.
        device: Device of the learner; actors use the CPU.
        seed: Seed of everything; ``None``: random, and reported in the metrics.
        num_actors: Environments side by side.
        num_learners: Parts in which the gradient of a minibatch is computed, side by side. The
            step is taken along their mean.
        batch_size: Replayed steps of an update, beside the new ones.
        log_level: Level of the run's log, ``results_dir/train.log``.
        tensorboard_log: Folder of TensorBoard's files, if one of its writers is installed; empty:
            none.
        checkpoint_dir: Folder of checkpoints.
        results_dir: Folder of ``metrics.jsonl``, with one line for each update and evaluation, and
            of the workers' logs.
        backbone: What is trained: ``"mlp"``, a policy of vectors; or a language model,
            ``"local:SmolLM2-135M"`` or a folder of transformers, see
            :class:`~echoic.agents.llm.LLMTrainer`.
        backend: Workers are ``"threads"`` of this process, in lock-step unless ``asynchronous``;
            or ``"processes"``.
        num_workers: Workers that the actors are divided among. Results depend on it, as on a seed.
        asynchronous: Whether actors act while the learner learns; ``None``: unless in threads.
        algorithm: ``"ppo"``, or ``"impala"``: one step along V-trace's gradient for each batch.
        use_plans: Whether there is a planner. Without one, a policy acts on states alone.
        plan_history: States before the current one that a plan is made of; ``None``: the whole
            window. With 0 the networks are as large, and have no memory.
        replay: ``"surprise"``, ``"uniform"`` (the same buffer, with equal scores), or ``"none"``.
        mask_commands: Whether the policy chooses among the commands that an environment lists.
        reward_scale: Factor of rewards for learning.
        evaluation_episodes: Episodes of each evaluation.
        evaluation_greedy: Whether evaluations take the likeliest action instead of drawing one.
        early_stop_success: Share of successes in an evaluation at which training ends.
        max_episode_steps: Steps after which the trainer cuts an episode off.
        keep_checkpoints: Checkpoints that are kept.
        max_restarts: Replacements of workers, in all, before the run fails.
        worker_imports: Modules that worker processes import first, to register environments.
        environment_timeout: Seconds of a step after which an environment is killed and replaced;
            the step is lost, and the run goes on. Each environment, also those of evaluations,
            then runs in its own process. ``None`` runs them where their actors are: that is
            faster, and one that hangs blocks its worker.
        progress: Whether a progress bar is shown.
        wandb_project: Project of Weights & Biases to log to.

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
    ppo_config: PPOConfig = field(default_factory=PPOConfig)
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

    backbone: str = "mlp"
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
        self._check_backbone()
        _checks.one_of(self, "backend", BACKENDS)
        _checks.one_of(self, "algorithm", ALGORITHMS)
        _checks.one_of(self, "replay", REPLAYS)
        if not isinstance(logging.getLevelName(self.log_level.upper()), int):
            raise ArgumentError(f"log_level must be a level of logging, not {self.log_level!r}")
        _checks.number(self, "reward_scale", above=0)
        if self.environment_timeout is not None:
            _checks.number(self, "environment_timeout", above=0)
        if self.early_stop_success is not None:
            _checks.number(self, "early_stop_success", above=0, most=1)
        if self.asynchronous is False and self.backend != "threads":
            raise ArgumentError(f'backend="{self.backend}" is asynchronous; threads need not be')
        self._check_plans()
        self._check_sizes()
        self.worker_imports = tuple(self.worker_imports)

    def _check_backbone(self) -> None:
        name = self.backbone.removeprefix("local:")
        if self.trains_language_model and not (
            name and (name != self.backbone or Path(name).is_dir())
        ):
            raise ArgumentError(
                f'backbone={self.backbone!r} can\'t be trained: expected "mlp" (a policy of '
                'vectors), "local:NAME" such as "local:SmolLM2-135M", or a folder with a language '
                "model. The weights of hosted models are not here to be changed"
            )

    def _check_plans(self) -> None:
        if self.planning_config is None:
            self.planning_config = PlanningConfig(embedding_dim=self.latent_dim, **_SMALL)
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
    def trains_language_model(self) -> bool:
        """Whether the backbone is a language model, and not the policy of vectors."""
        return self.backbone != "mlp"

    @property
    def environment_settings(self) -> dict[str, Any]:
        """Settings that the environment is made with."""
        return {
            "state_encoding_dim": self.state_dim,
            "action_space_size": self.action_dim,
            "device": "cpu",
            **self.env_config,
        }

    @property
    def is_asynchronous(self) -> bool:
        """Whether actors act while the learner learns."""
        return self.backend != "threads" if self.asynchronous is None else self.asynchronous

    @property
    def context(self) -> int:
        """States that a segment has before its first step: those of the window before it."""
        return self.planning_config.state_window_size + 1 if self.use_plans else 0

    @property
    def plan_dim(self) -> int:
        """Numbers of the policy's plan; without plans, one zero."""
        return self.latent_dim if self.use_plans else 1


def from_json(settings: dict[str, Any]) -> TrainingConfig:
    """Make settings from what :func:`dataclasses.asdict` returned, also after JSON."""
    parts: dict[str, Any] = {
        "planning_config": PlanningConfig,
        "execution_config": ExecutionConfig,
        "replay_config": ReplayConfig,
        "ppo_config": PPOConfig,
        "bandwidth_config": BandwidthConfig,
    }
    made = {name: kind(**settings[name]) for name, kind in parts.items()}
    return TrainingConfig(**{**settings, **made})
