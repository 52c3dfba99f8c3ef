"""The check of what a sampler gives: rows, their probabilities, and how often each comes.

A sampler that gave the same items for ever would be fast. So the mean of the sampled numbers, and
how many there are of them, are compared with what a uniform distribution gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.content import ContentError
from benchmarks.tables.engine import EXPONENT

if TYPE_CHECKING:
    from benchmarks.payload import Array
    from benchmarks.tables.engine import Drawn
    from benchmarks.tables.items import Items

# A sampler that is right is refused once in 250 million checks: there are two that could.
_SIGMAS = 6
# A probability is a quotient of sums whose order is the system's own.
_TOLERANCE = 1e-6


class Draws:
    """Checks batches of a table that holds the items 0 to ``size - 1``, once each.

    ``priorities`` has the priority of each item, where the sampler prioritizes; whoever changes one
    in the table changes it in the array.
    """

    def __init__(self, items: Items, size: int, priorities: Array | None = None) -> None:
        """Have seen nothing yet."""
        self._items = items
        self._size = size
        self._priorities = priorities
        self._count = 0
        self._sum = 0.0
        self._seen = np.zeros(size, np.bool_)

    def check(self, drawn: Drawn, rows: int) -> Array:
        """Check all of a batch, count it, and return the numbers of its items."""
        numbers = self._items.check(drawn.data, rows)
        if numbers.min() < 0 or numbers.max() >= self._size:
            raise ContentError(f"the table has no item {numbers.min()} or {numbers.max()}")
        sizes = np.unique(np.asarray(drawn.info.table_size))
        if not np.array_equal(sizes, [self._size]):
            raise ContentError(f"expected a table of {self._size} items, got {sizes}")
        if self._priorities is None:
            due = np.full(rows, 1 / self._size)
        else:
            self._same("priority", drawn.info.priorities, self._priorities[numbers])
            weights = self._priorities**EXPONENT
            due = weights[numbers] / weights.sum()
        self._same("probability", drawn.info.probabilities, due)
        self._count += rows
        self._sum += float(numbers.sum())
        self._seen[numbers] = True
        return numbers

    def check_distribution(self) -> None:
        """Check that what was counted is as if drawn uniformly, each draw by itself."""
        count, size = self._count, self._size
        self._near("the mean", self._sum / count, (size - 1) / 2, (size**2 - 1) / 12 / count)
        # The numbers that are still missing: how many, and how that varies.
        missing, load = np.exp(-count / size), count / size
        variance = size * missing * (1 - (1 + load) * missing)
        # A normal distribution says little about a few numbers; one more or less is no fault.
        self._near("how many", int(self._seen.sum()), size * (1 - missing), variance + 1)

    def _same(self, name: str, got: Array, due: Array) -> None:
        got = np.asarray(got)
        if got.shape != due.shape or not np.allclose(got, due, rtol=_TOLERANCE, atol=0):
            raise ContentError(f"{name}: expected {due[:4]} and so on, got {got[:4]}")

    def _near(self, what: str, got: float, due: float, variance: float) -> None:
        if abs(got - due) > _SIGMAS * variance**0.5:
            raise ContentError(
                f"not uniform: {self._count} sampled numbers, {what} of them {got:.1f}, expected "
                f"{due:.1f} +- {variance**0.5:.1f}"
            )
