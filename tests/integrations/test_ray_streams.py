"""Streams on Ray: found by name, and again wherever their learner is made anew."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socketserver
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic.errors import (
    ArgumentError,
    ClosedError,
    DisconnectedError,
    SpecError,
    WaitTimeoutError,
)
from polling import until

ray = pytest.importorskip("ray")

from echoic.integrations.ray import (
    Collectors,
    StreamClient,
    StreamServer,
    stream_registry,
    stream_server,
)
from echoic.integrations.ray.addresses import Addresses
from echoic.integrations.ray.stream_registry import (
    Place,
    StreamRegistry,
    registry_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.timeout(240),
    # Ray leaves sockets and files to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# How long what should happen may take on a machine that does other things too.
PATIENCE = 90.0
EXAMPLE = {"worker": np.int64(0), "n": np.int64(0)}


def sample(worker: int, first: int, count: int) -> dict[str, Any]:
    return {"worker": np.full(count, worker), "n": np.arange(first, first + count)}


def pairs(batch: dict[str, Any]) -> list[tuple[int, int]]:
    return list(zip(batch["worker"].tolist(), batch["n"].tolist(), strict=True))


class Learner:
    """Takes batches in a thread, and tells what it took in this generation."""

    def __init__(self, name: str, rank: int = 0) -> None:
        self._server = StreamServer(EXAMPLE, 8, name=name, rank=rank).start()
        self._taken: list[tuple[int, int]] = []
        self._open = threading.Event()
        self._open.set()
        self._taker = threading.Thread(target=self._take, daemon=True)
        self._taker.start()

    def _take(self) -> None:
        while True:
            self._open.wait()
            try:
                self._taken.extend(pairs(self._server.stream.sample().data))
            except ClosedError:
                return

    def taken(self) -> list[tuple[int, int]]:
        return list(self._taken)

    def pause(self) -> None:
        self._open.clear()

    def place(self) -> tuple[int, str, tuple[str, ...]]:
        return os.getpid(), ray.get_runtime_context().get_node_id(), self._server.addresses

    def close(self) -> list[tuple[int, int]]:
        self._server.close()
        self._taker.join()
        return self._taken


class Worker:
    """Pushes numbers, one after the other."""

    def __init__(self, client: StreamClient, number: int) -> None:
        self._client, self._number = client, number
        self._sent = self._acknowledged = 0
        self._stopping = threading.Event()

    def push(self, count: int) -> None:
        for _ in range(count):
            self._client.add({"worker": self._number, "n": self._sent})
            self._sent += 1
        self._client.flush()

    def go_on(self) -> None:
        """Push until told to stop, each few samples acknowledged before the next."""
        while not self._stopping.is_set():
            self._client.extend(sample(self._number, self._sent, 4))
            self._sent += 4
            self._client.flush()
            self._acknowledged = self._sent
            time.sleep(0.002)

    def stop(self) -> None:
        self._stopping.set()

    def counts(self) -> tuple[int, int]:
        return self._sent, self._acknowledged

    def stats(self) -> dict[str, Any]:
        return {"rank": self._client.rank, **self._client.stats()}

    def close(self) -> None:
        self._client.close()


def taken_of(learner: Any, worker: int) -> list[int]:
    return [n for who, n in get(learner.taken.remote()) if who == worker]


def learner_on(*arguments: Any, **options: Any) -> Any:
    named = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, **options}
    return ray.remote(Learner).options(**named).remote(*arguments)


def worker_on(client: StreamClient, number: int, **options: Any) -> Any:
    named = {"num_cpus": 0, "max_concurrency": 4, **options}
    return ray.remote(Worker).options(**named).remote(client, number)


def near(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def get(*asked: Any) -> Any:
    answers = ray.get(list(asked), timeout=PATIENCE)
    return answers if len(answers) > 1 else answers[0]


def has_registry(name: str) -> bool:
    try:
        ray.get_actor(registry_name(name))
    except ValueError:
        return False
    return True


@pytest.fixture(scope="module", autouse=True)
def portable() -> Iterator[None]:
    """What is in this file travels with its code: Ray's processes don't find it."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def workers(ray_nodes: Any) -> list[str]:
    """The nodes that have CPUs."""
    return [node.node_id for node in ray_nodes.workers]


