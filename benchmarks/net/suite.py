"""The workloads of the network suite.

The peer that has only TCP is measured over TCP, whichever transport of ours it stands beside.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks import probes
from benchmarks.limits import suite as limits
from benchmarks.net import probes as net_probes
from benchmarks.net import sessions
from benchmarks.net.client import Load
from benchmarks.workload import COPY_NAME, Ring, Session, Target, Workload, any_engine

TRANSPORTS = ("tcp", "unix", "shm")
WITH_TLS = (*TRANSPORTS, "tls")
PEER = "id-echo"
_MANY = (1, 2, 4, 8, 64, 512)


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones do little work and say little."""
    seconds = 0.02 if quick else 0.4
    return [
        *(_small(transport, seconds) for transport in WITH_TLS),
        *(_latency(transport, seconds) for transport in TRANSPORTS),
        *(_small_batches(transport, seconds) for transport in WITH_TLS),
        *(_frames(transport, seconds) for transport in WITH_TLS),
        *(_layers(transport, seconds) for transport in WITH_TLS),
        _connections("connections_tcp", seconds, (1, 2, 8) if quick else _MANY, burst=1024),
        _connections("connections_in_turn_tcp", seconds, (1, 8) if quick else _MANY, burst=1),
    ]


def _small(transport: str, seconds: float) -> Workload:
    load, ring = Load("small", 61), Ring(1024)
    return Workload(
        name=f"send_small_{transport}",
        kind="net",
        what="send of {obs: (4,) f32, reward: (1,) f32}, one client process and a server process, "
        "until the consumer has the samples",
        unit="samples/s",
        better="higher",
        session=partial(
            sessions.throughput, transport=transport, load=load, ring=ring, seconds=seconds, scale=1
        ),
        bound_name="empty native calls with the same argument, one thread",
        bound=partial(_empty_calls, calls=max(1000, int(seconds * 1e6))),
        parameters=_parameters(transport, load, ring, seconds),
        targets=(
            (Target("value", at_least=1e6), Target(f"ratio_to_{PEER}", at_least=20))
            if transport == "shm"
            else (Target(f"ratio_to_{PEER}", at_least=10),)
        ),
    )


def _latency(transport: str, seconds: float) -> Workload:
    load, ring = Load("stamped", 61), Ring(64)
    messages = 20 if seconds < 0.1 else 500
    return Workload(
        name=f"latency_small_{transport}",
        kind="net",
        what="99th percentile from send until the consumer has the batch with the sample, "
        "{obs: (3,) f32, sent: (1,) i64}, at half the rate that the client can reach",
        unit="us",
        better="lower",
        session=partial(
            sessions.latency, transport=transport, load=load, ring=ring, seconds=seconds
        ),
        bound_name="a message over a bare socket to a process that waits for it",
        bound=any_engine(
            partial(net_probes.bare_messages, _socket(transport), messages=messages, pause=0.0005)
        ),
        parameters=_parameters(transport, load, ring, seconds),
        targets=(Target("value", at_most=5000),),
    )


def _small_batches(transport: str, seconds: float) -> Workload:
    load, ring = Load("small", 3, 4096), Ring(4096)
    name, bound = _stream_bound(transport, load, ring, seconds, 1 / load.sample_bytes)
    return Workload(
        name=f"send_batch_small_{transport}",
        kind="net",
        what=f"send_batch of {{obs: (4,) f32, reward: (1,) f32}}, {load.rows} rows a call",
        unit="samples/s",
        better="higher",
        session=partial(
            sessions.throughput, transport=transport, load=load, ring=ring, seconds=seconds, scale=1
        ),
        bound_name=name,
        bound=bound,
        **limits.transport(
            transport,
            ring_bytes=_ring_bytes(load, ring),
            seconds=seconds,
            convert=lambda rate: rate * 1e9 / load.sample_bytes,
        ),
        parameters=_parameters(transport, load, ring, seconds),
        targets=(Target("value", at_least=5e6),),
    )


def _frames(transport: str, seconds: float) -> Workload:
    if transport == "shm":
        targets: tuple[Target, ...] = (Target("ratio_to_bound", at_least=0.7),)
    elif transport == "tcp":
        targets = (
            Target(f"ratio_to_{PEER}", at_least=1.5),
            Target("ratio_to_bound", at_least=0.8),
        )
    else:
        targets = ()
    what = "send of an 84x84x4 u8 frame with three scalars"
    return _bytes(
        f"send_frames_{transport}", what, transport, Load("frame", 7), Ring(64), seconds, targets
    )


