"""`echoic.echo`: programs of id-echo 0.2, from what theirs does under the same calls."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic import echo
from echoic.errors import ClosedError, WaitTimeoutError
from polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLE = {"x": np.zeros(4, np.float32)}


def sample(value: float) -> dict[str, Any]:
    return {"x": np.full(4, value, np.float32)}


@pytest.fixture
def server() -> Iterator[echo.Server]:
    with echo.Server(EXAMPLE, 2, echo.TcpTransport(0, 2), num_buffers=3) as server:
        yield server


PROGRAM = """
import sys
import echo
import numpy as np
from echo.echo import HistSnapshot, SampleInfo
from echo.server import Sample
from echo.tcp_client import ConnectionClosedError
from echo.trajectory_accumulator import TrajectoryAccumulator

example = {"x": np.zeros(3, np.float32)}
server = echo.Server(example, 2, echo.TcpTransport(port=0), 3, 8, 8, False)
server.start()
client = echo.TcpClient(host="localhost", port=server.port, data_sample=example)
for value in range(4):
    client.send({"x": np.full(3, value, np.float32)})
client.wait()
batch, info = server.sample()
server.close()
rest = [sample.batch["x"][:, 0].tolist() for sample in server.dataset_iter(copy=True)]
try:
    while True:
        client.send(example)
except ConnectionClosedError:
    client.close()
