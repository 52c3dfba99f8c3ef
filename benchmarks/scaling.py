"""The suite of sizes: what an operation costs for each item, by how many items there are.

Who grows with the logarithm of the size shows a straight line, and who does with the size a steep
one. The bounds are of the same sizes: what no cache holds costs more by itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.limits import suite as limits
from benchmarks.local import stores
from benchmarks.local.engine import Plan as BufferPlan
from benchmarks.local.items import Rows
from benchmarks.net.probes import converted
from benchmarks.tables import sessions
from benchmarks.tables.engine import Plan as TablePlan
from benchmarks.tables.items import Items
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.workload import Kind, Session

_BATCH = 256
_BLOCK = 1000
# Beyond it, a peer's items and all that checks them do not fit beside those of others.
_PEERS_UP_TO = 1_000_000


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones end at 100,000 items."""
    seconds = 0.02 if quick else 0.3
    sizes = [10**power for power in range(3, 6 if quick else 8)]
    return [
        workload
        for size in sizes
        for workload in (*_buffers(size, seconds), *_tables(size, seconds))
    ]


def _buffers(size: int, seconds: float) -> Iterator[Workload]:
    uniform = BufferPlan("small", size)
    prioritized = BufferPlan("small", size, prioritized=True)
    make = partial(_workload, kind="local", size=size, seconds=seconds, items=Rows("small"))
    yield make(
        operation="buffer, extend",
        what=f"transitions into a full local buffer, in blocks of {_BLOCK}",
        session=partial(stores.extensions, plan=uniform, rows=_BLOCK, seconds=seconds),
        convert=_nanoseconds_of_rate,
    )
    yield make(
        operation="buffer, sample",
        what=f"transitions of uniform batches of {_BATCH} from a local buffer",
        session=partial(stores.samples, plan=uniform, batch=_BATCH, seconds=seconds),
        convert=_nanoseconds_of_batch,
    )
    yield make(
        operation="buffer, by priority",
        what=f"transitions of batches of {_BATCH} drawn by priority, their priorities set anew",
        session=partial(stores.priorities, plan=prioritized, batch=_BATCH, seconds=seconds),
        convert=_nanoseconds_of_batch,
    )


def _tables(size: int, seconds: float) -> Iterator[Workload]:
    uniform = TablePlan("transition", size)
    prioritized = TablePlan("transition", size, "prioritized")
    make = partial(_workload, kind="tables", size=size, seconds=seconds, items=Items("transition"))
    yield make(
        operation="table, insert",
        what=f"items into a full table in process, in blocks of {_BLOCK}",
        session=partial(sessions.local_inserts, plan=uniform, rows=_BLOCK, seconds=seconds),
        convert=_nanoseconds_of_rate,
    )
    yield make(
        operation="table, sample",
        what=f"items of uniform batches of {_BATCH} from a table in process",
        session=partial(
            sessions.local_samples, plan=uniform, batch=_BATCH, check_every=256, seconds=seconds
        ),
        convert=_nanoseconds_of_batch,
    )
    yield make(
        operation="table, by priority",
        what=f"items of batches of {_BATCH} drawn by priority, their priorities set anew",
        session=partial(sessions.local_priorities, plan=prioritized, batch=_BATCH, seconds=seconds),
        convert=_nanoseconds_of_batch,
    )


def _nanoseconds_of_rate(rate: float) -> float:
    return 1e9 / rate


def _nanoseconds_of_batch(us: float) -> float:
    return us * 1e3 / _BATCH


def _workload(
    *,
    operation: str,
    what: str,
    kind: Kind,
    size: int,
    seconds: float,
    items: Items,
    session: Session,
    convert: Callable[[float], float],
) -> Workload:
    writes = convert is _nanoseconds_of_rate
    bound = (
        limits.copies(
            _BLOCK * items.nbytes,
            sources=stores.BLOCKS,
            targets=size // _BLOCK,
            seconds=seconds,
            convert=lambda rate: items.nbytes / rate,
        )
        if writes
        else limits.gathers(
            items.nbytes,
            rows=size,
            batch=_BATCH,
            seconds=seconds,
            convert=_nanoseconds_of_batch,
        )
    )
    return Workload(
        name=f"{operation.replace(', ', '_').replace(' ', '_')}_{size}",
        kind=kind,
        what=f"{what}, of {size} items",
        unit="ns/item",
        better="lower",
        session=partial(_converted, session=session, convert=convert),
        bound_name=bound["limit_name"],
        bound=bound["limit"],
        parameters={"by_size": operation, "size": size, "seconds": seconds},
        peers=kind == "local" and size <= _PEERS_UP_TO,
    )


def _converted(engine: Any, *, session: Session, convert: Callable[[float], float]) -> Any:
    return converted(partial(session, engine), convert)
