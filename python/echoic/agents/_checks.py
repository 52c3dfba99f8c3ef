"""Checks of the fields of settings; an error names the field, what was expected and the value."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["number", "one_of", "whole"]


def whole(settings: Any, *names: str, least: int = 1, most: int | None = None) -> None:
    """Require whole numbers within bounds."""
    for name in names:
        value = getattr(settings, name)
        is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
        if not is_whole or value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"from {least} to {most}"
            kind = "" if is_whole else "a whole number, "
            raise ArgumentError(f"{name} must be {kind}{bounds}, not {value!r}")


def number(
    settings: Any,
    *names: str,
    above: float | None = None,
    least: float = -math.inf,
    most: float = math.inf,
    finite: bool = True,
) -> None:
    """Require numbers within bounds; NaN is an error."""
    for name in names:
        value = getattr(settings, name)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        fits = is_number and least <= value <= most and (above is None or value > above)
        if not fits or (finite and not math.isfinite(value)):
            bounds = [f"above {above:g}"] if above is not None else []
            bounds += [f"at least {least:g}"] if least > -math.inf else []
            bounds += [f"at most {most:g}"] if most < math.inf else []
            expected = " and ".join(bounds) or "a finite number"
            raise ArgumentError(f"{name} must be {expected}, not {value!r}")


def one_of(settings: Any, name: str, known: Collection[Any]) -> None:
    """Require one of some values."""
    value = getattr(settings, name)
    if value not in known:
        raise ArgumentError(f"{name} must be one of {', '.join(map(str, known))}, not {value!r}")
