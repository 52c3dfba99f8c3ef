"""Convert columns of Arrow to arrays: numbers, lists of one length, tensors, images, structs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.buffers._packages import package
from echoic.buffers._sources.images import decoded
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "arrays_of",
    "images_of",
    "imported",
    "intact",
    "is_wanted",
    "names_of",
    "rows_of",
    "rows_of_block",
]

_ROWS, _ROWS_OF_IMAGES = 16_384, 64


def imported(module: str = "lib") -> Any:
    """Return a module of pyarrow."""
    return package(f"pyarrow.{module}", "data of Arrow")


@contextmanager
def intact(source: str, expected: str) -> Iterator[None]:
    """Make errors of damaged data name their source, and what was expected there."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (imported().ArrowException, OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{source}: expected {expected}: {error}") from error


def names_of(schema: Any) -> list[str]:
    """Return the names of the arrays that a schema's columns become: structs are trees."""
    return [name for field in schema for name in _names(field.name, field.type)]


def is_wanted(column: str, needed: Mapping[str, str]) -> bool:
    """Return whether a column, or a part of it, is among the needed names."""
    return any(
        column == name or column.startswith(f"{name}/") or name.startswith(f"{column}/")
        for name in needed.values()
    )


def rows_of_block(schema: Any, columns: Sequence[str]) -> int:
    """Return how many rows to read at a time: few if there are images."""
    images = any(_is_image(schema.field(name).type) for name in columns)
    return _ROWS_OF_IMAGES if images else _ROWS


def arrays_of(batch: Any, needed: Mapping[str, str], source: str) -> dict[str, Any]:
    """Return the needed arrays of a record batch by name, each with a row for each of its rows."""
    arrays = {}
    starts = tuple(f"{name}/" for name in needed.values())
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if is_wanted(name, needed):
            for leaf, values in _leaves(name, column):
                if leaf in needed.values() or leaf.startswith(starts):
                    arrays[leaf] = rows_of(f"{source}: `{leaf}`", values)
    return arrays


def _is_image(kind: Any) -> bool:
    """Return whether values are images as Hugging Face's data sets store them."""
    types = imported("types")
    if not types.is_struct(kind) or {field.name for field in kind} != {"bytes", "path"}:
        return False
    content = kind.field("bytes").type
    return bool(types.is_binary(content) or types.is_large_binary(content))


def _names(name: str, kind: Any) -> Iterator[str]:
    if imported("types").is_struct(kind) and not _is_image(kind):
        for field in kind:
            yield from _names(f"{name}/{field.name}", field.type)
    else:
        yield name


def _leaves(name: str, column: Any) -> Iterator[tuple[str, Any]]:
    kind = column.type
    if imported("types").is_struct(kind) and not _is_image(kind):
        _refuse_nulls(name, column)
        for field, values in zip(kind, column.flatten(), strict=True):
            yield from _leaves(f"{name}/{field.name}", values)
    else:
        yield name, column


def _refuse_nulls(name: str, column: Any) -> None:
    if column.null_count:
        raise SpecError(f"{name}: expected values, got {column.null_count} nulls")


def rows_of(name: str, column: Any) -> np.ndarray[Any, Any]:
    """Return a column as an array with a row for each step."""
    pa, types = imported(), imported("types")
    _refuse_nulls(name, column)
    kind = column.type
    if isinstance(column, pa.FixedShapeTensorArray):
        tensor: np.ndarray[Any, Any] = column.to_numpy_ndarray()
        return tensor
    if isinstance(column, pa.ExtensionArray):
        return rows_of(name, column.storage)
    if _is_image(kind):
        return images_of(name, column)
    if types.is_fixed_size_list(kind):
        return _nested(name, column, kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            text = f"expected lists of one length, got lengths {lengths[0]} to {lengths[-1]}"
            raise SpecError(f"{name}: {text}")
        return _nested(name, column, int(lengths[0]) if len(lengths) else 0)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
        return values
    raise SpecError(f"{name}: expected numbers, lists of them, or images, got {kind}")


def images_of(name: str, column: Any, shape: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    """Return a column of images, of this height, width and number of channels if given."""
    if not _is_image(column.type):
        raise SpecError(f"{name}: expected images, got {column.type}")
    _refuse_nulls(name, column)
    return decoded(name, column.field("bytes").to_pylist(), shape)


def _nested(name: str, column: Any, length: int) -> np.ndarray[Any, Any]:
    values = rows_of(name, column.flatten())
    return values.reshape(len(column), length, *values.shape[1:])
