"""The suite of what survives: checkpoints of tables, and journals, beside plain files.

Only Echoic is measured. Files lie in ``target``, on the disk of the tree; what is written there is
made anew from disk after each repeat, and its items are checked.

A checkpoint is acknowledged when it is on disk, and so is every call of a ``sync`` journal; the
bounds call `os.fsync` as often. Reading finds the files in the system's cache, on both sides.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks.child import ROOT
from benchmarks.content import ContentError
from benchmarks.tables.draws import Draws
from benchmarks.tables.engine import TABLE
from benchmarks.tables.items import Items
from benchmarks.timing import Measurement
from benchmarks.workload import Workload, any_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.payload import Array
    from benchmarks.timing import Measure

_BLOCK = 1 << 20
_FIRST_RATE = 1000.0
# Items of one call, where a call has many.
_ROWS = 256
Durability = Literal["async", "sync"]


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones write little."""
    seconds = 0.05 if quick else 0.5
    small, frames = (100_000, 500) if quick else (2_000_000, 5000)
    return [
        *(
            _checkpoint(kind, size, how)
            for kind, size in (("transition", small), ("frame", frames))
            for how in ("write", "read")
        ),
        *(
            _journal(durability, rows, seconds)
            for durability in ("async", "sync")
            for rows in (1, _ROWS)
        ),
    ]


def _checkpoint(kind: str, size: int, how: str) -> Workload:
    items = Items(kind)
    total = items.nbytes * size
    writes = how == "write"
    return Workload(
        name=f"checkpoint_{how}_{'small' if kind == 'transition' else 'frames'}",
        kind="durability",
        what=f"a checkpoint of a table of {size} items of {items.nbytes} bytes, "
        + ("until it is on disk" if writes else "made into a table again"),
        unit="GB/s",
        better="higher",
        session=partial(checkpoint_writes if writes else checkpoint_reads, items=items, size=size),
        bound_name="as many bytes into a file, 1 MiB a call, and one fsync"
        if writes
        else "as many bytes from a file, 1 MiB a call, into memory that is used again",
        bound=any_engine(partial(file_writes if writes else file_reads, total)),
        parameters={"kind": kind, "size": size, "item_bytes": items.nbytes},
    )


def _journal(durability: Durability, rows: int, seconds: float) -> Workload:
    items = Items("transition")
    syncs = durability == "sync"
    return Workload(
        name=f"journal_{durability}_{'one' if rows == 1 else rows}",
        kind="durability",
        what=f"inserts of {rows} 48-byte transitions a call into a table with a journal, each call "
        + ("until they are on disk" if syncs else "until the system has them"),
        unit="items/s",
        better="higher",
        session=partial(journals, items=items, durability=durability, rows=rows, seconds=seconds),
        bound_name="a write of as many bytes for each call" + (", and an fsync" if syncs else ""),
        bound=any_engine(
            partial(appends, rows * items.nbytes, syncs=syncs, rows=rows, seconds=seconds)
        ),
        parameters={"durability": durability, "rows": rows, "seconds": seconds},
    )


@contextlib.contextmanager
def checkpoint_writes(_engine: Any, *, items: Items, size: int) -> Iterator[Measure]:
    """Write one checkpoint after the other, each whole: GB/s."""
    with _folder() as folder, _served(items, size, folder) as server:

        def measure() -> Measurement:
            start = time.perf_counter_ns()
            server.checkpoint()
            elapsed = time.perf_counter_ns() - start
            with _loaded(items, size, folder) as table:
                _check(table, items, size)
            return Measurement(items.nbytes * size / elapsed)

        yield measure


@contextlib.contextmanager
def checkpoint_reads(_engine: Any, *, items: Items, size: int) -> Iterator[Measure]:
    """Begin a server with a checkpoint again and again: GB/s."""
    with _folder() as folder:
        with _served(items, size, folder) as server:
            server.checkpoint()

        def measure() -> Measurement:
            start = time.perf_counter_ns()
            with _loaded(items, size, folder) as table:
                elapsed = time.perf_counter_ns() - start
                _check(table, items, size)
            return Measurement(items.nbytes * size / elapsed)

        yield measure


@contextlib.contextmanager
def journals(
    _engine: Any, *, items: Items, durability: Durability, rows: int, seconds: float
) -> Iterator[Measure]:
    """Insert into a table whose changes are written down: items per second."""
    import echoic

    rate = _FIRST_RATE

    def measure() -> Measurement:
        nonlocal rate
        calls = max(16, round(rate * seconds / rows))
        columns = items.columns(np.arange(calls * rows))
        blocks = [_rows(columns, first, rows) for first in range(0, calls * rows, rows)]
        with _folder() as folder:
            table = _table(items, calls * rows, durability=durability)
            with echoic.Server(table, journal=folder):
                insert = table.add if rows == 1 else table.extend
                start = time.perf_counter_ns()
                for block in blocks:
                    insert(block)
                elapsed = time.perf_counter_ns() - start
            table = _table(items, calls * rows, durability=durability)
            with echoic.Server(table, journal=folder):
                _check(table, items, calls * rows)
        rate = calls * rows / elapsed * 1e9
        return Measurement(rate)

    yield measure


