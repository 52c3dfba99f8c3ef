"""Shards that move, join, are drained and go: nothing is lost, and probabilities stay true."""

from __future__ import annotations

import contextlib
import gc
import pickle
import random
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import Table, selectors
from echoic.sharded.places import Place, read_places
from forks import Killable
from polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forks import Forks

PATIENCE = 30.0


def table(**settings: Any) -> Table:
    return Table("t", np.int64(0), **{"capacity": 100_000, "seed": 1, **settings})


def numbers(*tables: Table) -> list[int]:
    """All items of some tables, sorted."""
    parts = [one.get(one.items().keys).data for one in tables if len(one)]
    return sorted(np.concatenate(parts).tolist()) if parts else []


def homes(client: echoic.Connection, count: int = 300) -> list[int]:
    """Where items go that have a key."""
    return [client._link.candidates(number)[0].number for number in range(count)]


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve tables, each with a server of its own; its address."""
    with contextlib.ExitStack() as opened:

        def make(one: Table, address: str | None = None) -> str:
            server = echoic.Server(one, listen=address or "tcp://127.0.0.1:0")
            return opened.enter_context(server.start()).addresses[0]

        yield make


def test_keys_keep_their_meaning_while_shards_join(serve: Any, connect: Any) -> None:
    tables = [table() for _ in range(9)]
    known = [serve(tables[0])]
    client = connect(lambda: known, refresh=None)
    given: list[tuple[Any, Any]] = []
    for number, one in enumerate(tables):
        if number:
            known.append(serve(one))
            client.refresh()
        assert client.shards_there == [True] * (number + 1)
        one.extend(np.arange(100 * number, 100 * number + 100))
        items = client.table("t").items()
        given.append((items.keys, client.table("t").get(items.keys).data))
        # Also those that were given when there were fewer shards.
        for keys, values in given:
            assert client.table("t").get(keys).data.tolist() == values.tolist()
    keys = given[-1][0]
    assert len(set(keys.tolist())) == 900
    assert client.table("t").update_priorities(given[2][0], np.full(300, 2.0)) == 300
    assert client.table("t").remove(given[0][0]) == 100
    assert numbers(*tables) == list(range(100, 900))


def test_who_joins_gets_inserts_and_is_sampled_with_true_probabilities(
    serve: Any, connect: Any
) -> None:
    tables = [table(sampler=selectors.Prioritized(1.0)) for _ in range(4)]
    for number, one in enumerate(tables):
        values = np.arange(100 * number, 100 * number + 100)
        one.extend(values, 1.0 + values)
    addresses = [serve(one) for one in tables]
    places: list[Any] = addresses[:2]
    client = connect(lambda: places, refresh=None)
    # The weight of all items of the first so many shards.
    totals = [float(sum(range(1, 100 * count + 1))) for count in range(5)]
    seen: set[int] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in (2, 3, 4):
            places = addresses[:count]
            client.refresh()
            for _ in range(30):
                batch = client.table("t").sample(200, timeout=PATIENCE)
                # Each batch is of one whole, and says of which.
                total = totals[batch.info.table_size // 100]
                assert batch.info.table_size == 100 * count
                expected = batch.info.priorities / total
                assert np.allclose(batch.info.probabilities, expected, rtol=1e-12)
            drawn = client.table("t").sample(20_000, timeout=PATIENCE).data
            shares = np.bincount(drawn // 100, minlength=4) / len(drawn)
            true = np.diff(totals[: count + 1]) / totals[count]
            assert np.abs(shares[:count] - true).max() < 0.02
            seen.update(np.unique(drawn // 100).tolist())
        # One goes: it is sampled no more from then on, and nothing else changes.
        places = [addresses[0], None, *addresses[2:]]
        client.refresh()
        batch = client.table("t").sample(500, timeout=PATIENCE)
    total = totals[4] - (totals[2] - totals[1])
    assert batch.info.table_size == 300
    assert np.allclose(batch.info.probabilities, batch.info.priorities / total, rtol=1e-12)
    assert seen == {0, 1, 2, 3}
    client.table("t").extend(np.arange(1000, 1900))
    client.flush(PATIENCE)
    assert [len(one) for one in tables] == [400, 100, 400, 400]
    assert client.addresses == [addresses[0], "", *addresses[2:]]


def test_new_shards_are_found_without_asking_and_unasked_after_a_while(
    serve: Any, connect: Any
) -> None:
    addresses = [serve(table()) for _ in range(2)]
    places = addresses[:1]
    client = connect(lambda: list(places), refresh=0.05)
    places.append(addresses[1])
    until(lambda: client.shards_there == [True, True])
    copy = pickle.loads(pickle.dumps(connect(addresses)))
    with copy:
        assert copy.addresses == addresses


def test_a_shard_that_can_not_be_reached_yet_joins_later(serve: Any, connect: Any) -> None:
    one, other = table(), table()
    address = "tcp://127.0.0.1:0"
    with echoic.Server(table(), listen=address) as gone:
        nowhere = gone.addresses[0]
    places = [serve(one)]
    client = connect(lambda: list(places), refresh=0.05)
    places.append(nowhere)
    with pytest.warns(
        echoic.errors.ShardWarning, match="shard 1 .* can't be reached; it is used as soon"
    ):
        client.refresh()
    client.table("t").extend(np.arange(200))
    client.flush(PATIENCE)
    assert client.shards_there == [True, False]
    port = int(nowhere.rpartition(":")[2])
    serve(other, f"tcp://127.0.0.1:{port}")
    until(lambda: client.shards_there == [True, True])
    client.table("t").extend(np.arange(200, 800))
    client.flush(PATIENCE)
    assert (len(one), len(other)) == (500, 300)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([], "expected addresses of servers"),
        (["", None], "expected addresses of servers"),
        (["tcp://a:1", "tcp://a:1"], "expected each shard once"),
        ([f"tcp://a:{port}" for port in range(1, 300)], "at most 256 shards, got 299"),
        ([("tcp://a:1", "drained")], "expected addresses of servers, each a str"),
        ([7], "expected addresses of servers, each a str"),
    ],
)
def test_what_names_no_shards_is_refused(said: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_places(said)


def test_what_is_said_of_shards_is_understood() -> None:
    places = read_places(["tcp://a:1", ("tcp://b:1", "draining"), None, ""])
    assert places == [
        Place("tcp://a:1"),
        Place("tcp://b:1", draining=True),
        Place(None),
        Place(None),
    ]


def test_who_does_not_know_where_shards_are_is_complained_of_once_and_asked_again(
    serve: Any, connect: Any
) -> None:
    addresses = [serve(table()) for _ in range(2)]
    answers: list[Any] = [addresses[:1]]
    client = connect(lambda: answers[-1], refresh=None)
    for wrong in ([], None, 7, [f"tcp://a:{port}" for port in range(1, 300)]):
        answers.append(wrong)
        with pytest.warns(echoic.errors.ShardWarning, match="can't find out"):
            client.refresh()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.refresh()
    assert client.shards_there == [True]
    answers.append(addresses)
    client.refresh()
    assert client.shards_there == [True, True]


def test_a_drained_shard_is_sampled_and_gets_no_inserts(serve: Any, connect: Any) -> None:
    tables = [table() for _ in range(3)]
    client = connect([serve(one) for one in tables])
    client.table("t").extend(np.arange(900))
    client.flush(PATIENCE)
    before = homes(client)
    client.drain(1)
    assert client.shards_drained == [False, True, False]
    after = homes(client)
    # Only the keys of that shard have gone to others, and to both of them.
    assert {new for old, new in zip(before, after, strict=True) if old == 1} == {0, 2}
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 1)
    client.table("t").extend(np.arange(900, 1800))
    for number in range(1800, 1900):
        client.table("t").add(np.int64(number), shard_key=number)
        client.table("t").add(np.int64(number + 100))
    client.flush(PATIENCE)
    assert len(tables[1]) == 300
    batch = client.table("t").sample(5000)
    assert batch.info.table_size == 2000
    assert np.allclose(batch.info.probabilities, 1 / 2000)
    drawn = np.isin(batch.data, numbers(tables[1])).mean()
    assert abs(drawn - 3 / 20) < 0.03
    client.drain(1, drained=False)
    assert homes(client) == before
    with pytest.raises(IndexError, match="expected a shard below 3, got 3"):
        client.drain(3)


def test_items_of_a_drained_shard_go_to_the_others_with_priorities_and_versions(
    serve: Any, connect: Any
) -> None:
    tables = [table(sampler=selectors.Prioritized(1.0)) for _ in range(3)]
    client = connect([serve(one) for one in tables])
    for version in range(3):
        values = np.arange(3000 * version, 3000 * version + 3000)
        client.table("t").extend(values, 1.0 + values, version=version)
    client.flush(PATIENCE)
    with pytest.raises(ValueError, match=r"shard 1 .* takes inserts, .* drain it first"):
        client.move_items(1, "t")
    client.drain(1)
    assert client.move_items(1, "t", timeout=PATIENCE) == 3000
    assert [len(one) for one in tables] == [4500, 0, 4500]
    assert numbers(*tables) == list(range(9000))
    for one in tables:
        items = one.items()
        values = one.get(items.keys).data if len(one) else np.zeros(0, np.int64)
        assert (items.info.priorities == 1.0 + values).all()
        assert (items.info.versions == values // 3000).all()
    assert client.move_items(1, "t", timeout=PATIENCE) == 0
    with pytest.raises(IndexError, match="expected a shard below 3, got 3"):
        client.move_items(3, "t")


def test_trajectories_are_not_moved(serve: Any, connect: Any) -> None:
    tables = [Table("free", None, capacity=1000, seed=1) for _ in range(2)]
    client = connect([serve(one) for one in tables])
    tables[0].add({"at": np.arange(3)})
    client.drain(0)
    with pytest.raises(
        echoic.errors.SpecError, match="for tables with a spec, whose items are all alike"
    ):
        client.move_items(0, "free")
    assert [len(one) for one in tables] == [1, 0]


def test_nobody_is_told_of_a_drained_shard_that_goes(connect: Any) -> None:
    tables = [table() for _ in range(2)]
    servers = [echoic.Server(one, listen="tcp://127.0.0.1:0").start() for one in tables]
    addresses = [server.address for server in servers]
    said: list[Any] = list(addresses)
    client = connect(lambda: said, refresh=None)
    client.table("t").extend(np.arange(600))
    client.flush(PATIENCE)
    said[1] = (addresses[1], "draining")
    client.refresh()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        servers[1].close()
        until(lambda: client.shards_there == [True, False])
        client.table("t").extend(np.arange(600, 700))
        assert client.table("t").sample(50, timeout=PATIENCE).info.table_size >= 300
        said[1] = None
        client.refresh()
        client.flush(PATIENCE)
        client.table("t").clear()
        assert client.table("t").stats().shards[1] is None
        client.close(PATIENCE)
    servers[0].close()


def test_that_all_who_are_there_are_drained_is_said(serve: Any, connect: Any) -> None:
    client = connect([serve(table())], reconnect=0.2)
    client.drain(0)
    with pytest.raises(
        echoic.errors.WaitTimeoutError, match="all shards that take inserts are away"
    ):
        client.table("t").add(np.int64(1), timeout=0.05)
    with pytest.raises(
        echoic.errors.DisconnectedError, match="all shards that take inserts were away"
    ):
        client.table("t").add(np.int64(1))


def test_a_client_goes_from_address_to_address_of_a_server_and_keys_stay_good(
    connect: Any, tmp_path: Path
) -> None:
    one = table()
    addresses = [
        f"shm://moves-{tmp_path.name}",
        "tcp://127.0.0.1:0",
        f"unix://{tmp_path / 'socket'}",
    ]
    with echoic.Server(one, listen=addresses) as server:
        client = connect([server.addresses[0]])
        client.table("t").extend(np.arange(100))
        client.flush()
        keys = client.table("t").sample(50).keys
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for turn in range(1, 9):
                client.table("t").extend(np.arange(100 * turn, 100 * turn + 100))
                assert client.move(0, server.addresses[turn % 3])
                assert client.table("t").sample(500, timeout=PATIENCE).info.table_size >= 100
            client.flush(PATIENCE)
        assert numbers(one) == list(range(900))
        assert client.table("t").update_priorities(keys, np.full(50, 2.0)) == 50
        client.close()


def test_what_a_removed_shard_had_not_acknowledged_goes_to_another(
    serve: Any, connect: Any
) -> None:
    tables = [table(), table()]
    addresses = [serve(tables[0])]
    server = echoic.Server(tables[1], listen="tcp://127.0.0.1:0").start()
    addresses.append(server.address)
    client = connect(addresses)
    keyed = homes(client).index(1)
    # It takes nothing, so what goes there waits.
    tables[1].pause()
    for number in range(50):
        client.table("t").add(np.int64(number), shard_key=keyed)
    with pytest.raises(echoic.errors.WaitTimeoutError, match=r"shard 1 .* which has 50 inserts"):
        client.flush(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", echoic.errors.ShardWarning)
        server.close(0.1)
        until(lambda: client.shards_there == [True, False])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.remove_shard(1)
        client.flush(PATIENCE)
        assert client.shards_drained == [False, True]
        assert repr(client) == f"Connection({client.addresses[0]})"
        client.close(PATIENCE)
    assert numbers(tables[0]) == list(range(50))
    with pytest.raises(ValueError, match="no other shard is there"):
        connect([addresses[0]]).remove_shard(0)


def test_an_episode_of_a_removed_shard_is_ended_elsewhere(connect: Any) -> None:
    tables = [Table("free", None, capacity=1000, seed=1) for _ in range(2)]
    servers = [echoic.Server(one, listen="tcp://127.0.0.1:0").start() for one in tables]
    client = connect([server.address for server in servers])
    writer = client.trajectory_writer(num_keep_alive_refs=3)
    for at in range(3):
        writer.append({"at": at})
    first = int(writer._shard.number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", echoic.errors.ShardWarning)
        servers[first].close()
        until(lambda: not client.shards_there[first])
        client.remove_shard(first)
        for at in range(3, 6):
            writer.append({"at": at})
            writer.create_item("free", 1.0, {"at": writer.history["at"][-3:]})
        writer.end_episode(timeout=PATIENCE)
        writer.flush(timeout=PATIENCE)
        writer.append({"at": 100})
        assert writer._shard.number == 1 - first
    found = tables[1 - first].get(tables[1 - first].items().keys).data["at"]
    assert found.tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    client.close(PATIENCE)
    for server in servers:
        server.close()


def test_a_client_that_nobody_has_any_more_leaves_no_thread(serve: Any) -> None:
    address = serve(table())
    client = echoic.connect(lambda: [address], refresh=0.02)
    assert client.tables
    shards = weakref.ref(client._link)
    reconnector = client._link._reconnector
    assert reconnector is not None
    assert reconnector.is_alive()
    client.flush()
    del client
    until(lambda: gc.collect() >= 0 and shards() is None)
    reconnector.join(PATIENCE)
    assert not reconnector.is_alive()


# Servers that keep journals, in processes of their own.

SERVE = """
import sys, warnings
import echoic, numpy as np
warnings.simplefilter("ignore", echoic.errors.JournalWarning)
step = {"at": np.int64(0), "who": np.int64(0)}
rows = echoic.Table("rows", step, capacity=500_000, durability="async", seed=1)
windows = echoic.Table("windows", None, capacity=500_000, durability="async", seed=2)
server = echoic.Server(
    rows, windows, listen="tcp://127.0.0.1:0", journal=sys.argv[1]
)
with server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def start(forks: Forks, tmp_path: Path) -> Iterator[Callable[[], Killable]]:
    """Start servers, and leave none behind."""
    shards: list[Killable] = []

    def make() -> Killable:
        shards.append(Killable(forks.run, SERVE, f"{tmp_path}/shard-{len(shards)}"))
        return shards[-1]

    yield make
    for shard in shards:
        shard.kill()


