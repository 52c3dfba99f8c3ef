"""Replay buffers that sample experiences by the surprise of their plans and rewards."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.kernels import EMAPlanTracker, plan_surprise_batch
from echoic.agents.replay._store import (
    ORDER,
    Store,
    experiences_of,
    load_buffer,
    plain,
    save_buffer,
)
from echoic.errors import ArgumentError, ReplayError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    import numpy.typing as npt

    from echoic.agents.replay._store import Aged, Experience
    from echoic.agents.replay.config import ReplayConfig

__all__ = ["HotColdBuffer", "PrioritizedReplayBuffer", "SurpriseCalculator"]


# Fields of an experience that the caller gives.
GIVEN = (*ORDER, "log_prob", "value", "episode_id", "policy_version")


class SurpriseCalculator:
    """The moving mean of plans, and scores by it.

    ``score = surprise_weight * |plan - mean|**2 + reward_weight * |reward|``, where the squared
    distance is divided by the number of dimensions unless ``score_scale="sum"``. Then ``mean =
    ema_decay * mean + (1 - ema_decay) * plan``; the first plan becomes the mean, which is zero
    before. Score first, then update: a plan that has moved the mean looks less surprising.

    The mean may be shared with another part of the agent, such as a planner: pass its
    :class:`echoic.agents.kernels.EMAPlanTracker`, and let only one of them update it.

    Args:
        config: The settings.
        latent_dim: Numbers of a plan.
        tracker: The mean of plans, with ``config.ema_decay``; None makes a new one.

    >>> from echoic.agents.replay import ReplayConfig
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
        """Move the mean by a plan, or by each of several."""
        self.tracker.update(self._plans(latent_plan))

    def compute_surprise_score(self, latent_plan: Any, reward: Any = 0.0) -> Any:
        """Return the score of a plan and its reward, or of each of several, by the current mean."""
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
            raise ArgumentError("expected finite plans and rewards, got one that is not")
        return scores if plans.ndim > 1 else float(scores[0])

    def _plans(self, latent_plan: Any) -> np.ndarray[Any, Any]:
        plans = np.asarray(plain(latent_plan), np.float32)
        if plans.shape[-1:] != (self.latent_dim,):
            raise ArgumentError(
                f"expected plans of {self.latent_dim} numbers, got an array of shape {plans.shape}"
            )
        return plans

    def get_ema_plan(self) -> npt.NDArray[np.float64]:
        """Return a copy of the mean; zeros before the first plan."""
        return self.tracker.get_ema() if self.tracker.initialized else np.zeros(self.latent_dim)

    def get_statistics(self) -> dict[str, Any]:
        """Return the count of plans and the norm of the mean."""
        return {
            "count": self.tracker.count,
            "ema_norm": float(np.linalg.norm(self.get_ema_plan())),
            "ema_decay": self.config.ema_decay,
            "latent_dim": self.latent_dim,
        }

    def reset(self) -> None:
        """Forget all plans."""
        self.tracker.reset()


class _Buffer:
    """What both buffers share."""

    config: ReplayConfig
    _store: Store

    def __len__(self) -> int:
        return len(self._store)

    def update_priorities(
        self, experiences: Iterable[Experience | int], priorities: Iterable[float]
    ) -> int:
        """Set the scores of experiences, or of indices; they are not computed again until then.

        Experiences that were removed are skipped.

        Returns:
            How many were found.
        """
        return self._store.update_priorities(experiences, priorities)


