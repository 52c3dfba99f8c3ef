"""One combination: threads that use a table or stream, what happens to it, and what must hold then.

# What is checked

1. No call waits for what is true (`hunt_watch`).
2. Every item is whole: its filling follows from its number, the steps of a window from each other.
3. No number is twice in a table, nor given out more often than ``max_times_sampled`` allows.
4. What was acknowledged is there: in the table, in checkpoints that were asked for later, and after
   kills as far as the durability promises.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
from echoic import _native, patterns
from hunt_places import Launcher, Local, Process, Remote
from hunt_plan import NAME, Plan
from hunt_rollouts import play_rollouts
from hunt_watch import HangError, Sight, Watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

# Numbers of items of one producer, of which there are a few.
RANGE = 1_000_000
# Numbers of the producer that fills the table.
FILLER = 90
# For how long a close may take altogether, with work that is under way.
END = 30.0


def rows(plan: Plan, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Rows, steps or samples with these numbers."""
    low = (numbers & 255).astype(np.uint8)
    return {"at": numbers, "filling": np.repeat(low[..., None], plan.filling, axis=-1)}


def check_whole(data: dict[str, np.ndarray]) -> np.ndarray:
    """Look at every byte of some items, and return their numbers."""
    numbers, filling = np.asarray(data["at"]), np.asarray(data["filling"])
    torn = (filling != (numbers & 255).astype(np.uint8)[..., None]).any(axis=-1)
    if torn.any():
        raise AssertionError(f"torn: {numbers[torn].ravel()[:5]} of {numbers.shape}")
    if numbers.ndim > 1:
        gaps = np.diff(numbers, axis=1) != 1
        if gaps.any():
            raise AssertionError(f"windows of other steps: {numbers[gaps.any(axis=1)][:3]}")
        numbers = numbers[:, -1]
    return numbers.astype(np.int64)


@dataclass
class Sent:
    """A run of numbers that one call has sent, and since when they are known to be there."""

    first: int
    last: int
    at: float
    acked: float | None = None


@dataclass
class Log:
    """What one thread did."""

    sent: list[Sent] = field(default_factory=list)
    # What samples gave out, as numbers.
    given: list[np.ndarray] = field(default_factory=list)
    deleted: list[np.ndarray] = field(default_factory=list)

    def ack(self, count: int) -> None:
        """All but what was sent after the first so many is there."""
        now = time.monotonic()
        for sent in reversed(self.sent[:count]):
            if sent.acked is not None:
                break
            sent.acked = now


