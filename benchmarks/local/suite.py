"""The workloads of the suite of local buffers, primitives and collectors."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.limits import suite as limits
from benchmarks.local import calls, probes, rollouts, stores
from benchmarks.local.engine import Case, Plan
from benchmarks.local.items import Rows
from benchmarks.workload import Session, Target, Workload, any_engine

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCH = 256
_BLOCK = 4096
_ENVS = 16
_STEPS = 128
_HIDDEN = 64
_SMALL = "42-byte transitions in six columns"
_IMAGES = "transitions of two stacks of four 84 x 84 frames of bytes"
_CALLS = "empty native calls, one thread"
_GATHER = "one numpy gather of the same rows, packed, with indices drawn ahead"


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones do little work and say little."""
    seconds = 0.01 if quick else 0.3
    few, many, images = (2000, 8000, 256) if quick else (100_000, 1_000_000, 20_000)
    sequences, long = (16, 64) if quick else (256, 4096)
    return [
        _push("push_small", Plan("small", few), seconds, Target("value", at_most=0.2)),
        _push(
            "push_prioritized",
            Plan("small", few, prioritized=True),
            seconds,
            Target("ratio_to_rlox", at_least=1.0),
        ),
        _extend("extend_small", Plan("small", many), _BLOCK, seconds),
        _extend("extend_images", Plan("image", min(images, 1024)), 64, seconds),
        _sample("sample_small_100k", Plan("small", few), seconds),
        _sample("sample_small_1m", Plan("small", many), seconds, Target("value", at_most=8.0)),
        _sample("sample_images", Plan("image", images), seconds, Target("value", at_most=2500.0)),
        _sequences(Plan("steps", few, length=32), seconds),
        _sample_mapped(Plan("image", max(256, images // 4), hot=images // 40), seconds),
        _priorities("prioritized_100k", few, seconds),
        _priorities("prioritized_1m", many, seconds, Target("value", at_most=40.0)),
        _gae_single(seconds),
        *_gae_batched("", sequences, seconds, Target("value", at_most=800.0)),
        *_gae_batched("_beyond_cache", long, seconds, Target("ratio_to_bound", at_least=0.6)),
        _vtrace(seconds),
        _token_kl("token_kl", "compute_batch_token_kl", seconds),
        _token_kl("token_kl_schulman", "compute_batch_token_kl_schulman", seconds),
        _groups(16, 4, seconds),
        _groups(1024, 32, seconds),
        _packing(500 if quick else 10_000, seconds),
        _collector(seconds),
        _steps(seconds),
    ]


def _push(name: str, plan: Plan, seconds: float, target: Target) -> Workload:
    return Workload(
        name=name,
        kind="local",
        what=f"push of {_SMALL}, one a call"
        + (", to a buffer that draws by priority" if plan.prioritized else ""),
        unit="us",
        better="lower",
        session=partial(stores.pushes, plan=plan, seconds=seconds),
        bound_name=_CALLS,
        bound=partial(probes.native_calls, seconds=seconds),
        parameters=_parameters(plan, seconds),
        targets=(target,),
    )


def _extend(name: str, plan: Plan, rows: int, seconds: float) -> Workload:
    nbytes = rows * Rows(plan.kind).nbytes
    round_ring = {"sources": stores.BLOCKS, "targets": max(1, plan.capacity // rows)}
    return Workload(
        name=name,
        kind="local",
        what=f"blocks of {rows} {_SMALL if plan.kind == 'small' else _IMAGES}",
        unit="rows/s",
        better="higher",
        session=partial(stores.extensions, plan=plan, rows=rows, seconds=seconds),
        bound_name="numpy copy of the same bytes round a ring of the same size",
        bound=any_engine(partial(probes.copies, nbytes, **round_ring, seconds=seconds, scale=rows)),
        **limits.copies(
            nbytes,
            **round_ring,
            seconds=seconds,
            convert=lambda rate: rate * 1e9 / nbytes * rows,
        ),
        parameters=_parameters(plan, seconds, rows=rows),
        targets=(Target("ratio_to_bound", at_least=0.85),),
        steady=plan.kind == "image",
    )


def _sample(name: str, plan: Plan, seconds: float, *more: Target) -> Workload:
    return Workload(
        name=name,
        kind="local",
        what=f"a uniform batch of {_BATCH} of {plan.capacity} "
        f"{_SMALL if plan.kind == 'small' else _IMAGES}",
        unit="us",
        better="lower",
        session=partial(stores.samples, plan=plan, batch=_BATCH, seconds=seconds),
        bound_name=_GATHER,
        bound=_gather(plan, seconds),
        **_gather_limit(plan, seconds),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
        targets=(*more, Target("ratio_to_bound", at_least=0.8 if plan.kind == "image" else 0.66)),
        steady=plan.kind == "image",
    )


def _sequences(plan: Plan, seconds: float) -> Workload:
    windows = 64
    return Workload(
        name="sample_sequences",
        kind="local",
        what=f"{windows} windows of {plan.length} consecutive steps of {plan.capacity} {_SMALL} in "
        "episodes of 500",
        unit="us",
        better="lower",
        session=partial(stores.sequences, plan=plan, batch=windows, seconds=seconds),
        bound_name=_GATHER,
        bound=_gather(plan, seconds, batch=windows * plan.length),
        parameters=_parameters(plan, seconds, batch_size=windows),
    )


def _sample_mapped(plan: Plan, seconds: float) -> Workload:
    return Workload(
        name="sample_images_mapped",
        kind="local",
        what=f"a uniform batch of {_BATCH} of {plan.capacity} {_IMAGES}, of which {plan.hot} are "
        "in memory and the rest in a file that the system's cache holds",
        unit="us",
        better="lower",
        session=partial(stores.samples, plan=plan, batch=_BATCH, seconds=seconds),
        bound_name="sorted reads of so many rows of such a file, one after the other",
        bound=any_engine(partial(probes.reads, plan, batch=_BATCH, seconds=seconds)),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
        targets=(Target("ratio_to_bound", at_least=0.8),),
    )


def _priorities(name: str, rows: int, seconds: float, *targets: Target) -> Workload:
    plan = Plan("small", rows, prioritized=True)
    return Workload(
        name=name,
        kind="local",
        what=f"a batch of {_BATCH} of {rows} {_SMALL} by priority, and its priorities set anew",
        unit="us",
        better="lower",
        session=partial(stores.priorities, plan=plan, batch=_BATCH, seconds=seconds),
        bound_name=_GATHER,
        bound=_gather(plan, seconds),
        **_gather_limit(plan, seconds),
        parameters=_parameters(plan, seconds, batch_size=_BATCH),
        targets=targets,
    )


def _gae_single(seconds: float) -> Workload:
    return _call(
        "gae_2048_f64",
        "advantages of one sequence of 2048 steps in float64",
        partial(calls.gae, 2048),
        5 * 8 * 2048,
        seconds,
        Target("value", at_most=6.1),
    )


def _gae_batched(suffix: str, count: int, seconds: float, *targets: Target) -> list[Workload]:
    layouts = (("", "one sequence after the other", False), ("_time_major", "time first", True))
    return [
        _call(
            f"gae_f32{layout}{suffix}",
            f"advantages of {count} sequences of 2048 steps in float32, {words}",
            partial(calls.gae_batched, count, 2048, time_major=time_major),
            5 * 4 * count * 2048,
            seconds,
            *targets,
            sequences=count,
        )
        for layout, words, time_major in layouts
    ]


def _vtrace(seconds: float) -> Workload:
    return _call(
        "vtrace_2048_f32",
        "V-trace of one sequence of 2048 steps in float32",
        partial(calls.vtrace, 2048),
        6 * 4 * 2048,
        seconds,
        Target("value", at_most=14.2),
    )


def _token_kl(name: str, function: str, seconds: float) -> Workload:
    return _call(
        f"{name}_f64",
        f"`{function}` of 256 sequences of 512 tokens in float64",
        partial(calls.token_kl, function, 256, 512),
        2 * 8 * 256 * 512,
        seconds,
        Target("value", at_most=100.0),
    )


def _groups(groups: int, size: int, seconds: float) -> Workload:
    return _call(
        f"group_advantages_{groups}x{size}",
        f"advantages of {groups} groups of {size} in float64",
        partial(calls.group_advantages, groups, size),
        2 * 8 * groups * size,
        seconds,
    )


def _packing(count: int, seconds: float) -> Workload:
    make = partial(calls.packing, count)
    tokens = sum(len(each) for each in make().arguments[0])
    return Workload(
        name="pack_sequences",
        kind="local",
        what=f"{count} sequences of up to {calls.LONGEST} tokens in bins of {calls.BIN}, with "
        "masks and positions",
        unit="us",
        better="lower",
        # First fit needs 1.7 times the bins of the best packing at worst; here it is close to it.
        session=partial(
            calls.packings, make=make, bins=round(tokens / calls.BIN * 1.1) + 1, seconds=seconds
        ),
        bound_name="numpy copy of as many bytes as the tokens have, with masks and positions",
        bound=_copy(3 * 4 * tokens, seconds),
        parameters={"seconds": seconds, "sequences": count, "tokens": tokens},
    )


def _collector(seconds: float) -> Workload:
    size = {"envs": _ENVS, "steps": _STEPS, "hidden": _HIDDEN}
    return Workload(
        name="collect_cartpole",
        kind="local",
        what=f"rollouts of {_STEPS} steps of {_ENVS} CartPoles with an actor and a critic of two "
        f"hidden layers of {_HIDDEN} each",
        unit="steps/s",
        better="higher",
        session=partial(rollouts.rollouts, **size, seconds=seconds),
        bound_name="the matrix products of the two networks alone, by numpy",
        bound=any_engine(partial(probes.products, envs=_ENVS, hidden=_HIDDEN, seconds=seconds)),
        parameters={"seconds": seconds, **size},
        targets=(Target("value", at_least=400_000),),
    )


def _steps(seconds: float) -> Workload:
    return Workload(
        name="step_cartpole",
        kind="local",
        what=f"steps of {_ENVS} CartPoles with actions that were drawn ahead",
        unit="steps/s",
        better="higher",
        session=partial(rollouts.steps, envs=_ENVS, seconds=seconds),
        bound_name=f"{_CALLS}, each for {_ENVS} steps",
        bound=partial(probes.native_calls, seconds=seconds, scale=_ENVS),
        parameters={"seconds": seconds, "envs": _ENVS},
        targets=(Target("ratio_to_rlox", at_least=2.0),),
    )


def _call(
    name: str,
    what: str,
    make: Callable[[], Case],
    moved: int,
    seconds: float,
    *targets: Target,
    **parameters: Any,
) -> Workload:
    """A call that reads and writes ``moved`` bytes: a copy of half of them does so too."""
    return Workload(
        name=name,
        kind="local",
        what=what,
        unit="us",
        better="lower",
        session=partial(calls.calls, make=make, seconds=seconds),
        bound_name="numpy copy that reads and writes as many bytes in all",
        bound=_copy(moved // 2, seconds),
        parameters={"seconds": seconds, "moved_bytes": moved, **parameters},
        targets=targets,
    )


def _parameters(plan: Plan, seconds: float, **more: int) -> dict[str, Any]:
    return {**asdict(plan), "row_bytes": Rows(plan.kind).nbytes, "seconds": seconds, **more}


def _copy(nbytes: int, seconds: float) -> Session:
    return any_engine(partial(probes.copies, nbytes, sources=1, targets=1, seconds=seconds))


def _gather(plan: Plan, seconds: float, batch: int = _BATCH) -> Session:
    return any_engine(partial(probes.gathers, plan, batch=batch, seconds=seconds))


def _gather_limit(plan: Plan, seconds: float) -> limits.Fields:
    """The same gather by a program in Rust."""
    rows = probes.gathered_rows(plan)
    return limits.gathers(Rows(plan.kind).nbytes, rows=rows, batch=_BATCH, seconds=seconds)
