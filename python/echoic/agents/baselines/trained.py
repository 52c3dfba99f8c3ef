"""What the methods that train share: a trainer, in the cell's folder, that goes on where it was."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from echoic.agents.baselines.base import Method
from echoic.agents.training.config import TrainingConfig
from echoic.agents.training.trainer import EchoRLTrainer
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.baselines.base import Cell
    from echoic.agents.episodes import Policy

__all__ = ["TrainedMethod"]

_FIELDS = {field.name for field in dataclasses.fields(TrainingConfig)}
# What the cell says, settings can't.
_OF_THE_CELL = {
    *("env_name", "env_config", "total_timesteps", "seed", "checkpoint_dir", "results_dir"),
    "tensorboard_log",
}


class TrainedMethod(Method):
    """A method whose settings are fields of a :class:`~echoic.agents.training.TrainingConfig`."""

    trains: ClassVar[bool] = True
    #: What makes the method this one; the cell's settings come on top.
    fixed: ClassVar[dict[str, Any]] = {}
    #: Settings that are none of the trainer.
    own: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        unknown = sorted(set(cell.settings) - (_FIELDS - _OF_THE_CELL) - self.own)
        if unknown:
            raise ArgumentError(f"{self.name} has no setting {unknown[0]!r}")
        for name, value in self.fixed.items():
            if cell.settings.get(name, value) != value:
                raise ArgumentError(
                    f"{self.name} is {name}={value!r}; with {cell.settings[name]!r} it would be "
                    "another method"
                )
        self.config = self._config()
        self.trainer = self._trainer()

    @property
    def environment_settings(self) -> Mapping[str, Any]:
        """What the policy's widths ask of an environment."""
        return {
            "state_encoding_dim": self.config.state_dim,
            "action_space_size": self.config.action_dim,
        }

    async def train(self) -> Mapping[str, float]:
        """Train within the cell's steps; a run that was begun before goes on."""
        metrics = await self.trainer.train()
        results = metrics.evaluation_results
        return {
            "steps": metrics.total_timesteps,
            "episodes": metrics.total_episodes,
            "seconds": metrics.training_time,
            "updates": len(metrics.policy_losses),
            "success_rate": results["success_rate"],
            "average_reward": results["avg_reward"],
            "eta_bw": metrics.bandwidth_efficiency[-1] if metrics.bandwidth_efficiency else 0.0,
        }

    def policy(self) -> Policy:
        """What is trained by now, drawing its actions as it did when it learned."""
        return self.trainer.policy()

    async def aclose(self) -> None:
        """End what the trainer has started."""
        # It waits for threads, and they may wait for this loop: a judge answers in it.
        await asyncio.to_thread(self.trainer.close)

    def _trainer(self) -> EchoRLTrainer:
        return EchoRLTrainer(self.config, resume=True)

    def _config(self) -> TrainingConfig:
        cell = self.cell
        given = {name: value for name, value in cell.settings.items() if name in _FIELDS}
        # Sizes that the task's settings say are those of the run.
        for setting, name in (
            ("state_encoding_dim", "state_dim"),
            ("action_space_size", "action_dim"),
        ):
            if setting in cell.task_config:
                given.setdefault(name, cell.task_config[setting])
        return TrainingConfig(
            env_name=cell.task,
            env_config=dict(cell.task_config),
            total_timesteps=cell.steps,
            seed=cell.seed,
            checkpoint_dir=str(cell.folder / "checkpoints"),
            results_dir=str(cell.folder / "results"),
            tensorboard_log="",
            **{**given, **self.fixed},
        )