class Play:
    """A combination while it is played."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        # Before there are threads.
        launcher = None if plan.reach == "process" else Launcher(folder)
        self.place: Any
        if launcher is None:
            self.place = Local(plan, folder)
        else:
            self.place = Remote(plan, folder, launcher)
        self._launcher = launcher
        self.stop, self.closing = threading.Event(), threading.Event()
        self.errors: list[BaseException] = []
        self.logs: list[Log] = []
        self._threads: list[threading.Thread] = []
        self._shared = self.place.client()
        # Of each server one that only looks.
        self._lookers = [self._shared]
        if launcher is not None:
            self._lookers = [self.place.client(address) for address in self.place.addresses]
        self._clients = [self._shared, *self._lookers]
        self.watch = Watch(self._poll, folder)
        self.restarted = 0.0
        self._checkpoints: list[float] = []
        self._victims: list[Process] = []
        self._victim_number = 50

    def run(self) -> str:
        """Play it, and return numbers about it; raises what went wrong."""
        plan = self.plan
        self.watch.served.set()
        self.watch.start()
        if plan.fills_up:
            self._fill()
        limiter = plan.final_limiter() if plan.target == "table" else None
        if limiter is not None:
            self.place.set_limiter(limiter)
        number = 1
        roles = [(role, self._insert) for role in plan.inserters]
        roles += [(role, self._sample) for role in plan.samplers]
        roles += [("chores", self._do_chores)] * plan.chores
        for role, work in roles:
            if plan.target == "stream" and plan.reach != "process" and role == "take":
                continue
            self._start(role, number, work)
            number += 1
        for _ in range(plan.victims):
            self._start_victim()
        self._disturb()
        self._end()
        return self._check()

    # The threads.

    def _start(self, role: str, number: int, work: Callable[..., None]) -> None:
        log = Log()
        self.logs.append(log)
        client = self._shared
        if not self.plan.shared_client and self.plan.reach != "process":
            client = self.place.client()
            self._clients.append(client)
        rng = random.Random(self.plan.seed * 100 + number)

        def run() -> None:
            try:
                work(role, number, client, log, rng)
            except (echoic.errors.ClosedError, echoic.errors.DisconnectedError) as error:
                if not self.closing.is_set():
                    self._failed(error)
            except BaseException as error:  # raised by the main thread
                self._failed(error)

        thread = threading.Thread(target=run, name=f"{role}-{number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.watch.found.set()

    def _patience(self, rng: random.Random) -> float | None:
        # Whoever tries again after a timeout hides a wake-up that was lost.
        return None if self.plan.eager else rng.choice([None, None, 0.02, 0.3])

    def _fill(self) -> None:
        """Make the table full."""
        log = Log()
        self.logs.append(log)
        table, size = self._shared.table(NAME), self.plan.capacity
        first = FILLER * RANGE
        if self.plan.kind == "rows":
            numbers = np.arange(first, first + size)
            with self.watch.call("fill", "insert"):
                table.extend(rows(self.plan, numbers))
                self._shared.flush()
        elif "add" in self.plan.inserters:
            for number in range(first, first + size):
                window = rows(self.plan, np.arange(number - 1, number + 1))
                self._shared.table(NAME).add(window)
            with self.watch.call("fill", "insert"):
                self._shared.flush()
        else:
            with self._shared.trajectory_writer(2) as writer:
                writer.append_batch(rows(self.plan, np.arange(first - 1, first + 1)))
                for number in range(first, first + size):
                    writer.create_item(NAME, 1.0, _window(writer))
                    writer.append(_step(self.plan, number + 1))
                with self.watch.call("fill", "insert"):
                    writer.flush()
        log.sent.append(Sent(first, first + size - 1, time.monotonic()))
        log.ack(1)

    def _insert(self, role: str, number: int, client: Any, log: Log, rng: random.Random) -> None:
        inserter = Inserter(self.plan, self.watch, role, client, log, number * RANGE)
        while not self.stop.is_set():
            inserter.step(rng, self._patience(rng))
            if not self.plan.eager:
                time.sleep(rng.uniform(0, 0.006))
        inserter.finish()

    def _sample(self, role: str, _number: int, client: Any, log: Log, rng: random.Random) -> None:
        plan, watch = self.plan, self.watch
        if role == "batches":
            self._iterate(client, log, rng)
            return
        while not self.stop.is_set():
            patience = self._patience(rng)
            try:
                with watch.call(role, "sample", patience):
                    if role == "take":
                        data = client.sample(patience).data
                    else:
                        data = client.table(NAME).sample(plan.batch, patience, beta=0.5).data
            except echoic.errors.WaitTimeoutError:
                continue
            log.given.append(check_whole(data))
            del data
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 0.02))

    def _iterate(self, client: Any, log: Log, rng: random.Random) -> None:
        patience, prefetch = self._patience(rng), rng.choice([0, 1, 2, 5])
        workers = rng.choice([1, 3])
        with client.table(NAME).batches(
            self.plan.batch, prefetch=prefetch, workers=workers, timeout=patience
        ) as batches:
            while not self.stop.is_set():
                try:
                    with self.watch.call(f"next(prefetch={prefetch})", "sample", patience):
                        batch = next(batches, None)
                except echoic.errors.WaitTimeoutError:
                    continue
                if batch is None:
                    if not self.closing.is_set():
                        raise AssertionError("a sampler ended although nothing was closed")
                    return
                log.given.append(check_whole(batch.data))
                time.sleep(rng.choice([0, 0.005, 0.05]))

    def _do_chores(self, _: str, _number: int, client: Any, log: Log, rng: random.Random) -> None:
        plan, table = self.plan, client.table(NAME)
        while not self.stop.is_set() and not self.closing.is_set():
            chores = ["items", "update", "info", "publish_version", "can"]
            chore = rng.choice(chores + ["remove"] * plan.deletes)
            with self.watch.call(chore, "served"):
                if chore == "info":
                    assert table.stats().size <= plan.capacity * 2
                elif chore == "publish_version":
                    table.publish_version(len(log.given))
                elif chore == "can":
                    table.can_add(1)
                else:
                    keys = table.items(rng.choice([1, 20, 300])).keys
                    if not len(keys):
                        continue
                    if chore == "items":
                        batch = table.get(keys)
                        if len(batch):
                            check_whole(batch.data)
                    elif chore == "update":
                        wait = rng.random() < 0.5
                        table.update_priorities(keys, np.ones(len(keys)), wait)
                    else:
                        batch = table.get(keys[:5])
                        if len(batch):
                            log.deleted.append(check_whole(batch.data))
                            table.remove(batch.keys)
            time.sleep(rng.uniform(0.005, 0.03))

    # What happens to them.

    def _disturb(self) -> None:
        plan = self.plan
        for event in plan.events:
            self._wait(plan.seconds / (len(plan.events) + 1))
            if event == "pause":
                table = self._lookers[0].table(NAME)
                with self.watch.call("pause", "served"):
                    table.pause()
                self._wait(0.1)
                with self.watch.call("resume", "served"):
                    table.resume()
            elif event == "checkpoint":
                self._checkpoint(self.place.checkpoint)
            elif event == "client checkpoint":
                self._checkpoint(self._shared.checkpoint)
            elif event == "kill server":
                self.watch.served.clear()
                self.place.restart()
                self.restarted = time.monotonic()
                self.watch.served.set()
            elif event == "kill client":
                self._victims.pop(0).kill()
                self._start_victim()
        self._wait(plan.seconds / (len(plan.events) + 1))

    def _checkpoint(self, write: Callable[[], object]) -> None:
        self._checkpoints.append(time.monotonic())
        write()

    def _start_victim(self) -> None:
        assert self._launcher is not None
        self._victim_number += 1
        arguments = self.plan, self.place.addresses[0], self._victim_number
        self._victims.append(self._launcher.start(be_victim, *arguments))
        self.logs.append(Log())
        # Whatever of it is there when it is killed, nobody was told so.
        first = self._victim_number * RANGE
        self.logs[-1].sent.append(Sent(first, first + RANGE // 2, time.monotonic()))

    def _wait(self, seconds: float) -> None:
        self.watch.found.wait(seconds)
        self._raise()

    def _raise(self) -> None:
        if self.errors:
            raise self.errors[0]
        if self.watch.hang is not None:
            raise HangError(self.watch.hang)

    def _end(self) -> None:
        """Have everybody stop, close the table, and wait until every call has ended."""
        if not self.plan.abrupt:
            self.stop.set()
            deadline = time.monotonic() + 0.3
            # Who waits for what is true still has to go on; who does not waits for the close.
            while any(one.is_alive() for one in self._threads):
                if time.monotonic() > deadline and not self.watch.suspects():
                    break
                self._wait(0.02)
        while self._victims:
            self._victims.pop().kill()
        self.closing.set()
        # Else the close is what ends them.
        self.place.close_table()
        threads = self._threads
        if self.plan.reach == "sharded":
            # To a client of several servers, one with a closed table is away, and may come back.
            threads = []
        elif self.plan.reach != "process":
            # What is on its way from elsewhere waits for a server that takes it, and ends with this
            # process.
            threads = [one for one in threads if one.name.startswith(("sample", "chores"))]
        else:
            self.watch.closed.add("insert")
        if threads:
            self.watch.closed |= {"sample", "served"}
        self._join(threads)
        self.watch.stop()
        self._raise()

    def _join(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + END
        for thread in threads:
            while thread.is_alive():
                self._wait(0.02)
                if time.monotonic() > deadline:
                    raise HangError(f"{thread.name} is still there {END} s after the close")

    def _poll(self) -> Sight | None:
        try:
            if self.plan.target == "stream":
                return self._look_at_stream()
            return self._look_at_table()
        except echoic.errors.ClosedError:
            return None
        except echoic.errors.DisconnectedError:
            return None

    def _look_at_stream(self) -> Sight:
        if self.plan.reach != "process":
            # Its server takes whatever comes.
            return Sight({"insert": True, "served": True}, {})
        info = self.place.stream.stats()
        room = info.batches_free > 0
        conditions = {"insert": room, "sample": info.batches_ready > 0, "served": True}
        return Sight(conditions, {"insert": info.inserted_total, "sample": info.delivered_total})

    def _look_at_table(self) -> Sight:
        seen = []
        for looker in self._lookers:
            table = looker.table(NAME)
            try:
                sample = table.can_sample(self.plan.batch)
            except echoic.errors.LimiterError:
                sample = False
            info = table.stats()
            seen.append((table.can_add(1), sample, info.inserts, info.samples))
        insert, sample, inserts, samples = zip(*seen, strict=True)
        # Somebody may wait for any of several servers.
        conditions = {"insert": all(insert), "sample": all(sample), "served": True}
        return Sight(conditions, {"insert": sum(inserts), "sample": sum(samples)})

    # What must hold in the end.

    def _check(self) -> str:
        plan = self.plan
        sent = [one for log in self.logs for one in log.sent]
        given = _joined([part for log in self.logs for part in log.given])
        if plan.target == "stream":
            rest = self.place.rest()
            given = np.concatenate([given, *(check_whole(batch) for batch in rest)])
            self.place.close()
            _assert_each_at_most(given, 1, "taken from the stream")
            self._assert_there(given, sent, "what was taken from the stream")
            return f"{len(given)} samples"
        content = self.place.content()
        there = check_whole(content) if len(content["key"]) else np.zeros(0, np.int64)
        self.place.close()
        _assert_each_at_most(there, 1, "in the table")
        if not plan.capacity * 2 >= len(there):
            raise AssertionError(f"{len(there)} items in a table of {plan.capacity}")
        unsent = ~_among(there, sent)
        if unsent.any():
            raise AssertionError(f"nobody has sent {there[unsent][:5]}")
        killed = "kill server" in plan.events
        # A server that is killed may forget a draw that was not synced, and make it again.
        if plan.max_times and (not killed or plan.durability == "sync"):
            _assert_each_at_most(given, plan.max_times, "given out")
        queue = plan.sampler in ("queue", "stack") and not killed
        if queue and not plan.deletes and self._all_told():
            # A call that waits for one server has what another gave, as has a client whose call
            # timed out.
            in_hand = plan.batch * len(plan.samplers) if plan.reach == "sharded" else 0
            found = np.concatenate([there, given])
            self._assert_there(found, sent, "the table, or given out", missing=in_hand)
        deleted = _joined([part for log in self.logs for part in log.deleted])
        kept = plan.keeps_all and sum(one.last - one.first + 1 for one in sent) < plan.capacity
        if kept:
            self._assert_there(np.concatenate([there, deleted]), sent, "the table")
        self._check_checkpoints(sent, deleted, kept=kept)
        return f"{len(there)} items, {len(given)} given out, {len(self._checkpoints)} checkpoints"

    def _all_told(self) -> bool:
        """Whether everything that was drawn was also seen: no prefetch, no client that died."""
        return "batches" not in self.plan.samplers and not self.plan.victims

    def _assert_there(
        self,
        numbers: np.ndarray,
        sent: list[Sent],
        where: str,
        before: float = float("inf"),
        *,
        missing: int = 0,
    ) -> None:
        """Look for what was acknowledged before a moment, as far as a kill may not take it.

        So many may be missing.
        """
        kept = self.plan.durability != "none" or before != float("inf")
        since = 0.0 if kept else self.restarted
        there = [
            one for one in sent if one.acked is not None and one.acked < before and one.at >= since
        ]
        expected = _joined([np.arange(one.first, one.last + 1) for one in there])
        lost = expected[~np.isin(expected, numbers)]
        if len(lost) > missing:
            calls = [one for one in there if one.first <= lost[0] <= one.last]
            raise AssertionError(
                f"acknowledged, but not in {where}: {len(lost)} numbers, as {lost[:5]} of {calls}"
            )

    def _check_checkpoints(self, sent: list[Sent], deleted: np.ndarray, *, kept: bool) -> None:
        root = self.folder / "checkpoints"
        if self.plan.reach != "process":
            root = self.folder / "server-0" / "checkpoints"
        written = _native.list_checkpoints(root)
        for path in written:
            [table] = [one for one in _native.open_checkpoint(path) if one.name == NAME]
            keys = table.items().keys
            there = check_whole(table.get(keys).data) if len(keys) else np.zeros(0, np.int64)
            _assert_each_at_most(there, 1, f"in {path.name}")
            newest = path == written[-1]
            if newest and self._checkpoints and kept and not self.restarted:
                there = np.concatenate([there, deleted])
                self._assert_there(there, sent, "the last checkpoint", self._checkpoints[-1])


class Inserter:
    """Puts numbers into a table or a stream, in one way."""

    def __init__(
        self, plan: Plan, watch: Watch, role: str, client: Any, log: Log, first: int
    ) -> None:
        self._plan, self._watch, self._role = plan, watch, role
        self._client, self._log = client, log
        self._local = plan.reach == "process"
        # A window also has the step before.
        self._next = first + 1
        self._writer: Any = None
        if role == "writer":
            self._writer = client.trajectory_writer(2, chunk_length=2)
        elif role == "structured":
            names = ("at", "filling")
            pattern = {name: patterns.column(name)[-2:] for name in names}
            config = patterns.Config(pattern, table=NAME, priority=1.0)
            self._writer = client.structured_writer([config])
        if self._writer is not None:
            self._writer.append(_step(plan, first))

    def step(self, rng: random.Random, patience: float | None) -> None:
        """Insert something, and now and then wait until it is there."""
        many = rng.choice([1, 7, 60, 400]) if "batch" in self._role else 1
        sent = Sent(self._next, self._next + many - 1, time.monotonic())
        self._log.sent.append(sent)
        self._next += many
        try:
            with self._watch.call(self._role, "insert", patience):
                self._put(sent.first, many, patience)
        except echoic.errors.WaitTimeoutError as error:
            if self._writer is None:
                # The others are nowhere, and never will be.
                sent.last = sent.first + error.stored - 1
                if not error.stored:
                    self._log.sent.pop()
                    return
        if self._local and self._writer is None:
            sent.acked = time.monotonic()
        elif rng.random() < 0.05:
            self.flush(patience)

    def _put(self, number: int, many: int, patience: float | None) -> None:
        plan, client = self._plan, self._client
        if self._writer is not None:
            self._writer.append(_step(plan, number), timeout=patience)
            if self._role == "writer":
                self._writer.create_item(NAME, 1.0, _window(self._writer, plan.kind))
        elif plan.target == "stream":
            items = rows(plan, np.arange(number, number + many))
            one = {name: leaf[0] for name, leaf in items.items()}
            if self._role == "submit":
                client.add(one, timeout=patience)
            else:
                client.extend(items, timeout=patience)
        elif many > 1 or "batch" in self._role:
            items = rows(plan, np.arange(number, number + many))
            client.table(NAME).extend(items, timeout=patience)
        elif plan.kind == "rows":
            client.table(NAME).add(_step(plan, number), timeout=patience)
        else:
            window = rows(plan, np.arange(number - 1, number + 1))
            client.table(NAME).add(window, timeout=patience)

    def flush(self, patience: float | None) -> None:
        """Wait until all is there."""
        count = len(self._log.sent)
        try:
            with self._watch.call("flush", "insert", patience):
                if self._writer is not None:
                    self._writer.flush(timeout=patience)
                elif not self._local:
                    self._client.flush(patience)
        except echoic.errors.WaitTimeoutError:
            return
        self._log.ack(count)

    def finish(self) -> None:
        """Give what is left a moment to get there."""
        if self._writer is not None or not self._local:
            self.flush(0.5)


def _step(plan: Plan, number: int) -> dict[str, np.ndarray]:
    return {name: leaf[0] for name, leaf in rows(plan, np.array([number])).items()}


def _window(writer: Any, kind: str = "windows") -> dict[str, Any]:
    if kind == "rows":
        return {name: column[-1] for name, column in writer.history.items()}
    return {name: column[-2:] for name, column in writer.history.items()}


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _assert_each_at_most(numbers: np.ndarray, most: int, where: str) -> None:
    found, counts = np.unique(numbers, return_counts=True)
    if (counts > most).any():
        often = dict(
            zip(found[counts > most].tolist(), counts[counts > most].tolist(), strict=True)
        )
        raise AssertionError(
            f"more than {most} times {where}, as number: times: {str(often)[:200]}"
        )


def _among(numbers: np.ndarray, sent: list[Sent]) -> np.ndarray:
    """Which of some numbers are in a run that was sent; runs do not overlap."""
    if not sent:
        return np.zeros(len(numbers), bool)
    runs = np.array(sorted((one.first, one.last) for one in sent))
    at = np.searchsorted(runs[:, 0], numbers, side="right") - 1
    return (at >= 0) & (numbers <= runs[at, 1])


def be_victim(_: Connection, plan: Plan, address: str, number: int) -> None:
    """Insert and sample until killed."""
    rng = random.Random(number)
    log = Log()
    watch = Watch(lambda: None, None)
    if plan.target == "stream":
        client: Any = echoic.connect(address).stream(plan.example())
    else:
        client = echoic.connect(address)
    inserter = Inserter(plan, watch, rng.choice(plan.inserters), client, log, number * RANGE)
    while True:
        inserter.step(rng, 0.1)
        if plan.target == "table" and plan.samplers and not plan.max_times:
            with contextlib.suppress(echoic.errors.WaitTimeoutError):
                check_whole(client.table(NAME).sample(plan.batch, 0.05).data)
        time.sleep(0.005)


def play(plan: Plan, folder: Path) -> int:
    """Play a combination, print its line, and return 0 when all was well."""
    faulthandler.enable()
    # Shards that come and go are what is played.
    warnings.simplefilter("ignore", echoic.errors.ShardWarning)
    begun = time.monotonic()
    one: Play | None = None
    try:
        if plan.target == "rollouts":
            numbers = play_rollouts(plan, folder)
        else:
            one = Play(plan, folder)
            numbers = one.run()
    except BaseException as error:  # whatever it is, it is a finding
        print(f"seed {plan.seed} FAILED: {type(error).__name__}: {error}\n  {plan}", flush=True)
        if not isinstance(error, (HangError, AssertionError)):
            traceback.print_exception(error, file=sys.stdout)
        if one is not None:
            for call in one.watch.pending():
                print(f"  pending: {call}")
            print(f"  last seen: {one.watch.last}", flush=True)
            faulthandler.dump_traceback(sys.stdout, all_threads=True)
        return 1
    print(f"seed {plan.seed} ok {time.monotonic() - begun:.1f} s ({numbers}) {plan}", flush=True)
    return 0
