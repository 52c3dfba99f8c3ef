"""Servers and workers on hosts of their own, with a network between them that is slow and fails.

See `hosts.py` for what these hosts are. What is counted is what the servers have at the end: all
that was acknowledged, each once, byte for byte.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import hosts
import numpy as np
import pytest
from content import PATIENCE, assert_exactly, by_producer
from hosts import Network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from processes import Process, Processes

pytestmark = pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing())

PORT = 5555
# Of a sample: 4 kB.
WORDS = 1_000
# So that a host counts as away after a second and a half.
HEARTBEAT = 0.5
# The window of a connection, and memory that an interpreter may take otherwise while it works.
WINDOW = 1 << 20
SLACK = 48 << 20


@pytest.fixture
def network() -> Iterator[Network]:
    """Two hosts for servers, and one for workers."""
    made = Network(3)
    yield made
    made.close()


@pytest.fixture
def heartbeat(request: pytest.FixtureRequest) -> float:
    """Seconds between two signs of life. A host counts as away after three times as many."""
    return getattr(request, "param", HEARTBEAT)


@pytest.fixture
def shards(
    network: Network, processes: Processes, tmp_path: Path, heartbeat: float
) -> list[Process]:
    """A server of a table on each of two hosts."""
    started = [
        processes.start(
            "keep",
            f"tcp://{host.address}:{PORT}",
            host.prefix,
            words=WORDS,
            intake=tmp_path / host.name,
            options={"insecure": True, "heartbeat": heartbeat},
        )
        for host in network.hosts[:2]
    ]
    for process in started:
        process.wait_for("ready")
    return started


@pytest.fixture
def work(network: Network, processes: Processes) -> Callable[..., Process]:
    """Start a worker of both shards on the third host."""

    def start(**options: Any) -> Process:
        addresses = ",".join(f"tcp://{host.address}:{PORT}" for host in network.hosts[:2])
        settings = {"window_bytes": WINDOW, "timeout": PATIENCE, **options}
        worker = processes.start(
            "insert",
            addresses,
            network.hosts[2].prefix,
            words=WORDS,
            report=50,
            pause=0.005,
            options=settings,
        )
        worker.wait_for("ready")
        return worker

    return start


def longest(worker: Process, word: str) -> float:
    """How long the longest call took."""
    return max(float(said.split()[1]) for said in worker.said(word))


def wait_for_acked(process: Process, count: int) -> None:
    """Wait until so many were acknowledged."""
    until = time.monotonic() + PATIENCE
    while process.acked < count:
        assert process.popen.poll() is None, "\n".join(process.lines[-20:])
        assert time.monotonic() < until, f"{process.acked} acknowledged, not {count}"
        time.sleep(0.01)


def assert_all_there_once(worker: Process, shards: list[Process], tmp_path: Path) -> None:
    """End all; what the worker inserted lies on the two servers, each item once."""
    sent = worker.stop()
    assert worker.acked == sent
    held = max(map(int, worker.said("held")))
    assert held <= 2 * WINDOW
    kept = [shard.stop() for shard in shards]
    assert min(kept) > 0, "a shard got nothing"
    read = [np.fromfile(path, np.int64).reshape(-1, 2) for path in sorted(tmp_path.iterdir())]
    assert_exactly(np.sort(by_producer(read)[0]), sent)


# TCP doubles its pauses while nothing arrives, so an outage of half a second is silence for one
# second, and for two or four if a retransmission is lost too. A host that counted as away after
# 1.5 s would be left.
@pytest.mark.parametrize("heartbeat", [3.0], indirect=True)
def test_latency_loss_and_a_moment_without_a_network_are_only_slow(
    network: Network, shards: Any, work: Any, tmp_path: Path
) -> None:
    network.latency, network.loss = 0.05, 0.01
    worker = work()
    wait_for_acked(worker, 100)
    memory = worker.rss()
    network.part(network.hosts[2], *network.hosts[:2])
    time.sleep(0.5)
    network.heal()
    wait_for_acked(worker, worker.acked + 200)
    assert worker.rss() - memory < SLACK
    assert longest(worker, "sampled") >= 2 * network.latency
    assert network.lost > 0
    assert network.cut > 0
    assert_all_there_once(worker, shards, tmp_path)
    assert worker.said("reconnects") == ["0"]
    assert not worker.said("warned")


@pytest.mark.parametrize("ways", ["both ways", "its answers only"])
def test_a_partition_of_one_shard_heals(
    network: Network, shards: Any, work: Any, tmp_path: Path, ways: str
) -> None:
    network.latency = 0.005
    one, _, third = network.hosts
    worker = work()
    wait_for_acked(worker, 100)
    memory = worker.rss()
    if ways == "both ways":
        network.part(one, third)
    else:
        # What is sent still arrives, and nobody hears so.
        network.mute(one, third)
    worker.wait_for("warned")
    assert f"shard 0 (tcp://{one.address}:{PORT}) is away" in worker.said("warned")[0]
    # The others' work goes on meanwhile, sampling included.
    sampled = len(worker.said("sampled"))
    wait_for_acked(worker, worker.acked + 100)
    worker.wait_for("sampled", sampled + 1)
    network.heal()
    worker.wait_for("warned", 2)
    assert "shard 0" in worker.said("warned")[1]
    assert "is back" in worker.said("warned")[1]
    wait_for_acked(worker, worker.acked + 100)
    assert worker.rss() - memory < SLACK
    assert longest(worker, "inserted") < 3 * HEARTBEAT + 2
    assert_all_there_once(worker, shards, tmp_path)
    assert network.cut > 0
    # One connection carries inserts, and another samples.
    assert worker.said("reconnects") in (["1"], ["2"])
    assert not worker.said("gave-up")


def test_a_partition_beyond_the_deadline_is_told_and_loses_nothing(
    network: Network, shards: Any, work: Any, tmp_path: Path
) -> None:
    worker = work(reconnect=1.0)
    wait_for_acked(worker, 100)
    network.part(network.hosts[2], *network.hosts[:2])
    worker.wait_for("gave-up")
    assert worker.said("gave-up")[0] == "all shards were away for 1.0 s"
    network.heal()
    wait_for_acked(worker, worker.acked + 100)
    assert_all_there_once(worker, shards, tmp_path)


@pytest.fixture
def stream(network: Network, processes: Processes, tmp_path: Path) -> Process:
    """A server of a stream on the first host."""
    host = network.hosts[0]
    learner = processes.start(
        "serve",
        f"tcp://{host.address}:{PORT}",
        host.prefix,
        words=WORDS,
        intake=tmp_path / "intake",
        options={"insecure": True, "heartbeat": HEARTBEAT},
    )
    learner.wait_for("ready")
    return learner


@pytest.fixture
def push(network: Network, processes: Processes) -> Callable[..., Process]:
    """Start a producer of the stream on the third host."""

    def start(program: str = "send", **options: Any) -> Process:
        address = f"tcp://{network.hosts[0].address}:{PORT}"
        producer = processes.start(
            program,
            address,
            network.hosts[2].prefix,
            words=WORDS,
            report=10,
            pause=0.01,
            options={"window_bytes": WINDOW, "timeout": PATIENCE, **options},
        )
        producer.wait_for("ready")
        return producer

    return start


def test_a_stream_arrives_once_and_in_order_through_all_of_it(
    network: Network, stream: Process, push: Any, tmp_path: Path
) -> None:
    network.latency, network.loss = 0.02, 0.01
    producer = push()
    wait_for_acked(producer, 300)
    memory = producer.rss()
    network.part(network.hosts[0], network.hosts[2])
    time.sleep(4 * HEARTBEAT)
    network.heal()
    wait_for_acked(producer, producer.acked + 300)
    assert producer.rss() - memory < SLACK
    sent = producer.stop()
    assert producer.said("reconnects") == ["1"]
    assert stream.stop() == sent
    taken = np.fromfile(tmp_path / "intake", np.int64).reshape(-1, 2)
    assert_exactly(taken[:, 1], sent)
    assert network.lost > 0


def test_a_stream_that_is_given_up_has_all_that_its_producer_has_not(
    network: Network, stream: Process, push: Any, tmp_path: Path
) -> None:
    network.latency = 0.02
    producer = push("despair", reconnect=1.0)
    wait_for_acked(producer, 100)
    network.part(network.hosts[0], network.hosts[2])
    undelivered, _, told = producer.wait_for("gave-up").partition(" ")
    assert f"tcp://{network.hosts[0].address}:{PORT}" in told
    sent = producer.done()
    left = np.array(producer.said("left")[0].split(), np.int64)
    assert left.tolist() == list(range(sent - int(undelivered), sent))
    count = stream.stop()
    taken = np.fromfile(tmp_path / "intake", np.int64).reshape(-1, 2)
    # What was on its way is with both, when the news of its arrival was lost; nothing is with none.
    assert_exactly(taken[:, 1], count)
    assert sent - len(left) <= count <= sent
