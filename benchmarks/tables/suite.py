"""The workloads of the suite of replay tables."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import probes as call_probes
from benchmarks.limits import suite as limits
from benchmarks.net import probes as net_probes
from benchmarks.tables import probes, sessions
from benchmarks.tables.engine import Plan
from benchmarks.tables.items import Items
from benchmarks.workload import Session, Target, Workload, any_engine

if TYPE_CHECKING:
    from typing import Literal

PEER = "dm-reverb"
_BATCH = 256
_CALLS = "empty native calls with the same argument, one thread"
_STREAM = "a bare loop of 256 KiB sends and receives over TCP, in two processes"
_TRIPS = "requests and replies of so many bytes over a bare TCP socket, one at a time"
_SMALL = "48-byte transitions in five columns"


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones do little work and say little."""
    seconds = 0.05 if quick else 1.0
    rows, frames = (4096, 256) if quick else (100_000, 10_000)
    return [
        _insert(seconds),
        _append("append_small_tcp", "transition", seconds),
        _append("append_frames_tcp", "frame", seconds),
        _sampler_small(rows, seconds),
        _sampler_frames(frames, seconds),
        _sample_small(rows, seconds),
        _update("update_priorities_tcp", "update", rows, seconds),
        _update("post_priorities_tcp", "post", rows, seconds),
        _mixed(seconds),
        _local_sample(rows if quick else 1_000_000, seconds),
        _local_update(rows if quick else 1_000_000, seconds),
    ]


def _insert(seconds: float) -> Workload:
    plan = Plan("transition", 1_000_000)
    return Workload(
        name="insert_small_tcp",
        kind="tables",
        what=f"insert of {_SMALL}, until all are in the table",
        unit="items/s",
        better="higher",
        session=partial(
            sessions.insertions, plan=plan, how="insert", flush_every=None, seconds=seconds
        ),
        bound_name=_CALLS,
        bound=partial(_empty_calls, kind=plan.kind, seconds=seconds),
        parameters=_parameters(plan, seconds),
        targets=(Target(f"ratio_to_{PEER}", at_least=50),),
    )


def _append(name: str, kind: str, seconds: float) -> Workload:
    plan = Plan(kind, 1_000_000 if kind == "transition" else 10_000)
    flush_every = 100
    what = _SMALL if kind == "transition" else "28,224-byte frames"
    return Workload(
        name=name,
        kind="tables",
        what=f"a writer of trajectories that makes an item of every step, {what}, and waits for "
        f"the table after every {flush_every}",
        unit="items/s",
        better="higher",
        session=partial(
            sessions.insertions, plan=plan, how="append", flush_every=flush_every, seconds=seconds
        ),
        bound_name=_CALLS if kind == "transition" else _STREAM,
        bound=partial(_empty_calls, kind=kind, seconds=seconds)
        if kind == "transition"
        else _stream(Items(kind).nbytes, _BATCH, seconds),
        parameters={**_parameters(plan, seconds), "flush_every": flush_every},
        targets=(Target(f"ratio_to_{PEER}", at_least=20),) if kind == "transition" else (),
    )


def _sampler_small(rows: int, seconds: float) -> Workload:
    plan = Plan("transition", rows)
    return Workload(
        name="sampler_small_tcp",
        kind="tables",
        what=f"uniform batches of {_BATCH} {_SMALL} that are fetched ahead",
        unit="items/s",
        better="higher",
        session=partial(
            sessions.samples, plan=plan, batch=_BATCH, ahead=True, check_every=32, seconds=seconds
        ),
        bound_name=_STREAM,
        bound=_stream(Items(plan.kind).nbytes, _BATCH, seconds),
        **_stream_limit(Items(plan.kind).nbytes, seconds),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
        targets=(Target(f"ratio_to_{PEER}", at_least=20),),
    )


def _sampler_frames(rows: int, seconds: float) -> Workload:
    plan = Plan("frame", rows)
    return Workload(
        name="sampler_frames_tcp",
        kind="tables",
        what=f"uniform batches of {_BATCH} 28,224-byte frames that are fetched ahead",
        unit="items/s",
        better="higher",
        session=partial(
            sessions.samples, plan=plan, batch=_BATCH, ahead=True, check_every=64, seconds=seconds
        ),
        bound_name=_STREAM,
        bound=_stream(Items(plan.kind).nbytes, _BATCH, seconds),
        **_stream_limit(Items(plan.kind).nbytes, seconds),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
        # The peer moves so many bytes already that 20 times as many do not fit.
        targets=(Target("ratio_to_bound", at_least=0.8),),
        steady=True,
    )


def _sample_small(rows: int, seconds: float) -> Workload:
    plan = Plan("transition", rows)
    nbytes = _BATCH * Items(plan.kind).nbytes
    return Workload(
        name="sample_small_tcp",
        kind="tables",
        what=f"uniform batches of {_BATCH} {_SMALL}, each asked for when the last is there",
        unit="items/s",
        better="higher",
        session=partial(
            sessions.samples, plan=plan, batch=_BATCH, ahead=False, check_every=32, seconds=seconds
        ),
        bound_name=_TRIPS,
        bound=_round_trips(64, nbytes, seconds, _BATCH),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
        targets=(Target(f"ratio_to_{PEER}", at_least=20),),
    )


