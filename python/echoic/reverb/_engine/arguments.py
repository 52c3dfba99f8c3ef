"""Check arguments for the types that Reverb's C++ takes; others are a ``TypeError``."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["name", "priority", "real"]


def name(value: Any) -> str:
    """Return the name of a table."""
    if not isinstance(value, str):
        raise TypeError(f"the name of a table is text, got {value!r}")
    return value


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
