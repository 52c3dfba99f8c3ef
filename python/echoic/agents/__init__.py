"""Agents that act in text and in grids, and learn from what surprised them.

The extra ``echoic[agents]`` brings what these modules need: torch, transformers, gymnasium.
A name is imported from its module when it is first asked for: kernels, bandwidth and replay work
without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echoic.agents.async_execution import (
        AsyncExecutionEngine,
        ExecutionConfig,
        KVCacheManager,
        LatencyScheduler,
    )
    from echoic.agents.bandwidth import (
        BandwidthAwareScheduler,
        BandwidthConfig,
        BandwidthEfficiencyTracker,
        BandwidthMetrics,
    )
    from echoic.agents.latent_planning import (
        LatentPlanningOptimizer,
        PlanningConfig,
        PolicyNetwork,
        SoftPrefixAdapter,
        TrajectoryEncoder,
    )
    from echoic.agents.learners import GAECalculator, PPOConfig, PPOLearner
    from echoic.agents.prioritized_replay import (
        AdaptiveReplayBuffer,
        HotColdBuffer,
        PrioritizedReplayBuffer,
        ReplayConfig,
        SurpriseCalculator,
    )

__all__ = [
    "AdaptiveReplayBuffer",
    "AsyncExecutionEngine",
    "BandwidthAwareScheduler",
    "BandwidthConfig",
    "BandwidthEfficiencyTracker",
    "BandwidthMetrics",
    "ExecutionConfig",
    "GAECalculator",
    "HotColdBuffer",
    "KVCacheManager",
    "LatencyScheduler",
    "LatentPlanningOptimizer",
    "PPOConfig",
    "PPOLearner",
    "PlanningConfig",
    "PolicyNetwork",
    "PrioritizedReplayBuffer",
    "ReplayConfig",
    "SoftPrefixAdapter",
    "SurpriseCalculator",
    "TrajectoryEncoder",
]

_MODULES = {
    "async_execution": (
        "AsyncExecutionEngine",
        "ExecutionConfig",
        "KVCacheManager",
        "LatencyScheduler",
    ),
    "bandwidth": (
        "BandwidthAwareScheduler",
        "BandwidthConfig",
        "BandwidthEfficiencyTracker",
        "BandwidthMetrics",
    ),
    "latent_planning": (
        "LatentPlanningOptimizer",
        "PlanningConfig",
        "PolicyNetwork",
        "SoftPrefixAdapter",
        "TrajectoryEncoder",
    ),
    "learners": ("GAECalculator", "PPOConfig", "PPOLearner"),
    "prioritized_replay": (
        "AdaptiveReplayBuffer",
        "HotColdBuffer",
        "PrioritizedReplayBuffer",
        "ReplayConfig",
        "SurpriseCalculator",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
