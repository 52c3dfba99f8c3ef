"""Provide the names of Reverb's C++ module, implemented with Echoic's tables."""

from echoic import Steps as WeakCellRef
from echoic.reverb._engine.client import Client
from echoic.reverb._engine.sampler import Sampler
from echoic.reverb._engine.selectors import (
    FifoSelector,
    HeapSelector,
    ItemSelector,
    LifoSelector,
    PrioritizedSelector,
    RateLimiter,
    UniformSelector,
    selector_from_proto,
)
from echoic.reverb._engine.server import Checkpointer, Server, create_default_checkpointer
from echoic.reverb._engine.structured import StructuredWriter
from echoic.reverb._engine.table import Table
from echoic.reverb._engine.trajectory import (
    AutoTunedChunkerOptions,
    ConstantChunkerOptions,
    TrajectoryWriter,
)
from echoic.reverb._engine.writer import Writer

__all__ = [
    "AutoTunedChunkerOptions",
    "Checkpointer",
    "Client",
    "ConstantChunkerOptions",
    "FifoSelector",
    "HeapSelector",
    "ItemSelector",
    "LifoSelector",
    "PrioritizedSelector",
    "RateLimiter",
    "Sampler",
    "Server",
    "StructuredWriter",
    "Table",
    "TrajectoryWriter",
    "UniformSelector",
    "WeakCellRef",
    "Writer",
    "create_default_checkpointer",
    "selector_from_proto",
]
