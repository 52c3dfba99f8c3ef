"""Tables over every transport: what works in this process works from another."""

from __future__ import annotations

import contextlib
import itertools
import math
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import trustme
from echoic import Table, limiters, selectors
from echoic.batches import Batches
from echoic.sharded import ShardedTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A server that is closed is a shard that goes.
pytestmark = pytest.mark.filterwarnings("ignore::echoic.errors.ShardWarning")

STEP = {"obs": np.zeros(3, np.float32), "at": np.int64(0)}


@pytest.fixture(params=["process", "tcp", "tls", "unix", "shm", "shards"])
def open_tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Make a server with tables, and a client of it through one of the transports."""
    opened: list[Any] = []

    papers: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    if request.param == "tls":
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
        papers = {"tls": echoic.Tls(ca=tmp_path / "ca.pem"), "token": b"a token of tests"}
        both = tmp_path / "server.pem"
        settings = {"token": papers["token"], "tls": echoic.Tls(certificate=both, key=both)}

    def make(*tables: Table, **options: Any) -> tuple[echoic.Server, echoic.Connection]:
        address = {
            "process": None,
            "tcp": "tcp://127.0.0.1:0",
            "tls": "tls://localhost:0",
            "shards": "tcp://127.0.0.1:0",
            "unix": f"unix://{tmp_path}/echoic",
            "shm": f"shm://tables-{tmp_path.name}-{len(opened)}",
        }[request.param]
        server = echoic.Server(*tables, listen=address, **settings).start()
        opened.append(server)
        if address is None:
            client = echoic.connect(server)
        elif request.param == "shards":
            # One shard is a client as any other.
            client = echoic.connect(server.addresses, **options)
        else:
            client = echoic.connect(server.address, **papers, **options)
        opened.append(client)
        return server, client

    yield make
    for one in reversed(opened):
        one.close()


def steps(count: int, first: int = 0) -> dict[str, Any]:
    at = np.arange(first, first + count)
    return {"obs": np.repeat(at, 3).reshape(count, 3).astype(np.float32), "at": at}


def test_what_is_inserted_is_sampled(open_tables: Any) -> None:
    table = Table("t", STEP, capacity=100, sampler=selectors.Fifo(), max_times_sampled=1)
    _, client = open_tables(table)
    client.table("t").add({"obs": np.full(3, 7, np.float32), "at": 7}, 2.0, version=5)
    client.table("t").extend(steps(9, 8), np.arange(9.0))
    client.flush()
    batch = client.table("t").sample(10)
    assert batch.data["at"].tolist() == list(range(7, 17))
    assert (batch.data["obs"] == batch.data["at"][:, None]).all()
    assert batch.data["obs"].dtype == np.float32
    assert batch.info.priorities.tolist() == [2.0, *np.arange(9.0)]
    assert batch.info.versions.tolist() == [5] + [0] * 9
    assert batch.info.times_sampled.tolist() == [1] * 10
    assert client.table("t").stats().deletions == 10


def test_what_is_sampled_after_an_update_comes_after_it(open_tables: Any) -> None:
    _, client = open_tables(Table("t", STEP, capacity=100, sampler=selectors.Prioritized(), seed=1))
    client.table("t").extend(steps(100))
    client.flush()
    items = client.table("t").items()
    # More than may be under way at a time.
    for chosen in range(100):
        priorities = np.zeros(100)
        priorities[chosen] = 1.0
        assert client.table("t").update_priorities(items.keys, priorities, wait=False) is None
        if chosen % 10 == 0:
            assert set(client.table("t").sample(3).data["at"].tolist()) == {chosen}
    client.flush()
    assert client.table("t").items().info.priorities.tolist() == [0.0] * 99 + [1.0]
    with pytest.raises(echoic.errors.PriorityError):
        client.table("t").update_priorities(items.keys[:1], [-1.0], wait=False)
    client.close()


def test_threads_that_share_a_sampler_each_get_their_own_batches() -> None:
    numbers = itertools.count()
    lock = threading.Lock()

    def start() -> Any:
        with lock:
            number = next(numbers)
        return lambda _: number

    taken: list[int] = []
    errors: list[BaseException] = []
    batches = Batches(lambda _: None, start, prefetch=1)  # type: ignore[arg-type, return-value]

    def take() -> None:
        try:
            taken.extend(next(batches) for _ in range(500))  # type: ignore[misc]
        except BaseException as error:  # the test shows it
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=take) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    finally:
        sys.setswitchinterval(interval)
        batches.close()
    assert errors == []
    assert len(set(taken)) == len(taken) == 3000


def test_updates_that_nobody_waits_for_are_not_lost_in_silence() -> None:
    table = Table("t", STEP, capacity=10)
    server = echoic.Server(table, listen="tcp://127.0.0.1:0").start()
    client = echoic.connect(server.address, reconnect=0.5)
    remote = client.table("t")
    table.add(STEP)
    keys = table.items().keys
    server.close()
    remote.update_priorities(keys, [2.0], wait=False)
    with pytest.raises((echoic.errors.WaitTimeoutError, echoic.errors.DisconnectedError)):
        client.flush(0.1)
    with pytest.raises(echoic.errors.DisconnectedError):
        client.flush(20)
    with contextlib.suppress(echoic.EchoicError):
        client.close(1)


def test_a_batch_that_can_never_be_is_an_error_and_not_a_no(open_tables: Any) -> None:
    _, client = open_tables(Table("q", STEP, capacity=3, limiter=limiters.Queue(3)))
    assert client.table("q").can_sample(3) is False
    if not isinstance(client.table("q"), ShardedTable):
        # Of several servers none is asked for what is more than its share.
        with pytest.raises(echoic.errors.LimiterError):
            client.table("q").can_sample(4)
    client.table("q").extend(steps(3))
    client.flush()
    assert client.table("q").can_sample(3) is True
    assert client.table("q").can_add() is False


def test_items_are_listed_and_read_without_being_sampled(open_tables: Any) -> None:
    _, client = open_tables(Table("t", STEP, capacity=100), Table("w", capacity=10))
    client.table("t").extend(steps(70), np.arange(70.0), version=3)
    client.table("w").add({"at": 5}, 2.0)
    client.flush()
    table = client.table("t")
    items = table.items()
    assert len(items) == 70
    assert items.info.priorities.tolist() == list(range(70))
    assert set(items.info.versions.tolist()) == {3}
    assert items.info.times_sampled.sum() == 0
    assert np.isnan(items.info.probabilities).all()
    assert table.items(10).keys.tolist() == items.keys[:10].tolist()
    assert len(table.items(0)) == 0
    read = table.get(items.keys[[5, 2]])
    assert read.data["at"].tolist() == [5, 2]
    assert read.info.priorities.tolist() == [5.0, 2.0]
    # One that has gone is left out.
    client.table("t").remove(items.keys[5:6])
    read = table.get(items.keys[[5, 2]])
    assert read.keys.tolist() == [items.keys[2]]
    assert client.table("t").stats().samples == 0
    read = client.table("w").get(client.table("w").items().keys)
    assert read.data["at"].tolist() == [5]
    assert len(table.get([])) == 0
    # Nor is one of a table whose items may be of any form.
    gone = client.table("w").items().keys
    client.table("w").remove(gone)
    read = client.table("w").get(gone)
    assert (len(read), read.data) == (0, [])


def test_priorities_say_what_is_sampled(open_tables: Any) -> None:
    _, client = open_tables(Table("t", STEP, capacity=100, sampler=selectors.Prioritized(), seed=1))
    client.table("t").extend(steps(4), [1.0, 0.0, 0.0, 1.0])
    client.flush()
    batch = client.table("t").sample(50, beta=0.5)
    assert set(batch.data["at"].tolist()) == {0, 3}
    assert (batch.info.probabilities == 0.5).all()
    assert (batch.weights == 1.0).all()
    first = batch.keys[batch.data["at"] == 0][0]
    assert client.table("t").update_priorities([first], [0.0]) == 1
    assert set(client.table("t").sample(50).data["at"].tolist()) == {3}
    assert client.table("t").remove(batch.keys) == 2
    assert len(client.table("t")) == 2
    client.table("t").clear()
    assert client.table("t").stats().size == 0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_bad_priority_changes_nothing(open_tables: Any, value: float) -> None:
    _, client = open_tables(Table("t", STEP, capacity=10, sampler=selectors.Prioritized()))
    client.table("t").extend(steps(2))
    client.flush()
    keys = client.table("t").sample(2).keys
    with pytest.raises(echoic.errors.PriorityError):
        client.table("t").update_priorities(keys, [5.0, value])
    with pytest.raises(echoic.errors.PriorityError):
        client.table("t").add({"obs": np.zeros(3, np.float32), "at": 1}, value)
    with pytest.raises(echoic.errors.PriorityError):
        client.table("t").extend(steps(2), [1.0, value])
    client.flush()
    assert client.table("t").sample(20).info.priorities.tolist() == [1.0] * 20
    assert len(client.table("t")) == 2


def test_what_does_not_fit_is_refused_and_the_table_lives_on(open_tables: Any) -> None:
    _, client = open_tables(Table("t", STEP, capacity=10))
    with pytest.raises(echoic.errors.TableNotFoundError, match="'t'"):
        client.table("other")
    with pytest.raises(echoic.errors.SpecError, match="leaf `at`"):
        client.table("t").add({"obs": STEP["obs"], "at": np.float32(1)})
    with pytest.raises(echoic.errors.SpecError, match="missing 'at'"):
        client.table("t").add({"obs": STEP["obs"]})
    assert len(client.table("t")) == 0
    client.table("t").add(STEP)
    client.flush()
    assert len(client.table("t").sample(3)) == 3


def test_a_sample_that_waits_says_why_and_is_woken(open_tables: Any) -> None:
    _, client = open_tables(Table("t", STEP, capacity=10, limiter=limiters.MinSize(2)))
    assert not client.table("t").can_sample(1)
    with pytest.raises(echoic.errors.WaitTimeoutError) as raised:
        client.table("t").sample(1, timeout=0.05)
    assert raised.value.reason == "MIN_SIZE"
    sampled: list[Any] = []
    waiter = threading.Thread(
        target=lambda: sampled.append(client.table("t").sample(3, timeout=20))
    )
    waiter.start()
    client.table("t").extend(steps(2))
    waiter.join(20)
    assert len(sampled[0]) == 3


def test_inserts_wait_while_the_limiter_says_so_and_none_is_lost(open_tables: Any) -> None:
    _, client = open_tables(Table.queue("t", STEP, capacity=4))
    inserter = threading.Thread(target=lambda: [client.table("t").add(one) for one in rows()])
    inserter.start()
    seen = [client.table("t").sample(1, timeout=20).data["at"].item() for _ in range(50)]
    inserter.join(20)
    client.flush(20)
    assert seen == list(range(50))


def rows() -> Iterator[dict[str, Any]]:
    for at in range(50):
        yield {"obs": np.zeros(3, np.float32), "at": at}


def test_trajectories_share_steps(open_tables: Any) -> None:
    windows = Table("windows", capacity=100, sampler=selectors.Fifo())
    rows_of_two = {"obs": np.zeros((2, 3), np.float32), "at": np.int64(0)}
    _, client = open_tables(windows, Table("rows", rows_of_two, capacity=100))
    with client.trajectory_writer(num_keep_alive_refs=4) as writer:
        for at in range(10):
            writer.append({"obs": np.full(3, at, np.float32), "at": at})
            history = writer.history
            if at >= 3:
                writer.create_item(
                    "windows", 1.0, {"obs": history["obs"][-4:], "last": history["at"][-1]}
                )
                writer.create_item("rows", 2.0, {"obs": history["obs"][:2], "at": history["at"][0]})
        with pytest.raises(echoic.errors.SpecError, match="the leaf `at"):
            writer.create_item("rows", 1.0, {"obs": history["obs"][:2], "at": history["at"][:1]})
    assert (len(client.table("windows")), len(client.table("rows"))) == (7, 7)
    batch = client.table("windows").sample(3)
    assert batch.data["last"].tolist() == [3, 3, 3]
    assert batch.data["obs"][0, :, 0].tolist() == [0, 1, 2, 3]
    batch = client.table("rows").sample(30)
    assert (batch.data["obs"][:, 0, 0] == batch.data["at"]).all()


def test_items_of_different_lengths_are_ragged(open_tables: Any) -> None:
    _, client = open_tables(Table("t", capacity=100, sampler=selectors.Fifo(), max_times_sampled=1))
    with client.trajectory_writer(num_keep_alive_refs=9) as writer:
        for length in (1, 3, 2):
            for at in range(length):
                writer.append({"at": at})
            writer.create_item("t", 1.0, {"at": writer.history["at"][:]})
            writer.end_episode()
    ragged = client.table("t").sample(3).data["at"]
    assert [one.tolist() for one in ragged] == [[0], [0, 1, 2], [0, 1]]


def test_a_sampler_gives_batches_until_the_table_is_closed(open_tables: Any) -> None:
    server, client = open_tables(Table("t", STEP, capacity=100), reconnect=0.5)
    client.table("t").extend(steps(50))
    client.flush()
    for prefetch, workers in ((0, 1), (2, 1), (4, 2)):
        with client.table("t").batches(8, prefetch=prefetch, workers=workers) as batches:
            for _ in range(20):
                batch = next(batches)
                assert (batch.data["obs"][:, 0] == batch.data["at"]).all()
    before = client.table("t").stats().samples
    with client.table("t").batches(8, prefetch=0) as batches:
        next(batches)
    assert client.table("t").stats().samples == before + 8
    batches = client.table("t").batches(8, prefetch=3, timeout=20)
    next(batches)
    server.close()
    # What was fetched ahead is left; then a client elsewhere gives up, as nobody answers any more.
    with contextlib.suppress(echoic.errors.DisconnectedError):
        for left, _ in enumerate(batches):
            assert left < 4
            # There is room for another batch now, so whoever fetches finds the table closed.
            for thread in batches._threads:
                thread.join(20)
                assert not thread.is_alive()
    with pytest.raises(StopIteration):
        next(batches)


def test_times_may_be_infinite(open_tables: Any, background: Any) -> None:
    table = Table("t", np.int64(0), capacity=10, limiter=limiters.MinSize(3), seed=1)
    _, client = open_tables(table, linger=math.inf, reconnect=math.inf, timeout=math.inf)
    with client.table("t").batches(2, timeout=math.inf) as batches:
        result = background.start_and_let_block(next, batches)
        for number in range(3):
            client.table("t").add(number, timeout=math.inf)
        client.flush(math.inf)
        assert len(result()) == 2


@pytest.mark.parametrize("beta", [math.nan, math.inf, -0.5])
def test_an_exponent_that_is_none_is_refused_before_anything_is_drawn(
    open_tables: Any, beta: float
) -> None:
    _, client = open_tables(Table("t", np.int64(0), capacity=10))
    client.table("t").extend(np.arange(5))
    client.flush()
    table = client.table("t")
    for call in (table.sample, table.batches):
        with pytest.raises(ValueError, match="beta must be a finite number of at least 0, got"):
            call(2, beta=beta)
    assert client.table("t").stats().samples == 0


def test_a_learner_tells_its_version(open_tables: Any) -> None:
    sampler = selectors.HotCold(age_threshold=1, hot_fraction=0.5)
    _, client = open_tables(Table("t", STEP, capacity=100, sampler=sampler, seed=2))
    client.table("t").extend(steps(5), version=0)
    client.flush()
    client.table("t").publish_version(10)
    client.table("t").extend(steps(5, 5))
    client.flush()
    at = client.table("t").sample(100).data["at"]
    assert ((at >= 5).sum(), (at < 5).sum()) == (50, 50)


def test_a_pause_ends(open_tables: Any) -> None:
    _, client = open_tables(Table("t", STEP, capacity=100))
    client.table("t").extend(steps(5))
    client.flush()
    table = client.table("t")
    table.pause()
    with pytest.raises(echoic.errors.WaitTimeoutError) as raised:
        client.table("t").sample(1, timeout=0.05)
    assert raised.value.reason == "PAUSED"
    table.resume()
    assert len(client.table("t").sample(1, timeout=20)) == 1


def test_a_pickled_client_connects_anew(open_tables: Any) -> None:
    server, client = open_tables(Table("t", STEP, capacity=100))
    if not server.addresses:
        with pytest.raises(TypeError, match="connect to its address"):
            pickle.dumps(client)
        return
    with pickle.loads(pickle.dumps(client)) as copy:
        copy.table("t").extend(steps(5))
        copy.flush()
    assert sorted(set(client.table("t").sample(200).data["at"].tolist())) == list(range(5))


def test_many_items_of_any_form_leave_nothing_behind(open_tables: Any) -> None:
    _, client = open_tables(Table("t", capacity=3, sampler=selectors.Fifo()))
    for at in range(300):
        client.table("t").add({"at": np.full(at % 5 + 1, at)})
    client.flush()
    assert client.table("t").stats().size == 3
    assert client.table("t").sample(1).data["at"].tolist() == [[297] * 3]
