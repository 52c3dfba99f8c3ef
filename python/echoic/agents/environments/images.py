"""Pictures for people: grids of colours, put together, as arrays of height by width by three bytes.

Pillow and matplotlib write them as files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["COLORS", "above", "beside", "draw_grid"]

#: Black, blue, red, green, yellow, grey, magenta, orange, light blue, brown: as ARC numbers them.
COLORS = np.array(
    [
        (20, 20, 20), (40, 110, 220), (225, 55, 50), (50, 180, 75), (250, 215, 40),
        (165, 165, 165), (225, 45, 185), (250, 135, 40), (125, 205, 245), (125, 40, 50),
    ],
    np.uint8,
)  # fmt: skip
_LINE = 90
_PAPER = 255


def draw_grid(grid: Any, cell: int = 16) -> NDArray[np.uint8]:
    """A grid of numbers from 0 to 9 as squares of so many pixels, with lines between.

    >>> draw_grid([[0, 1], [2, 3]], cell=4).shape
    (9, 9, 3)
    """
    numbers = np.asarray(grid)
    if numbers.ndim != 2 or not numbers.size or numbers.min() < 0 or numbers.max() > 9:
        raise ArgumentError("a grid has rows and columns of numbers from 0 to 9")
    if cell < 2:
        raise ArgumentError(f"cell must be at least 2, not {cell}")
    squares = COLORS[numbers].repeat(cell, axis=0).repeat(cell, axis=1)
    squares[::cell] = _LINE
    squares[:, ::cell] = _LINE
    return np.pad(squares, ((0, 1), (0, 1), (0, 0)), constant_values=_LINE)


def beside(images: Sequence[NDArray[np.uint8]], gap: int = 12) -> NDArray[np.uint8]:
    """Pictures from left to right, on white."""
    height = max(one.shape[0] for one in images)
    padded = [
        np.pad(one, ((0, height - len(one)), (0, gap), (0, 0)), constant_values=_PAPER)
        for one in images
    ]
    return np.concatenate(padded, axis=1)


def above(images: Sequence[NDArray[np.uint8]], gap: int = 12) -> NDArray[np.uint8]:
    """Pictures from top to bottom, on white."""
    turned = beside([one.transpose(1, 0, 2) for one in images], gap)
    return np.ascontiguousarray(turned.transpose(1, 0, 2))
