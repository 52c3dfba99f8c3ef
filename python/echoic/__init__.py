"""Echoic: experience replay and data transport for reinforcement learning.

Start with :class:`Server`: samples go in one by one, fixed-size batches come out as numpy views.
Workers in other processes push to it with :func:`connect`.
"""

from echoic._native import Histogram, LeafSpec, Sample, SampleInfo, Spec, TrajectoryAccumulator
from echoic.client import Client, TcpClient, connect
from echoic.errors import (
    ClosedError,
    DisconnectedError,
    EchoicError,
    HeldBatchesWarning,
    RefusedError,
    SpecError,
    TrajectoryError,
    WaitTimeoutError,
)
from echoic.server import Server
from echoic.transports import ShmTransport, TcpTransport, TlsTransport, Transport, UnixTransport

__all__ = [
    "Client",
    "ClosedError",
    "DisconnectedError",
    "EchoicError",
    "HeldBatchesWarning",
    "Histogram",
    "LeafSpec",
    "RefusedError",
    "Sample",
    "SampleInfo",
    "Server",
    "ShmTransport",
    "Spec",
    "SpecError",
    "TcpClient",
    "TcpTransport",
    "TlsTransport",
    "TrajectoryAccumulator",
    "TrajectoryError",
    "Transport",
    "UnixTransport",
    "WaitTimeoutError",
    "connect",
]
