"""The full method: plans, surprise replay and PPO, by the trainer as it is.

Ablations are settings of the cell: ``{"use_plans": False}``, ``{"plan_history": 0}`` (as large, and
no memory), ``{"replay": "uniform"}``, ``{"replay": "none"}``.
"""

from __future__ import annotations

from typing import ClassVar

from echoic.agents.baselines.trained import TrainedMethod

__all__ = ["EchoRL"]


class EchoRL(TrainedMethod):
    """Latent plans, PPO on new segments, and V-trace on steps that surprised."""

    name: ClassVar[str] = "echo-rl"
