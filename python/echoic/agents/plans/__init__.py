"""Latent plans: what an agent makes of an episode so far, and acts on.

Importing this module imports torch.
"""

from echoic.agents.plans.config import PlanningConfig
from echoic.agents.plans.encoder import (
    PlanDivergence,
    PlanPosterior,
    PlanWindows,
    TrajectoryEncoder,
    windows_of,
)
from echoic.agents.plans.planner import (
    LatentPlanningOptimizer,
    PlannedAction,
    PolicyNetwork,
    SoftPrefixAdapter,
    TrajectoryPrior,
)

__all__ = [
    "LatentPlanningOptimizer",
    "PlanDivergence",
    "PlanPosterior",
    "PlanWindows",
    "PlannedAction",
    "PlanningConfig",
    "PolicyNetwork",
    "SoftPrefixAdapter",
    "TrajectoryEncoder",
    "TrajectoryPrior",
    "windows_of",
]
