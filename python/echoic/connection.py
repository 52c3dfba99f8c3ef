"""One connection to a server, or to several: its tables, stream, rollouts, weights and numbers."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from echoic import _native, _trees
from echoic._links import Delivers, deadline_in, left_until, link_options, open_links
from echoic.errors import (
    ClosedError,
    EchoicError,
    RefusedError,
    TableNotFoundError,
    WaitTimeoutError,
)
from echoic.patterns import StructuredWriter
from echoic.remote_stream import RemoteStream
from echoic.remote_table import RemoteTable
from echoic.rendezvous import addresses, only_address, secrets_for
from echoic.trajectory_writer import TrajectoryWriter
from echoic.vector_writer import VectorWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from echoic.patterns import Config
    from echoic.rollouts import RolloutTable
    from echoic.server import Server
    from echoic.sharded import ShardedTable
    from echoic.sharded.places import Named
    from echoic.sharded.shards import Key, Shards
    from echoic.stream import Stream
    from echoic.table import Table
    from echoic.tls import Tls
    from echoic.trajectory_writer import ChunkLength, Encoding
    from echoic.watch import Observation, ServerWatch
    from echoic.weights import RemoteWeightStore, WeightStore

    To: TypeAlias = str | Sequence[Named] | Callable[[], Iterable[Named]] | Server

__all__ = ["Connection", "ConnectionStats", "connect"]

# What a connection to a server of this process has for an address.
_LOCAL = "local"
# The most seconds that closing waits for the answers of a server's rollout tables.
_ROLLOUTS_TIMEOUT = 5.0
# Those that a forked child inherits.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


@dataclass(frozen=True)
class ConnectionStats:
    """The numbers of this end of a connection: sums over its links, and over its servers.

    Attributes:
        items_sent: Items of tables and samples of the stream that were sent.
        items_acked: Those that the server has stored.
        pending: Those that it has not stored yet.
        held_bytes: Bytes of items that are kept until they are stored.
        bytes_sent: Bytes sent.
        writes: System calls that sent them.
        reconnects: How often a link was restored.
        blocked_sends: Calls that waited for room.
        blocked_time: Seconds for which they waited.
        connected: How many of the links are connected now.
        dropped_changes: With several servers: changes of items that were dropped because their
            servers were away, or had been since.
    """

    items_sent: int = 0
    items_acked: int = 0
    pending: int = 0
    held_bytes: int = 0
    bytes_sent: int = 0
    writes: int = 0
    reconnects: int = 0
    blocked_sends: int = 0
    blocked_time: float = 0.0
    connected: int = 0
    dropped_changes: int = 0


class Connection(Delivers):
    """Everything that a server has, or several; :func:`connect` returns one.

    It opens a link when a service is first used, one for each kind, and keeps it. What was added is
    delivered in the background, each item exactly once: :meth:`flush` waits for it. When a link
    breaks, it is restored. Several threads may use one connection. A pickled copy connects again,
    as another producer, and so does a forked child; what it has of before the fork raises
    ``ClosedError``.
    """

    _inherited: Mapping[str, Any]

    def __init__(
        self,
        to: To,
        options: Mapping[str, Any],
        seed: int | None = None,
        refresh: float | None = 10.0,
    ) -> None:
        """Store where the servers are, and the options as the native core takes them."""
        if refresh is not None and refresh <= 0:
            raise ValueError(f"refresh must be above 0 seconds, got {refresh}")
        self._server: Any = to if isinstance(to, _native.Server) else None
        self._to: Any = to
        if not (isinstance(to, str) or callable(to) or self._server is not None):
            from echoic.sharded.places import read_places

            if isinstance(to, (bytes, bytearray)) or not isinstance(to, Iterable):
                raise TypeError(
                    "expected an address such as 'tcp://127.0.0.1:5555', a list of them, a "
                    f"function that returns a list, or a Server, got a {type(to).__name__}"
                )
            self._to = list(to)
            read_places(self._to)
        self._options = dict(options)
        self._seed, self._refresh = seed, refresh
        # Guards the links below. It is held while one is opened.
        self._lock = threading.RLock()
        self._closed = False
        # Of the tables: that of one server, or several servers.
        self._link: Any = None
        self._tables: dict[str, Any] | None = None
        self._streams: dict[Any, RemoteStream] = {}
        self._rollout_link: _native.RolloutLink | None = None
        self._rollouts: dict[str, RolloutTable] = {}
        self._weights: dict[int, RemoteWeightStore] = {}
        self._watches: dict[str, ServerWatch] = {}
        _connections.add(self)

    # Services.

    def _opened(self) -> dict[str, Any]:
        """Return the tables by name; connect to them first, if that was not done yet."""
        with self._lock:
            self._check_open()
            if self._tables is None:
                if self._server is not None:
                    found: Any = self._store_of_process("tables", self._server._tables or None)
                elif isinstance(self._to, str):
                    self._link = link = _native.connect_tables(self._to, self._options)
                    found = [RemoteTable(link, number) for number in range(len(link))]
                else:
                    from echoic.sharded.shards import Shards

                    self._link = Shards(self._to, _open_tables, self._options, self._refresh)
                    found = self._link.make_tables(self._seed)
                self._tables = {table.name: table for table in found}
                if self._link is not None:
                    # Not the connection: its tables may outlive it.
                    open_links.add(self._link)
            return self._tables

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the connection to {self._named()} is closed")

    def _one(self, purpose: str) -> str:
        """Return the address of the one server.

        Raises:
            ArgumentError: If there are several.
        """
        return self._to if isinstance(self._to, str) else only_address(purpose, self.addresses)

    @property
    def tables(self) -> Mapping[str, Table | ShardedTable]:
        """The tables by name."""
        return dict(self._opened())

    def table(self, name: str) -> Table | ShardedTable:
        """Return a table by its name.

        Raises:
            TableNotFoundError: If the server has no table of this name.
            DisconnectedError: If no server answers in time.
            RefusedError: If the server refuses this client; the message says why.
            ClosedError: If the connection is closed, as of all methods that return a store.

        Examples:
            >>> from echoic import Server, Table, connect
            >>> with Server(Table("recent", 0.0, capacity=10)) as server:
            ...     table = connect(server).table("recent")
            ...     table.add(1.5)
            ...     print(table.sample(1).data)
            [1.5]
        """
        try:
            tables = self._opened()
            found: Table | ShardedTable = tables[name]
        except KeyError:
            raise _not_found("table", name, tables) from None
        except RefusedError as error:
            raise _no_tables("table", name, error) from None
        return found

    def stream(
        self, example: Any = None, *, producer: bytes | None = None
    ) -> Stream | RemoteStream:
        """Connect to the stream, for samples like the example.

        Args:
            example: A sample as all others will be, like the server's. Not needed for a server of
                this process.
            producer: 16 bytes that identify this process, for a worker that keeps its identity when
                it is restarted; random if ``None``.

        Returns:
            A :class:`~echoic.remote_stream.RemoteStream`, the same for like examples until it is
            closed; of a server of this process its stream itself.

        Raises:
            SpecError: If the server's samples are of another kind; the message says what differs.
            RefusedError: If the server refuses this client, or has no stream; the message says why,
                or what it has.
            DisconnectedError: If no server answers in time.
        """
        self._check_open()
        if self._server is not None:
            stream: Stream = self._store_of_process("stream", self._server._stream)
            return stream
        with self._lock:
            self._check_open()
            key = (producer, _form(example))
            known = self._streams.get(key)
            if known is None or known.closed:
                known = RemoteStream(self._one("a stream"), example, self._options, producer)
                self._streams[key] = known
            return known

    def rollouts(self, name: str | None = None) -> RolloutTable:
        """Return a rollout table by its name; the server's only one when ``None``.

        When the link breaks, it is restored, and requests without an answer are sent again. A
        reservation or a leased batch whose answer was lost ends with its time to live; tokens are
        stored once.

        Raises:
            TableNotFoundError: If the server has no rollout table of this name; or several, and no
                name was given.

        Examples:
            >>> from echoic import RolloutTable, Server, connect
            >>> table = RolloutTable("math", {"tokens": "int32"}, batch_groups=1)
            >>> with Server(table, listen="tcp://127.0.0.1:0") as server:
            ...     with connect(server.address) as connection:
            ...         print(connection.rollouts("math").reserve().add({"tokens": [1, 2, 3]}))
            ...     print(table.sample()["tokens"])
            complete
            [1 2 3]
        """
        self._check_open()
        if self._server is not None:
            found: dict[str, RolloutTable] = {one.name: one for one in self._server._rollouts}
        else:
            with self._lock:
                address, link = self._one("a client of rollouts"), self._rollout_link
                if link is None or link.address != address:
                    self._check_open()
                    from echoic.rollouts import RolloutTable

                    if link is not None:
                        link.close(0.0)
                    try:
                        link = _native.connect_rollouts(address, self._options)
                    except RefusedError as error:
                        raise _no_tables("rollout table", name or "", error) from None
                    self._rollout_link = link
                    self._rollouts = {one.name: RolloutTable._of(one) for one in link.tables()}
                found = self._rollouts
        if name is None and len(found) == 1:
            name = next(iter(found))
        try:
            return found[name or ""]
        except KeyError:
            raise _not_found("rollout table", name or "", found) from None

    def weights(self, capacity: int = 3) -> WeightStore | RemoteWeightStore:
        """Return the server's store of weights; it connects when it is first used.

        Args:
            capacity: How many publications may be in memory of this process, at least 2.
                While all are held, nothing newer is fetched. Those in the server's memory do not
                count.

        Raises:
            RefusedError: If the server of this process has no weights; the message says what it
                has. That of another one says so at the first use.
        """
        self._check_open()
        if self._server is not None:
            store: WeightStore = self._store_of_process("weights", self._server._weights)
            return store
        with self._lock:
            self._check_open()
            from echoic.weights import RemoteWeightStore

            address, known = self._one("a client of weights"), self._weights.get(capacity)
            if known is None or known.closed or known.address != address:
                known = RemoteWeightStore(address, capacity, self._options)
                self._weights[capacity] = known
            return known

    def _store_of_process(self, kind: str, store: Any) -> Any:
        """Return the store; raise, as a server in another process does, if there is none."""
        if store is not None:
            return store
        server = self._server
        known = {
            "a stream": server._stream is not None,
            "tables": bool(server._tables),
            "rollout tables": bool(server._rollouts),
            "weights": server._weights is not None,
        }
        has = ", ".join(name for name, is_there in known.items() if is_there)
        error = RefusedError(f"{server!r} has no {kind}; it has {has} (SERVICE)")
        error.code = "SERVICE"
        raise error

    # Writers of all tables.

    def trajectory_writer(
        self,
        num_keep_alive_refs: int = 1,
        *,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
        shard_key: Key | None = None,
    ) -> TrajectoryWriter:
        """Make a writer of trajectories; see :class:`~echoic.TrajectoryWriter`.

        Args:
            num_keep_alive_refs: As of the class.
            chunk_length: As of the class.
            encoding: As of the class.
            shard_key: With several servers, where each episode goes to one: episodes with equal
                keys go to the same server, in every process. With ``None`` servers take turns.
        """

        def make(tables: list[Any]) -> TrajectoryWriter:
            return TrajectoryWriter(tables, num_keep_alive_refs, chunk_length, encoding)

        shards, tables = self._each()
        if shards is None:
            return make(tables)
        from echoic.sharded import ShardedTrajectoryWriter

        # It has the methods of one server's.
        return cast("TrajectoryWriter", ShardedTrajectoryWriter(shards, make, shard_key))

    def structured_writer(
        self,
        configs: Iterable[Config],
        *,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
        shard_key: Key | None = None,
    ) -> StructuredWriter:
        """Make a writer of trajectories by patterns; see :mod:`echoic.patterns`.

        ``shard_key`` is that of :meth:`trajectory_writer`.
        """
        configs = list(configs)

        def make(tables: list[Any]) -> StructuredWriter:
            return StructuredWriter(tables, configs, chunk_length, encoding)

        shards, tables = self._each()
        if shards is None:
            return make(tables)
        from echoic.sharded import ShardedStructuredWriter

        # It has the methods of one server's.
        return cast("StructuredWriter", ShardedStructuredWriter(shards, make, shard_key))

    def vector_writer(
        self,
        num_envs: int,
        num_keep_alive_refs: int = 1,
        *,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
        shard_key: Key | None = None,
        timeout: float | None = None,
    ) -> VectorWriter:
        """Make a writer for environments that step together; see :class:`~echoic.VectorWriter`.

        With several servers it writes to one of them: the one whose turn it is, or that
        ``shard_key`` belongs to. While that is away, steps wait in this process. With as many
        writers as servers, all fill up alike.

        Args:
            num_envs: As of the class.
            num_keep_alive_refs: As of the class.
            chunk_length: As of the class.
            encoding: As of the class.
            shard_key: As of :meth:`trajectory_writer`.
            timeout: Seconds to wait for a server while all are away; ``None`` waits for
                ``reconnect``.

        Raises:
            WaitTimeoutError: If none of several servers was there in time.
            DisconnectedError: If none was there within ``reconnect``, or the one that the key
                belongs to is away.
        """
        shards, tables = self._each()
        if shards is not None:
            tables = shards.lend(shard_key, timeout)
        return VectorWriter(tables, num_envs, num_keep_alive_refs, chunk_length, encoding)

    def _each(self) -> tuple[Shards | None, list[Any]]:
        """Return the several servers, if there are, and the tables."""
        tables = list(self._opened().values())
        several = not (self._server is not None or isinstance(self._to, str))
        return (self._link if several else None), tables

    # All of it.

    @property
    def address(self) -> str:
        """The address of the server; ``"local"`` for one of this process.

        Raises:
            ArgumentError: If there are several servers.
        """
        return self._one("this connection's `address`")

    @property
    def addresses(self) -> list[str]:
        """The addresses of the servers, by number; ``""`` for one that was removed."""
        if self._server is not None:
            return [_LOCAL]
        if isinstance(self._to, str):
            return [self._to]
        if self._link is not None:
            return [shard.address for shard in self._link.all]
        from echoic.sharded.places import read_places

        places = read_places(self._to() if callable(self._to) else self._to)
        return [place.address or "" for place in places]

    def stats(self) -> ConnectionStats:
        """Return the numbers of this end; it sends no request to a server."""
        total: dict[str, float] = {field.name: 0 for field in fields(ConnectionStats)}
        each = [link.stats() for link in self._senders()]
        numbers = [one if isinstance(one, dict) else one.as_dict() for one in each]
        for name, number in (pair for one in numbers for pair in one.items()):
            known = name.replace("samples_", "items_")
            if known in total:
                total[known] += number
        rollouts = self._rollout_link
        if rollouts is not None:
            total["reconnects"] += rollouts.reconnects
            total["connected"] += rollouts.connected
        whole = {name: int(number) for name, number in total.items() if name != "blocked_time"}
        return ConnectionStats(**whole, blocked_time=float(total["blocked_time"]))

    def server_stats(self, timeout: float = 5.0) -> dict[str, Observation]:
        """Return the state of each server that answers, by address.

        Between two calls this costs a server nothing. A link that was lost is opened again.

        Args:
            timeout: Seconds to wait for the answers.

        Raises:
            RefusedError: If no server answers, and one refuses this client.
            DisconnectedError: If no server answers in time.
            ClosedError: If the connection is closed.

        Examples:
            >>> from echoic import Server, Table, connect
            >>> table = Table("replay", 0.0, capacity=10)
            >>> with Server(table, listen="tcp://127.0.0.1:0") as server:
            ...     table.add(1.5)
            ...     with connect(server.address) as connection:
            ...         [seen] = connection.server_stats().values()
            >>> seen.value("table_items", table="replay")
            1.0
            >>> seen.families["table_items"].help
            'Items in the table.'
        """
        self._check_open()
        if self._server is not None:
            return {_LOCAL: self._server.stats()}
        from echoic.watch import ServerWatch, stats_of

        there = [address for address in self.addresses if address]
        with self._lock:
            for address in there:
                self._watches.setdefault(address, ServerWatch(address, self._options))
            watches = [self._watches[address] for address in there]
        return stats_of(watches, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was added and updated before is in the tables and the stream.

        In a table with a durability it survives then what that says.

        Raises:
            WaitTimeoutError: If it was not in time. It is still being delivered.
            DisconnectedError: If the server was away for longer than ``reconnect``.
        """
        until = deadline_in(timeout)
        for link in self._senders():
            link.flush(left_until(until))

    def _senders(self) -> list[Any]:
        # Without the lock, so that numbers and a flush do not wait for a link that is being opened.
        link = self._link
        return [*self._streams.values(), *([] if link is None else [link])]

    def checkpoint(self, timeout: float | None = None) -> dict[str, Path]:
        """Have each server write a checkpoint of everything that it has.

        What this connection added before is in it after a :meth:`flush`. Requests that come before
        a checkpoint begins share it.

        Args:
            timeout: Seconds to wait; ``None`` waits for ever. A checkpoint that is not ready then
                is written all the same. For a server of this process this has no effect.

        Returns:
            For each address, where it is on that server's machine. With several servers a warning
            names those that are away.

        Raises:
            CheckpointError: If the server could not write it; the message says why. For a server of
                this process ``TypeError`` if it has no checkpointer, ``OSError`` if writing failed.
            WaitTimeoutError: If it was not ready in time.
        """
        self._check_open()
        if self._server is not None:
            return {_LOCAL: self._server.checkpoint()}
        shards, _ = self._each()
        if shards is None:
            return {self._to: self._link.checkpoint(timeout)}
        return shards.checkpoint(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was added, and end all links. A server of this process stays.

        Reservations and leases of rollout tables end with their time to live.

        Args:
            timeout: Seconds to wait; ``None`` waits for as long as the server can be reached.

        Raises:
            WaitTimeoutError: If not everything was delivered in time.
            DisconnectedError: If the server was away for longer than ``reconnect``.
        """
        until = deadline_in(timeout)
        self._closed = True
        # Held by a thread that opens a link.
        if not self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            late = WaitTimeoutError(
                f"timed out: a link to {self._named()} is being opened; close the connection again"
            )
            late.reason = "AWAY"
            raise late
        try:
            senders, rollouts = self._senders(), self._rollout_link
            for store in self._weights.values():
                store.close()
            self._watches.clear()
        finally:
            self._lock.release()
        failed: EchoicError | None = None
        for link in [*senders, *([] if rollouts is None else [rollouts])]:
            left = left_until(until)
            if link is rollouts:
                left = _ROLLOUTS_TIMEOUT if left is None else min(left, _ROLLOUTS_TIMEOUT)
            try:
                link.close(left)
            except EchoicError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    # Several servers.

    def _several(self, what: str) -> Shards:
        if self._server is not None or isinstance(self._to, str):
            raise TypeError(f"{what} is for several servers, and {self._named()} is one")
        self._opened()
        shards: Shards = self._link
        return shards

    @property
    def shards_there(self) -> list[bool]:
        """Which of several servers can be used now, by number."""
        shards = self._several("shards_there")
        shards.look()
        return [shard.there for shard in shards.all]

    @property
    def shards_drained(self) -> list[bool]:
        """Which of several servers get no more inserts, or are removed, by number."""
        every = self._several("shards_drained").all
        return [one.drained or one.draining or one.removed for one in every]

    def refresh(self) -> None:
        """Call the function for the addresses now, if there is one, and apply what it returns.

        Connects to new servers that can be reached before it returns.
        """
        self._several("refresh").refresh()

    def move(self, shard: int, address: str) -> bool:
        """Set the address of one of several servers; return whether it was reached there.

        Inserts that it has not acknowledged are sent there, each item once.
        """
        return self._several("move").move(shard, address)

    def drain(self, shard: int, drained: bool = True) -> None:
        """Send no more inserts to one of several servers; with ``drained=False``, send them again.

        Its items are sampled for as long as it is there. Items with a ``shard_key`` that belongs to
        it go to others. An episode that was begun there ends there. This applies to this connection
        only.
        """
        self._several("drain").drain(shard, drained)

    def move_items(self, shard: int, table: str, timeout: float | None = None) -> int:
        """Move the items of a drained server to those that take inserts; return how many.

        They keep their priorities and versions. They get other keys, count as never sampled and
        as inserts for the limiters, and their order in the table changes. While a part of them, up
        to 16 MiB, is moved, each of these may be drawn on both servers.

        Args:
            shard: The server's number. No other client should insert there any more.
            table: A table of single items, not of trajectories: those share their steps.
            timeout: Seconds to wait in total; items that were not moved by then stay there.

        Raises:
            ValueError: If the server is not drained.
            SpecError: If the table has trajectories.
            DisconnectedError: If the server is away.
            WaitTimeoutError: If it took too long. Items of the last part may be on both servers.
        """
        drained, found = self._several("move_items").numbered(shard), self.table(table)
        moved: int = found.move_items(drained, timeout)  # type: ignore[union-attr]
        return moved

    def remove_shard(self, shard: int) -> None:
        """Remove one of several servers: it is not sampled, and no call waits for it.

        Its position stays, so that keys keep their meaning; :meth:`move` puts a server there again.
        Inserts that it has not acknowledged go to another. This applies to this connection only.

        Raises:
            ValueError: If no other server is there.
        """
        self._several("remove_shard").remove(shard)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle addresses and options: the copy connects again, as another producer."""
        if self._server is not None:
            raise TypeError("a server of this process can't be pickled; connect to its address")
        to = self._to
        if isinstance(to, list) and self._link is not None:
            to = self._link.named()
        return type(self), (to, self._options, self._seed, self._refresh)

    @property
    def _is_opened(self) -> bool:
        """Whether there is a link that :meth:`stats` counts."""
        return bool(self._senders()) or self._rollout_link is not None

    def _named(self) -> str:
        if callable(self._to):
            return repr(self._to) if self._link is None else repr(self.addresses)
        return ", ".join(address for address in self.addresses if address)

    def _repr_html_(self) -> str:
        """Show the connection in a notebook."""
        from echoic.views.notebook import connection_html

        return connection_html(self)

    def __repr__(self) -> str:
        """Return where the servers are."""
        return f"{type(self).__name__}({self._named()})"


def connect(
    to: To | None = None,
    *,
    token: str | bytes | None = None,
    tls: Tls | None = None,
    name: str | None = None,
    timeout: float = 10.0,
    reconnect: float | None = 60.0,
    window_bytes: int = 4 << 20,
    linger: float = 0.0002,
    seed: int | None = None,
    refresh: float | None = 10.0,
) -> Connection:
    """Connect to a server at any kind of address, or to several.

    A link is opened when a service is first used, so errors of connecting come then.

    Args:
        to: ``tcp://host:port``, ``tls://host:port``, ``unix:///path`` or ``shm://name``. A list of
            such, for tables that lie on all these servers together; or a function that returns the
            list, which is called again every ``refresh`` seconds, and each second while a server is
            away, since it may come back at another address. A :class:`~echoic.Server` of this
            process, which needs no link. ``None`` reads the environment: ``ECHOIC_ADDRESSES`` and
            what else :mod:`echoic.rendezvous` describes.
        token: The secret that the server requires.
        tls: The files of this side, for ``tls://``.
        name: What the server's list of connections calls this client: at most 128 bytes of UTF-8
            without control characters. Host and process id, ``"host:pid"``, if ``None``.
        timeout: Seconds to try the first time.
        reconnect: Seconds to try to reconnect to a server that is gone; with several servers,
            seconds that a call waits for one that it needs. ``None`` is no limit.
        window_bytes: Bytes of samples and items that may wait for the server; then ``add`` waits.
        linger: Seconds that a sample may wait for others to share a system call with.
        seed: With several servers: seed of their choice when sampling; random if ``None``.
        refresh: With a function: seconds between two calls of it; ``None`` calls it only while a
            server is away.

    The order of several addresses is part of the items' keys: a server keeps its position, and new
    ones are added at the end. In place of an address there may be ``(address, "draining")`` for a
    server that gets no more inserts, and ``None`` or ``""`` for one that was removed for good. When
    one of several servers goes away, a ``ShardWarning`` says so, and the others are used until it
    is back.

    Raises:
        ArgumentError: If ``to`` is ``None``, and the environment names no server.
        TypeError: If ``to`` has another type.
        ValueError: If several addresses are malformed, a time is negative, or ``refresh`` is not
            above 0.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, Stream, Table, connect
        >>> example = {"obs": np.zeros(4, np.float32)}
        >>> stream = Stream(example, batch_size=2)
        >>> with Server(stream, listen="shm://learner"):
        ...     with connect("shm://learner").stream(example) as worker:
        ...         worker.extend({"obs": np.ones((2, 4), np.float32)})
        ...     print(stream.sample()["obs"].sum())
        8.0

        >>> def serve():
        ...     table = Table("replay", np.int64(0), capacity=1000)
        ...     return Server(table, listen="tcp://127.0.0.1:0")
        >>> with serve() as one, serve() as two:
        ...     with connect([one.address, two.address]) as connection:
        ...         table = connection.table("replay")
        ...         table.extend(np.arange(800))
        ...         connection.flush()
        ...         batch = table.sample(32)
        ...         sizes = [shard.size for shard in table.stats().shards]
        >>> sizes, batch.info.table_size, float(batch.info.probabilities[0])
        ([400, 400], 800, 0.00125)
    """
    if to is None:
        token, tls = secrets_for(token, tls)
        found = addresses(timeout)
        # Of a file also when it names one server, which may move.
        one = found[0] if isinstance(found, list) and len(found) == 1 else None
        to = one if isinstance(one, str) else found
    options = link_options(
        token=token,
        tls=tls,
        name=name,
        timeout=timeout,
        reconnect=reconnect,
        window_bytes=window_bytes,
        linger=linger,
    )
    return Connection(to, options, seed, refresh)


def _connect_in_child() -> None:
    """Forget the links, which are the parent's, and locks that its other threads may have held."""
    open_links.clear()
    for connection in list(_connections):
        if connection._server is not None:
            connection._lock = threading.RLock()
            continue
        if connection._link is not None and not isinstance(connection._to, str):
            connection._link.leave_to_parent()
        closed, links = connection._closed, dict(vars(connection))
        # As of this class: a subclass may have other arguments.
        Connection.__init__(connection, *Connection.__reduce__(connection)[1])
        # Kept, since the end of a link is the parent's to say.
        connection._closed, connection._inherited = closed, links


os.register_at_fork(after_in_child=_connect_in_child)


def _open_tables(address: str, options: Mapping[str, Any]) -> Connection:
    """Connect to the tables of one of several servers."""
    connection = Connection(address, options)
    connection._opened()
    return connection


def _form(example: Any) -> tuple[object, str]:
    """Return the structure of an example, and the dtypes and shapes of its leaves."""
    leaves, structure = _trees.tree_flatten(example)
    # NumPy has no bfloat16 for a tensor.
    arrays = [one if hasattr(one, "dtype") else np.asarray(one) for one in leaves]
    return structure, str([(str(one.dtype), *one.shape) for one in arrays])


def _no_tables(kind: str, name: str, error: RefusedError) -> EchoicError:
    """Return the error for a name on a server that has no tables at all; else the error itself."""
    if error.code != "SERVICE":
        return error
    return TableNotFoundError(f"there is no {kind} {name!r}: {error}")


def _not_found(kind: str, name: str, known: Iterable[str]) -> TableNotFoundError:
    listed = ", ".join(map(repr, known)) or "none"
    return TableNotFoundError(f"there is no {kind} {name!r}; the server has {listed}")
