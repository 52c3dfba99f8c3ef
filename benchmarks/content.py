"""The check that a received batch holds what was sent.

A fast copy of the wrong bytes is worth nothing, so a workload calls this before it reports a
number, and a [`ContentError`] leaves the workload without one.

Everything is compared in small pieces: whole-batch temporaries would empty the caches, and be
mapped and unmapped each time, which slows down the next copy that is on the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.payload import Pool, flatten, numbered

if TYPE_CHECKING:
    from benchmarks.payload import Array, Tree

PIECE_BYTES = 1 << 15

# How often a ring goes round under the full check before each repeat is timed.
CHECKED_ROUNDS = 2


class ContentError(Exception):
    """A received batch is not what was sent."""


class Receiver:
    """Compares batches with the rows a [`Pool`] sends, in order.

    A receiver counts the rows it was shown, so a batch that is lost, repeated, stale or out of
    order differs from what is due just like a wrong byte does.
    """

    def __init__(self, pool: Pool) -> None:
        """Expect the stream of ``pool`` from its first row on."""
        self._pool = pool
        self._rows = 0
        self._buffers: set[int] = set()

    @property
    def rows(self) -> int:
        """Rows that were received so far."""
        return self._rows

    @property
    def buffers(self) -> int:
        """Places in memory where checked batches have lain: the buffers in use."""
        return len(self._buffers)

    def check(self, batch: Tree, rows: int) -> None:
        """Compare every row of ``batch`` with the ``rows`` that are due next."""
        leaves = self._leaves(batch, rows)
        for path, leaf in leaves.items():
            piece = max(1, PIECE_BYTES * rows // max(leaf.nbytes, 1))
            for first in range(0, rows, piece):
                self._compare(path, leaf, first, min(first + piece, rows))
        self._buffers.add(next(iter(leaves.values())).ctypes.data)
        self._rows += rows

    def check_ends(self, batch: Tree, rows: int) -> None:
        """Compare the first and the last row of ``batch`` only.

        Cheap enough to run inside a timer. The order of the rows between is what a preceding
        pass with [`check`] has verified.
        """
        for path, leaf in self._leaves(batch, rows).items():
            self._compare(path, leaf, 0, 1)
            self._compare(path, leaf, rows - 1, rows)
        self._rows += rows

    def skip(self, rows: int) -> None:
        """Count ``rows`` as received without looking at them."""
        self._rows += rows

    def _leaves(self, batch: Tree, rows: int) -> dict[str, Array]:
        leaves = dict(flatten(batch))
        columns = self._pool.columns
        if leaves.keys() != columns.keys():
            raise ContentError(f"expected leaves {list(columns)}, got {list(leaves)}")
        for path, column in columns.items():
            leaf, shape = leaves[path], (rows, *column.shape[1:])
            if leaf.shape != shape or leaf.dtype != column.dtype:
                raise ContentError(
                    f"`{path}`: expected {shape} {column.dtype}, got {leaf.shape} {leaf.dtype}"
                )
        return leaves

    def _compare(self, path: str, leaf: Array, first: int, last: int) -> None:
        due = self._pool.expected(path, self._rows + first, last - first)
        got = leaf[first:last]
        if not np.array_equal(got, due):
            row = first + int(np.argwhere(got != due)[0][0])
            raise ContentError(
                f"`{path}`: row {row} of the batch after {self._rows} rows differs from what "
                "was sent"
            )


class Crowd:
    """Compares batches in which many producers mix with what each of them sends, in its order.

    All send the same samples, each with its own number as the origin.
    """

    SAMPLES = 61

    def __init__(self, producers: int) -> None:
        """Expect the streams of ``producers`` producers from their first rows on."""
        self._words = self._columns()["words"]
        self.received = np.zeros(producers, np.int64)

    @classmethod
    def pool(cls, producer: int) -> Pool:
        """Return what ``producer`` sends."""
        columns = cls._columns()
        columns["origin"][:] = producer
        return Pool.of_columns(numbered(), columns)

    @classmethod
    def _columns(cls) -> dict[str, Array]:
        columns = dict(Pool.of_samples(numbered(), cls.SAMPLES).columns)
        columns["words"][:, 0] = np.arange(cls.SAMPLES)
        return columns

    def check(self, batch: Tree, rows: int) -> None:
        """Compare every row with what is due next from its producer."""
        origins, words = self._leaves(batch, rows)
        order = np.argsort(origins, kind="stable")
        grouped = origins[order]
        before = np.searchsorted(grouped, grouped)
        due = (self.received[grouped] + np.arange(rows) - before) % self.SAMPLES
        if not np.array_equal(words[order], self._words[due]):
            row = int(order[(words[order] != self._words[due]).any(axis=1).argmax()])
            raise ContentError(
                f"row {row} is not what producer {origins[row]} sent after its first "
                f"{self.received[origins[row]]} rows and those before it in the batch"
            )
        self._count(origins)

    def count(self, batch: Tree, rows: int) -> None:
        """Count the rows of each producer only: cheap enough to run inside a timer.

        A row that is lost or repeated shifts all that [`check`] sees of its producer later.
        """
        self._count(self._leaves(batch, rows)[0])

    def _count(self, origins: Array) -> None:
        self.received += np.bincount(origins, minlength=len(self.received))

    def _leaves(self, batch: Tree, rows: int) -> tuple[Array, Array]:
        origins, words = batch["origin"][:, 0], batch["words"]
        if origins.shape != (rows,) or words.shape != (rows, 4):
            raise ContentError(f"expected {rows} rows, got {origins.shape} and {words.shape}")
        if origins.min() < 0 or origins.max() >= len(self.received):
            raise ContentError(f"there are {len(self.received)} producers, not {origins.max()}")
        return origins, words
