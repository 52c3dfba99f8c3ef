"""Shards on Ray: placed, killed, brought back with their items, added and emptied, under load."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import tiers
from echoic.errors import (
    ArgumentError,
    ClosedError,
    DisconnectedError,
    StorageError,
    WaitTimeoutError,
)
from echoic.rollouts import RolloutTable
from polling import until

ray = pytest.importorskip("ray")

from echoic.integrations.ray import Client, ReplayCluster, moving
from echoic.integrations.ray.addresses import Addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.timeout(240),
    # Shards go and come here, and Ray leaves sockets and files to the collector.
    pytest.mark.filterwarnings("ignore::echoic.errors.ShardWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# How long what should happen may take on a machine that does other things too.
PATIENCE = 90.0


def make(durability: str = "none", **settings: Any) -> Callable[[], list[echoic.Table]]:
    """Make what makes the tables; a function inside another travels with its code."""

    def tables() -> list[echoic.Table]:
        return [
            echoic.Table(
                "replay",
                {"n": np.int64(0)},
                **{"capacity": 1_000_000, "durability": durability, **settings},
            )
        ]

    return tables


def numbers(client: echoic.Connection, table: str = "replay") -> list[int]:
    """All items of all shards."""
    keys = client.table(table).items().keys
    return sorted(client.table(table).get(keys).data["n"].tolist())


@pytest.fixture(scope="module")
def cluster(ray_nodes: object) -> Iterator[ReplayCluster]:
    """Two shards that are empty when they are started anew."""
    with ReplayCluster(make(), 2, name="shared") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: ReplayCluster) -> Iterator[Client]:
    with cluster.client() as client:
        client.table("replay").clear()
        yield client


def test_a_client_is_found_by_name_in_a_task_and_uses_the_nearest_transport(client: Client) -> None:
    @ray.remote(num_cpus=0)
    def work(client: Client, worker: int) -> list[str]:
        with client:
            for n in range(50):
                client.table("replay").add({"n": 100 * worker + n})
            client.flush()
            return client.addresses

    # What is given to a task is a client that was never used, and one that was.
    addresses = ray.get(
        [work.remote(Client("shared"), 0), work.remote(client, 1)], timeout=PATIENCE
    )
    assert all(one.startswith("shm://") for one in addresses[0] + addresses[1])
    assert numbers(client) == [*range(50), *range(100, 150)]
    batch = client.table("replay").sample(64)
    assert np.allclose(batch.info.probabilities, 1 / 100)


def test_a_client_told_so_uses_tcp_with_the_token(cluster: ReplayCluster, client: Client) -> None:
    with cluster.client(transport="tcp") as far:
        far.table("replay").add({"n": 7})
        far.flush()
        assert far.addresses == cluster.addresses
        assert all(address.startswith("tcp://") for address in far.addresses)
    assert numbers(client) == [7]
    with pytest.raises(echoic.errors.RefusedError):
        echoic.connect(cluster.addresses[0], token="wrong").tables
    with echoic.connect(cluster.addresses, token=cluster.token) as plain:
        assert numbers(plain) == [7]


def test_a_client_that_was_never_used_has_no_connection(cluster: ReplayCluster) -> None:
    client = cluster.client()
    assert repr(client) == "Client('shared', namespace='tests')"
    client.close()
    assert not client.is_connected


def test_the_transports_of_a_shard_have_normal_priority(
    cluster: ReplayCluster, run_script: Callable[..., Any]
) -> None:
    if run_script("import os; os.nice(5); os.setpriority(os.PRIO_PROCESS, 0, 0)").returncode:
        pytest.skip("a process may not take back the turns that it gave away")
    for shard in cluster.processes().values():
        tasks = Path(f"/proc/{shard['pid']}/task").iterdir()
        threads = [
            task for task in tasks if (task / "comm").read_text().startswith("echoic-listen")
        ]
        assert threads
        assert {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in threads} == {0}


def test_mistakes_say_what_was_expected(cluster: ReplayCluster) -> None:
    with pytest.raises(ArgumentError, match="tables must be a function"):
        ReplayCluster([echoic.Table("replay", 0, capacity=1)])
    with pytest.raises(ArgumentError, match="expected 1 to 256 shards in addition to 0, got 0"):
        ReplayCluster(make(), 0)
    with pytest.raises(ArgumentError, match="name must be"):
        ReplayCluster(make(), name="a/b")
    with pytest.raises(ArgumentError, match=r"placement must be one of .* got 'FAR'"):
        ReplayCluster(make(), placement="FAR")
    with pytest.raises(ArgumentError, match="expected a name that is free, got 'shared'"):
        ReplayCluster(make(), name="shared")
    with pytest.raises(ArgumentError, match="transport must be"):
        cluster.client(transport="back")
    with pytest.raises(TypeError, match="colour"):
        cluster.client(colour="red")
    with pytest.raises(DisconnectedError, match="there is no ReplayCluster 'nobody'"):
        Client("nobody").tables
    with pytest.raises(ArgumentError, match=r"expected one of the shards \[0, 1\], got 5"):
        cluster.drain_shard(5)


def test_tables_that_can_not_be_made_end_the_start_with_their_error(ray_nodes: object) -> None:
    def tables() -> list[echoic.Table]:
        raise LookupError("no such configuration")

    with pytest.raises(
        ArgumentError, match=r"shard 0 could not be made(.|\n)*no such configuration"
    ):
        ReplayCluster(tables, 1, name="broken")
    # Nothing is left behind: the name is free.
    with pytest.raises(ArgumentError, match="needs a place to write to"):
        ReplayCluster(make("async"), 1, name="broken")


@pytest.mark.parametrize(
    ("count", "settings"),
    [(1, {"resources": {"num_cpus": 1, "lake": 1}}), (3, {"placement": "STRICT_SPREAD"})],
)
def test_shards_without_a_place_end_the_start_in_time(
    ray_nodes: object, count: int, settings: dict[str, Any]
) -> None:
    began = time.monotonic()
    with pytest.raises(
        WaitTimeoutError, match=r"could not be placed with .*; Ray's nodes have .*CPU"
    ):
        ReplayCluster(make(), count, name="nowhere", timeout=2.0, **settings)
    assert time.monotonic() - began < PATIENCE
    with pytest.raises(DisconnectedError):
        Client("nowhere").tables


def test_a_registry_that_is_killed_knows_the_shards_again(
    cluster: ReplayCluster, client: Client
) -> None:
    client.table("replay").add({"n": 1})
    client.flush()
    registry = ray.get_actor("shared")
    before = ray.get(registry.state.remote(), timeout=PATIENCE)
    ray.kill(registry, no_restart=False)
    after = ray.get(registry.state.remote(), timeout=PATIENCE)
    assert after == before
    with cluster.client() as late:
        assert numbers(late) == [1]


@tiers.turn(0, of=3)
def test_rollouts_and_weights_are_found_on_the_first_shard(
    ray_nodes: object, tmp_path: Path
) -> None:
    def rollouts(folder: Path | None) -> list[Any]:
        return [RolloutTable("math", {"tokens": "int32"}, batch_groups=1, directory=folder)]

    with (
        ReplayCluster(
            make(), 1, name="tokens", rollouts=rollouts, weights=True, directory=tmp_path
        ) as cluster,
        cluster.client() as client,
    ):
        assert client.rollouts("math").reserve().add({"tokens": [1, 2, 3]}) == "complete"
        with client.weights() as learner, client.weights() as worker:
            subscription = worker.subscribe()
            learner.publish({"w": np.arange(3)}, version=4)
            publication = subscription.wait(timeout=PATIENCE)
            assert publication.version == 4
            assert publication.tree["w"].tolist() == [0, 1, 2]
        # Its ledger has survived the process.
        os.kill(cluster.processes()[0]["pid"], signal.SIGKILL)
        until(lambda: _sampled(client) == [1, 2, 3])
        with pytest.raises(ArgumentError, match="shard 0: it is the last one"):
            cluster.drain_shard(0)


def _sampled(client: Client) -> list[int]:
    try:
        tokens: list[int] = client.rollouts("math").sample(timeout=1.0)["tokens"].tolist()
    except (echoic.EchoicError, OSError):
        return []
    return tokens


class Producers:
    """Threads that insert numbers, each its own, and count what was acknowledged.

    Each waits for the acknowledgement of every ``BURST`` numbers.
    """

    BURST = 20

    def __init__(self, cluster: ReplayCluster, transports: list[str]) -> None:
        self._stop = threading.Event()
        self.acked = [0] * len(transports)
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(cluster.client(transport=transport), place))
            for place, transport in enumerate(transports)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, client: Client, place: int) -> None:
        try:
            with client:
                while not self._stop.is_set():
                    first = place * 10_000_000 + self.acked[place]
                    for n in range(first, first + self.BURST):
                        client.table("replay").add({"n": n}, timeout=PATIENCE)
                    client.flush(PATIENCE)
                    self.acked[place] += self.BURST
        except BaseException as error:
            self.errors.append(error)
            raise

    def stop(self) -> list[int]:
        """End them; all numbers that were acknowledged, in order."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert not self.errors
        return [
            place * 10_000_000 + n for place, count in enumerate(self.acked) for n in range(count)
        ]


