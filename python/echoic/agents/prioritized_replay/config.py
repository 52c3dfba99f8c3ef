"""All settings of surprise replay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    import os

__all__ = ["ReplayConfig"]

Scale = Literal["zscore", "mean", "sum"]
Mode = Literal["softmax", "power"]


@dataclass(frozen=True)
class ReplayConfig:
    """Settings of the buffers of this package. They are checked when the object is made.

    Attributes:
        hot_buffer_size: How many hot experiences there may be. Of more the lowest score goes, and
            of equal scores the oldest.
        cold_buffer_size: The same of cold ones.
        age_threshold: Up to which age an experience is hot. Ages count updates of the learner.
        max_replay_age: Up to which age it stays.
        temperature: Of the softmax over scores: small ones prefer high scores more.
        surprise_weight: What ``|plan - mean|**2`` counts in a score.
        reward_weight: What ``|reward|`` counts in a score.
        ema_decay: How much of the mean of plans a new plan leaves.
        min_experiences: With fewer, ``sample_batch`` gives nothing, and says so.
        max_experiences: How many there may be in both tiers together.
        priority_alpha: The exponent of scores with ``sampling_mode="power"``.
        importance_sampling_beta: The exponent of importance weights: 1 corrects all of the bias.
        hot_sample_ratio: The share of a batch that is hot, rounded down.
        score_scale: ``"zscore"`` divides squared distances by the number of dimensions, and draws
            by how many standard deviations a score is from the mean of all; ``"mean"`` divides
            only; ``"sum"`` does neither: with plans of many dimensions its softmax puts everything
            on one experience.
        score_clip: At most so many standard deviations count.
        sampling_mode: ``"softmax"``, or ``"power"``: probabilities are ``score**(alpha / T)``, and
            the z-score is not used.
        refresh_per_update: How many scores are computed anew, in turns, for each update of the
            learner. Those of a batch always are.
        seed: Of the draws; random when ``None``.
        cold_path: A file for the cold experiences, in place of memory. It is removed in the end.
        cold_overwrite: Whether a file of an earlier buffer that is there may be replaced.

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
        for name in ("hot_buffer_size", "max_experiences"):
            _whole(name, getattr(self, name), 1)
        for name in (
            "cold_buffer_size",
            "age_threshold",
            "max_replay_age",
            "min_experiences",
            "refresh_per_update",
        ):
            _whole(name, getattr(self, name), 0)
        for name in ("temperature", "score_clip"):
            _above_zero(name, getattr(self, name))
        for name in ("surprise_weight", "reward_weight", "priority_alpha"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value < math.inf):
                raise ArgumentError(f"{name} must be a finite number >= 0, got {value!r}")
        for name in ("importance_sampling_beta", "hot_sample_ratio"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value <= 1):
                raise ArgumentError(f"{name} must be from 0 to 1, got {value!r}")
        self._check_others()

    def _check_others(self) -> None:
        if not (_is_number(self.ema_decay) and 0 <= self.ema_decay < 1):
            raise ArgumentError(f"ema_decay must be from 0 to below 1, got {self.ema_decay!r}")
        _one_of("score_scale", self.score_scale, Scale)
        _one_of("sampling_mode", self.sampling_mode, Mode)
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ArgumentError(f"seed must be from 0 to 2**64 - 1, got {self.seed!r}")
        if self.cold_path is not None and self.cold_buffer_size == 0:
            raise ArgumentError("cold_path is for cold experiences, but cold_buffer_size is 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ArgumentError(f"{name} must be a whole number >= {least}, got {value!r}")


def _above_zero(name: str, value: Any) -> None:
    if not (_is_number(value) and 0 < value < math.inf):
        raise ArgumentError(f"{name} must be a finite number > 0, got {value!r}")


def _one_of(name: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        known = " or ".join(map(repr, get_args(choices)))
        raise ArgumentError(f"{name} must be {known}, got {value!r}")