@pytest.fixture
def actors() -> Iterator[list[Any]]:
    """Actors that are ended with the test."""
    made: list[Any] = []
    yield made
    for actor in made:
        ray.kill(actor)


def test_samples_of_tasks_on_all_nodes_come_once_by_the_nearest_transport(
    workers: list[str],
) -> None:
    @ray.remote(num_cpus=0)
    def work(client: StreamClient, worker: int) -> list[str]:
        with client:
            for n in range(20):
                client.add({"worker": worker, "n": n})
            client.extend({"worker": np.full(30, worker), "n": np.arange(20, 50)})
            client.flush()
            return client.addresses

    with StreamServer(EXAMPLE, batch_size=25, name="tasks") as server:
        assert repr(server) == "StreamServer('tasks', rank=0)"
        shm, tcp = sorted(server.addresses)
        clients = [StreamClient("tasks"), StreamClient("tasks", transport="tcp")]
        used = [
            work.options(scheduling_strategy=near(node)).remote(client, 2 * place + number)
            for place, node in enumerate(workers)
            for number, client in enumerate(clients)
        ]
        taken = [pair for _ in range(8) for pair in pairs(server.stream.sample(PATIENCE).data)]
        assert get(*used) == [[shm], [tcp]] * 2
        assert sorted(taken) == [(worker, n) for worker in range(4) for n in range(50)]
        # What one worker sends comes in order.
        for worker in range(4):
            assert [n for who, n in taken if who == worker] == list(range(50))
    # The last server has left.
    until(lambda: not has_registry("tasks"))


def test_a_client_travels_by_its_name_and_connects_when_it_is_used(ray_nodes: object) -> None:
    client = StreamClient("later", rank=0, window_bytes=1 << 16)
    copy = pickle.loads(pickle.dumps(client))
    assert repr(copy) == "StreamClient('later', namespace=None)"
    assert not copy.is_connected
    copy.close()
    assert copy.undelivered() is None
    with StreamServer(EXAMPLE, batch_size=2, name="later") as server, client:
        client.add({"worker": 1, "n": 2})
        again = pickle.loads(pickle.dumps(client))
        with again:
            again.add({"worker": 3, "n": 4})
        assert sorted(pairs(server.stream.sample(PATIENCE).data)) == [(1, 2), (3, 4)]


def test_mistakes_say_what_was_expected(ray_nodes: object) -> None:
    with pytest.raises(ArgumentError, match="name must be"):
        StreamServer(EXAMPLE, 2, name="a/b")
    with pytest.raises(ArgumentError, match="name must be"):
        StreamClient("a/b")
    with pytest.raises(ArgumentError, match="rank must be 0 to 9999, got -1"):
        StreamServer(EXAMPLE, 2, rank=-1)
    with pytest.raises(ArgumentError, match="transport must be"):
        StreamClient("x", transport="back")
    with pytest.raises(TypeError, match=r"expected window_bytes or linger, got \['colour'\]"):
        StreamClient("x", colour="red")
    with pytest.raises(DisconnectedError, match="expected the stream 'nobody' of Ray"):
        StreamClient("nobody", timeout=0.3).add({"n": 1})
    with pytest.raises(WaitTimeoutError) as caught:
        StreamClient("nobody").add({"n": 1}, timeout=0.1)
    assert caught.value.reason == "AWAY"
    with StreamServer(EXAMPLE, 2, name="typed"), StreamClient("typed") as client:
        with pytest.raises(SpecError, match="n"):
            client.add({"worker": 1, "n": 0.5})
        client.close()
        with pytest.raises(ClosedError):
            client.add({"worker": 1, "n": 1})