numbers = info.samples_inserted_total, info.active_connections, info.notify_count
print(sys.argv[1:], echo.__version__, batch["x"][:, 0].tolist(), rest, server.sample(), numbers)
"""


# A process that is spawned imports the program again, and with it `echo`.
SPAWNING = """
import multiprocessing
import echo

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=echo.TcpTransport, args=(0,))
    child.start()
    child.join()
    print(child.exitcode)
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (PROGRAM, "['--flag'] 0.2.1 [0.0, 1.0] [[2.0, 3.0]] None (4, 1, 2)\n"),
        (SPAWNING, "0\n"),
    ],
)
def test_a_program_runs_unchanged(tmp_path: Path, program: str, said: str) -> None:
    (tmp_path / "program.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "-m", "echoic.echo", "program.py", "--flag"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == (said, "")


def test_batches_that_are_kept_stay_valid_and_never_stop_producers() -> None:
    with echo.Server(EXAMPLE, 2, num_buffers=3) as server:
        kept = []
        # More than the ring has, by a factor.
        for value in range(10):
            for _ in range(2):
                server.submit(sample(value), timeout=10)
            kept.append(server.sample(timeout=10))
        assert [one.batch["x"].tolist() for one in kept if one] == [
            [[value] * 4] * 2 for value in range(10)
        ]


def test_the_end_of_either_side_is_a_connection_closed_error(server: echo.Server) -> None:
    mine = echo.TcpClient("127.0.0.1", server.port, EXAMPLE)
    mine.close()
    mine.close()
    with pytest.raises(echo.ConnectionClosedError, match="is closed"):
        mine.send(sample(0))

    other = echo.TcpClient("127.0.0.1", server.port, EXAMPLE)
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            while True:
                other.send(sample(1))
        except BaseException as error:
            failures.append(error)

    # Blocked by a full ring, and by a full window: that can be full before the ring has anything.
    thread = threading.Thread(target=produce)
    thread.start()
    until(lambda: server.info.store_size == 6 and other._in_flight_count == 1024)
    server.close()
    thread.join(20)
    assert isinstance(failures[0], (echo.ConnectionClosedError, ClosedError))
    assert isinstance(failures[0], ConnectionError)
    assert other._closed.is_set()
    other.close()
    assert isinstance(server.sample(), echo.Sample)


def test_a_limit_of_messages_on_their_way_is_kept(server: echo.Server) -> None:
    client = echo.TcpClient("127.0.0.1", server.port, EXAMPLE, max_inflight_msgs=5)
    for value in range(6 + 5):
        client.send(sample(value), timeout=10)
    until(lambda: server.info.store_size == 6)
    assert client._in_flight_count == 5
    with pytest.raises(WaitTimeoutError):
        client.send(sample(0), timeout=0)
    began = time.monotonic()
    # It does not wait for a server that takes nothing, and delivers what is left all the same.
    client.close()
    assert time.monotonic() - began < 10
    batches = [server.sample(10) for _ in range(5)]
    values = [row[0] for one in batches if one for row in one.batch["x"].tolist()]
    assert values == list(range(10))
    until(lambda: server.info.store_size == 1)


def test_a_client_says_why_it_is_refused(server: echo.Server) -> None:
    with pytest.raises(ValueError, match=r"Server spec mismatch: .*leaf `x`"):
        echo.TcpClient("127.0.0.1", server.port, {"x": np.zeros(8, np.float32)})
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            with other.accept()[0] as peer:
                peer.sendall(b"HTTP")

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(ValueError, match="magic"):
            echo.TcpClient("127.0.0.1", other.getsockname()[1], EXAMPLE)
        port = other.getsockname()[1]
        with pytest.raises(RuntimeError, match="in use"):
            echo.Server(EXAMPLE, 2, echo.TcpTransport(port)).start()
    with pytest.raises(ConnectionRefusedError):
        echo.TcpClient("127.0.0.1", port, EXAMPLE, timeout=0.05)
    with pytest.raises(RuntimeError, match="not started"):
        _ = echo.Server(EXAMPLE, 2, echo.TcpTransport(0)).port
    with pytest.warns(UserWarning, match="pin_host_memory has no effect"):
        echo.Server(EXAMPLE, 2, pin_host_memory=True)


def test_numbers_are_those_of_the_moment_and_histograms_begin_anew(server: echo.Server) -> None:
    client = echo.TcpClient("127.0.0.1", server.port, EXAMPLE)
    for value in range(4):
        client.send(sample(value))
    client.wait()
    first, second = server.sample(), server.sample()
    assert first
    assert second
    assert (first.info.store_size, second.info.store_size) == (2, 0)
    assert second.info.samples_inserted_total == 4
    server.submit(sample(0))
    # As there, samples of this process are no part of it.
    assert server.info.samples_inserted_total == 4
    memcpy = server.info.memcpy
    assert memcpy.count > 0
    assert 0 < memcpy.min_ns <= memcpy.p50_ns <= memcpy.p99_ns <= memcpy.max_ns < 1e9
    assert memcpy.min_ns <= memcpy.mean_ns <= memcpy.max_ns
    assert second.info.queue_dwell.count > 0
    server.reset_histograms()
    assert server.info.memcpy == echo.HistSnapshot()
    server.submit(sample(0))
    again = server.info.memcpy
    assert again.count == 1
    assert again.min_ns == again.max_ns == again.p99_ns > 0
    assert server.info.samples_inserted_total == 4
    client.close()
    until(lambda: server.info.active_connections == 0)


def test_an_accumulator_casts_counts_and_keeps() -> None:
    buf = echo.TrajectoryAccumulator(
        {
            "step": {"obs": np.zeros((3, 2), np.float32), "done": np.zeros(3, bool)},
            "episode": {"last": np.zeros((4, 2), np.float32), "return": np.zeros((), np.float32)},
            "goal": [np.zeros((1, 2), np.int32)],
        }
    )
    assert buf._counts == {"step": 3, "episode": 1, "goal": 1}
    # Other dtypes, a first axis of length 1, and what broadcasts.
    buf.add("step", {"obs": np.ones(2), "done": True})
    buf.add("step", {"obs": np.full((1, 2), 2), "done": np.ones(1, np.int64)})
    buf.add("episode", {"last": np.arange(2), "return": 7})
    buf.add("goal", [np.array([[5, 6]], np.int32)])
    assert buf._slot == {"step": 2, "episode": 1, "goal": 1}
    with pytest.raises(IndexError, match=r"'episode' has 1 slots, but .* at index 1"):
        buf.add("episode", {"last": np.arange(2), "return": 7})
    with pytest.raises(KeyError, match="unknown timescale 'steps'"):
        buf.add("steps", {})
    with pytest.raises(ValueError, match="broadcast"):
        buf.add("step", {"obs": np.zeros(3), "done": False})
    so_far = buf._tree
    built = buf.build()
    for tree in (so_far, built):
        # The step that is missing is zeros, not what an earlier trajectory had.
        assert tree["step"]["obs"].tolist() == [[1, 1], [2, 2], [0, 0]]
        assert tree["step"]["done"].tolist() == [True, True, False]
        assert tree["episode"]["last"].tolist() == [[0, 1]] * 4
        assert (tree["episode"]["return"].shape, tree["episode"]["return"]) == ((), 7)
        assert tree["goal"][0].tolist() == [[5, 6]]
    assert buf._slot == {"step": 0, "episode": 0, "goal": 0}
    buf.add("step", {"obs": np.full(2, 9), "done": False})
    assert built["step"]["obs"][0].tolist() == [1, 1]
    buf.reset()
    assert buf._slot["step"] == 0
    with pytest.raises(ValueError, match="same leading dimension"):
        echo.TrajectoryAccumulator({"a": [np.zeros((1, 2)), np.zeros(5)]})
    with pytest.raises(TypeError):
        echo.TrajectoryAccumulator([np.zeros(2)])  # type: ignore[arg-type]
