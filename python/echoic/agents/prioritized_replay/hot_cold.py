"""The two tiers by themselves, for scores of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic.agents.prioritized_replay._store import ORDER, Store, experiences_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

    from echoic.agents.prioritized_replay.config import ReplayConfig
    from echoic.agents.prioritized_replay.experience import Aged, Experience

__all__ = ["HotColdBuffer"]

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
