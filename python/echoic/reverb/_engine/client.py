"""Connect to a server: with one connection for requests, and one for each writer.

Writers have their own connections because a table that blocks inserts holds back everything that is
sent after them on the same connection. A server of this process needs no connection.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

import echoic
from echoic.errors import ClosedError, DisconnectedError, RefusedError
from echoic.reverb._engine import values
from echoic.reverb._engine.errors import as_reverb
from echoic.reverb._engine.sampler import Sampler
from echoic.reverb._engine.server import server_of_this_process, stopped_in_this_process, token
from echoic.reverb._engine.structured import StructuredWriter
from echoic.reverb._engine.table import columns_of, fields_of_info, is_ours
from echoic.reverb._engine.trajectory import TrajectoryWriter
from echoic.reverb._engine.values import array, unmixed
from echoic.reverb._engine.writer import Writer, check_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from echoic import Connection, Table
    from echoic import TrajectoryWriter as TrajectoryWriter_
    from echoic.reverb import _signature
    from echoic.reverb._engine.server import Server
    from echoic.reverb._engine.trajectory import ChunkerOptions
    from echoic.reverb.cc.patterns_pb2 import StructuredWriterConfig

__all__ = ["Client", "TimeoutExceeded"]

T = TypeVar("T")

# Dtypes and shapes of the items of each table.
Signatures: TypeAlias = "dict[str, tuple[_signature.Column, ...] | None]"

# Seconds that a checkpoint waits for the server.
_CHECKPOINT_PATIENCE = 2.0

# Seconds that a sampler waits for another server after one of this process was stopped.
_STOPPED_PATIENCE = 1.0

# The most forms of data for which writers are kept.
_MOST_FORMS = 32

_SCHEMES = ("tcp://", "tls://", "unix://", "shm://")


class TimeoutExceeded(RuntimeError):
    """A server did not answer in time."""

    def __init__(self) -> None:
        super().__init__("Deadline Exceeded")


def _parts(server_name: str) -> tuple[str, str, int]:
    """Return the address, host and port of a gRPC target."""
    if not isinstance(server_name, str):
        raise TypeError(f"the address of a server is text, got {server_name!r}")
    if server_name.startswith(_SCHEMES):
        return server_name, "", 0
    name = server_name
    for prefix in ("grpc://", "dns:", "ipv4:", "ipv6:"):
        name = name.removeprefix(prefix)
    name = name.rpartition("/")[2]
    host, _, port = name.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"expected the address of a server, HOST:PORT, got {server_name!r}")
    return f"tcp://{name}", host, int(port)


def _in_time(ask: Callable[[], T], timeout: float) -> T:
    """Return an answer within a timeout, from a server that may go away meanwhile."""
    answers: list[T | Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # raised in the calling thread
            answers.append(error)

    asking = threading.Thread(target=run, name="echoic-ask", daemon=True)
    asking.start()
    asking.join(timeout)
    if not answers:
        raise TimeoutExceeded
    [answer] = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def _wait_until_connected(tables: Connection, timeout: float) -> None:
    """Wait for a server that is away."""
    deadline = time.monotonic() + timeout
    while not tables._link.connected:
        if time.monotonic() >= deadline:
            raise TimeoutExceeded
        time.sleep(0.01)


class Inserters:
    """Idle writers of single items, by form. One that failed or was interrupted is not reused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: OrderedDict[Any, deque[TrajectoryWriter_]] = OrderedDict()
        # The connection or server that the writers belong to.
        self._source: Any = None

    def take(
        self, form: Any, source: Any, make: Callable[[], TrajectoryWriter_]
    ) -> TrajectoryWriter_:
        """Return a writer that no other thread uses."""
        with self._lock:
            if self._source is not source:
                self._idle.clear()
                self._source = source
            idle = self._idle.get(form)
            if idle:
                self._idle.move_to_end(form)
                return idle.pop()
        return make()

    def give_back(self, form: Any, source: Any, writer: TrajectoryWriter_) -> None:
        """Return a writer for reuse, once its item is in its tables."""
        with self._lock:
            if self._source is source:
                self._idle.setdefault(form, deque()).append(writer)
                if len(self._idle) > _MOST_FORMS:
                    self._idle.popitem(last=False)