def test_all_is_there_once_when_processes_and_nodes_are_killed_under_load(
    changing_nodes: Any, tmp_path: Path
) -> None:
    chance = random.Random(7)
    # One of them each day, and both in the nightly tier.
    victims = tiers.size((("process", "node")[tiers.part % 2],), ("process", "node", "process"))
    with (
        ReplayCluster(make("async"), 2, name="killed", directory=tmp_path) as cluster,
        cluster.client() as reader,
    ):
        producers = Producers(cluster, ["nearest", "tcp"])
        for victim in victims:
            progress = sum(producers.acked) + 200
            until(lambda at=progress: sum(producers.acked) >= at or producers.errors)
            number = chance.choice(cluster.shards)
            before = cluster.processes(PATIENCE)[number]
            if victim == "process":
                os.kill(before["pid"], signal.SIGKILL)
            else:
                changing_nodes.add_plain()
                nodes = changing_nodes.workers
                (node,) = [one for one in nodes if one.node_id == before["node"]]
                changing_nodes.remove(node)
            after = cluster.processes(PATIENCE)[number]
            while after["started"] == before["started"]:
                after = cluster.processes(PATIENCE)[number]
            assert (after["node"] != before["node"]) == (victim == "node")
            until(lambda: all(reader.shards_there))
            batch = reader.table("replay").sample(32, timeout=PATIENCE)
            assert len(batch) == 32
        sent = producers.stop()
        until(lambda: all(reader.shards_there))
        found = numbers(reader)
    # Also what was not acknowledged when its shard was killed, and was sent again, is there once.
    assert sorted(found) == sent
    assert len(sent) > 200 * len(victims)


