"""Rollout tables of a server elsewhere: the same as here, whatever the transport."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic.errors import (
    ClosedError,
    DisconnectedError,
    GroupNotFoundError,
    LeaseError,
    RolloutError,
    SpecError,
    TableNotFoundError,
    WaitTimeoutError,
)
from echoic.rollouts import Reservation, RolloutTable
from rollout_items import COLUMNS, FIELDS, columns, fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Background

WORKER = Path(__file__).with_name("rollout_items.py")


class Served:
    """A table of a server, and ways to it."""

    def __init__(self, table: RolloutTable, server: echoic.Server) -> None:
        self.table = table
        self.server = server
        self.address = server.address
        self.client = echoic.connect(self.address)
        self.remote = self.client.rollouts("math")
        self._processes: list[subprocess.Popen[str]] = []

    def worker(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a process that works with the table."""
        process = subprocess.Popen(
            [sys.executable, str(WORKER), self.address, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End everything."""
        for process in self._processes:
            process.kill()
            process.communicate()
        self.client.close()
        self.server.close()


@pytest.fixture(params=["unix", "tcp", "shm"])
def transport(request: pytest.FixtureRequest, folder: Path) -> str:
    """One kind of address."""
    return {
        "unix": f"unix://{folder}/echoic",
        "tcp": "tcp://127.0.0.1:0",
        "shm": f"shm://echoic-rollouts-{os.getpid()}",
    }[request.param]


@pytest.fixture
def serve(transport: str, make: Callable[..., RolloutTable]) -> Iterator[Callable[..., Served]]:
    """Serve tables behind one kind of address."""
    opened: list[Served] = []

    def serve(**settings: Any) -> Served:
        table = make(**settings)
        server = echoic.Server(table, listen=transport).start()
        opened.append(Served(table, server))
        return opened[-1]

    yield serve
    for served in opened:
        served.close()


def test_a_group_there_is_a_group_here(serve: Callable[..., Served]) -> None:
    served = serve(max_lag=2, filter="spread(reward) > 0")
    remote, table = served.remote, served.table
    assert remote.settings == table.settings
    reservation = remote.reserve(key="p", source="w")
    image = np.arange(6, dtype=np.uint8)
    reservation.extend(0, columns(2), versions=[0, 0])
    reservation.finish(0, {"reward": 1, "prompt": 5}, blobs={"image": image})
    assert reservation.add(columns(3, 7), {"reward": 0, "prompt": 5}) == "complete"
    flat = {name: np.concatenate([column, column]) for name, column in columns(4).items()}
    fields = {"reward": np.array([0, 1], np.float32), "prompt": np.array([1, 2])}
    assert remote.reserve().add_items([4, 4], flat, fields) == "complete"
    batch = remote.sample(lease=60, form="padded", left=True)
    assert batch["tokens"].tolist() == [[0, 0, 0, 1], [0, 7, 8, 9], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert batch["reward"].tolist() == [1, 0, 0, 1]
    assert (batch.keys, batch.sources) == (["p", ""], ["w", ""])
    np.testing.assert_array_equal(batch.blobs(0)["image"], image)
    batch.ack()
    remote.publish_version(3)
    assert (table.version, remote.version) == (3, 3)
    assert remote.stats().acked == table.stats().acked == 2


def test_arrays_of_a_batch_outlive_the_connection_and_the_server(
    serve: Callable[..., Served],
) -> None:
    served = serve(batch_groups=1)
    fill(served.remote.reserve(), [0, 1], length=5000 // 100)
    tokens = served.remote.sample()["tokens"]
    expected = tokens.tolist()
    served.close()
    assert tokens.tolist() == expected


def test_refusals_are_the_same(serve: Callable[..., Served]) -> None:
    served = serve(max_lag=0, batch_groups=1)
    remote = served.remote
    reservation = remote.reserve()
    with pytest.raises(SpecError, match="column 'tokens' is missing"):
        reservation.add({}, {"reward": 0, "prompt": 0})
    with pytest.raises(RolloutError, match="at most max_tokens = 64, got 65"):
        reservation.add(columns(65), {"reward": 0, "prompt": 0})
    with pytest.raises(GroupNotFoundError, match="group 9 was never reserved"):
        remote.reservation((9, 0)).add(columns(1), {"reward": 0, "prompt": 0})
    with pytest.raises(WaitTimeoutError, match="learner has to publish") as caught:
        remote.reserve(timeout=0.05)
    assert caught.value.reason == "STALENESS"
    with pytest.raises(WaitTimeoutError) as caught:
        remote.sample(timeout=0)
    assert caught.value.reason == "GROUP"
    fill(reservation, [0, 1])
    late = remote.sample(lease=60)
    late.nack()
    with pytest.raises(LeaseError):
        late.ack()
    with pytest.raises(RolloutError, match="version must be from 0 to"):
        remote.publish_version(-1)
    with pytest.raises(TableNotFoundError, match="there is no rollout table 'chess'"):
        served.client.rollouts("chess")


def test_whoever_waits_there_is_woken_from_here(
    serve: Callable[..., Served], background: Background
) -> None:
    served = serve(max_lag=0, batch_groups=1)
    first = served.remote.reserve()
    reserved = background.start_and_let_block(served.remote.reserve)
    version = background.start_and_let_block(served.remote.wait_version, 0)
    sampled = background.start_and_let_block(served.remote.sample)
    fill(first, [0, 1])
    assert sampled().group_ids.tolist() == [0]
    served.table.publish_version(1)
    assert version() == 1
    assert reserved().group == 1


def test_time_wakes_whoever_waits_there(
    serve: Callable[..., Served], background: Background
) -> None:
    served = serve(max_lag=0, batch_groups=1)
    served.remote.reserve(ttl=0.05)
    # Nothing happens but that the reservation of a producer that says nothing is over.
    assert background.start(served.remote.reserve)().group == 1


def test_whoever_waits_there_is_told_of_the_end(
    serve: Callable[..., Served], background: Background
) -> None:
    served = serve()
    sampled = background.start_and_let_block(served.remote.sample)
    served.table.close()
    with pytest.raises(ClosedError):
        sampled()


def test_a_killed_producer_costs_its_group_only(serve: Callable[..., Served]) -> None:
    served = serve(max_lag=2, batch_groups=2, max_running=4)
    workers = [served.worker("produce", str(seed)) for seed in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    seen: list[int] = []
    for version in range(1, 21):
        batch = served.remote.sample(lease=60, timeout=30)
        assert batch.lag_oldest.max() <= 2
        assert batch.group_sizes.tolist() == [2, 2]
        seen += batch.group_ids.tolist()
        batch.ack()
        served.remote.publish_version(version)
        if version == 10:
            workers[0].send_signal(signal.SIGKILL)
    stats = served.table.stats()
    assert len(set(seen)) == len(seen) == 40
    parts = ("running", "accepted", "rejected", "filtered")
    assert stats.submitted == sum(getattr(stats, part) for part in parts)


def test_a_killed_consumer_has_its_batch_delivered_again(serve: Callable[..., Served]) -> None:
    served = serve(batch_groups=2)
    for _ in range(2):
        fill(served.remote.reserve(), [0, 1])
    consumer = served.worker("consume", "0.5")
    assert consumer.stdout is not None
    groups = [int(group) for group in consumer.stdout.readline().split()]
    consumer.send_signal(signal.SIGKILL)
    batch = served.remote.sample(lease=60, timeout=30)
    assert batch.group_ids.tolist() == groups
    assert batch.lease[2] == 2


def test_one_connection_serves_many_threads(
    serve: Callable[..., Served], background: Background
) -> None:
    served = serve(max_lag=1, batch_groups=2)
    stop = threading.Event()

    def produce(worker: int) -> None:
        while not stop.is_set():
            try:
                fill(served.remote.reserve(source=str(worker), timeout=0.1), [worker, -1])
            except WaitTimeoutError:
                continue

    workers = [background.start(produce, worker) for worker in range(3)]
    for version in range(1, 31):
        batch = served.remote.sample(timeout=30)
        assert batch.lag_oldest.max() <= 1
        served.remote.publish_version(version)
    stop.set()
    for worker in workers:
        worker()


def test_numbers_are_told_to_those_who_watch(serve: Callable[..., Served]) -> None:
    served = serve(max_lag=1)
    fill(served.remote.reserve(source="w"), [0, 1])
    metrics = served.server.metrics()
    assert metrics["rollouts_groups.math.accepted"] == 1
    assert metrics["rollouts_source_groups.math.w.accepted"] == 1
    assert metrics["rollouts_queued_groups.math"] == 1


def test_a_pause_from_there_holds_up_everybody_until_it_ends(
    serve: Callable[..., Served], background: Background
) -> None:
    served = serve(batch_groups=1)
    served.remote.pause()
    assert served.table.stats().paused
    for call in (served.remote.reserve, served.table.reserve, served.remote.sample):
        with pytest.raises(WaitTimeoutError) as caught:
            call(timeout=0.02)
        assert caught.value.reason == "PAUSED"
    reserved = background.start_and_let_block(served.remote.reserve)
    served.remote.resume()
    assert reserved().group == 0


def test_a_version_is_published_in_all_tables_of_a_server(
    transport: str,
) -> None:
    tables = [RolloutTable(name, COLUMNS, FIELDS, batch_groups=1) for name in ("math", "code")]
    with (
        echoic.Server(*tables, listen=transport) as server,
        echoic.connect(server.address) as client,
    ):
        server.publish_version(3)
        assert [table.version for table in tables] == [3, 3]
        assert (server.version, client.rollouts("math").version) == (3, 3)
        for table in tables:
            client.rollouts(table.name).publish_version(4)
        assert [table.version for table in tables] == [4, 4]
        tables[1].publish_version(7)
        # What both have reached.
        assert server.version == 4
        with pytest.raises(RolloutError, match="got 5: 'code' has 7"):
            server.publish_version(5)
        assert [table.version for table in tables] == [4, 7]
        client.rollouts("math").publish_version(7)
        assert server.version == 7


def test_a_server_without_rollout_tables_has_no_version_of_them() -> None:
    with echoic.Server(echoic.Stream({"obs": np.zeros(1)}, batch_size=1)) as server:
        for call in (lambda: server.version, lambda: server.publish_version(1)):
            with pytest.raises(RolloutError, match="has no rollout tables"):
                call()


def test_only_tables_of_this_process_are_served(serve: Callable[..., Served]) -> None:
    with pytest.raises(ValueError, match="a rollout table of another server can't be served"):
        echoic.Server(serve().remote)


def ends(reward: float = 0.0) -> dict[str, float]:
    """Return the fields of an item."""
    return {"reward": reward, "prompt": 0}


def test_items_that_nobody_waits_for_arrive_in_their_order(serve: Callable[..., Served]) -> None:
    # Many more than may be on their way.
    served = serve(batch_groups=100, group_size=2, capacity=200)
    reservations = served.remote.reserve_many(100)
    for reservation in reservations:
        reservation.add(columns(2, reservation.group), ends(), wait=False)
        flat = columns(3, reservation.group)
        fields = {"reward": np.zeros(1, np.float32), "prompt": np.zeros(1, np.int64)}
        reservation.add_items([3], flat, fields, wait=False)
    assert {reservation.status for reservation in reservations} == {"complete"}
    batch = served.table.sample()
    expected = [[group, group + 1, group, group + 1, group + 2] for group in batch.group_ids]
    assert batch["tokens"].tolist() == np.ravel(expected).tolist()


def test_arrays_may_change_once_a_call_that_does_not_wait_returned(
    serve: Callable[..., Served],
) -> None:
    served = serve(batch_groups=1, group_size=1, max_tokens=10_000)
    reservation = served.remote.reserve()
    arrays = columns(10_000)
    reservation.add_items([10_000], arrays, {name: [0] for name in FIELDS}, wait=False)
    arrays["tokens"][:] = -1
    assert reservation.status == "complete"
    assert served.table.sample()["tokens"].tolist() == list(range(10_000))


def test_flush_waits_for_everything_of_the_connection(serve: Callable[..., Served]) -> None:
    served = serve(group_size=1)
    for reservation in served.remote.reserve_many(2):
        reservation.add(columns(1), ends(), wait=False)
    served.remote.flush(timeout=20)
    assert served.table.stats().accepted == 2


def test_closing_waits_for_what_is_on_its_way(serve: Callable[..., Served]) -> None:
    served = serve(group_size=1)
    for reservation in served.remote.reserve_many(2):
        reservation.add(columns(1), ends(), wait=False)
    served.client.close()
    assert served.table.stats().accepted == 2


def test_a_refusal_that_nobody_waited_for_is_raised_by_its_reservation(
    serve: Callable[..., Served],
) -> None:
    served = serve(group_size=2)
    reservation, other = served.remote.reserve_many(2)
    reservation.add(columns(65), ends(), wait=False)
    with pytest.raises(RolloutError, match="at most max_tokens = 64, got 65"):
        reservation.status
    # It was told once, and nobody else is.
    assert reservation.status == "running"
    fill(other, [0, 1], wait=False)
    served.remote.flush()
    # The place is free again.
    assert reservation.add(columns(1), ends(), item=0) == "running"
    assert reservation.add(columns(1), ends()) == "complete"


def test_a_refused_item_that_nobody_waited_for_leaves_its_place_to_the_next(
    serve: Callable[..., Served],
) -> None:
    reservation = serve(group_size=2).remote.reserve()
    reservation.add(columns(65), ends(), wait=False)
    with pytest.raises(RolloutError, match="got 65"):
        reservation.status
    assert reservation.add(columns(1), ends()) == "running"
    assert reservation.add(columns(1), ends()) == "complete"


def test_refused_items_that_nobody_waited_for_leave_their_places_to_the_next(
    serve: Callable[..., Served],
) -> None:
    reservation = serve(group_size=2).remote.reserve()
    fields = {name: [0, 0] for name in FIELDS}
    reservation.add_items([1, 65], columns(66), fields, wait=False)
    with pytest.raises(RolloutError, match="got 65"):
        reservation.status
    assert reservation.add_items([1, 2], columns(3), fields) == "complete"


class Late:
    """An answer that is there once it is waited for."""

    is_ready = False

    def __init__(self, told: str | None) -> None:
        self.told = told

    def wait(self) -> str:
        """Return it, or raise it."""
        if self.told is None:
            text = "refused"
            raise RolloutError(text)
        return self.told


class LateTable:
    """What a reservation knows of a table; it refuses the first item only."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def append(self, _hold: tuple[int, int], item: int, *_rest: Any) -> Late:
        """Take note of a place."""
        self.sent.append(item)
        return Late("running" if self.sent[1:] else None)

    def append_flat(
        self, _hold: tuple[int, int], first: int, lengths: list[int], *_rest: Any
    ) -> Late:
        """Take note of some places."""
        self.sent.extend(range(first, first + len(lengths)))
        return Late("running")


def test_places_behind_a_refused_item_stay_taken() -> None:
    # No answer may come before the second item was sent.
    table = LateTable()
    reservation = Reservation(table, (1, 1))  # type: ignore[arg-type]
    reservation.add({"tokens": [1]}, wait=False)
    reservation.add({"tokens": [1]}, wait=False)
    with pytest.raises(RolloutError, match="refused"):
        reservation.status
    reservation.add_items([1, 1], {"tokens": [1, 1]}, wait=False)
    reservation.add({"tokens": [1]}, item=0, wait=False)
    reservation.add({"tokens": [1]}, wait=False)
    assert reservation.status == "running"
    assert table.sent == [0, 1, 2, 3, 0, 4]


def test_a_reservation_of_a_table_made_anew_takes_places_without_answers_again() -> None:
    reservation = Reservation(LateTable(), (1, 1))  # type: ignore[arg-type]
    reservation.add({"tokens": [1]}, wait=False)
    reservation.add_items([1, 1], {"tokens": [1, 1]}, wait=False)
    table = LateTable()
    moved = reservation.at(table)  # type: ignore[arg-type]
    moved.add({"tokens": [1]}, wait=False)
    assert table.sent == [0]


def test_a_call_that_waits_is_not_sent_after_a_refusal(serve: Callable[..., Served]) -> None:
    reservation, other = serve(group_size=2).remote.reserve_many(2)
    reservation.add(columns(65), ends(), item=0, wait=False)
    with pytest.raises(RolloutError, match="got 65"):
        reservation.add(columns(1), ends(), item=1)
    # It was not taken, so that its place is free.
    assert reservation.add(columns(1), ends(), item=1) == "running"
    # Nor several at once.
    other.add(columns(65), ends(), wait=False)
    items = ([1, 1], columns(2), {name: [0, 0] for name in FIELDS})
    with pytest.raises(RolloutError, match="got 65"):
        other.add_items(*items)
    assert other.status == "running"
    assert other.add_items(*items) == "complete"


def test_a_refusal_whose_reservation_is_not_asked_is_raised_by_the_next_call(
    serve: Callable[..., Served],
) -> None:
    served = serve(group_size=1)
    reservation, other = served.remote.reserve_many(2)
    reservation.add(columns(65), ends(), wait=False)
    # Once this has its answer, so has what was asked before.
    assert served.remote.stats().accepted == 0
    with pytest.raises(RolloutError, match="got 65") as caught:
        other.add(columns(1), ends(), wait=False)
    if sys.version_info >= (3, 11):
        note = f"an answer of group {reservation.group} that was not waited for"
        assert caught.value.__notes__ == [note]
    # Nothing was sent for the other.
    assert other.status == "running"
    assert other.add(columns(1), ends(), wait=False) == "running"
    served.remote.flush()
    assert other.status == "complete"


def test_flush_raises_what_no_reservation_was_asked_for(serve: Callable[..., Served]) -> None:
    served = serve(group_size=1)
    served.remote.reserve().add(columns(65), ends(), wait=False)
    with pytest.raises(RolloutError, match="got 65"):
        served.remote.flush()
    served.remote.flush()


def test_errors_of_a_group_that_is_given_up_are_forgotten(serve: Callable[..., Served]) -> None:
    served = serve(group_size=1)
    reservation = served.remote.reserve()
    reservation.add(columns(65), ends(), wait=False)
    reservation.fail()
    served.remote.flush()
    assert (reservation.status, served.table.stats().rejected) == ("rejected", 1)


def test_items_that_nobody_waits_for_fail_with_their_connection(
    transport: str, make: Callable[..., RolloutTable]
) -> None:
    server = echoic.Server(make(group_size=1), listen=transport).start()
    with echoic.connect(server.address, reconnect=0.2) as client:
        first, second, third = client.rollouts("math").reserve_many(3)
        server.close(restart=True)
        first.add(columns(1), ends(), wait=False)
        with pytest.raises((DisconnectedError, ClosedError)):
            first.status
        with pytest.raises((DisconnectedError, ClosedError)):
            second.add(columns(1), ends(), wait=False)
        with pytest.raises((DisconnectedError, ClosedError)):
            third.add(columns(1), ends())


def test_threads_share_a_connection_without_waiting(
    serve: Callable[..., Served], background: Background
) -> None:
    served = serve(batch_groups=40, group_size=1, capacity=80)
    reservations = served.remote.reserve_many(40)

    def bring(reservations: list[Any]) -> list[str]:
        for reservation in reservations:
            reservation.add(columns(3), ends(), wait=False)
        return [reservation.status for reservation in reservations]

    threads = [background.start(bring, reservations[first::4]) for first in range(4)]
    assert {status for thread in threads for status in thread()} == {"complete"}
    assert len(served.table.sample()) == 40


def test_what_has_no_answer_can_be_added_again_over_another_connection(
    serve: Callable[..., Served],
) -> None:
    served = serve(batch_groups=1)
    reservation = served.remote.reserve()
    reservation.add(columns(3), ends(), wait=False)
    with echoic.connect(served.address) as client:
        moved = client.rollouts("math").reservation(reservation)
        # Whether it was taken before or is only now, it is taken once.
        assert moved.add(columns(3), ends(), item=0) == "running"
        assert moved.add(columns(2, 7), ends()) == "complete"
    assert served.table.sample()["tokens"].tolist() == [0, 1, 2, 7, 8]


def test_closing_tells_of_an_error_that_nobody_was_told_of(serve: Callable[..., Served]) -> None:
    served = serve(group_size=1)
    good, bad = served.remote.reserve_many(2)
    good.add(columns(1), ends(), wait=False)
    bad.add(columns(65), ends(), wait=False)
    with pytest.raises(RolloutError, match="got 65"):
        served.client.close()
    assert not served.client.stats().connected
    assert served.table.stats().accepted == 1


def test_a_group_that_a_server_started_anew_has_forgotten_is_expired(
    make: Callable[..., RolloutTable], folder: Path
) -> None:
    address = f"unix://{folder}/echoic"
    server = echoic.Server(make(), listen=address).start()
    with echoic.connect(server.address) as client:
        table = client.rollouts("math")
        reservations = table.reserve_many(4)
        server.close(restart=True)
        with echoic.Server(make(), listen=address).start():
            item = (columns(1), {"reward": 0, "prompt": 0})
            assert reservations[0].add(*item) == "expired"
            reservations[1].add(*item, wait=False)
            assert reservations[1].status == "expired"
            flat = ([1, 1], columns(2), {"reward": [0, 1], "prompt": [0, 0]})
            assert reservations[2].add_items(*flat) == "expired"
            assert table.reservation(reservations[3]).finish(0, item[1]) == "expired"


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("restart", [None, False, True])
def test_clients_wait_for_another_server_only_if_there_may_be_one(
    make: Callable[..., RolloutTable], folder: Path, kept: bool, restart: bool | None
) -> None:
    settings = {"directory": folder / "kept"} if kept else {}
    address = f"unix://{folder}/echoic"
    server = echoic.Server(make(**settings), listen=address).start()
    # Who waits for another server waits for longer than this test may take.
    with echoic.connect(server.address, reconnect=None) as client:
        table = client.rollouts("math")
        reservation = table.reserve()
        server.close(restart=restart)
        if not (kept if restart is None else restart):
            with pytest.raises(ClosedError, match="rollout tables are closed"):
                reservation.add(columns(1), ends())
            with pytest.raises(ClosedError, match="rollout tables are closed"):
                table.sample()
            assert not client.stats().connected
            return
        with echoic.Server(make(**settings), listen=address).start():
            status = "running" if kept else "expired"
            assert reservation.add(columns(1), ends()) == status


@pytest.mark.parametrize("wait", [True, False])
def test_a_group_of_arrays_for_each_item(serve: Callable[..., Served], wait: bool) -> None:
    # Blobs of more bytes than are sent as they lie are split between requests.
    served = serve(batch_groups=3, max_blob_bytes=6 << 20)
    items = [columns(2), columns(0), columns(5, 3)][::2]
    apart = {name: [item[name] for item in items] for name in COLUMNS}
    fields = {"reward": [0.5, 1], "prompt": np.array([7, 8])}
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for blobs in ([{"image": image, "text": "a"}, None], [{"raw": bytes(5 << 20)}] * 2, None):
        reservation = served.remote.reserve()
        reservation.add_items(
            None, apart, fields, versions=[4, [1, 1, 2, 2, 2]], blobs=blobs, wait=wait
        )
        assert reservation.status == "complete"
    batch = served.table.sample()
    assert [item["tokens"].tolist() for item in batch] == [[0, 1], [3, 4, 5, 6, 7]] * 3
    assert batch["reward"].tolist() == [0.5, 1] * 3
    assert batch["prompt"].tolist() == [7, 8] * 3
    assert batch.versions.tolist() == [4, 4, 1, 1, 2, 2, 2] * 3
    assert (batch.blobs(0)["text"], batch.blobs(1), batch.blobs(4)) == ("a", {}, {})
    np.testing.assert_array_equal(batch.blobs(0)["image"], image)
    assert batch.blobs(2)["raw"] == batch.blobs(3)["raw"] == bytes(5 << 20)


def test_items_that_do_not_go_together_are_refused(serve: Callable[..., Served]) -> None:
    reservation = serve(max_blob_bytes=100).remote.reserve()
    apart = {name: [column, column] for name, column in columns(3).items()}
    fields: dict[str, Any] = {"reward": [0.5, 1.0], "prompt": [1, 2]}
    name = "x" * 256
    for wrong, text in [
        ({"columns": {**apart, "mask": apart["mask"][:1]}}, "'mask': expected 2 items, got 1"),
        ({"columns": {**apart, "mask": [np.ones(3, np.uint8), [1]]}}, "3 values of item 1"),
        ({"columns": columns(3)}, "one axis"),
        ({"fields": {**fields, "reward": [0.5]}}, "'reward': expected 2 values, got 1"),
        ({"fields": {**fields, "prompt": [1, 2.5]}}, "'prompt': expected dtype int64"),
        ({"versions": [1, 2, 3]}, "each of 2 items; got 3"),
        ({"versions": [1, [1, 2]]}, "each of 3 tokens; got 2"),
        ({"blobs": [None]}, "blobs: expected a mapping or None for each of 2 items, got 1"),
        ({"blobs": [{name: b""}, None]}, "name of a blob"),
        ({"blobs": [{"raw": bytes(100)}, None]}, "max_blob_bytes"),
    ]:
        with pytest.raises((SpecError, RolloutError), match=text):
            reservation.add_items(None, **{"columns": apart, "fields": fields, **wrong})
    # Nothing of them was added: the first item of a refused call can be one that was taken.
    assert reservation.add_items(None, apart, fields) == "complete"


def test_groups_are_reserved_in_the_order_of_their_keys(serve: Callable[..., Served]) -> None:
    remote = serve(max_running=3).remote
    reservations = remote.reserve_many(keys=["a", "b", "a", "c"], source="w")
    assert [reservation.key for reservation in reservations] == ["a", "b", "a"]
    for reservation, reward in zip(reservations, (0, 1, 2), strict=True):
        fill(reservation, [reward, reward])
    assert remote.sample().keys == ["a", "b"]
    assert [one.key for one in remote.reserve_many(keys=iter(["d"]))] == ["d"]
    assert remote.reserve_many(keys=[]) == []
    with pytest.raises(RolloutError, match="bytes of keys must be at most 262144"):
        remote.reserve_many(keys=["x" * 255] * 1029)
    with pytest.raises(RolloutError, match="key of a group"):
        remote.reserve_many(keys=["ok", "x" * 256])
    for wrong in ({}, {"count": 1, "keys": ["a"]}):
        with pytest.raises(TypeError, match="expected count or keys"):
            remote.reserve_many(**wrong)


LATE = ("logprobs", "reward")


def bare(reservation: Reservation, lengths: list[int]) -> str:
    """Add whole items without what may come late."""
    apart = {"tokens": [np.arange(length, dtype=np.int32) for length in lengths]}
    apart["mask"] = [np.ones(length, np.uint8) for length in lengths]
    return reservation.add_items(None, apart, {"prompt": list(lengths)})


def test_a_judge_elsewhere_gives_what_is_late(serve: Callable[..., Served]) -> None:
    served = serve(late=LATE, batch_groups=1, filter="max(reward) > 0", max_lag=1)
    assert served.remote.settings["late"] == list(LATE)
    reservation = served.remote.reserve(version=0)
    assert bare(reservation, [3, 2]) == "running"
    with echoic.connect(served.address) as client:
        judge = client.rollouts("math").reservation(reservation.ticket)
        logprobs = np.linspace(0, -1, 3).astype(np.float32)
        assert judge.update(0, {"logprobs": logprobs}, {"reward": 1}) == "running"
        # A consumer that waits gets the group that an update has completed.
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(served.table.sample, lease=60, timeout=60)
            while "GROUP" not in (waits := served.table.stats().consumer_waits):
                time.sleep(0.001)
            assert waits["GROUP"].waiting == 1
            judge.update(1, {"logprobs": [0, 0]}, wait=False)
            assert judge.update(1, fields={"reward": 0}) == "complete"
            batch = taken.result()
        np.testing.assert_array_equal(batch["logprobs"], [*logprobs, 0, 0])
        assert batch["reward"].tolist() == [1, 0]
        assert batch["prompt"].tolist() == [3, 2]
        # It is with the consumer, is there again, and is used.
        assert judge.update(1, fields={"reward": 7}) == "delivered"
        batch.nack()
        served.table.publish_version(1)
        assert judge.update(1, fields={"reward": 7, "prompt": 9}) == "complete"
        batch = served.table.sample()
        assert (batch["reward"].tolist(), batch["prompt"].tolist()) == ([1, 7], [3, 9])
        assert judge.update(1, fields={"reward": 8}) == "over"


def test_values_of_a_reservation_that_has_ended_change_nothing(
    serve: Callable[..., Served],
) -> None:
    served = serve(late=LATE, batch_groups=1, on_expiry="suspend")
    reservation = served.remote.reserve()
    reservation.extend(0, {"tokens": [1, 2], "mask": [1, 1]})
    judge = served.table.reservation(reservation.ticket)
    assert judge.update(0, {"logprobs": [1, 2]}, {"reward": 5}) == "running"
    reservation.suspend()
    assert judge.update(0, fields={"reward": 6}) == "expired"
    again = Reservation.resume(served.remote)
    assert judge.update(0, fields={"reward": 6}) == "expired"
    assert again.progress[0].columns["logprobs"].tolist() == [1, 2]
    # Tokens that come then have no log-probability yet.
    again.extend(0, {"tokens": [3], "mask": [1]})
    again.suspend()
    again = Reservation.resume(served.remote)
    assert set(again.progress[0].columns) == {"tokens", "mask", "versions"}
    again.finish(0, {"prompt": 1})
    bare(again, [1])
    for wrong, text in [
        ({"item": 0, "columns": {"logprobs": [1]}}, "must be 3, as many as tokens of item 0"),
        ({"item": 2, "fields": {"reward": 1}}, "one that has tokens or its end"),
        ({"item": 0, "fields": {"rewards": 1}}, "there is no field 'rewards'"),
        ({"item": 0}, "expected a column or a field"),
    ]:
        with pytest.raises((SpecError, RolloutError), match=text):
            again.update(**wrong)
    with pytest.raises(SpecError, match="'mask' is missing"):
        again.add({"tokens": [1]}, {"prompt": 1})
    assert again.update(1, {"logprobs": [0]}, {"reward": 0}) == "running"
    assert again.update(0, {"logprobs": [1, 2, 3]}) == "complete"
    batch = served.remote.sample()
    assert batch["logprobs"].tolist() == [1, 2, 3, 0]
    assert batch["reward"].tolist() == [5, 0]


def test_blobs_that_are_alike_are_one(serve: Callable[..., Served]) -> None:
    served = serve(group_size=4, batch_groups=2, max_blob_bytes=9 << 20)
    # Together they are more than is sent in one request; once they are not.
    image = np.arange(3 << 20, dtype=np.uint8)
    blobs = [{"image": image}, {"image": image.copy(), "text": "a"}, None, {"text": "a", "x": b""}]
    apart = {name: [column] * 4 for name, column in columns(1).items()}
    fields = {"reward": [0.0] * 4, "prompt": [0] * 4}
    served.remote.reserve().add_items(None, apart, fields, blobs=blobs)
    # Also if they come one after the other.
    reservation = served.remote.reserve()
    for of_item in blobs:
        reservation.add(columns(1), {"reward": 0, "prompt": 0}, blobs=of_item)
    for table in (served.remote, served.table):
        batch = table.sample(lease=60)
        for first in (0, 4):
            packed = [batch.packed_blobs(first + item) for item in range(4)]
            assert [set(of_item) for of_item in packed] == [set(one or ()) for one in blobs]
            assert packed[0]["image"] is packed[1]["image"]
            assert packed[1]["text"] is packed[3]["text"]
            assert batch.blobs(first + 3) == {"text": "a", "x": b""}
            np.testing.assert_array_equal(batch.blobs(first + 1)["image"], image)
        batch.nack()


def test_what_a_restored_learner_has_learned_is_used_up(serve: Callable[..., Served]) -> None:
    served = serve(batch_groups=1, max_lag=4)
    remote = served.remote
    for key in "abc":
        fill(remote.reserve(key=key), [0, 1])
    learned = remote.sample(lease=60)
    remote.publish_version(1)
    lost = remote.sample(lease=60)
    # The learner is gone, and comes back with a checkpoint of version 1.
    remote.restore(1)
    assert (remote.stats().acked, remote.stats().returned) == (1, 1)
    for batch in (learned, lost):
        with pytest.raises(LeaseError, match="over"):
            batch.ack()
    assert [remote.sample().keys for _ in range(2)] == [["b"], ["c"]]
