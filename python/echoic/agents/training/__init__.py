"""Training agents: actors, learners, and what they report.

Importing a name imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.training.actors import *
    from echoic.agents.training.config import *
    from echoic.agents.training.ppo import *
    from echoic.agents.training.records import *
    from echoic.agents.training.rewards import *
    from echoic.agents.training.trainer import *

_MODULES = {
    "actors": "TrainedPolicy",
    "config": "PPOConfig TrainingConfig",
    "ppo": "GAECalculator PPOLearner PPOTrainingStep ValueNetwork",
    "records": "TrainingMetrics",
    "rewards": "PreferenceReward",
    "trainer": "EchoRLTrainer",
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
