"""Echoic: experience replay and data transport for reinforcement learning.

Start with :class:`Server`: samples go in one by one, fixed-size batches come out as numpy views.
Workers in other processes push to it with :func:`connect`. For replay there is :class:`Table`:
items go in with priorities, and batches come out as a selector chooses. Who trains on one machine
starts with :class:`ReplayBuffer`.
"""

from echoic import errors, limiters, selectors, structured_writer
from echoic._native import (
    Batch,
    BatchInfo,
    ColumnHistory,
    Histogram,
    LeafSpec,
    Sample,
    SampleInfo,
    Spec,
    Steps,
    TrajectoryAccumulator,
)
from echoic._native import __version__ as __version__
from echoic.buffers import (
    MmapReplayBuffer,
    OfflineDatasetBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from echoic.checkpointer import Checkpointer
from echoic.client import Client, TcpClient, connect
from echoic.collectors import CandleCollector
from echoic.errors import EchoicError
from echoic.primitives import (
    RunningStats,
    RunningStatsVec,
    ValueNormalizer,
    balance_sequences,
    compute_batch_group_advantages,
    compute_batch_token_kl,
    compute_batch_token_kl_schulman,
    compute_categorical_kl,
    compute_discounted_sums,
    compute_effective_sample_size,
    compute_gae,
    compute_gae_batched,
    compute_gae_batched_f32,
    compute_group_advantages,
    compute_importance_weights,
    compute_lambda_returns,
    compute_n_step_returns,
    compute_retrace,
    compute_token_kl,
    compute_token_kl_schulman,
    compute_upgo,
    compute_vtrace,
    pack_sequences,
    plan_micro_batches,
    plan_packing,
)
from echoic.ragged import Ragged
from echoic.remote_table import RemoteTable
from echoic.sampler import Sampler
from echoic.server import Server
from echoic.sharded import (
    ShardedClient,
    ShardedStructuredWriter,
    ShardedTable,
    ShardedTrajectoryWriter,
)
from echoic.structured_writer import StructuredWriter
from echoic.table import AnyLength, Table
from echoic.table_client import TableClient
from echoic.trajectory_writer import TrajectoryWriter
from echoic.transports import ShmTransport, TcpTransport, TlsTransport, Transport, UnixTransport
from echoic.vector_writer import VectorWriter
from echoic.watch import Watch

__all__ = [
    "AnyLength",
    "Batch",
    "BatchInfo",
    "CandleCollector",
    "Checkpointer",
    "Client",
    "ColumnHistory",
    "EchoicError",
    "Histogram",
    "LeafSpec",
    "MmapReplayBuffer",
    "OfflineDatasetBuffer",
    "PrioritizedReplayBuffer",
    "Ragged",
    "RemoteTable",
    "ReplayBuffer",
    "RunningStats",
    "RunningStatsVec",
    "Sample",
    "SampleInfo",
    "Sampler",
    "Server",
    "ShardedClient",
    "ShardedStructuredWriter",
    "ShardedTable",
    "ShardedTrajectoryWriter",
    "ShmTransport",
    "Spec",
    "Steps",
    "StructuredWriter",
    "Table",
    "TableClient",
    "TcpClient",
    "TcpTransport",
    "TlsTransport",
    "TrajectoryAccumulator",
    "TrajectoryWriter",
    "Transport",
    "UnixTransport",
    "ValueNormalizer",
    "VectorWriter",
    "Watch",
    "balance_sequences",
    "compute_batch_group_advantages",
    "compute_batch_token_kl",
    "compute_batch_token_kl_schulman",
    "compute_categorical_kl",
    "compute_discounted_sums",
    "compute_effective_sample_size",
    "compute_gae",
    "compute_gae_batched",
    "compute_gae_batched_f32",
    "compute_group_advantages",
    "compute_importance_weights",
    "compute_lambda_returns",
    "compute_n_step_returns",
    "compute_retrace",
    "compute_token_kl",
    "compute_token_kl_schulman",
    "compute_upgo",
    "compute_vtrace",
    "connect",
    "errors",
    "limiters",
    "pack_sequences",
    "plan_micro_batches",
    "plan_packing",
    "selectors",
    "structured_writer",
]
