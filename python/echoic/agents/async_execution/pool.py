"""Pages for keys and values, each for one token in all layers.

A pool has a fixed number of pages. Their contents are in *planes*: tensors with a row for each
page, two for each layer of a model (keys and values). A page is a number, so pages are an array of
numbers, and reading a sequence is one gather.

Pages of one token let sequences share exactly the tokens that they have in common, without copying
a half-filled page. Larger pages make shorter tables for kernels that walk them; here rows are
gathered.

Invariants:

1. A page is free or taken; ``free + taken == capacity``.
2. The free pages are ``_stack[:free]``, each once.
3. ``versions[page]`` is the version of the weights that filled the page, and -1 if it is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["PagePool"]


class PagePool:
    """A fixed number of pages, and which of them are free.

    >>> pool = PagePool(4, [((2, 8), torch.float32)], torch.device("cpu"))
    >>> pages = pool.take(3, version=0)
    >>> pool.free
    1
    >>> pool.give_back(pages)
    >>> pool.free, pool.nbytes
    (4, 256)

    Args:
        capacity: Number of pages.
        planes: For each plane the shape and the dtype of a row.
        device: Device of the planes.
    """

    def __init__(
        self, capacity: int, planes: Sequence[tuple[tuple[int, ...], Any]], device: Any
    ) -> None:
        self.capacity = capacity
        # Pages are written before they are read; unused memory is not touched.
        self.planes = [
            torch.empty((capacity, *shape), dtype=dtype, device=device) for shape, dtype in planes
        ]
        self.versions: NDArray[np.int64] = np.full(capacity, -1, np.int64)
        self._stack: NDArray[np.int64] = np.arange(capacity, dtype=np.int64)[::-1].copy()
        self.free = capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all planes. They never change."""
        return sum(int(plane.numel()) * int(plane.element_size()) for plane in self.planes)

    def take(self, count: int, version: int) -> NDArray[np.int64]:
        """Take ``count`` pages, to be filled by the weights of ``version``.

        Raises:
            ArgumentError: If fewer are free. None was taken.
        """
        if count > self.free:
            raise ArgumentError(f"{count} pages were requested, and {self.free} are free")
        self.free -= count
        pages = self._stack[self.free : self.free + count].copy()
        self.versions[pages] = version
        return pages

    def give_back(self, pages: NDArray[np.int64]) -> None:
        """Free ``pages``.

        Raises:
            ArgumentError: If one of them is free already.
        """
        if len(pages) == 0:
            return
        if (self.versions[pages] < 0).any():
            raise ArgumentError("a page that is free was given back")
        self.versions[pages] = -1
        self._stack[self.free : self.free + len(pages)] = pages
        self.free += len(pages)

    def read(self, pages: NDArray[np.int64]) -> list[Any]:
        """Return copies of ``pages``, plane by plane."""
        rows = torch.from_numpy(pages)
        return [plane[rows.to(plane.device)] for plane in self.planes]
