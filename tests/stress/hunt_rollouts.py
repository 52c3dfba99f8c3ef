"""A combination of rollouts: producers, learners and a server that are processes, and are killed.

Time goes in laps. In a lap everybody works, and some are killed: producers, learners, the server.
At its end producers stop, and learners take what is left; then the books are compared. The books
are files, so they survive who wrote them.

# What is checked

1. Each group that a producer was told is complete was acknowledged by a learner, or its status says
   why not. Without a directory a killed server takes what it had with it.
2. No group was acknowledged twice. A learner that is killed in the middle of `ack` may have been
   heard or not, but only once.
3. Every batch has whole groups, with the tokens that were sent, none older than ``max_lag``.
4. At every moment ``submitted = running + accepted + rejected + filtered``, and what was accepted
   is queued, leased or acknowledged.
5. At the end of a lap nothing is left: no reservation, no lease, no group.
6. Memory, descriptors and threads of the server do not grow, and its directory has no more than
   two segments of a journal.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import warnings
from collections import Counter, deque
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
from echoic.errors import LeaseError, RolloutError, WaitTimeoutError
from echoic.rollouts import Reservation, RolloutTable
from hunt_places import Launcher, Process

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from echoic.rollouts import RolloutBatch, RolloutStats
    from hunt_plan import Plan

NAME = "soaked"
ITEMS, BATCH, LAG, TOKENS = 3, 4, 2, 40
# Serial numbers of the groups of one process.
SERIALS = 1_000_000
# For how long a killed producer or learner has what it had, in seconds.
TTL = 1.0
# The most bytes of a directory: two segments of the journal, and the checkpoints.
DIRECTORY = 160 << 20
# For how long a lap may take to come to its end.
END = 60.0


def make_table(plan: Plan, folder: Path) -> RolloutTable:
    """Open the table."""
    with warnings.catch_warnings():
        # A kill may cut off the journal.
        warnings.simplefilter("ignore", echoic.errors.JournalWarning)
        return RolloutTable(
            NAME,
            {"tokens": "int32"},
            {"serial": "int64"},
            group_size=ITEMS,
            batch_groups=BATCH,
            max_lag=LAG,
            max_running=16,
            max_tokens=TOKENS,
            reservation_ttl=TTL,
            on_expiry="suspend" if plan.suspends else "reject",
            directory=None if plan.durability == "none" else folder / "table",
            durability="async" if plan.durability == "none" else plan.durability,
        )


def tokens_of(serial: int, item: int) -> np.ndarray:
    """Return the tokens of an item, which follow from its number."""
    length = (serial * 7 + item * 3) % TOKENS + 1
    return (np.arange(length) + serial % 1000 + item).astype(np.int32)


class Book:
    """Lines that are in a file as soon as they are written."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, word: str, numbers: Any) -> None:
        """Write a line."""
        os.write(self._file, f"{word} {' '.join(map(str, numbers))}\n".encode())


def serve(connection: Connection, plan: Plan, folder: Path, address: str) -> None:
    """Be the server, until the other end of the connection is gone."""
    table = make_table(plan, folder)
    server = echoic.Server(table, listen=address).start()
    connection.send((False, server.address))
    while True:
        question, *_ = connection.recv()
        if question == "checkpoint":
            table.checkpoint()
        elif question == "close":
            server.close(restart=True)
            table.close()
        connection.send((False, None))


