"""A table does what the model says, whatever producers, learners and connections do.

Each example is a table of some settings, in this process or behind a server, and a program of
calls. After every call the table's statistics are those of the model, and every batch has the
groups, tokens and versions that it should have. `tests/stress` has what threads and kills do.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import tiers
from echoic.errors import LeaseError, RolloutError, WaitTimeoutError
from echoic.rollouts import Reservation, RolloutTable
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from network.proxy import Proxy
from rollout_model import OVER, Model, Settings

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch
    from rollout_model import Batch, Group, Share

MAX_TOKENS = 6
PATIENCE = 60.0
which = st.integers(0, 1 << 16)


@st.composite
def tables(draw: st.DrawFn) -> Settings:
    """Draw settings with which batches can be made."""
    group_size = draw(st.integers(1, 3))
    max_lag = draw(st.sampled_from([0, 1, 2, None]))
    batch_groups, batches_per_version = draw(st.sampled_from([2, 4])), draw(st.integers(1, 2))
    return Settings(
        group_size=group_size,
        redundancy=draw(st.integers(0, 1)),
        batch_groups=batch_groups,
        batches_per_version=batches_per_version,
        max_lag=max_lag,
        pipeline_depth=draw(st.sampled_from([None, 0])) if max_lag else None,
        target_lag=draw(st.sampled_from([None, None, 0])) if max_lag else None,
        max_running=draw(st.sampled_from([4, 100])),
        capacity=200,
        order=draw(st.sampled_from(["ready", "ready", "submission"])),
        on_expiry=draw(st.sampled_from(["reject", "suspend"])),
        delivery=draw(st.sampled_from(["at_least_once"] * 3 + ["at_most_once"])),
        filter=draw(st.sampled_from([None, "spread(reward) > 0"])) if group_size > 1 else None,
        late=draw(st.sampled_from([(), ("reward",), ("score",), ("reward", "score")])),
    )


class Held:
    """A reservation, and which one it is to the model."""

    def __init__(self, reservation: Reservation, holder: int) -> None:
        self.reservation, self.holder = reservation, holder
        self.number = reservation.group


class Leased:
    """A batch with a lease, and which one it is to the model."""

    def __init__(self, batch: RolloutBatch, made: Batch, share: Share) -> None:
        self.batch, self.made, self.share = batch, made, share
        self.attempt = share.attempt


class Rollouts(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="echoic-model-")
        self.ending = contextlib.ExitStack()
        self.server: echoic.Server | None = None
        self.proxy: Proxy | None = None
        self.cutting = False
        self.held: list[Held] = []
        self.leases: list[Leased] = []
        self.acknowledged: set[int] = set()
        self.batch_numbers: dict[int, int] = {}
        self.attempts: dict[tuple[int, int], int] = {}
        self.restarts = 0

    @initialize(
        table=tables(),
        ranks=st.sampled_from([1, 1, 2]),
        reach=st.sampled_from(["process", "process", "unix", "tcp"]),
        kept=st.booleans(),
    )
    def open(self, table: Settings, ranks: int, reach: str, kept: bool) -> None:
        """Open a table, and connections to it."""
        self.model, self.ranks, self.kept = Model(table, ranks), ranks, kept
        self.size = table.group_size
        self.address = {
            "process": None,
            "unix": f"unix://{self.folder.name}/socket",
            "tcp": "tcp://127.0.0.1:0",
        }[reach]
        self.open_table()
        self.ways = [self.table]
        if self.server is not None:
            self.address = self.server.address
            addresses = [self.address]
            if reach == "tcp":
                host, _, port = self.address.removeprefix("tcp://").rpartition(":")
                self.proxy = Proxy((host, int(port)))
                self.ending.callback(self.proxy.close)
                addresses.append(self.proxy.address)
            clients = [self.ending.enter_context(echoic.connect(one)) for one in addresses]
            self.ways += [client.rollouts("math") for client in clients]

    def open_table(self) -> None:
        """Open the table, again if it has a directory, and its server."""
        self.table = RolloutTable(
            "math",
            {"tokens": "int32", "score": "float32"},
            {"reward": "float32"},
            max_tokens=MAX_TOKENS,
            directory=Path(self.folder.name) / "table" if self.kept else None,
            **asdict(self.model.settings),
        )
        if self.address is not None:
            self.server = echoic.Server(self.table, listen=self.address).start()

    def teardown(self) -> None:
        """Look at what became of every group, and close everything."""
        try:
            if hasattr(self, "ways"):
                self.every_group_has_a_reason()
        finally:
            self.ending.close()
            if self.server is not None:
                self.server.close()
            if hasattr(self, "table"):
                self.table.close()
            self.folder.cleanup()

    def way(self, number: int) -> RolloutTable:
        """One of the ways to the table, with a connection that stands."""
        self.cut_now()
        return self.ways[number % len(self.ways)]

    def cut_now(self) -> None:
        """End a connection that was to end, and wait for the next one.

        A call whose answer was lost may have reserved groups or leased a batch that the caller does
        not know of; and one with a timeout of 0 does not wait for a connection.
        """
        if self.proxy is not None and self.cutting:
            self.cutting = False
            for link in self.proxy.links:
                link.limit = float("inf")
            self.proxy.cut()
        for table in self.ways:
            assert table.version == self.model.version

    # Producers.

    @rule(way=which, count=st.integers(1, 5), age=st.none() | st.integers(0, 2))
    def reserve(self, way: int, count: int, age: int | None) -> None:
        """Reserve as many groups as there is room for."""
        version = None if age is None else max(self.model.version - age, 0)
        room = min(count, self.model.room())
        if not room:
            with pytest.raises(WaitTimeoutError):
                self.way(way).reserve(version=version, timeout=0)
            return
        given = self.way(way).reserve_many(count, version=version, timeout=0)
        assert len(given) == room
        holders = self.model.reserve([one.group for one in given], version)
        self.held += [Held(*pair) for pair in zip(given, holders, strict=True)]

    @precondition(lambda self: self.held)
    @rule(
        one=which,
        item=which,
        ages=st.lists(st.integers(0, 2), max_size=3),
        ends=st.booleans(),
        reward=st.none() | st.integers(0, 1),
        wait=st.booleans(),
    )
    def add(
        self, one: int, item: int, ages: list[int], ends: bool, reward: int | None, wait: bool
    ) -> None:
        """Add a segment to an item, and maybe end it."""
        # Now and then one whose reservation is over.
        live = [held for held in self.held if self.holds(held)]
        held = self.choose(live if live and one % 5 else self.held, one)
        index = self.unfinished(held, item)
        if index is not None:
            self.add_to(held, index, ages, ends=ends, reward=reward, wait=wait)

    def add_to(
        self,
        held: Held,
        index: int,
        ages: list[int],
        *,
        ends: bool,
        reward: int | None,
        wait: bool,
    ) -> None:
        """Add to an item of a group."""
        items = self.group(held).items
        there = len(items[index].versions) if index in items else 0
        versions = [max(self.model.version - age, 0) for age in ages[: MAX_TOKENS - there]]
        columns: dict[str, Any] = {"tokens": [held.number % 1000] * len(versions)}
        # What may come late always does, of a column; of a field now and then.
        score = None if self.is_late("score") else 0.5
        if score is not None:
            columns["score"] = [score] * len(versions)
        if reward is None and not self.is_late("reward"):
            reward = 0
        expected = self.model.add(
            held.number, held.holder, index, versions, score, ends=ends, reward=reward
        )
        if ends:
            fields = {} if reward is None else {"reward": reward}
            status = held.reservation.add(columns, fields, item=index, versions=versions, wait=wait)
        else:
            status = held.reservation.extend(index, columns, versions=versions)
        if not wait:
            self.table.flush()
            status = held.reservation.status
        assert status == expected

    @precondition(lambda self: self.held)
    @rule(
        one=which,
        item=which,
        reward=st.none() | st.integers(0, 1),
        score=st.none() | st.integers(0, 9),
        way=which,
    )
    def update(self, one: int, item: int, reward: int | None, score: int | None, way: int) -> None:
        """Give values to an item, from another process than that which made it."""
        held = self.choose(self.held, one)
        index = item % (self.size + self.model.settings.redundancy)
        found = self.group(held).items.get(index)
        if found is None or not found.finished:
            # More tokens may come, and values of a column are those of all.
            score = None
        if score is None and reward is None:
            reward = 1
        self.update_item(held, index, reward, score, self.way(way))

    def update_item(
        self, held: Held, index: int, reward: int | None, score: int | None, table: RolloutTable
    ) -> None:
        """Give values to an item."""
        found = self.group(held).items.get(index)
        length = 0 if found is None else len(found.versions)
        columns = {} if score is None else {"score": [score] * length}
        fields = {} if reward is None else {"reward": reward}
        expected = self.model.update(held.number, held.holder, index, reward, score)
        reservation = table.reservation(held.reservation.ticket)
        if expected is None:
            with pytest.raises(RolloutError, match="item to update"):
                reservation.update(index, columns, fields)
        else:
            assert reservation.update(index, columns, fields) == expected

    @precondition(lambda self: self.held)
    @rule(
        one=which,
        lengths=st.lists(st.integers(0, MAX_TOKENS), min_size=3, max_size=3),
        old=st.booleans(),
    )
    def add_all(self, one: int, lengths: list[int], old: bool) -> None:
        """Add all items of a group that has none, in one call that does not wait."""
        untouched = [held for held in self.held if self.holds(held) and not self.group(held).items]
        if not untouched:
            return
        held, lengths = self.choose(untouched, one), lengths[: self.size]
        version = max(self.model.version - old, 0)
        columns = {"tokens": np.full(sum(lengths), held.number % 1000, np.int32)}
        fields = {"reward": np.arange(self.size, dtype=np.float32)}
        score = None if self.is_late("score") else 0.5
        if score is not None:
            columns["score"] = np.full(sum(lengths), score, np.float32)
        if self.is_late("reward"):
            fields = {}
        for index, length in enumerate(lengths):
            reward = index if fields else None
            expected = self.model.add(
                held.number,
                held.holder,
                index,
                [version] * length,
                score,
                ends=True,
                reward=reward,
            )
        held.reservation.add_items(lengths, columns, fields, versions=version, wait=False)
        assert held.reservation.status == expected

    @rule(way=which, count=st.integers(1, 5), length=st.integers(1, MAX_TOKENS))
    def produce(self, way: int, count: int, length: int) -> None:
        """Make whole groups."""
        before = len(self.held)
        self.reserve(way, count, None)
        for one in range(len(self.held) - before):
            self.add_all(-1 - one, [length] * self.size, old=False)
            self.update_all(self.held[-1 - one], way)

    def update_all(self, held: Held, way: int) -> None:
        """Give all items of a group the values that they lack."""
        for index in range(self.size):
            if self.holds(held):
                self.update_item(held, index, index, index, self.way(way))

    @precondition(lambda self: any(map(self.holds, self.held)))
    @rule(one=which, reward=st.integers(0, 1))
    def complete(self, one: int, reward: int) -> None:
        """Finish one item of a group after the other, until it is complete or dropped."""
        held = self.choose([held for held in self.held if self.holds(held)], one)
        while self.holds(held) and (index := self.unfinished(held, 0)) is not None:
            self.add_to(held, index, [0], ends=True, reward=reward, wait=True)
        for index in range(self.size + self.model.settings.redundancy):
            if self.holds(held):
                self.update_item(held, index, reward, index, self.table)

    @precondition(lambda self: self.held)
    @rule(one=which, status=st.sampled_from(["rejected", "suspended"]))
    def give_up(self, one: int, status: str) -> None:
        """Fail a group, or leave it to others."""
        held = self.choose(self.held, one)
        self.model.end(held.number, held.holder, status)
        if status == "suspended":
            held.reservation.suspend()
        else:
            held.reservation.fail()

    @rule(way=which)
    def resume(self, way: int) -> None:
        """Go on with a group that was left."""
        table, group = self.way(way), self.model.resume()
        if isinstance(group, str):
            with pytest.raises(WaitTimeoutError):
                Reservation.resume(table, timeout=0)
            return
        reservation = Reservation.resume(table, timeout=0)
        assert reservation.group == group.number
        there = {index: (item.segments, item.finished) for index, item in group.items.items()}
        found = {at: (item.segments, item.finished) for at, item in reservation.progress.items()}
        assert {
            at: item for at, item in found.items() if at in there or item != (0, False)
        } == there
        for index, item in reservation.progress.items():
            assert item.columns["versions"].tolist() == group.items.get(index, _NOTHING).versions
        self.held.append(Held(reservation, group.holder))

    @rule(way=which)
    def die(self, way: int) -> None:
        """Reserve a group and never be heard of again."""
        if not self.model.room():
            return
        reservation = self.way(way).reserve(ttl=0.001, timeout=0)
        (holder,) = self.model.reserve([reservation.group], None)
        self.model.expire(reservation.group)
        self.held.append(Held(reservation, holder))
        self.wait_until("expired")

    # The learner.

    @rule(way=which, by=st.integers(0, 2))
    def publish(self, way: int, by: int) -> None:
        """Publish a version."""
        self.model.publish(self.model.version + by)
        self.ways[way % len(self.ways)].publish_version(self.model.version)

    @rule(
        way=which,
        rank=which,
        count=st.none() | st.integers(1, 6),
        unit=st.sampled_from(["groups", "groups", "tokens"]),
        leased=st.sampled_from([True, True, False]),
    )
    def sample(self, way: int, rank: int, count: int | None, unit: str, leased: bool) -> None:
        """Take a batch, or part of one, or get none."""
        model, rank, table = self.model, rank % self.ranks, self.way(way)
        most = model.settings.capacity
        if model.settings.max_lag is not None:
            most = (model.settings.max_lag + 1) * model.per_version
        count = model.settings.batch_groups // self.ranks if count is None else count
        size = ("groups", min(count * self.ranks, most))
        how: dict[str, Any] = {"groups": size[1]}
        # The shares of batches by tokens depend on how they are balanced.
        if unit == "tokens" and self.ranks == 1:
            size = ("tokens", MAX_TOKENS * self.size + count)
            how = {"tokens": size[1]}
        how |= {
            "rank": rank,
            "ranks": self.ranks,
            "lease": PATIENCE if leased else None,
            "timeout": 0,
        }
        expected = model.sample(size, rank, leased=leased)
        if isinstance(expected, str):
            with pytest.raises(WaitTimeoutError):
                table.sample(**how)
            return
        batch = table.sample(**how)
        made, share = expected
        self.check(batch, made, share)
        model.took(made, share, batch.group_ids.tolist(), leased=leased)
        if leased:
            self.leases.append(Leased(batch, made, share))
        else:
            self.acknowledged.update(batch.group_ids.tolist())

    @rule(
        way=which,
        count=st.none() | st.integers(1, 6),
        by=st.integers(0, 1),
        end=st.sampled_from([None, "ack", "ack", "nack"]),
    )
    def learn(self, way: int, count: int | None, by: int, end: str | None) -> None:
        """Have enough groups made for a batch, take it, and publish what it taught."""
        self.produce(way, 6, 2)
        for rank in range(self.ranks):
            before = len(self.leases)
            self.sample(way, rank, count, "groups", leased=True)
            if end is not None and len(self.leases) > before:
                self.end_lease(-1, end)
        self.publish(way, by)

    @precondition(lambda self: self.leases)
    @rule(one=which, way=st.sampled_from(["ack", "ack", "nack", "nack", "lapse"]))
    def end_lease(self, one: int, way: str) -> None:
        """Acknowledge a batch, give it back, or have its lease end."""
        leased = self.choose(self.leases, one)
        made, share = leased.made, leased.share
        if way == "lapse":
            if share.state == "out" and share.attempt == leased.attempt:
                leased.batch.extend(0.001)
                self.model.expire_lease(made, share)
                self.wait_until("expired_leases")
            return
        is_held = getattr(self.model, way)(made, share, leased.attempt)
        with contextlib.nullcontext() if is_held else pytest.raises(LeaseError):
            getattr(leased.batch, way)()
        if is_held and way == "ack":
            self.acknowledged.update(leased.batch.group_ids.tolist())

    @rule(numbers=st.lists(which, max_size=3))
    def remove(self, numbers: list[int]) -> None:
        """Remove some groups, those that are complete."""
        known = list(self.model.groups)
        chosen = [known[number % len(known)] for number in numbers if known]
        assert self.table.remove(chosen) == self.model.remove(chosen)

    @rule(way=which, by=st.integers(-1, 2))
    def restore(self, way: int, by: int) -> None:
        """Go on from an earlier version, or a later one: batches that it was made of are done."""
        version = max(self.model.version - by, 0)
        for leased in self.leases:
            is_out = leased.share.state == "out" and leased.share.attempt == leased.attempt
            if is_out and leased.made.target < version:
                self.acknowledged.update(leased.batch.group_ids.tolist())
        self.model.restore(version)
        self.ways[way % len(self.ways)].restore(self.model.version)

    # What happens to them.

    @rule(way=which)
    def pause(self, way: int) -> None:
        """Pause the table for a while."""
        self.way(way).pause()
        for call in (self.table.reserve, self.table.sample):
            with pytest.raises(WaitTimeoutError):
                call(timeout=0)
        self.way(way).resume()

    @precondition(lambda self: self.proxy is not None)
    @rule(after=st.integers(0, 300), abruptly=st.booleans())
    def cut(self, after: int, abruptly: bool) -> None:
        """Drop a connection without a word, after so many bytes: in the middle of a call."""
        assert self.proxy is not None
        self.proxy.abruptly, self.cutting = abruptly, True
        for link in self.proxy.links:
            link.limit = after

    @precondition(lambda self: self.kept)
    @rule(checkpoint=st.booleans())
    def restart(self, checkpoint: bool) -> None:
        """Close table and server, and open them again."""
        if checkpoint:
            self.table.checkpoint()
        if self.server is not None:
            self.server.close(restart=True)
        self.table.close()
        before = self.table
        self.restarts += 1
        self.open_table()
        self.ways[0] = self.table
        # Users in this process have to look for it.
        for held in self.held:
            if held.reservation._table is before._native:
                held.reservation = self.table.reservation(held.reservation)
        for leased in self.leases:
            if leased.batch._source is before._native:
                leased.batch._source = self.table._native

    # What holds.

    @invariant()
    def statistics_are_those_of_the_model(self) -> None:
        """Compare everything that is counted."""
        stats = self.table.stats()
        expected = self.model.stats()
        assert {name: getattr(stats, name) for name in expected} == expected
        assert stats.submitted == stats.running + stats.accepted + stats.rejected + stats.filtered
        # What was accepted waits for a batch, is in one, or has been in one.
        assert stats.accepted == stats.queued + stats.leased + stats.acked + stats.lost

    def check(self, batch: RolloutBatch, made: Batch, share: Share) -> None:
        """Compare a batch with what it should be."""
        numbers = batch.group_ids.tolist()
        assert self.batch_numbers.setdefault(made.number, batch.number) == batch.number
        assert not self.acknowledged.intersection(numbers), "a group was delivered twice"
        number, rank, attempt = batch.lease
        assert attempt > self.attempts.get((number, rank), 0)
        # A table that is opened again counts on at a number that no delivery had before.
        assert attempt == share.attempt or self.restarts
        self.attempts[number, rank] = attempt
        if share.groups is not None:
            assert numbers == share.groups
        elif self.ranks == 1:
            assert numbers == made.groups
        else:
            assert len(numbers) * self.ranks == len(made.groups)
            assert set(numbers) <= set(made.groups)
        assert batch.target == made.target
        lag = self.model.settings.max_lag
        if lag is not None:
            assert (batch.target - batch.versions).max(initial=0) <= lag
            assert batch.lag_oldest.max() <= lag
        groups = [self.model.groups[number] for number in numbers]
        items = [item for group in groups for item in group.whole]
        assert batch.lengths.tolist() == [len(item.versions) for item in items]
        assert batch.versions.tolist() == [v for item in items for v in item.versions]
        assert batch["reward"].tolist() == [item.reward for item in items]
        assert batch["score"].tolist() == [item.score for item in items for _ in item.versions]
        expected = [group.number % 1000 for group in groups for _ in range(group.tokens)]
        assert batch["tokens"].tolist() == expected

    def every_group_has_a_reason(self) -> None:
        """Compare what each producer hears with the counts."""
        last: dict[int, str] = {}
        for held in self.held:
            status = self.table.reservation(held.reservation.ticket).status
            assert status == self.model.status(held.number, held.holder)
            last[held.number] = status
        stats, reasons = self.table.stats(), Counter(last.values())
        if self.model.settings.on_expiry == "reject":
            suspended = stats.suspended
            assert reasons["expired"] == stats.expired + suspended
            dropped = sum(reasons[status] for status in OVER - {"over"}) - suspended
            assert dropped == stats.rejected + stats.filtered
        assert reasons["stale"] == stats.stale
        assert reasons["complete"] == stats.queued + stats.leased
        assert reasons["over"] == stats.acked + stats.lost

    def group(self, held: Held) -> Group:
        """The group of a reservation."""
        return self.model.groups[held.number]

    def holds(self, held: Held) -> bool:
        """Whether a reservation is still that of its group."""
        group = self.group(held)
        return group.status == "running" and group.holder == held.holder

    def is_late(self, name: str) -> bool:
        """Whether values of a column or field come late."""
        return name in self.model.settings.late

    def choose(self, some: list[Any], number: int) -> Any:
        """Choose one of some."""
        return some[number % len(some)]

    def unfinished(self, held: Held, choice: int) -> int | None:
        """Choose an item that may be added to, if there is one or it does not matter."""
        items = self.group(held).items
        most = self.size + self.model.settings.redundancy
        free = [at for at in range(most) if at not in items or not items[at].finished]
        if not free and not self.holds(held):
            free = [0]
        return self.choose(free, choice) if free else None

    def wait_until(self, name: str) -> None:
        """Wait until time has done what it should."""
        deadline = time.monotonic() + PATIENCE
        while getattr(self.table.stats(), name) < self.model.counts[name]:
            assert time.monotonic() < deadline, name


_NOTHING = type("Nothing", (), {"versions": []})


@pytest.mark.timeout(1800)
def test_a_table_does_what_the_model_says() -> None:
    examples, steps = tiers.size((15, 40), (800, 80))
    run_state_machine_as_test(
        Rollouts,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            # A server and its connections are opened for each example.
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
