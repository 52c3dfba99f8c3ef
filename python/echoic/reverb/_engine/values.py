"""Check arguments, and convert leaves of steps to arrays that a table can hold.

Arguments of other types than Reverb's C++ takes are a ``TypeError``.

Tables hold elements of a fixed width. Text is encoded to UTF-8 and padded with zeros to a power of
two, so that columns of texts of similar lengths have one form. Samples have it as ``bytes`` in
arrays of objects, as upstream's do.

Keys of items are converted to random-looking numbers of 64 bits. Ours count from 0, and programs
written for Reverb rely on an invented number not being a key. So keys are mixed when they leave,
reversibly and the same in all processes, and differently for each table, so that a key of one is
not a key of another.
"""

from __future__ import annotations

import hashlib
import math
import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["array", "mixed", "name", "positive", "priority", "real", "texts_as_objects", "unmixed"]

_MIN_WIDTH = 32

# An odd factor, and its inverse modulo 2**64.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_FACTOR), -1, 1 << 64))


def array(value: Any) -> np.ndarray[Any, Any]:
    """Convert a value to an array, with text as bytes.

    Raises:
        TypeError: If a table can't hold it.
    """
    made = np.asarray(value)
    if made.dtype.kind in "OSU":
        return text_as_bytes(made)
    if made.dtype.kind not in "biufc" and made.dtype.name != "bfloat16":
        raise TypeError(f"expected a number, text or bytes, or an array of such, got {value!r}")
    return made if made.dtype.isnative else made.astype(made.dtype.newbyteorder("="))


def text_as_bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert text or bytes of any kind to bytes of one width.

    Raises:
        TypeError: If an object is neither.
    """
    if values.dtype.kind == "U":
        encoded = np.char.encode(values, "utf-8")
    elif values.dtype.kind == "S":
        encoded = values
    else:
        flat = [_encoded(value) for value in values.ravel()]
        encoded = np.array(flat, dtype="S").reshape(values.shape)
    width = max(_MIN_WIDTH, 1 << (encoded.dtype.itemsize - 1).bit_length())
    return np.asarray(encoded).astype(f"S{width}")


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"expected a number, text or bytes, or an array of such, got {value!r}")


def texts_as_objects(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert sampled bytes of a fixed width to objects."""
    return values.astype(object) if values.dtype.kind == "S" else values


def name(value: Any) -> str:
    """Return the name of a table."""
    if not isinstance(value, str):
        raise TypeError(f"the name of a table is text, got {value!r}")
    return value


def positive(**numbers: int) -> None:
    """Check arguments, given by their names.

    Raises:
        ValueError: If one is below 1.
    """
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} ({number}) must be a positive integer")


def real(value: Any, what: str) -> float:
    """Return a number as a float."""
    if isinstance(value, (str, bytes)) or not (
        hasattr(value, "__float__") or hasattr(value, "__index__")
    ):
        raise TypeError(f"{what} is a number, got {value!r}")
    return float(value)


def priority(value: Any) -> float:
    """Return a priority as a float.

    Raises:
        ValueError: If it is negative, infinite or not a number.
    """
    if type(value) is float and 0.0 <= value < math.inf:
        return value
    number = real(value, "a priority")
    if math.isnan(number):
        raise ValueError("Priority must not be NaN.")
    if number < 0:
        raise ValueError(f"Priority must not be negative, got {number:g}.")
    if math.isinf(number):
        raise ValueError("Priority must be finite.")
    return number


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