def produce(
    connection: Connection, plan: Plan, folder: Path, address: str, number: int, first: int
) -> None:
    """Make groups until asked to stop."""
    rng = random.Random(plan.seed * 1000 + number)
    book = Book(folder / f"producer-{number}")
    client = echoic.connect(address, timeout=30)
    table = client.rollouts(NAME)
    waiting: deque[tuple[Reservation, int]] = deque()
    serial = first
    connection.send((False, None))

    def settle(most: int) -> None:
        while len(waiting) > most:
            reservation, sent = waiting.popleft()
            status = reservation.status
            book.write("complete" if status == "complete" else "gone", [sent, *reservation.ticket])

    while not connection.poll():
        try:
            if plan.suspends:
                reservation = table.acquire(source=str(number), timeout=0.1)
            else:
                reservation = table.reserve(source=str(number), timeout=0.1)
        except WaitTimeoutError:
            settle(0)
            continue
        # What another began has a number, unless no item of it is finished.
        items = {at: item for at, item in reservation.progress.items() if item.segments}
        if items:
            # Its tokens say what they are of only if the item is whole; so it begins anew.
            reservation.fail()
            continue
        serial += 1
        book.write("sent", [serial])
        how = rng.random()
        if how < 0.05:
            reservation.fail()
            continue
        if how < 0.5:
            parts = [tokens_of(serial, item) for item in range(ITEMS)]
            columns = {"tokens": np.concatenate(parts)}
            fields = {"serial": np.full(ITEMS, serial)}
            wait = how < 0.1
            reservation.add_items([len(part) for part in parts], columns, fields, wait=wait)
        else:
            old = rng.random() < 0.05
            for item in range(ITEMS):
                tokens = tokens_of(serial, item)
                versions = max(reservation.version - (LAG + 1) * old, 0)
                if how < 0.7:
                    reservation.extend(item, {"tokens": tokens[:1]}, versions=versions)
                    tokens = tokens[1:]
                fields = {"serial": serial}
                reservation.add(
                    {"tokens": tokens}, fields, item=item, versions=versions, wait=how < 0.8
                )
        waiting.append((reservation, serial))
        settle(rng.choice([0, 4, 16]))
        time.sleep(rng.choice([0, 0, 0.002]))
    settle(0)
    connection.recv()
    connection.send((False, None))
    # Until killed.
    connection.recv()


def learn(connection: Connection, plan: Plan, folder: Path, address: str, number: int) -> None:
    """Take batches until asked to stop; the first learner publishes versions."""
    rng = random.Random(plan.seed * 1000 + number)
    book = Book(folder / f"learner-{number}")
    client = echoic.connect(address, timeout=30)
    table = client.rollouts(NAME)
    connection.send((False, None))
    # Once producers have stopped, what is left may be less than a batch.
    draining = False
    while True:
        if connection.poll():
            if connection.recv()[0] == "stop":
                break
            draining = True
            connection.send((False, None))
        size: dict[str, Any] = {"groups": rng.choice([1, 2, 3, BATCH, BATCH])}
        if rng.random() < 0.2:
            size = {"tokens": TOKENS * ITEMS + rng.randrange(200)}
        if draining:
            size = {"groups": 1}
        try:
            batch = table.sample(**size, lease=TTL, timeout=0.1)
        except WaitTimeoutError as error:
            if error.reason in ("STALENESS", "GROUP"):
                with contextlib.suppress(RolloutError):
                    table.publish_version(table.version + 1)
            continue
        serials = check(batch)
        with contextlib.suppress(LeaseError):
            how = 1.0 if draining else rng.random()
            if how < 0.1:
                batch.nack()
            elif how < 0.12:
                # A learner that is too slow.
                time.sleep(TTL * 1.2)
                acknowledge(batch, serials, book)
            else:
                acknowledge(batch, serials, book)
        if rng.random() < 0.5:
            # Another one may have published a later version meanwhile.
            with contextlib.suppress(RolloutError):
                table.publish_version(max(table.version, batch.target + 1))
    connection.send((False, None))
    # Until killed.
    connection.recv()


def acknowledge(batch: RolloutBatch, serials: list[int], book: Book) -> None:
    """Acknowledge a batch, and write down before that it may have been, and after that it was."""
    book.write("may", serials)
    try:
        batch.ack()
    except LeaseError:
        book.write("not", serials)
        raise
    book.write("did", serials)


def check(batch: RolloutBatch) -> list[int]:
    """Look at every token, and return the numbers of the groups."""
    if (batch.target - batch.versions).max(initial=0) > LAG or batch.lag_oldest.max() > LAG:
        raise AssertionError(f"too old: {batch.target}, {batch.versions}")
    serials = batch["serial"].reshape(-1, ITEMS)
    if (serials != serials[:, :1]).any():
        raise AssertionError(f"groups are mixed: {serials}")
    numbers = serials[:, 0].tolist()
    if len(set(numbers)) != len(numbers):
        raise AssertionError(f"twice in a batch: {numbers}")
    for place in range(len(batch)):
        serial, item = int(batch["serial"][place]), int(batch.index[place])
        if not np.array_equal(batch.item(place)["tokens"], tokens_of(serial, item)):
            raise AssertionError(f"other tokens in item {item} of {serial}")
    return numbers


