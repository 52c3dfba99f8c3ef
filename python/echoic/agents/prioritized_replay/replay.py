"""Experiences that are drawn by how much their plans and rewards surprised."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.kernels import EMAPlanTracker, plan_surprise_batch
from echoic.agents.prioritized_replay._store import (
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

    from echoic.agents.prioritized_replay._store import Aged, Experience
    from echoic.agents.prioritized_replay.config import ReplayConfig

__all__ = ["HotColdBuffer", "PrioritizedReplayBuffer", "SurpriseCalculator"]


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


class PrioritizedReplayBuffer:
    """Experiences in two tiers, drawn by how much they surprise.

    A score is ``surprise_weight * |plan - mean|**2 / dims + reward_weight * |reward|`` by the mean
    of plans before this one (:class:`SurpriseCalculator`). Within a tier an experience is drawn
    with ``softmax(z / T)``, where ``z`` is by how many standard deviations its score is from the
    mean of all, at most ``score_clip``; with replacement. Of a batch of ``B``, ``n = floor(B *
    hot_sample_ratio)`` are hot. So ``P = n / B * softmax``, and the weight ``(N * P)**-beta``,
    divided by the largest of the batch.

    As the mean moves, scores of those that are drawn are computed anew, and in turns
    ``refresh_per_update`` others for each update of the learner.

    What states and actions look like is told by the first experience: floats are kept in 32 bits,
    everything else as it is. All methods may be called from several threads.

    Args:
        config: The settings.
        latent_dim: How many numbers a plan has.
        surprise_calculator: A mean of plans that is shared with others. Its own one if ``None``.
        update_ema: Whether experiences that are added move the mean. Say no when another part of
            the agent updates a shared one.

    >>> import numpy as np
    >>> from echoic.agents.prioritized_replay import ReplayConfig
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

    def __len__(self) -> int:
        return len(self._store)

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
        """Adds an experience. See :class:`Experience` for what the fields mean.

        Returns:
            Its index, for :meth:`update_priorities`. In a full buffer it may be gone already, as
            the lowest.
        """
        fields = {
            "state": state,
            "latent_plan": latent_plan,
            "action": action,
            "reward": reward,
            "next_state": next_state,
            "done": done,
            "log_prob": log_prob,
            "value": value,
            "episode_id": episode_id,
            "policy_version": policy_version,
        }
        return int(self._store.add(fields, many=False)[0])

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
        """Adds as many experiences as the arrays have rows: as one by one, but faster.

        Returns:
            Their indices.
        """
        fields = {
            "state": states,
            "latent_plan": latent_plans,
            "action": actions,
            "reward": rewards,
            "next_state": next_states,
            "done": dones,
            "log_prob": log_probs,
            "value": values,
            "episode_id": episode_ids,
            "policy_version": policy_versions,
        }
        return self._store.add(fields, many=True)

    def sample_columns(
        self,
        batch_size: int,
        temperature: float | None = None,
        *,
        hot_ratio: float | None = None,
        beta: float | None = None,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """A batch as a dict of arrays, hot experiences first.

        Args:
            batch_size: How many.
            temperature: In place of the configured one. Another one than in the draw before has the
                weights of all experiences computed anew.
            hot_ratio: In place of ``hot_sample_ratio``.
            beta: In place of ``importance_sampling_beta``.
            seed: Of this draw; the buffer's own stream goes on when ``None``.

        Returns:
            Every field of :class:`Experience` as an array with a row for each; ``weight``;
            ``probability``, that of each row to be drawn; ``hot``, true for those that are.

        Raises:
            ReplayError: there are fewer than ``min_experiences``, or none.
        """
        rows = self._store.rows
        if rows is None or not self.ready:
            least = max(self.config.min_experiences, 1)
            raise ReplayError(f"the buffer has {len(self)} of min_experiences={least}")
        return rows.sample(
            batch_size,
            temperature=self.config.temperature if temperature is None else temperature,
            hot_ratio=self.config.hot_sample_ratio if hot_ratio is None else hot_ratio,
            beta=self.config.importance_sampling_beta if beta is None else beta,
            seed=seed,
        )

    def sample_batch(
        self,
        batch_size: int,
        temperature: float | None = None,
        *,
        hot_ratio: float | None = None,
        seed: int | None = None,
    ) -> tuple[list[Experience], npt.NDArray[np.float32] | list[float]]:
        """A batch as experiences and their importance weights.

        An empty buffer gives ``([], [])``. So does one with fewer than ``min_experiences``, with a
        warning that says how many there are. :meth:`sample_columns` raises instead.
        """
        if not self.ready:
            if len(self):
                warnings.warn(
                    f"the buffer has {len(self)} of min_experiences={self.config.min_experiences}: "
                    "nothing is drawn before it has all of them",
                    UserWarning,
                    stacklevel=2,
                )
            return [], []
        batch = self.sample_columns(batch_size, temperature, hot_ratio=hot_ratio, seed=seed)
        return experiences_of(batch), batch["weight"]

    def update_experience_ages(self, updates: int = 1) -> Aged:
        """So many updates of the learner have happened.

        Whoever is older than ``age_threshold`` becomes cold, whoever is older than
        ``max_replay_age`` goes, and some scores are computed anew.
        """
        if updates < 0:
            raise ArgumentError(f"updates must be at least 0, got {updates}")
        return self._store.tick(updates)

    def update_priorities(
        self, experiences: Iterable[Experience | int], priorities: Iterable[float]
    ) -> int:
        """Gives experiences, or those of some indices, scores of your own.

        They are not computed anew until others are given. Experiences that are gone are left out.

        Returns:
            How many were there.
        """
        return self._store.update_priorities(experiences, priorities)

    def effective_sample_size(
        self, temperature: float | None = None, hot_ratio: float | None = None
    ) -> dict[str, float]:
        """As how many equally likely experiences a draw is: ``1 / sum(P**2)``.

        Returns:
            That of both tiers together as ``total``, and within each, ``hot`` and ``cold``. Looks
            at all experiences.
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
        """Sizes, what has happened, scores, bytes, and the mean of plans."""
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
        """Forgets all experiences, and the mean of plans if this buffer moves it.

        Dimensions, ages and draws go on.
        """
        self._store.clear()
        if self._moves:
            self.surprise_calculator.reset()

    def save_buffer(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to a file, which appears whole or not at all, without pickle."""
        save_buffer(self, path)

    def load_buffer(self, path: str | os.PathLike[str]) -> None:
        """Replaces everything by what a file has: the draws go on as those of the other would have.

        A mean of plans that another part of the agent moves stays as it is.

        Raises:
            ReplayError: the file is no buffer's, of other experiences, made with other rules of
                scores, or has more than there is room for. Nothing was changed.
        """
        load_buffer(self, path)


# What an experience brings; everything else is known here.
GIVEN = (*ORDER, "log_prob", "value", "episode_id", "policy_version")


class HotColdBuffer:
    """Experiences with scores of your own, hot while they are young and cold after that.

    An experience is hot if and only if its age is at most ``age_threshold``; it goes when it is
    older than ``max_replay_age``, or when there are too many and its score is the lowest, or the
    oldest of equal ones.

    Args:
        config: The settings. Those of surprise have no meaning here.

    >>> from echoic.agents.prioritized_replay import Experience, ReplayConfig
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

    def __len__(self) -> int:
        return len(self._store)

    def add_experience(self, experience: Experience) -> int:
        """Adds an experience with its ``priority``, or its ``surprise_score`` if that is zero.

        Its age begins at zero, whatever it says.

        Returns:
            Its index, for :meth:`update_priorities`.
        """
        score = experience.priority or experience.surprise_score
        fields = {name: getattr(experience, name) for name in GIVEN}
        return int(self._store.add(fields, many=False, scores=[score])[0])

    def advance_ages(self, updates: int = 1) -> Aged:
        """So many updates of the learner have happened: whoever is due becomes cold, or goes."""
        return self._store.tick(updates)

    def migrate_aged_experiences(self) -> int:
        """Has whoever is due become cold, and says how many did.

        :meth:`advance_ages` does so already: this finds something only after a disk refused.
        """
        return self._store.tick(0).migrated

    def evict_stale_experiences(self) -> int:
        """Lets those go that are older than ``max_replay_age``, and says how many did.

        :meth:`advance_ages` does so already.
        """
        return self._store.tick(0).expired

    def sample_experiences(
        self, batch_size: int, temperature: float = 1.0, hot_ratio: float | None = None
    ) -> tuple[list[Experience], npt.NDArray[np.float32] | list[float]]:
        """Experiences, hot ones first, and their weights; ``([], [])`` if there are none.

        ``floor(batch_size * hot_ratio)`` are hot, all if there are no cold ones, none if there are
        only those.
        """
        rows = self._store.rows
        if rows is None or not len(rows):
            return [], []
        batch = rows.sample(
            batch_size,
            temperature=temperature,
            hot_ratio=self.config.hot_sample_ratio if hot_ratio is None else hot_ratio,
            beta=self.config.importance_sampling_beta,
        )
        return experiences_of(batch), batch["weight"]

    def update_priorities(
        self, experiences: Iterable[Experience | int], priorities: Iterable[float]
    ) -> int:
        """Gives experiences other scores, and says how many were still there."""
        return self._store.update_priorities(experiences, priorities)

    def get_statistics(self) -> dict[str, Any]:
        """Sizes, what has happened, scores and bytes."""
        return self._store.statistics()
