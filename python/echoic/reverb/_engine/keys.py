"""Convert keys of items to Reverb's form: random-looking numbers of 64 bits.

Ours count from 0, and programs written for Reverb rely on an invented number not being a key. So
keys are mixed when they leave, reversibly and the same in all processes, and differently for each
table, so that a key of one is not a key of another.
"""

from __future__ import annotations

import hashlib
import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["mixed", "unmixed"]

# An odd factor, and its inverse modulo 2**64.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_FACTOR), -1, 1 << 64))


@lru_cache(maxsize=256)
def _flip(table: str) -> np.uint64:
    """Return the bits to flip, which differ from table to table."""
    digest = hashlib.blake2b(table.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def mixed(
    table: str, keys: np.ndarray[Any, np.dtype[np.uint64]]
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Convert keys of a table to those that clients see."""
    return (keys * _FACTOR) ^ _flip(table)


def unmixed(table: str, keys: Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Convert keys that clients see to those of the table.

    Raises:
        TypeError: If one is not a whole number of 64 bits.
    """
    try:
        seen = np.array(list(map(operator.index, keys)), np.uint64)
    except OverflowError:
        raise TypeError(f"keys are whole numbers of 64 bits, got {list(keys)}") from None
    return (seen ^ _flip(table)) * _INVERSE
