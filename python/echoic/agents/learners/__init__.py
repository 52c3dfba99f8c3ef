"""What improves a policy: of vectors, by PPO and IMPALA, and of tokens.

Importing this module imports torch.
"""

from echoic.agents.learners.actor_critic import ValueNetwork
from echoic.agents.learners.gae import GAECalculator
from echoic.agents.learners.impala import IMPALAConfig, IMPALALearner, IMPALASequences
from echoic.agents.learners.ppo import PPOConfig, PPOLearner
from echoic.agents.learners.steps import PPOTrainingStep

__all__ = [
    "GAECalculator",
    "IMPALAConfig",
    "IMPALALearner",
    "IMPALASequences",
    "PPOConfig",
    "PPOLearner",
    "PPOTrainingStep",
    "ValueNetwork",
]
