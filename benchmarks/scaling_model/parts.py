"""Measures parts by themselves: seconds on a processor, and bytes.

No part is measured while it does what the model is asked about later. A client sends while nobody
takes what it sends; a consumer takes when nobody sends; items are inserted when nobody samples, and
sampled when nobody inserts; all with one client and one server, and of two sizes. Each is measured
several times, and the median counts: what others do on the same machine is noise.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.scaling_model.costs import Costs, Line
from benchmarks.scaling_model.program import Process
from benchmarks.usage import CALL, work_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.scaling_model.costs import Threads

SMALL, LARGE = 20, 28_236
# Of a stream with such samples: how many make a batch, and for how many batches there is memory.
RING = {SMALL: (1024, 64), LARGE: (64, 8)}
# How many items a table has, of which batches, and how many of these are taken.
ITEMS = {SMALL: 4096, LARGE: 512}
SHORT, LONG = 16, 256
WHOLE = 64
TRANSPORTS = ("tcp", "shm")
_MIB = 1 << 20
_SUBSCRIBERS = 4
# What a process with connections starts with and keeps is not theirs.
_FIRST_CONNECTIONS = 20

Used = dict[str, float]
Pair = tuple[Process, Process]

# How long a fixed amount of work took between the parts.
_WORK: list[float] = []


def measured(*, quick: bool) -> Costs:
    """Measure all parts: in about a minute, or ``quick`` in some seconds, with more noise."""
    seconds = 0.5 if quick else 6.0
    tables = idling("table", 100 if quick else 1000, seconds=seconds)
    # A client of a stream has 4 MiB of its own, so these are fewer.
    streams = idling("stream", 20 if quick else 200, seconds=seconds)
    repeats = 2 if quick else 7
    with _pair() as pair:
        weights = _published(pair, repeats, 8 * _MIB)
    return Costs(
        **_flows(quick=quick),
        connect={**tables.connect, "of_a_client": tables.standing / tables.clients},
        idle={
            "stream": streams.resident,
            "table": tables.resident,
            "stream_client": streams.client,
            "table_client": tables.client,
        },
        beat=tables.beat,
        weights=weights,
        checkpoint=_saved(repeats, (16 if quick else 128) * _MIB),
    )


def measured_again(known: Costs, *, quick: bool) -> Costs:
    """Measure anew what predictions of setups are made of; the rest is as it was known."""
    return replace(known, **_flows(quick=quick))


def _flows(*, quick: bool) -> dict[str, Any]:
    """Measure what items cost on their way, and how fast a processor is meanwhile."""
    repeats = 2 if quick else 7
    _WORK.clear()
    stream: dict[str, Threads] = {}
    wire: dict[str, float] = {}
    with _pair() as pair:
        for transport in TRANSPORTS:
            stream[transport], beside = _streamed(pair, transport, repeats)
            # Over shared memory, only news of samples is on the wire.
            if transport == "tcp":
                wire["stream"] = beside
        insert, wire["insert"] = _inserted(pair, repeats, 10_000 if quick else 50_000)
        request, sampled = _sampled(pair, repeats, 40 if quick else 400)
        crowding = _crowding(pair, repeats)
    return {
        "stream": stream,
        "insert": insert,
        "sampled": sampled,
        "request": request,
        "wire": wire,
        "crowding": crowding,
        "work": statistics.median(_WORK),
        "cores": len(os.sched_getaffinity(0)),
    }


def _streamed(pair: Pair, transport: str, repeats: int) -> tuple[Threads, float]:
    """Send what the ring has room for, then take it."""
    points: dict[int, Used] = {}
    beside = 0.0
    for nbytes, (batch, buffers) in RING.items():
        count = (buffers - 1) * batch
        with _used(pair) as (server, client):
            ring = {"batch": batch, "buffers": buffers}
            address = server.do("serve_stream", transport=transport, nbytes=nbytes, **ring)[
                "address"
            ]
            client.do("connect", address=address, nbytes=nbytes)

            def once(
                server: Process = server,
                client: Process = client,
                nbytes: int = nbytes,
                count: int = count,
            ) -> Used:
                used = _with_transport(
                    server, lambda: client.do("send", nbytes=nbytes, calls=count)["used"]
                )
                taken = server.do("take", batches=count // RING[nbytes][0])["used"]
                return {**used, "take": taken[CALL]}

            points[nbytes] = _median_of(once, repeats, count)
            told = server.do("wire")
            if nbytes == SMALL:
                beside = told["bytes"] / max(1, told["samples"]) - nbytes
    return _lines(points), beside


def _inserted(pair: Pair, repeats: int, count: int) -> tuple[Threads, float]:
    points: dict[int, Used] = {}
    beside = 0.0
    for nbytes, calls in ((SMALL, count), (LARGE, count // 20)):
        with _used(pair) as (server, client):
            address = server.do("serve_table", nbytes=nbytes, capacity=ITEMS[nbytes])["address"]
            client.do("connect", address=address, nbytes=None)

            def once(
                server: Process = server,
                client: Process = client,
                nbytes: int = nbytes,
                calls: int = calls,
            ) -> Used:
                return _with_transport(
                    server, lambda: client.do("insert", nbytes=nbytes, calls=calls)["used"]
                )

            points[nbytes] = _median_of(once, repeats, calls)
            told = server.do("wire")
            if nbytes == SMALL:
                beside = told["bytes"] / max(1, told["samples"]) - nbytes
    return _lines(points), beside


def _sampled(pair: Pair, repeats: int, batches: int) -> tuple[Used, Threads]:
    """Sample batches of two lengths, and large items: a request, and a line for each item."""
    by_batch: dict[tuple[int, int], Used] = {}
    for nbytes, lengths in ((SMALL, (SHORT, LONG)), (LARGE, (WHOLE,))):
        with _used(pair) as (server, client):
            address = server.do("serve_table", nbytes=nbytes, capacity=ITEMS[nbytes])["address"]
            server.do("fill", nbytes=nbytes, rows=ITEMS[nbytes])
            client.do("connect", address=address, nbytes=None)
            for length in lengths:

                def once(
                    server: Process = server, client: Process = client, length: int = length
                ) -> Used:
                    what = {"batch": length, "batches": batches}
                    return _with_transport(server, lambda: client.do("sample", **what)["used"])

                by_batch[nbytes, length] = _median_of(once, repeats, batches)
    short, long, whole = by_batch[SMALL, SHORT], by_batch[SMALL, LONG], by_batch[LARGE, WHOLE]
    request: Used = {}
    points: dict[int, Used] = {SMALL: {}, LARGE: {}}
    for name in short:
        item = max(0.0, (long[name] - short[name]) / (LONG - SHORT))
        request[name] = max(0.0, short[name] - SHORT * item)
        points[SMALL][name] = item
        points[LARGE][name] = max(0.0, whole[name] - request[name]) / WHOLE
    return request, _lines(points)


@dataclass(frozen=True)
class Idling:
    """Connections that stand and say nothing.

    Attributes:
        standing: How many.
        clients: How many clients they belong to.
        fresh: Bytes of the server's memory for each, before anything went over it.
        resident: The same after something did.
        client: Bytes of the clients' memory for each client, then.
        beat: Seconds of an event loop for each in a second.
        connect: Seconds on a processor for each that came: of ``server`` and ``client``.
    """

    standing: int
    clients: int
    fresh: float
    resident: float
    client: float
    beat: float
    connect: Used


def idling(kind: Literal["stream", "table"], clients: int, *, seconds: float) -> Idling:
    """Let so many clients connect, send a little, and idle."""
    with _many_files(), _pair() as pair, _used(pair) as (server, client):
        if kind == "stream":
            ring = {"batch": 64, "buffers": 4}
            opened = server.do("serve_stream", transport="tcp", nbytes=SMALL, **ring)
        else:
            opened = server.do("serve_table", nbytes=SMALL, capacity=1000)
        dial = {"address": opened["address"], "nbytes": SMALL if kind == "stream" else None}
        client.do("connect", **dial, count=_FIRST_CONNECTIONS)
        before = server.do("wire")["connections"]
        empty = server.do("resident")["resident"]
        alone = client.do("resident")["resident"]
        used = _with_transport(server, lambda: client.do("connect", **dial, count=clients)["used"])
        fresh = server.do("resident")["resident"] - empty
        if kind == "table":
            client.do("insert", nbytes=SMALL, calls=8)
        else:
            client.begin("send", nbytes=SMALL, calls=64)
            server.do("take", batches=clients + _FIRST_CONNECTIONS)
            client.hear()
        standing = server.do("wire")["connections"] - before
        rested = server.do("rest", seconds=seconds)["used"]["event_loop"]
        grown = server.do("resident")["resident"] - empty
        window = client.do("resident")["resident"] - alone
        return Idling(
            standing=standing,
            clients=clients,
            fresh=max(0.0, fresh / standing),
            resident=max(0.0, grown / standing),
            client=max(0.0, window / clients),
            beat=rested / seconds / standing,
            connect={
                "server": used["event_loop"] / standing,
                "client": (used[CALL] + used["io_thread"]) / standing,
            },
        )


def _published(pair: Pair, repeats: int, nbytes: int) -> Used:
    with _used(pair) as (server, client):
        address = server.do("serve_weights")["address"]
        client.do("subscribe", address=address, count=_SUBSCRIBERS)
        versions = iter(range(1, repeats + 2))

        def once() -> Used:
            version = next(versions)
            before = server.do("now")["threads"]
            server.do("publish", nbytes=nbytes, version=version)
            followed = client.do("follow", version=version)
            # It may have come before it was waited for, so the difference is of the process.
            after = server.do("now")["threads"]
            return {
                "server": after["event_loop"] - before["event_loop"],
                "client": followed["threads"].get("io_thread", 0.0),
            }

        series = [once() for _ in range(repeats + 1)]
    came = [one["client"] for one in series]
    received = [late - early for early, late in pairwise(came)]
    total = nbytes * _SUBSCRIBERS
    return {
        "server": statistics.median(one["server"] for one in series[1:]) / total,
        "client": statistics.median(received) / total,
    }


def _saved(repeats: int, nbytes: int) -> Used:
    with tempfile.TemporaryDirectory() as folder, Process() as server:
        rows = nbytes // LARGE
        server.do("serve_table", nbytes=LARGE, capacity=rows, folder=folder)
        server.do("fill", nbytes=LARGE, rows=rows)
        answers = [server.do("checkpoint") for _ in range(repeats)]
    clock = statistics.median(one["finished"] - one["started"] for one in answers)
    used = statistics.median(sum(one["used"].values()) for one in answers)
    return {"processor": used / nbytes, "clock": clock / nbytes}


def _crowding(pair: Pair, repeats: int) -> float:
    """How much more seconds on a processor the same work takes when all processors have some."""
    with contextlib.ExitStack() as stack:
        more = max(0, len(os.sched_getaffinity(0)) - len(pair))
        crowd = [*pair, *(stack.enter_context(Process()) for _ in range(more))]
        alone, together = [], []
        for _ in range(repeats + 1):
            alone.append(crowd[0].do("work")["used"][CALL])
            for one in crowd:
                one.begin("work")
            together.append(statistics.mean([one.hear()["used"][CALL] for one in crowd]))
    ratio: float = statistics.median(together[1:]) / statistics.median(alone[1:])
    return max(1.0, ratio)


@contextlib.contextmanager
def _pair() -> Iterator[Pair]:
    """Two processes: for servers, and for their clients."""
    with Process() as server, Process() as client:
        yield server, client


@contextlib.contextmanager
def _used(pair: Pair) -> Iterator[Pair]:
    """Use two processes for one server and its clients, which are closed then."""
    yield pair
    # Clients first: a server that closes waits for what is on its way.
    for one in reversed(pair):
        one.do("close")


@contextlib.contextmanager
def _many_files() -> Iterator[None]:
    """Let this process's children open as many files as it may itself allow."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _with_transport(server: Process, do: Callable[[], Used]) -> Used:
    """Let clients do something, and add what the server's event loops used meanwhile."""
    before = server.do("now")["threads"]
    done = do()
    after = server.do("now")["threads"]
    return {
        CALL: done.get(CALL, 0.0),
        "io_thread": done.get("io_thread", 0.0),
        "event_loop": after.get("event_loop", 0.0) - before.get("event_loop", 0.0),
    }


def _median_of(once: Callable[[], Used], repeats: int, count: int) -> Used:
    """Measure some times, after one that does not count: seconds for each of what was done."""
    series = []
    for _ in range(repeats + 1):
        series.append(once())
        _WORK.append(work_seconds())
    del series[0]
    return {name: statistics.median([one[name] for one in series]) / count for name in series[0]}


def _lines(points: dict[int, Used]) -> Threads:
    small, large = points[SMALL], points[LARGE]
    return {name: Line.through((SMALL, small[name]), (LARGE, large[name])) for name in small}
