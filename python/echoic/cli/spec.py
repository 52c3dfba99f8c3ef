"""Specs as text: `obs/image=uint8[84,84,4],reward=float32`.

A spec is a tuple of fields, each a path, a dtype and a shape. A path has keys joined by `/`, with
`~1` for a slash inside a key and `~0` for a tilde. A sample that is a single array has one field
with an empty path; as text it is the dtype and shape alone.

An axis of any length is written `?`, as in `obs=float32[?,4]`; callers allow it by `any_length`.

`example` makes the tree that users have from fields; `mirror` makes one whose leaves are in the
order of the fields, whatever kind of tree a server was made with.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "ANY",
    "Field",
    "SpecTextError",
    "example",
    "from_table",
    "mirror",
    "numpy_dtype",
    "parse",
    "text",
]

Tree: TypeAlias = Any

# Commas separate fields, except between the brackets of a shape.
SEPARATOR = re.compile(r",(?![^\[\]]*\])")
FORM = re.compile(r"(?P<dtype>[A-Za-z_]\w*)\s*(?:\[(?P<shape>[\d\s,?]*)\])?")
LEAF_KEYS = ("dtype", "shape")
# In a shape: an axis of any length.
ANY = -1


class SpecTextError(ValueError):
    """Raised if a spec can't be read; the message names the part."""


