"""Many workers and one server, event by event: queues, back-pressure and crowds of connections.

What a formula gives on average, this gives one by one: who waits how long. It is seeded, so that
the same question has the same answer. Time is in seconds and is not that of any clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# As in crates/net/src/client/reconnector.rs and crates/net/src/transport/mod.rs.
FIRST_PAUSE, LAST_PAUSE = 0.02, 1.0
ATTEMPT = 10.0
BACKLOG = 4096
# After how long Linux sends the first packet of a connection again; it doubles.
RETRANSMIT = 1.0


class Clock:
    """What is to happen, in order of time; of the same time, in the order in which it was said."""

    def __init__(self) -> None:
        """Begin at 0, with nothing to happen."""
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have something happen in a while."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), happen))

    def run(self, until: float = float("inf")) -> None:
        """Let everything happen, up to a time."""
        while self._due and self._due[0][0] <= until:
            self.now, _, happen = heapq.heappop(self._due)
            happen()


class Station:
    """Some servers with one queue, first come, first served: event loops, or a network's card."""

    def __init__(self, clock: Clock, servers: int = 1) -> None:
        """Have nothing to do."""
        self._clock = clock
        self._free = servers
        self._servers = servers
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()
        self.busy = 0.0
        self.longest = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    def serve(self, seconds: float, done: Callable[[], None]) -> None:
        """Serve somebody for so long, when it is their turn."""
        if self._free:
            self._free -= 1
            self._begin(seconds, done)
        else:
            self._queue.append((seconds, done))
            self.longest = max(self.longest, len(self._queue))

    def utilisation(self, seconds: float) -> float:
        """Return which part of the time its servers were busy."""
        return self.busy / seconds / self._servers

    def _begin(self, seconds: float, done: Callable[[], None]) -> None:
        self.busy += seconds

        def end() -> None:
            if self._queue:
                self._begin(*self._queue.popleft())
            else:
                self._free += 1
            done()

        self._clock.after(seconds, end)


@dataclass
class Herd:
    """What became of clients that all lost one server.

    Attributes:
        times: After how many seconds since the server is back each was connected, in order.
        refused: Attempts while nobody listened.
        dropped: Packets for which the queue of those to be accepted had no place.
        given_up: Attempts that took too long.
        most_at_once: How many attempts came within a hundredth of a second, at most.
    """

    times: list[float] = field(default_factory=list)
    refused: int = 0
    dropped: int = 0
    given_up: int = 0
    most_at_once: int = 0

    def percentile(self, part: float) -> float:
        """Return after how long such a part was connected."""
        return percentile(self.times, part)


def herd(
    workers: int,
    *,
    connect: float,
    loops: int,
    away: float,
    jitter: bool = True,
    backlog: int = BACKLOG,
    seed: int = 0,
) -> Herd:
    """Let a server be away for a while, and its clients come back.

    Args:
        workers: How many connections there are.
        connect: Seconds on a processor that one costs the server.
        loops: How many event loops it has.
        away: Seconds until it listens again.
        jitter: Whether pauses are half to all of what they would be, as the client has it.
        backlog: How many may wait to be accepted.
        seed: Of the jitter, and of when each notices the loss, within a millisecond.
    """
    clock, draw, crowd = Clock(), random.Random(seed), Herd()
    station = Station(clock, loops)
    # How many came in each hundredth of a second.
    came: dict[int, int] = {}

    def attempt(pause: float) -> None:
        if clock.now < away:
            crowd.refused += 1
            back_off(pause)
            return
        slot = int(clock.now * 100)
        came[slot] = came.get(slot, 0) + 1
        knock(pause, clock.now, RETRANSMIT)

    def knock(pause: float, began: float, again: float) -> None:
        if len(station) < backlog:
            station.serve(connect, lambda: enter(began, pause))
        elif clock.now + again - began < ATTEMPT:
            crowd.dropped += 1
            clock.after(again, lambda: knock(pause, began, 2 * again))
        else:
            crowd.dropped += 1
            crowd.given_up += 1
            clock.after(max(0.0, began + ATTEMPT - clock.now), lambda: back_off(pause))

    def enter(began: float, pause: float) -> None:
        if clock.now - began > ATTEMPT:
            crowd.given_up += 1
            back_off(pause)
        else:
            crowd.times.append(clock.now - away)

    def back_off(pause: float) -> None:
        wait = pause * (0.5 + draw.random() / 2) if jitter else pause
        clock.after(wait, lambda: attempt(min(2 * pause, LAST_PAUSE)))

    for _ in range(workers):
        clock.after(draw.random() / 1000, lambda: attempt(FIRST_PAUSE))
    clock.run()
    crowd.times.sort()
    crowd.most_at_once = max(came.values(), default=0)
    return crowd


