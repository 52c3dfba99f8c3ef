"""Convert the arrays of a data set to columns: arrays with a row for each step.

A column is an array in C order and native byte order. Observations, actions and extras may be trees
of columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from echoic import _trees
from echoic.errors import SpecError

__all__ = ["example_of", "flags", "is_mapped", "per_step", "same_form", "scalars"]


def is_mapped(tree: Any) -> bool:
    """Return whether any of the arrays is mapped from a file."""
    return any(isinstance(leaf, np.memmap) for leaf in _trees.tree_leaves(tree))


def example_of(tree: Any) -> Any:
    """Return a tree with the shape and dtype of one row."""
    return _trees.tree_map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), tree)


def flags(name: str, values: Any, steps: int) -> np.ndarray[Any, Any]:
    """Return booleans, given booleans or numbers that are 0 or 1."""
    array = _vector(name, values, steps)
    if array.dtype.itemsize == 1 and array.dtype.kind in "biu":
        # The native code checks that the bytes are 0 or 1, in the same pass as everything else.
        return array.view(np.bool_)
    if array.dtype.kind not in "iuf":
        raise SpecError(f"`{name}`: expected booleans, got {array.dtype}")
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if wrong.size:
        step = int(wrong[0])
        raise SpecError(f"`{name}`: expected 0 or 1, got {array[step]} at step {step}")
    return array.astype(np.bool_)


def scalars(name: str, values: Any, steps: int | None, *, single: bool) -> np.ndarray[Any, Any]:
    """Return one float for each step: float32 if ``single``, or unless given as float32 or 64."""
    array = _vector(name, values, steps)
    if array.dtype.kind not in "biuf":
        raise SpecError(f"`{name}`: expected real numbers, got {array.dtype}")
    if array.dtype == np.float64 and not single:
        return array
    return array.astype(np.float32, copy=False)


def per_step(name: str, tree: Any, rows: int) -> Any:
    """Return columns of ``rows`` rows each.

    A flat array that is not part of a tree has the elements of all rows: floats become rows of
    float32, other numbers keep their dtype, and are scalars if there is one for each row.
    """
    paths, leaves, form = _trees.tree_flatten_with_path(tree)
    if not leaves:
        raise SpecError(f"`{name}`: expected arrays, got {tree!r}")
    named = zip(("/".join([name, *map(str, path)]) for path in paths), leaves, strict=True)
    alone = _trees.treespec_is_leaf(form)
    return form.unflatten([_rows(path, leaf, rows, flat=alone) for path, leaf in named])


def same_form(one: Any, other: Any, names: tuple[str, str]) -> None:
    """Check that two trees of columns differ only in their values."""
    paths, leaves, form = _trees.tree_flatten_with_path(one)
    others, other_form = _trees.tree_flatten(other)
    if form != other_form:
        text = f"expected the structure of `{names[0]}`, {form}, got {other_form}"
        raise SpecError(f"`{names[1]}`: {text}")
    for path, left, right in zip(paths, leaves, others, strict=True):
        if (left.dtype, left.shape[1:]) != (right.dtype, right.shape[1:]):
            expected = f"{left.dtype}{list(left.shape[1:])} as in `{names[0]}`"
            where = "/".join([names[1], *map(str, path)])
            got = f"{right.dtype}{list(right.shape[1:])}"
            raise SpecError(f"`{where}`: expected {expected}, got {got}")


def _array(name: str, values: Any) -> np.ndarray[Any, Any]:
    """Return an array in C order and native byte order; a mapped one stays mapped."""
    if isinstance(values, np.ma.MaskedArray):
        raise SpecError(f"`{name}`: a masked array would lose its mask; give its filled() values")
    array: np.ndarray[Any, Any] = np.asanyarray(values)
    if array.dtype.kind == "O":
        raise SpecError(f"`{name}`: expected numbers, got an array of objects")
    native = array.dtype.newbyteorder("=")
    if array.dtype != native or not array.flags.c_contiguous:
        array = np.asarray(array, native, order="C")
    return array


def _vector(name: str, values: Any, steps: int | None) -> np.ndarray[Any, Any]:
    """Return one element for each step."""
    array = _array(name, values)
    if array.ndim == 0 or array.size != array.shape[0]:
        raise SpecError(f"`{name}`: expected one number for each step, got shape {array.shape}")
    if steps is not None and array.size != steps:
        raise SpecError(f"`{name}`: expected {steps} rows, one for each reward, got {array.size}")
    return array.reshape(-1)


def _rows(name: str, values: Any, rows: int, *, flat: bool) -> np.ndarray[Any, Any]:
    array = _array(name, values)
    if flat and array.ndim == 1 and (array.dtype.kind == "f" or array.size != rows):
        if rows == 0 or array.size % rows:
            text = f"a flat array of {array.size} elements has no {rows} rows of one length"
            raise SpecError(f"`{name}`: {text}")
        array = array.reshape(rows, array.size // rows)
        return array.astype(np.float32, copy=False) if array.dtype.kind == "f" else array
    if array.ndim == 0 or array.shape[0] != rows:
        got = "a scalar" if array.ndim == 0 else f"shape {array.shape}"
        raise SpecError(f"`{name}`: expected {rows} rows, got {got}")
    return array
