"""Echoic: experience replay and data transport for reinforcement learning.

Start with :class:`Server`: samples go in one by one, fixed-size batches come out as numpy views.
Workers in other processes push to it with :func:`connect`. For replay there is :class:`Table`:
items go in with priorities, and batches come out as a selector chooses. Who trains on one machine
starts with :class:`ReplayBuffer`.
"""

from echoic import buffers, collectors, limiters, primitives, selectors, structured_writer
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
    OfflineDataset,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from echoic.checkpointer import Checkpointer
from echoic.client import Client, TcpClient, connect
from echoic.errors import (
    ArgumentError,
    BackboneError,
    CheckpointError,
    CheckpointWarning,
    ClosedError,
    CollectorError,
    CollectorWarning,
    DisconnectedError,
    DtypeError,
    EchoicError,
    GroupNotFoundError,
    HeldBatchesWarning,
    JournalError,
    JournalWarning,
    LeaseError,
    LimiterError,
    PriorityError,
    RefusedError,
    ReplayError,
    RolloutError,
    ShardWarning,
    SpecError,
    StorageError,
    TableNotFoundError,
    TrajectoryError,
    WaitTimeoutError,
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
    "ArgumentError",
    "BackboneError",
    "Batch",
    "BatchInfo",
    "CheckpointError",
    "CheckpointWarning",
    "Checkpointer",
    "Client",
    "ClosedError",
    "CollectorError",
    "CollectorWarning",
    "ColumnHistory",
    "DisconnectedError",
    "DtypeError",
    "EchoicError",
    "GroupNotFoundError",
    "HeldBatchesWarning",
    "Histogram",
    "JournalError",
    "JournalWarning",
    "LeafSpec",
    "LeaseError",
    "LimiterError",
    "MmapReplayBuffer",
    "OfflineDataset",
    "PrioritizedReplayBuffer",
    "PriorityError",
    "Ragged",
    "RefusedError",
    "RemoteTable",
    "ReplayBuffer",
    "ReplayError",
    "RolloutError",
    "Sample",
    "SampleInfo",
    "Sampler",
    "Server",
    "ShardWarning",
    "ShardedClient",
    "ShardedStructuredWriter",
    "ShardedTable",
    "ShardedTrajectoryWriter",
    "ShmTransport",
    "Spec",
    "SpecError",
    "Steps",
    "StorageError",
    "StructuredWriter",
    "Table",
    "TableClient",
    "TableNotFoundError",
    "TcpClient",
    "TcpTransport",
    "TlsTransport",
    "TrajectoryAccumulator",
    "TrajectoryError",
    "TrajectoryWriter",
    "Transport",
    "UnixTransport",
    "VectorWriter",
    "WaitTimeoutError",
    "Watch",
    "buffers",
    "collectors",
    "connect",
    "limiters",
    "primitives",
    "selectors",
    "structured_writer",
]
