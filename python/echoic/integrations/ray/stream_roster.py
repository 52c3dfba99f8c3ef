"""Who knows where the servers of a stream are: an actor that they tell, and that producers ask.

A server of a stream is in the process of its learner, which Ray may start anew anywhere. So it says
where it is, now and then, and nobody asks it. The roster outlives every learner, since a learner
that comes back finds there which doors it had; it ends when the last server leaves, or when none
was heard of for long. When Ray starts the roster itself anew, the servers tell it again.

# Invariants

1. Of two servers with one rank, the one that entered later counts; the other is told that it does
   not, and closes.
2. Who entered here is later than all who entered when another roster was here, whatever their
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
    from echoic.integrations.ray.doors import Doors

__all__ = ["BEAT", "Entered", "Place", "StreamRoster", "find_roster", "open_roster", "roster_name"]

# How often servers tell where they are.
BEAT = 1.0
# A server that has said nothing for so long gets no new producers while others are there.
_SILENT = 5.0
# How long a server may take from when it enters until it tells where it is.
_STARTING = 30.0
# How long a producer that was sent to a server may take to connect, on a machine that is busy.
_ARRIVAL = 5.0
# After so many seconds without a word of any server, nobody needs the roster.
_IDLE = 600.0


@dataclass(frozen=True)
class Entered:
    """What a server is told when it enters.

    Attributes:
        identity: Eight random letters, which no other stream on this machine has.
        token: What it is to ask clients for.
        life: Larger than that of any earlier life of this rank.
        before: Where the last one was.
    """

    identity: str
    token: str
    life: int
    before: Doors | None


@dataclass(frozen=True)
class Place:
    """What is known of a server.

    Attributes:
        rank: Its number.
        life: Which of its lives.
        doors: Where it is, or was last.
        token: What it asks clients for.
        example: A sample, pickled with its code.
        load: How many clients it has.
        silent: For how many seconds nothing was heard of it.
    """

    rank: int
    life: int
    doors: Doors
    token: str
    example: bytes
    load: int
    silent: float = 0.0


class StreamRoster:
    """Knows the servers of one stream, as an actor.

    Args:
        identity: Eight random letters.
        token: What servers are to ask clients for.
        idle: After how many seconds without a word of any server it ends.
    """

    def __init__(self, identity: str, token: str, idle: float = _IDLE) -> None:
        """Wait to be told; servers that are there already do so soon."""
        self._identity = identity
        self._token = token
        self._idle = idle
        self._places: dict[int, Place] = {}
        self._lives: dict[int, int] = {}
        # The ranks whose last life began here.
        self._own_lives: set[int] = set()
        self._heard: dict[int, float] = {}
        # When a rank has entered that has not told where it is yet.
        self._entered: dict[int, float] = {}
        # When producers were sent to a rank, which may not have connected yet.
        self._sent: defaultdict[int, list[float]] = defaultdict(list)
        self._latest = time.monotonic()
        self._own = ray.get_runtime_context().current_actor
        threading.Thread(target=self._end_when_idle, daemon=True).start()

    def enter(self, rank: int) -> Entered:
        """Let a server in, in the place of any earlier one of its rank."""
        self._latest = time.monotonic()
        # The clock, so that it is larger than what a roster gave that was here before this one.
        life = max(self._lives.get(rank, 0) + 1, time.time_ns())
        self._lives[rank] = life
        self._own_lives.add(rank)
        self._entered[rank] = self._latest
        before = self._places.get(rank)
        return Entered(self._identity, self._token, life, None if before is None else before.doors)

    def tell(self, place: Place) -> bool:
        """Take note of where a server is; whether it is the one that counts."""
        self._latest = time.monotonic()
        latest = self._lives.get(place.rank, 0)
        if place.life < latest or (place.life != latest and place.rank in self._own_lives):
            return False
        self._lives[place.rank] = place.life
        self._entered.pop(place.rank, None)
        self._places[place.rank] = place
        self._heard[place.rank] = self._latest
        return True

    def leave(self, rank: int, life: int) -> bool:
        """Forget a server, unless another one has its rank by now; whether any is left."""
        if self._lives.get(rank) == life:
            self._places.pop(rank, None)
            self._entered.pop(rank, None)
        now = time.monotonic()
        return bool(self._places) or any(now - at < _STARTING for at in self._entered.values())

    def find(self, rank: int | None) -> Place | None:
        """Return where a server is; without a rank, of that which has the fewest clients."""
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
        # Whoever asks next is to go elsewhere, though this one has not connected yet.
        self._sent[best.rank].append(now)
        return replace(best, silent=now - self._heard[best.rank])

    def _load(self, place: Place, now: float) -> int:
        """Count the clients of a server, and those that are on their way there."""
        recent = [at for at in self._sent[place.rank] if now - at < _ARRIVAL]
        self._sent[place.rank] = recent
        return place.load + len(recent)

    def _end_when_idle(self) -> None:
        while time.monotonic() - self._latest < self._idle:
            time.sleep(min(self._idle / 4, 30.0))
        ray.kill(self._own)


def roster_name(name: str) -> str:
    """Return what the roster of a stream is called."""
    return f"{name}/stream"


def open_roster(name: str, namespace: str, identity: str, token: str) -> Any:
    """Return the roster of a stream, which is made if there is none."""
    return (
        ray.remote(StreamRoster)
        .options(
            name=roster_name(name),
            namespace=namespace,
            # A learner that dies takes with it what it has made, and is to find this again.
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=3,
        )
        .remote(identity, token)
    )


def find_roster(name: str, namespace: str | None) -> Any:
    """Return the roster of a stream.

    Raises:
        ValueError: There is none.
    """
    return ray.get_actor(roster_name(name), namespace)
