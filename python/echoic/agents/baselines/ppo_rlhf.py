"""PPO on rewards of the environment, or on rewards that were learned from preferences.

With ``reward="environment"`` it is PPO. With ``reward="preferences"`` a network says what steps are
worth (:class:`~echoic.agents.training.PreferenceReward`): it is learned, along the way, from which
of two segments is preferred, and the policy sees no other reward. The preferences are a stand-in
for people's: that segment is preferred which the environment paid more. No plans, no replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from echoic.agents.baselines.trained import TrainedMethod
from echoic.agents.training.rewards import PreferenceReward
from echoic.agents.training.trainer import EchoRLTrainer
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PPORLHF"]

REWARDS = ("environment", "preferences")


class PPORLHF(TrainedMethod):
    """PPO without plans, its reward the environment's or learned."""

    name: ClassVar[str] = "ppo-rlhf"
    fixed: ClassVar[dict[str, Any]] = {"algorithm": "ppo", "replay": "none", "use_plans": False}
    own: ClassVar[frozenset[str]] = frozenset({"reward"})

    def _trainer(self) -> EchoRLTrainer:
        reward = self.cell.settings.get("reward", "environment")
        if reward not in REWARDS:
            raise ArgumentError(f"reward must be one of {', '.join(REWARDS)}, not {reward!r}")
        self.model: PreferenceReward | None = None
        if reward == "preferences":
            self.model = PreferenceReward(self.config, seed=self.cell.seed)
        return EchoRLTrainer(self.config, resume=True, reward_model=self.model)

    async def train(self) -> Mapping[str, float]:
        """Train within the cell's steps, with how well preferences were explained."""
        found = await super().train()
        if self.model is None:
            return found
        return {
            **found,
            "preferences": self.model.answers,
            "preference_accuracy": self.model.accuracy,
        }