@tiers.turn(1, of=3)
def test_a_cluster_that_is_started_again_has_what_it_had(ray_nodes: object, tmp_path: Path) -> None:
    for part in range(2):
        with (
            ReplayCluster(make(), 1, name="again", directory=tmp_path) as cluster,
            cluster.client() as client,
        ):
            assert numbers(client) == list(range(100 * part))
            for n in range(100 * part, 100 * part + 100):
                client.table("replay").add({"n": n})
    with pytest.raises(ClosedError, match="the cluster 'again' is closed"):
        cluster.client()


@pytest.mark.nightly
def test_removed_shards_stay_removed_when_the_cluster_is_made_again(
    ray_nodes: object, tmp_path: Path
) -> None:
    def tables() -> list[echoic.Table]:
        step = {"n": np.int64(0)}
        queue = echoic.Table.queue("queue", step, capacity=1000, durability="async")
        return [echoic.Table("replay", step, capacity=1000), queue]

    def again(count: int) -> ReplayCluster:
        half = {"num_cpus": 0.5}
        return ReplayCluster(tables, count, name="removed", directory=tmp_path, resources=half)

    def groups() -> set[str]:
        table = ray.util.placement_group_table()
        return {name for name, group in table.items() if group["state"] == "CREATED"}

    with again(2) as cluster, cluster.client(refresh=0.2) as client:
        for table in ("queue", "replay"):
            for n in range(100):
                client.table(table).add({"n": n})
        client.flush()
        held = groups()
        assert cluster.drain_shard(0, timeout=PATIENCE) == {"replay": 50, "queue": 50}
        assert not (tmp_path / "shard-0").exists()
        # Also what no journal has is on disk where it went.
        assert list((tmp_path / "shard-1" / "checkpoints").iterdir())
        # A new one takes its place, and one that was started alone gives up its own.
        assert cluster.add_shards(1) == [2]
        assert groups() == held
        assert cluster.add_shards(1) == [3]
        assert cluster.drain_shard(3, timeout=PATIENCE) == {"replay": 0, "queue": 0}
        until(lambda: groups() == held)
        taken = client.table("queue").sample(100, timeout=PATIENCE).data["n"].tolist()
        assert sorted(taken) == list(range(100))
    for count, shards in [(1, [1, 2]), (3, [1, 2, 4])]:
        with again(count) as cluster, cluster.client() as client:
            assert cluster.shards == shards
            assert numbers(client) == list(range(100))
            assert client.table("queue").stats().size == 0
    # A folder that was emptied is noticed before anybody samples from it.
    shutil.rmtree(tmp_path / "shard-1" / "checkpoints")
    with pytest.raises(ArgumentError, match="'replay' had 100 items when its shard was closed"):
        again(3)
    shutil.rmtree(tmp_path / "shard-1")
    with pytest.raises(StorageError, match=r"expected the manifest .*shard-1/shard\.json"):
        again(3)