@dataclass
class Usage:
    """What the server's process uses."""

    memory: int
    descriptors: int
    threads: int
    directory: int

    def __str__(self) -> str:
        """Say it in a few words."""
        return (
            f"{self.memory >> 20} MiB, {self.descriptors} descriptors, {self.threads} threads, "
            f"{self.directory >> 10} KiB on disk"
        )


def usage(pid: int, folder: Path) -> Usage:
    """Look at what a process uses."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    found = (folder / "table").rglob("*")
    directory = sum(file.stat().st_size for file in found if file.is_file())
    return Usage(
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        directory,
    )


@dataclass
class Totals:
    """Numbers of all laps."""

    laps: int = 0
    sent: int = 0
    complete: int = 0
    acknowledged: int = 0
    dropped: int = 0
    unknown: int = 0
    events: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """Say them on one line."""
        events = ", ".join(f"{count} × {event}" for event, count in sorted(self.events.items()))
        return (
            f"{self.laps} laps, {self.sent} groups sent, {self.complete} complete, "
            f"{self.acknowledged} acknowledged, {self.dropped} dropped, {self.unknown} unknown; "
            f"{events or 'undisturbed'}"
        )


class Rollouts:
    """A case while it is played."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        # Before there are threads.
        self._launcher = Launcher(folder)
        self._rng = random.Random(plan.seed)
        self._number = 0
        self._kept = plan.durability != "none"
        self.totals = Totals()
        self.most = Usage(0, 0, 0, 0)
        self.address = {
            "unix": f"unix://{folder}/socket",
            "shm": f"shm://soak-{plan.seed}-{os.getpid()}",
            "tcp": "tcp://127.0.0.1:0",
        }[plan.reach]
        # What the server used at the end of its first lap.
        self._first: Usage | None = None
        self._serve()
        self._client = echoic.connect(self.address, timeout=30)
        self.table = self._client.rollouts(NAME)
        self._producers: list[Process] = []
        self._learners: list[Process] = []

    def _serve(self) -> None:
        self._server = self._launcher.start(serve, self.plan, self.folder, self.address)
        self.address = self._server.receive()
        self._first = None

    def _start(self, main: Any, *arguments: Any) -> Process:
        self._number += 1
        process = self._launcher.start(
            main, self.plan, self.folder, self.address, self._number, *arguments
        )
        process.receive()
        return process

    def _start_producer(self) -> Process:
        return self._start(produce, (self._number + 1) * SERIALS)

    def lap(self, seconds: float, events: list[str]) -> Usage:
        """Play a lap, and check all that is written in the module; return what the server uses."""
        self._lost = False
        before = self.table.stats()
        self._producers = [self._start_producer() for _ in self.plan.inserters]
        self._learners = [self._start(learn) for _ in self.plan.samplers]
        for event in events:
            self._watch(seconds / (len(events) + 1))
            self.totals.events[event] += 1
            self._disturb(event)
        self._watch(seconds / (len(events) + 1))
        for producer in self._producers:
            producer.ask("stop")
            producer.kill()
        for learner in self._learners:
            learner.ask("drain")
        self._drain()
        for learner in self._learners:
            learner.ask("stop")
            learner.kill()
        self._compare(before)
        self.totals.laps += 1
        return self._measure()

    def _watch(self, seconds: float) -> None:
        """Look at the statistics for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            balance(self.table.stats())
            time.sleep(min(left, 0.01))

    def _disturb(self, event: str) -> None:
        rng = self._rng
        if event == "kill producer":
            place = rng.randrange(len(self._producers))
            self._producers[place].kill()
            self._producers[place] = self._start_producer()
        elif event == "kill learner":
            place = rng.randrange(len(self._learners))
            self._learners[place].kill()
            self._learners[place] = self._start(learn)
        elif event == "pause":
            self.table.pause()
            self._watch(0.05)
            self.table.resume()
        elif event == "checkpoint":
            if self._kept:
                self._server.ask("checkpoint")
        else:
            self._lost |= not self._kept
            if event == "restart server":
                self._server.ask("close")
            self._server.kill()
            self._serve()

    def _drain(self) -> None:
        """Wait until learners have taken everything."""
        deadline = time.monotonic() + END
        while True:
            stats = self.table.stats()
            balance(stats)
            if stats.running == stats.suspended and not stats.queued and not stats.leased:
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"not taken within {END} s: {stats}")
            time.sleep(0.02)
        # What was left by its producer has nobody who goes on with it.
        while self.table.stats().suspended:
            with contextlib.suppress(WaitTimeoutError):
                Reservation.resume(self.table, timeout=0).fail()

    def _compare(self, before: RolloutStats) -> None:
        """Compare the books of producers with those of learners."""
        sent: set[int] = set()
        complete: dict[int, tuple[int, int]] = {}
        acknowledged: Counter[int] = Counter()
        unknown: Counter[int] = Counter()
        for path in self.folder.glob("producer-*"):
            for word, *numbers in lines(path):
                if word == "sent":
                    sent.update(numbers)
                elif word == "complete":
                    complete[numbers[0]] = (numbers[1], numbers[2])
            path.unlink()
        for path in self.folder.glob("learner-*"):
            for word, *numbers in lines(path):
                if word == "may":
                    unknown.update(numbers)
                else:
                    unknown.subtract(numbers)
                    if word == "did":
                        acknowledged.update(numbers)
            path.unlink()
        unknown = +unknown
        if twice := [serial for serial, count in acknowledged.items() if count > 1]:
            raise AssertionError(f"acknowledged twice: {twice[:5]} of {len(twice)}")
        if strange := set(acknowledged) - sent:
            raise AssertionError(f"nobody has sent {list(strange)[:5]}")
        reasons: Counter[str] = Counter()
        for serial, ticket in complete.items():
            if serial in acknowledged or serial in unknown or self._lost:
                continue
            status = self.table.reservation(ticket).status
            if status not in ("stale", "filtered"):
                raise AssertionError(
                    f"group {ticket[0]} ({serial}) is {status!r}, and was not taken"
                )
            reasons[status] += 1
        if not self._lost:
            stats = self.table.stats()
            acked = stats.acked - before.acked
            if not len(acknowledged) <= acked <= len(acknowledged) + len(unknown):
                raise AssertionError(f"{acked} acknowledged, by the books {len(acknowledged)}")
            if reasons["stale"] > stats.stale - before.stale:
                raise AssertionError(f"{reasons} dropped, {stats}")
        totals = self.totals
        totals.sent += len(sent)
        totals.complete += len(complete)
        totals.acknowledged += len(acknowledged)
        totals.dropped += sum(reasons.values())
        totals.unknown += len(unknown)

    def _measure(self) -> Usage:
        """Look at what the server uses, now that it has nothing to do."""
        if self._kept:
            self._server.ask("checkpoint")
        found = usage(self._server.pid, self.folder)
        self.most = Usage(*map(max, astuple(self.most), astuple(found)))
        if self._first is None:
            self._first = found
        first = self._first
        if (
            found.memory > first.memory + (96 << 20)
            or found.descriptors > first.descriptors + 8
            or found.threads > first.threads + 8
            or found.directory > DIRECTORY
        ):
            raise AssertionError(f"the server grows: {first} after its first lap, now {found}")
        return found

    def close(self) -> None:
        """End the server."""
        self._client.close()
        self._server.kill()
        self._launcher.close()


def balance(stats: RolloutStats) -> None:
    """Compare the counts of a moment with each other."""
    if stats.submitted != stats.running + stats.accepted + stats.rejected + stats.filtered:
        raise AssertionError(f"groups are missing: {stats}")
    if stats.accepted != stats.queued + stats.leased + stats.acked:
        raise AssertionError(f"accepted groups are missing: {stats}")


def lines(path: Path) -> list[Any]:
    """Read a book; the last line may be cut off."""
    rows = [line.split() for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"]
    return [(word, *map(int, numbers)) for word, *numbers in rows]


def play_rollouts(plan: Plan, folder: Path) -> str:
    """Play one lap, for a hunt, and return numbers about it; raises what went wrong."""
    played = Rollouts(plan, folder)
    try:
        used = played.lap(plan.seconds, plan.events)
    finally:
        played.close()
    return f"{played.totals}; {used}"
