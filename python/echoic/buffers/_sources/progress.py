"""A bar for conversions that take a while, where somebody sits at a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["shown"]


def shown(things: Iterable[Any], total: int | None, what: str) -> Iterator[Any]:
    """The same things, with a bar of rich if it is there and errors go to a terminal."""
    if not sys.stderr.isatty():
        yield from things
        return
    try:
        from rich.console import Console  # noqa: PLC0415 - only if it is there
        from rich.progress import track  # noqa: PLC0415
    except ImportError:
        yield from things
        return
    yield from track(things, f"Reading {what}", total, console=Console(stderr=True), transient=True)
