"""A server watched from elsewhere: every number, every connection, at every kind of address."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import echoic
import numpy as np
import pytest
from echoic import Checkpointer, Server, Stream, Table, connect
from echoic.errors import ClosedError, DisconnectedError, RefusedError
from echoic.rollouts import RolloutTable
from echoic.views.reading import read
from echoic.weights import WeightStore

if TYPE_CHECKING:
    from pathlib import Path

    from echoic.watch import Observation

EXAMPLE = {"obs": np.zeros(4, np.float32)}


def observe(connection: echoic.Connection) -> Observation:
    """Return what the one server of a connection says of itself."""
    [seen] = connection.server_stats().values()
    return seen


def everything(stream: Stream, tmp_path: Path, address: str) -> Server:
    return Server(
        stream,
        Table("replay", EXAMPLE, capacity=10, durability="async"),
        listen=address,
        checkpointer=Checkpointer(tmp_path / "checkpoints"),
        journal=tmp_path / "journal",
    )


@pytest.mark.parametrize("kind", ["tcp", "unix", "shm"])
def test_every_number_comes_with_its_name_and_meaning(kind: str, tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:0"
    if kind == "unix":
        address = f"unix://{tmp_path / 'address.sock'}"
    elif kind == "shm":
        address = f"shm://watched-{tmp_path.name}"
    stream = Stream(EXAMPLE, batch_size=4)
    with everything(stream, tmp_path, address) as server, connect(server.address) as watch:
        stream.extend({"obs": np.zeros((6, 4), np.float32)})
        with connect(server.address).stream(EXAMPLE) as client:
            client.add(EXAMPLE)
            client.flush()
            seen = observe(watch)
        flat = server.metrics()
        assert seen.release == echoic._native.ping(server.address, {})["server_version"]
        assert seen.age > 0
        assert seen.value("stream_inserted_samples_total") == 7
        assert seen.families["stream_inserted_samples_total"].kind == "counter"
        assert len(seen.connections) == 2
        assert {connection.address for connection in seen.connections} == {server.address}
        sent = sorted(connection.samples for connection in seen.connections)
        # What was written into shared memory is reported once a second.
        assert sent == [0, 1] or kind == "shm"
        for name, family in seen.families.items():
            assert family.help.endswith(".")
            for number in family.numbers:
                if "le" in number.labels or name == "connections_blocked":
                    continue
                own = ".".join([name + number.suffix, *number.labels.values()])
                assert own in flat
                if name.endswith("_total") and name.startswith(("stream", "table", "checkpoint")):
                    assert number.value == flat[own], own


def test_connections_have_the_names_of_their_clients(tmp_path: Path) -> None:
    shm = f"shm://named-{tmp_path.name}"
    own = f"{socket.gethostname()}:{os.getpid()}"
    server = Server(
        Stream(EXAMPLE, batch_size=4),
        Table("replay", EXAMPLE, capacity=10),
        RolloutTable("math", {"tokens": "int32"}, group_size=1, batch_groups=1),
        WeightStore(),
        listen=["tcp://127.0.0.1:0", shm],
    )
    with server, ExitStack() as opened:
        tcp, local = server.addresses
        for number, address in enumerate((tcp, local)):
            opened.enter_context(connect(address, name=f"actor-{number}").stream(EXAMPLE))
            opened.enter_context(connect(address, name=f"learner-{number}")).table("replay")
        opened.enter_context(connect([tcp], name="shards")).table("replay")
        opened.enter_context(connect(tcp, name="producer")).rollouts("math")
        opened.enter_context(connect(tcp, name="follower").weights()).subscribe().latest()
        opened.enter_context(connect(tcp).stream(EXAMPLE))
        watch = opened.enter_context(connect(tcp, name="\u202eme"))
        names = ["actor-0", "actor-1", *["learner-0", "learner-1", "shards"] * 2]
        expected = sorted([*names, "producer", "follower", own, "\u202eme"])
        deadline = time.monotonic() + 40
        while sorted(one.name for one in observe(watch).connections) != expected:
            assert time.monotonic() < deadline, [one.name for one in observe(watch).connections]
        assert sorted(one["name"] for one in server.connections()) == expected
        # What a person sees of a name that would turn the line around.
        assert "\\u202eme" in {one.name for one in read(observe(watch)).connections}


@pytest.mark.parametrize("name", ["", "x" * 129, "é" * 65, "two\nlines", "\x1b[2J"])
def test_a_name_that_could_not_be_shown_is_refused(name: str) -> None:
    message = r"name must be 1 to 128 bytes of UTF-8 without control characters, got \""
    connection = connect("tcp://127.0.0.1:1", name=name)
    for service in (
        lambda: connection.table("t"),
        lambda: connection.stream(EXAMPLE),
        lambda: connection.rollouts("math"),
        connection.weights,
        connection.server_stats,
    ):
        with pytest.raises(ValueError, match=message):
            service()


def test_a_server_without_tables_is_watched_and_so_is_one_without_a_stream() -> None:
    with Server(Stream(EXAMPLE, batch_size=4), listen="tcp://127.0.0.1:0") as server:
        seen = observe(connect(server.address))
        assert seen.value("stream_capacity_samples") == 16
        assert "table_items" not in seen.families
    with Server(Table("t", EXAMPLE, capacity=1), listen="tcp://127.0.0.1:0") as server:
        seen = observe(connect(server.address))
        assert seen.values("table_items", "table") == {"t": 0.0}
        assert "stream_capacity_samples" not in seen.families


def test_spreads_say_how_often_items_were_sampled_how_high_they_are_and_how_old() -> None:
    table = Table("t", 0.0, capacity=10, sampler=echoic.selectors.Fifo())
    with Server(table, listen="tcp://127.0.0.1:0") as server:
        for priority in (0.0, 0.5, 1.0, 5.0, 1e9):
            table.add(1.0, priority)
        table.publish_version(3)
        # The first item each time, which was made for version 0.
        table.sample(2)
        table.sample(1)
        table.remove(table.items().keys[4:])
        table.update_priorities(table.items().keys[:1], [2.0])
        seen = observe(connect(server.address))

    def spread(name: str) -> dict[float, float]:
        values = seen.values(name, "le", table="t")
        assert list(map(float, values)) == sorted(map(float, values))
        return {float(bound): count for bound, count in values.items()}

    times = spread("table_times_sampled")
    assert (times[0.0], times[1.0], times[2.0], times[4.0]) == (3, 3, 3, 4)
    priorities = spread("table_priorities")
    assert (priorities[0.0], priorities[0.25], priorities[1.0]) == (0, 0, 2)
    assert (priorities[4.0], priorities[16.0], priorities[float("inf")]) == (3, 4, 4)
    lags = spread("table_sampled_lag")
    assert (lags[2.0], lags[4.0], lags[float("inf")]) == (0, 3, 3)
    sums = {number.suffix: number.value for number in seen.families["table_sampled_lag"].numbers}
    assert (sums["_sum"], sums["_count"]) == (9, 3)


def test_spreads_survive_a_checkpoint_and_a_reset(tmp_path: Path) -> None:
    def open_server() -> Server:
        table = Table("t", 0.0, capacity=10)
        return Server(table, listen="tcp://127.0.0.1:0", checkpointer=Checkpointer(tmp_path))

    def spreads(server: Server) -> list[dict[str, float]]:
        seen = observe(connect(server.address))
        names = ("table_times_sampled", "table_priorities")
        return [seen.values(name, "le", table="t") for name in names]

    with open_server() as server:
        client = connect(server)
        for priority in (0.5, 3.0, 3.0):
            client.table("t").add(1.0, priority)
        client.table("t").sample(8)
        before = spreads(server)
        assert before[0]["+Inf"] == 3
        server.checkpoint()
    with open_server() as server:
        assert spreads(server) == before
        connect(server).table("t").clear()
        assert all(count == 0 for spread in spreads(server) for count in spread.values())


def test_checkpoints_and_journals_are_counted(tmp_path: Path) -> None:
    stream = Stream(EXAMPLE, batch_size=4)
    with (
        everything(stream, tmp_path, "tcp://127.0.0.1:0") as server,
        connect(server.address) as watch,
    ):
        assert observe(watch).value("checkpoints_total") == 0
        assert "checkpoint_age_seconds" not in observe(watch).families
        client = connect(server.address)
        client.table("replay").add(EXAMPLE)
        client.flush()
        server.checkpoint()
        seen = observe(watch)
        client.close()
    assert seen.value("checkpoints_total") == 1
    assert 0 < (seen.value("checkpoint_last_seconds") or 0) < 60
    assert 0 <= (seen.value("checkpoint_age_seconds") or 0) < 60
    assert (seen.value("checkpoint_bytes_total") or 0) > 0
    assert (seen.value("journal_written_bytes_total", table="replay") or 0) > EXAMPLE["obs"].nbytes
    assert (seen.value("journal_write_seconds_total", table="replay") or 0) > 0
    assert seen.value("journal_failed", table="replay") == 0
    memory = seen.values("memory_bytes", "tier")
    assert set(memory) == {"ring", "rows", "unwritten_journals", "received_chunks"}
    assert memory["ring"] == seen.value("stream_memory_bytes") >= 4 * 4 * 16
    assert memory["rows"] == seen.value("table_row_bytes", table="replay") > 0


def test_a_token_is_asked_for() -> None:
    stream = Stream(EXAMPLE, batch_size=4)
    with Server(stream, listen="tcp://127.0.0.1:0", token=b"right") as server:
        for token in (None, b"wrong"):
            with pytest.raises(RefusedError) as refused:
                connect(server.address, token=token).server_stats()
            assert refused.value.code == "AUTH"
        seen = observe(connect(server.address, token=b"right"))
        assert seen.values("connections_refused_total", "code") == {"AUTH": 2.0}


def test_a_watch_comes_back_when_the_server_does(tmp_path: Path) -> None:
    address = f"unix://{tmp_path / 'address.sock'}"
    with Server(Stream(EXAMPLE, batch_size=4), listen=address) as server:
        watch = connect(server.address)
        observe(watch)
    with pytest.raises((DisconnectedError, OSError)):
        observe(watch)
    with Server(Stream(EXAMPLE, batch_size=8), listen=address):
        assert observe(watch).value("stream_batch_samples") == 8


def test_a_watch_that_looks_seldom_connects_again() -> None:
    stream = Stream(EXAMPLE, batch_size=4)
    with Server(stream, listen="tcp://127.0.0.1:0", heartbeat=0.05) as server:
        watch = connect(server.address)
        observe(watch)
        with connect(server.address) as other:
            # This one answers pings while it is looked through; the other says nothing.
            until = time.monotonic() + 30
            while len(observe(other).connections) > 1:
                assert time.monotonic() < until
            # It is no worker that fell silent.
            assert observe(other).value("connections_silent_total") == 0
        # One more than were opened, unless a slow machine has cut more.
        assert (observe(watch).value("connections_accepted_total") or 0) >= 3


def test_a_ping_of_a_server_of_tables_alone_names_them() -> None:
    tables = [Table("a", EXAMPLE, capacity=1), Table("b", EXAMPLE, capacity=1)]
    with Server(*tables, listen="tcp://127.0.0.1:0") as server:
        answer = echoic._native.ping(server.address, {}, count=3)
    assert (answer["spec"], answer["tables"], len(answer["rtt"])) == (None, ["a", "b"], 3)


def test_a_closed_watch_looks_no_more() -> None:
    with Server(Stream(EXAMPLE, batch_size=4), listen="tcp://127.0.0.1:0") as server:
        watch = connect(server.address)
        watch.close()
        with pytest.raises(ClosedError, match="is closed"):
            observe(watch)


def test_a_look_at_a_server_that_is_silent_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(DisconnectedError):
            connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}").server_stats(timeout=0.3)
        assert time.monotonic() - start < 5
