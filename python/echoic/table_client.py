"""The client of tables: the same for tables of this process and for those of a server elsewhere."""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, overload

from echoic import _native
from echoic.errors import EchoicError, TableNotFoundError
from echoic.remote_table import RemoteTable
from echoic.structured_writer import StructuredWriter
from echoic.trajectory_writer import TrajectoryWriter
from echoic.vector_writer import VectorWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from typing_extensions import Self

    from echoic._native import Batch, Tables
    from echoic.batches import Batches
    from echoic.server import Server
    from echoic.sharded.shards import Shards
    from echoic.sharded.table import ShardedTable
    from echoic.structured_writer import Config
    from echoic.table import Table
    from echoic.trajectory_writer import ChunkLength, Encoding

__all__ = ["TableClient"]

# How long a script that ends without closing its clients waits for what they still have to deliver.
_EXIT_TIMEOUT = 5.0
# How long the end of a `with` block waits when an exception ended it.
_ERROR_TIMEOUT = 1.0

_open_clients: weakref.WeakSet[TableClient] = weakref.WeakSet()


class TableClient:
    """Adds to tables and samples from them.

    ``server.client()`` makes one for tables of this process, ``connect(address)`` for those of a
    server elsewhere. One client may be used from many threads.
    """

    def __init__(
        self,
        tables: Iterable[Table | RemoteTable | ShardedTable],
        connection: Tables | Shards | None = None,
        options: Mapping[str, Any] | None = None,
        server: Server | None = None,
    ) -> None:
        """Take the tables together, and the connection that they are reached by or their server."""
        # Of one kind all of them, and so is the connection.
        self._tables: dict[str, Any] = {table.name: table for table in tables}
        self._connection: Any = connection
        self._server = server
        # A copy is another producer: two with one identity would take each other's place.
        self._options = {**(options or {}), "producer": None}
        if connection is not None:
            _open_clients.add(self)

    @property
    def tables(self) -> Mapping[str, Table | RemoteTable | ShardedTable]:
        """The tables by name."""
        return dict(self._tables)

    def table(self, name: str) -> Table | RemoteTable | ShardedTable:
        """Return a table by its name.

        Raises:
            TableNotFoundError: The server has none of this name.
        """
        try:
            found: Table | RemoteTable | ShardedTable = self._tables[name]
        except KeyError:
            known = ", ".join(repr(name) for name in self._tables) or "none"
            raise TableNotFoundError(
                f"there is no table {name!r}; the server has {known}"
            ) from None
        return found

    def add(
        self,
        x: Any,
        priorities: Mapping[str, float],
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add an item to each of some tables.

        Args:
            x: The item.
            priorities: Its priority in each table.
            version: The policy version that made it; the tables' when ``None``.
            timeout: Seconds to wait in each table while its limiter says so; ``None`` waits for
                ever.

        Raises:
            TableNotFoundError: A table is unknown. Nothing is added.
            SpecError: The item is not like a table's spec.
            PriorityError: If a priority is not a finite number >= 0.
            WaitTimeoutError: A limiter did not allow it in time.

        Examples:
            >>> from echoic import Server, Table
            >>> with Server(Table("recent", 0.0, capacity=10)) as server:
            ...     client = server.client()
            ...     client.add(1.5, {"recent": 1.0})
            ...     print(client.sample("recent", 1).data)
            [1.5]
        """
        for name in priorities:
            if name not in self._tables:
                self.table(name)
        for name, priority in priorities.items():
            self._tables[name].add(x, priority, version, timeout)

    def extend(
        self,
        xs: Any,
        table: str,
        priorities: Any = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add many items, given as leaves with a leading axis, to a table with a spec.

        Args:
            xs: The items.
            table: Where to.
            priorities: One for each item; 1 when ``None``.
            version: The policy version that made them; the table's when ``None``.
            timeout: Seconds to wait in total; ``None`` waits for ever.
        """
        self.table(table).extend(xs, priorities, version, timeout)

    def sample(
        self, table: str, n: int = 1, timeout: float | None = None, *, beta: float = 1.0
    ) -> Batch:
        """Draw a batch, all of it at one moment; see ``Table.sample``."""
        return self.table(table).sample(n, timeout, beta)

    def batches(
        self,
        table: str,
        n: int,
        *,
        prefetch: int = 2,
        workers: int = 1,
        timeout: float | None = None,
        beta: float = 1.0,
    ) -> Batches:
        """Iterate over batches of a table that are fetched ahead; see ``Table.batches``.

        Examples:
            >>> import numpy as np
            >>> from echoic import Server, Table
            >>> with Server(Table("numbers", np.int64(0), capacity=100, seed=3)) as server:
            ...     client = server.client()
            ...     client.extend(np.arange(100), "numbers")
            ...     with client.batches("numbers", 4) as batches:
            ...         print(len(next(batches)))
            4
        """
        return self.table(table).batches(
            n, prefetch=prefetch, workers=workers, timeout=timeout, beta=beta
        )

    @overload
    def update_priorities(
        self, table: str, keys: Any, priorities: Any, *, wait: Literal[True] = True
    ) -> int: ...
    @overload
    def update_priorities(
        self, table: str, keys: Any, priorities: Any, *, wait: bool
    ) -> int | None: ...
    def update_priorities(
        self, table: str, keys: Any, priorities: Any, *, wait: bool = True
    ) -> int | None:
        """Change priorities, all at one moment; see ``Table.update_priorities``.

        With ``wait=False`` a learner does not wait for a server elsewhere: updates come before what
        it samples later, and :meth:`flush` waits for them.
        """
        return self.table(table).update_priorities(keys, priorities, wait)

    def remove(self, table: str, keys: Any) -> int:
        """Remove items; returns how many of them were there."""
        return self.table(table).remove(keys)

    def clear(self, table: str) -> None:
        """Remove all items of a table and count from zero."""
        self.table(table).clear()

    def publish_version(self, version: int) -> None:
        """Set the learner's policy version of all tables."""
        for table in self._tables.values():
            table.publish_version(version)

    def trajectory_writer(
        self,
        num_keep_alive_refs: int = 1,
        *,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
    ) -> TrajectoryWriter:
        """Make a writer of trajectories; see :class:`~echoic.TrajectoryWriter`."""
        tables = list(self._tables.values())
        return TrajectoryWriter(tables, num_keep_alive_refs, chunk_length, encoding)

    def vector_writer(
        self,
        num_envs: int,
        num_keep_alive_refs: int = 1,
        *,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
    ) -> VectorWriter:
        """Make a writer for environments that step together; see :class:`~echoic.VectorWriter`."""
        tables = list(self._tables.values())
        return VectorWriter(tables, num_envs, num_keep_alive_refs, chunk_length, encoding)

    def structured_writer(
        self,
        configs: Iterable[Config],
        *,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
    ) -> StructuredWriter:
        """Make a writer of trajectories by patterns; see :mod:`echoic.structured_writer`."""
        return StructuredWriter(list(self._tables.values()), configs, chunk_length, encoding)

    def can_sample(self, table: str, n: int) -> bool:
        """Whether a batch of so many could be sampled now without waiting."""
        return self.table(table).can_sample(n)

    def can_add(self, table: str, n: int = 1) -> bool:
        """Whether so many items could be added now without waiting."""
        return self.table(table).can_add(n)

    def stats(self) -> dict[str, float]:
        """Return the numbers of the connection; those of a table are ``table(name).stats()``.

        It is empty for tables of this process.

        ``items_sent``, ``items_acked`` (in their tables), ``pending`` (not yet), ``held_bytes``,
        ``bytes_sent``, ``writes`` (system calls), ``reconnects``, ``blocked_sends``,
        ``blocked_time`` (seconds) and ``connected`` (0 or 1).
        """
        return {} if self._connection is None else self._connection.stats()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was added and updated before is in the tables.

        In a table with a durability it survives then what that says.

        Raises:
            WaitTimeoutError: It was not in time; it is still being delivered.
            DisconnectedError: The client has given up.
        """
        if self._connection is not None:
            self._connection.flush(timeout)

    def checkpoint(self, timeout: float | None = None) -> Path:
        """Have the server write a checkpoint of everything that it has.

        What this client added before is in it after a :meth:`flush`. All who ask before a
        checkpoint begins share it.

        Args:
            timeout: Seconds to wait; ``None`` waits for ever. A checkpoint that is not ready then
                is written all the same. In the server's process this has no effect.

        Returns:
            Where it is, on the server's machine.

        Raises:
            CheckpointError: There is none, and why. In the server's process ``TypeError`` when it
                has no checkpointer, ``OSError`` when the disk does not take it.
            WaitTimeoutError: It was not ready in time.
        """
        if self._connection is not None:
            place: Path = self._connection.checkpoint(timeout)
            return place
        if self._server is None:
            raise TypeError("these tables have no server that writes checkpoints")
        return self._server.checkpoint()

    def close(self, timeout: float | None = None) -> None:
        """End the client; what it added is delivered first. Tables of this process stay."""
        if self._connection is not None:
            self._connection.close(timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as address and options: the copy connects anew, as another producer."""
        if self._connection is None:
            raise TypeError("tables of this process can't be pickled; connect to their server")
        return connect_again, (self._connection.address, self._options)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Deliver what is left and close; after an exception, not for long."""
        if kind is None:
            self.close()
            return
        # The exception matters more than what it leaves undelivered.
        with contextlib.suppress(EchoicError):
            self.close(_ERROR_TIMEOUT)


def connect_again(address: str, options: Mapping[str, Any]) -> TableClient:
    """Connect to the tables of a server, with options as the native core takes them."""
    connection = _native.connect_tables(address, dict(options))
    tables = [RemoteTable(connection, number) for number in range(len(connection))]
    return TableClient(tables, connection, options)


@atexit.register
def _deliver_at_exit() -> None:
    """Give clients that nobody closed a moment to deliver what they have, all of them together."""
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for client in list(_open_clients):
        # There is nobody left to tell.
        with contextlib.suppress(EchoicError):
            client.close(max(0.0, deadline - time.monotonic()))
