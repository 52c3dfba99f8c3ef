"""Echoic: experience replay and data transport for reinforcement learning.

On one machine, begin with a :class:`ReplayBuffer`. For several processes or machines, a
:class:`Server` serves stores, and :func:`connect` reaches them from there with the same methods.

- Stores: :class:`Table` (replay: items stay and are drawn by a selector), :class:`Stream` (each
  sample once, in batches of a fixed size), :class:`RolloutTable` (groups of token sequences of
  bounded age), :class:`WeightStore` (the parameters of a policy, for the workers).
- Local buffers: :class:`ReplayBuffer`, :class:`PrioritizedReplayBuffer`,
  :class:`MmapReplayBuffer` (larger than memory), :class:`OfflineDataset`.
- Serving: :class:`Server`, :func:`connect`, :class:`Connection`, :class:`Tls`,
  :class:`Checkpointer`.
- Writers of trajectories: :class:`TrajectoryWriter`, :class:`VectorWriter` (environments that step
  together), :class:`StructuredWriter` (by :mod:`patterns`).
- Data: :class:`Batch`, :class:`Ragged` and :class:`AnyLength` (sequences of different lengths),
  :class:`Spec`, :class:`LeafSpec`, :class:`Steps`.
- Errors: :class:`EchoicError`, and its kinds in :mod:`errors`.

Modules: :mod:`buffers`, :mod:`collectors`, :mod:`errors`, :mod:`limiters`, :mod:`patterns`,
:mod:`primitives`, :mod:`selectors`; also :mod:`rl`, :mod:`rollouts`, :mod:`weights`,
:mod:`watch`, :mod:`workers`, :mod:`logs`, :mod:`integrations`, :mod:`agents`, and the APIs of three
other libraries: :mod:`echo`, :mod:`reverb`, :mod:`rlox`.
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
from echoic.stream import Stream
from echoic.table import AnyLength, Table
from echoic.tls import Tls
from echoic.trajectory_writer import TrajectoryWriter
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
    "Spec",
    "Steps",
    "Stream",
    "StructuredWriter",
    "Table",
    "Tls",
    "TrajectoryWriter",
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
