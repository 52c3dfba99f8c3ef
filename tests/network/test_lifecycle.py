"""Servers and clients from their beginning to their end: nothing that was sent is lost."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import echoic
import numpy as np
import pytest
from content import NOTHING, SMALL, Intake, assert_exactly, by_producer, example, rows, sample
from polling import until
from workers import send_some

pytestmark = pytest.mark.timeout(50)


# Addresses.


def test_port_0_is_any_free_port(tcp: Any, connect: Any) -> None:
    servers = [tcp.open() for _ in range(2)]
    addresses = [server.address for server in servers]
    assert len(set(addresses)) == 2
    for server, address in zip(servers, addresses, strict=True):
        assert address.startswith("tcp://127.0.0.1:")
        assert not address.endswith(":0")
        connect(address).add(sample(0, 0, SMALL))
        assert server.addresses == (address,)


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"], indirect=True)
def test_an_address_in_use_is_refused_by_name(transport: Any, make_server: Any) -> None:
    address = transport.open().addresses[0]
    second = make_server(example(SMALL), listen=address)
    with pytest.raises(OSError, match="in use") as caught:
        second.start()
    assert address.split("://")[1] in str(caught.value)


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"], indirect=True)
def test_a_server_at_the_address_of_one_that_was_closed(
    transport: Any, make_server: Any, connect: Any
) -> None:
    server, intake = transport.open_and_take()
    address = server.address
    client = connect(server)
    client.extend(rows(0, 0, 100, SMALL))
    client.flush(timeout=10)
    assert_exactly(intake.finish()[0], 100)
    again = make_server(example(SMALL), 32, listen=address).start()
    assert again.addresses == (address,)
    intake = Intake(again)
    client.extend(rows(0, 0, 100, SMALL))
    client.flush(timeout=10)
    assert client.stats().reconnects >= 1
    client.close(timeout=10)
    assert_exactly(intake.finish()[0], 100)


def test_a_server_with_several_addresses(folder: Path, make_server: Any, connect: Any) -> None:
    ways = [
        "tcp://127.0.0.1:0",
        f"unix://{folder / 's'}",
        f"shm://echoic-test-{os.getpid()}-several",
    ]
    server = make_server(example(SMALL), 32, listen=ways).start()
    assert [address.split(":")[0] for address in server.addresses] == ["tcp", "unix", "shm"]
    intake = Intake(server)
    for producer, address in enumerate(server.addresses):
        client = connect(address)
        client.extend(rows(producer, 0, 100, SMALL))
        client.close(timeout=10)
    steps = intake.finish()
    for producer in range(3):
        assert_exactly(steps[producer], 100)


def test_a_server_has_an_address_when_it_has_one(make_server: Any) -> None:
    several = make_server(example(SMALL), 1, listen=["tcp://127.0.0.1:0"] * 2)
    with pytest.raises(ValueError, match=r"expected one address, got 0; .* start\(\)"):
        several.address
    several.start()
    with pytest.raises(ValueError, match="expected one address, got 2"):
        several.address


def test_a_unix_socket_is_its_users_own_and_goes_with_its_server(
    folder: Path, make_server: Any
) -> None:
    path = folder / "s"
    server = make_server(example(SMALL), listen=f"unix://{path}").start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.close()
    assert not path.exists()


@pytest.mark.parametrize("setting", ["max_connections", "threads"])
def test_settings_without_meaning_are_refused(tcp: Any, make_server: Any, setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        make_server(example(SMALL), listen=tcp.address(), **{setting: 0}).start()


# Ends.


@pytest.mark.parametrize("many", [False, True], ids=["add", "extend"])
@pytest.mark.parametrize("count", [1, 16_000])
def test_close_without_flush_delivers_everything(transport: Any, many: bool, count: int) -> None:
    server, intake = transport.open_and_take()
    with echoic.connect(server.address).stream(example(SMALL)) as client:
        if many:
            client.extend(rows(0, 0, count, SMALL))
        else:
            for step in range(count):
                client.add(sample(0, step, SMALL))
    assert_exactly(intake.finish()[0], count)


def test_a_process_that_ends_right_after_flush_loses_nothing(
    transport: Any, processes: Any
) -> None:
    server, intake = transport.open_and_take()
    script = """
