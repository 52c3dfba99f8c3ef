"""The suite of memory: bytes that a process grows by for each item that it keeps.

The bound is the item itself. Processes of their own are measured, from before the first item.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Literal

from benchmarks.local import stores
from benchmarks.local.engine import Plan as BufferPlan
from benchmarks.local.items import Rows
from benchmarks.tables import probes, sessions
from benchmarks.tables.engine import Plan as TablePlan
from benchmarks.tables.items import Items
from benchmarks.workload import Session, Target, Workload, any_engine

if TYPE_CHECKING:
    from typing import Any

    from benchmarks.workload import Kind

_SMALL = "48-byte transitions in five columns"


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones keep fewer items."""
    items, appended, images = (100_000, 10_000, 300) if quick else (1_000_000, 50_000, 1000)
    return [
        _buffer("memory_buffer_small", BufferPlan("small", items)),
        _buffer("memory_buffer_prioritized", BufferPlan("small", items, prioritized=True)),
        _buffer("memory_buffer_images", BufferPlan("image", images)),
        _table("memory_append_small", "append", appended),
        _rows("memory_insert_small", items),
    ]


def _buffer(name: str, plan: BufferPlan) -> Workload:
    rows = Rows(plan.kind)
    what = "that a local buffer draws by priority" if plan.prioritized else "in a local buffer"
    return _workload(
        name,
        "local",
        f"resident memory for each of {plan.capacity} transitions of {rows.nbytes} bytes {what}",
        rows,
        partial(stores.memory, plan=plan),
        asdict(plan),
    )


def _table(name: str, how: Literal["insert", "append"], count: int) -> Workload:
    plan, items = TablePlan("transition", 1_000_000), Items("transition")
    return _workload(
        name,
        "tables",
        f"resident memory of the server for each of {count} {_SMALL}, by {how}",
        items,
        partial(sessions.memory, plan=plan, how=how, rows=count),
        {**asdict(plan), "rows": count},
        Target("value", at_most=items.nbytes * 1.15 + 64),
    )


def _rows(name: str, count: int) -> Workload:
    plan, items = TablePlan("transition", count), Items("transition")
    return _workload(
        name,
        "tables",
        f"resident memory of the process for each of {count} {_SMALL} in rows of a table",
        items,
        partial(sessions.memory_of_rows, plan=plan),
        asdict(plan),
        Target("value", at_most=items.nbytes * 1.15 + 64),
    )


def _workload(
    name: str,
    kind: Kind,
    what: str,
    items: Items,
    session: Session,
    parameters: dict[str, Any],
    *targets: Target,
) -> Workload:
    return Workload(
        name=name,
        kind=kind,
        what=what,
        unit="B/item",
        better="lower",
        session=session,
        bound_name="the bytes of the item itself",
        bound=any_engine(partial(probes.payload_bytes, items)),
        parameters={**parameters, "item_bytes": items.nbytes},
        targets=targets,
    )
