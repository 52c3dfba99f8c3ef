"""Describe the trajectories of a table by a signature.

A signature is a nest of :class:`TensorSpec`. Names of types and forms of shapes in messages are
TensorFlow's, because programs match on them.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from echoic.reverb import _nest

__all__ = [
    "Column",
    "Shape",
    "TensorSpec",
    "as_given",
    "columns_text",
    "decode",
    "dtype_name",
    "encode",
    "fits",
    "flat_columns",
    "normalize",
    "overlap",
    "shape_text",
]

# A leaf of a flat trajectory: dtype and shape, in which an axis may be ``None``.
Column: TypeAlias = "tuple[np.dtype[Any], tuple[int | None, ...] | None]"

_STRING = np.dtype(object)


class Shape(tuple["int | None", ...]):
    """Lengths of axes; ``None`` for one that may have any length."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)


@dataclass(frozen=True)
class TensorSpec:
    """The form of an array: a leaf of a signature.

    Args:
        shape: Lengths of the axes, ``None`` for one of any length; ``None`` for any shape.
        dtype: Anything that ``numpy.dtype`` accepts. Strings are of dtype ``object``.
        name: A name for people.
    """

    shape: tuple[int | None, ...] | None
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009 - immutable
    name: str | None = None

    def __post_init__(self) -> None:
        """Convert shape and dtype to one form."""
        object.__setattr__(self, "shape", _shape(self.shape))
        object.__setattr__(self, "dtype", _dtype(self.dtype))

    def __eq__(self, other: object) -> bool:
        """Compare with anything that has a shape, a dtype and perhaps a name."""
        if not (hasattr(other, "shape") and hasattr(other, "dtype")):
            return NotImplemented
        try:
            theirs = (_shape(other.shape), _dtype(other.dtype), getattr(other, "name", self.name))
        except (TypeError, ValueError):
            return False
        return (self.shape, self.dtype, self.name) == theirs

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.name))

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        """Return whether an array, or some array of another spec, has this dtype and shape."""
        other = spec_or_value
        if not (hasattr(other, "shape") and hasattr(other, "dtype")):
            other = np.asarray(other)
        return _dtype(other.dtype) == self.dtype and overlap(self.shape, _shape(other.shape))

    def most_specific_common_supertype(self, others: Sequence[Any]) -> TensorSpec | None:
        """Return the narrowest spec that allows everything that this and others allow.

        ``None`` if they differ in dtype. The shape is ``None`` if they differ in the number of
        axes.
        """
        if any(_dtype(other.dtype) != self.dtype for other in others):
            return None
        shapes = [self.shape, *(_shape(other.shape) for other in others)]
        name = self.name if all(other.name == self.name for other in others) else None
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
            return TensorSpec(None, self.dtype, name)
        columns = zip(*known, strict=True)
        axes = tuple(lengths[0] if len(set(lengths)) == 1 else None for lengths in columns)
        return TensorSpec(axes, self.dtype, name)

    def __repr__(self) -> str:
        dtype = "string" if self.dtype == _STRING else self.dtype.name
        name = "" if self.name is None else f", name={self.name!r}"
        return f"TensorSpec(shape={self.shape}, dtype={dtype}{name})"


@dataclass(frozen=True, eq=False, repr=False)
class _TensorFlowSpec(TensorSpec):
    """A spec that a program gave as TensorFlow's; it gets TensorFlow's back, with its bounds."""

    bounds: tuple[Any, ...] = ()

    def theirs(self, plain: Any) -> Any:
        """Return TensorFlow's, whose plain class is given."""
        kind = sys.modules[plain.__module__].BoundedTensorSpec if self.bounds else plain
        return kind(self.shape, self.dtype, *self.bounds, name=self.name)


def _tensorflow_spec() -> Any:
    """Return TensorFlow's ``TensorSpec``; ``None`` unless the program has imported it."""
    return getattr(sys.modules.get("tensorflow"), "TensorSpec", None)


def as_given(signature: Any) -> Any:
    """Convert specs that a program gave as TensorFlow's back to TensorFlow's.

    They stay ours in a process that has not imported TensorFlow.
    """
    theirs = _tensorflow_spec()
    if theirs is None:
        return signature
    return _nest.map_leaves(
        lambda leaf: leaf.theirs(theirs) if isinstance(leaf, _TensorFlowSpec) else leaf,
        signature,
    )


def _shape(shape: Any) -> Shape | None:
    if shape is None or (hasattr(shape, "rank") and shape.rank is None):
        return None
    if isinstance(shape, (int, np.integer)):
        return Shape([int(shape)])
    axes = (getattr(axis, "value", axis) for axis in shape)
    return Shape(None if axis is None or axis == -1 else int(axis) for axis in axes)