def _update(name: str, how: Literal["update", "post"], rows: int, seconds: float) -> Workload:
    plan = Plan("transition", rows, "prioritized")
    waits = "each confirmed" if how == "update" else "confirmed in the end"
    return Workload(
        name=name,
        kind="tables",
        what=f"new priorities for {_BATCH} keys a call, from numpy arrays, {waits}",
        unit="updates/s",
        better="higher",
        session=partial(
            sessions.updates, plan=plan, how=how, keys_per_call=_BATCH, seconds=seconds
        ),
        bound_name=_TRIPS,
        bound=_round_trips(16 * _BATCH, 64, seconds, _BATCH),
        parameters=_parameters(plan, seconds, keys_per_call=_BATCH),
        targets=(Target(f"ratio_to_{PEER}", at_least=10),),
    )


def _mixed(seconds: float) -> Workload:
    plan = Plan("transition", 100_000, ratio=4.0)
    nbytes = Items(plan.kind).nbytes
    return Workload(
        name="mixed_small_tcp",
        kind="tables",
        what=f"a writer of trajectories and uniform batches of {_BATCH} {_SMALL} at once, each "
        f"item being sampled {plan.ratio:.0f} times",
        unit="samples/s",
        better="higher",
        session=partial(sessions.mixed, plan=plan, batch=_BATCH, seconds=seconds),
        bound_name=_STREAM,
        bound=_stream(nbytes, _BATCH, seconds),
        **_stream_limit(nbytes, seconds),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
    )


def _local_sample(rows: int, seconds: float) -> Workload:
    plan = Plan("transition", rows)
    return Workload(
        name="sample_small_local",
        kind="tables",
        what=f"a uniform batch of {_BATCH} of {rows} {_SMALL}, in process",
        unit="us",
        better="lower",
        session=partial(
            sessions.local_samples, plan=plan, batch=_BATCH, check_every=256, seconds=seconds
        ),
        bound_name="one numpy gather of the same rows, packed, with indices drawn ahead",
        bound=_gather(plan, seconds),
        **_gather_limit(plan, seconds),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
        targets=(Target("ratio_to_bound", at_least=0.5),),
    )


def _local_update(rows: int, seconds: float) -> Workload:
    plan = Plan("transition", rows, "prioritized")
    return Workload(
        name="prioritized_small_local",
        kind="tables",
        what=f"a batch of {_BATCH} of {rows} {_SMALL} by priority, and its priorities set anew, in "
        "process",
        unit="us",
        better="lower",
        session=partial(sessions.local_priorities, plan=plan, batch=_BATCH, seconds=seconds),
        bound_name="one numpy gather of the same rows, packed, with indices drawn ahead",
        bound=_gather(plan, seconds),
        **_gather_limit(plan, seconds),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
        targets=(Target("value", at_most=40),),
    )


def _parameters(plan: Plan, seconds: float, **more: int) -> dict[str, Any]:
    return {**asdict(plan), "item_bytes": Items(plan.kind).nbytes, "seconds": seconds, **more}


def _empty_calls(engine: Any, *, kind: str, seconds: float) -> Any:
    """Calls per second where the probe tells microseconds per call."""
    pool = Items(kind).pool(sessions.POOL)
    probe = partial(call_probes.empty_calls, engine, pool, max(1000, int(seconds * 1e6)))
    return net_probes.converted(probe, lambda us: 1e6 / us)


def _stream(item_bytes: int, batch: int, seconds: float) -> Session:
    """Bytes over a bare socket into four batches in turn, as items per second."""
    stream = partial(
        net_probes.bare_stream,
        "tcp",
        ring_bytes=4 * batch * item_bytes,
        total_bytes=int(seconds * 2e9),
    )
    return any_engine(lambda: net_probes.converted(stream, lambda rate: rate / item_bytes))


def _round_trips(request: int, reply: int, seconds: float, scale: float) -> Session:
    return any_engine(
        partial(probes.round_trips, request=request, reply=reply, seconds=seconds, scale=scale)
    )


def _gather(plan: Plan, seconds: float) -> Session:
    gather = partial(
        probes.gather, Items(plan.kind), rows=plan.capacity, batch=_BATCH, seconds=seconds
    )
    return any_engine(gather)


def _gather_limit(plan: Plan, seconds: float) -> limits.Fields:
    """The same gather by a program in Rust."""
    return limits.gathers(
        Items(plan.kind).nbytes, rows=plan.capacity, batch=_BATCH, seconds=seconds / 3
    )


def _stream_limit(item_bytes: int, seconds: float) -> limits.Fields:
    """Bytes over a socket by a program in Rust, as items per second."""
    return limits.transport(
        "tcp", seconds=seconds / 3, convert=lambda rate: rate * 1e9 / item_bytes
    )
