"""The server: what other processes reach stores of this process through."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic import _native
from echoic._progress import working
from echoic.checkpointer import Checkpointer, Schedule
from echoic.errors import CheckpointWarning, ClosedError, EchoicError, JournalWarning
from echoic.transports import Listener, Transport

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from typing_extensions import Self

    from echoic.rollouts import RolloutTable
    from echoic.stream import Stream
    from echoic.table import Table
    from echoic.tls import Tls
    from echoic.watch import Observation
    from echoic.weights import WeightStore

__all__ = ["Server"]


@cache
def _release() -> str:
    """Return which release this is; looking it up reads files, and imports much."""
    from importlib.metadata import version

    return version("echoic")


def _by_kind(
    stores: tuple[Stream | Table | RolloutTable | WeightStore, ...],
) -> tuple[Stream | None, list[Table], list[RolloutTable], WeightStore | None]:
    """Return the stores by kind.

    Raises:
        TypeError: If one can't be served, if there are none, or several of a kind with one.
    """
    streams: list[Any] = []
    tables: list[Any] = []
    rollouts: list[Any] = []
    weights: list[Any] = []
    # A program that has a rollout table has imported its module, which takes a while.
    module = sys.modules.get("echoic.rollouts.table")
    for store in stores:
        if isinstance(store, _native.Stream):
            streams.append(store)
        elif isinstance(store, _native.Table) and not isinstance(store, _native.RemoteTable):
            tables.append(store)
        elif isinstance(store, _native.WeightStore):
            weights.append(store)
        elif module is not None and isinstance(store, module.RolloutTable):
            rollouts.append(store)
        else:
            raise TypeError(
                "expected stores of this process, each a Stream, Table, RolloutTable or "
                f"WeightStore, got a {type(store).__name__}"
            )
    if not stores:
        raise TypeError("expected at least one store to serve, such as a Table, got none")
    for kind, found in (("Stream", streams), ("WeightStore", weights)):
        if len(found) > 1:
            raise TypeError(f"expected at most one {kind}, got {len(found)}")
    return next(iter(streams), None), tables, rollouts, next(iter(weights), None)


class Server(_native.Server):
    """Serves stores of this process to other processes.

    Args:
        *stores: At most one :class:`~echoic.Stream`, any number of :class:`~echoic.Table` and
            :class:`~echoic.rollouts.RolloutTable` objects with different names, and at most one
            :class:`~echoic.WeightStore`. :meth:`close` closes them.
        listen: The addresses that :meth:`start` opens: ``"tcp://127.0.0.1:5555"`` (port 0 is any
            free one), ``"tls://0.0.0.0:5555"``, ``"unix:///path"`` or ``"shm://name"``; one, or a
            list. Instead of an address there may be a :class:`~echoic.transports.Listener`, which
            has its own settings, or another :class:`~echoic.transports.Transport`. ``None`` for
            this process only.
        token: A secret that clients must have. It is proven without being sent.
        tls: The certificate and key for ``tls://`` addresses, and with ``ca`` the authority that
            must have signed the clients' certificates.
        insecure: Allow addresses that other machines can reach without a token.
        max_connections: Clients that may be connected to an address; the next is refused.
        heartbeat: Seconds of silence after which each side sends a sign of life. A side that is
            silent for three times as long is taken for dead.
        threads: Event loops of each address: half the cores, at most 4, when ``None``.
        checkpointer: Where and when tables, and unread samples of the stream, are written to disk.
        journal: The directory of the journals of those tables that have a durability; it is made if
            it does not exist. Its items are loaded when the server is made, on top of the newest
            checkpoint if there is one.

    Raises:
        TypeError: If a store can't be served, or an address is no string.
        MemoryError: If the stream's batches do not fit into memory.
        ValueError: If two tables have one name, if the stream belongs to another server or was used
            before and can't be shared over ``shm://``, or if a table has a durability and there is
            no ``journal``; or if ``tls`` is given and no address is ``tls://``.
        JournalError: If a journal is damaged, or does not belong to the table or the checkpoint.
            Nothing was loaded.
        OSError: If a journal can't be read or written, or another process writes it.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, Stream, connect
        >>> stream = Stream({"obs": np.zeros(4, np.float32)}, batch_size=2)
        >>> with Server(stream, listen="tcp://127.0.0.1:0") as server:
        ...     with connect(server.address).stream({"obs": np.zeros(4, np.float32)}) as worker:
        ...         worker.extend({"obs": np.ones((2, 4), np.float32)})
        ...     print(stream.sample()["obs"].sum())
        8.0
    """

    # Transports that are not open yet.
    _waiting: list[Transport]
    _tables: list[Table]
    _rollouts: list[RolloutTable]
    _weights: WeightStore | None
    _stream: Stream | None
    _schedule: Schedule | None
    # Why the last scheduled checkpoint was not made.
    _checkpoint_error: Exception | None

    def __new__(
        cls,
        *stores: Stream | Table | RolloutTable | WeightStore,
        listen: str | Transport | Sequence[str | Transport] | None = None,
        token: str | bytes | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        max_connections: int = 4096,
        heartbeat: float = 5.0,
        threads: int | None = None,
        checkpointer: Checkpointer | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Take the stores; see the class for the arguments."""
        stream, tables, rollouts, weights = _by_kind(stores)
        several = (
            listen if isinstance(listen, (list, tuple)) else [] if listen is None else [listen]
        )
        transports: list[Transport] = []
        for one in several:
            # A path has a method `open`, too.
            if isinstance(one, Transport) and not isinstance(one, Path):
                transports.append(one)
                continue
            if not isinstance(one, str):
                raise TypeError(
                    "expected addresses such as 'tcp://127.0.0.1:5555' in listen, got a "
                    f"{type(one).__name__}"
                )
            transports.append(
                Listener(
                    one,
                    token=token,
                    tls=tls if one.startswith("tls://") else None,
                    insecure=insecure,
                    max_connections=max_connections,
                    heartbeat=heartbeat,
                    threads=threads,
                )
            )
        if tls and not any(one.tls for one in transports if isinstance(one, Listener)):
            raise ValueError(f"tls= needs a tls:// address in listen, got {listen!r}")
        if journal is None:
            for table in tables:
                if getattr(table, "durability", "none") != "none":
                    raise ValueError(
                        f"table {table.name!r} has durability {table.durability!r}, which needs a "
                        "place to write to: give the server journal=DIRECTORY"
                    )
        shared = any(str(getattr(one, "address", "")).startswith("shm://") for one in transports)
        checkpoints = None if checkpointer is None else (checkpointer.root, checkpointer.keep)
        self = super().__new__(
            cls,
            stream,
            shared,
            list(tables),
            checkpoints,
            weights,
            [table._native for table in rollouts],
        )
        self._waiting = transports
        self._tables = tables
        self._rollouts = rollouts
        self._weights = weights
        self._stream = stream
        self._schedule = None
        self._checkpoint_error = None
        self._bring_back(checkpointer, journal)
        if checkpointer is not None and checkpointer.every is not None:
            self._schedule = Schedule(checkpointer.every, self._try_checkpoint)
        return self

    def _bring_back(
        self, checkpointer: Checkpointer | None, journal: str | os.PathLike[str] | None
    ) -> None:
        """Give the tables what a checkpoint and journals have, and begin to write the latter."""
        root = None
        if (
            checkpointer is not None
            and checkpointer.load
            and _native.list_checkpoints(checkpointer.root)
        ):
            root = checkpointer.root
        if journal is None:
            if root is not None:
                with working(f"loading the newest checkpoint in {root}"):
                    self._load(root)
            return
        with working(f"restoring from {journal}"):
            recovered = self._recover(Path(journal), root)
        for table, (_, torn) in recovered.items():
            if torn is not None:
                count, what, lost = torn
                warnings.warn(
                    f"the journal of table {table!r} ends in {count} bytes that are no whole "
                    f"record ({what}), which were dropped. A crash in the middle of a write leaves "
                    "such an end, and then nothing acknowledged is lost. If the disk or the "
                    f"machine failed, up to {lost} acknowledged items may be lost, or changes of "
                    "items",
                    JournalWarning,
                    stacklevel=3,
                )

    def stats(self) -> Observation:
        """Return all numbers and connections, as ``Connection.server_stats`` has them."""
        from echoic.watch import observation

        return observation(_release(), *self._stats())

    @property
    def version(self) -> int:
        """The version that the learner has published last, in all rollout tables.

        Where tables have several, it is the lowest: what they all have reached.

        Raises:
            RolloutError: The server has no rollout tables.
        """
        from echoic.rollouts.table import common_version

        return common_version(self._rollouts)

    def publish_version(self, version: int) -> None:
        """Say that the learner has a later version of the policy, to all rollout tables.

        Raises:
            RolloutError: If it is below the version of one of them, or if the server has none.
        """
        from echoic.rollouts.table import publish_everywhere

        publish_everywhere(self._rollouts, version)

    @property
    def address(self) -> str:
        """The address that clients connect to, once the server was started.

        Raises:
            ValueError: If there is none, or more than one: see :attr:`addresses`.
        """
        if len(self.addresses) != 1:
            hint = "" if self.addresses else "; a server has addresses once start() opened them"
            raise ValueError(f"expected one address, got {len(self.addresses)}{hint}")
        return self.addresses[0]

    def start(self) -> Self:
        """Open the addresses of ``listen``; returns the server.

        Starting again changes nothing.

        Raises:
            OSError: A port or path can't be had; the message says which and why.
            ValueError: An address that other machines can reach was given no token.
            ClosedError: The server is closed.
        """
        if self.closed:
            raise ClosedError(f"{self!r} can't be started again: make another one")
        while self._waiting:
            self._waiting[0].open(self)
            del self._waiting[0]
        return self

    def _try_checkpoint(self) -> None:
        """Make a checkpoint; what goes wrong is warned of, and tried again next time."""
        try:
            self.checkpoint()
            self._checkpoint_error = None
        except ClosedError:
            return
        except (OSError, EchoicError) as error:
            self._checkpoint_error = error
            warnings.warn(f"no checkpoint was made: {error}", CheckpointWarning, stacklevel=1)

    def close(self, drain: float = 1.0, restart: bool | None = None) -> None:
        """Close the listeners, then the stores; see the native class."""
        if self._schedule is not None:
            self._schedule.stop()
        super().close(drain, restart)

    def __repr__(self) -> str:
        """Return the addresses, and whether the server is closed."""
        return f"Server({', '.join(self.addresses)}{', closed' if self.closed else ''})"

    def _repr_html_(self) -> str:
        """Show the server in a notebook."""
        from echoic.views.notebook import server_html

        return server_html(self)

    def __enter__(self) -> Self:
        """Start the server."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Close the server."""
        self.close()
