"""Surprise replay: experiences sampled by the distance of their plans from the mean plan.

Nothing here imports torch.
"""

from echoic.agents.replay.config import ReplayConfig
from echoic.agents.replay.replay import (
    Aged,
    Experience,
    HotColdBuffer,
    PrioritizedReplayBuffer,
    SurpriseCalculator,
)

__all__ = [
    "Aged",
    "Experience",
    "HotColdBuffer",
    "PrioritizedReplayBuffer",
    "ReplayConfig",
    "SurpriseCalculator",
]
