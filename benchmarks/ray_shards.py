"""A shard in Ray beside the same server in a process of its own, and two shards beside one.

Run it by itself: ``python -m benchmarks.ray_shards``. Each round inserts batches and samples, and
looks at what came; rounds of the settings take turns, so that a busy machine is busy for all. What
a round costs in CPU time, of client and servers, tells more there than how long it takes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import ray
from echoic.integrations.ray import ReplayCluster

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SIZE = 20_000
BATCH = 256
# Numbers of an item beside its own: 400 bytes, as a small observation has.
WIDTH = 99


def make_tables() -> list[echoic.Table]:
    """Make a table that is full after the first round."""
    step = {"n": np.int64(0), "obs": np.zeros(WIDTH, np.float32)}
    return [echoic.Table("replay", step, max_size=SIZE)]


def serve(ready: Connection) -> None:
    """Serve as a shard does, without Ray."""
    doors = [echoic.TcpTransport(0), echoic.ShmTransport(f"beside-ray-{os.getpid()}")]
    with echoic.Server(tables=make_tables(), transport=doors) as server:
        ready.send((os.getpid(), list(server.addresses)))
        ready.recv()


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process, until now."""
    numbers = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def work(client: Any, batches: int) -> None:
    """Insert and sample, as often, and look at what came."""
    numbers = np.arange(BATCH)
    items = {"n": numbers, "obs": np.repeat(numbers[:, None], WIDTH, 1).astype(np.float32)}
    for _ in range(batches):
        client.insert_batch(items, "replay")
        data = client.sample("replay", BATCH).data
        if not (data["n"] == data["obs"][:, -1]).all():
            raise AssertionError("an item came that nobody inserted")
    client.flush()


class Setting:
    """A client, the processes that serve it, and what its rounds cost."""

    def __init__(self, name: str, client: Any, servers: list[int]) -> None:
        self.name = name
        self.client = client
        self.servers = servers
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def round(self, batches: int) -> None:
        """Measure one."""
        began, before = time.perf_counter(), self._cpu()
        work(self.client, batches)
        self.wall.append(time.perf_counter() - began)
        self.cpu.append(self._cpu() - before)

    def _cpu(self) -> float:
        return time.process_time() + sum(cpu_seconds(server) for server in self.servers)


def main() -> None:
    """Measure, and print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batches", type=int, default=400)
    chosen = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=serve, args=(other,))
    process.start()
    pid, addresses = mine.recv()
    try:
        with (
            ReplayCluster(make_tables, 1, name="one") as one,
            ReplayCluster(make_tables, 2, name="two") as two,
        ):
            near, far = [], []
            for name, cluster in (("one shard in Ray", one), ("two shards in Ray", two)):
                servers = [shard["pid"] for shard in cluster.processes().values()]
                near.append(Setting(f"{name}, shm", cluster.client(), servers))
                far.append(Setting(f"{name}, tcp", cluster.client(doors="tcp"), servers))
            # A client of a list with one address goes the same way as one of a cluster.
            near.insert(0, Setting("one server, shm", echoic.connect([addresses[1]]), [pid]))
            far.insert(0, Setting("one server, tcp", echoic.connect([addresses[0]]), [pid]))
            settings = near + far
            for setting in settings:
                work(setting.client, SIZE // BATCH + 1)
            for _ in range(chosen.rounds):
                for setting in settings:
                    setting.round(chosen.batches)
            for group in (near, far):
                report(group, chosen.batches)
            for setting in settings:
                setting.client.close()
    finally:
        mine.send(None)
        process.join()
        ray.shutdown()


def report(group: list[Setting], batches: int) -> None:
    """Print what each costs, beside the first."""
    base = group[0]
    for setting in group:
        items = 2 * batches * BATCH
        speed = items / statistics.median(setting.wall)
        cost = statistics.median(setting.cpu) / items * 1e6
        same = statistics.median(base.cpu) / statistics.median(setting.cpu)
        pace = statistics.median(base.wall) / statistics.median(setting.wall)
        print(
            f"{setting.name:24} {speed:12,.0f} items/s  {cost:6.3f} us CPU an item  "
            f"{same:6.1%} by CPU  {pace:6.1%} by time"
        )


if __name__ == "__main__":
    main()
