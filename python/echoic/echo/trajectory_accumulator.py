"""Trajectories put together step by step, as upstream names it: a timescale is a part."""

from __future__ import annotations

from operator import attrgetter
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
        # How many slots a timescale has.
        self._counts: dict[str, int] = {}
        # The leaves of a step with one more axis in front, its structure, and the memory as a step.
        self._steps: dict[str, tuple[list[Any], Any, Any]] = {}
        # Timescales whose values are cast and broadcast before they are added.
        self._loose: set[str] = set()
        for name, tree in example.items():
            arrays, spec = optree.tree_flatten(optree.tree_map(np.asarray, tree))
            firsts = sorted({leaf.shape[0] if leaf.ndim else 0 for leaf in arrays})
            if firsts == [1] or not all(leaf.ndim for leaf in arrays):
                self._counts[name] = 1
                self._loose.add(name)
                steps = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in arrays]
            elif len(firsts) == 1:
                [self._counts[name]] = firsts
                steps = [np.zeros((1, *leaf.shape[1:]), leaf.dtype) for leaf in arrays]
            else:
                raise SpecError(
                    f"all leaves of timescale {name!r} must have the same leading dimension, got "
                    f"{firsts}; it has one slot if a leaf has no axes, or if all of these are 1"
                )
            self._steps[name] = steps, spec, spec.unflatten([leaf[0, ...] for leaf in steps])
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
            self._add(name, self._fit(name, data) if name in self._loose else data)
        except SpecError:
            # As this value, the next one most likely.
            self._loose.add(name)
            self._add(name, self._fit(name, data))
        except TrajectoryError:
            if name not in self._counts:
                known = list(self._counts)
                raise _UnknownError(
                    f"unknown timescale {name!r}, expected one of {known}"
                ) from None
            slot, capacity = self._native.fill[name]
            if slot != capacity:
                raise
            raise _FullError(
                f"Timescale {name!r} has {slot} slots, but you tried to add at index {slot}"
            ) from None

    def _fit(self, name: str, data: Any) -> Any:
        """Return a step with the data, in memory that the next call writes again."""
        leaves, spec, step = self._steps[name]
        for leaf, value in zip(leaves, spec.flatten_up_to(data), strict=True):
            leaf[...] = value
        return step

    def build(self) -> dict[str, Any]:
        """Hand out the trajectory, without copying it, and begin a new one.

        Steps that are missing are zeros. The arrays stay as they are for as long as they are kept.
        """
        for name, (filled, capacity) in self._native.fill.items():
            leaves, _, step = self._steps[name]
            for _ in range(filled, capacity or self._counts[name]):
                for leaf in leaves:
                    leaf[...] = 0
                self._add(name, step)
        return self._native.build()

    fill = property(
        attrgetter("_native.fill"), doc="How many of how many slots; ``None`` before a value came."
    )
    is_full = property(attrgetter("_native.is_full"), doc="Whether no step is missing.")

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
