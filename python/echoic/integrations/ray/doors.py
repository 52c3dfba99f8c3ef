"""A server's doors on Ray, and which is the nearest: shared memory on its machine, TCP elsewhere.

A server that is started anew asks for the doors that an earlier life had, so that clients find it
where it was. Two actors may be on one machine and yet not share memory, in containers for instance.
So the door is tried, and not only the machines compared.
"""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from echoic import _native
from echoic.errors import EchoicError
from echoic.transports import ShmTransport, TcpTransport

if TYPE_CHECKING:
    from echoic.server import Server

__all__ = ["Doors", "nearest", "open_doors", "this_host"]

_log = logging.getLogger(__name__)

# A door of this machine opens at once or never, but where others are busy.
_PATIENCE = 5.0
# For how long the process of an earlier life may still hold the port or the name in shared memory.
_HELD = 3.0
_PAUSE = 0.1


@dataclass(frozen=True)
class Doors:
    """Where a server lets others in.

    Attributes:
        host: Which machine it is on, as :func:`this_host` says there.
        tcp: The address for everybody.
        shm: The address for processes of the same user on its machine, if it has one.
    """

    host: str
    tcp: str
    shm: str | None = None


@cache
def this_host() -> str:
    """Return what names this machine, until it is started anew; containers on it say the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return platform.node()


def nearest(doors: Doors, token: str | None) -> str:
    """Return the address by which this process reaches a server fastest."""
    if doors.shm is None or doors.host != this_host():
        return doors.tcp
    secret = None if token is None else token.encode()
    try:
        _native.ping(doors.shm, {"token": secret}, _PATIENCE, 1)
    except (EchoicError, OSError):
        return doors.tcp
    return doors.shm


def open_doors(
    server: Server, name: str, *, token: str, threads: int | None, before: Doors | None
) -> Doors:
    """Let others into a server; returns where.

    Args:
        server: The server.
        name: What its door in shared memory is called, which nothing else on this machine is.
        token: What clients are asked for.
        threads: How many event loops each door has; the transports' own number when ``None``.
        before: Where an earlier life of it was.
    """
    host = ray.util.get_node_ip_address()
    wanted = 0
    if before is not None and before.host == this_host():
        wanted = int(before.tcp.rpartition(":")[2])
    tcp = None
    if wanted:
        tcp = _try_to_open(TcpTransport(wanted, host, token=token, threads=threads), server)
    if tcp is None:
        tcp = TcpTransport(0, host, token=token, threads=threads).open(server)
    shm = _try_to_open(ShmTransport(name, token=token, threads=threads), server)
    return Doors(this_host(), tcp, shm)


def _try_to_open(transport: TcpTransport | ShmTransport, server: Server) -> str | None:
    """Open a door that the process of an earlier life may still have."""
    deadline = time.monotonic() + _HELD
    while True:
        try:
            return transport.open(server)
        except OSError as error:
            if time.monotonic() >= deadline:
                _log.warning("a server goes without a door: %s", error)
                return None
        time.sleep(_PAUSE)