import os, sys
sys.path.insert(0, {folder!r})
import echoic
from content import NOTHING, SMALL, example, rows
client = echoic.connect({address!r}).stream(example(SMALL))
client.extend(rows({producer}, 0, 16_000, SMALL))
client.flush()
os.kill(os.getpid(), 9)
"""
    started = [
        processes.script(
            script.format(
                folder=str(Path(__file__).parent), address=server.address, producer=producer
            )
        )
        for producer in range(4)
    ]
    for process in started:
        process.join()
        assert process.popen.returncode == -signal.SIGKILL, process.lines
    steps = intake.finish()
    for producer in range(4):
        assert_exactly(steps[producer], 16_000)


def test_what_a_closing_server_does_not_take_the_next_one_gets(
    socket_transport: Any, make_server: Any, connect: Any
) -> None:
    server, intake = socket_transport.open_and_take(batch_size=8, capacity=16)
    address = server.address
    client = connect(server)
    client.extend(rows(0, 0, 100_000, SMALL))
    first = intake.finish().get(0, NOTHING)
    # Each side knows the same, as soon as the client has heard the server's last word.
    until(lambda: client.stats().pending == 100_000 - len(first))
    again = make_server(example(SMALL), 8, listen=address).start()
    intake = Intake(again)
    client.close(timeout=20)
    assert_exactly(np.concatenate([first, intake.finish().get(0, NOTHING)]), 100_000)


def test_a_partial_batch_is_not_lost_when_the_server_closes(transport: Any, connect: Any) -> None:
    server = transport.open(batch_size=32)
    client = connect(server)
    client.extend(rows(0, 0, 40, SMALL))
    client.flush(timeout=10)
    server.close()
    assert len(server.stream.sample(timeout=10)) == 32
    rest = server.stream.rest(timeout=10)
    assert rest.data["step"].tolist() == list(range(32, 40))


def test_what_was_acknowledged_before_sigterm_is_taken_after_it(
    transport: Any, processes: Any, folder: Path, connect: Any
) -> None:
    intake = folder / "intake"
    server = processes.start("serve", transport.address(), intake=intake, capacity=64 * 32)
    client = connect(server.wait_for("ready"))
    server.ask("pause")
    client.extend(rows(0, 0, 1_000, SMALL))
    client.flush(timeout=10)
    server.signal(signal.SIGTERM)
    until(lambda: not client.stats().connected)
    server.ask("resume")
    assert server.done() == 1_000
    steps = by_producer([np.frombuffer(intake.read_bytes(), np.int64).reshape(-1, 2)])
    assert_exactly(steps[0], 1_000)


def test_a_close_with_clients_that_can_not_finish_ends_after_its_deadline(
    socket_transport: Any, connect: Any
) -> None:
    server = socket_transport.open(batch_size=2, capacity=4)
    client = connect(server)
    client.extend(rows(0, 0, 1_000, SMALL))
    # A client that has not begun to send when the server says goodbye sends nothing.
    until(lambda: server.stream.stats().inserted_total == 4)
    start = time.monotonic()
    server.close(0.5)
    assert time.monotonic() - start < 10
    assert server.stream.stats().inserted_total == 4
    with pytest.raises(echoic.errors.WaitTimeoutError):
        client.flush(timeout=0.2)
    # Each side knows the same, so the next server gets none of them again.
    assert client.stats().pending == 1_000 - 4


def test_ends_in_any_order_and_more_than_once(transport: Any, connect: Any) -> None:
    server = transport.open()
    client, other = connect(server), connect(server)
    client.close()
    client.close()
    assert client.closed
    for call in (
        lambda: client.add(sample(0, 0, SMALL)),
        lambda: client.extend(rows(0, 0, 2, SMALL)),
    ):
        with pytest.raises(echoic.errors.ClosedError):
            call()
    server.close()
    server.close()
    other.close(timeout=5)
    assert other.closed


def test_a_client_that_is_forgotten_leaves(transport: Any, connect: Any) -> None:
    server = transport.open()
    kept = connect(server)
    forgotten = echoic.connect(server.address).stream(example(SMALL))
    assert len(server.connections()) == 2
    del forgotten
    until(lambda: len(server.connections()) == 1)
    kept.add(sample(0, 0, SMALL))
    kept.flush(timeout=5)


def test_a_script_that_ends_without_a_close_delivers_what_it_sent(
    transport: Any, processes: Any
) -> None:
    server, intake = transport.open_and_take()
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import echoic
from content import NOTHING, SMALL, example, rows
clients = [echoic.connect({server.address!r}).stream(example(SMALL)) for _ in range(2)]
for producer, client in enumerate(clients):
    client.extend(rows(producer, 0, 16_000, SMALL))
"""
    process = processes.script(script)
    process.join()
    assert process.popen.returncode == 0, process.lines
    steps = intake.finish()
    for producer in range(2):
        assert_exactly(steps[producer], 16_000)


