"""Latent plans: what an agent makes of an episode so far, and acts on.

Importing this module imports torch.
"""

from echoic.agents.plans.config import PlanningConfig
from echoic.agents.plans.encoder import PlanDivergence, PlanPosterior, TrajectoryEncoder
from echoic.agents.plans.optimizer import LatentPlanningOptimizer
from echoic.agents.plans.policy import (
    PlannedAction,
    PolicyNetwork,
    SoftPrefixAdapter,
    TrajectoryPrior,
)
from echoic.agents.plans.windows import PlanWindows, windows_of

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
