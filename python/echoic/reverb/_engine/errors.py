"""Convert Echoic's errors to those that Reverb raises."""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import TYPE_CHECKING

from echoic.errors import ClosedError, DisconnectedError, RefusedError, TableNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["absent", "as_reverb", "gone", "not_found"]

_exiting = threading.Event()
# Registered later than the closing of connections, so that it runs before.
atexit.register(_exiting.set)


def gone(error: Exception) -> RuntimeError:
    """Return the error to raise when a connection or a table was closed.

    A daemon thread whose connection is closed because the program ends waits here until it has
    ended: its traceback would report an error that did not happen.
    """
    if _exiting.is_set() and threading.current_thread().daemon:
        threading.Event().wait()
    return RuntimeError(str(error))


def not_found(table: str) -> RuntimeError:
    """Return the error of a server without this table."""
    return RuntimeError(f"Priority table {table} was not found")


@contextlib.contextmanager
def as_reverb(table: str = "") -> Iterator[None]:
    """Raise builtins in place of Echoic's errors; invalid values are ``ValueError``."""
    try:
        yield
    except TableNotFoundError as error:
        raise not_found(table) from error
    except (ClosedError, DisconnectedError, RefusedError) as error:
        raise gone(error) from error


def absent(module: str, names: str, remedy: str) -> Callable[[str], type]:
    """Return a module's ``__getattr__``, for names that can be imported but not called."""

    def find(name: str) -> type:
        if name not in names.split():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")

        def refuse(*_: object, **__: object) -> None:
            raise NotImplementedError(f"{module} has no {name}: {remedy}")

        return type(name, (), {"__init__": refuse})

    return find