@tiers.turn(2, of=3)
def test_a_shard_waits_for_its_directory_and_one_that_is_gone_for_good_is_named(
    ray_nodes: object, tmp_path: Path
) -> None:
    state, away = tmp_path / "state", tmp_path / "away"
    with (
        ReplayCluster(make("async"), 2, name="unmounted", directory=state) as cluster,
        cluster.client() as client,
    ):
        for n in range(100):
            client.table("replay").add({"n": n})
        client.flush()
        state.rename(away)
        os.kill(cluster.processes(PATIENCE)[1]["pid"], signal.SIGKILL)
        with pytest.raises(WaitTimeoutError, match="shard 1 "):
            cluster.processes(timeout=3.0)
        away.rename(state)
        assert set(cluster.processes(PATIENCE)) == {0, 1}
        until(lambda: all(client.shards_there))
        assert numbers(client) == list(range(100))
        ray.kill(ray.get_actor("unmounted/shard-1"))
        for call in (cluster.processes, lambda: cluster.drain_shard(1)):
            with pytest.raises(DisconnectedError, match="shard 1 of 'unmounted' has ended"):
                call()


@pytest.mark.nightly
def test_closing_a_cluster_and_its_workers_after_rays_end_starts_no_ray(
    ray_nodes: Any, run_script: Callable[..., Any]
) -> None:
    source = (
        "import echoic, numpy as np, ray\n"
        "from echoic.integrations.ray import Collectors, ReplayCluster\n"
        "def tables():\n"
        "    return [echoic.Table('replay', np.int64(0), capacity=10)]\n"
        f"ray.init(address={ray_nodes.address!r}, log_to_driver=False)\n"
        "cluster = ReplayCluster(tables, 1, name='ended', resources={'num_cpus': 0.5})\n"
        "client, free = cluster.client(), {'num_cpus': 0}\n"
        "crew = Collectors('CartPole-v1', None, client, 'replay', num_workers=1, resources=free)\n"
        "ray.shutdown()\n"
        "try:\n"
        "    cluster.processes()\n"
        "except echoic.errors.ClosedError as error:\n"
        "    print(error)\n"
        "crew.close()\n"
        "cluster.close()\n"
        "print(ray.is_initialized())\n"
    )
    done = run_script(source)
    error, is_connected = done.stdout.splitlines()
    assert "the cluster 'ended' has ended with this program's connection to Ray" in error
    assert is_connected == "False"


