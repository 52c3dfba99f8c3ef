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
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table as Grid

import echoic
from echoic import _native
from echoic.cli.ask import UNREACHABLE, reach, unreachable
from echoic.cli.console import fail
from echoic.cli.options import AsJson, Ca, Certificate, Key, ServerName, TokenFile
from echoic.cli.text import amount, size, why
from echoic.table_stats import TableStats

__all__ = ["export", "inspect", "verify"]

Checkpoint = Annotated[
    Path, typer.Argument(help="A checkpoint, or a directory of them, which means the newest.")
]


def inspect(
    source: Annotated[
        str | None,
        typer.Argument(
            help="The address of a server, a checkpoint, or a directory of them.  "
            "[default: what ECHOIC_ADDRESSES names]"
        ),
    ] = None,
    *,
    items: Annotated[int, typer.Option(min=0, help="How many items of each table to list.")] = 0,
    as_json: AsJson = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait for a server.")
    ] = 5.0,
    token_file: TokenFile = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    server_name: ServerName = None,
) -> None:
    """List the tables of a server or of a checkpoint, with their sizes and specs."""
    tell = tell_json if as_json else tell_people
    if source is not None and "://" not in source:
        tell(opened(Path(source)), items)
        return
    address, options = reach(source, token_file, ca, certificate, key, server_name)
    try:
        with echoic.connect(address, timeout=timeout, **options) as connection:
            tables: list[Any] = [*connection.tables.values()]
            tell(tables, items)
    except UNREACHABLE as error:
        fail(unreachable(address, error))


def opened(path: Path) -> list[_native.Table]:
    """Open the tables of a checkpoint."""
    try:
        return _native.open_checkpoint(path)
    except (echoic.errors.CheckpointError, OSError) as error:
        fail(why(error))


def tell_people(tables: Sequence[_native.Table], items: int) -> None:
    """Print a table of tables, and their first items."""
    show([table.stats() for table in tables], {table.name: table.spec for table in tables})
    for table in tables:
        list_items(table, items)


def tell_json(tables: Sequence[_native.Table], items: int) -> None:
    """Print the same as one JSON object: the numbers of each table, by name."""
    told = {}
    for table in tables:
        stats, spec = table.stats(), table.spec
        told[table.name] = {
            **{name: plain(value) for name, value in stats.as_dict().items()},
            "spec": None
            if spec is None
            else [
                {"path": leaf.path, "dtype": str(leaf.dtype), "shape": list(leaf.shape)}
                for leaf in spec.leaves
            ],
        }
        if items:
            listed = table.items(items)
            told[table.name]["first_items"] = [
                {
                    "key": int(listed.keys[at]),
                    "priority": float(listed.info.priorities[at]),
                    "times_sampled": int(listed.info.times_sampled[at]),
                    "version": int(listed.info.versions[at]),
                }
                for at in range(len(listed))
            ]
    typer.echo(json.dumps(told))


def plain(value: Any) -> Any:
    """Convert a value to JSON, which has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def show(each: list[TableStats], specs: dict[str, echoic.Spec | None]) -> None:
    """Print a table of tables."""
    grid = Grid(
        "table", "items", "capacity", "inserts", "samples", "deletions", "limiter", "items are"
    )
    for stats in each:
        spec = specs[stats.name]
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


def list_items(table: _native.Table, count: int) -> None:
    """Print the first items of a table."""
    items = table.items(count)
    for at in range(len(items)):
        typer.echo(
            f"{table.name} key {items.keys[at]} priority {items.info.priorities[at]:g}"
            f" sampled {items.info.times_sampled[at]} version {items.info.versions[at]}"
        )


def verify(checkpoint: Checkpoint, *, as_json: AsJson = False) -> None:
    """Read every byte of a checkpoint and compare it with its checksums.

    The status is 1 if something is damaged or missing; a line says what, in which file.
    """
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    try:
        with bar:
            task = bar.add_task("verifying", total=None)
            known = _native.verify_checkpoint(
                checkpoint, lambda done, total: bar.update(task, completed=done, total=total)
            )
    except (echoic.errors.CheckpointError, OSError) as error:
        fail(why(error))
    if as_json:
        # The checkpoint's description of itself is text.
        told = {**known, "path": str(known["path"]), "tables": int(known["tables"])}
        typer.echo(json.dumps(told))
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
    leaves = flat(source.get(items.keys).data, "")
    named: dict[str, Any] = {"key": items.keys, "priority": items.info.priorities}
    named |= {"times_sampled": items.info.times_sampled, "version": items.info.versions}
    columns = {f"@{name}": values for name, values in named.items()} | leaves
    try:
        if file.suffix == ".npz":
            save_npz(file, columns)
        else:
            save_parquet(file, columns)
    except OSError as error:
        fail(why(error))
    if as_json:
        typer.echo(json.dumps({"table": table, "items": len(items), "file": str(file)}))
    else:
        typer.echo(f"{len(items)} items of {table!r} are in {file}")


def flat(tree: Any, path: str) -> dict[str, Any]:
    """Return the leaves of a batch by path."""
    if isinstance(tree, (np.ndarray, echoic.Ragged)):
        return {path or "value": tree}
    children: dict[Any, Any] = {}
    if isinstance(tree, dict):
        children = tree
    elif hasattr(tree, "_fields"):
        children = tree._asdict()
    elif isinstance(tree, (list, tuple)):
        children = dict(enumerate(tree))
    elif hasattr(tree, "__dict__"):
        children = vars(tree)
    leaves: dict[str, Any] = {}
    for name, child in children.items():
        leaves |= flat(child, f"{path}/{name}" if path else str(name))
    return leaves


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
