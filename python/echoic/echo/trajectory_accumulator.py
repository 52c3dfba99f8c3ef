"""Trajectories put together step by step, as upstream names it: a timescale is a part."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree

from echoic import _native
from echoic.errors import SpecError, TrajectoryError

__all__ = ["TrajectoryAccumulator"]


class _FullError(TrajectoryError, IndexError):
    """A timescale has no slot left."""


class _UnknownError(TrajectoryError, KeyError):
    """There is no such timescale."""

    # A KeyError would show its message in quotes.
    __str__ = Exception.__str__


class TrajectoryAccumulator:
    """Puts trajectories together step by step, in memory that is made once.

    A timescale whose leaves all have the same first axis, longer than 1, is filled step by step
    along it. One with a leaf of no axes, or whose first axes are all 1, has one slot, which is set
    as a whole. A leaf that gets a value of its full shape first is set as a whole in any case.

    Args:
        example: A tree for each timescale, by name.

    Raises:
        TypeError: If the example is no dict.
        ValueError: If a timescale has no leaves, or its first axes differ.

    Examples:
        >>> import numpy as np
        >>> from echoic.echo import TrajectoryAccumulator
        >>> steps = {"obs": np.zeros((3, 2), np.float32), "reward": np.zeros(3, np.float32)}
        >>> buf = TrajectoryAccumulator({"step": steps, "last": {"value": np.float32(0)}})
        >>> for t in range(3):
        ...     buf.add("step", {"obs": np.full(2, t), "reward": float(t)})
        >>> buf.add("last", {"value": 7})
        >>> buf.fill
        {'step': (3, 3), 'last': (1, 1)}
        >>> buf.build()["step"]["reward"]
        array([0., 1., 2.], dtype=float32)
    """

    def __init__(self, example: dict[str, Any]) -> None:
        """Make the memory."""
        if not isinstance(example, dict):
            raise TypeError(f"expected a dict of trees by name, got a {type(example).__name__}")
        self._native = _native.TrajectoryAccumulator(example)
        # How many slots a timescale has, and a step of it that is all zeros.
        self._counts: dict[str, int] = {}
        self._zeros: dict[str, Any] = {}
        for name, tree in example.items():
            arrays = optree.tree_map(np.asarray, tree)
            shapes = [leaf.shape for leaf in optree.tree_leaves(arrays)]
            firsts = sorted({shape[0] if shape else 0 for shape in shapes})
            single = () in shapes or firsts == [1]
            if not single and len(firsts) > 1:
                raise SpecError(
                    f"all leaves of timescale {name!r} must have the same leading dimension, got "
                    f"{firsts}; it has one slot if a leaf has no axes, or if all of these are 1"
                )
            self._counts[name] = 1 if single else firsts[0]
            steps = arrays if single else optree.tree_map(lambda leaf: leaf[0], arrays)
            self._zeros[name] = optree.tree_map(np.zeros_like, steps)
        self._add = self._native.add
        self.reset = self._native.reset

    def add(self, name: str, data: Any) -> None:
        """Write the next step of a timescale.

        Values are cast and broadcast as numpy does it.

        Raises:
            KeyError: If there is no such timescale.
            IndexError: If it is full.
            ValueError: If the data does not fit.
        """
        try:
            self._add(name, data)
        except (SpecError, TrajectoryError):
            if name not in self._counts:
                raise _UnknownError(
                    f"unknown timescale {name!r}, expected one of {list(self._counts)}"
                ) from None
            slot, capacity = self._native.fill[name]
            count = capacity or self._counts[name]
            if slot >= count:
                raise _FullError(
                    f"Timescale {name!r} has {count} slots, but you tried to add at index {slot}"
                ) from None
            self._add(name, optree.tree_map(_fit, self._zeros[name], data))

    def build(self) -> dict[str, Any]:
        """Hand out the trajectory, without copying it, and begin a new one.

        Steps that are missing are zeros. The arrays stay as they are for as long as they are kept.
        """
        for name, (filled, capacity) in self._native.fill.items():
            for _ in range(filled, capacity or self._counts[name]):
                self._add(name, self._zeros[name])
        return self._native.build()

    @property
    def fill(self) -> dict[str, tuple[int, int | None]]:
        """For each timescale, how many of how many; ``None`` before its first value."""
        return self._native.fill

    @property
    def is_full(self) -> bool:
        """Whether no step is missing."""
        return self._native.is_full

    def __repr__(self) -> str:
        """Return how full each timescale is."""
        return repr(self._native)

    @property
    def _slot(self) -> dict[str, int]:
        """The next slot of each timescale."""
        return {name: filled for name, (filled, _) in self._native.fill.items()}

    @property
    def _tree(self) -> dict[str, Any]:
        """What the trajectory has so far, and zeros: it is built, and then begun again with it."""
        fill = self._native.fill
        tree = self.build()
        for name, (filled, capacity) in fill.items():
            for step in range(filled):
                at = ... if capacity == 1 else step
                self._add(name, optree.tree_map(lambda leaf, at=at: leaf[at], tree[name]))
        return tree


def _fit(zeros: Any, value: Any) -> Any:
    """Return a value with the dtype and shape of a slot."""
    # It may have a first axis of length 1.
    return np.broadcast_to(np.asarray(value), (1, *zeros.shape))[0].astype(zeros.dtype)
