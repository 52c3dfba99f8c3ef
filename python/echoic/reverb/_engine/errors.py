"""Our errors as Reverb raises them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from echoic.errors import ClosedError, DisconnectedError, RefusedError, TableNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_reverb", "not_found"]


def not_found(table: str) -> RuntimeError:
    """What a server says of a table that it does not have."""
    return RuntimeError(f"Priority table {table} was not found")


@contextlib.contextmanager
def as_reverb(table: str = "") -> Iterator[None]:
    """Raise builtins for what has another class here; values that are none are ``ValueError``."""
    try:
        yield
    except TableNotFoundError as error:
        raise not_found(table) from error
    except (ClosedError, DisconnectedError, RefusedError) as error:
        raise RuntimeError(str(error)) from error