# So many rows are inserted fast.
_ENOUGH = 100_000


class Worker(threading.Thread):
    """Inserts rows, alone and together, and windows of episodes, until it is to stop."""

    def __init__(self, client: echoic.Connection) -> None:
        super().__init__()
        self._client = client
        self.over = threading.Event()
        self.rows = 0
        self.windows = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._insert()
        except BaseException as error:  # the test raises it
            self.error = error

    def _insert(self) -> None:
        writer = self._client.trajectory_writer(num_keep_alive_refs=2)
        while not self.over.is_set():
            for _ in range(20):
                step = {"at": np.int64(self.rows), "who": np.int64(-self.rows)}
                self._client.table("rows").add(step, timeout=PATIENCE)
                self.rows += 1
            at = np.arange(self.rows, self.rows + 150)
            self._client.table("rows").extend({"at": at, "who": -at}, timeout=PATIENCE)
            self.rows += 150
            for _ in range(5):
                writer.append({"at": self.windows}, timeout=PATIENCE)
                writer.create_item("windows", 1.0, {"at": writer.history["at"][-1:]})
                self.windows += 1
            writer.end_episode(timeout=PATIENCE)
            # However long the test takes, all that came fits into the tables.
            time.sleep(0.002 if self.rows < _ENOUGH else 0.1)
        writer.flush(timeout=PATIENCE)
        writer.close()


