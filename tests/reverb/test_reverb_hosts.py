"""Where servers can be reached from, and what they ask of clients."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from reverb_under_test import UPSTREAM, reverb, submodule

server_of_this_process = None if UPSTREAM else submodule("_engine.server").server_of_this_process
pytestmark = pytest.mark.skipif(UPSTREAM, reason="upstream listens everywhere and asks nothing")


def addresses(port):
    """Local addresses at which something listens."""
    found = []
    for host in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                found.append(host)
    return found


def ask(port, **environment):
    """Ask a server for its tables, from another process."""
    code = f"import echoic.reverb as r; print(*r.Client('127.0.0.1:{port}').server_info(5))"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_server_listens_for_its_own_machine(make_server, make_table, monkeypatch):
    monkeypatch.delenv("ECHOIC_REVERB_HOST", raising=False)
    assert addresses(make_server(make_table()).port) == ["127.0.0.1"]


def test_others_reach_it_only_with_a_secret(make_server, make_table, monkeypatch):
    monkeypatch.setenv("ECHOIC_REVERB_HOST", "0.0.0.0")
    with pytest.raises(ValueError, match="token"):
        make_server(make_table())
    monkeypatch.setenv("ECHOIC_REVERB_TOKEN", "a secret of some length")
    server = make_server(make_table("secret"))
    assert addresses(server.port) == ["127.0.0.1", "127.0.0.2"]

    assert ask(server.port).stdout == "secret\n"
    refused = ask(server.port, ECHOIC_REVERB_TOKEN="another one")
    assert refused.stdout == ""
    assert "RuntimeError" in refused.stderr


def test_addresses_of_grpc_are_understood(make_server, make_table):
    port = make_server(make_table()).port
    for target in (f"localhost:{port}", f"dns:///localhost:{port}", f"ipv4:127.0.0.1:{port}"):
        assert list(reverb.Client(target).server_info()) == ["table"]


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", "localhost:http", ":1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="HOST:PORT"):
        reverb.Client(address)


def test_waiting_for_a_server_can_be_interrupted():
    code = (
        "import echoic.reverb as r; print('go', flush=True); r.Client('localhost:1').server_info()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "go\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_server_that_comes_later_is_found(make_table, make_server):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"import echoic.reverb as r; r.Client('localhost:{port}').insert(3, {{'table': 1.0}})"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        time.sleep(0.2)
        server = make_server(make_table(), port=port)
        assert child.wait(30) == 0
    [[sample]] = server.localhost_client().sample("table")
    assert sample.data == [3]


def test_wait_ends_with_the_server_or_an_interrupt(tmp_path):
    code = """
import threading, signal, os
import echoic.reverb as reverb
server = reverb.Server([reverb.Table.queue("q", 1)])
threading.Timer(0.1, server.stop).start()
server.wait()
print("stopped")
server = reverb.Server([reverb.Table.queue("q", 1)])
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    server.wait()
except KeyboardInterrupt:
    print("interrupted")
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr) == ("stopped\ninterrupted\n", "")


def test_a_server_stopped_twice_leaves_its_successor_at_the_port_alone(make_server, make_table):
    first = make_server(make_table())
    first.stop()
    second = make_server(make_table(), port=first.port)
    first.stop()
    assert server_of_this_process("localhost", second.port) is second._server
