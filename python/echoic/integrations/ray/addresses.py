"""Open a server's transports on Ray, and choose the nearest: shared memory, or TCP elsewhere.

A restarted server asks for the addresses that it had before, so that clients find it again. Two
actors may be on one machine and yet not share memory, for instance in containers. So the transport
is tried, and not only the machines compared.
"""

from __future__ import annotations

import logging
import platform
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from echoic import _native
from echoic.errors import EchoicError
from echoic.transports import Listener

if TYPE_CHECKING:
    from echoic.server import Server

__all__ = ["Addresses", "nearest", "open_transports", "this_host"]

_log = logging.getLogger(__name__)

# A transport on this machine opens at once or never, unless the machine is busy.
_PATIENCE = 5.0
# Seconds that an earlier process may still hold the port or the name in shared memory.
_HELD = 3.0
_PAUSE = 0.1


@dataclass(frozen=True)
class Addresses:
    """The addresses of a server."""

    host: str  # Its machine, as `this_host` returned there.
    tcp: str  # For all clients.
    shm: str | None = None  # For processes of the same user on its machine.


@cache
def this_host() -> str:
    """Return an identifier of this machine, until it reboots; the same in its containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return platform.node()


def nearest(addresses: Addresses, token: str | None) -> str:
    """Return the address by which this process reaches a server fastest."""
    if addresses.shm is None or addresses.host != this_host():
        return addresses.tcp
    secret = None if token is None else token.encode()
    try:
        _native.ping(addresses.shm, {"token": secret}, _PATIENCE, 1)
    except (EchoicError, OSError):
        return addresses.tcp
    return addresses.shm


def open_transports(
    server: Server, name: str, *, token: str, threads: int | None, before: Addresses | None
) -> Addresses:
    """Open a server's transports; return the addresses.

    Args:
        server: The server.
        name: The name in shared memory, unique on this machine.
        token: The secret that clients need.
        threads: How many event loops each transport has; the transport's default if ``None``.
        before: The addresses of its earlier process.
    """

    def listener(address: str) -> Listener:
        return Listener(address, token=token, threads=threads)

    host = ray.util.get_node_ip_address()
    tcp = None
    if before is not None and before.host == this_host():
        wanted = before.tcp.rpartition(":")[2]
        tcp = _try_to_open(listener(f"tcp://{host}:{wanted}"), server)
    tcp = tcp or listener(f"tcp://{host}:0").open(server)
    if sys.platform != "linux":
        return Addresses(this_host(), tcp)
    return Addresses(this_host(), tcp, _try_to_open(listener(f"shm://{name}"), server))


def _try_to_open(transport: Listener, server: Server) -> str | None:
    """Open a transport whose address the earlier process may still hold."""
    deadline = time.monotonic() + _HELD
    while True:
        try:
            return transport.open(server)
        except OSError as error:
            if time.monotonic() >= deadline:
                _log.warning("a server could not open a transport: %s", error)
                return None
        time.sleep(_PAUSE)
