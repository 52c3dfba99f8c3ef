"""The checks of what a local buffer gives: rows, weights, and how often each row comes.

`benchmarks.tables.draws` has the reasons and the statistics; batches of a local buffer tell no
probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.content import ContentError
from benchmarks.local.engine import ALPHA, BETA
from benchmarks.local.items import NAMES
from benchmarks.tables.draws import Draws as TableDraws

if TYPE_CHECKING:
    from benchmarks.local.items import Rows
    from benchmarks.payload import Array, Tree
    from benchmarks.tables.items import Items

# Weights are floats of 32 bits, and cpprb adds a little to every priority.
_TOLERANCE = 2e-3
_SIGMAS = 6


class Draws(TableDraws):
    """Checks batches of a buffer that holds the rows 0 to ``size - 1``, once each."""

    def check(self, drawn: Any, rows: int) -> Array:
        """Check all of a batch, count it, and return the numbers of its rows."""
        numbers = checked(self._items, drawn, rows, self._size)
        self._count += rows
        self._sum += float(numbers.sum())
        self._seen[numbers] = True
        return numbers


class PrioritizedDraws:
    """Checks batches that are drawn by ``priorities``, which has one for each row of the buffer.

    Whoever changes a priority in the buffer changes it in the array.
    """

    def __init__(self, items: Rows, priorities: Array) -> None:
        """Have seen nothing yet."""
        self._items = items
        self._priorities = priorities
        self._excess = 0.0
        self._variance = 0.0

    def check(self, columns: Tree, rows: int) -> None:
        """Check all of a batch and count it."""
        priorities = self._priorities
        numbers = checked(self._items, columns, rows, len(priorities))
        drawn = priorities[numbers]
        # They are told up to a factor: some divide by the largest of the batch, some of the buffer.
        factors = np.log(np.asarray(columns["weights"], np.float64)) + ALPHA * BETA * np.log(drawn)
        if factors.shape != (rows,) or not np.ptp(factors) <= _TOLERANCE:
            raise ContentError(f"weights that are not those of the priorities: {factors[:4]}")
        chances = priorities**ALPHA
        chances /= chances.sum()
        mean = float(chances @ priorities)
        self._excess += float(drawn.sum()) - rows * mean
        self._variance += rows * (float(chances @ priorities**2) - mean**2)

    def check_distribution(self) -> None:
        """Check that what was counted is as if drawn by the priorities."""
        limit = _SIGMAS * self._variance**0.5 + _TOLERANCE
        if abs(self._excess) > limit:
            raise ContentError(
                f"not drawn by priority: the priorities' sum is off by {self._excess:.3g}, at most "
                f"{limit:.3g} was expected"
            )


def checked(items: Items, columns: Tree, rows: int, size: int) -> Array:
    """Check the content of a batch of rows 0 to ``size - 1``; return their numbers."""
    numbers = items.check({name: columns[name] for name in NAMES}, rows)
    if numbers.min() < 0 or numbers.max() >= size:
        raise ContentError(f"the buffer has no row {numbers.min()} or {numbers.max()}")
    return numbers
