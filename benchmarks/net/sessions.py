"""The sessions of the network suite, on the server's side.

A session runs in a process of its own, which is the server's; clients run in others. The consumer
is the server's main thread. Clocks of different processes are one clock here, `time.monotonic_ns`.

# What is timed

Rates run from before the first call of `send` until the consumer has the last batch in hand, so a
sample counts when it can be used, not when it is on its way. How many samples a repeat sends
follows from the rate of the one before, so that slow engines take no longer than fast ones.

The processor time is that of whole processes, from the first call until the last acknowledgement;
the server's has the checks of content in it, the same on all sides. Repeats begin with a pass off
the clock in which all rows are checked; in the timed pass the ends of each batch are.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.content import CHECKED_ROUNDS, ContentError, Crowd, Receiver
from benchmarks.net.client import ClientProcess
from benchmarks.timing import Measurement
from benchmarks.usage import cpu_seconds, peak_mib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.child import Message
    from benchmarks.net.client import Load
    from benchmarks.net.engine import Learner, NetEngine
    from benchmarks.timing import Measure
    from benchmarks.workload import Check, Ring

# What is not known when the first repeat is sized; the warm-up corrects it.
_FIRST_RATE_BYTES = 20e6


@contextlib.contextmanager
def throughput(
    engine: NetEngine, *, transport: str, load: Load, ring: Ring, seconds: float, scale: float
) -> Iterator[Measure]:
    """One client sends as fast as it can: samples per second, times ``scale``."""
    receiver = Receiver(load.pool())
    rate = _FIRST_RATE_BYTES / load.sample_bytes
    with (
        _listening(engine, transport, load, ring) as learner,
        ClientProcess(engine, learner) as client,
    ):
        client.connect(load)

        def transfer(batches: int, check: Check) -> tuple[float, float, float]:
            cpu = cpu_seconds()
            client.send(batches * ring.batch_size // load.rows)
            finished, (sent,) = _take(learner, batches, ring, check, [client])
            return (finished - sent["started"]) / 1e9, cpu_seconds() - cpu, sent["cpu"]

        def measure() -> Measurement:
            nonlocal rate
            transfer(CHECKED_ROUNDS * ring.num_buffers, receiver.check)
            batches = _batches(rate, seconds, ring)
            elapsed, server, clients = transfer(batches, receiver.check_ends)
            samples = batches * ring.batch_size
            rate = samples / elapsed
            return Measurement(
                rate * scale,
                {
                    "samples_per_s": rate,
                    **_cpu(server, clients, samples),
                    "server_peak_mib": peak_mib(),
                    "client_peak_mib": client.peak_mib(),
                },
            )

        yield measure
        client.disconnect()


@contextlib.contextmanager
def latency(
    engine: NetEngine, *, transport: str, load: Load, ring: Ring, seconds: float
) -> Iterator[Measure]:
    """Time from just before `send` until the consumer has the batch with the sample: µs.

    The client sends at half the rate that it reaches in the repeat's first pass, which is not
    counted. Waiting for others to fill the batch is part of the time; ``last`` are the samples that
    fill one.
    """
    receiver = Receiver(load.pool())
    rates = [_FIRST_RATE_BYTES / load.sample_bytes / 2]
    with (
        _listening(engine, transport, load, ring) as learner,
        ClientProcess(engine, learner) as client,
    ):
        client.connect(load)
        delays: list[Any] = []

        def note(batch: Any, rows: int) -> None:
            delays.append(time.monotonic_ns() - batch["sent"][:, 0])
            receiver.check_ends({"obs": batch["obs"]}, rows)

        def check(batch: Any, rows: int) -> None:
            if batch["sent"].max() > time.monotonic_ns():
                raise ContentError("a row was there before it was sent")
            receiver.check({"obs": batch["obs"]}, rows)

        def transfer(batches: int, rate: float | None, note: Check) -> float:
            client.pace(batches * ring.batch_size, rate)
            finished, (sent,) = _take(learner, batches, ring, note, [client])
            elapsed: float = finished - sent["started"]
            return batches * ring.batch_size / elapsed * 1e9

        def measure() -> Measurement:
            rates.append(transfer(_batches(rates[-1], seconds, ring), None, check))
            # Of all repeats but the warm-up, whose number was a guess.
            half = statistics.median(rates[2:] or rates[1:]) / 2
            delays.clear()
            reached = transfer(_batches(half, seconds, ring), half, note)
            times = np.stack(delays) / 1e3
            if times.min() <= 0:
                raise ContentError("a row was there before it was sent")
            median, p99 = np.percentile(times, [50, 99])
            last, last99 = np.percentile(times[:, -1], [50, 99])
            return Measurement(
                float(p99),
                {
                    "p50_us": float(median),
                    "last_p50_us": float(last),
                    "last_p99_us": float(last99),
                    "samples_per_s": reached,
                },
            )

        yield measure
        client.disconnect()


@contextlib.contextmanager
def connections(
    engine: NetEngine,
    *,
    transport: str,
    load: Load,
    ring: Ring,
    seconds: float,
    counts: Sequence[int],
    burst: int,
) -> Iterator[Measure]:
    """Samples per second in total over ever more connections; the value is the last.

    The clients are in two processes. In each, one thread sends up to ``burst`` samples through
    every connection in turn; fewer if one turn of all would last longer than the repeat. ``kept``
    is the lowest total as a share of the first. The processor time is that with the last number.
    """
    rates = dict.fromkeys(counts, _FIRST_RATE_BYTES / load.sample_bytes / 10)
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(_listening(engine, transport, load, ring))
        processes = [stack.enter_context(ClientProcess(engine, learner)) for _ in range(2)]

        def total(count: int) -> tuple[float, dict[str, float]]:
            shares = [count - count // 2, count // 2]
            crowd = Crowd(count)
            active = [client for client, share in zip(processes, shares, strict=True) if share]
            for number, client in enumerate(active):
                first = number * shares[0]
                client.connect(load, connections=shares[number], first=first)

            def transfer(turns: int, calls: int, check: Check) -> tuple[float, dict[str, float]]:
                samples = turns * calls * count
                cpu = cpu_seconds()
                for client in active:
                    client.send(calls, turns=turns)
                batches = samples // ring.batch_size
                finished, sent = _take(learner, batches, ring, check, active)
                server, clients = cpu_seconds() - cpu, sum(each["cpu"] for each in sent)
                elapsed = (finished - min(each["started"] for each in sent)) / 1e9
                return samples / elapsed, _cpu(server, clients, samples)

            # As few samples of each connection as make whole batches.
            whole = ring.batch_size // math.gcd(ring.batch_size, count)
            each = max(whole, round(rates[count] * seconds / count / whole) * whole)
            calls = min(burst, each)
            turns = -(-each // calls // whole) * whole if calls % whole else -(-each // calls)
            transfer(1, CHECKED_ROUNDS * whole, crowd.check)
            rates[count], cpu = transfer(turns, calls, crowd.count)
            transfer(1, CHECKED_ROUNDS * whole, crowd.check)
            for client in active:
                client.disconnect()
            return rates[count], cpu

        def measure() -> Measurement:
            totals = []
            for count in counts:
                rate, cpu = total(count)
                totals.append(rate)
            return Measurement(
                totals[-1],
                {
                    "kept": min(totals) / totals[0],
                    **{
                        f"samples_per_s_{count}": total
                        for count, total in zip(counts, totals, strict=True)
                    },
                    **cpu,
                },
            )

        yield measure


@contextlib.contextmanager
def _listening(engine: NetEngine, transport: str, load: Load, ring: Ring) -> Iterator[Learner]:
    learner = engine.listen(load.example, transport=transport, **asdict(ring))
    with contextlib.closing(learner):
        yield learner


def _cpu(server: float, clients: float, samples: int) -> dict[str, float]:
    """Return the processor time of a transfer per million samples."""
    return {
        "server_cpu_s_per_million": server / samples * 1e6,
        "client_cpu_s_per_million": clients / samples * 1e6,
    }


def _batches(rate: float, seconds: float, ring: Ring) -> int:
    """Return how many batches take about so long at a rate; at least a round of the ring."""
    return max(ring.num_buffers, round(rate * seconds / ring.batch_size))


def _take(
    learner: Learner, batches: int, ring: Ring, check: Check, clients: Sequence[ClientProcess]
) -> tuple[int, list[Message]]:
    """Take and check what clients send: when the last batch was in hand, and their answers."""
    sample = learner.sample
    finished = 0
    try:
        for _ in range(batches):
            batch = sample().data
            finished = time.monotonic_ns()
            check(batch, ring.batch_size)
    except ContentError:
        raise
    except Exception:
        # A client that failed has ended the stream, and says why.
        for client in clients:
            client.hear()
        raise
    return finished, [client.hear() for client in clients]
