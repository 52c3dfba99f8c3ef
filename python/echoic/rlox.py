"""The buffers, primitives and collector of rlox under their names and in their call forms.

``import echoic.rlox as rlox``. What differs, and why, is in the guide "From rlox".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic import _native, buffers
from echoic.buffers._common import seed_of
from echoic.collectors import CandleCollector
from echoic.primitives import (
    RunningStats,
    RunningStatsVec,
    compute_batch_group_advantages,
    compute_batch_token_kl,
    compute_batch_token_kl_schulman,
    compute_gae,
    compute_gae_batched,
    compute_gae_batched_f32,
    compute_group_advantages,
    compute_token_kl,
    compute_token_kl_schulman,
    compute_vtrace,
    pack_sequences,
)

if TYPE_CHECKING:
    import os

    from typing_extensions import Self

__all__ = [
    "CandleCollector",
    "MmapReplayBuffer",
    "OfflineDatasetBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RunningStats",
    "RunningStatsVec",
    "compute_batch_group_advantages",
    "compute_batch_token_kl",
    "compute_batch_token_kl_schulman",
    "compute_gae",
    "compute_gae_batched",
    "compute_gae_batched_f32",
    "compute_group_advantages",
    "compute_token_kl",
    "compute_token_kl_schulman",
    "compute_vtrace",
    "pack_sequences",
]


class ReplayBuffer(_native.ReplayBuffer):
    """The last transitions of float32 vectors, drawn evenly: :class:`echoic.ReplayBuffer`.

    >>> import numpy as np
    >>> buffer = ReplayBuffer(capacity=100_000, obs_dim=4, act_dim=1)
    >>> buffer.push(np.zeros(4), np.zeros(1), 1.0, False, False, np.ones(4))
    >>> batch = buffer.sample(batch_size=256, seed=42)
    >>> sorted(batch)
    ['actions', 'next_obs', 'obs', 'rewards', 'terminated', 'truncated']
    """

    push = _native.ReplayBuffer._push

    def __new__(cls, capacity: int, obs_dim: int, act_dim: int) -> Self:
        """Make an empty buffer."""
        return super().__new__(cls, capacity, obs_dim, act_dim, seed=seed_of(None))

    def sample(  # type: ignore[override]
        self, batch_size: int, seed: int | None = None
    ) -> dict[str, Any]:
        """Draw transitions, with replacement."""
        data: dict[str, Any] = super().sample(batch_size, seed=seed).data
        return data


class PrioritizedReplayBuffer(_native.PrioritizedReplayBuffer):
    """The same, drawn by priority: :class:`echoic.PrioritizedReplayBuffer`."""

    push = _native.PrioritizedReplayBuffer._push
    beta: float

    def __new__(
        cls, capacity: int, obs_dim: int, act_dim: int, alpha: float = 0.6, beta: float = 0.4
    ) -> Self:
        """Make an empty buffer."""
        self = super().__new__(cls, capacity, obs_dim, act_dim, alpha=alpha, seed=seed_of(None))
        self.beta = beta
        return self

    def set_beta(self, beta: float) -> None:
        """Set the exponent of weights, from 0 to 1."""
        self.beta = beta

    def sample(  # type: ignore[override]
        self, batch_size: int, seed: int | None = None
    ) -> dict[str, Any]:
        """Draw transitions, with ``weights`` and ``indices``."""
        batch = super().sample(batch_size, beta=self.beta, seed=seed)
        return {**batch.data, "weights": batch.weights, "indices": batch.keys}


class MmapReplayBuffer(_native.MmapReplayBuffer):
    """The newest in memory, all in a file: :class:`echoic.MmapReplayBuffer`."""

    push = _native.MmapReplayBuffer._push

    def __new__(
        cls,
        hot_capacity: int,
        total_capacity: int,
        obs_dim: int,
        act_dim: int,
        cold_path: str | os.PathLike[str],
    ) -> Self:
        """Make an empty buffer, and its file."""
        sizes = hot_capacity, total_capacity, obs_dim, act_dim
        return super().__new__(cls, cold_path, *sizes, seed=seed_of(None), keep=False)

    def sample(  # type: ignore[override]
        self, batch_size: int, seed: int | None = None
    ) -> dict[str, Any]:
        """Draw transitions, with replacement."""
        data: dict[str, Any] = super().sample(batch_size, seed=seed).data
        return data


class OfflineDatasetBuffer(buffers.OfflineDataset):
    """Steps of episodes that do not change: :class:`echoic.OfflineDataset`."""

    def sample(  # type: ignore[override]
        self, batch_size: int, seed: int | None = None
    ) -> dict[str, Any]:
        """Draw steps, with replacement."""
        data: dict[str, Any] = super().sample(batch_size, seed=seed).data
        return data

    def sample_trajectories(  # type: ignore[override]
        self, batch_size: int, seq_len: int, seed: int | None = None
    ) -> dict[str, Any]:
        """Draw stretches of episodes."""
        data: dict[str, Any] = super().sample_trajectories(batch_size, seq_len, seed=seed).data
        return data

    def n_episodes(self) -> int:
        """Return the number of episodes."""
        return self.num_episodes

    def stats(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the numbers of the data by name."""
        numbers = dict(vars(super().stats()))
        sizes = {"n_transitions": numbers.pop("size"), "n_episodes": numbers.pop("episodes")}
        return {**sizes, **numbers}
