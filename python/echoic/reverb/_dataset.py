"""Iterate over nests of arrays, with the methods of ``tf.data`` that programs use most.

Each iteration over a dataset makes a new iterator. To use one in PyTorch, return its iterator from
an ``IterableDataset``. Where TensorFlow is installed, datasets are its own: see ``_tensorflow``.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.reverb import _nest, _signature
from echoic.reverb._engine.values import positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Dataset", "lists_as_tuples", "specs_of", "stack"]


class Dataset:
    """A dataset with methods of ``tf.data``: see the module.

    Args:
        make: Makes an iterator.
        element_spec: A nest like the elements, of ``TensorSpec``; ``None`` if it is not known.
    """

    def __init__(self, make: Callable[[], Iterator[Any]], element_spec: Any = None) -> None:
        self._make = make
        self._spec = element_spec

    @property
    def element_spec(self) -> Any:
        """The form of the elements."""
        return self._spec

    def __iter__(self) -> Iterator[Any]:
        return self._make()

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Iterate over the elements, whose leaves are numpy arrays in any case."""
        return iter(self)

    def batch(self, batch_size: int, drop_remainder: bool = False, **_: Any) -> Dataset:
        """Batch this many elements into one, each leaf with a leading axis.

        Args:
            batch_size: How many elements.
            drop_remainder: Whether to drop the last elements if there are fewer.
        """
        positive(batch_size=batch_size)
        length = batch_size if drop_remainder else None
        return Dataset(
            lambda: self._batches(batch_size, drop_remainder), _batched(self._spec, length)
        )

    def _batches(self, batch_size: int, drop_remainder: bool) -> Iterator[Any]:
        elements = iter(self)
        while part := list(itertools.islice(elements, batch_size)):
            if len(part) == batch_size or not drop_remainder:
                yield stack(part)

    def _flat_batches(self, batch_size: Any, drop_remainder: Any) -> Any:
        """Return a dataset of TensorFlow of flat batches; ``None`` if that has no advantage."""

    def take(self, count: int) -> Dataset:
        """Keep only the first elements; -1 keeps all."""
        return self if count < 0 else Dataset(lambda: itertools.islice(self, count), self._spec)

    def skip(self, count: int) -> Dataset:
        """Skip the first elements."""
        return Dataset(lambda: itertools.islice(self, count, None), self._spec)

    def map(self, function: Callable[..., Any], *_: Any, **__: Any) -> Dataset:
        """Apply a function to each element."""
        return Dataset(lambda: map(function, self))

    def filter(self, predicate: Callable[[Any], Any]) -> Dataset:
        """Keep only the elements for which a function returns true."""
        return Dataset(lambda: filter(predicate, self), self._spec)

    def prefetch(self, buffer_size: int) -> Dataset:
        """Fetch elements ahead in a thread; one ahead if the size is negative."""
        ahead = 1 if buffer_size < 0 else buffer_size
        return self if ahead == 0 else Dataset(lambda: _fetched(self, ahead), self._spec)


def _fetched(dataset: Dataset, ahead: int) -> Iterator[Any]:
    """Iterate over elements that a thread fetches ahead."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(kind: str, value: Any) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put((kind, value), timeout=0.1)
                break

    def fetch() -> None:
        try:
            for element in dataset:
                put("element", element)
                if stopped.is_set():
                    return
            put("end", None)
        except Exception as error:  # raised in the consuming thread
            put("error", error)

    threading.Thread(target=fetch, name="echoic-prefetch", daemon=True).start()
    try:
        while (taken := ready.get())[0] == "element":
            yield taken[1]
        if taken[0] == "error":
            raise taken[1]
    finally:
        stopped.set()


def stack(elements: list[Any]) -> Any:
    """Stack elements into one, each leaf with a leading axis.

    Raises:
        ValueError: If they differ in shape.
    """
    flats = zip(*(_nest.flatten(element) for element in elements), strict=True)
    leaves = []
    for values in flats:
        shapes = {np.shape(value) for value in values}
        if len(shapes) > 1:
            raise ValueError(
                f"Cannot batch tensors with different shapes: {sorted(shapes)}; "
                "sample items of one length, or pad them first"
            )
        leaves.append(np.stack([np.asarray(value) for value in values]))
    return _nest.unflatten_as(elements[0], leaves)


def _batched(spec: Any, length: int | None) -> Any:
    """Return the spec of batches, given the spec of elements."""
    if spec is None:
        return None

    def longer(leaf: _signature.TensorSpec) -> _signature.TensorSpec:
        shape = None if leaf.shape is None else (length, *leaf.shape)
        return _signature.TensorSpec(shape, leaf.dtype, leaf.name)

    return _nest.map_leaves(longer, spec)


def lists_as_tuples(structure: Any) -> Any:
    """Replace lists by tuples, as ``tf.data`` does."""
    if isinstance(structure, list):
        structure = tuple(structure)
    if isinstance(structure, dict):
        return {key: lists_as_tuples(child) for key, child in structure.items()}
    if isinstance(structure, tuple):
        return _sequence(structure, map(lists_as_tuples, structure))
    return structure


def specs_of(dtypes: Any, shapes: Any) -> Any:
    """Return a nest of ``TensorSpec`` with the structure of the dtypes.

    Raises:
        ValueError: If there is not a shape for each dtype.
    """
    nested = _nest.is_nested(dtypes)
    if isinstance(dtypes, dict):
        alike = isinstance(shapes, dict) and dtypes.keys() == shapes.keys()
    elif nested:
        alike = isinstance(shapes, (list, tuple)) and len(shapes) == len(dtypes)
    else:
        alike = not isinstance(shapes, dict)
    if not alike:
        raise ValueError(
            "The two structures don't have the same nested structure.\n\n"
            f"First structure: {dtypes}\n\nSecond structure: {shapes}"
        )
    if not nested:
        return _signature.TensorSpec(shapes, dtypes)
    if isinstance(dtypes, dict):
        return {key: specs_of(dtypes[key], shapes[key]) for key in dtypes}
    return _sequence(dtypes, map(specs_of, dtypes, shapes))


def _sequence(like: Any, children: Iterable[Any]) -> Any:
    """Make a list, tuple or namedtuple like another one."""
    return type(like)(*children) if hasattr(like, "_fields") else type(like)(children)
