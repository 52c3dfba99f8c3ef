"""Training agents: actors, tables, learners, and everything between.

Importing a name imports torch; :class:`TrainingConfig` is made without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.training.acting import (
        TrainedPolicy,
    )
    from echoic.agents.training.config import (
        TrainingConfig,
    )
    from echoic.agents.training.metrics import (
        TrainingMetrics,
    )
    from echoic.agents.training.rewards import (
        PreferenceReward,
        RewardModel,
    )
    from echoic.agents.training.trainer import (
        EchoRLTrainer,
    )

__all__ = [
    "EchoRLTrainer",
    "PreferenceReward",
    "RewardModel",
    "TrainedPolicy",
    "TrainingConfig",
    "TrainingMetrics",
]

_MODULES = {
    "acting": ("TrainedPolicy",),
    "config": ("TrainingConfig",),
    "metrics": ("TrainingMetrics",),
    "rewards": (
        "PreferenceReward",
        "RewardModel",
    ),
    "trainer": ("EchoRLTrainer",),
}
_, __getattr__, __dir__ = lazily(__name__, _MODULES)