def content(addresses: list[str]) -> tuple[list[int], list[int]]:
    """What servers have in their tables, each item found whole."""
    rows: list[int] = []
    windows: list[int] = []
    for address in addresses:
        with echoic.connect(address) as client:
            there = client.table("rows").get(client.table("rows").items().keys).data
            assert (there["at"] == -there["who"]).all()
            rows.extend(there["at"].tolist())
            if len(client.table("windows")):
                keys = client.table("windows").items().keys
                windows.extend(client.table("windows").get(keys).data["at"].ravel().tolist())
    return sorted(rows), sorted(windows)


@pytest.mark.filterwarnings("ignore::echoic.errors.ShardWarning")
@pytest.mark.parametrize("seed", [1, 2])
def test_all_is_there_once_while_shards_die_come_back_elsewhere_join_and_go(
    start: Any, connect: Any, seed: int
) -> None:
    moments = random.Random(seed)
    shards = [start() for _ in range(2)]
    removed: set[int] = set()
    drained: set[int] = set()

    def where() -> list[Any]:
        named: list[Any] = []
        for number, shard in enumerate(shards):
            name = (shard.address, "draining") if number in drained else shard.address
            named.append(None if number in removed else name)
        return named

    client = connect(where, refresh=0.1)
    worker = Worker(client)
    worker.start()
    try:
        for turn in range(7):
            time.sleep(moments.uniform(0.05, 0.2))
            if turn in {1, 4}:
                shards.append(start())
            elif turn == 5:
                drained.add(0)
            else:
                number = moments.randrange(len(shards))
                shards[number].kill()
                time.sleep(moments.uniform(0.02, 0.12))
                shards[number].start()
            batch = client.table("rows").sample(64, timeout=PATIENCE)
            assert (batch.data["at"] == -batch.data["who"]).all()
            # Of what is being inserted into, a batch is of one moment but for what came meanwhile.
            assert np.allclose(batch.info.probabilities * batch.info.table_size, 1.0, rtol=0.5)
    finally:
        worker.over.set()
        worker.join(2 * PATIENCE)
    assert worker.error is None
    until(lambda: all(client.shards_there))
    client.flush(PATIENCE)
    rows, windows = content([shard.address for shard in shards])
    # What had no acknowledgement when its shard died is there once, too.
    assert rows == list(range(worker.rows))
    assert windows == list(range(worker.windows))
    # The drained one has had nothing since, and all of it may go.
    size = client.table("rows").stats().shards[0].size
    removed.add(0)
    client.refresh()
    assert client.shards_there == [False, True, True, True]
    batch = client.table("rows").sample(500, timeout=PATIENCE)
    assert batch.info.table_size == len(rows) - size
    assert np.allclose(batch.info.probabilities, 1 / batch.info.table_size)
