"""Tables on several servers: one client sees them as one, and goes on when some of them go."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import Table, limiters, patterns, selectors
from echoic._links import link_options
from echoic.sharded.shards import _score
from polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forks import Forks

PATIENCE = 20.0


def table(**settings: Any) -> Table:
    return Table("t", np.int64(0), **{"capacity": 1000, "seed": 1, **settings})


def serve(*tables: Table, port: int = 0) -> echoic.Server:
    return echoic.Server(*tables, listen=f"tcp://127.0.0.1:{port}").start()


@pytest.fixture
def open_shards() -> Iterator[Any]:
    """Make a server of each table, and a client of all; `fill` puts items into one of them."""
    opened = contextlib.ExitStack()

    def make(*tables: Table, **options: Any) -> tuple[list[echoic.Server], echoic.Connection]:
        servers = [opened.enter_context(serve(one)) for one in tables]
        options = {"seed": 3, "reconnect": PATIENCE, **options}
        client = echoic.connect([server.address for server in servers], **options)
        opened.callback(close_soon, client)
        assert client.tables
        return servers, client

    yield make
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", echoic.errors.ShardWarning)
        opened.close()


def close_soon(client: echoic.Connection) -> None:
    with contextlib.suppress(echoic.EchoicError):
        client.close(0.2)


def sizes(client: echoic.Connection) -> list[int | None]:
    return [None if one is None else one.size for one in client.table("t").stats().shards]


def shard_of(batch: echoic.Batch, width: int = 1) -> Any:
    """The shards that the items of a batch say they are of; their number has so many bits."""
    bits = (batch.keys >> np.uint64(64 - width)).astype(int)
    # The lowest comes first.
    return sum(((bits >> at) & 1) << (width - 1 - at) for at in range(width))


def draws(client: echoic.Connection, count: int = 20, batch: int = 500) -> tuple[Any, Any]:
    """Values and probabilities of many draws."""
    batches = [client.table("t").sample(batch) for _ in range(count)]
    values = np.concatenate([one.data for one in batches])
    return values, np.concatenate([one.info.probabilities for one in batches])


def chi_square(values: Any, expected: Any) -> float:
    """How far counts are from the expected ones, in standard deviations of that statistic."""
    counts = np.bincount(values, minlength=len(expected))
    assert (counts[expected == 0] == 0).all()
    counts, expected = counts[expected > 0], expected[expected > 0] * len(values)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def test_unequal_shards_are_sampled_as_one_table(open_shards: Any) -> None:
    tables = [table(), table(), table()]
    _, client = open_shards(*tables)
    for one, (first, end) in zip(tables, [(0, 10), (10, 40), (40, 100)], strict=True):
        one.extend(np.arange(first, end))
    values, probabilities = draws(client)
    assert (np.abs(probabilities - 0.01) < 1e-12).all()
    # Beyond 5 about once in 100,000 seeds; this one was not chosen.
    assert abs(chi_square(values, np.full(100, 0.01))) < 5
    batch = client.table("t").sample(50)
    assert (batch.info.table_size, batch.info.total_weight) == (100, 100.0)
    assert (batch.weights == 1.0).all()
    assert len(client.table("t").sample(7, timeout=0)) == 7


def test_prioritized_shards_are_sampled_as_one_table(open_shards: Any) -> None:
    tables = [table(sampler=selectors.Prioritized(0.5)) for _ in range(2)]
    _, client = open_shards(*tables)
    priorities = np.arange(60.0)
    tables[0].extend(np.arange(10), priorities[:10])
    tables[1].extend(np.arange(10, 60), priorities[10:])
    expected = priorities**0.5 / (priorities**0.5).sum()
    values, probabilities = draws(client)
    assert np.allclose(probabilities, expected[values], rtol=1e-12)
    # Beyond 5 about once in 100,000 seeds; this one was not chosen.
    assert abs(chi_square(values, expected)) < 5
    batch = client.table("t").sample(50, beta=0.4)
    assert batch.info.total_weight == pytest.approx((priorities**0.5).sum())
    weights = (60 * batch.info.probabilities) ** -0.4
    assert np.allclose(batch.weights, weights / weights.max())


def test_probabilities_stay_true_while_priorities_change(open_shards: Any) -> None:
    tables = [table(sampler=selectors.Prioritized()) for _ in range(2)]
    _, client = open_shards(*tables)
    for one, first in zip(tables, (0, 10), strict=True):
        one.extend(np.arange(first, first + 10))
    own = [np.unique(one.sample(200).keys) for one in tables]
    estimates, generator = [], np.random.default_rng(4)
    for _ in range(400):
        batch = client.table("t").sample(64)
        # If probabilities are true, this is an unbiased estimate of the sum over all items of 1.
        estimates.append((1 / batch.info.probabilities).mean())
        for one, keys in zip(tables, own, strict=True):
            one.update_priorities(keys, generator.uniform(0.5, 5.0, len(keys)))
    error = np.std(estimates) / np.sqrt(len(estimates))
    # Beyond 5 less than once in a million seeds; this one was not chosen.
    assert abs(np.mean(estimates) - 20) < 5 * error


def test_without_any_weight_all_items_of_all_shards_count_alike(open_shards: Any) -> None:
    tables = [table(sampler=selectors.Prioritized()) for _ in range(2)]
    _, client = open_shards(*tables)
    tables[0].extend(np.arange(5), np.zeros(5))
    tables[1].extend(np.arange(5, 20), np.zeros(15))
    values, probabilities = draws(client, 4)
    assert (probabilities == 0.05).all()
    assert len(set(values.tolist())) == 20
    tables[1].update_priorities(tables[1].sample(1).keys, [1.0])
    # What is known of a shard is used for 50 ms.
    time.sleep(0.1)
    values, probabilities = draws(client, 1)
    assert len(set(values.tolist())) == 1
    assert (probabilities == 1.0).all()


def test_items_go_to_shards_in_turn(open_shards: Any) -> None:
    _, client = open_shards(table(), table(), table())
    for value in range(30):
        client.table("t").add(np.int64(value))
    client.flush()
    assert sizes(client) == [10, 10, 10]
    assert len(client.table("t")) == 30
    assert sorted(set(client.table("t").sample(2000).data.tolist())) == list(range(30))


def test_large_batches_are_cut_and_small_ones_take_turns(open_shards: Any) -> None:
    _, client = open_shards(table(), table(), table())
    client.table("t").extend(np.arange(900), np.arange(900.0))
    client.flush()
    assert sizes(client) == [300, 300, 300]
    for first in range(900, 960, 10):
        client.table("t").extend(np.arange(first, first + 10), np.arange(first, first + 10))
    client.flush()
    assert sizes(client) == [320, 320, 320]
    # Half of it would be less than a part may be.
    client.table("t").extend(np.arange(511), np.arange(511.0))
    client.flush()
    assert sorted(sizes(client)) == [320, 320, 831]
    batch = client.table("t").sample(5000)
    assert (batch.info.priorities == batch.data).all()


def test_a_bad_batch_changes_no_shard(open_shards: Any) -> None:
    _, client = open_shards(table(), table())
    with pytest.raises(echoic.errors.PriorityError):
        client.table("t").extend(np.arange(500), np.r_[np.ones(499), -1.0])
    with pytest.raises(echoic.errors.SpecError):
        client.table("t").extend(np.zeros(500))
    client.table("t").extend(np.arange(500))
    client.flush()
    keys = client.table("t").sample(100).keys
    with pytest.raises(echoic.errors.PriorityError):
        client.table("t").update_priorities(keys, np.r_[np.full(99, 9.0), np.nan])
    assert len(client.table("t")) == 500
    assert (client.table("t").sample(1000).info.priorities == 1.0).all()


def test_equal_keys_go_to_one_shard_from_every_client(open_shards: Any) -> None:
    _, client = open_shards(table(), table(), table())
    with echoic.connect(client.addresses) as other:
        for each in (client, other):
            for number in range(30):
                each.table("t").add(np.int64(number), shard_key=f"actor-{number}")
            each.table("t").extend(np.arange(100, 300), shard_key=7)
            each.flush()
    where: dict[int, set[int]] = {}
    batch = client.table("t").sample(9000)
    for value, shard in zip(batch.data.tolist(), shard_of(batch, 2).tolist(), strict=True):
        where.setdefault(value, set()).add(shard)
    assert all(len(shards) == 1 for shards in where.values())
    assert len(set().union(*(where[number] for number in range(30)))) == 3
    assert len(set().union(*(where[number] for number in range(100, 300)))) == 1
    with pytest.raises(TypeError, match="shard_key: expected a str, bytes or an int, got a float"):
        client.table("t").add(np.int64(0), shard_key=0.5)


def test_where_keys_go_is_the_same_in_every_release() -> None:
    def best(key: Any) -> int:
        return max(range(5), key=lambda number: _score(key, number))

    keys = ["a", "b", "actor-17", b"a", b"", 0, 1, -5, 1 << 70]
    assert [best(key) for key in keys] == [0, 2, 2, 0, 1, 3, 0, 0, 2]
    assert best(np.int64(1)) == best(1)


def test_changes_go_to_the_shard_that_has_the_item(open_shards: Any) -> None:
    tables = [table(sampler=selectors.Prioritized()) for _ in range(2)]
    _, client = open_shards(*tables)
    # Both give their items the same keys.
    tables[0].extend(np.arange(10))
    tables[1].extend(np.arange(10, 20))
    batch = client.table("t").sample(400)
    keys, first = np.unique(batch.keys, return_index=True)
    values = batch.data[first]
    assert len(keys) == 20
    assert client.table("t").update_priorities(keys, values + 1.0) == 20
    for one in tables:
        after = one.sample(200)
        assert (after.info.priorities == after.data + 1.0).all()
    assert client.table("t").remove(keys[values % 2 == 1]) == 10
    assert [len(one) for one in tables] == [5, 5]
    assert not (client.table("t").sample(300).data % 2).any()
    assert client.table("t").remove(keys[values % 2 == 1]) == 0


def test_a_shard_with_too_few_items_is_not_waited_for(open_shards: Any) -> None:
    tables = [table(limiter=limiters.MinSize(20)) for _ in range(2)]
    _, client = open_shards(*tables)
    with pytest.raises(echoic.errors.WaitTimeoutError) as raised:
        client.table("t").sample(4, timeout=0.05)
    assert raised.value.reason == "MIN_SIZE"
    tables[0].extend(np.arange(20))
    tables[1].extend(np.arange(100, 119))
    assert client.table("t").sample(200, timeout=PATIENCE).data.max() < 100
    tables[1].add(np.int64(119))
    time.sleep(0.1)
    batch = client.table("t").sample(200, timeout=PATIENCE)
    assert (batch.info.probabilities == 1 / 40).all()
    assert batch.data.max() >= 100


def test_a_sample_that_a_shard_keeps_waiting_loses_nothing(open_shards: Any) -> None:
    # Each allows a hundred samples beyond the first: the second shard soon has no more.
    ratio = limiters.SampleToInsertRatio(1.0, 1, error_buffer=100.0)
    tables = [table(limiter=ratio) for _ in range(2)]
    _, client = open_shards(*tables)
    for one in tables:
        one.extend(np.arange(50))
    tables[1].sample(100)
    with pytest.raises(echoic.errors.WaitTimeoutError, match=r"shard tcp://.*RATIO"):
        list(client.table("t").batches(40, prefetch=0, timeout=0.05))
    counted = tables[0].stats().samples
    with pytest.raises(echoic.errors.WaitTimeoutError):
        client.table("t").sample(40, timeout=0.05)
    # What the first shard gave is kept, not drawn again.
    assert tables[0].stats().samples == counted
    tables[1].extend(np.arange(40))
    assert len(client.table("t").sample(40, timeout=PATIENCE)) == 40
    assert tables[0].stats().samples == counted


def test_inserts_pass_over_a_shard_that_takes_none(open_shards: Any) -> None:
    tables = [table(limiter=limiters.Queue(5), capacity=5), table()]
    _, client = open_shards(*tables, window_bytes=64)
    for value in range(100):
        client.table("t").add(np.int64(value), timeout=PATIENCE)
    client.table("t").extend(np.arange(100, 300), timeout=PATIENCE)
    with pytest.raises(echoic.errors.WaitTimeoutError, match=r"shard 0 .* inserts to do"):
        client.flush(0.3)
    # Five are in the queue, and at most five fit into the window of its connection.
    assert sizes(client)[0] == 5
    assert 290 <= tables[1].stats().size <= 295


def test_a_batch_that_does_not_fit_says_how_much_of_it_is_on_its_way(open_shards: Any) -> None:
    tables = [Table.queue("t", np.int64(0), capacity=20) for _ in range(2)]
    _, client = open_shards(*tables, window_bytes=64)
    with pytest.raises(echoic.errors.WaitTimeoutError) as raised:
        client.table("t").extend(np.arange(900_000), timeout=0.3)
    # A window takes a block of any size when it is empty, so something of the first part went in.
    assert 0 < raised.value.stored < 900_000
    assert raised.value.stored == client.stats().items_sent


def test_a_queue_on_shards_gives_each_item_once(open_shards: Any) -> None:
    _, client = open_shards(
        *[Table.queue("t", np.int64(0), capacity=50) for _ in range(3)], window_bytes=4096
    )
    inserter = threading.Thread(
        target=lambda: [client.table("t").add(np.int64(value)) for value in range(600)]
    )
    inserter.start()
    seen = np.concatenate([client.table("t").sample(12, timeout=PATIENCE).data for _ in range(50)])
    inserter.join(PATIENCE)
    assert sorted(seen.tolist()) == list(range(600))


def test_all_items_of_queues_can_be_had_at_once(open_shards: Any) -> None:
    tables = [Table.queue("t", np.int64(0), capacity=50) for _ in range(3)]
    _, client = open_shards(*tables)
    tables[0].extend(np.arange(5))
    tables[2].extend(np.arange(5, 30))
    assert client.table("t").sample(30, timeout=PATIENCE).data.tolist() == list(range(30))


def test_trajectories_of_shards_are_one_batch(open_shards: Any) -> None:
    sampler = selectors.Fifo()
    tables = [
        Table("t", capacity=100, sampler=sampler, max_times_sampled=1, seed=1) for _ in range(2)
    ]
    _, client = open_shards(*tables)
    with client.trajectory_writer(num_keep_alive_refs=9) as writer:
        for length in (1, 3, 2, 2):
            for at in range(length):
                writer.append({"at": at, "of": length})
            history = writer.history
            writer.create_item("t", 1.0, {"at": history["at"][:], "of": history["of"][-1]})
            writer.end_episode()
    # An episode on each in turn.
    assert sizes(client) == [2, 2]
    batch = client.table("t").sample(4)
    assert isinstance(batch.data["at"], echoic.Ragged)
    assert sorted(batch.data["of"].tolist()) == [1, 2, 2, 3]
    for at, of in zip(batch.data["at"], batch.data["of"], strict=True):
        assert at.tolist() == list(range(of))


def test_structured_writers_take_turns_too(open_shards: Any) -> None:
    _, client = open_shards(*[Table("t", capacity=100, seed=1) for _ in range(2)])
    config = patterns.Config({"at": patterns.column("at")[-2:]}, table="t")
    with client.structured_writer([config]) as writer:
        for _ in range(4):
            for at in range(3):
                writer.append({"at": at})
            assert writer.episode_steps == 3
            writer.end_episode()
    assert sizes(client) == [4, 4]
    assert set(client.table("t").sample(50).data["at"][:, 0].tolist()) == {0, 1}


def test_a_sampler_gives_batches_of_all_shards(open_shards: Any) -> None:
    tables = [table(), table()]
    _, client = open_shards(*tables)
    client.table("t").extend(np.arange(600))
    client.flush()
    seen: set[int] = set()
    for prefetch, workers in ((0, 1), (3, 2)):
        with client.table("t").batches(64, prefetch=prefetch, workers=workers) as batches:
            for _ in range(80):
                seen.update(next(batches).data.tolist())
    assert len(seen) == 600


def test_servers_with_other_tables_are_refused(open_shards: Any) -> None:
    with pytest.raises(ValueError, match=r"has the tables \['u'\], but .* has \['t'\]"):
        open_shards(table(), Table("u", np.int64(0), capacity=5))
    with pytest.raises(echoic.errors.SpecError, match="items of another kind"):
        open_shards(table(), Table("t", np.int32(0), capacity=5))
    with pytest.raises(ValueError, match="expected each shard once"):
        echoic.connect(["tcp://127.0.0.1:1", "tcp://127.0.0.1:1"]).tables
    with pytest.raises(ValueError, match="expected addresses"):
        echoic.connect([]).tables
    with pytest.raises(ValueError, match="a stream needs one server, and there are 2"):
        echoic.connect(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]).stream(np.zeros(3))


def test_a_pickled_client_connects_anew(open_shards: Any) -> None:
    _, client = open_shards(table(), table())
    with pickle.loads(pickle.dumps(client)) as copy:
        copy.table("t").extend(np.arange(600))
    assert sizes(client) == [300, 300]
    assert copy.addresses == client.addresses


def test_a_pickled_client_inserts_nothing_into_a_draining_shard() -> None:
    with (
        serve(table()) as one,
        serve(table()) as other,
        echoic.connect([(one.address, "draining"), other.address]) as client,
    ):
        assert client.shards_drained == [True, False]
        with pickle.loads(pickle.dumps(client)) as copy:
            assert copy.shards_drained == [True, False]


class Named(echoic.Connection):
    """A connection with arguments of its own, as that to a cluster of Ray."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(list(addresses), link_options())

    def __reduce__(self) -> tuple[Any, ...]:
        return Named, (self.addresses,)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_table_of_a_closed_or_a_parents_connection_says_so_at_once(open_shards: Any) -> None:
    _, client = open_shards(table(), table())
    found = client.table("t")
    writer, begun = client.trajectory_writer(), client.trajectory_writer()
    begun.append(np.int64(1))
    named = Named(client.addresses)
    assert named.table("t").can_add()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: len(found),
        found.items,
        lambda: found.get([1]),
        found.stats,
        found.clear,
        lambda: found.remove([1]),
        lambda: found.update_priorities([1], [1.0]),
        lambda: found.can_sample(1),
        found.can_add,
        lambda: begun.append(np.int64(1)),
        begun.flush,
        lambda: found.add(np.int64(1)),
        lambda: found.add(np.int64(1), shard_key=1),
        lambda: found.extend(np.arange(3)),
        lambda: found.sample(1),
        lambda: writer.append(np.int64(1)),
    )

    def refused() -> None:
        for call in calls:
            with pytest.raises(echoic.errors.ClosedError):
                call()

    if hasattr(os, "fork"):
        if (child := os.fork()) == 0:
            signal.alarm(10)
            status = 1
            try:
                refused()
                for one in (client, named):
                    one.table("t").add(np.int64(1))
                    one.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    client.close()
    named.close()
    refused()
    begun.close()
    assert repr(begun) == "ShardedTrajectoryWriter(pending=0, closed)"


