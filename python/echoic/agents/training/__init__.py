"""Training agents: actors, tables, learners, and everything between.

Importing a name imports torch; :class:`TrainingConfig` is made without.
"""

from __future__ import annotations

from echoic.agents._lazy import lazily

_MODULES = {
    "config": ("TrainingConfig",),
    "metrics": ("TrainingMetrics",),
    "policy": ("TrainedPolicy",),
    "rewards": ("PreferenceReward", "RewardModel"),
    "trainer": ("EchoRLTrainer",),
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
