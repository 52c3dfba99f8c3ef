"""A table of a server in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from echoic import _native
from echoic.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic._native import Batch

__all__ = ["RemoteTable"]


class RemoteTable(_native.RemoteTable, Table):
    """A table of a server in another process; ``connect(address).table(name)`` returns one.

    A :class:`~echoic.Table`, but for ``close`` and
    ``durability``, which raise. Inserts are on their way when they return: they are delivered in
    the background, each exactly once, and :meth:`flush` waits until they are in the table.
    Everything else is a request that waits for its answer.
    """

    __slots__ = ("_link",)

    def __init__(self, link: _native.Tables, number: int) -> None:
        """Store the link, which the table's items wait in."""
        self._link = link

    def _batch_requests(self, n: int, beta: float) -> Callable[[], Callable[[float], Batch]]:
        # The server sends batches one after the other; threads would only hand them on.
        def start() -> Callable[[float], Batch]:
            pending = self.start_sample(n)
            return lambda wait: pending.take(wait, beta)

        return start

    def flush(self, timeout: float | None = None) -> None:
        """Wait until what was added to tables of this connection is in them."""
        self._link.flush(timeout)

    def close(self) -> NoReturn:
        """Raise: only the server's process can close a table.

        Raises:
            TypeError: Always.
        """
        raise TypeError(no_close(self.name))

    @property
    def durability(self) -> str:
        """Raise: a server does not report this setting to its clients.

        Raises:
            TypeError: Always.
        """
        raise TypeError(no_durability(self.name))


def no_close(name: str) -> str:
    """Say why a table of a server can't be closed by a client."""
    return (
        f"table {name!r} is on a server, and closing it would end it for every client: call close "
        "of the connection to leave it, of the table in the server's process to end it"
    )


def no_durability(name: str) -> str:
    """Say why the durability of a table of a server is not known to a client."""
    return (
        f"table {name!r} is on a server, which does not report durability to clients: read it from "
        "the table in the server's process"
    )
