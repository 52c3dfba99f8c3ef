"""Walk nested structures in the order of dm-tree, which Reverb uses everywhere.

Mappings are walked with their keys sorted, namedtuples by their fields, other sequences by
position. Everything else is a leaf, including ``None`` and strings. A path is a tuple of keys,
field names and positions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "Path",
    "flatten",
    "flatten_with_path",
    "is_nested",
    "map_leaves",
    "unflatten_as",
]

Path: TypeAlias = "tuple[str | int, ...]"


_Kind = enum.Enum("_Kind", ["LEAF", "MAPPING", "NAMED", "ATTRS", "SEQUENCE"])


_LEAF = _Kind.LEAF


def _classify(of: type) -> _Kind:
    if issubclass(of, (np.ndarray, np.generic, str, bytes, bytearray)):
        return _Kind.LEAF
    if issubclass(of, Mapping):
        return _Kind.MAPPING
    if issubclass(of, tuple) and hasattr(of, "_fields"):
        return _Kind.NAMED
    if hasattr(of, "__attrs_attrs__"):
        return _Kind.ATTRS
    return _Kind.SEQUENCE if issubclass(of, Sequence) else _Kind.LEAF


_kind: Callable[[type], _Kind] = lru_cache(maxsize=1024)(_classify)


def is_nested(value: Any) -> bool:
    """Return whether a value has children."""
    return _kind(type(value)) is not _Kind.LEAF


def _keys(value: Any, kind: _Kind) -> Iterable[Any]:
    """Return the keys of the children of a nested value, in order."""
    if kind is _Kind.MAPPING:
        try:
            return sorted(value)
        except TypeError:
            raise TypeError(
                f"the keys of a structure must be sortable, got {list(value)!r}"
            ) from None
    if kind is _Kind.NAMED:
        fields: tuple[str, ...] = type(value)._fields
        return fields
    if kind is _Kind.ATTRS:
        return [attribute.name for attribute in type(value).__attrs_attrs__]
    return range(len(value))


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and children of a nested value, in order."""
    kind = _kind(type(value))
    keys = _keys(value, kind)
    if kind is _Kind.MAPPING:
        return [(key, value[key]) for key in keys]
    if kind is _Kind.ATTRS:
        return [(key, getattr(value, key)) for key in keys]
    return list(zip(keys, value, strict=True))


def flatten(value: Any) -> list[Any]:
    """Return the leaves."""
    leaves: list[Any] = []
    _flatten(value, leaves)
    return leaves


def _flatten(value: Any, leaves: list[Any]) -> None:
    kind = _kind(type(value))
    if kind is _LEAF:
        leaves.append(value)
        return
    if kind is _Kind.MAPPING:
        children = map(value.__getitem__, _keys(value, kind))
    elif kind is _Kind.ATTRS:
        children = map(itemgetter(1), _children(value))
    else:
        children = value
    for child in children:
        # Most children are leaves, and a call for each would take most of the time.
        if _kind(type(child)) is _LEAF:
            leaves.append(child)
        else:
            _flatten(child, leaves)


def flatten_with_path(value: Any) -> list[tuple[Path, Any]]:
    """Return the leaves, each with its path."""
    leaves: list[tuple[Path, Any]] = []
    _flatten_with_path(value, (), leaves)
    return leaves


def _flatten_with_path(value: Any, path: Path, leaves: list[tuple[Path, Any]]) -> None:
    if _kind(type(value)) is _Kind.LEAF:
        leaves.append((path, value))
        return
    for key, child in _children(value):
        _flatten_with_path(child, (*path, key), leaves)


def unflatten_as(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return a structure like the given one, with other leaves.

    Raises:
        ValueError: If there are more or fewer leaves.
    """
    expected = len(flatten(structure))
    if expected != len(leaves):
        raise ValueError(
            f"Structure had {expected} elements, but flat_sequence had {len(leaves)} elements: "
            f"structure: {structure}."
        )
    return _build(structure, iter(leaves))


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """Apply a function to the leaves of a structure."""
    return _build(structure, map(function, flatten(structure)))


def _build(structure: Any, leaves: Iterator[Any]) -> Any:
    if not is_nested(structure):
        return next(leaves)
    built = {key: _build(child, leaves) for key, child in _children(structure)}
    kind = type(structure)
    if isinstance(structure, Mapping):
        # The keys keep the structure's order.
        pairs = [(key, built[key]) for key in structure]
        if hasattr(structure, "default_factory"):
            return kind(structure.default_factory, pairs)
        return kind(pairs)
    if hasattr(structure, "_fields") or hasattr(kind, "__attrs_attrs__"):
        return kind(**built)
    return kind(built.values())
