"""What goes in and comes back, one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Aged", "Experience"]


@dataclass(slots=True, eq=False)
class Experience:
    """One step of an agent, and what is known of it.

    Arrays of an experience that was drawn are views into its batch, which lives as long as one of
    them.

    Attributes:
        state: What was observed.
        latent_plan: The plan at that time.
        action: What was done.
        reward: What it gave.
        next_state: What was observed then.
        done: Whether the episode ended with it.
        timestamp: How many experiences were added before it.
        surprise_score: Its score by the mean of plans when it was drawn.
        priority: The score that it was drawn by.
        age: Updates of the learner since it was added.
        log_prob: Log-probability of the action under the policy that took it; NaN if nobody told.
        value: What that policy's critic expected; NaN if nobody told.
        episode_id: Whose step it is; -1 if nobody told.
        policy_version: Which policy took it; -1 if nobody told.
        index: For ``update_priorities``. It is never given to another experience.
    """

    state: Any
    latent_plan: Any
    action: Any
    reward: float
    next_state: Any
    done: bool
    timestamp: int
    surprise_score: float = 0.0
    priority: float = 0.0
    age: int = 0
    log_prob: float = math.nan
    value: float = math.nan
    episode_id: int = -1
    policy_version: int = -1
    index: int = -1


class Aged(NamedTuple):
    """What an update of the learner has changed.

    Attributes:
        migrated: Experiences that became cold.
        expired: Those that went because of their age.
        refreshed: Scores that were computed anew.
    """

    migrated: int
    expired: int
    refreshed: int
