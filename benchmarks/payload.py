"""What the workloads send: example trees, and pools of distinct samples of them.

A [`Pool`] holds a few prebuilt samples that a producer sends round and round. Building
them ahead keeps their cost out of the timers; keeping them few keeps the source hot in
the cache, as the physical bounds assume. A pool has a **prime** number of entries, and
no workload uses a batch or a ring that is a multiple of it, so a lost, repeated or
stale row shifts the pattern and the content check sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = npt.NDArray[Any]
Tree = Any
PAGE = 4096


def small() -> Tree:
    """20 bytes: the observation of CartPole and a reward."""
    return {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)}


def stamped() -> Tree:
    """20 bytes: an observation, and when it was sent."""
    return {"obs": np.zeros(3, np.float32), "sent": np.zeros(1, np.int64)}


def numbered() -> Tree:
    """20 bytes: who sent it, and some words of which the first is a number."""
    return {"origin": np.zeros(1, np.int32), "words": np.zeros(4, np.int32)}


def six_leaves() -> Tree:
    """45 bytes: a whole transition of CartPole."""
    return {
        "obs": np.zeros(4, np.float32),
        "action": np.zeros(1, np.int32),
        "reward": np.zeros(1, np.float32),
        "discount": np.zeros(1, np.float32),
        "done": np.zeros(1, np.bool_),
        "next_obs": np.zeros(4, np.float32),
    }


def frame() -> Tree:
    """28,236 bytes: four stacked Atari frames with scalars."""
    return {
        "frame": np.zeros((84, 84, 4), np.uint8),
        "action": np.zeros(1, np.int32),
        "reward": np.zeros(1, np.float32),
        "discount": np.zeros(1, np.float32),
    }


def layers() -> Tree:
    """1.02 MB in 44 leaves: weights and biases of 22 layers."""
    return {
        f"layer_{index:02}": {
            "weights": np.zeros((106, 108), np.float32),
            "bias": np.zeros(108, np.float32),
        }
        for index in range(22)
    }


def flatten(tree: Tree, path: str = "") -> list[tuple[str, Array]]:
    """List the leaves of nested dicts with their paths, keys in sorted order."""
    if not isinstance(tree, dict):
        return [(path, tree)]
    return [
        leaf
        for key in sorted(tree)
        for leaf in flatten(tree[key], f"{path}.{key}" if path else key)
    ]


def rebuild(example: Tree, leaves: Iterator[Array]) -> Tree:
    """Put ``leaves``, ordered as by [`flatten`], into the structure of ``example``."""
    if not isinstance(example, dict):
        return next(leaves)
    children = {key: rebuild(example[key], leaves) for key in sorted(example)}
    return {key: children[key] for key in example}


def sample_bytes(example: Tree) -> int:
    """Return the bytes of all leaves of one sample."""
    return sum(leaf.nbytes for _, leaf in flatten(example))


def packed(tree: Tree) -> Array:
    """Return the bytes of all leaves in one contiguous array, for a plain copy."""
    return np.concatenate(
        [np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for _, leaf in flatten(tree)]
    )


def touched_bytes(nbytes: int, page_offset: int) -> Array:
    """Allocate bytes that start ``page_offset`` bytes after the start of a page.

    Where a source and a destination lie within their pages can decide over the speed of
    a copy: on several processors the C library's `memcpy` is ten times slower when the
    destination is 1 to 31 bytes further into its page than the source is.
    """
    raw = np.ones(nbytes + 2 * PAGE, np.uint8)
    start = (page_offset - raw.ctypes.data) % PAGE
    return raw[start : start + nbytes]


def placed(array: Array, page_offset: int) -> Array:
    """Copy ``array`` to memory that starts ``page_offset`` bytes into a page."""
    target = touched_bytes(array.nbytes, page_offset).view(array.dtype)
    target = target.reshape(array.shape)
    target[...] = array
    return target


@dataclass(frozen=True)
class Pool:
    """Samples that are sent in turn, for ever, and the rows that must come out.

    ``entries[i]`` holds ``rows`` samples: one for ``add`` (leaves like ``example``), more for
    ``extend`` (leaves with a leading axis). The leaves are views of ``columns``, which the
    check compares with: a second copy of the sources would only crowd the caches.
    """

    example: Tree
    entries: tuple[Tree, ...]
    rows: int
    columns: dict[str, Array]

    @classmethod
    def of_samples(cls, example: Tree, size: int) -> Pool:
        """Make ``size`` random samples for ``add``."""
        return cls.of_columns(example, _random_columns(example, size))

    @classmethod
    def of_columns(cls, example: Tree, columns: dict[str, Array]) -> Pool:
        """Make a sample for ``add`` of each row of ``columns``."""
        entries = tuple(
            rebuild(example, iter([column[index] for column in columns.values()]))
            for index in range(len(next(iter(columns.values()))))
        )
        return cls(example, entries, 1, columns)

    @classmethod
    def of_blocks(cls, example: Tree, size: int, rows: int) -> Pool:
        """Make ``size`` random blocks of ``rows`` samples each for ``extend``."""
        return cls._blocks(example, rows, _random_columns(example, size * rows))

    @classmethod
    def _blocks(cls, example: Tree, rows: int, columns: dict[str, Array]) -> Pool:
        total = len(next(iter(columns.values())))
        entries = tuple(
            rebuild(example, iter([c[first : first + rows] for c in columns.values()]))
            for first in range(0, total, rows)
        )
        return cls(example, entries, rows, columns)

    def aliased_to(self, batch: Tree) -> Pool:
        """Move the blocks to 16 bytes earlier in their pages than ``batch`` is.

        Every column of a block must fill whole pages, so that all blocks lie alike.
        """
        offsets = {path: leaf.ctypes.data % PAGE - 16 for path, leaf in flatten(batch)}
        columns = {path: placed(column, offsets[path]) for path, column in self.columns.items()}
        return self._blocks(self.example, self.rows, columns)

    def expected(self, path: str, first: int, count: int) -> Array:
        """Return rows ``first..first + count`` of the endless stream of one leaf."""
        index = np.arange(first, first + count) % (len(self.entries) * self.rows)
        return self.columns[path][index]


def _random_columns(example: Tree, rows: int) -> dict[str, Array]:
    generator = np.random.default_rng(20)
    return {
        path: _random(generator, (rows, *leaf.shape), leaf.dtype) for path, leaf in flatten(example)
    }


def _random(generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
