"""What is stored: items that follow from their number, so that any row can be checked by itself.

A sampler gives rows in whatever order, so no check can know which row is due. Instead every
column of an item is a function of the item's number, which is a part of the item.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.content import ContentError
from benchmarks.payload import Pool, sample_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree

_FRAME = (84, 84, 4)
_FRAME_BYTES = 84 * 84 * 4
# Bytes of a frame that hold its number.
_HEAD = 8
# A prime number of them, as in `benchmarks.payload`.
_PICTURES = 61


def transition(numbers: Array) -> Tree:
    """48 bytes in five columns: a transition of CartPole whose action is the item's number."""
    # Floats of 32 bits hold these numbers exactly.
    obs = (4 * numbers[:, None] + np.arange(4)) % (1 << 20)
    return {
        "action": numbers.astype(np.int64),
        "discount": (1 / (1 + numbers % 7)).astype(np.float32),
        "next_obs": (obs + 0.5).astype(np.float32),
        "obs": obs.astype(np.float32),
        "reward": (numbers % 1009).astype(np.float32),
    }


def frame(numbers: Array) -> Tree:
    """28,224 bytes that no codec makes smaller: four stacked Atari frames, the first 8 a number."""
    flat = _pictures()[numbers % _PICTURES]
    flat[:, :_HEAD] = numbers.astype(np.int64)[:, None].view(np.uint8)
    return {"frame": flat.reshape(-1, *_FRAME)}


_KINDS: dict[str, Callable[[Array], Tree]] = {"transition": transition, "frame": frame}


@dataclass(frozen=True)
class Items:
    """The items of a kind."""

    kind: str

    def columns(self, numbers: Array) -> Tree:
        """Return the items with these numbers."""
        return _KINDS[self.kind](numbers)

    @functools.cached_property
    def example(self) -> Tree:
        """One item, all zeros but its number's own traces."""
        return {name: column[0] for name, column in self.columns(np.zeros(1, np.int64)).items()}

    @property
    def nbytes(self) -> int:
        """Bytes of one item."""
        return sample_bytes(self.example)

    def pool(self, size: int) -> Pool:
        """Return the first items as samples that a producer sends in turn."""
        return Pool.of_columns(self.example, self.columns(np.arange(size)))

    def numbers(self, data: Tree) -> Array:
        """Read the number of every row, whether or not each has an axis of time of length 1."""
        if self.kind == "transition":
            return np.asarray(data["action"]).reshape(-1)
        head = np.asarray(data["frame"]).reshape(-1, _FRAME_BYTES)[:, :_HEAD]
        return np.ascontiguousarray(head).view(np.int64).reshape(-1)

    def check(self, data: Tree, rows: int) -> Array:
        """Compare every byte of ``rows`` rows with what their numbers say; return the numbers.

        Raises:
            ContentError: they differ, in the column and the row of the message.
        """
        if data.keys() != self.example.keys():
            raise ContentError(f"expected the columns {[*self.example]}, got {[*data]}")
        for name, leaf in self.example.items():
            wanted, got = rows * leaf.size, np.asarray(data[name])
            if got.dtype != leaf.dtype or got.size != wanted or len(got) != rows:
                raise ContentError(
                    f"column {name}: expected {rows} rows of {leaf.shape} {leaf.dtype}, got "
                    f"{got.shape} {got.dtype}"
                )
        numbers = self.numbers(data)
        # In pieces, so that a copy of many frames does not empty the caches.
        for first in range(0, rows, 8 if self.kind == "frame" else rows):
            due = self.columns(numbers[first : first + 8] if self.kind == "frame" else numbers)
            for name, column in due.items():
                got = np.asarray(data[name])[first : first + len(column)].reshape(column.shape)
                if not np.array_equal(got, column):
                    wrong = (got != column).reshape(len(column), -1).any(axis=1).argmax()
                    raise ContentError(
                        f"column {name}, row {first + wrong}: not what the item with number "
                        f"{numbers[first + wrong]} has"
                    )
        return numbers


@functools.cache
def _pictures() -> Array:
    generator = np.random.default_rng(20)
    return generator.integers(0, 256, (_PICTURES, _FRAME_BYTES), np.uint8)
