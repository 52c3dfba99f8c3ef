"""`reverb.Server`: its arguments, its life and its death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from polling import free_port
from reverb_under_test import NAME, PATIENCE, reverb, sample_values, spec


def listens(port):
    with socket.socket() as probe:
        probe.settimeout(PATIENCE)
        return probe.connect_ex(("localhost", port)) == 0


@pytest.mark.parametrize("tables", [[], (), None])
def test_a_server_needs_a_table(tables):
    with pytest.raises(ValueError, match="At least one table must be provided"):
        reverb.Server(tables)


def test_a_server_needs_the_argument_tables():
    with pytest.raises(ValueError, match="At least one table must be provided"):
        reverb.Server()


def test_tables_need_names_of_their_own(make_table):
    tables = [make_table(name) for name in ("a", "b", "c", "b", "a")]
    with pytest.raises(ValueError, match="Multiple items in tables have the same name: a, b"):
        reverb.Server(tables)


def test_a_checkpointer_must_be_one(make_table):
    with pytest.raises((AttributeError, TypeError)):
        reverb.Server([make_table()], checkpointer=3)


def test_a_port_must_be_a_number(make_table):
    with pytest.raises(TypeError):
        reverb.Server([make_table()], port="here")


def test_the_tables_may_be_a_tuple(make_table):
    server = reverb.Server((make_table("a"), make_table("b")))
    try:
        assert set(server.localhost_client().server_info()) == {"a", "b"}
    finally:
        server.stop()


def test_a_port_is_picked(make_server, make_table):
    first = make_server(make_table())
    second = make_server(make_table(), port=None)
    assert isinstance(first.port, int)
    assert 0 < first.port < 65536
    assert first.port != second.port
    assert listens(first.port)


def test_a_port_may_be_given(make_server, make_table):
    port = free_port()
    server = make_server(make_table(), port=port)
    assert server.port == port
    client = reverb.Client(f"localhost:{port}")
    client.insert(1, {"table": 1.0})
    assert sample_values(client, "table") == [1]


def test_the_port_cannot_be_set(make_server, make_table):
    with pytest.raises(AttributeError):
        make_server(make_table()).port = 3


def test_the_arguments_may_be_positional(make_table, tmp_path):
    port = free_port()
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
    server = reverb.Server([make_table()], port, checkpointer)
    try:
        assert server.port == port
        assert server.localhost_client().checkpoint().startswith(str(tmp_path))
    finally:
        server.stop()


def test_a_localhost_client_is_a_client_of_the_server(make_server, make_table):
    server = make_server(make_table())
    client = server.localhost_client()
    assert isinstance(client, reverb.Client)
    assert client.server_address == f"localhost:{server.port}"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_is_reached_at_its_port(make_server, make_table, host):
    server = make_server(make_table())
    client = reverb.Client(f"{host}:{server.port}")
    client.insert(1, {"table": 1.0})
    assert sample_values(server.localhost_client(), "table") == [1]


def test_servers_are_independent(make_server, make_table):
    clients = [make_server(make_table()).localhost_client() for _ in range(3)]
    for value, client in enumerate(clients):
        client.insert(value, {"table": 1.0})
    assert [sample_values(client, "table") for client in clients] == [[0], [1], [2]]


def test_repr_names_the_port_and_the_tables(make_server, make_table):
    server = make_server(make_table("first"), make_table("second"))
    assert f"port={server.port}" in repr(server)
    assert "name=first" in repr(server)
    assert "name=second" in repr(server)


def test_stop_frees_the_port(make_server, make_table):
    server = make_server(make_table())
    assert listens(server.port)
    assert server.stop() is None
    assert not listens(server.port)


def test_stop_may_be_called_again(make_server, make_table):
    server = make_server(make_table())
    server.stop()
    server.stop()


def test_a_stopped_server_still_tells_its_port(make_server, make_table):
    server = make_server(make_table())
    port = server.port
    server.stop()
    assert server.port == port


def test_the_last_reference_stops_the_server(make_table):
    server = reverb.Server([make_table()])
    port = server.port
    assert listens(port)
    del server
    assert not listens(port)


def test_a_table_outlives_its_server(make_server, make_table):
    table = make_table()
    server = make_server(table)
    server.localhost_client().insert(1, {"table": 1.0})
    server.stop()
    assert table.name == "table"
    assert table.info.current_size == 1


def test_wait_ends_with_the_server(make_server, make_table, start):
    server = make_server(make_table())
    wait = start(server.wait)
    assert wait.is_blocked()
    server.stop()
    assert wait.result() is None


def test_wait_returns_at_once_after_stop(make_server, make_table):
    server = make_server(make_table())
    server.stop()
    assert server.wait() is None


@pytest.mark.upstream_differs
def test_sampling_from_a_stopped_server_is_refused(make_server, make_table):
    server = make_server(make_table(signature=spec([None], np.int64)))
    client = server.localhost_client()
    client.insert(1, {"table": 1.0})
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "table", 1)
    server.stop()
    for sample in (
        lambda: next(client.sample("table")),
        lambda: next(reverb.Client(client.server_address).sample("table")),
        lambda: next(client.sample("table", unpack_as_table_signature=True)),
        lambda: next(iter(dataset)),
    ):
        with pytest.raises(RuntimeError, match=f":{server.port} was stopped"):
            sample()
    # Another server at this port is one to sample from.
    make_server(make_table(), port=server.port).localhost_client().insert(2, {"table": 1.0})
    assert sample_values(client, "table") == [2]


@pytest.mark.upstream_differs
def test_an_insert_goes_on_at_the_server_that_follows(make_server, make_table, start):
    first = make_server(reverb.Table.queue("table", 1))
    client = first.localhost_client()
    client.insert(1, {"table": 1.0})
    insert = start(client.insert, 2, {"table": 1.0})
    assert insert.is_blocked()
    first.stop()
    second = make_server(make_table(), port=first.port)
    insert.result()
    assert sample_values(second.localhost_client(), "table") == [2]


PRODUCER = f"""
import sys, threading, time
import {NAME} as reverb

server = reverb.Server([reverb.Table.queue("table", 100)])
client = reverb.Client(f"localhost:{{server.port}}")

def insert():
    client.insert(1, {{"table": 1.0}})

def write(writer=client.writer(1, max_in_flight_items=None)):
    writer.append(1)
    writer.create_item("table", 1, 1.0)

def write_trajectory(writer=client.trajectory_writer(1)):
    writer.append([1])
    writer.create_item("table", 1.0, [writer.history[0][-1:]])

pattern = reverb.structured.pattern_from_transform([None], lambda step: [step[0][-1:]])
config = reverb.structured.create_config(pattern, "table")

def write_structured(writer=client.structured_writer([config])):
    writer.append([1])

def produce():
    while True:
        globals()[sys.argv[1]]()
        time.sleep(0.001)

threading.Thread(target=produce, daemon=True).start()
for _ in client.sample("table", 50):
    pass
server.stop()
"""


@pytest.mark.upstream_differs
@pytest.mark.parametrize("produce", ["insert", "write", "write_trajectory", "write_structured"])
def test_producers_say_nothing_when_a_program_ends(produce):
    ended = subprocess.run(
        [sys.executable, "-c", PRODUCER, produce],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert ended.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="a signal is sent")
def test_an_interrupt_ends_wait():
    source = f"""
import {NAME} as reverb
server = reverb.Server([reverb.Table.queue("queue", 3)])
try:
    print("waiting", flush=True)
    server.wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "waiting\n"
        # Most likely it waits by now; the test is right either way.
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert "interrupted" in out, err
    assert process.returncode == 0