@dataclass
class Traffic:
    """What became of items on their way into a table.

    Attributes:
        delays: Seconds from an item's making until it is in the table, in order.
        waits: Seconds that items waited for an event loop, on average.
        loops: Which part of the time the event loops were busy.
        network: The same of the network's card.
        stored: Items that are in the table.
        held: Which part of the time a worker, on average, waited because its window was full.
        longest: How many waited at the table's limiter, at most.
    """

    delays: list[float]
    waits: float
    loops: float
    network: float
    stored: int
    held: float
    longest: int

    def percentile(self, part: float) -> float:
        """Return after how long such a part was stored."""
        return percentile(self.delays, part)


class Flow:
    """Workers that insert at random times, the server that they insert at, and its table.

    Args:
        workers: How many.
        rate: Items a second from each, on average.
        service: Seconds of an event loop for an item.
        loops: How many event loops there are.
        transfer: Seconds of the network for an item.
        learner: How many inserts a second the learner's sampling allows, for a table whose limiter
            ties the two; as many as come, when None.
        ahead: How many inserts the limiter lets run ahead.
        window: How many items a worker may have under way; with more it waits.
        seed: Of the times.
    """

    def __init__(
        self,
        workers: int,
        *,
        rate: float,
        service: float,
        loops: int = 1,
        transfer: float = 0.0,
        learner: float | None = None,
        ahead: int = 1000,
        window: int = 64,
        seed: int = 0,
    ) -> None:
        """Have nothing under way."""
        self._clock, self._draw = Clock(), random.Random(seed)
        self._network, self._loops = Station(self._clock), Station(self._clock, loops)
        self._rate, self._service, self._transfer = rate, service, transfer
        self._learner, self._ahead, self._window = learner, ahead, window
        self._under_way = [0] * workers
        # Since when a worker waits because its window is full.
        self._held_since: dict[int, float] = {}
        self._held = 0.0
        # Items that the limiter does not let in yet: whose they are, and when they were made.
        self._gate: deque[tuple[int, float]] = deque()
        self._longest = 0
        self._delays: list[float] = []
        self._waited = 0.0
        self._served = 0

    def run(self, seconds: float) -> Traffic:
        """Let it flow for a while, from nothing."""
        workers = len(self._under_way)
        for worker in range(workers):
            self._clock.after(self._draw.expovariate(self._rate), partial(self._make, worker))
        if self._learner is not None:
            self._open_gate()
        self._clock.run(seconds)
        held = self._held + sum(seconds - since for since in self._held_since.values())
        return Traffic(
            delays=sorted(self._delays),
            waits=self._waited / max(1, self._served),
            loops=self._loops.utilisation(seconds),
            network=self._network.utilisation(seconds),
            stored=len(self._delays),
            held=held / seconds / workers,
            longest=self._longest,
        )

    def _make(self, worker: int) -> None:
        now = self._clock.now
        if self._under_way[worker] >= self._window:
            self._held_since[worker] = now
            return
        self._under_way[worker] += 1
        if self._transfer:
            self._network.serve(self._transfer, partial(self._arrive, worker, now))
        else:
            self._arrive(worker, now)
        self._clock.after(self._draw.expovariate(self._rate), partial(self._make, worker))

    def _arrive(self, worker: int, made: float) -> None:
        self._loops.serve(self._service, partial(self._look, worker, made, self._clock.now))

    def _look(self, worker: int, made: float, came: float) -> None:
        """Store an item that an event loop is done with, if the limiter allows it."""
        self._waited += self._clock.now - came - self._service
        self._served += 1
        if self._is_open():
            self._store(worker, made)
        else:
            self._gate.append((worker, made))
            self._longest = max(self._longest, len(self._gate))

    def _is_open(self) -> bool:
        if self._learner is None:
            return True
        return len(self._delays) < self._ahead + self._learner * self._clock.now

    def _store(self, worker: int, made: float) -> None:
        now = self._clock.now
        self._delays.append(now - made)
        self._under_way[worker] -= 1
        since = self._held_since.pop(worker, None)
        if since is not None:
            self._held += now - since
            self._make(worker)

    def _open_gate(self) -> None:
        """Let in whom the learner has made room for: it takes a batch each millisecond."""
        while self._gate and self._is_open():
            self._store(*self._gate.popleft())
        self._clock.after(0.001, self._open_gate)


def broadcast(followers: int, *, fan: int, first: float, later: float) -> float:
    """Send weights down a tree, one copy after the other; return when the last follower has them.

    Args:
        followers: How many are to have them.
        fan: How many follow each.
        first: Seconds for one copy from the learner.
        later: Seconds for one copy from a relay.
    """
    clock = Clock()
    last = 0.0

    def has(number: int, seconds: float) -> None:
        nonlocal last
        last = max(last, clock.now)
        link = Station(clock)
        # The learner is 0; its followers are the next numbers, and so on.
        for child in range(fan * number + 1, min(fan * number + fan, followers) + 1):
            link.serve(seconds, partial(has, child, later))

    has(0, first)
    clock.run()
    return last


def percentile(ordered: list[float], part: float) -> float:
    """Return the value below which such a part of an ordered list lies."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
