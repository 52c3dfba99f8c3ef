"""Echoic: experience replay and data transport for reinforcement learning.

Start with :class:`Stream`: samples go in one by one, fixed-size batches come out as numpy views.
A :class:`Server` serves it to workers in other processes, which :func:`connect`. For replay there
is :class:`Table`: items go in with priorities, and batches come out as a selector chooses. To train
on one machine, start with :class:`ReplayBuffer`.
"""

import importlib as _importlib
import typing as _typing

from echoic import buffers, collectors, errors, limiters, primitives, selectors, structured_writer
from echoic._native import (
    Batch,
    BatchInfo,
    ColumnHistory,
    Histogram,
    LeafSpec,
    Spec,
    Steps,
    StreamBatch,
    StreamStats,
)
from echoic._native import __version__ as __version__
from echoic.buffers import (
    MmapReplayBuffer,
    OfflineDataset,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from echoic.checkpointer import Checkpointer
from echoic.client import Client, connect
from echoic.errors import EchoicError
from echoic.ragged import Ragged
from echoic.remote_table import RemoteTable
from echoic.server import Server
from echoic.sharded import (
    ShardedClient,
    ShardedStructuredWriter,
    ShardedTable,
    ShardedTrajectoryWriter,
)
from echoic.stream import Stream
from echoic.structured_writer import StructuredWriter
from echoic.table import AnyLength, Table
from echoic.table_client import TableClient
from echoic.tls import Tls
from echoic.trajectory_writer import TrajectoryWriter
from echoic.vector_writer import VectorWriter
from echoic.watch import Watch

if _typing.TYPE_CHECKING:
    from echoic.rollouts import RolloutTable
    from echoic.weights import WeightStore

__all__ = [
    "AnyLength",
    "Batch",
    "BatchInfo",
    "Checkpointer",
    "Client",
    "ColumnHistory",
    "EchoicError",
    "Histogram",
    "LeafSpec",
    "MmapReplayBuffer",
    "OfflineDataset",
    "PrioritizedReplayBuffer",
    "Ragged",
    "RemoteTable",
    "ReplayBuffer",
    "RolloutTable",
    "Server",
    "ShardedClient",
    "ShardedStructuredWriter",
    "ShardedTable",
    "ShardedTrajectoryWriter",
    "Spec",
    "Steps",
    "Stream",
    "StreamBatch",
    "StreamStats",
    "StructuredWriter",
    "Table",
    "TableClient",
    "Tls",
    "TrajectoryWriter",
    "VectorWriter",
    "Watch",
    "WeightStore",
    "buffers",
    "collectors",
    "connect",
    "errors",
    "limiters",
    "primitives",
    "selectors",
    "structured_writer",
]

# Imported when they are first used, so that `import echoic` stays fast.
_ON_DEMAND = {"RolloutTable": "echoic.rollouts", "WeightStore": "echoic.weights"}


def __getattr__(name: str) -> _typing.Any:
    """Return what is imported on demand."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'echoic' has no attribute {name!r}")
    return getattr(_importlib.import_module(_ON_DEMAND[name]), name)


def __dir__() -> list[str]:
    """List also what is imported on demand."""
    return sorted({*globals(), *__all__})
