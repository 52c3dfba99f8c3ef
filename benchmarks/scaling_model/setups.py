"""Setups that one machine runs whole, what the model predicts for them, and the suite of both.

A run counts what others use of the processors meanwhile, and looks how fast a processor is now; the
prediction is for what is left, at that speed. So the two can be compared on a machine that does
other work as well, though less closely.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from benchmarks.scaling_model import parts
from benchmarks.scaling_model.costs import Costs
from benchmarks.scaling_model.predict import Job, Setup, loads, rate
from benchmarks.scaling_model.program import Process
from benchmarks.timing import Measurement
from benchmarks.usage import busy_seconds, work_seconds
from benchmarks.workload import Target, Workload, any_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.child import Message
    from benchmarks.timing import Measure

# How far a prediction may be off.
MARGIN = 0.25
# Beside the sizes of which the parts were measured: one between them.
_MIDDLE = 4096
_ITEMS = 4096
# What a quick run compares: one of each kind.
_QUICK = {"model_send_small_tcp", "model_send_middle_shm", "model_mixed_small_2_shards"}


def setups() -> tuple[Setup, ...]:
    """List what is compared; none of it was measured as a part."""
    small, large = parts.SMALL, parts.LARGE
    return (
        *(
            Setup(
                f"model_send_{size}_{transport}",
                f"one client sends {nbytes} bytes",
                (Job("send", nbytes),),
                transport,
            )
            for transport in ("tcp", "shm")
            for size, nbytes in (("small", small), ("middle", _MIDDLE), ("large", large))
        ),
        *(
            Setup(
                f"model_send_{size}_tcp_{clients}_clients",
                f"{clients} clients send {nbytes} bytes",
                tuple(Job("send", nbytes, client, share=1 / clients) for client in range(clients)),
            )
            for clients in (2, 4)
            for size, nbytes in (("small", small), ("large", large))
        ),
        Setup(
            "model_insert_middle", f"one client inserts {_MIDDLE} bytes", (Job("insert", _MIDDLE),)
        ),
        Setup(
            "model_insert_small_3_clients",
            f"3 clients insert {small} bytes",
            tuple(Job("insert", small, client, share=1 / 3) for client in range(3)),
        ),
        Setup(
            "model_sample_middle",
            f"one client samples {_MIDDLE} bytes",
            (Job("sample", _MIDDLE, batch=64),),
        ),
        Setup(
            "model_sample_small_2_clients",
            f"2 clients sample {small} bytes",
            tuple(Job("sample", small, client, share=1 / 2) for client in range(2)),
        ),
        Setup(
            "model_mixed_small",
            f"one client inserts and one samples {small} bytes, four for each",
            (Job("insert", small, 0, share=0.2), Job("sample", small, 1, share=0.8)),
        ),
        Setup(
            "model_mixed_small_2_shards",
            f"two shards, at each one client inserts and one samples {small} bytes, four for each",
            tuple(
                job
                for shard in range(2)
                for job in (
                    Job("insert", small, 2 * shard, shard, 0.1),
                    Job("sample", small, 2 * shard + 1, shard, 0.4),
                )
            ),
        ),
        Setup(
            "model_send_small_2_servers",
            f"two servers, each with a client that sends {small} bytes",
            tuple(Job("send", small, shard, shard, 0.5) for shard in range(2)),
        ),
    )


@dataclass(frozen=True)
class Outcome:
    """What a run of a setup gave: its rate, and how many processors others left, and how fast."""

    rate: float
    processors: float
    work: float


@contextlib.contextmanager
def running(setup: Setup) -> Iterator[Callable[[int], Outcome]]:
    """Open a setup; the function does about so many samples or items, and tells how it went."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Process()) for _ in range(setup.shards)]
        clients = [stack.enter_context(Process()) for _ in range(setup.clients)]
        for shard, server in enumerate(servers):
            # All jobs of a setup have items of one size and are of the stream or of a table.
            job = next(job for job in setup.jobs if job.shard == shard)
            if job.do == "send":
                batch, buffers = _ring(job.nbytes)
                ring = {"transport": setup.transport, "batch": batch, "buffers": buffers}
                opened = server.do("serve_stream", nbytes=job.nbytes, **ring)
            else:
                opened = server.do("serve_table", nbytes=job.nbytes, capacity=_ITEMS)
                server.do("fill", nbytes=job.nbytes, rows=_ITEMS)
            for other in setup.jobs:
                if other.shard == shard:
                    dial = {"nbytes": other.nbytes if other.do == "send" else None}
                    clients[other.client].do("connect", address=opened["address"], **dial)

        def run(count: int) -> Outcome:
            return _run(setup, servers, clients, count)

        yield run
        for process in (*clients, *servers):
            process.do("close")


