"""Read Parquet files with a row for each step and a column for each scalar, list or tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic._progress import each
from echoic.buffers._sources import names as usual
from echoic.buffers._sources.arrays import collect
from echoic.errors import SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["read_parquet"]

_ROWS = 16_384


def read_parquet(
    paths: Sequence[Path],
    cache_dir: str | os.PathLike[str] | None,
    names: Mapping[str, str] | None,
    extras: Sequence[str],
) -> dict[str, Any]:
    """Return the arrays of the files, concatenated."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        text = "reading Parquet files needs pyarrow: pip install 'echoic[data]'"
        raise ModuleNotFoundError(text) from error

    files = [path for given in paths for path in _files(given)]
    if not files:
        raise SpecError(f"expected Parquet files, got none in {[str(path) for path in paths]}")
    try:
        first = pq.ParquetFile(files[0])
        there = first.schema_arrow.names
        needed = set(usual.wanted(there, names, extras, str(files[0])).values())
        columns = [name for name in there if _is_part(name, needed)]

        def blocks() -> Iterator[dict[str, Any]]:
            for file in each(files, len(files)):
                with pq.ParquetFile(file) as parquet:
                    missing = [name for name in columns if name not in parquet.schema_arrow.names]
                    if missing:
                        raise SpecError(f"{file}: expected the column `{missing[0]}`")
                    for batch in parquet.iter_batches(_ROWS, columns=columns):
                        yield {
                            name: _rows(pa, f"{file}: `{name}`", batch.column(name))
                            for name in columns
                        }

        stats = [file.stat() for file in files]
        size, changed = sum(s.st_size for s in stats), max(s.st_mtime_ns for s in stats)
        source = f"{len(files)} files of {size} bytes, changed at {changed}: {', '.join(columns)}"
        return collect(blocks, cache_dir, source)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise SpecError(f"expected intact Parquet files: {error}") from error


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet")) if path.is_dir() else [path]


def _is_part(name: str, needed: set[str]) -> bool:
    return any(name == other or name.startswith(f"{other}/") for other in needed)


def _rows(pa: Any, name: str, column: Any) -> np.ndarray[Any, Any]:
    """Return a column as an array with a row for each step."""
    if column.null_count:
        raise SpecError(f"{name}: expected values, got {column.null_count} nulls")
    kind = column.type
    if isinstance(column, pa.FixedShapeTensorArray):
        tensor: np.ndarray[Any, Any] = column.to_numpy_ndarray()
        return tensor
    if pa.types.is_fixed_size_list(kind):
        return _nested(pa, name, column, kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            text = f"expected lists of one length, got lengths {lengths[0]} to {lengths[-1]}"
            raise SpecError(f"{name}: {text}")
        return _nested(pa, name, column, int(lengths[0]) if len(lengths) else 0)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
        return values
    raise SpecError(f"{name}: expected numbers, or lists of them, got {kind}")


def _nested(pa: Any, name: str, column: Any, length: int) -> np.ndarray[Any, Any]:
    values = _rows(pa, name, column.flatten())
    return values.reshape(len(column), length, *values.shape[1:])
