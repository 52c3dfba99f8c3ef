"""Our errors as Reverb raises them."""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import TYPE_CHECKING

from echoic.errors import ClosedError, DisconnectedError, RefusedError, TableNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_reverb", "gone", "not_found"]

_exiting = threading.Event()
# This runs before connections are closed at exit, because it is registered later.
atexit.register(_exiting.set)


def gone(error: Exception) -> RuntimeError:
    """What to raise when a connection or a table was closed.

    A daemon thread whose connection is closed because the program ends waits here for that end: its
    traceback would tell of nothing that went wrong.
    """
    if _exiting.is_set() and threading.current_thread().daemon:
        threading.Event().wait()
    return RuntimeError(str(error))


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
        raise gone(error) from error
