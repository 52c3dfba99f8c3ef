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
from dataclasses import dataclass, replace
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
    """The registry's answer to a server that enters.

    Attributes:
        identity: Eight random letters, unique to this stream on this machine.
        token: The secret to require from clients.
        generation: Larger than that of any earlier server of this rank.
        before: The addresses of the last one.
    """

    identity: str
    token: str
    generation: int
    before: Addresses | None


@dataclass(frozen=True)
class Place:
    """The state of a server.

    Attributes:
        rank: Its number.
        generation: Which of the servers of this rank it is.
        addresses: Its addresses, or the last ones.
        token: The secret that it requires from clients.
        example: A sample, pickled with its code.
        load: How many clients it has.
        silent: Seconds since its last report.
    """

    rank: int
    generation: int
    addresses: Addresses
    token: str
    example: bytes
    load: int
    silent: float = 0.0


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
        self._places: dict[int, Place] = {}
        self._generations: dict[int, int] = {}
        # The ranks whose last server entered here.
        self._own_generations: set[int] = set()
        self._heard: dict[int, float] = {}
        # When a rank has entered that has not reported its address yet.
        self._entered: dict[int, float] = {}
        # When producers were sent to a rank; they may not have connected yet.
        self._sent: defaultdict[int, list[float]] = defaultdict(list)
        self._latest = time.monotonic()
        self._own = ray.get_runtime_context().current_actor
        threading.Thread(target=self._end_when_idle, daemon=True).start()

    def enter(self, rank: int) -> Entered:
        """Register a server, in place of any earlier one of its rank."""
        self._latest = time.monotonic()
        # From the clock, so that it is larger than those of an earlier registry.
        generation = max(self._generations.get(rank, 0) + 1, time.time_ns())
        self._generations[rank] = generation
        self._own_generations.add(rank)
        self._entered[rank] = self._latest
        before = self._places.get(rank)
        return Entered(
            self._identity, self._token, generation, None if before is None else before.addresses
        )

    def report(self, place: Place) -> bool:
        """Store a server's report; return whether it is the one that counts."""
        self._latest = time.monotonic()
        latest = self._generations.get(place.rank, 0)
        if place.generation < latest or (
            place.generation != latest and place.rank in self._own_generations
        ):
            return False
        self._generations[place.rank] = place.generation
        self._entered.pop(place.rank, None)
        self._places[place.rank] = place
        self._heard[place.rank] = self._latest
        return True

    def leave(self, rank: int, generation: int) -> bool:
        """Remove a server, unless another has its rank by now; return whether any is left."""
        if self._generations.get(rank) == generation:
            self._places.pop(rank, None)
            self._entered.pop(rank, None)
        now = time.monotonic()
        return bool(self._places) or any(now - at < _STARTING for at in self._entered.values())

    def find(self, rank: int | None) -> Place | None:
        """Return the server of a rank; without a rank, the one with the fewest clients."""
        now = time.monotonic()
        if rank is not None:
            place = self._places.get(rank)
            return None if place is None else replace(place, silent=now - self._heard[rank])
        if not self._places:
            return None
        best = min(
            self._places.values(),
            key=lambda one: (now - self._heard[one.rank] > _SILENT, self._load(one, now), one.rank),
        )
        # The next producer goes elsewhere, although this one has not connected yet.
        self._sent[best.rank].append(now)
        return replace(best, silent=now - self._heard[best.rank])

    def _load(self, place: Place, now: float) -> int:
        """Count the clients of a server, and those that are about to connect."""
        recent = [at for at in self._sent[place.rank] if now - at < _ARRIVAL]
        self._sent[place.rank] = recent
        return place.load + len(recent)

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
