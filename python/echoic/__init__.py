"""Store and transport experience for reinforcement learning.

- :class:`ReplayBuffer` and the other classes of :mod:`echoic.buffers` keep transitions in this
  process: everything for training on one machine.
- :class:`Table` stores items with priorities. A selector chooses which are sampled, and a limiter
  sets the ratio of samples to additions.
- :class:`Server` makes tables, streams of fixed-size batches and weights available to other
  processes, which reach them through :func:`connect`.
"""

import importlib as _importlib
import typing as _typing

from echoic import buffers, collectors, errors, limiters, patterns, primitives, selectors
from echoic._native import (
    Batch,
    LeafSpec,
    Spec,
    Steps,
)
from echoic._native import __version__ as __version__
from echoic.buffers import (
    MmapReplayBuffer,
    OfflineDataset,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from echoic.checkpointer import Checkpointer
from echoic.connection import Connection, connect
from echoic.errors import EchoicError
from echoic.patterns import StructuredWriter
from echoic.ragged import Ragged
from echoic.server import Server
from echoic.table import AnyLength, Table
from echoic.tls import Tls
from echoic.trajectory_writer import TrajectoryWriter
from echoic.transports import ShmTransport, TcpTransport, TlsTransport, Transport, UnixTransport
from echoic.vector_writer import VectorWriter

if _typing.TYPE_CHECKING:
    from echoic.rollouts import RolloutTable
    from echoic.weights import WeightStore

__all__ = [
    "AnyLength",
    "Batch",
    "Checkpointer",
    "Connection",
    "EchoicError",
    "LeafSpec",
    "MmapReplayBuffer",
    "OfflineDataset",
    "PrioritizedReplayBuffer",
    "Ragged",
    "ReplayBuffer",
    "RolloutTable",
    "Server",
    "ShmTransport",
    "Spec",
    "Steps",
    "StructuredWriter",
    "Table",
    "TcpTransport",
    "Tls",
    "TlsTransport",
    "TrajectoryWriter",
    "Transport",
    "UnixTransport",
    "VectorWriter",
    "WeightStore",
    "buffers",
    "collectors",
    "connect",
    "errors",
    "limiters",
    "patterns",
    "primitives",
    "selectors",
]

# Imported when they are first used, so that `import echoic` stays fast.
_ON_DEMAND = {"RolloutTable": "echoic.rollouts", "WeightStore": "echoic.weights"}


def __getattr__(name: str) -> _typing.Any:
    """Import a name on demand."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'echoic' has no attribute {name!r}")
    return getattr(_importlib.import_module(_ON_DEMAND[name]), name)


def __dir__() -> list[str]:
    """List the names of the module, including those that are imported on demand."""
    return sorted({*globals(), *__all__})