def _run(setup: Setup, servers: list[Process], clients: list[Process], count: int) -> Outcome:
    work = [work_seconds()]
    others = busy_seconds()
    before = [one.do("now") for one in (*clients, *servers)]
    takes: dict[int, int] = {}
    done = 0
    for job in setup.jobs:
        client, mine = clients[job.client], max(1, round(count * job.share))
        if job.do == "sample":
            batches = max(1, mine // job.batch)
            client.begin("sample", batch=job.batch, batches=batches)
            done += batches * job.batch
        else:
            if job.do == "send":
                # Whole batches, or the consumer would wait for the rest of one.
                batch = _ring(job.nbytes)[0]
                mine = max(1, mine // batch) * batch
                takes[job.shard] = takes.get(job.shard, 0) + mine // batch
            client.begin(job.do, nbytes=job.nbytes, calls=mine)
            done += mine
    for shard, batches in takes.items():
        servers[shard].begin("take", batches=batches)
    answers = [clients[job.client].hear() for job in setup.jobs]
    answers += [servers[shard].hear() for shard in takes]
    after = [one.do("now") for one in (*clients, *servers)]
    elapsed = max(one["finished"] for one in answers) - min(one["started"] for one in answers)
    looked = after[-1]["finished"] - before[0]["started"]
    own = sum(_total(late) - _total(early) for early, late in zip(before, after, strict=True))
    used_by_others = max(0.0, busy_seconds() - others - own) / looked
    work.append(work_seconds())
    cores = len(os.sched_getaffinity(0))
    return Outcome(done / elapsed, max(0.05, cores - used_by_others), statistics.mean(work))


def _total(answer: Message) -> float:
    threads: dict[str, float] = answer["threads"]
    return sum(threads.values())


def _ring(nbytes: int) -> tuple[int, int]:
    """Return samples of a batch and how many batches fit: 4 of about 2 MB, at most 1024 each."""
    return (1024, 64) if nbytes < 1000 else (64, 8)


@contextlib.contextmanager
def compared(setup: Setup, costs: Callable[[], Costs], seconds: float) -> Iterator[Measure]:
    """Run a setup for about so long: its rate, and what was predicted for it."""
    with running(setup) as run:

        def measure() -> Measurement:
            known = costs()
            outcome = run(max(1, round(rate(known, setup) * seconds)))
            # A processor that is slower now than it was when the parts were measured.
            slower = outcome.work / known.work
            due = rate(known, setup, outcome.processors) / slower
            used = sum(loads(known, setup).values())
            return Measurement(
                outcome.rate,
                {
                    "predicted": due,
                    "ratio_to_predicted": outcome.rate / due,
                    "processors_left": outcome.processors,
                    "slower": slower,
                    "predicted_cpu_us": used * 1e6,
                },
            )

        yield measure


def is_within(ratio: float) -> bool:
    """Whether what was measured is what was predicted, but for the margin."""
    return 1 / (1 + MARGIN) <= ratio <= 1 + MARGIN


def check(setup: Setup, costs: Costs, seconds: float, rounds: int) -> dict[str, Any]:
    """Run a setup some times: the medians of what was measured and of what was predicted."""
    with compared(setup, lambda: costs, seconds) as measure:
        # The first does not count.
        measure()
        seen = [measure() for _ in range(rounds)]
    # A ratio is of one round, in which others left as many processors to both.
    ratio = statistics.median([one.extras["ratio_to_predicted"] for one in seen])
    predicted = statistics.median([one.extras["predicted"] for one in seen])
    return {
        "setup": setup.name,
        "what": f"{setup.what}, {setup.transport}",
        "measured": round(predicted * ratio),
        "predicted": round(predicted),
        "processors_left": round(
            statistics.median([one.extras["processors_left"] for one in seen]), 2
        ),
    }


def workloads(quick: bool) -> list[Workload]:
    """List all comparisons; the parts are measured once, when the first of them is."""
    seconds = 0.2 if quick else 1.0
    chosen = [setup for setup in setups() if not quick or setup.name in _QUICK]
    return [
        Workload(
            name=setup.name,
            kind="model",
            what=f"{setup.what}, {setup.transport}: see ratio_to_predicted",
            unit="items/s",
            better="higher",
            session=any_engine(partial(compared, setup, partial(_costs, quick), seconds)),
            parameters={
                "transport": setup.transport,
                "clients": setup.clients,
                "shards": setup.shards,
            },
            targets=(Target("ratio_to_predicted", 1 / (1 + MARGIN), 1 + MARGIN),),
            peers=False,
        )
        for setup in chosen
    ]


@cache
def _costs(quick: bool) -> Costs:
    return parts.measured_again(Costs.read(), quick=quick)