class Client:
    """A client of the server at an address: see :class:`echoic.reverb.Client`."""

    def __init__(self, server_name: str) -> None:
        self._address, self._host, self._port = _parts(server_name)
        self._begin()

    def _begin(self) -> None:
        """Reset to no connections, in this process."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._tables: Connection | None = None
        self._inserters = Inserters()
        # The signatures of a server's tables, and the connection that they came from.
        self._signatures: tuple[Connection | None, Signatures] = (None, {})

    def _connect(self, timeout: float | None = None, **options: Any) -> Connection:
        wait = float("inf") if timeout is None else timeout
        settings = {"token": token(), "reconnect": None, "timeout": wait, **options}
        connection = echoic.connect(self._address, **settings)
        try:
            connection.tables
        except RefusedError as error:
            raise RuntimeError(str(error)) from error
        return connection

    def _leave_parent(self) -> None:
        """Drop the parent's connections in a forked child."""
        if self._process != os.getpid():
            self._begin()

    def _server(self) -> Server | None:
        """Return the server, if it is in this process."""
        return server_of_this_process(self._host, self._port)

    def tables(self, timeout: float | None = None) -> Connection:
        """Wait for the server and return its tables.

        Raises:
            TimeoutExceeded: If it was not there in time.
        """
        server = self._server()
        if server is not None:
            return server.tables
        self._leave_parent()
        # Another thread may hold it while it waits for the server for longer.
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutExceeded
        try:
            # A connection gives up for good if the server comes back with other tables.
            if self._tables is None or self._tables._link.over:
                self._tables = self._connect(timeout)
            tables = self._tables
        except DisconnectedError:
            if timeout is None:
                raise
            raise TimeoutExceeded from None
        finally:
            self._lock.release()
        if timeout is not None:
            _wait_until_connected(tables, timeout)
        return tables

    def _table(self, name: str) -> Table:
        return cast("Table", self.tables().table(name))

    def check_stopped(self) -> None:
        """Raise an error if the server was one of this process and was stopped.

        Raises:
            RuntimeError: If it was, and there is no other one at its address.
        """
        stopped = stopped_in_this_process(self._host, self._port)
        if stopped and not self.is_reached(_STOPPED_PATIENCE):
            raise RuntimeError(
                f"the server at {self._host}:{self._port} was stopped; sample before stop(), "
                "or start another server at this port"
            )

    def is_reached(self, timeout: float) -> bool:
        """Wait for the server; return whether it was there in time."""
        try:
            self.tables(timeout)
        except TimeoutExceeded:
            return False
        return True

    def _source(self, name: str) -> tuple[Table, int]:
        table = self._table(name)
        return table, table.stats().max_times_sampled or 0

    def signatures(self) -> Signatures:
        """Return the dtypes and shapes of the items of each table."""
        tables = self.tables()
        known, signatures = self._signatures
        if known is not tables:
            found = tables.tables.items()
            signatures = {name: columns_of(table.metadata) for name, table in found}
            self._signatures = (tables, signatures)
        return signatures

    def Insert(self, leaves: list[Any], priorities: Mapping[str, float]) -> None:
        """Insert one item of one step into tables, and wait until it is there."""
        step = tuple(array(leaf) for leaf in leaves)
        while True:
            server = self._server()
            try:
                return self._insert(step, priorities, server)
            except RuntimeError as error:
                stopped = server is not None and server is not self._server()
                if not stopped or not isinstance(error.__cause__, ClosedError):
                    raise
                # Wait for another server, as when the insert begins after the stop.

    def _insert(
        self,
        step: tuple[np.ndarray[Any, Any], ...],
        priorities: Mapping[str, float],
        server: Server | None,
    ) -> None:
        form = tuple((leaf.dtype, leaf.shape) for leaf in step)
        self._leave_parent()
        signatures = self.signatures()
        for table in priorities:
            check_signature(signatures, values.name(table), [form])
        numbers = [values.priority(priority) for priority in priorities.values()]
        source = server or self.tables()
        with as_reverb():
            writer = self._inserters.take(form, source, lambda: self._new_inserter(server))
            writer.append(step)
            for table, priority in zip(priorities, numbers, strict=True):
                writer.create_item(table, priority, last=1)
            writer.end_episode()
        self._inserters.give_back(form, source, writer)

    def _new_inserter(self, server: Server | None) -> TrajectoryWriter_:
        # There is just one item to send, so waiting for more would only delay it.
        tables = self._connect(linger=0.0) if server is None else server.tables
        return tables.trajectory_writer(1, chunk_length=1, encoding="auto")

    def NewWriter(
        self, chunk_length: int, max_timesteps: int, delta_encoded: bool, max_in_flight_items: int
    ) -> Writer:
        """Make a writer of items of the last steps."""
        settings = (chunk_length, max_timesteps, delta_encoded, max_in_flight_items)
        return Writer(self._connect(), self.signatures(), *settings)

    def NewTrajectoryWriter(
        self, chunker_options: ChunkerOptions, validate_items: bool
    ) -> TrajectoryWriter:
        """Make a writer of items of any steps, with these settings of its columns."""
        signatures = self.signatures() if validate_items else None
        return TrajectoryWriter(self._connect(), chunker_options, signatures)

    def NewStructuredWriter(self, configs: Sequence[StructuredWriterConfig]) -> StructuredWriter:
        """Make a writer of items by patterns."""
        return StructuredWriter(self._connect(), configs)

    def NewSampler(
        self, table: str, max_samples: int, buffer_size: int = 1, timeout: float | None = None
    ) -> Sampler:
        """Make a sampler, which yields items of a table one after the other."""
        values.positive(buffer_size=buffer_size)
        if max_samples < 1 and max_samples != -1:
            raise ValueError(f"max_samples ({max_samples}) must be -1 or >= 1")
        values.name(table)
        self.check_stopped()
        return Sampler(lambda: self._source(table), table, max_samples, timeout)

    def MutatePriorities(
        self, table: str, updates: Sequence[tuple[int, float]], deletes: Sequence[int]
    ) -> None:
        """Change priorities and remove items; keys of missing items are ignored."""
        with as_reverb(table):
            known = self._table(table)
            if updates:
                keys = [key for key, _ in updates]
                priorities = [values.priority(priority) for _, priority in updates]
                known.update_priorities(unmixed(table, keys), np.array(priorities))
            if deletes:
                known.remove(unmixed(table, deletes))

    def Reset(self, table: str) -> None:
        """Remove all items of a table, and reset its counts."""
        with as_reverb(table):
            self._table(table).clear()

    def ServerInfo(self, timeout: float = 0) -> list[dict[str, Any]]:
        """Return the fields of a ``TableInfo`` for each table that was made by this module.

        Raises:
            TimeoutExceeded: If the server was away for ``timeout`` seconds; 0 waits for ever.
        """
        tables = self.tables(timeout or None).tables

        def ask() -> list[dict[str, Any]]:
            with as_reverb():
                return [
                    fields_of_info(table.stats(), table.metadata)
                    for _, table in sorted(tables.items())
                    if is_ours(table.metadata)
                ]

        return _in_time(ask, timeout) if timeout else ask()

    def Checkpoint(self) -> str:
        """Write a checkpoint on the server; return its path. Fails soon if the server is away."""
        server = self._server()
        if server is not None:
            server.check_checkpoints()
        try:
            [path] = self.tables(_CHECKPOINT_PATIENCE).checkpoint().values()
            return str(path)
        except (ValueError, TypeError) as error:
            raise RuntimeError(str(error)) from error