@pytest.mark.nightly
def test_shards_join_and_are_emptied_while_probabilities_stay_true(ray_nodes: object) -> None:
    settings = {"sampler": echoic.selectors.Prioritized(1.0)}
    with (
        ReplayCluster(make(**settings), 2, name="grown", resources={"num_cpus": 0.5}) as cluster,
        cluster.client(refresh=0.2) as client,
    ):
        priorities = np.linspace(1.0, 3.0, 600)
        client.table("replay").extend({"n": np.arange(600)}, priorities, version=5)
        client.flush()
        assert cluster.add_shards(1) == [2]
        until(lambda: len(client.addresses) == 3 and all(client.shards_there))
        for some in np.split(np.arange(600), 3):
            client.table("replay").extend({"n": 600 + some}, priorities[some], version=6)
        client.flush()
        assert [shard.size for shard in client.table("replay").stats().shards] == [500, 500, 200]

        # An item's share of the sum is estimated by one over its probability, whatever it is.
        sums, counts = [], []
        over = threading.Event()

        def drain() -> dict[str, int]:
            try:
                return cluster.drain_shard(0, timeout=PATIENCE)
            finally:
                over.set()

        moved: list[dict[str, int]] = []
        thread = threading.Thread(target=lambda: moved.append(drain()))
        thread.start()
        while not over.is_set():
            batch = client.table("replay").sample(64, timeout=PATIENCE)
            counts.append(np.mean(1 / batch.info.probabilities))
            sums.append(np.mean(batch.data["n"] / batch.info.probabilities))
            assert np.allclose(
                batch.info.priorities, priorities[batch.data["n"] % 600], rtol=1e-6, atol=0
            )
        thread.join(PATIENCE)

        assert moved == [{"replay": 500}]
        assert cluster.shards == [1, 2]
        assert cluster.addresses[0] == ""
        until(lambda: client.addresses[0] == "")
        assert numbers(client) == list(range(1200))
        batch = client.table("replay").sample(256)
        expected = priorities[batch.data["n"] % 600] / (2 * priorities.sum())
        assert np.allclose(batch.info.probabilities, expected, rtol=1e-6, atol=0)
        assert np.array_equal(batch.info.versions, np.where(batch.data["n"] < 600, 5, 6))
        assert abs(np.mean(counts) - 1200) < 5 * np.std(counts) / np.sqrt(len(counts)) + 30
        total = 1199 * 1200 / 2
        assert abs(np.mean(sums) - total) < 5 * np.std(sums) / np.sqrt(len(sums)) + 0.03 * total
        # One that connects now has the same places.
        with cluster.client() as late:
            assert late.addresses[0] == ""
            assert numbers(late) == list(range(1200))


@tiers.turn(0, of=2)
def test_what_is_inserted_while_a_shard_is_emptied_is_kept(ray_nodes: object) -> None:
    with (
        ReplayCluster(make(), 2, name="busy", resources={"num_cpus": 0.5}) as cluster,
        cluster.client() as reader,
    ):
        producers = Producers(cluster, ["nearest", "tcp"])
        until(lambda: sum(producers.acked) >= 200 or producers.errors)
        cluster.drain_shard(1, timeout=PATIENCE)
        progress = sum(producers.acked) + 200
        until(lambda: sum(producers.acked) >= progress or producers.errors)
        sent = producers.stop()
        until(lambda: reader.addresses[1] == "")
        assert numbers(reader) == sent


