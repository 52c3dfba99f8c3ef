"""Many clients at once, more than may enter, and more than the system has descriptors for."""

from __future__ import annotations

import socket
import time
from typing import Any

import echoic
import numpy as np
import pytest
from content import assert_exactly, by_producer
from polling import until

pytestmark = pytest.mark.timeout(58)

PROCESSES, CLIENTS, EACH = 8, 8, 50
CONNECTIONS = 2_000


def test_64_clients_of_8_processes_that_connect_at_once(transport: Any, processes: Any) -> None:
    server, intake = transport.open_and_take()
    started = [
        processes.start(
            "rush",
            server.address,
            producer=number * CLIENTS,
            connections=CLIENTS,
            count=EACH,
        )
        for number in range(PROCESSES)
    ]
    for process in started:
        process.wait_for("ready")
    for process in started:
        process.tell("go")
    assert [process.done() for process in started] == [CLIENTS * EACH] * PROCESSES
    steps = intake.finish()
    assert sorted(steps) == list(range(PROCESSES * CLIENTS))
    for producer in steps:
        assert_exactly(steps[producer], EACH)


@pytest.mark.parametrize("kind", ["tcp", pytest.param("unix", marks=pytest.mark.nightly), "shm"])
def test_2000_connections_of_one_process_and_why_there_is_no_more(
    folder: Any, processes: Any, kind: str
) -> None:
    address = {"tcp": "tcp://127.0.0.1:0", "unix": f"unix://{folder}/s", "shm": "shm://echoic-test"}
    intake = folder / "intake"
    server = processes.start(
        "serve",
        address[kind],
        intake=intake,
        batch_size=100,
        files=4 * CONNECTIONS,
        options={"max_connections": CONNECTIONS},
    )
    crowd = processes.start("crowd", server.wait_for("ready"), connections=CONNECTIONS, rows=5)
    crowd.wait_for("ready")
    refused = crowd.wait_for("refused")
    assert refused.startswith("LIMIT ")
    assert f"{CONNECTIONS}" in refused
    assert "max_connections" in refused
    assert int(crowd.wait_for("delivered")) == CONNECTIONS * 5
    assert crowd.stop() == CONNECTIONS
    assert int(server.ask("refused")) >= 1
    assert server.stop() == CONNECTIONS * 5
    steps = by_producer([np.frombuffer(intake.read_bytes(), np.int64).reshape(-1, 2)])
    assert len(steps) == CONNECTIONS
    for producer in range(CONNECTIONS):
        assert_exactly(steps[producer], 5)


def test_a_place_that_becomes_free_can_be_taken(transport: Any, connect: Any) -> None:
    server = transport.open(max_connections=2)
    first, _second = connect(server), connect(server)
    with pytest.raises(echoic.errors.RefusedError, match="max_connections") as caught:
        connect(server, timeout=1.0)
    assert caught.value.code == "LIMIT"
    first.close(timeout=5)

    def enters() -> bool:
        try:
            connect(server, timeout=0.2)
        except (echoic.errors.RefusedError, echoic.errors.DisconnectedError):
            return False
        return True

    until(enters)


def test_running_out_of_descriptors_neither_spins_nor_floods(tcp: Any, processes: Any) -> None:
    server = processes.start("serve", tcp.address(), files=40)
    address = server.wait_for("ready")
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    standing = processes.start("send", address, pause=0.01, report=10)
    until(lambda: standing.acked > 0)
    strangers = [socket.create_connection((host, int(port))) for _ in range(100)]
    # A connection that stands goes on.
    before = standing.acked
    until(lambda: standing.acked > before)
    cpu, start = server.cpu(), time.monotonic()
    time.sleep(1.0)
    # The one sender costs something too.
    assert server.cpu() - cpu < 0.4 * (time.monotonic() - start)
    assert len(server.lines) < 5
    for stranger in strangers:
        stranger.close()
    late = processes.start("send", address, producer=1, count=100)
    assert late.done() == 100
    sent = standing.stop()
    assert server.stop() == sent + 100
