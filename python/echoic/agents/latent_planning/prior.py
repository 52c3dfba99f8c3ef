"""A plan that an agent acted on, with what is needed to learn from it later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["PlannedAction", "TrajectoryPrior"]


@dataclass
class TrajectoryPrior:
    """A plan, or one for each row of a batch.

    Attributes:
        latent_plan: What was drawn, ``(embedding_dim,)`` or ``(B, embedding_dim)``; no gradient.
        state_window: The states it was made of.
        timestamp: How many plans the planner had made before.
        kl_divergence: Of this plan from the one before, in nats, where the caller asked for it.
        surprise_score: The squared distance from the mean plan as it was before this one.
        mask: Which places of the window hold a state; ``None`` for all.
        noise: What was drawn, in standard deviations: with it, and the window, a learner makes the
            same plan again, with gradients.
        posterior: The distribution that the plan was drawn from; no gradient.
    """

    latent_plan: Any
    state_window: Any
    timestamp: int
    kl_divergence: Any = None
    surprise_score: Any = None
    mask: Any = None
    noise: Any = None
    posterior: Any = None


@dataclass
class PlannedAction:
    """What was done, how likely that was, and on which plan.

    Attributes:
        action: ``(B,)`` of integers.
        log_prob: ``(B,)``, of the policy that acted.
        prior: The plans.
    """

    action: Any
    log_prob: Any
    prior: TrajectoryPrior
