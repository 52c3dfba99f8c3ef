"""Servers that die and come back at their port, with clients that stay."""

import socket
import threading

import pytest
from reverb_under_test import UPSTREAM, reverb

pytestmark = pytest.mark.skipif(UPSTREAM, reason="what is tested is ours")

SERVER = """
import sys
import echoic.reverb as reverb
tables = [reverb.Table.queue(name, 100) for name in sys.argv[2:]]
server = reverb.Server(tables, port=int(sys.argv[1]))
print("ready", flush=True)
server.wait()
"""


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def serve(forks, port):
    """Start a server of queues in another process, in place of the one before it."""
    processes = []

    def end():
        if processes:
            processes[-1].kill()
            processes[-1].wait()

    def start(*names):
        end()
        process = forks.run(SERVER, str(port), *names)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"

    start.end = end
    yield start
    end()
    for process in processes:
        process.stdin.close()
        process.stdout.close()


def sampled(client, table):
    [[step]] = client.sample(table)
    return step.data[0].item()


def test_a_client_goes_on_with_a_new_server(serve, port):
    serve("q")
    client = reverb.Client(f"localhost:{port}")
    client.insert(1, {"q": 1.0})
    assert sampled(client, "q") == 1
    serve("q")
    client.insert(2, {"q": 1.0})
    assert sampled(client, "q") == 2


def test_a_client_finds_the_tables_of_a_new_server(serve, port):
    serve("old")
    client = reverb.Client(f"localhost:{port}")
    client.insert(1, {"old": 1.0})
    serve("new")
    # The connection learns of it when it comes back.
    for _ in range(100):
        try:
            names = list(client.server_info())
        except RuntimeError:
            continue
        if names == ["new"]:
            break
    assert names == ["new"]
    client.insert(2, {"new": 1.0})
    assert sampled(client, "new") == 2


def test_a_server_that_has_gone_is_not_waited_for_longer_than_said(serve, port):
    serve("q")
    client = reverb.Client(f"localhost:{port}")
    assert list(client.server_info(timeout=10)) == ["q"]
    serve.end()
    with pytest.raises(reverb.DeadlineExceededError, match="provided timeout of 1s"):
        client.server_info(timeout=1)
    with pytest.raises(RuntimeError):
        client.checkpoint()


def test_a_writer_delivers_to_a_new_server_what_the_old_one_never_had(serve, port):
    serve("q")
    client = reverb.Client(f"localhost:{port}")
    writer = client.trajectory_writer(1)
    writer.append([0])
    writer.create_item("q", 1.0, [writer.history[0][-1:]])
    writer.flush()
    serve("q")
    writer.append([1])
    writer.create_item("q", 1.0, [writer.history[0][-1:]])
    writer.flush()
    assert sampled(client, "q") == 1


def test_who_waits_for_a_sample_gets_it_from_a_new_server(serve, port):
    serve("q")
    client = reverb.Client(f"localhost:{port}")
    found = []
    waiting = threading.Thread(target=lambda: found.append(sampled(client, "q")), daemon=True)
    waiting.start()
    serve("q")
    reverb.Client(f"localhost:{port}").insert(7, {"q": 1.0})
    waiting.join(30)
    assert found == [7]