def test_a_full_stream_lets_producers_wait_and_says_why(ray_nodes: object) -> None:
    with (
        StreamServer(EXAMPLE, batch_size=4, capacity=8, name="full") as server,
        StreamClient("full") as client,
    ):
        with pytest.raises(WaitTimeoutError) as caught:
            client.extend(sample(0, 0, 100), timeout=0.7)
        assert caught.value.stored == 8
        assert caught.value.reason == "CAPACITY"
        taken = [pair for _ in range(2) for pair in pairs(server.stream.sample(0).data)]
        assert taken == [(0, n) for n in range(8)]
        client.add({"worker": 0, "n": 8}, timeout=PATIENCE)


@pytest.mark.parametrize("transport", ["nearest", pytest.param("tcp", marks=pytest.mark.nightly)])
def test_a_learner_that_is_killed_is_found_again(
    workers: list[str], actors: list[Any], transport: Any
) -> None:
    name = f"killed-{transport}"
    learner = learner_on(name)
    crew = [
        worker_on(StreamClient(name, transport=transport), number, scheduling_strategy=near(node))
        for number, node in enumerate(workers)
    ]
    actors += [learner, *crew]
    running = [one.go_on.remote() for one in crew]
    # Of both: one of them may need seconds to begin.
    until(lambda: all(len(taken_of(learner, number)) > 100 for number in range(2)))
    before, (pid, *_) = get(learner.taken.remote(), learner.place.remote())
    if transport == "tcp":
        os.kill(pid, signal.SIGKILL)
    else:
        ray.kill(learner, no_restart=False)
    until(lambda: get(learner.place.remote())[0] != pid)
    reached = [known + 400 for _, known in get(*[one.counts.remote() for one in crew])]
    for one, least in zip(crew, reached, strict=True):
        until(lambda one=one, least=least: get(one.counts.remote())[1] > least)
    get(*[one.stop.remote() for one in crew])
    get(*running)
    counts = get(*[one.counts.remote() for one in crew])
    get(*[one.close.remote() for one in crew])
    after = get(learner.close.remote())
    assert len(set(before)) == len(before)
    for number, (sent, _) in enumerate(counts):
        numbers = [n for who, n in after if who == number]
        # In the new life all come in order, once, and without a gap, but for an unfinished batch.
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert sent - 8 < numbers[-1] + 1 <= sent
        # What was taken before comes again at most where its few had no acknowledgement.
        assert numbers[0] > max(n for who, n in before if who == number) - 4


@pytest.mark.nightly
def test_a_learner_on_another_node_gets_what_was_not_acknowledged(
    changing_nodes: Any, workers: list[str], actors: list[Any]
) -> None:
    extra = changing_nodes.add(num_cpus=1, resources={"learner": 1})
    learner = learner_on("moving", resources={"learner": 1})
    client = StreamClient("moving", transport="tcp")
    worker = worker_on(client, 0, scheduling_strategy=near(workers[0]))
    actors += [learner, worker]
    get(worker.push.remote(100))
    _, was, old = get(learner.place.remote())
    get(learner.pause.remote())
    running = worker.go_on.remote()
    # The ring is full, and so the worker has samples that nobody acknowledged.
    until(lambda: get(worker.counts.remote())[1] > 100)
    until(lambda: is_stuck(worker))
    _, known = get(worker.counts.remote())
    changing_nodes.remove(extra)
    # The nodes are all on this machine, where the port would be the same.
    with stranger_at(old[0]):
        changing_nodes.add(num_cpus=1, resources={"learner": 1})
        until(lambda: get(learner.place.remote())[1] != was)
        until(lambda: get(worker.counts.remote())[1] > known + 400)
    get(worker.stop.remote())
    get(running)
    assert get(learner.place.remote())[2][0] != old[0]
    assert get(worker.stats.remote())["moves"] == 1
    sent, _ = get(worker.counts.remote())
    get(worker.close.remote())
    numbers = [n for _, n in get(learner.close.remote())]
    # All that the old server had not acknowledged, once each, and what came later.
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert known <= numbers[0] < known + 4
    assert sent - 8 < numbers[-1] + 1 <= sent


class Stranger(socketserver.TCPServer):
    """Lets everybody in, and hangs up."""

    allow_reuse_address = True


