"""What improves a policy: of vectors, by PPO, and of tokens, by GRPO and RLOO.

Importing this module imports torch.
"""

from echoic.agents.learners.lora import LoRAConfig, add_lora, merge_lora, without_lora
from echoic.agents.learners.ppo import PPOConfig, PPOLearner, ValueNetwork
from echoic.agents.learners.steps import GAECalculator, PPOTrainingStep
from echoic.agents.learners.token_batch import TokenBatch
from echoic.agents.learners.tokens import (
    GRPOConfig,
    GRPOLearner,
    RLOOConfig,
    RLOOLearner,
    TokenLearner,
    TokenLearnerConfig,
)

__all__ = [
    "GAECalculator",
    "GRPOConfig",
    "GRPOLearner",
    "LoRAConfig",
    "PPOConfig",
    "PPOLearner",
    "PPOTrainingStep",
    "RLOOConfig",
    "RLOOLearner",
    "TokenBatch",
    "TokenLearner",
    "TokenLearnerConfig",
    "ValueNetwork",
    "add_lora",
    "merge_lora",
    "without_lora",
]
