"""One of the servers that hold sharded tables."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from echoic.errors import EchoicError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.connection import Connection
    from echoic.remote_table import RemoteTable

__all__ = ["Shard"]


class Shard:
    """A server, its number and the connection to it.

    When the server moves, the connection follows: inserts that it has not acknowledged are sent to
    the new address.

    Attributes:
        number: Its position in the list of addresses, which is part of its items' keys.
        address: Its address; empty once it was removed.
        client: The connection; ``None`` until it was first reached.
        tables: Its tables by name.
        there: Whether it was connected at the last check; only then is it used.
        seen: Whether it was ever connected.
        drained: Whether a call of ``drain`` stopped inserts.
        draining: Whether the list of addresses says so.
        removed: Whether it was removed. Then the connection, if there is one, delivers the
            remaining inserts to another shard.
        lent: Whether a writer may use the connection without a check here.
        quiet_until: Until when it may be away without a warning, because it moves.
        missed: Whether a warning was issued that it is away.
        first_incarnation: The number of the first server process that this connection sees. It is
            part of keys, so that those of an earlier process name no items of a later one.
    """

    def __init__(self, number: int, address: str) -> None:
        """Set its number and its address."""
        self.number = number
        self.address = address
        self.client: Connection | None = None
        self.tables: Mapping[str, RemoteTable] = {}
        self.there = False
        self.seen = False
        self.drained = False
        self.draining = False
        self.removed = False
        self.lent = False
        self.quiet_until = 0.0
        self.missed = False
        self.first_incarnation = 0
        self._connection: Any = None

    def __str__(self) -> str:
        return f"shard {self.number} ({self.address or 'removed'})"

    @property
    def connected(self) -> bool:
        """Whether the server is connected and accepts what was inserted."""
        return not self.removed and self.reaches and not self.closed

    @property
    def closed(self) -> bool:
        """Whether a table that inserts wait for is closed there."""
        connection = self._connection
        return connection is not None and bool(connection.closed)

    @property
    def reaches(self) -> bool:
        """Whether the connection is open, also that of a removed shard to another."""
        connection = self._connection
        return connection is not None and bool(connection.connected)

    @property
    def arrived(self) -> bool:
        """Whether the server is connected at the address that was set last."""
        connection = self._connection
        return connection is not None and bool(connection.arrived)

    @property
    def takes(self) -> bool:
        """Whether items may be inserted there."""
        return self.there and not self.drained and not self.draining

    @property
    def over(self) -> bool:
        """Whether there is no connection that would be restored by itself."""
        return self._connection is None or bool(self._connection.over)

    @property
    def trouble(self) -> str | None:
        """Why there is no connection, if retrying will not help."""
        connection = self._connection
        return None if connection is None else connection.trouble

    @property
    def pending(self) -> int:
        """The number of inserts that it has not acknowledged."""
        return 0 if self._connection is None else int(self._connection.pending)

    def join(self, client: Connection) -> None:
        """Use this connection from now on."""
        self.client = client
        self.tables = client.tables  # type: ignore[assignment]
        self._connection = client._link
        # There are others to use.
        self._connection.wait_only_while_connected()

    def redirect(self, address: str) -> None:
        """Make the connection use another address."""
        if self._connection is not None:
            self._connection.redirect(address)

    def leave(self) -> int:
        """Drop the connection; return how many inserts are lost with it."""
        if self.client is None:
            return 0
        lost = self.pending
        self.first_incarnation += self._connection.incarnations + 1
        with contextlib.suppress(EchoicError):
            self.client.close(0.0)
        # Writers that still have the tables find them closed.
        self.client, self._connection = None, None
        return lost

    def stats(self) -> dict[str, float]:
        """Return the numbers of the connection."""
        return {} if self._connection is None else self._connection.stats()