@contextlib.contextmanager
def stranger_at(address: str) -> Iterator[None]:
    """Have somebody else listen where a server was, once it is gone."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    found: list[Stranger] = []

    def take_place() -> bool:
        with contextlib.suppress(OSError):
            found.append(Stranger((host, int(port)), socketserver.BaseRequestHandler))
        return bool(found)

    until(take_place)
    with found[0] as stranger:
        thread = threading.Thread(target=stranger.serve_forever)
        thread.start()
        yield
        stranger.shutdown()
        thread.join()


def is_stuck(worker: Any) -> bool:
    before = get(worker.counts.remote())
    time.sleep(0.5)
    sent, known = after = get(worker.counts.remote())
    return after == before and sent > known


@pytest.mark.nightly
def test_the_death_of_a_workers_node_costs_nothing_else(
    changing_nodes: Any, workers: list[str], actors: list[Any]
) -> None:
    extra = changing_nodes.add(num_cpus=1, resources={"doomed": 1})
    with StreamServer(EXAMPLE, batch_size=10, name="node") as server:
        doomed = worker_on(StreamClient("node"), 1, resources={"doomed": 1})
        other = worker_on(StreamClient("node"), 2, scheduling_strategy=near(workers[0]))
        actors += [doomed, other]
        get(doomed.push.remote(10), other.push.remote(10))
        changing_nodes.remove(extra)
        get(other.push.remote(10))
        taken = [pair for _ in range(3) for pair in pairs(server.stream.sample(PATIENCE).data)]
        expected = [(1, n) for n in range(10)] + [(2, n) for n in range(20)]
        assert sorted(taken) == expected
        get(other.close.remote())


@pytest.mark.nightly
def test_ranks_have_disjoint_samples_and_share_the_producers(
    workers: list[str], actors: list[Any]
) -> None:
    learners = [learner_on("ranks", rank) for rank in range(2)]
    actors += learners
    # Both are there before producers are given to them.
    get(*[one.place.remote() for one in learners])
    crew = [
        worker_on(
            StreamClient("ranks", move_after=1.0),
            number,
            scheduling_strategy=near(workers[number % 2]),
        )
        for number in range(4)
    ]
    actors += crew
    get(*[one.push.remote(40) for one in crew])
    ranks = [stats["rank"] for stats in get(*[one.stats.remote() for one in crew])]
    assert sorted(ranks) == [0, 0, 1, 1]

    def shares() -> list[list[tuple[int, int]]]:
        return [sorted(one) for one in get(*[learner.taken.remote() for learner in learners])]

    until(lambda: sum(map(len, shares())) == 160)
    expected = [
        sorted((number, n) for number in range(4) if ranks[number] == rank for n in range(40))
        for rank in range(2)
    ]
    assert shares() == expected
    # One is gone for good: its producers go to the other.
    ray.kill(learners[1])
    until(lambda: not any(stats["connected"] for stats in of_rank(crew, 1)))
    get(*[one.push.remote(40) for one in crew])
    assert not of_rank(crew, 1)
    get(*[one.close.remote() for one in crew])
    after = get(learners[0].close.remote())
    assert sorted(after) == sorted(
        [
            *expected[0],
            *((number, n) for number in range(4) for n in range(40, 80)),
        ]
    )


def of_rank(crew: list[Any], rank: int) -> list[dict[str, Any]]:
    told = get(*[one.stats.remote() for one in crew])
    return [stats for stats in told if stats["rank"] == rank]


def test_producers_of_a_rank_that_leaves_go_to_another(ray_nodes: object) -> None:
    first = StreamServer(EXAMPLE, batch_size=2, name="leaving", rank=0).start()
    with StreamServer(EXAMPLE, batch_size=2, name="leaving", rank=1) as second:
        client, fixed = StreamClient("leaving"), StreamClient("leaving", rank=0, reconnect=0.5)
        client.add({"worker": 0, "n": 0})
        fixed.add({"worker": 1, "n": 0})
        assert (client.rank, fixed.rank) == (0, 0)
        assert sorted(pairs(first.stream.sample(PATIENCE).data)) == [(0, 0), (1, 0)]
        first.close()
        # What is sent before a client knows would be lost with the first one's ring.
        until(lambda: not client.stats()["connected"])
        client.extend(sample(0, 1, 2))
        assert pairs(second.stream.sample(PATIENCE).data) == [(0, 1), (0, 2)]
        assert client.rank == 1
        # This one may be at no other.
        until(lambda: not fixed.stats()["connected"])
        with pytest.raises(DisconnectedError, match="no server has reported its address"):
            fixed.add({"worker": 1, "n": 1})
        client.close()
        fixed.close()


def test_a_server_that_was_made_again_elsewhere_closes(ray_nodes: object) -> None:
    old = StreamServer(EXAMPLE, batch_size=2, name="fenced").start()
    with StreamServer(EXAMPLE, batch_size=2, name="fenced") as new:
        with pytest.raises(ClosedError):
            old.stream.sample(PATIENCE)
        with StreamClient("fenced") as client:
            client.extend(sample(0, 0, 2))
        assert pairs(new.stream.sample(PATIENCE).data) == [(0, 0), (0, 1)]
        old.close()
        # It was not the old one's place to end the registry.
        assert has_registry("fenced")


def test_servers_report_again_to_a_registry_that_was_killed(ray_nodes: object) -> None:
    with StreamServer(EXAMPLE, batch_size=2, name="reported") as server:
        registry = ray.get_actor(registry_name("reported"))
        ray.kill(registry, no_restart=False)
        with StreamClient("reported") as client:
            client.extend(sample(0, 0, 2))
        assert pairs(server.stream.sample(PATIENCE).data) == [(0, 0), (0, 1)]
        ray.kill(ray.get_actor(registry_name("reported")))
        until(lambda: has_registry("reported"))
        with StreamClient("reported") as client:
            client.extend(sample(0, 2, 2))
        assert pairs(server.stream.sample(PATIENCE).data) == [(0, 2), (0, 3)]


def test_a_registry_without_reports_ends(ray_nodes: object) -> None:
    remote = ray.remote(StreamRegistry).options(name="idle/stream", lifetime="detached", num_cpus=0)
    registry = remote.remote("identity", "token", idle=0.5)
    assert get(registry.find.remote(None)) is None
    until(lambda: not has_registry("idle"))


def place(rank: int, generation: int) -> Place:
    return Place(
        rank,
        generation,
        Addresses(f"node-{rank}", f"tcp://10.0.0.{rank}:{generation % 1000}", None),
        "token",
        b"",
        0,
    )


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> StreamRegistry:
    """A registry that is no actor: it is told and asked here, and does not end."""
    context = SimpleNamespace(current_actor=None)
    here = SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setattr(stream_registry, "ray", here)
    return StreamRegistry("identity", "token", idle=math.inf)


def test_who_entered_here_is_later_whatever_clocks_say(registry: StreamRegistry) -> None:
    before = time.time_ns() + 3600 * 10**9
    assert registry.report(place(0, before))
    entered = registry.enter(0)
    assert entered.generation > before
    assert not registry.report(place(0, before))
    # Of another rank nobody had told before its successor came.
    entered = registry.enter(1)
    assert entered.generation < before
    assert not registry.report(place(1, before))
    assert registry.report(place(1, entered.generation))
    assert registry.find(1).generation == entered.generation


def test_those_who_are_on_their_way_count_where_they_were_sent(registry: StreamRegistry) -> None:
    for rank in range(3):
        generation = registry.enter(rank).generation
        assert registry.report(place(rank, generation))
    found = [registry.find(None).rank for _ in range(6)]
    assert sorted(found) == [0, 0, 1, 1, 2, 2]


def test_a_registry_is_needed_while_somebody_comes(registry: StreamRegistry) -> None:
    first = registry.enter(0).generation
    assert registry.report(place(0, first))
    second = registry.enter(0).generation
    # The first one leaves, while the second opens its transports.
    assert registry.leave(0, first)
    assert registry.leave(0, first)
    assert registry.report(place(0, second))
    assert not registry.leave(0, second)


def test_a_server_that_is_cut_off_writes_no_checkpoint(
    ray_nodes: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_server, "_SURE", 1.5)
    checkpointer = echoic.Checkpointer(tmp_path / "checkpoints", keep=9)
    with StreamServer(EXAMPLE, 2, name="cut-off", checkpointer=checkpointer) as server:

        def is_written() -> bool:
            try:
                server.checkpoint()
            except DisconnectedError as error:
                assert "another server may have rank 0" in str(error)  # noqa: PT017 - now and then
                return False
            return True

        def written() -> set[str]:
            return {path.name for path in checkpointer.root.iterdir() if path.is_dir()}

        until(is_written)

        def nobody() -> Any:
            raise ValueError("the network is away")

        monkeypatch.setattr(server, "_registry", nobody)
        until(lambda: not is_written())
        before = written()
        assert not is_written()
        assert written() == before != set()
        monkeypatch.undo()
        until(is_written)


@pytest.mark.nightly
def test_collectors_push_into_a_stream(ray_nodes: object) -> None:
    pytest.importorskip("gymnasium")
    step = {
        "observations": np.zeros(4, np.float32),
        "actions": np.int64(0),
        "rewards": np.float32(0),
        "next_observations": np.zeros(4, np.float32),
        "terminated": np.bool_(False),
        "truncated": np.bool_(False),
    }
    with (
        StreamServer(step, batch_size=64, name="steps") as server,
        Collectors("CartPole-v1", None, StreamClient("steps"), num_steps=32, seed=1) as crew,
    ):
        for _ in range(4):
            batch = server.stream.sample(PATIENCE).data
            crew.check()
            # A step of CartPole moves the cart by 0.02 of its speed.
            moved = batch["observations"][:, 0] + 0.02 * batch["observations"][:, 1]
            np.testing.assert_allclose(batch["next_observations"][:, 0], moved, atol=1e-5)
        near = [["shm"]] * 2
        until(lambda: [one.get("transports") for one in crew.stats()["workers"]] == near)
    with pytest.raises(ArgumentError, match="expected the name of a table"):
        Collectors("CartPole-v1", None, "tcp://127.0.0.1:1")


class Placed:
    """A server, and where a registry would say that it is."""

    def __init__(self, example: Any, batch_size: int, generation: int, port: int = 0) -> None:
        self.stream = echoic.Stream(example, batch_size=batch_size, capacity=2 * batch_size)
        address = f"tcp://127.0.0.1:{port}"
        self.server = echoic.Server(self.stream, listen=address, token="t")
        self.server.start()
        addresses = Addresses("elsewhere", self.server.address, None)
        self.place = Place(0, generation, addresses, "t", ray.cloudpickle.dumps(example), 0)

    @property
    def port(self) -> int:
        return int(self.place.addresses.tcp.rpartition(":")[2])


@pytest.fixture
def client_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StreamClient]:
    """A client that asks this function, and no registry, where its learner is."""

    def make(ask: Callable[[], Place | None], **options: Any) -> StreamClient:
        client = StreamClient("unasked", transport="tcp", **options)
        monkeypatch.setattr(client, "_ask", ask)
        return client

    return make


def test_calls_keep_their_timeouts_while_the_server_is_looked_for(
    client_of: Callable[..., StreamClient],
) -> None:
    learner = Placed({"x": np.int64(0)}, 4, generation=1)
    known = threading.Event()

    def ask() -> Place | None:
        known.wait(PATIENCE)
        return learner.place

    client = client_of(ask)
    patient = threading.Thread(target=client.add, args=({"x": 7},))
    patient.start()
    with learner.server:
        for _ in range(2):
            begin = time.monotonic()
            with pytest.raises(WaitTimeoutError) as late:
                client.add({"x": 1}, timeout=0.2)
            # The registry takes as long as it likes.
            assert time.monotonic() - begin < 5.0
            assert late.value.reason == "AWAY"
        known.set()
        patient.join(PATIENCE)
        client.extend({"x": np.arange(3)})
        client.flush(PATIENCE)
        assert sorted(learner.stream.sample(PATIENCE).data["x"].tolist()) == [0, 1, 2, 7]
        client.close()


def test_what_a_search_finds_out_is_told_to_who_calls(
    client_of: Callable[..., StreamClient],
) -> None:
    def ask() -> Place | None:
        raise DisconnectedError("call ray.init() first")

    client = client_of(ask)
    with pytest.raises(DisconnectedError, match=r"call ray.init\(\) first"):
        client.add({"x": 1})
    with pytest.raises(DisconnectedError, match=r"call ray.init\(\) first"):
        client.add({"x": 1}, timeout=PATIENCE)
    client.close()


@pytest.mark.parametrize("same_port", [False, True])
def test_a_learner_of_another_kind_ends_the_client_which_has_what_is_left(
    client_of: Callable[..., StreamClient], same_port: bool
) -> None:
    learner = Placed({"x": np.int64(0)}, 4, generation=1)
    client = client_of(lambda: learner.place)
    with learner.server:
        # More than the ring has room for.
        client.extend({"x": np.arange(100)})
        assert client.is_connected
    learner = Placed({"x": np.zeros(2)}, 4, generation=2, port=learner.port if same_port else 0)
    with learner.server:
        with pytest.raises(DisconnectedError, match="samples of another kind") as told:
            client.flush(30.0)
        left = client.undelivered()["x"]
        assert told.value.undelivered == len(left) > 0
        np.testing.assert_array_equal(left, np.arange(100 - len(left), 100))
        assert client.closed
        client.close()


def test_a_client_with_nothing_left_goes_on_with_a_learner_of_another_kind(
    client_of: Callable[..., StreamClient],
) -> None:
    learner = Placed({"x": np.int64(0)}, 4, generation=1)
    client = client_of(lambda: learner.place)
    with learner.server:
        client.extend({"x": np.arange(4)})
        client.flush(30.0)
    learner = Placed({"x": np.zeros(2)}, 4, generation=2, port=learner.port)
    with learner.server:
        # Until the client has noticed that another learner is there, these do not fit.
        due = time.monotonic() + 30.0
        while True:
            try:
                client.extend({"x": np.ones((4, 2))}, timeout=30.0)
                break
            except SpecError:
                assert time.monotonic() < due
                time.sleep(0.05)
        assert learner.stream.sample(30.0).data["x"].sum() == 8
        with pytest.raises(SpecError, match="x"):
            client.add({"x": np.int64(1)}, timeout=30.0)
        assert not client.closed
        client.close(30.0)


def test_a_registry_that_tells_of_other_samples_is_asked_until_the_deadline(
    client_of: Callable[..., StreamClient],
) -> None:
    learner = Placed({"x": np.int64(0)}, 4, generation=1)
    told = learner.place
    client = client_of(lambda: told, reconnect=0.5)
    with learner.server:
        client.extend({"x": np.arange(100)})
    learner = Placed({"x": np.zeros(2)}, 4, generation=2, port=learner.port)
    with learner.server, pytest.raises(DisconnectedError, match="server expects float64"):
        client.close(30.0)
    assert len(client.undelivered()["x"]) > 0


def test_a_batch_that_is_cut_off_says_how_much_was_taken(
    client_of: Callable[..., StreamClient],
) -> None:
    example = {"x": np.zeros(1000)}
    learner = Placed(example, 4, generation=1)
    places = [learner.place]
    client = client_of(lambda: places[0], reconnect=0.5, window_bytes=64_000)
    with learner.server:
        closing = threading.Timer(0.5, learner.server.close)
        closing.start()
        with pytest.raises(DisconnectedError) as told:
            client.extend({"x": np.zeros((1000, 1000))}, timeout=60.0)
        closing.join()
    assert 0 < told.value.stored < 1000
    assert told.value.undelivered <= told.value.stored
    with pytest.raises(DisconnectedError):
        client.close()
    assert len(client.undelivered()["x"]) == told.value.undelivered
