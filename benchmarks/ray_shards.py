"""A shard in Ray beside the same server in a process of its own, and two shards beside one.

Run it by itself: ``python -m benchmarks.ray_shards``. Each round inserts batches and samples, and
looks at what came: first one process does both in turns, then a worker inserts while a learner
samples. Rounds of the settings take turns, so that a busy machine is busy for all. What a round
costs in CPU time, of clients and servers, tells more there than how long it takes; the kernel
tells it of each thread in nanoseconds, so that a round may be short.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import ray
from echoic.integrations.ray import ReplayCluster

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

BATCH = 256
# A table has so many items, or fewer that are so many bytes.
MOST_ITEMS, MOST_BYTES = 20_000, 64 << 20
# Numbers of an item beside its own: 400 bytes, as a small observation has.
WIDTH = 99


def size(width: int) -> int:
    """Return how many items a table has."""
    return min(MOST_ITEMS, MOST_BYTES // (4 * width))


def make_tables(width: int) -> list[echoic.Table]:
    """Make a table that is full after the first round."""
    step = {"n": np.int64(0), "obs": np.zeros(width, np.float32)}
    return [echoic.Table("replay", step, capacity=size(width))]


def serve(ready: Connection, width: int) -> None:
    """Serve as a shard does, without Ray."""
    listen = ["tcp://127.0.0.1:0", f"shm://beside-ray-{os.getpid()}"]
    with echoic.Server(*make_tables(width), listen=listen) as server:
        ready.send((os.getpid(), list(server.addresses)))
        ready.recv()


def cpu_seconds(process: int) -> float:
    """Return the CPU time of the threads that a process has now, until now."""
    total = 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        # A thread may end while it is looked at.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int((thread / "schedstat").read_text("ascii").split()[0])
    return total * 1e-9


def insert(client: Any, width: int, batches: int, *, sample: bool) -> None:
    """Insert batches, and take one after each if so wanted."""
    numbers = np.arange(BATCH)
    items = {"n": numbers, "obs": np.repeat(numbers[:, None], width, 1).astype(np.float32)}
    for _ in range(batches):
        client.table("replay").extend(items)
        if sample:
            take(client, 1)
    client.flush()


def take(client: Any, batches: int) -> None:
    """Sample batches, and look at what came."""
    for _ in range(batches):
        data = client.table("replay").sample(BATCH).data
        if not (data["n"] == data["obs"][:, -1]).all():
            raise AssertionError("an item came that nobody inserted")


@ray.remote(num_cpus=0)
class Worker:
    """A process that inserts while another samples."""

    def __init__(self, where: Any, width: int) -> None:
        """Take a client, or the addresses to connect to."""
        self._client = echoic.connect(where) if isinstance(where, list) else where
        self._width = width

    def process(self) -> int:
        """Return its number."""
        return os.getpid()

    def insert(self, batches: int) -> None:
        """Insert batches."""
        insert(self._client, self._width, batches, sample=False)

    def close(self) -> None:
        """Say goodbye to the servers."""
        self._client.close()


class Setting:
    """Clients, the processes that serve them, and what their rounds cost.

    Args:
        name: What is printed.
        client: The one of this process.
        servers: The processes that serve.
        width: Numbers of an item.
        where: What a worker connects to; ``None`` when this process inserts as well.
    """

    def __init__(
        self, name: str, client: Any, servers: list[int], width: int, where: Any = None
    ) -> None:
        """Start the worker, if there is one; see the class for the arguments."""
        self.name = name
        self.client = client
        self.width = width
        self.worker = None if where is None else Worker.remote(where, width)
        self.clients = [os.getpid()]
        if self.worker is not None:
            self.clients.append(ray.get(self.worker.process.remote()))
        self.servers = servers
        # Of each round, the CPU time of clients and of servers, and how long it took.
        self.rounds: list[tuple[float, float, float]] = []

    def round(self, batches: int) -> None:
        """Measure one."""
        before, began = self._cpu(), time.perf_counter()
        if self.worker is None:
            insert(self.client, self.width, batches, sample=True)
        else:
            inserted = self.worker.insert.remote(batches)
            take(self.client, batches)
            ray.get(inserted)
        took, after = time.perf_counter() - began, self._cpu()
        self.rounds.append((after[0] - before[0], after[1] - before[1], took))

    def _cpu(self) -> tuple[float, float]:
        return sum(map(cpu_seconds, self.clients)), sum(map(cpu_seconds, self.servers))

    def close(self) -> None:
        """End the clients."""
        if self.worker is not None:
            ray.get(self.worker.close.remote())
        self.client.close()


def make_settings(
    pid: int, addresses: list[str], one: ReplayCluster, two: ReplayCluster, width: int
) -> list[list[Setting]]:
    """Make the settings, in groups of which the first is what the others are held against."""
    groups = []
    for kind, address in (("shm", addresses[1]), ("tcp", addresses[0])):
        for role, works in (("", False), (", worker and learner", True)):
            # A client of a list with one address goes the same way as one of a cluster.
            plain = echoic.connect([address])
            worker = [address] if works else None
            group = [Setting(f"one server, {kind}{role}", plain, [pid], width, worker)]
            for name, cluster in (("one shard in Ray", one), ("two shards in Ray", two)):
                servers = [shard["pid"] for shard in cluster.processes().values()]
                transport: Any = "nearest" if kind == "shm" else "tcp"
                client = cluster.client(transport=transport)
                other = cluster.client(transport=transport) if works else None
                group.append(Setting(f"{name}, {kind}{role}", client, servers, width, other))
            groups.append(group)
    return groups


def main() -> None:
    """Measure, and print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--width", type=int, default=WIDTH, help="numbers of an item")
    chosen = parser.parse_args()
    width, make = chosen.width, partial(make_tables, chosen.width)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Its own cluster, also where another runs.
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=serve, args=(other, width))
    process.start()
    pid, addresses = mine.recv()
    try:
        with (
            ReplayCluster(make, 1, name="one") as one,
            ReplayCluster(make, 2, name="two") as two,
        ):
            groups = make_settings(pid, addresses, one, two, width)
            settings = [setting for group in groups for setting in group]
            for setting in settings:
                insert(setting.client, width, 2 * size(width) // BATCH + 1, sample=True)
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the beginning")
            for turn in range(chosen.rounds):
                # In another order each time, so that none always follows the same one.
                order = random.Random(turn)
                for setting in order.sample(settings, len(settings)):
                    setting.round(chosen.batches)
            print(f"load {os.getloadavg()[0]:.1f} at the end")
            for group in groups:
                report(group, chosen.batches)
            for setting in settings:
                setting.close()
    finally:
        mine.send(None)
        process.join()
        ray.shutdown()


def report(group: list[Setting], batches: int) -> None:
    """Print what each costs, beside the first: medians, and the middle half of the rounds."""
    items = 2 * batches * BATCH
    base = [client + server for client, server, _ in group[0].rounds]
    for setting in group:
        clients, servers, walls = zip(*setting.rounds, strict=True)
        whole = [client + server for client, server, _ in setting.rounds]
        low, middle, high = (cost / items * 1e6 for cost in statistics.quantiles(whole))
        of_clients = statistics.median(clients) / items * 1e6
        of_servers = statistics.median(servers) / items * 1e6
        # Those of the same turn: what else the machine does is nearly the same for both.
        same = statistics.median(one / other for one, other in zip(base, whole, strict=True))
        walls_of_first = [took for _, _, took in group[0].rounds]
        pace = statistics.median(
            one / other for one, other in zip(walls_of_first, walls, strict=True)
        )
        print(
            f"{setting.name:43} {items / statistics.median(walls):11,.0f} items/s  "
            f"{middle:6.3f} us CPU an item ({low:.3f} to {high:.3f}; clients {of_clients:.3f}, "
            f"servers {of_servers:.3f})  {same:6.1%} by CPU  {pace:6.1%} by time"
        )


if __name__ == "__main__":
    main()
