"""The groups that producers send, and the learner's check that all of them came, whole, and once.

Every producer sends the groups of one pool in turn. The first token of an item tells which group of
the pool it is of, and which item; its reward is the serial number of the group, which no other
group of the session has. All items have one length, so that systems which stack items need no
padding.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.content import ContentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.payload import Array

# A prime number, as in `benchmarks.payload`.
POOL = 61
# Serial numbers of one producer. A float32 tells eight times as many apart.
SERIALS = 1 << 21
COLUMNS: dict[str, np.dtype[Any]] = {
    "ids": np.dtype(np.int32),
    "logprobs": np.dtype(np.float32),
    "mask": np.dtype(np.uint8),
}
FIELDS: dict[str, np.dtype[Any]] = {"reward": np.dtype(np.float32)}


class Groups:
    """A pool of groups of ``items`` × ``tokens``; its columns have a row for each item."""

    def __init__(self, items: int, tokens: int) -> None:
        """Make the pool, which is the same everywhere."""
        self.items, self.tokens = items, tokens
        rows = POOL * items
        generator = np.random.default_rng(20)
        ids = generator.integers(0, 50_000, (rows, tokens), np.int32)
        ids[:, 0] = np.arange(rows)
        logprobs = -generator.random((rows, tokens), np.float32)
        mask = generator.integers(0, 2, (rows, tokens), np.uint8)
        self.columns: dict[str, Array] = {"ids": ids, "logprobs": logprobs, "mask": mask}

    @property
    def nbytes(self) -> int:
        """The bytes of the tokens of a group."""
        return self.nbytes_of(self.items, self.tokens)

    @staticmethod
    def nbytes_of(items: int, tokens: int) -> int:
        """Return the bytes of the tokens of a group of this size."""
        return items * tokens * sum(dtype.itemsize for dtype in COLUMNS.values())

    def entry(self, serial: int) -> dict[str, Array]:
        """Return the columns of the group with this serial number, a row for each item."""
        first = serial % SERIALS % POOL * self.items
        return {name: column[first : first + self.items] for name, column in self.columns.items()}

    def rows(self, serial: int) -> list[dict[str, Array]]:
        """Return the columns of each of its items, as a program has them that makes one by one."""
        return self._rows[serial % SERIALS % POOL]

    @cached_property
    def _rows(self) -> list[list[dict[str, Array]]]:
        entries = [self.entry(serial) for serial in range(POOL)]
        return [
            [{name: column[at] for name, column in entry.items()} for at in range(self.items)]
            for entry in entries
        ]

    def rewards(self, serial: int) -> Array:
        """Return the reward of each of its items."""
        return np.full(self.items, serial, np.float32)


class Tally:
    """What a learner has received."""

    def __init__(self, groups: Groups) -> None:
        """Expect nothing yet."""
        self._groups = groups
        self._serials: list[Array] = []

    def count(self, batch: Mapping[str, Array], size: int) -> Array:
        """Take note of a batch of so many groups; return the place of each item in the pool.

        Of each item only the ends and the reward are looked at.

        Raises:
            ContentError: It has not so many whole groups of this pool.
        """
        items = self._groups.items
        ids = batch["ids"].reshape(-1, self._groups.tokens)
        rewards = batch["reward"].reshape(-1)
        if len(ids) != size * items or len(rewards) != len(ids):
            raise ContentError(f"expected {size * items} items, got {len(ids)} and {len(rewards)}")
        rows: Array = ids[:, 0]
        if rows.min() < 0 or rows.max() >= POOL * items:
            raise ContentError(f"an item that was not sent: {rows.min()} or {rows.max()}")
        by_group = rewards.reshape(size, items)
        serials: Array = by_group[:, 0].astype(np.int64)
        # Some systems give the items of a group in another order.
        expected = serials % SERIALS % POOL * items
        if (by_group != by_group[:, :1]).any() or not np.array_equal(
            np.sort(rows.reshape(size, items)), expected[:, None] + np.arange(items)
        ):
            raise ContentError("a group is not whole")
        if not np.array_equal(ids[:, -1], self._groups.columns["ids"][rows, -1]):
            raise ContentError("the last token of an item is another one")
        self._serials.append(serials)
        return rows

    def check(self, batch: Mapping[str, Array], size: int) -> None:
        """Take note of a batch, and compare all of it.

        Raises:
            ContentError: Something is not what was sent.
        """
        rows = self.count(batch, size)
        for name, column in self._groups.columns.items():
            if not np.array_equal(batch[name].reshape(len(rows), -1), column[rows]):
                raise ContentError(f"column {name} is not what was sent")

    def finish(self, expected: Array) -> None:
        """Compare the serial numbers since the last time with those that were sent.

        Raises:
            ContentError: A group is missing, or came twice.
        """
        got = np.sort(np.concatenate(self._serials))
        self._serials.clear()
        if not np.array_equal(got, np.sort(expected)):
            raise ContentError(f"{len(expected)} groups were sent, others than the {len(got)} here")
