"""`echoic inspect`, `echoic verify` and `echoic export`: read tables and checkpoints."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as Grid

import echoic
from echoic import _native
from echoic._progress import working
from echoic.cli.ask import UNREACHABLE, connects, reach, unreachable
from echoic.cli.console import fail
from echoic.cli.options import AsJson, Timeout
from echoic.cli.text import amount, size, why
from echoic.views.web.items import first_items, leaves_by_path

__all__ = ["export", "inspect", "verify"]

Checkpoint = Annotated[
    Path, typer.Argument(help="A checkpoint, or a directory of them, which means the newest.")
]


@connects
def inspect(
    source: Annotated[
        str | None,
        typer.Argument(
            help="The address of a server, a checkpoint, or a directory of them.  "
            "[default: $ECHOIC_ADDRESSES]"
        ),
    ] = None,
    *,
    items: Annotated[int, typer.Option(min=0, help="How many items of each table to list.")] = 0,
    as_json: AsJson = False,
    timeout: Timeout = 5.0,
    options: dict[str, Any],
) -> None:
    """List the tables of a server or of a checkpoint, with their sizes and specs."""
    show = show_json if as_json else show_text
    if source is not None and "://" not in source:
        show(opened(Path(source)), items)
        return
    address, options = reach(source, options)
    try:
        with echoic.connect(address, timeout=timeout, **options) as connection:
            tables: list[Any] = [*connection.tables.values()]
            show(tables, items)
    except UNREACHABLE as error:
        fail(unreachable(address, error))


def opened(path: Path) -> list[_native.Table]:
    """Open the tables of a checkpoint."""
    try:
        with working(f"opening {path}"):
            return _native.open_checkpoint(path)
    except (echoic.errors.CheckpointError, OSError) as error:
        fail(why(error))


def show_json(tables: Sequence[_native.Table], items: int) -> None:
    """Print the numbers of each table by name, and its first items, as one JSON object."""
    found = {}
    for table in tables:
        stats, spec = table.stats(), table.spec
        found[table.name] = {
            **{name: plain(value) for name, value in stats.as_dict().items()},
            "spec": None
            if spec is None
            else [
                {"path": leaf.path, "dtype": str(leaf.dtype), "shape": list(leaf.shape)}
                for leaf in spec.leaves
            ],
        }
        if items:
            found[table.name]["first_items"] = first_items(table, items)
    typer.echo(json.dumps(found))


def plain(value: Any) -> Any:
    """Convert a value to JSON, which has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def show_text(tables: Sequence[_native.Table], items: int) -> None:
    """Print a table of tables, and their first items."""
    grid = Grid(
        "table", "items", "capacity", "inserts", "samples", "deletions", "limiter", "items are"
    )
    for table in tables:
        stats, spec = table.stats(), table.spec
        bounds = f"{stats.min_diff:g}…{stats.max_diff:g}"
        grid.add_row(
            stats.name,
            amount(stats.size),
            amount(stats.capacity),
            amount(stats.inserts),
            amount(stats.samples),
            amount(stats.deletions),
            f"min {stats.min_size}, {stats.samples_per_insert:g} per insert, {bounds}",
            "of any form" if spec is None else f"{len(spec)} leaves, {size(spec.nbytes)}",
        )
    # As wide as needed if the output is not a screen.
    Console(width=None if sys.stdout.isatty() else 200).print(grid)
    for table in tables:
        for item in first_items(table, items) if items else ():
            typer.echo(
                f"{table.name} key {item['key']} priority {item['priority']:g}"
                f" sampled {item['times_sampled']} version {item['version']}"
            )


def verify(checkpoint: Checkpoint, *, as_json: AsJson = False) -> None:
    """Read every byte of a checkpoint and compare it with its checksums.

    The status is 1 if something is damaged or missing; a line says what, in which file.
    """
    try:
        with working("verifying", of_bytes=True) as update:
            known = _native.verify_checkpoint(checkpoint, update)
    except (echoic.errors.CheckpointError, OSError) as error:
        fail(why(error))
    if as_json:
        # The checkpoint's description of itself is text.
        found = {**known, "path": str(known["path"]), "tables": int(known["tables"])}
        typer.echo(json.dumps(found))
        return
    typer.echo(
        f"{known['path']} is whole: {known['tables']} tables, {known['chunks']} chunks,"
        f" written by echoic {known['release']}"
    )


def export(
    checkpoint: Checkpoint,
    table: Annotated[str, typer.Argument(help="Which table.")],
    file: Annotated[Path, typer.Argument(help="Output file, a name ending in .npz or .parquet.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Write the items of a table in a checkpoint as arrays.

    An .npz has an array for each leaf, named by its path, and `@key`, `@priority`, `@times_sampled`
    and `@version`. Where items differ in length, a leaf's values are concatenated, and
    `PATH@offsets` says where each item begins. A .parquet has a row for each item and needs
    pyarrow.
    """
    if file.suffix not in {".npz", ".parquet"}:
        raise typer.BadParameter("the name must end in .npz or .parquet", param_hint="FILE")
    tables = {one.name: one for one in opened(checkpoint)}
    if table not in tables:
        fail(f"there is no table {table!r}; the checkpoint has {', '.join(map(repr, tables))}")
    source = tables[table]
    items = source.items()
    try:
        with working(f"exporting {len(items):,d} items"):
            leaves = leaves_by_path(source.get(items.keys).data, "")
            named: dict[str, Any] = {"key": items.keys, "priority": items.info.priorities}
            named |= {"times_sampled": items.info.times_sampled, "version": items.info.versions}
            save = save_npz if file.suffix == ".npz" else save_parquet
            if "" in leaves:
                leaves = {"value": leaves[""]}
            save(file, {f"@{name}": values for name, values in named.items()} | leaves)
    except OSError as error:
        fail(why(error))
    if as_json:
        typer.echo(json.dumps({"table": table, "items": len(items), "file": str(file)}))
    else:
        typer.echo(f"{len(items)} items of {table!r} are in {file}")


def save_npz(file: Path, columns: dict[str, Any]) -> None:
    """Write arrays to an .npz file."""
    arrays: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, echoic.Ragged):
            arrays[name], arrays[f"{name}@offsets"] = values.values, values.offsets
        else:
            arrays[name] = values
    with file.open("wb") as out:
        np.savez(out, **arrays)


def save_parquet(file: Path, columns: dict[str, Any]) -> None:
    """Write a .parquet file with a row for each item."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        fail("a .parquet needs pyarrow. Get it with: pip install pyarrow")

    def column(values: Any) -> Any:
        if isinstance(values, echoic.Ragged):
            return pa.ListArray.from_arrays(
                pa.array(values.offsets, pa.int32()), column(values.values)
            )
        array = pa.array(values.reshape(-1))
        for length in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, length)
        return array

    parquet.write_table(pa.table({name: column(values) for name, values in columns.items()}), file)
