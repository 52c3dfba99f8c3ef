"""How fast a setup of clients and servers on one machine is, from the costs of its parts.

Each thread can use one processor, and all threads together those that the machine has for them. So
the work takes as long as the busiest thread needs, or as all of them need together, whichever is
longer: the *utilisation law*. There is nothing in it of the whole that it predicts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from benchmarks.usage import CALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.scaling_model.costs import Costs

Transport = Literal["tcp", "shm"]


@dataclass(frozen=True)
class Job:
    """What one client does at one shard: ``share`` of all that is done, each of ``nbytes``.

    ``batch`` is how many items a request for samples brings.
    """

    do: Literal["send", "insert", "sample"]
    nbytes: int
    client: int = 0
    shard: int = 0
    share: float = 1.0
    batch: int = 256


@dataclass(frozen=True)
class Setup:
    """Jobs that are done at the same time, and over which transport; shares add up to 1."""

    name: str
    what: str
    jobs: tuple[Job, ...]
    transport: Transport = "tcp"

    @property
    def shards(self) -> int:
        """How many servers it has."""
        return 1 + max(job.shard for job in self.jobs)

    @property
    def clients(self) -> int:
        """How many processes with a client it has."""
        return 1 + max(job.client for job in self.jobs)


# A thread: what its process is, the number of that, and the thread's name.
Thread = tuple[str, int, str]


def loads(costs: Costs, setup: Setup) -> dict[Thread, float]:
    """Return the seconds on a processor that each thread needs for one sample or item of all."""
    needed: defaultdict[Thread, float] = defaultdict(float)
    for job in setup.jobs:
        for name, seconds in _of_one(costs, setup.transport, job):
            of_server = name in {"event_loop", "take"}
            thread = ("server", job.shard, name) if of_server else ("client", job.client, name)
            needed[thread] += seconds * job.share
    return dict(needed)


def rate(costs: Costs, setup: Setup, processors: float | None = None) -> float:
    """Return how many samples or items a second all jobs do together.

    ``processors`` is how many the machine has left beside others' work: all, unless told.
    """
    left = float(costs.cores) if processors is None else processors
    needed = loads(costs, setup)
    busiest = max(needed.values()) / min(1.0, left)
    everything = sum(needed.values()) / left
    # Only where all processors have work does each of them do it more slowly.
    return 1 / max(busiest, everything * costs.crowding)


def _of_one(costs: Costs, transport: Transport, job: Job) -> Iterator[tuple[str, float]]:
    if job.do == "send":
        threads = costs.stream[transport]
    elif job.do == "insert":
        threads = costs.insert
    else:
        threads = costs.sampled
    for name, line in threads.items():
        request = costs.request[name] / job.batch if job.do == "sample" else 0.0
        yield name, line.at(job.nbytes) + request


def busiest(costs: Costs, setup: Setup) -> str:
    """Name what bounds a setup."""
    needed = loads(costs, setup)
    thread, most = max(needed.items(), key=lambda pair: pair[1])
    if sum(needed.values()) / costs.cores * costs.crowding > most:
        return "all processors"
    return "the thread that calls" if thread[2] == CALL else f"the {thread[0]}'s {thread[2]}"