def _dtype(dtype: Any) -> np.dtype[Any]:
    # TensorFlow's dtypes have numpy's as an attribute; torch's have numpy's names.
    dtype = getattr(dtype, "as_numpy_dtype", dtype)
    if type(dtype).__module__ == "torch":
        dtype = str(dtype).removeprefix("torch.")
    known = np.dtype(dtype)
    return _STRING if known.kind in "OSU" else known


def normalize(signature: Any) -> Any:
    """Convert a nest of anything with a shape and a dtype to a nest of :class:`TensorSpec`.

    :func:`as_given` converts those that were TensorFlow's back.

    Raises:
        ValueError: If a leaf has no shape or dtype.
    """

    def convert(leaf: Any) -> TensorSpec:
        if isinstance(leaf, TensorSpec):
            return leaf
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise ValueError(f"Unsupported signature spec: {leaf}")
        name = getattr(leaf, "name", None)
        settings = (leaf.shape, leaf.dtype, name if isinstance(name, str) else None)
        theirs = _tensorflow_spec()
        try:
            if theirs is None or not isinstance(leaf, theirs):
                return TensorSpec(*settings)
            bounded = hasattr(leaf, "minimum")
            return _TensorFlowSpec(*settings, (leaf.minimum, leaf.maximum) if bounded else ())
        except TypeError:
            raise ValueError(f"Unsupported signature spec: {leaf}") from None

    return _nest.map_leaves(convert, signature)


def flat_columns(signature: Any) -> list[Column]:
    """Return dtype and shape of each leaf."""
    return [(leaf.dtype, leaf.shape) for leaf in _nest.flatten(signature)]


def encode(node: Any) -> Any:
    """Convert a signature to JSON types.

    Raises:
        ValueError: If a key of a mapping is neither a string nor an int.
    """
    if isinstance(node, TensorSpec):
        shape = None if node.shape is None else list(node.shape)
        # The name, since numpy knows some dtypes, such as bfloat16, only after an import.
        leaf: dict[str, Any] = {"shape": shape, "dtype": node.dtype.name, "name": node.name}
        if isinstance(node, _TensorFlowSpec):
            leaf["tensorflow"] = [np.asarray(bound).tolist() for bound in node.bounds]
        return leaf
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, (str, int)):
                raise ValueError(f"keys of a signature are strings or ints, got {key!r}")
        return {"mapping": [[key, encode(child)] for key, child in node.items()]}
    if hasattr(node, "_fields"):
        fields = [[field, encode(getattr(node, field))] for field in node._fields]
        return {"namedtuple": [type(node).__name__, fields]}
    kind = "tuple" if isinstance(node, tuple) else "list"
    return {kind: [encode(child) for child in node]}


def decode(node: Any) -> Any:
    """Convert the result of :func:`encode` back."""
    if "shape" in node:
        settings = (_shape(node["shape"]), _named_dtype(node["dtype"]), node["name"])
        if "tensorflow" not in node:
            return TensorSpec(*settings)
        bounds = (np.array(bound, settings[1]) for bound in node["tensorflow"])
        return _TensorFlowSpec(*settings, tuple(bounds))
    ((kind, children),) = node.items()
    if kind == "mapping":
        return {key: decode(child) for key, child in children}
    if kind == "namedtuple":
        name, fields = children
        built = _namedtuple(name, tuple(field for field, _ in fields))
        return built(*(decode(child) for _, child in fields))
    decoded = [decode(child) for child in children]
    return tuple(decoded) if kind == "tuple" else decoded


@lru_cache(maxsize=256)
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


def _named_dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        registered: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return registered


# TensorFlow's names of dtypes where they differ from numpy's.
_NAMES = {"float16": "half", "float32": "float", "float64": "double", "object": "string"}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return TensorFlow's name of a dtype."""
    name = "object" if dtype.kind in "OSU" else dtype.name
    return _NAMES.get(name, name)


def shape_text(shape: Iterable[int | None] | None) -> str:
    """Format a shape as TensorFlow does."""
    if shape is None:
        return "<unknown>"
    return "[" + ",".join("?" if axis is None else str(axis) for axis in shape) + "]"


def columns_text(columns: Sequence[Column]) -> str:
    """Format columns for messages."""
    return ", ".join(
        f"{number}: Tensor<name: '{number}', dtype: {dtype_name(dtype)}, "
        f"shape: {shape_text(shape)}>"
        for number, (dtype, shape) in enumerate(columns)
    )


def fits(expected: Column, dtype: np.dtype[Any], shape: Sequence[int]) -> bool:
    """Return whether an array of this dtype and shape fits a column."""
    same = expected[0] == dtype or (expected[0] == _STRING and dtype.kind in "OSU")
    return same and overlap(expected[1], shape)


def overlap(one: Sequence[int | None] | None, other: Sequence[int | None] | None) -> bool:
    """Return whether an array can have both of two shapes."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(one, other, strict=True)
    )
