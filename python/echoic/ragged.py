"""Rows of different lengths, concatenated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

__all__ = ["Ragged"]


@dataclass(frozen=True, eq=False)
class Ragged:
    """A leaf of a batch whose items differ in length.

    Attributes:
        values: The values of all items, concatenated.
        offsets: Where each item starts, and the end of the last: one more than there are items.

    Examples:
        >>> import numpy as np
        >>> rows = Ragged(np.arange(5), np.array([0, 2, 5]))
        >>> [row.tolist() for row in rows], rows.lengths.tolist()
        ([[0, 1], [2, 3, 4]], [2, 3])
        >>> rows.padded(-1)
        array([[ 0,  1, -1],
               [ 2,  3,  4]])
    """

    values: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        """Return one item, as a view."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"expected an item below {len(self)}, got {index}")
        index %= len(self)
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        """Iterate over the items, as views."""
        return (self[index] for index in range(len(self)))

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """The length of each item."""
        lengths: np.ndarray[Any, Any] = self.offsets[1:] - self.offsets[:-1]
        return lengths

    def padded(self, fill: Any = 0) -> np.ndarray[Any, Any]:
        """Copy the items into one array, padded to the longest item's length."""
        import numpy as np

        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        shape = (len(self), longest, *self.values.shape[1:])
        array = np.full(shape, fill, self.values.dtype)
        array[np.arange(longest) < lengths[:, None]] = self.values
        return array
