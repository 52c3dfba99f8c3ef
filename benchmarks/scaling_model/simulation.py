"""Many workers and one server, event by event: queues, back-pressure and crowds at the door.

What a formula gives on average, this gives one by one: who waits how long. It is seeded, so that
the same question has the same answer. Time is in seconds and is not that of any clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# As in crates/net/src/client/line.rs and crates/net/src/transport/mod.rs.
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
        most_in_a_second: How many attempts came within a second, at most, after the return.
    """

    times: list[float] = field(default_factory=list)
    refused: int = 0
    dropped: int = 0
    given_up: int = 0
    most_at_once: int = 0

    def percentile(self, part: float) -> float:
        """Return after how long such a part was connected."""
        return percentile(self.times, part)


def herd(  # noqa: PLR0913 - what can be chosen
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
        held: Which part of the time a worker, on average, could not send because its window was full.
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


def traffic(  # noqa: PLR0913 - what can be chosen
    workers: int,
    *,
    rate: float,
    seconds: float,
    service: float,
    loops: int = 1,
    transfer: float = 0.0,
    learner: float | None = None,
    ahead: int = 1000,
    window: int = 64,
    seed: int = 0,
) -> Traffic:
    """Let workers insert for a while, at random times.

    Args:
        workers: How many.
        rate: Items a second from each, on average.
        seconds: For how long.
        service: Seconds of an event loop for an item.
        loops: How many event loops there are.
        transfer: Seconds of the network for an item.
        learner: How many inserts a second the learner's sampling allows, for a table whose limiter
            ties the two; as many as come, when None.
        ahead: How many inserts the limiter lets run ahead.
        window: How many items a worker may have under way; with more it waits.
        seed: Of the times.
    """
    clock, draw = Clock(), random.Random(seed)
    network, station = Station(clock), Station(clock, loops)
    delays: list[float] = []
    waited: list[float] = []
    under_way = [0] * workers
    held_since: dict[int, float] = {}
    held = 0.0
    gate: deque[Callable[[], None]] = deque()
    longest = 0

    def make(worker: int) -> None:
        if under_way[worker] >= window:
            held_since[worker] = clock.now
            return
        under_way[worker] += 1
        made = clock.now
        network.serve(transfer, lambda: arrive(worker, made))
        if clock.now < seconds:
            clock.after(draw.expovariate(rate), lambda: make(worker))

    def arrive(worker: int, made: float) -> None:
        here = clock.now

        def served() -> None:
            waited.append(clock.now - here - service)
            nonlocal longest
            if learner is not None and stored() >= allowed():
                gate.append(lambda: store(worker, made))
                longest = max(longest, len(gate))
            else:
                store(worker, made)

        station.serve(service, served)

    def stored() -> int:
        return len(delays)

    def allowed() -> float:
        return ahead + (learner or 0.0) * clock.now

    def store(worker: int, made: float) -> None:
        nonlocal held
        delays.append(clock.now - made)
        under_way[worker] -= 1
        if worker in held_since:
            held += clock.now - held_since.pop(worker)
            make(worker)

    def open_gate() -> None:
        while gate and stored() < allowed():
            gate.popleft()()
        if clock.now < seconds or gate:
            clock.after(0.001, open_gate)

    for worker in range(workers):
        clock.after(draw.expovariate(rate), lambda worker=worker: make(worker))
    if learner is not None:
        open_gate()
    clock.run(seconds)
    held += sum(seconds - since for since in held_since.values())
    delays.sort()
    return Traffic(
        delays=delays,
        waits=sum(waited) / max(1, len(waited)),
        loops=station.utilisation(seconds),
        network=network.utilisation(seconds),
        stored=len(delays),
        held=held / seconds / workers,
        longest=longest,
    )


def broadcast(
    followers: int, *, fan: int, first: float, later: float
) -> float:
    """Send weights down a tree, one follower after the other; return when the last has them.

    Args:
        followers: How many are to have them.
        fan: How many follow each.
        first: Seconds for one copy from the learner.
        later: Seconds for one copy from a relay.
    """
    clock = Clock()
    numbers = iter(range(followers))
    last = 0.0

    def has(links: Station, seconds: float) -> None:
        nonlocal last
        last = max(last, clock.now)
        for _ in itertools.islice(numbers, fan):
            links.serve(seconds, lambda: has(Station(clock), later))

    has(Station(clock), first)
    clock.run()
    return last


def percentile(ordered: list[float], part: float) -> float:
    """Return the value below which such a part of an ordered list lies."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