def test_a_script_that_ends_with_clients_that_can_not_deliver_ends_soon(
    socket_transport: Any, processes: Any
) -> None:
    server = socket_transport.open(batch_size=2, capacity=4)
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import echoic
from content import NOTHING, SMALL, example, rows
echoic._links._EXIT_TIMEOUT = 2.0
clients = [echoic.connect({server.address!r}).stream(example(SMALL)) for _ in range(4)]
for client in clients:
    client.extend(rows(0, 0, 1_000, SMALL))
print("over", flush=True)
"""
    process = processes.script(script)
    process.wait_for("over")
    start = time.monotonic()
    process.join()
    # As long for all together as for one.
    assert time.monotonic() - start < 8
    assert process.popen.returncode == 0, process.lines


# Who may use a client.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_forked_child_closes_and_drops_stays_with_its_parent(
    transport: Any, connect: Any
) -> None:
    server = transport.open(batch_size=4, capacity=8)
    server.stream.extend(rows(0, 0, 4, SMALL))
    held = server.stream.sample()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            del held
            with server:
                pass
            server.close()
            status = 0 if server.closed else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert not server.closed
    client = connect(server)
    client.extend(rows(0, 4, 4, SMALL))
    client.flush(timeout=20)
    # The batch that is held has not been given back, so there is no room.
    with pytest.raises(echoic.errors.WaitTimeoutError):
        server.stream.add(sample(0, 8, SMALL), timeout=0)
    assert held.data["step"].tolist() == [0, 1, 2, 3]
    assert server.stream.sample(timeout=20).data["step"].tolist() == [4, 5, 6, 7]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(transport: Any, connect: Any) -> None:
    server, intake = transport.open_and_take()
    client = connect(server)
    client.add(sample(0, 0, SMALL))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (
            lambda: client.add(sample(0, 1, SMALL)),
            lambda: client.extend(rows(0, 1, 2, SMALL)),
            lambda: client.flush(timeout=1),
        ):
            try:
                call()
            except echoic.errors.ClosedError as error:
                said.append(str(error))
        # A client of the child's own works.
        with echoic.connect(server.address).stream(example(SMALL)) as own:
            own.extend(rows(1, 0, 10, SMALL))
        os.write(writing, "\n".join(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert len(said) == 3
    assert all("fork" in line for line in said)
    client.add(sample(0, 1, SMALL))
    client.close(timeout=10)
    steps = intake.finish()
    assert_exactly(steps[0], 2)
    assert_exactly(steps[1], 10)


def test_a_client_that_is_pickled_connects_anew(transport: Any, connect: Any) -> None:
    server, intake = transport.open_and_take()
    client = connect(server)
    client.extend(rows(0, 0, 100, SMALL))
    with pickle.loads(pickle.dumps(client)) as copy:
        copy.extend(rows(1, 0, 100, SMALL))
        assert copy.stats().samples_sent == 100
    client.close(timeout=10)
    steps = intake.finish()
    assert_exactly(steps[0], 100)
    assert_exactly(steps[1], 100)


def test_processes_that_are_spawned_with_a_client(transport: Any, connect: Any) -> None:
    server, intake = transport.open_and_take()
    client = connect(server)
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=send_some, args=(client, producer, 1_000)) for producer in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    steps = intake.finish()
    for producer in range(2):
        assert_exactly(steps[producer], 1_000)


def test_threads_that_share_a_client_do_not_mix_samples(
    transport: Any, connect: Any, background: Any
) -> None:
    server, intake = transport.open_and_take()
    client = connect(server, window_bytes=1 << 16)

    def send(producer: int) -> None:
        step = 0
        while step < 2_000:
            if producer % 2:
                client.add(sample(producer, step, SMALL))
                step += 1
            else:
                client.extend(rows(producer, step, 25, SMALL))
                step += 25
            if step % 500 == 0:
                client.flush(timeout=20)

    results = [background.start(send, producer) for producer in range(8)]
    for result in results:
        result()
    client.close(timeout=10)
    steps = intake.finish()
    for producer in range(8):
        assert_exactly(steps[producer], 2_000)


# Giving up.


@pytest.mark.parametrize("setting", [{"reconnect": 0.5}])
def test_a_client_that_gives_up_says_how_many_and_keeps_them(
    socket_transport: Any, processes: Any, connect: Any, setting: dict[str, Any]
) -> None:
    server = processes.start("serve", socket_transport.address())
    client = connect(server.wait_for("ready"), **setting)
    client.extend(rows(0, 0, 10, SMALL))
    client.flush(timeout=10)
    server.kill()
    client.extend(rows(0, 10, 90, SMALL))
    start = time.monotonic()
    with pytest.raises(echoic.errors.DisconnectedError, match="90") as caught:
        client.flush(timeout=20)
    assert time.monotonic() - start < 15
    assert caught.value.undelivered == 90
    assert isinstance(caught.value, echoic.EchoicError)
    assert isinstance(caught.value, ConnectionError)
    with pytest.raises(echoic.errors.DisconnectedError):
        client.add(sample(0, 100, SMALL))
    kept = client.undelivered()
    assert kept["step"].tolist() == list(range(10, 100))
    with pytest.raises(echoic.errors.DisconnectedError):
        client.close(timeout=5)
    # They can go to another server.
    other, intake = socket_transport.open_and_take()
    with echoic.connect(other.addresses[0]).stream(example(SMALL)) as heir:
        heir.extend(rows(0, 0, 10, SMALL))
        heir.extend(kept)
    assert_exactly(intake.finish()[0], 100)


def test_a_client_that_has_delivered_everything_keeps_nothing(transport: Any, connect: Any) -> None:
    client = connect(transport.open())
    client.add(sample(0, 0, SMALL))
    client.flush(timeout=10)
    client.close(timeout=10)
    assert client.undelivered() is None


def test_a_send_that_waits_ends_when_the_client_gives_up(
    transport: Any, processes: Any, connect: Any, background: Any
) -> None:
    server = processes.start("serve", transport.address())
    client = connect(server.wait_for("ready"), reconnect=1.0, window_bytes=1 << 12)
    server.kill()
    many = background.start(client.extend, rows(0, 0, 10_000, SMALL))
    with pytest.raises(echoic.errors.DisconnectedError):
        many()


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"], indirect=True)
def test_nobody_at_the_address(transport: Any) -> None:
    address = transport.address().replace(":0", ":1")
    start = time.monotonic()
    with pytest.raises(echoic.errors.DisconnectedError) as caught:
        echoic.connect(address, timeout=0.5).stream(example(SMALL))
    assert time.monotonic() - start < 5
    assert address.split("://")[1] in str(caught.value)


def test_a_shared_memory_client_that_gives_up_has_kept_nothing(
    processes: Any, connect: Any
) -> None:
    server = processes.start("serve", f"shm://echoic-test-{os.getpid()}-gone")
    client = connect(server.wait_for("ready"), reconnect=0.5)
    client.extend(rows(0, 0, 10, SMALL))
    server.kill()
    with pytest.raises(echoic.errors.DisconnectedError) as caught:
        # More than the ring of a server that is gone holds.
        client.extend(rows(0, 10, 10_000, SMALL))
    assert caught.value.undelivered == 0
    assert client.undelivered() is None


# Waiting.


def test_a_full_ring_keeps_a_shared_memory_client_waiting(make_server: Any, connect: Any) -> None:
    way = f"shm://echoic-test-{os.getpid()}-full"
    server = make_server(example(SMALL), 2, 4, listen=way).start()
    client = connect(server)
    client.extend(rows(0, 0, 4, SMALL))
    with pytest.raises(echoic.errors.WaitTimeoutError) as caught:
        client.add(sample(0, 4, SMALL), timeout=0.2)
    assert caught.value.reason == "CAPACITY"
    intake = Intake(server)
    client.extend(rows(0, 4, 1_000, SMALL), timeout=10)
    client.close(timeout=10)
    assert_exactly(intake.finish()[0], 1_004)


def test_a_full_window_says_why_it_waits(socket_transport: Any, connect: Any) -> None:
    server = socket_transport.open(batch_size=2, capacity=4)
    client = connect(server, window_bytes=1 << 12)
    sent, reason = 0, None
    while sent < 10_000 and reason is None:
        try:
            client.add(sample(0, sent, SMALL), timeout=0.3)
        except echoic.errors.WaitTimeoutError as error:
            reason = error.reason
        else:
            sent += 1
    assert reason == "CAPACITY"
    assert 4 <= sent < 1_000
    assert client.stats().blocked_time >= 0.25
    with pytest.raises(echoic.errors.WaitTimeoutError):
        client.flush(timeout=0.2)
    # It goes on as if nothing had been.
    intake = Intake(server)
    client.extend(rows(0, sent, 1_000, SMALL))
    client.close(timeout=10)
    assert_exactly(intake.finish()[0], sent + 1_000)


def test_a_close_in_another_thread_ends_a_send_that_waits(
    socket_transport: Any, connect: Any, background: Any
) -> None:
    client = connect(socket_transport.open(batch_size=2, capacity=4), window_bytes=1 << 12)
    many = background.start_and_let_block(client.extend, rows(0, 0, 10_000, SMALL))
    with pytest.raises(echoic.EchoicError):
        client.close(timeout=0.3)
    with pytest.raises(echoic.EchoicError):
        many()


def test_a_closed_server_opens_no_address(folder: Path) -> None:
    path = folder / "s"
    server = echoic.Server(echoic.Table("t", capacity=10), listen=f"unix://{path}")
    server.close()
    with pytest.raises(echoic.errors.ClosedError, match="closed"):
        server.start()
    assert not path.exists()


def test_a_path_is_no_address_to_listen_at(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"expected addresses such as .* got a .*Path"):
        echoic.Server(echoic.Table("t", capacity=10), listen=folder / "s")  # type: ignore[arg-type]


# Connections.


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_nothing_waits_for_a_link_that_another_thread_opens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        client = echoic.connect(address, timeout=1.0)

        def fail() -> None:
            with pytest.raises(echoic.errors.DisconnectedError):
                client.table("t")

        opening = threading.Thread(target=fail)
        opening.start()
        accepted, _ = silent.accept()
        with accepted:
            begun = time.monotonic()
            assert client.stats() == echoic.connection.ConnectionStats()
            client.flush()
            # A forked child does not wait for the parent's thread either, but opens its own link.
            if (child := os.fork()) == 0:
                signal.alarm(10)
                status = 1
                try:
                    fail()
                    status = 0
                finally:
                    os._exit(status)
            with pytest.raises(echoic.errors.WaitTimeoutError, match="is being opened"):
                client.close(0.1)
            assert time.monotonic() - begun < 0.5
            opening.join()
            assert os.waitpid(child, 0)[1] == 0
        client.close(0.1)


def test_a_stream_is_the_same_only_for_examples_of_the_same_structure(
    make_server: Any, folder: Path
) -> None:
    pair = (np.float32(0), np.float32(0))
    server = make_server(pair, 2, listen=f"unix://{folder / 's'}").start()
    with echoic.connect(server.address) as client:
        assert client.stream(pair) is client.stream(pair)
        client.stream(pair).add(pair)
        client.stream(list(pair)).add(list(pair))
        client.flush()
    assert len(server.stream) == 2


@pytest.mark.parametrize("local", [True, False])
def test_a_closed_connection_returns_no_stores(folder: Path, local: bool) -> None:
    stores: list[Any] = [
        echoic.Table("t", 0.0, capacity=10),
        echoic.Stream(0.0, batch_size=2),
        echoic.RolloutTable("r", {"tokens": "int32"}, batch_groups=1),
        echoic.WeightStore(),
    ]
    with echoic.Server(*stores, listen=f"unix://{folder / 's'}") as server:
        client = echoic.connect(server if local else server.address)
        stores[0].add(1.0)
        batches = client.table("t").batches(1, prefetch=2)
        next(batches)
        for _ in range(2):
            for service in (
                lambda: client.table("t"),
                lambda: client.tables,
                lambda: client.stream(0.0),
                lambda: client.rollouts("r"),
                client.weights,
                client.trajectory_writer,
                client.server_stats,
            ):
                if client._closed:
                    with pytest.raises(echoic.errors.ClosedError, match=r"connection .* is closed"):
                        service()
                else:
                    service()
            client.close()
        # A table of this process goes on. Of another one there is what was fetched before.
        assert local or len(list(batches)) <= 2
        client.flush()
        assert client.stats().connected == 0


@pytest.mark.parametrize("local", [True, False])
def test_what_a_server_lacks_is_the_same_error_for_every_service(folder: Path, local: bool) -> None:
    def ask(store: Any, lacking: dict[str, Any]) -> None:
        with (
            echoic.Server(store, listen=f"unix://{folder / 's'}") as server,
            echoic.connect(server if local else server.address) as client,
        ):
            for text, service in lacking.items():
                with pytest.raises(echoic.errors.EchoicError, match=text) as caught:
                    service(client)
                named = text.startswith("there is no")
                code = getattr(caught.value, "code", None)
                assert isinstance(caught.value, echoic.errors.TableNotFoundError) == named
                assert code == (None if named else "SERVICE")

    stream = {"no stream; it has (tables|weights)": lambda one: one.stream(0.0)}
    rollouts = {"there is no rollout table 'r'": lambda one: one.rollouts("r")}
    weights = {"no weights; it has (a stream|tables)": lambda one: one.weights().subscribe()}
    tables = {"there is no table 'x'": lambda one: one.table("x")}
    ask(echoic.Table("t", 0.0, capacity=10), stream | rollouts | weights | tables)
    every = {"no tables; it has a stream": lambda one: one.tables}
    ask(echoic.Stream(0.0, batch_size=2), rollouts | weights | tables | every)
    ask(echoic.WeightStore(), stream | rollouts | tables)


@pytest.mark.parametrize("to", [5, b"tcp://127.0.0.1:1", object()])
def test_what_is_no_address_is_refused_by_its_type(to: Any) -> None:
    with pytest.raises(TypeError, match=f"expected an address .* got a {type(to).__name__}"):
        echoic.connect(to)


@pytest.mark.parametrize(
    ("argument", "value"), [("timeout", -1), ("timeout", float("nan")), ("reconnect", -0.5)]
)
def test_a_time_that_is_none_is_refused_at_once_by_its_name(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{argument} must be a number of seconds >= 0, got "):
        echoic.connect("tcp://127.0.0.1:1", **{argument: value})


def test_tls_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a Tls in tls, got True"):
        echoic.connect("tls://127.0.0.1:1", tls=True)  # type: ignore[arg-type]


def test_what_is_for_several_servers_says_so_before_it_connects() -> None:
    with pytest.raises(TypeError, match=r"refresh is for several servers, and tcp://.* is one"):
        echoic.connect("tcp://127.0.0.1:1", timeout=0.0).refresh()


def test_remote_stores_say_where_their_server_is(folder: Path) -> None:
    stream = echoic.Stream(0.0, batch_size=2)
    with echoic.Server(stream, echoic.WeightStore(), listen=f"unix://{folder / 's'}") as server:
        client = echoic.connect(server.address)
        stores = {"RemoteStream": client.stream(0.0), "RemoteWeightStore": client.weights()}
        for kind, store in stores.items():
            assert repr(store) == f"{kind}({server.address})"
        client.close()
        for kind, store in stores.items():
            assert repr(store) == f"{kind}({server.address}, closed)"


def test_a_short_timeout_of_server_stats_is_kept_beside_a_long_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = echoic.connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}")

        def fail(timeout: float) -> None:
            with pytest.raises(echoic.errors.DisconnectedError):
                client.server_stats(timeout)

        long = threading.Thread(target=fail, args=(1.0,))
        long.start()
        accepted, _ = silent.accept()
        with accepted:
            begun = time.monotonic()
            fail(0.05)
            assert time.monotonic() - begun < 0.5
            long.join()
