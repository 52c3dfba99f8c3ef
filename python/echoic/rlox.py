"""The buffers, primitives and collector of rlox under their names and in their call forms.

``import echoic.rlox as rlox``. What differs, and why, is in the guide "From rlox".
"""

from echoic.buffers import (
    MmapReplayBuffer,
    OfflineDatasetBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
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
