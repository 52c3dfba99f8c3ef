"""Latent plans: what an agent makes of an episode so far, and acts on.

Importing this module imports torch.
"""

from echoic.agents.latent_planning.config import PlanningConfig
from echoic.agents.latent_planning.encoder import PlanDivergence, PlanPosterior, TrajectoryEncoder
from echoic.agents.latent_planning.optimizer import LatentPlanningOptimizer
from echoic.agents.latent_planning.policy import (
    PlannedAction,
    PolicyNetwork,
    SoftPrefixAdapter,
    TrajectoryPrior,
)
from echoic.agents.latent_planning.windows import PlanWindows, windows_of

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
