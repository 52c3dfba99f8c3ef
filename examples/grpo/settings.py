"""Settings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """A run."""

    #: Where the curve, the learner and the table are kept.
    folder: Path
    seed: int = 0
    #: How often the policy is updated.
    versions: int = 100
    #: Prompts of an update, and answers to each.
    groups: int = 16
    answers: int = 8
    #: How many versions old a token may be.
    max_lag: int = 2
    #: Groups that a worker makes at the same time.
    at_once: int = 4
    #: Tokens between two looks for newer weights.
    segment: int = 2
    #: Seconds without a sign of life after which a worker's groups are another's: less than what
    #: `max_lag` versions take, or what it leaves is too old to go on with.
    ttl: float = 0.25
    rate: float = 3e-3
    #: How far the ratio to the policy that made a token may be from 1, down and up.
    clip: tuple[float, float] = (0.2, 0.28)
    #: Versions between two evaluations, and between two checkpoints.
    evaluate_every: int = 5
    save_every: int = 10
