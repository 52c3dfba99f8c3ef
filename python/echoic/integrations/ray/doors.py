"""Which of a server's doors is the nearest: shared memory on its machine, TCP from elsewhere.

Two actors may be on one machine and yet not share memory, in containers for instance. So the door
is tried, and not only the machines compared.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from echoic import _native
from echoic.errors import EchoicError

__all__ = ["Doors", "nearest", "this_host"]

# A door of this machine opens at once or never, but where others are busy.
_PATIENCE = 5.0


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
        _native.ping(doors.shm, secret, _PATIENCE, 1)
    except (EchoicError, OSError):
        return doors.tcp
    return doors.shm