@contextlib.contextmanager
def file_writes(nbytes: int) -> Iterator[Measure]:
    """Write a file and wait until it is on disk: GB/s."""
    block = _noise()

    def measure() -> Measurement:
        with _folder() as folder:
            start = time.perf_counter_ns()
            with (folder / "file").open("wb", buffering=0) as file:
                for first in range(0, nbytes, _BLOCK):
                    file.write(block.data[: min(_BLOCK, nbytes - first)])
                os.fsync(file.fileno())
            elapsed = time.perf_counter_ns() - start
            if (folder / "file").stat().st_size != nbytes:
                raise ContentError("a file of another size than was written")
        return Measurement(nbytes / elapsed)

    yield measure


@contextlib.contextmanager
def file_reads(nbytes: int) -> Iterator[Measure]:
    """Read a file that the system has in its cache: GB/s."""
    block, target = _noise(), np.zeros(_BLOCK, np.uint8)
    with _folder() as folder:
        with (folder / "file").open("wb", buffering=0) as file:
            for first in range(0, nbytes, _BLOCK):
                file.write(block.data[: min(_BLOCK, nbytes - first)])

        def measure() -> Measurement:
            total = last = 0
            start = time.perf_counter_ns()
            with (folder / "file").open("rb", buffering=0) as file:
                while read := file.readinto(target.data):
                    total, last = total + read, read
            elapsed = time.perf_counter_ns() - start
            if total != nbytes or not np.array_equal(target[:last], block[:last]):
                raise ContentError("a file that is not what was written")
            return Measurement(nbytes / elapsed)

        yield measure


@contextlib.contextmanager
def appends(nbytes: int, *, syncs: bool, rows: int, seconds: float) -> Iterator[Measure]:
    """Append to a file again and again, with or without waiting for the disk: rows per second."""
    block = _noise()[:nbytes]

    def measure() -> Measurement:
        with _folder() as folder, (folder / "file").open("wb", buffering=0) as file:
            calls, start = 0, time.perf_counter_ns()
            end = start + int(seconds * 1e9)
            while time.perf_counter_ns() < end:
                file.write(block.data)
                if syncs:
                    os.fsync(file.fileno())
                calls += 1
            elapsed = time.perf_counter_ns() - start
            if file.tell() != calls * nbytes:
                raise ContentError("a file of another size than was written")
        return Measurement(calls * rows / elapsed * 1e9)

    yield measure


def _table(items: Items, size: int, *, durability: str = "none") -> Any:
    import echoic

    return echoic.Table(TABLE, items.example, capacity=size, durability=durability)


@contextlib.contextmanager
def _served(items: Items, size: int, folder: Path) -> Iterator[Any]:
    """Serve a full table that is saved in a folder, one checkpoint at a time."""
    import echoic

    table = _table(items, size)
    rows = 4096 if items.nbytes < 1000 else 64
    for first in range(0, size, rows):
        table.extend(items.columns(np.arange(first, min(first + rows, size))))
    checkpointer = echoic.Checkpointer(folder, keep=1, load=False)
    with echoic.Server(table, checkpointer=checkpointer) as server:
        yield server


@contextlib.contextmanager
def _loaded(items: Items, size: int, folder: Path) -> Iterator[Any]:
    """Begin a server with the checkpoint of a folder; its table."""
    import echoic

    table = _table(items, size)
    with echoic.Server(table, checkpointer=echoic.Checkpointer(folder)):
        yield table


def _rows(columns: dict[str, Array], first: int, rows: int) -> dict[str, Array]:
    if rows == 1:
        return {name: column[first] for name, column in columns.items()}
    return {name: column[first : first + rows] for name, column in columns.items()}


def _check(table: Any, items: Items, size: int) -> None:
    """Check that a table has all items, by a sample of them."""
    if len(table) != size:
        raise ContentError(f"expected a table of {size} items, got {len(table)}")
    draws = Draws(items, size)
    for _ in itertools.repeat(None, 16):
        draws.check(table.sample(_ROWS), _ROWS)
    draws.check_distribution()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    parent = ROOT / "target"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        yield Path(folder)


def _noise() -> Array:
    return np.random.default_rng(20).integers(0, 256, _BLOCK, np.uint8)
