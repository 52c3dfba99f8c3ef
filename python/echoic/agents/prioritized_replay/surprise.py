"""How far a plan is from what plans usually are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.kernels import EMAPlanTracker, plan_surprise_batch
from echoic.agents.prioritized_replay._store import plain
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from echoic.agents.prioritized_replay.config import ReplayConfig

__all__ = ["SurpriseCalculator"]


class SurpriseCalculator:
    """The moving mean of plans, and scores by it.

    ``score = surprise_weight * |plan - mean|**2 + reward_weight * |reward|``, where the squared
    distance is divided by the number of dimensions unless ``score_scale="sum"``. Then ``mean =
    ema_decay * mean + (1 - ema_decay) * plan``; the first plan becomes the mean. Score first, then
    update: a plan that has moved the mean already looks less surprising than it was. Before the
        first plan the mean is zero.

    The mean may be that of another part of the agent, such as a planner: give its
    :class:`echoic.agents.kernels.EMAPlanTracker`, and let only one of them update it.

    Args:
        config: The settings.
        latent_dim: How many numbers a plan has.
        tracker: The mean of plans, with ``config.ema_decay``. Its own one if ``None``.

    >>> from echoic.agents.prioritized_replay import ReplayConfig
    >>> config = ReplayConfig(reward_weight=0.1, score_scale="sum")
    >>> calculator = SurpriseCalculator(config, latent_dim=3)
    >>> round(calculator.compute_surprise_score([1.0, 2.0, 3.0], reward=0.5), 6)
    14.05
    """

    def __init__(
        self, config: ReplayConfig, latent_dim: int = 512, *, tracker: EMAPlanTracker | None = None
    ) -> None:
        self.config = config
        self.latent_dim = latent_dim
        self.tracker = tracker or EMAPlanTracker(latent_dim, config.ema_decay)
        if (self.tracker.dim, self.tracker.decay) != (latent_dim, config.ema_decay):
            raise ArgumentError(
                f"expected a tracker with dim={latent_dim} and decay={config.ema_decay}, "
                f"got {self.tracker!r}"
            )

    def update_ema_plan(self, latent_plan: Any) -> None:
        """Takes a plan, or one after the other of an array of them, into the mean."""
        self.tracker.update(self._plans(latent_plan))

    def compute_surprise_score(self, latent_plan: Any, reward: Any = 0.0) -> Any:
        """The score of a plan and its reward, or of each of several, by the mean as it is now."""
        plans = self._plans(latent_plan)
        rewards = np.broadcast_to(np.asarray(plain(reward), np.float64), plans.shape[:-1])
        weight = self.config.surprise_weight
        if self.config.score_scale != "sum":
            weight /= self.latent_dim
        scores = plan_surprise_batch(
            plans.reshape(-1, self.latent_dim),
            self.get_ema_plan(),
            rewards.reshape(-1),
            weight,
            self.config.reward_weight,
        )
        if not np.isfinite(scores).all():
            raise ArgumentError("a score is a finite number, but a plan or a reward is none")
        return scores if plans.ndim > 1 else float(scores[0])

    def _plans(self, latent_plan: Any) -> np.ndarray[Any, Any]:
        plans = np.asarray(plain(latent_plan), np.float32)
        if plans.shape[-1:] != (self.latent_dim,):
            raise ArgumentError(
                f"a plan has {self.latent_dim} numbers, got an array of shape {plans.shape}"
            )
        return plans

    def get_ema_plan(self) -> npt.NDArray[np.float64]:
        """A copy of the mean: zeros before the first plan."""
        return self.tracker.get_ema() if self.tracker.initialized else np.zeros(self.latent_dim)

    def get_statistics(self) -> dict[str, Any]:
        """How many plans there were, and how long the mean is."""
        return {
            "count": self.tracker.count,
            "ema_norm": float(np.linalg.norm(self.get_ema_plan())),
            "ema_decay": self.config.ema_decay,
            "latent_dim": self.latent_dim,
        }

    def reset(self) -> None:
        """Forgets all plans."""
        self.tracker.reset()
