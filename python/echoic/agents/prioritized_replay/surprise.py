"""How far a plan is from what plans usually are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _native
from echoic.agents.prioritized_replay._arrays import plain
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from echoic.agents.prioritized_replay.config import ReplayConfig

__all__ = ["SurpriseCalculator"]


class SurpriseCalculator:
    """The moving mean of plans, and scores by it.

    ``score = surprise_weight * |plan - mean|**2 + reward_weight * |reward|``, where the squared distance
    is divided by the number of dimensions unless ``score_scale="sum"``. Then ``mean = ema_decay * mean +
    (1 - ema_decay) * plan``; the first plan becomes the mean. Score first, then update: a plan that has
    moved the mean already looks less surprising than it was. Before the first plan the mean is zero.

    One object may serve several parts of an agent: give it to
    :class:`PrioritizedReplayBuffer` as ``surprise_calculator``, and let only one of them update it.

    Args:
        config: The settings.
        latent_dim: How many numbers a plan has.

    >>> from echoic.agents.prioritized_replay import ReplayConfig
    >>> config = ReplayConfig(reward_weight=0.1, score_scale="sum")
    >>> calculator = SurpriseCalculator(config, latent_dim=3)
    >>> round(calculator.compute_surprise_score([1.0, 2.0, 3.0], reward=0.5), 6)
    14.05
    """

    def __init__(self, config: ReplayConfig, latent_dim: int = 512) -> None:
        self.config = config
        self.latent_dim = latent_dim
        self._mean = _native.PlanMean(latent_dim, config.ema_decay)

    def update_ema_plan(self, latent_plan: Any) -> None:
        """Takes a plan, or one after the other of an array of them, into the mean."""
        self._mean.update(plain(latent_plan))

    def compute_surprise_score(self, latent_plan: Any, reward: Any = 0.0) -> Any:
        """The score of a plan and its reward, or of each of several, by the mean as it is now."""
        distances = self._mean.distances(plain(latent_plan))
        if self.config.score_scale != "sum":
            distances = distances / self.latent_dim
        rewards = np.abs(np.asarray(plain(reward), np.float64))
        scores = self.config.surprise_weight * distances + self.config.reward_weight * rewards
        if not np.isfinite(scores).all():
            raise ArgumentError(f"reward must be finite, got {reward!r}")
        return scores if np.ndim(plain(latent_plan)) > 1 else float(scores[0])

    def get_ema_plan(self) -> npt.NDArray[np.float64]:
        """A copy of the mean: zeros before the first plan."""
        return self._mean.mean

    def get_statistics(self) -> dict[str, Any]:
        """How many plans there were, and how long the mean is."""
        mean = self._mean.mean
        return {
            "count": self._mean.count,
            "ema_norm": float(np.linalg.norm(mean)),
            "ema_decay": self.config.ema_decay,
            "latent_dim": self.latent_dim,
        }

    def reset(self) -> None:
        """Forgets all plans."""
        self._mean.restore([0.0] * self.latent_dim, 0)
