"""Echoic: experience replay and data transport for reinforcement learning.

Start with :class:`Server`: samples go in one by one, fixed-size batches come out as numpy views.
"""

from echoic._native import Histogram, LeafSpec, Sample, SampleInfo, Spec, TrajectoryAccumulator
from echoic.errors import (
    ClosedError,
    EchoicError,
    HeldBatchesWarning,
    SpecError,
    TrajectoryError,
    WaitTimeoutError,
)
from echoic.server import Server

__all__ = [
    "ClosedError",
    "EchoicError",
    "HeldBatchesWarning",
    "Histogram",
    "LeafSpec",
    "Sample",
    "SampleInfo",
    "Server",
    "Spec",
    "SpecError",
    "TrajectoryAccumulator",
    "TrajectoryError",
    "WaitTimeoutError",
]
