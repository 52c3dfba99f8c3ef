"""One of several servers that hold tables together."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from echoic.errors import EchoicError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.remote_table import RemoteTable
    from echoic.table_client import TableClient

__all__ = ["Shard"]


class Shard:
    """A server, its place among the others, and the connection to it.

    When the server moves, the connection follows it: what was not acknowledged goes to where it is.

    Attributes:
        number: Its place in the list of addresses; keys of its items have it.
        address: Where it is; nothing once it was removed.
        client: The connection; ``None`` while it was never reached.
        tables: Its tables by name.
        there: Whether it was there when it was looked at last; only then is it used.
        seen: Whether it ever was.
        drained: Whether its users said that no inserts go there any more.
        draining: Whether who knows the addresses says so.
        removed: Whether it is no more. Then the connection, if there is one, delivers to another
            what it has left.
        lent: Whether somebody may write into the connection without asking here.
        quiet_until: Until when it may be away without a word, since it moves.
        missed: Whether its users were told that it is away.
        first_life: The number of the first life that this connection sees. Keys have it too, so
            that those of an earlier life name none of the items of a later one.
    """

    def __init__(self, number: int, address: str) -> None:
        """Take its place and its address."""
        self.number = number
        self.address = address
        self.client: TableClient | None = None
        self.tables: Mapping[str, RemoteTable] = {}
        self.there = False
        self.seen = False
        self.drained = False
        self.draining = False
        self.removed = False
        self.lent = False
        self.quiet_until = 0.0
        self.missed = False
        self.first_life = 0
        self._connection: Any = None

    def __str__(self) -> str:
        """Name it in messages."""
        return f"shard {self.number} ({self.address or 'removed'})"

    @property
    def connected(self) -> bool:
        """Whether the server can be reached now, and takes what was inserted."""
        return not self.removed and self.reaches and not self.closed

    @property
    def closed(self) -> bool:
        """Whether a table that inserts wait for is closed there."""
        connection = self._connection
        return connection is not None and bool(connection.closed)

    @property
    def reaches(self) -> bool:
        """Whether the connection stands: also that of a shard that is no more, to another."""
        connection = self._connection
        return connection is not None and bool(connection.connected)

    @property
    def arrived(self) -> bool:
        """Whether the server can be reached where it was said to be last."""
        connection = self._connection
        return connection is not None and bool(connection.arrived)

    @property
    def takes(self) -> bool:
        """Whether items may be inserted there."""
        return self.there and not self.drained and not self.draining

    @property
    def over(self) -> bool:
        """Whether there is no connection that could come back by itself."""
        return self._connection is None or bool(self._connection.over)

    @property
    def trouble(self) -> str | None:
        """Why there is no connection, if that will not pass by itself."""
        connection = self._connection
        return None if connection is None else connection.trouble

    @property
    def pending(self) -> int:
        """How many inserts it has not acknowledged."""
        return 0 if self._connection is None else int(self._connection.pending)

    def join(self, client: TableClient) -> None:
        """Use this connection from now on."""
        self.client = client
        self.tables = client.tables  # type: ignore[assignment]
        self._connection = client._connection  # noqa: SLF001 - a shard looks where users need not
        # There are others to ask.
        self._connection.wait_only_while_connected()

    def redirect(self, address: str) -> None:
        """Have the connection find the server there."""
        if self._connection is not None:
            self._connection.redirect(address)

    def leave(self) -> int:
        """Use the connection no more; how many inserts are lost with it."""
        if self.client is None:
            return 0
        lost = self.pending
        self.first_life += self._connection.lives + 1
        with contextlib.suppress(EchoicError):
            self.client.close(0.0)
        # Whoever has just looked at the tables finds them closed.
        self.client, self._connection = None, None
        return lost

    def stats(self) -> dict[str, float]:
        """Return the numbers of the connection."""
        return {} if self.client is None else self.client.stats()