# Servers in processes of their own, which die.

SERVE = """
import sys
import echoic, numpy as np
name, port = sys.argv[1], int(sys.argv[2])
table = echoic.Table(name, None if name == "free" else np.int64(0), capacity=100_000, seed=1)
with echoic.Server(table, listen=f"tcp://127.0.0.1:{port}") as server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


class Process:
    """A server that can be killed, and started anew at the same address."""

    def __init__(self, forks: Forks, name: str) -> None:
        self._forks = forks
        self.name = name
        self.port = 0
        self.start()

    def start(self, port: int | None = None) -> None:
        """Start it, without waiting until it is there."""
        port = self.port if port is None else port
        self.popen = self._forks.run(SERVE, self.name, str(port))
        self._address = ""

    @property
    def address(self) -> str:
        """Where it is, as soon as it says so."""
        if not self._address:
            assert self.popen.stdout is not None
            self._address = self.popen.stdout.readline().strip()
            self.port = int(self._address.rpartition(":")[2])
        return self._address

    def kill(self) -> None:
        """As `kill -9` does."""
        self.popen.kill()
        self.popen.wait(PATIENCE)
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start(forks: Forks) -> Iterator[Callable[..., Process]]:
    """Start servers, and leave none behind."""
    processes: list[Process] = []

    def make(name: str = "t") -> Process:
        processes.append(Process(forks, name))
        return processes[-1]

    yield make
    for process in processes:
        if process.popen.poll() is None:
            process.kill()


@contextlib.contextmanager
def told(match: str) -> Iterator[Any]:
    """Expect a warning, somewhere in many statements."""
    with pytest.warns(echoic.errors.ShardWarning, match=match) as warned:
        yield warned


def stop(process: Any) -> None:
    """Stop a process with all its threads: one that goes on a moment longer could still answer."""
    process.popen.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{process.popen.pid}/task")
    if not threads.exists():
        pytest.skip("looks at threads in /proc")
    until(lambda: all("State:\tT" in (one / "status").read_text() for one in threads.iterdir()))


def test_sampling_and_inserting_go_on_when_a_shard_is_killed(start: Any, connect: Any) -> None:
    processes = [start() for _ in range(3)]
    client = connect([process.address for process in processes])
    client.table("t").extend(np.arange(900))
    client.flush()
    before = client.table("t").sample(600)
    assert set(shard_of(before, 2).tolist()) == {0, 1, 2}
    lost = (shard_of(before, 2) == 1).sum()

    def homes() -> list[int]:
        return [client._link.candidates(f"actor-{number}")[0].number for number in range(60)]

    first_homes = homes()

    with told("is away") as warned, client.table("t").batches(64) as batches:
        next(batches)
        processes[1].kill()
        end = time.monotonic() + PATIENCE
        while next(batches).info.table_size != 600:
            assert time.monotonic() < end
        for value in range(100):
            client.table("t").add(np.int64(value), timeout=PATIENCE)
        client.flush(PATIENCE)
        batch = client.table("t").sample(2000, timeout=PATIENCE)
    assert set(shard_of(batch, 2).tolist()) == {0, 2}
    # As of when the batch was split, which may be a moment ago.
    assert np.allclose(batch.info.probabilities * batch.info.table_size, 1.0, rtol=0.3)
    assert sizes(client)[1] is None
    # Only the keys of the dead shard have gone to others, and to both of these.
    moved = [(old, new) for old, new in zip(first_homes, homes(), strict=True) if old != new]
    assert len(moved) == first_homes.count(1)
    assert {new for _, new in moved} == {0, 2}
    assert [str(one.message).partition(": ")[2] for one in warned] == [
        f"shard 1 ({processes[1].address}) is away: its items can't be sampled"
    ]
    changed = client.table("t").update_priorities(before.keys, np.full(600, 2.0))
    assert changed == 600 - lost
    assert client.stats().dropped_changes == lost

    with told(rf"is back; so far {lost} changes of items were"):
        processes[1].start()
        until(lambda: client.shards_there == [True] * 3)
    client.table("t").extend(np.arange(10_000, 10_900))
    client.flush(PATIENCE)
    assert sizes(client)[1] == 300
    # The server is another now, and gives its first keys again: those of the old one are of nobody.
    assert client.table("t").remove(before.keys[shard_of(before, 2) == 1]) == 0
    assert sizes(client)[1] == 300
    assert set(shard_of(client.table("t").sample(600), 2).tolist()) == {0, 1, 2}


def test_what_a_dead_shard_had_not_acknowledged_is_delivered_when_it_is_back(
    start: Any, connect: Any
) -> None:
    processes = [start() for _ in range(2)]
    client = connect([process.address for process in processes])
    key = next(k for k in range(99) if client._link.candidates(k)[0].number == 1)
    with told("is away"):
        stop(processes[1])
        client.table("t").extend(np.arange(10), shard_key=key)
        time.sleep(0.05)
        processes[1].kill()
        until(lambda: client.shards_there == [True, False])
    with pytest.raises(
        echoic.errors.WaitTimeoutError, match=r"shard 1 .* which has 10 inserts to do"
    ):
        client.flush(0.2)
    with told("is back"):
        processes[1].start()
        client.flush(PATIENCE)
        until(lambda: client.shards_there == [True, True])
    assert sizes(client) == [0, 10]


def test_when_all_are_away_a_call_waits_for_as_long_as_it_may(start: Any, connect: Any) -> None:
    processes = [start() for _ in range(2)]
    client = connect([process.address for process in processes], reconnect=0.3)
    client.table("t").extend(np.arange(600))
    client.flush()
    with told("is away"):
        for process in processes:
            process.kill()
        until(lambda: not any(client.shards_there))
    writer, windows = client.trajectory_writer(), client.structured_writer([])
    for waiting in (
        lambda: client.table("t").sample(4, timeout=0.05),
        lambda: writer.append({"at": 1}, timeout=0),
        lambda: windows.append_batch({"at": np.arange(3)}, timeout=0),
        lambda: writer.end_episode(timeout=0),
        lambda: client.vector_writer(2, timeout=0),
    ):
        with pytest.raises(echoic.errors.WaitTimeoutError) as raised:
            waiting()
        assert raised.value.reason == "AWAY"
    for call in (lambda: client.table("t").sample(4), lambda: client.table("t").add(np.int64(1))):
        with pytest.raises(
            echoic.errors.DisconnectedError, match=r"all shards were away for 0.3 s"
        ):
            call()
    with told("is back"):
        processes[0].start()
        until(lambda: any(client.shards_there))
    client.table("t").add(np.int64(6), timeout=PATIENCE)
    client.flush()
    with told("is away"):
        processes[0].kill()
        until(lambda: not any(client.shards_there))
    # For how long they were away before does not count.
    with pytest.raises(echoic.errors.WaitTimeoutError):
        client.table("t").add(np.int64(8), timeout=0.05)
    with told("is back"):
        processes[0].start()
        until(lambda: any(client.shards_there))
    client.table("t").add(np.int64(7), timeout=PATIENCE)
    assert client.table("t").sample(1, timeout=PATIENCE).data.tolist() == [7]


def test_a_table_that_one_shard_closed_is_left_out_and_one_that_all_closed_is_an_error(
    open_shards: Any,
) -> None:
    # On a busy machine it takes a while to notice, and all that is sent until then must fit.
    tables = [table(capacity=100_000), table()]
    _, client = open_shards(*tables, reconnect=None)
    client.table("t").extend(np.arange(600))
    client.flush(PATIENCE)
    tables[1].close()
    sent = 600
    with told(r"a table of shard 1 \(.*\) is closed"):
        while all(client.shards_there):
            client.table("t").add(np.int64(sent))
            sent += 1
            time.sleep(0.001)
    for _ in range(10):
        client.table("t").add(np.int64(sent))
        sent += 1
    with pytest.raises(
        echoic.errors.ClosedError, match=r"a table of shard 1 .* inserts wait for it"
    ):
        client.flush(PATIENCE)
    assert client.table("t").sample(100).info.table_size < sent - 300
    # What was meant for it goes to the other now.
    client.remove_shard(1)
    client.flush(PATIENCE)
    until(lambda: len(tables[0]) == sent - 300)
    tables[0].close()
    with pytest.raises(echoic.errors.ClosedError, match="is closed"):
        client.table("t").sample(4)

    def insert_on() -> None:
        while True:
            client.table("t").add(np.int64(0))

    with (
        told(r"a table of shard 0 \(.*\) is closed"),
        pytest.raises(echoic.errors.ClosedError, match="tables of all shards are closed"),
    ):
        insert_on()


def test_a_shard_that_is_not_there_at_first_is_used_later(start: Any, connect: Any) -> None:
    one, two = start(), start()
    assert one.address != two.address
    two.kill()
    with told(r"shard 1 \(.*\) can't be reached"):
        client = connect([one.address, two.address], timeout=1.0)
    client.table("t").extend(np.arange(100), timeout=PATIENCE)
    two.start()
    until(lambda: client.shards_there == [True, True])
    client.table("t").extend(np.arange(100, 700), timeout=PATIENCE)
    client.flush(PATIENCE)
    assert sizes(client) == [400, 300]
    assert len(set(client.table("t").sample(15_000).data.tolist())) == 700


def test_a_shard_may_come_back_at_another_address(start: Any, connect: Any) -> None:
    processes = [start() for _ in range(2)]
    client = connect(lambda: [process.address for process in processes])
    client.table("t").extend(np.arange(600))
    client.flush()
    batch = client.table("t").sample(100)
    with told("is away"):
        processes[1].kill()
        until(lambda: client.shards_there == [True, False])
    with told("is back"):
        processes[1].start(port=0)
        until(lambda: client.shards_there == [True, True])
    assert client.addresses == [process.address for process in processes]
    client.table("t").extend(np.arange(600), timeout=PATIENCE)
    client.flush(PATIENCE)
    assert sizes(client) == [600, 300]
    old = batch.keys[shard_of(batch) == 1]
    assert len(old) > 0
    assert client.table("t").remove(old) == 0


def test_an_episode_waits_for_its_shard_and_the_next_one_does_not(start: Any, connect: Any) -> None:
    processes = [start("free") for _ in range(2)]
    client = connect([process.address for process in processes])

    def free() -> list[Any]:
        return [None if one is None else one.size for one in client.table("free").stats().shards]

    def episode(writer: Any, number: int) -> int:
        for at in range(5):
            writer.append({"at": 10 * number + at})
            writer.create_item("free", 1.0, {"at": writer.history["at"][-1:]})
        return int(writer._shard.number)

    writer = client.trajectory_writer()
    writer.append({"at": -1})
    first = int(writer._shard.number)
    # What comes from here on is not acknowledged.
    stop(processes[first])
    assert episode(writer, 0) == first
    with told("is away"):
        processes[first].kill()
        writer.end_episode()
        until(lambda: not all(client.shards_there))
    for number in range(1, 4):
        assert episode(writer, number) == 1 - first
        writer.end_episode(timeout=PATIENCE)
    assert free()[1 - first] == 15
    with pytest.raises(echoic.errors.WaitTimeoutError, match=f"shard {first} "):
        writer.flush(timeout=0.2)
    with told("is back"):
        processes[first].start()
        writer.flush(timeout=PATIENCE)
        until(lambda: all(client.shards_there))
    # All that the dead server had not acknowledged.
    assert free() == ([5, 15] if first == 0 else [15, 5])


def test_what_all_shards_are_told_a_dead_one_hears_later_or_a_warning_says_so(
    start: Any, connect: Any
) -> None:
    processes = [start() for _ in range(2)]
    client = connect([process.address for process in processes])
    with told("is away"):
        processes[1].kill()
        until(lambda: client.shards_there == [True, False])
    with told(r"shard 1 \(.*\) is away, so `clear` was not done there"):
        client.table("t").clear()
    client.table("t").publish_version(5)
    with told("is back"):
        processes[1].start()
        until(lambda: all(client.shards_there))
    assert [one.version for one in client.table("t").stats().shards] == [5, 5]


def test_a_shard_that_comes_back_with_other_tables_is_left_out(start: Any, connect: Any) -> None:
    processes = [start() for _ in range(2)]
    client = connect([process.address for process in processes])
    client.table("t").extend(np.arange(600))
    client.flush()
    with told("is away"):
        processes[1].kill()
        until(lambda: client.shards_there == [True, False])
    processes[1].name = "u"
    with told(
        r"shard 1 \(.*\) can't be used: .* has the tables \[\"u\"\], and had \[\"t\"\]"
    ) as said:
        processes[1].start()
        until(lambda: client.shards_there == [True, False] and len(said) > 0)
    assert client.table("t").sample(50, timeout=PATIENCE).info.table_size == 300
    processes[1].kill()
    processes[1].name = "t"
    processes[1].start()
    with told("is back"):
        until(lambda: all(client.shards_there))
