"""Replay of what surprised: experiences drawn by how far their plans were from the usual.

- :class:`PrioritizedReplayBuffer` scores, keeps and draws.
- :class:`HotColdBuffer` is the same store for scores of your own.
- :class:`SurpriseCalculator` has the moving mean of plans. One can serve several parts of an agent.
- :class:`ReplayConfig` has all settings, :class:`Experience` is what comes back.

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