def _layers(transport: str, seconds: float) -> Workload:
    what = "send of a 1.02 MB tree of 44 leaves"
    return _bytes(f"send_layers_{transport}", what, transport, Load("layers", 3), Ring(8), seconds)


def _bytes(
    name: str,
    what: str,
    transport: str,
    load: Load,
    ring: Ring,
    seconds: float,
    targets: tuple[Target, ...] = (),
) -> Workload:
    bound_name, bound = _stream_bound(transport, load, ring, seconds, 1e-9)
    return Workload(
        name=name,
        kind="net",
        what=what,
        unit="GB/s",
        better="higher",
        session=partial(
            sessions.throughput,
            transport=transport,
            load=load,
            ring=ring,
            seconds=seconds,
            scale=load.sample_bytes / 1e9,
        ),
        bound_name=bound_name,
        bound=bound,
        **limits.transport(transport, ring_bytes=_ring_bytes(load, ring), seconds=seconds),
        parameters=_parameters(transport, load, ring, seconds),
        targets=targets,
        steady=load.kind == "frame" and transport in {"tcp", "shm"},
    )


def _connections(name: str, seconds: float, counts: tuple[int, ...], *, burst: int) -> Workload:
    load, ring = Load("numbered", 61), Ring(1024)
    return Workload(
        name=name,
        kind="net",
        what=f"send of 20 bytes over {counts[-1]} connections from two processes, in total; in its "
        f"turn, each sends up to {burst}",
        unit="samples/s",
        better="higher",
        session=partial(
            sessions.connections,
            transport="tcp",
            load=load,
            ring=ring,
            seconds=seconds,
            counts=counts,
            burst=burst,
        ),
        bound_name="empty native calls with such an argument, one thread",
        bound=partial(_empty_calls, calls=max(1000, int(seconds * 1e6))),
        parameters={
            **_parameters("tcp", load, ring, seconds),
            "connections": list(counts),
            "burst": burst,
        },
        # One sample here and one there costs a system call each, with whatever system.
        targets=(Target("kept", at_least=0.8),) if burst > 1 else (),
    )


def _parameters(transport: str, load: Load, ring: Ring, seconds: float) -> dict[str, Any]:
    return {
        "transport": transport,
        "peer_transport": "tcp",
        **asdict(ring),
        "rows_per_call": load.rows,
        "sample_bytes": load.sample_bytes,
        "seconds": seconds,
    }


def _empty_calls(engine: Any, *, calls: int) -> Any:
    """Calls per second where the probe tells microseconds per call."""
    probe = partial(probes.empty_calls, engine, Load("small", 61).pool(), calls)
    return net_probes.converted(probe, lambda us: 1e6 / us)


def _stream_bound(
    transport: str, load: Load, ring: Ring, seconds: float, scale: float
) -> tuple[str, Session]:
    """What moves the same bytes without any system: its name, and it in bytes times ``scale``."""
    if transport == "shm":
        slots = ring.batch_size // load.rows
        # At 10 GB/s, about so long as the others take.
        batches = max(2, int(seconds * 10e9 / (ring.batch_size * load.sample_bytes)))

        def copy() -> Any:
            return probes.plain_copies(
                load.pool(),
                slots_per_batch=slots,
                num_buffers=ring.num_buffers,
                batches=batches,
            )

        return COPY_NAME, any_engine(
            lambda: net_probes.converted(copy, lambda gigabytes: gigabytes * 1e9 * scale)
        )
    words = " with the TLS of Python's standard library" if transport == "tls" else ""
    stream = partial(
        net_probes.bare_stream,
        transport,
        ring_bytes=_ring_bytes(load, ring),
        total_bytes=int(seconds * 3e9),
    )
    return (
        f"a bare loop of 256 KiB sends and receives over such sockets{words}, in two processes",
        any_engine(lambda: net_probes.converted(stream, lambda rate: rate * scale)),
    )


def _ring_bytes(load: Load, ring: Ring) -> int:
    return ring.batch_size * ring.num_buffers * load.sample_bytes


def _socket(transport: str) -> str:
    """Return which bare socket a transport is measured beside."""
    return "tcp" if transport == "tcp" else "unix"
