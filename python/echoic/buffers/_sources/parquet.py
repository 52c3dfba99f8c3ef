"""Read Parquet files with a row for each step and a column for each scalar, list or tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic._progress import each
from echoic.buffers._sources import arrow
from echoic.buffers._sources import names as usual
from echoic.buffers._sources.arrays import collect
from echoic.errors import SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["read_parquet"]

_INTACT = "an intact Parquet file"


def read_parquet(
    paths: Sequence[Path],
    cache_dir: str | os.PathLike[str] | None,
    names: Mapping[str, str] | None,
    extras: Sequence[str],
) -> dict[str, Any]:
    """Return the arrays of the files, concatenated."""
    pq = arrow.imported("parquet")
    files = [path for given in paths for path in _files(given)]
    if not files:
        raise SpecError(f"expected Parquet files, got none in {[str(path) for path in paths]}")
    with arrow.intact(str(files[0]), _INTACT), pq.ParquetFile(files[0]) as first:
        schema = first.schema_arrow
    needed = usual.wanted(arrow.names_of(schema), names, extras, str(files[0]))
    columns = [name for name in schema.names if arrow.is_wanted(name, needed)]
    rows = arrow.rows_of_block(schema, columns)

    def blocks() -> Iterator[dict[str, Any]]:
        for file in each(files, len(files)):
            with arrow.intact(str(file), _INTACT), pq.ParquetFile(file) as parquet:
                missing = [name for name in columns if name not in parquet.schema_arrow.names]
                if missing:
                    raise SpecError(f"{file}: expected the column `{missing[0]}`")
                for batch in parquet.iter_batches(rows, columns=columns):
                    yield arrow.arrays_of(batch, needed, str(file))

    stats = [file.stat() for file in files]
    size, changed = sum(s.st_size for s in stats), max(s.st_mtime_ns for s in stats)
    source = f"{len(files)} files of {size} bytes, changed at {changed}: {needed}"
    return collect(lambda: usual.with_last(blocks(), needed), cache_dir, source)


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
