"""What improves a policy: of vectors, by PPO and IMPALA, and of tokens.

Importing this module imports torch.
"""

from echoic.agents.learners.grpo import GRPOConfig, GRPOLearner
from echoic.agents.learners.lora import LoRAConfig, add_lora, merge_lora, without_lora
from echoic.agents.learners.rloo import RLOOConfig, RLOOLearner
from echoic.agents.learners.token_batch import TokenBatch
from echoic.agents.learners.tokens import TokenLearner, TokenLearnerConfig

__all__ = [
    "GRPOConfig",
    "GRPOLearner",
    "LoRAConfig",
    "RLOOConfig",
    "RLOOLearner",
    "TokenBatch",
    "TokenLearner",
    "TokenLearnerConfig",
    "add_lora",
    "merge_lora",
    "without_lora",
]
