"""Track the servers of a stream, in an actor that servers report to and producers ask.

A server of a stream is in the process of its learner, which Ray may restart anywhere. So servers
report their addresses at intervals, and are not asked. The registry outlives every learner, since a
restarted learner asks it for the addresses it had; it ends when the last server leaves, or when
none has reported for long. When Ray restarts the registry itself, the servers report again.

# Invariants

1. Of two servers with one rank, the one that entered later counts; the other learns that it does
   not, and closes.
2. A server that entered here is later than all that entered an earlier registry, whatever their
   clocks say.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from echoic.integrations.ray.addresses import Addresses

__all__ = [
    "BEAT",
    "Entered",
    "Place",
    "StreamRegistry",
    "find_registry",
    "open_registry",
    "registry_name",
]

# Seconds between two reports of a server.
BEAT = 1.0
# Seconds without a report after which a server gets no new producers while there are others.
_SILENT = 5.0
# Seconds that a server may take from entering until its first report.
_STARTING = 30.0
# Seconds that a producer may take to connect to its server, on a machine that is busy.
_ARRIVAL = 5.0
# Seconds without any report after which the registry ends.
_IDLE = 600.0


@dataclass(frozen=True)
class Entered:
    """The registry's answer to a server that enters."""

    identity: str  # Eight random letters, unique to this stream on this machine.
    token: str  # The secret to require from clients.
    generation: int  # Larger than that of any earlier server of this rank.
    before: Addresses | None  # Those of the last one.


@dataclass(frozen=True)
class Place:
    """The state of a server."""

    rank: int  # Its number.
    generation: int  # Which of the servers of this rank it is.
    addresses: Addresses
    token: str  # The secret that it requires from clients.
    example: bytes  # A sample, pickled with its code.
    load: int  # How many clients it has.
    silent: float = 0.0  # Seconds since its last report.


@dataclass
class _Rank:
    """What is known of a rank."""

    generation: int = 0  # Of its last server.
    is_own: bool = False  # Whether that entered here.
    entered: float | None = None  # When it entered, until it reports its address.
    place: Place | None = None
    heard: float = 0.0  # When it last reported.
    # When producers were sent there; they may not have connected yet.
    sent: list[float] = field(default_factory=list)

    def load(self, now: float) -> int:
        """Count the clients of its server, and those that are about to connect."""
        self.sent = [at for at in self.sent if now - at < _ARRIVAL]
        return len(self.sent) + (0 if self.place is None else self.place.load)


class StreamRegistry:
    """Track the servers of one stream, as an actor.

    Args:
        identity: Eight random letters.
        token: The secret that servers are to require from clients.
        idle: Seconds without any report after which it ends.
    """

    def __init__(self, identity: str, token: str, idle: float = _IDLE) -> None:
        """Start without servers; those that are running report soon."""
        self._identity = identity
        self._token = token
        self._idle = idle
        self._ranks: defaultdict[int, _Rank] = defaultdict(_Rank)
        self._latest = time.monotonic()
        self._own = ray.get_runtime_context().current_actor
        threading.Thread(target=self._end_when_idle, daemon=True).start()

    def enter(self, rank: int) -> Entered:
        """Register a server, in place of any earlier one of its rank."""
        self._latest = time.monotonic()
        one = self._ranks[rank]
        # From the clock, so that it is larger than those of an earlier registry.
        one.generation = max(one.generation + 1, time.time_ns())
        one.is_own, one.entered = True, self._latest
        before = None if one.place is None else one.place.addresses
        return Entered(self._identity, self._token, one.generation, before)

    def report(self, place: Place) -> bool:
        """Store a server's report; return whether it is the one that counts."""
        self._latest = time.monotonic()
        one = self._ranks[place.rank]
        is_later = place.generation > one.generation
        if place.generation < one.generation or (is_later and one.is_own):
            return False
        one.generation, one.entered = place.generation, None
        one.place, one.heard = place, self._latest
        return True

    def leave(self, rank: int, generation: int) -> bool:
        """Remove a server, unless another has its rank by now; return whether any is left."""
        if self._ranks[rank].generation == generation:
            self._ranks[rank].place = self._ranks[rank].entered = None
        now = time.monotonic()
        return any(
            one.place is not None or (one.entered is not None and now - one.entered < _STARTING)
            for one in self._ranks.values()
        )

    def find(self, rank: int | None) -> Place | None:
        """Return the server of a rank; without a rank, the one with the fewest clients."""
        now = time.monotonic()
        if rank is None:
            there = {number: one for number, one in self._ranks.items() if one.place is not None}
            if not there:
                return None
            rank = min(
                there,
                key=lambda it: (now - there[it].heard > _SILENT, there[it].load(now), it),
            )
            # The next producer goes elsewhere, although this one has not connected yet.
            there[rank].sent.append(now)
        one = self._ranks[rank]
        return None if one.place is None else replace(one.place, silent=now - one.heard)

    def _end_when_idle(self) -> None:
        while time.monotonic() - self._latest < self._idle:
            time.sleep(min(self._idle / 4, 30.0))
        ray.kill(self._own)


def registry_name(name: str) -> str:
    """Return the name of a stream's registry."""
    return f"{name}/stream"


def open_registry(name: str, namespace: str, identity: str, token: str) -> Any:
    """Return the registry of a stream; start it if there is none."""
    return (
        ray.remote(StreamRegistry)
        .options(
            name=registry_name(name),
            namespace=namespace,
            # It has to outlive the learner that starts it, which finds it again after a restart.
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=3,
        )
        .remote(identity, token)
    )


def find_registry(name: str, namespace: str | None) -> Any:
    """Return the registry of a stream.

    Raises:
        ValueError: If there is none.
    """
    return ray.get_actor(registry_name(name), namespace)
