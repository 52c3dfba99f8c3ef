"""What workloads of many workers need: how busy each resource of a shard is, and of the learner.

It is arithmetic with the measured costs and the machines of [`Machines`]: demand by capacity, for
each resource. What is above 1 can't be; what is above [`COMFORT`] has queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.scaling_model.simulation import broadcast
from benchmarks.usage import CALL

if TYPE_CHECKING:
    from benchmarks.scaling_model.costs import Costs

# Up to here a queue is short: half a service time on average is waited for at 0.5, 1.2 at 0.7.
COMFORT = 0.7
WORKERS = (10**3, 10**4, 10**5)
SHARDS = (1, 10, 100)
# More shards than these one client does not take: see `echoic.connect`.
MOST_SHARDS = 256
_GIB = 1 << 30


@dataclass(frozen=True)
class Machines:
    """The machines of a fleet, which are assumed: those of shards, and the learner's.

    Attributes:
        event_loops: Those of a shard's listener.
        nic: Bytes a second of a shard's network, in each direction.
        memory: Bytes of a shard's memory.
        disk: Bytes a second of a shard's disk.
        learner_nic: Bytes a second of the learner's network.
        learners: Processes that sample, on the learner's machine.
        connections: How many one listener is allowed (``max_connections``): not above the 65,536
            producers that each event loop remembers.
        patience: Seconds that a client gives one attempt to connect.
    """

    event_loops: int = 4
    nic: float = 25e9 / 8
    memory: float = 128 * _GIB
    disk: float = 1e9
    learner_nic: float = 100e9 / 8
    learners: int = 8
    connections: int = 60_000
    patience: float = 10.0


@dataclass(frozen=True)
class Workload:
    """What each of many workers does, and how often what they made is sampled.

    Attributes:
        nbytes: Bytes of an item.
        rate: Items a second that one worker inserts.
        samples_per_insert: How often an item is sampled.
        batch: Items of a request of the learner's to one shard.
        items: How many the tables keep in all.
        weights: Bytes of the policy that workers need.
        weights_every: Seconds from one publication to the next.
        workers_per_host: How many share a machine, and one copy of the weights.
        checkpoint_every: Seconds.
    """

    name: str
    what: str
    nbytes: int
    rate: float
    samples_per_insert: float
    batch: int
    items: float
    weights: float
    weights_every: float
    workers_per_host: int
    checkpoint_every: float = 600.0


WORKLOADS = (
    Workload(
        name="transitions",
        what="control from states: transitions of 100 bytes, 50 a second from each worker, each "
        "sampled 4 times in batches of 256; a policy of 1 MB every second",
        nbytes=100,
        rate=50.0,
        samples_per_insert=4.0,
        batch=256,
        items=1e8,
        weights=1e6,
        weights_every=1.0,
        workers_per_host=64,
    ),
    Workload(
        name="images",
        what="games from pixels: steps of 28 kB, 15 a second from each worker, each sampled once "
        "in batches of 64; a policy of 20 MB every 10 seconds",
        nbytes=28_236,
        rate=15.0,
        samples_per_insert=1.0,
        batch=64,
        items=1e7,
        weights=20e6,
        weights_every=10.0,
        workers_per_host=64,
    ),
    Workload(
        name="rollouts",
        what="a language model: rollouts of 2,000 tokens in 24 kB, one in 10 seconds from each "
        "worker, each sampled once in batches of 16; 14 GB of weights every 5 minutes",
        nbytes=24_000,
        rate=0.1,
        samples_per_insert=1.0,
        batch=16,
        items=1e6,
        weights=14e9,
        weights_every=300.0,
        workers_per_host=8,
    ),
)


def shard(
    costs: Costs,
    machines: Machines,
    workload: Workload,
    workers: int,
    shards: int,
    *,
    affine: bool = True,
) -> dict[str, float]:
    """Return how busy each resource of one shard is.

    Workers that are ``affine`` insert at one shard each; others have a client of all shards.
    """
    inserts = workers * workload.rate / shards
    sampled = inserts * workload.samples_per_insert
    standing = connections(costs, workers, shards, affine=affine)
    loops = (
        inserts * costs.insert["event_loop"].at(workload.nbytes)
        + sampled * costs.sampled["event_loop"].at(workload.nbytes)
        + sampled / workload.batch * costs.request["event_loop"]
        + standing * costs.beat
    )
    stored = workload.items / shards * workload.nbytes
    return {
        "event loops": loops / machines.event_loops,
        "network in": inserts * (workload.nbytes + costs.wire["insert"]) / machines.nic,
        "network out": sampled * workload.nbytes / machines.nic,
        "memory": (stored + standing * costs.idle["table"]) / machines.memory,
        "connections": standing / machines.connections,
        "accepting": connect_seconds(costs, machines, standing) / machines.patience,
        "checkpoint": stored
        * max(1 / machines.disk, costs.checkpoint["processor"])
        / workload.checkpoint_every,
    }


def learner(costs: Costs, machines: Machines, workload: Workload, workers: int) -> dict[str, float]:
    """Return how busy each resource of the learner is, however many the shards are."""
    sampled = workers * workload.rate * workload.samples_per_insert
    requests = sampled / workload.batch
    busy = {
        name: (sampled * costs.sampled[name].at(workload.nbytes) + requests * costs.request[name])
        / machines.learners
        for name in (CALL, "io_thread")
    }
    return {
        "learner's threads": max(busy.values()),
        "learner's network": sampled * workload.nbytes / machines.learner_nic,
    }


def connections(costs: Costs, workers: int, shards: int, *, affine: bool) -> float:
    """Return how many connections one shard has."""
    each = costs.connect["of_a_client"]
    return workers * each / shards if affine else workers * each


def connect_seconds(costs: Costs, machines: Machines, standing: float) -> float:
    """Return how long a shard is busy with letting in all who come at once."""
    return standing * costs.connect["server"] / machines.event_loops


def worst(busy: dict[str, float]) -> tuple[str, float]:
    """Return the busiest resource."""
    return max(busy.items(), key=lambda pair: pair[1])


def enough(costs: Costs, machines: Machines, workload: Workload, workers: int) -> int | None:
    """Return the least number of shards with which none is too busy; None if none suffices."""
    for shards in range(1, MOST_SHARDS + 1):
        if worst(shard(costs, machines, workload, workers, shards))[1] <= COMFORT:
            return shards
    return None


def hosts(workload: Workload, workers: int) -> int:
    """Return on how many machines the workers are."""
    return -(-workers // workload.workers_per_host)


def direct_seconds(machines: Machines, nbytes: float, followers: int) -> float:
    """Return how long a learner sends weights to all of them itself."""
    return followers * nbytes / machines.learner_nic


def relay(machines: Machines, nbytes: float, followers: int) -> tuple[int, int, float]:
    """Return the fastest tree of relays: how many follow each, its depth, and its seconds.

    A relay has all of a publication before it hands it on, to one follower after the other, at the
    speed of a worker's host, which is taken to be that of a shard.
    """
    first, later = nbytes / machines.learner_nic, nbytes / machines.nic

    def seconds(fan: int) -> float:
        return broadcast(followers, fan=fan, first=first, later=later)

    fan = min(range(2, 6), key=seconds)
    depth, reached, width = 0, 0, 1
    while reached < followers:
        width *= fan
        depth, reached = depth + 1, reached + width
    return fan, depth, seconds(fan)
