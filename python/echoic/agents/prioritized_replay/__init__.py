"""Surprise replay: experiences sampled by the distance of their plans from the mean plan.

Nothing here imports torch.
"""

from echoic.agents.prioritized_replay._store import Aged, Experience
from echoic.agents.prioritized_replay.config import ReplayConfig
from echoic.agents.prioritized_replay.replay import (
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