@dataclass(frozen=True)
class Field:
    """One leaf of a sample."""

    path: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def form(self) -> str:
        """Dtype and shape as text."""
        axes = ",".join("?" if axis == ANY else str(axis) for axis in self.shape)
        return f"{self.dtype}[{axes}]" if self.shape else self.dtype

    @property
    def keys(self) -> list[str]:
        """The keys that lead to the leaf; empty if it is the whole sample."""
        if not self.path:
            return []
        return [key.replace("~1", "/").replace("~0", "~") for key in self.path.split("/")]

    def zeros(self) -> Tree:
        """Return an array of this dtype and shape."""
        return np.zeros(self.shape, numpy_dtype(self.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of the leaf in a sample."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize


def parse(source: str, *, any_length: bool = False) -> tuple[Field, ...]:
    """Parse a spec; with `any_length` it may have axes of any length.

    Raises:
        SpecTextError: If a part is malformed, or the fields make no tree.

    Examples:
        >>> from echoic.cli.spec import parse
        >>> [(field.path, field.dtype, field.shape) for field in parse("a=uint8[2,3],b/c=int32")]
        [('a', 'uint8', (2, 3)), ('b/c', 'int32', ())]
    """
    parts = [part.strip() for part in SEPARATOR.split(source)]
    if len(parts) == 1 and "=" not in source:
        return checked([read_form("", parts[0])], any_length=any_length)
    fields = []
    for part in parts:
        path, equals, form = part.partition("=")
        if not equals or not path.strip():
            raise SpecTextError(f"expected a field path=dtype[shape], got `{part}`")
        fields.append(read_form(path.strip(), form.strip()))
    return checked(fields, any_length=any_length)


def read_form(path: str, form: str) -> Field:
    """Parse a dtype with its shape, such as `uint8[84,84]`."""
    match = FORM.fullmatch(form)
    if match is None:
        raise SpecTextError(f"{named(path)} expected dtype[shape] like float32[4], got `{form}`")
    axes = (match["shape"] or "").split(",")
    try:
        shape = tuple(map(length, axes)) if match["shape"] else ()
    except ValueError:
        raise SpecTextError(f"{named(path)} `{form}` has an axis without a length") from None
    return read_field(path, match["dtype"], shape)


def length(axis: str) -> int:
    """Parse the length of an axis."""
    return ANY if axis.strip() == "?" else int(axis)


def read_field(path: str, dtype: str, shape: tuple[int, ...]) -> Field:
    """Make a field whose dtype exists and has its full name."""
    try:
        known = numpy_dtype(dtype)
    except TypeError:
        raise SpecTextError(
            f"{named(path)} expected a dtype such as float32, uint8 or bool, got `{dtype}`"
        ) from None
    name = known.str[1:] if known.kind in "SU" else known.name
    return Field(path, name, shape)


def named(path: str) -> str:
    """Return the beginning of a message about a leaf."""
    return f"`{path}`:" if path else "the sample:"


def numpy_dtype(name: str) -> "np.dtype[Any]":
    """Return the dtype of this name."""
    if name == "bfloat16":
        # Importing it registers the dtype with numpy.
        import ml_dtypes  # type: ignore[import-not-found, unused-ignore]

        name = ml_dtypes.bfloat16
    return np.dtype(name)


def from_table(table: Mapping[str, Any], *, any_length: bool = False) -> tuple[Field, ...]:
    """Read the spec of a configuration file: nested tables that end in `dtype` and `shape`.

    With `any_length` it may have axes of any length, which are written "?".

    Raises:
        SpecTextError: If a part is malformed, or the fields make no tree.
    """
    return checked(list(leaves(table, "")), any_length=any_length)


def leaves(node: object, path: str) -> Iterable[Field]:
    """Yield the fields below a node, which is a leaf if it has a `dtype` or is text."""
    if isinstance(node, str):
        yield read_form(path, node)
    elif not isinstance(node, Mapping):
        raise SpecTextError(f"{named(path)} expected a table or dtype[shape], got {node!r}")
    elif isinstance(node.get("dtype"), str):
        yield read_leaf(node, path)
    elif not node:
        raise SpecTextError(f"{named(path)} expected a table with fields, got an empty one")
    else:
        for key, child in node.items():
            escaped = key.replace("~", "~0").replace("/", "~1")
            yield from leaves(child, f"{path}/{escaped}" if path else escaped)


def read_leaf(table: Mapping[str, Any], path: str) -> Field:
    """Read a table with a dtype and perhaps a shape."""
    for key in table:
        if key not in LEAF_KEYS:
            raise SpecTextError(
                f"{named(path)} unknown key `{key}`; allowed are {', '.join(LEAF_KEYS)}"
            )
    shape = table.get("shape", [])
    if not isinstance(shape, list) or not all(
        axis == "?" or (type(axis) is int and axis >= 0) for axis in shape
    ):
        raise SpecTextError(f"{named(path)} shape must be a list of lengths, got {shape!r}")
    axes = tuple(ANY if axis == "?" else axis for axis in shape)
    return read_field(path, table["dtype"], axes)


def checked(fields: list[Field], *, any_length: bool) -> tuple[Field, ...]:
    """Return the fields if they make a tree: each path once, and no path below another."""
    for field in fields:
        if ANY in field.shape and not any_length:
            raise SpecTextError(
                f"{named(field.path)} every axis must have a length, got `{field.form}`"
            )
    paths: set[str] = set()
    for field in fields:
        if field.path in paths:
            raise SpecTextError(f"`{field.path}` is given twice")
        paths.add(field.path)
    for path in paths:
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in paths:
                raise SpecTextError(f"`{above}` is a leaf and can't have `{path}` below it")
    return tuple(fields)


def text(fields: Iterable[Field]) -> str:
    """Format a spec as `parse` reads it."""
    return ",".join(f"{field.path}={field.form}" if field.path else field.form for field in fields)


def example(fields: Iterable[Field], leaf: Callable[[Field], Tree] = Field.zeros) -> Tree:
    """Make a sample of zeros, or of other leaves.

    Inner nodes are dicts, or tuples if their keys are 0, 1 and so on.

    Examples:
        >>> from echoic.cli.spec import example, parse
        >>> example(parse("obs/0=int8,obs/1=int8[2],reward=bool"))
        {'obs': (array(0, dtype=int8), array([0, 0], dtype=int8)), 'reward': array(False)}
    """

    def node(children: dict[str, Tree]) -> Tree:
        is_tuple = list(children) == [str(index) for index in range(len(children))]
        return tuple(children.values()) if is_tuple else children

    return tree(((field, leaf(field)) for field in fields), node)


def mirror(pairs: Iterable[tuple[Field, Tree]]) -> Tree:
    """Make a tree with these leaves, which keeps their paths and order.

    The leaves of a dict are sorted by key; those of a server's dataclass may not be. So a node that
    is not sorted becomes an ordered dict, which takes longer to send.
    """

    def node(children: dict[str, Tree]) -> Tree:
        return children if list(children) == sorted(children) else OrderedDict(children)

    return tree(pairs, node)


def tree(pairs: Iterable[tuple[Field, Tree]], node: Callable[[dict[str, Tree]], Tree]) -> Tree:
    """Put leaves at their paths; `node` makes each inner node from its children."""
    root: dict[str, Any] = {}
    for field, leaf in pairs:
        if not field.keys:
            return leaf
        *above, last = field.keys
        inner = root
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = leaf

    def finish(inner: Tree) -> Tree:
        if not isinstance(inner, dict):
            return inner
        return node({key: finish(child) for key, child in inner.items()})

    return finish(root)