@tiers.turn(1, of=2)
def test_a_queue_is_used_up_where_it_is_and_what_is_left_of_all_tables_is_moved(
    ray_nodes: object,
) -> None:
    def tables() -> list[echoic.Table]:
        fifo = echoic.selectors.Fifo()
        queue = {"sampler": fifo, "max_times_sampled": 1, "capacity": 1000}
        return [
            echoic.Table("queue", {"n": np.int64(0)}, **queue),
            echoic.Table("windows", capacity=1000),
        ]

    with (
        ReplayCluster(tables, 2, name="queue", resources={"num_cpus": 0.5}) as cluster,
        cluster.client(refresh=0.2) as client,
    ):
        for n in range(100):
            client.table("queue").add({"n": n})
        with client.trajectory_writer(num_keep_alive_refs=3) as writer:
            for episode in range(6):
                for step in range(3 + episode % 2):
                    writer.append({"n": np.int64(10 * episode + step)})
                writer.create_item("windows", 1.0 + episode, last=2 + episode % 2)
                writer.end_episode()
        client.flush()
        with pytest.raises(
            WaitTimeoutError, match=r"shard 0 still has {'queue': 50, 'windows': 3}"
        ):
            cluster.drain_shard(0, move=False, timeout=1.0)
        until(lambda: client.shards_drained[0])

        taken = client.table("queue").sample(80, timeout=PATIENCE).data["n"].tolist()
        client.table("queue").add({"n": 100})
        client.flush()
        left = client.table("queue").stats().shards[0].size
        # What may be taken only once goes to the other when the transports are closed.
        assert cluster.drain_shard(0, timeout=PATIENCE) == {"queue": left, "windows": 3}
        until(lambda: client.addresses[0] == "")
        taken += client.table("queue").sample(21, timeout=PATIENCE).data["n"].tolist()
        assert sorted(taken) == list(range(101))

        table = client.table("windows")
        items = table.items()
        found = {
            float(priority): table.get(np.array([key])).data["n"][0].tolist()
            for key, priority in zip(items.keys, items.info.priorities, strict=True)
        }
        assert found == {
            1.0 + episode: [10 * episode + 1 + step for step in range(2 + episode % 2)]
            for episode in range(6)
        }


def test_the_examples_of_the_guide_run(ray_nodes: object, tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "ray.md"
    blocks = re.findall(r"```py\n(.*?)```", guide.read_text("utf8"), re.DOTALL)
    assert len(blocks) == 7
    # Ray is there already.
    blocks[0] = blocks[0].replace("ray.init()", "")
    names = {"__name__": "guide", "folder": tmp_path / "one", "other": tmp_path / "two"}
    # A small machine has two.
    held = int(ray.available_resources()["CPU"]) - 2
    group = ray.util.placement_group([{"CPU": 1}] * held, strategy="PACK")
    try:
        assert group.wait(PATIENCE)
        for block in blocks:
            exec(compile(block, str(guide), "exec"), names)
    finally:
        ray.util.remove_placement_group(group)


def test_without_ray_the_error_says_what_to_install(run_script: Callable[..., Any]) -> None:
    source = (
        "import sys\n"
        "sys.modules['ray'] = None\n"
        "import echoic.integrations.ray as ours\n"
        "try:\n"
        "    ours.ReplayCluster\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = run_script(source)
    assert 'pip install "echoic[ray]"' in done.stdout, done.stderr


def test_importing_echoic_imports_no_ray(run_script: Callable[..., Any]) -> None:
    source = "import sys, echoic, echoic.integrations.ray; print('ray' in sys.modules)"
    assert run_script(source).stdout.strip() == "False"


def test_a_second_call_moves_what_the_first_has_left_and_nothing_twice(monkeypatch):
    here, there = (echoic.Table.queue("queue", np.int64(0), capacity=2000) for _ in range(2))
    here.extend(np.arange(1000), np.ones(1000))
    copy, left = moving._copy, [2]

    def copy_twice(*arguments):
        if not left[0]:
            raise WaitTimeoutError("timed out")
        left[0] -= 1
        return copy(*arguments)

    with echoic.Server(there, listen="tcp://127.0.0.1:0", token="secret") as server:
        others, done = [Addresses("another host", server.address)], {}
        monkeypatch.setattr(moving, "_copy", copy_twice)
        with pytest.raises(WaitTimeoutError):
            moving.move_rest([here], others, "secret", 30.0, done)
        assert len(there) == done["queue"] == 512
        monkeypatch.undo()
        assert moving.move_rest([here], others, "secret", 30.0, done) == {"queue": 1000}
        assert there.sample(1000).data.tolist() == list(range(1000))


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_example_reaches_its_target_though_a_shard_and_a_worker_are_killed() -> None:
    for needed in ("torch", "gymnasium", "rich"):
        pytest.importorskip(needed)
    # A busy machine is given time to start Ray.
    environment = os.environ | {"RAY_agent_register_timeout_ms": "120000", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "examples.ray_distributed_dqn", "--target", "100"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("is killed; it held", "Shard 1 is back", "Worker 0 is back", "Reached the target"):
        assert said in done.stdout