class PrioritizedReplayBuffer(_Buffer):
    """Experiences in two tiers, sampled by their surprise.

    A score is ``surprise_weight * |plan - mean|**2 / dims + reward_weight * |reward|`` by the mean
    of earlier plans (:class:`SurpriseCalculator`). Within a tier an experience is drawn with
    ``softmax(z / T)``, with replacement, where ``z`` is its score in standard deviations from the
    mean of all, at most ``score_clip``. Of a batch of ``B``, ``n = floor(B * hot_sample_ratio)``
    are hot. So ``P = n / B * softmax``, and the weight is ``(N * P)**-beta``, divided by the
    largest of the batch.

    As the mean moves, scores of sampled experiences are updated, and in turns those of
    ``refresh_per_update`` others for each update of the learner.

    The first experience sets the shapes and dtypes of states and actions: floats have at most 32
    bits, all else is unchanged. All methods may be called from several threads.

    Args:
        config: The settings.
        latent_dim: Numbers of a plan.
        surprise_calculator: A mean of plans that is shared; None makes a new one.
        update_ema: Whether added experiences move the mean. False if another part of the agent
            updates a shared one.

    >>> import numpy as np
    >>> from echoic.agents.replay import ReplayConfig
    >>> rng = np.random.default_rng(0)
    >>> buffer = PrioritizedReplayBuffer(ReplayConfig(min_experiences=100, seed=0), latent_dim=16)
    >>> plans = rng.normal(size=(500, 16))
    >>> states = rng.normal(size=(501, 4))
    >>> indices = buffer.add_batch(
    ...     states[:-1], plans, np.zeros(500, int), np.zeros(500), states[1:], np.zeros(500, bool)
    ... )
    >>> experiences, weights = buffer.sample_batch(32)
    >>> experiences[0].state.shape, float(max(weights))
    ((4,), 1.0)
    """

    def __init__(
        self,
        config: ReplayConfig,
        latent_dim: int = 512,
        *,
        surprise_calculator: SurpriseCalculator | None = None,
        update_ema: bool = True,
    ) -> None:
        calculator = surprise_calculator or SurpriseCalculator(config, latent_dim)
        if calculator.latent_dim != latent_dim:
            raise ArgumentError(
                f"expected a surprise_calculator of {latent_dim} dimensions, "
                f"got one of {calculator.latent_dim}"
            )
        self.config = config
        self.latent_dim = latent_dim
        self.surprise_calculator = calculator
        self._moves = update_ema
        self._store = Store(config, calculator.tracker, computes=True, moves=update_ema)

    @property
    def ready(self) -> bool:
        """Whether there are ``min_experiences``, and at least one."""
        return len(self) >= max(self.config.min_experiences, 1)

    def add_experience(
        self,
        state: Any,
        latent_plan: Any,
        action: Any,
        reward: float,
        next_state: Any,
        done: bool,
        *,
        log_prob: float | None = None,
        value: float | None = None,
        episode_id: int | None = None,
        policy_version: int | None = None,
    ) -> int:
        """Add an experience. See :class:`Experience` for the fields.

        Returns:
            Its index, for :meth:`update_priorities`. In a full buffer it may be removed at once, as
            the lowest.
        """
        given = (state, latent_plan, action, reward, next_state, done)
        known = (log_prob, value, episode_id, policy_version)
        return int(self._store.add(dict(zip(GIVEN, given + known, strict=True)), many=False)[0])

    def add_batch(
        self,
        states: Any,
        latent_plans: Any,
        actions: Any,
        rewards: Any,
        next_states: Any,
        dones: Any,
        *,
        log_probs: Any | None = None,
        values: Any | None = None,
        episode_ids: Any | None = None,
        policy_versions: Any | None = None,
    ) -> npt.NDArray[np.int64]:
        """Add an experience for each row of the arrays: the same as one by one, but faster.

        Returns:
            Their indices.
        """
        given = (states, latent_plans, actions, rewards, next_states, dones)
        known = (log_probs, values, episode_ids, policy_versions)
        return self._store.add(dict(zip(GIVEN, given + known, strict=True)), many=True)

    def sample_columns(
        self,
        batch_size: int,
        temperature: float | None = None,
        *,
        hot_ratio: float | None = None,
        beta: float | None = None,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """Sample a batch as a dict of arrays, hot experiences first.

        Args:
            batch_size: Number of experiences.
            temperature: Used in place of the configured one. A change from one call to the next
                recomputes the weights of all experiences.
            hot_ratio: Used in place of ``hot_sample_ratio``.
            beta: Used in place of ``importance_sampling_beta``.
            seed: Seed of this draw; None continues the buffer's own random numbers.

        Returns:
            Every field of :class:`Experience` as an array with a row for each; ``weight``;
            ``probability`` of each row to be drawn; ``hot``, true for those that are.

        Raises:
            ReplayError: If there are fewer than ``min_experiences``, or none.
        """
        if not self.ready:
            least = max(self.config.min_experiences, 1)
            raise ReplayError(f"the buffer has {len(self)} of min_experiences={least}")
        temperature = self.config.temperature if temperature is None else temperature
        return self._store.sample(
            batch_size, temperature, hot_ratio=hot_ratio, beta=beta, seed=seed
        )

    def sample_batch(
        self,
        batch_size: int,
        temperature: float | None = None,
        *,
        hot_ratio: float | None = None,
        seed: int | None = None,
    ) -> tuple[list[Experience], npt.NDArray[np.float32] | list[float]]:
        """Sample a batch as experiences and their importance weights.

        Returns ``([], [])`` if the buffer is empty, or, with a warning, if it has fewer than
        ``min_experiences``. :meth:`sample_columns` raises instead.
        """
        if not self.ready:
            if len(self):
                warnings.warn(
                    f"the buffer has {len(self)} of min_experiences={self.config.min_experiences}: "
                    "nothing is sampled before",
                    UserWarning,
                    stacklevel=2,
                )
            return [], []
        batch = self.sample_columns(batch_size, temperature, hot_ratio=hot_ratio, seed=seed)
        return experiences_of(batch), batch["weight"]

    def update_experience_ages(self, updates: int = 1) -> Aged:
        """Count updates of the learner.

        Experiences older than ``age_threshold`` become cold, those older than ``max_replay_age``
        are removed, and some scores are updated.
        """
        if updates < 0:
            raise ArgumentError(f"updates must be at least 0, got {updates}")
        return self._store.tick(updates)

    def effective_sample_size(
        self, temperature: float | None = None, hot_ratio: float | None = None
    ) -> dict[str, float]:
        """Return the effective number of equally likely experiences, ``1 / sum(P**2)``.

        Returns:
            That of both tiers together as ``total``, and within each, ``hot`` and ``cold``, over
            all experiences.
        """
        rows = self._store.rows
        if rows is None:
            return {"total": 0.0, "hot": 0.0, "cold": 0.0}
        total, hot, cold = rows.effective_sizes(
            self.config.temperature if temperature is None else temperature,
            self.config.hot_sample_ratio if hot_ratio is None else hot_ratio,
        )
        return {"total": total, "hot": hot, "cold": cold}

    def get_buffer_statistics(self) -> dict[str, Any]:
        """Return sizes, counts, scores, bytes, and the mean of plans."""
        ema = self.surprise_calculator.get_statistics()
        return {
            **self._store.statistics(),
            "ready": self.ready,
            "temperature": self.config.temperature,
            "hot_ratio": self.config.hot_sample_ratio,
            "ema_norm": ema["ema_norm"],
            "ema_count": ema["count"],
            "latent_dim": self.latent_dim,
        }

    def clear_buffer(self) -> None:
        """Remove all experiences, and reset the mean of plans if this buffer moves it.

        Shapes, ages and random numbers are kept.
        """
        self._store.clear()
        if self._moves:
            self.surprise_calculator.reset()

    def save_buffer(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file, which appears whole or not at all, without pickle."""
        save_buffer(self, path)

    def load_buffer(self, path: str | os.PathLike[str]) -> None:
        """Replace everything by the contents of a file, and continue its random numbers.

        A mean of plans that another part of the agent moves is not changed.

        Raises:
            ReplayError: If the file is not of a buffer, or of other experiences, settings of scores
                or a larger size. Nothing was changed.
        """
        load_buffer(self, path)


class HotColdBuffer(_Buffer):
    """Experiences with given scores, hot while they are young and cold after that.

    An experience is hot if its age is at most ``age_threshold``. It is removed when it is older
    than ``max_replay_age``, or, if there are too many, when its score is the lowest; of equal
    scores the oldest is removed.

    Args:
        config: The settings. Those of surprise are not used.

    >>> from echoic.agents.replay import Experience, ReplayConfig
    >>> buffer = HotColdBuffer(ReplayConfig(hot_buffer_size=3, min_experiences=1, seed=0))
    >>> for score in (1.0, 5.0, 2.0, 3.0):
    ...     step = Experience([0.0], [0.0], 0, 0.0, [0.0], False, 0, priority=score)
    ...     index = buffer.add_experience(step)
    >>> experiences, weights = buffer.sample_experiences(100)
    >>> sorted({one.priority for one in experiences})
    [2.0, 3.0, 5.0]
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        self._store = Store(config, None, computes=False, moves=False)

    def add_experience(self, experience: Experience) -> int:
        """Add an experience with its ``priority``, or its ``surprise_score`` if that is zero.

        Its age starts at zero.

        Returns:
            Its index, for :meth:`update_priorities`.
        """
        score = experience.priority or experience.surprise_score
        fields = {name: getattr(experience, name) for name in GIVEN}
        return int(self._store.add(fields, many=False, scores=[score])[0])

    def advance_ages(self, updates: int = 1) -> Aged:
        """Count updates of the learner: old experiences become cold, or are removed."""
        return self._store.tick(updates)

    def migrate_aged_experiences(self) -> int:
        """Make old experiences cold, and return how many became so.

        :meth:`advance_ages` does this already: there are some only after an error of the disk.
        """
        return self._store.tick(0).migrated

    def evict_stale_experiences(self) -> int:
        """Remove experiences older than ``max_replay_age``, as :meth:`advance_ages` does too."""
        return self._store.tick(0).expired

    def sample_experiences(
        self, batch_size: int, temperature: float = 1.0, hot_ratio: float | None = None
    ) -> tuple[list[Experience], npt.NDArray[np.float32] | list[float]]:
        """Sample experiences, hot ones first, and their weights; ``([], [])`` if there are none.

        ``floor(batch_size * hot_ratio)`` are hot; if one tier is empty, all are of the other.
        """
        if not len(self):
            return [], []
        batch = self._store.sample(batch_size, temperature, hot_ratio=hot_ratio)
        return experiences_of(batch), batch["weight"]

    def get_statistics(self) -> dict[str, Any]:
        """Return sizes, counts, scores and bytes."""
        return self._store.statistics()
