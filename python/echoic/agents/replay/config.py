"""Settings of surprise replay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from echoic.agents import _checks
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    import os

__all__ = ["ReplayConfig"]

Scale = Literal["zscore", "mean", "sum"]
Mode = Literal["softmax", "power"]


@dataclass(frozen=True)
class ReplayConfig:
    """Settings of the buffers of this package.

    Attributes:
        hot_buffer_size: Most hot experiences. Of more, the lowest score is removed, and of equal
            scores the oldest.
        cold_buffer_size: Most cold experiences.
        age_threshold: Highest age of a hot experience. Ages count updates of the learner.
        max_replay_age: Highest age of any experience.
        temperature: Of the softmax over scores: small ones prefer high scores more.
        surprise_weight: Weight of ``|plan - mean|**2`` in a score.
        reward_weight: Weight of ``|reward|`` in a score.
        ema_decay: Decay of the mean of plans.
        min_experiences: With fewer, ``sample_batch`` returns nothing, with a warning.
        max_experiences: Most experiences in both tiers together.
        priority_alpha: The exponent of scores with ``sampling_mode="power"``.
        importance_sampling_beta: The exponent of importance weights: 1 corrects all of the bias.
        hot_sample_ratio: The share of a batch that is hot, rounded down.
        score_scale: ``"zscore"`` divides squared distances by the number of dimensions, and draws
            by how many standard deviations a score is from the mean of all; ``"mean"`` divides
            only; ``"sum"`` does neither: with plans of many dimensions its softmax draws almost
            only one experience.
        score_clip: Most standard deviations that count.
        sampling_mode: ``"softmax"``, or ``"power"``: probabilities are ``score**(alpha / T)``, and
            the z-score is not used.
        refresh_per_update: Number of scores that are updated, in turns, for each update of the
            learner. Those of a batch always are.
        seed: Seed of the draws; None: random.
        cold_path: File for the cold experiences, in place of memory; removed at the end.
        cold_overwrite: Whether an existing file of an earlier buffer may be replaced.

    >>> ReplayConfig(hot_buffer_size=1000, temperature=0.5).score_scale
    'zscore'
    """

    hot_buffer_size: int = 1_000_000
    cold_buffer_size: int = 10_000_000
    age_threshold: int = 1000
    max_replay_age: int = 100_000
    temperature: float = 1.0
    surprise_weight: float = 1.0
    reward_weight: float = 1.0
    ema_decay: float = 0.99
    min_experiences: int = 1000
    max_experiences: int = 11_000_000
    priority_alpha: float = 0.6
    importance_sampling_beta: float = 0.4
    hot_sample_ratio: float = 0.7
    score_scale: Scale = "zscore"
    score_clip: float = 3.0
    sampling_mode: Mode = "softmax"
    refresh_per_update: int = 1024
    seed: int | None = None
    cold_path: str | os.PathLike[str] | None = None
    cold_overwrite: bool = False

    def __post_init__(self) -> None:
        _checks.whole(self, "hot_buffer_size", "max_experiences")
        _checks.whole(self, "cold_buffer_size", "age_threshold", "max_replay_age", least=0)
        _checks.whole(self, "min_experiences", "refresh_per_update", least=0)
        _checks.number(self, "temperature", "score_clip", above=0)
        _checks.number(self, "surprise_weight", "reward_weight", "priority_alpha", least=0)
        _checks.number(self, "importance_sampling_beta", "hot_sample_ratio", least=0, most=1)
        _checks.number(self, "ema_decay", least=0, most=math.nextafter(1.0, 0.0))
        _checks.one_of(self, "score_scale", get_args(Scale))
        _checks.one_of(self, "sampling_mode", get_args(Mode))
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ArgumentError(f"seed must be from 0 to 2**64 - 1, got {self.seed!r}")
        if self.cold_path is not None and self.cold_buffer_size == 0:
            raise ArgumentError("cold_path is for cold experiences, but cold_buffer_size is 0")
