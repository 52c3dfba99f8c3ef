"""Agents that act in text and in grids, and learn with plans and surprise replay.

The extra ``echoic[agents]`` installs torch, transformers and gymnasium. A name is imported from its
module when it is first used: kernels, bandwidth and replay work without these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.backbones import *
    from echoic.agents.bandwidth import *
    from echoic.agents.environments import *
    from echoic.agents.evaluation import *
    from echoic.agents.llm import *
    from echoic.agents.monitoring import *
    from echoic.agents.plans import *
    from echoic.agents.replay import *
    from echoic.agents.training import *

_MODULES = {
    "backbones": "Backbone HttpConfig",
    "bandwidth": (
        "BandwidthAwareScheduler BandwidthConfig BandwidthEfficiencyTracker BandwidthMetrics"
    ),
    "environments": (
        "ALFWorldConfig ALFWorldEnvironment ARCConfig ARCEnvironment CRUXEvalConfig "
        "CRUXEvalEnvironment EchoRLEnvironment EnvironmentConfig EnvironmentState Game24Config "
        "Game24Environment MiniGridConfig MiniGridEnvironment RoomsConfig RoomsEnvironment "
        "WebShopConfig WebShopEnvironment"
    ),
    "evaluation": "BenchmarkConfig BenchmarkResult EchoRLBenchmark TaskResult",
    "llm": (
        "AsyncExecutionEngine ExecutionConfig GRPOConfig GRPOLearner KVCacheManager LLMConfig "
        "LLMTrainer LatencyScheduler LoRAConfig RLOOConfig RLOOLearner RemoteEngine Replica "
        "RolloutResult SamplingParams"
    ),
    "monitoring": (
        "MetricsCollector MetricsLogger PerformanceMetrics PerformanceMonitor SystemMonitor"
    ),
    "plans": (
        "LatentPlanningOptimizer PlanWindows PlanningConfig PolicyNetwork SoftPrefixAdapter "
        "TrajectoryEncoder TrajectoryPrior"
    ),
    "replay": "Experience HotColdBuffer PrioritizedReplayBuffer ReplayConfig SurpriseCalculator",
    "training": (
        "EchoRLTrainer GAECalculator PPOConfig PPOLearner PPOTrainingStep TrainingConfig "
        "TrainingMetrics ValueNetwork"
    ),
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
