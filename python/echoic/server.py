"""The server: what a learner makes, and what workers in its process push to."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from echoic import _native
from echoic._progress import working
from echoic.checkpointer import Checkpointer, Schedule
from echoic.errors import CheckpointWarning, ClosedError, EchoicError, JournalWarning
from echoic.transports import ShmTransport, Transport

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from echoic.rollouts import RolloutTable
    from echoic.table import Table
    from echoic.watch import Observation
    from echoic.weights import WeightStore

__all__ = ["Server"]


@cache
def _release() -> str:
    """Return which release this is; looking it up reads files, and imports much."""
    from importlib.metadata import version

    return version("echoic")


def _check_tables(tables: Sequence[Table]) -> None:
    """Refuse what can't be served as a table."""
    for table in tables:
        if not isinstance(table, _native.Table) or isinstance(table, _native.RemoteTable):
            module, name = type(table).__module__, type(table).__name__
            hint = "; give rollout tables as rollouts=[...]"
            raise TypeError(
                f"tables must be Table objects such as Table('replay', capacity=1000), got a {name}"
                f"{hint if module.startswith('echoic.rollouts') else ''}"
            )


def _rollout_tables(tables: Sequence[RolloutTable]) -> list[RolloutTable]:
    """Look at what is to be served as rollout tables."""
    if not tables:
        return []
    # Who has rollout tables has imported it; for all others it would be in vain.
    from echoic.rollouts import RolloutTable

    for table in tables:
        if not isinstance(table, RolloutTable):
            raise TypeError(
                "rollouts must be RolloutTable objects such as "
                f"RolloutTable('math', {{'tokens': 'int32'}}, batch_groups=8), got a "
                f"{type(table).__name__}"
            )
    return list(tables)


class Server(_native.Server):
    """A stream of samples, handed out in batches of a fixed size; or tables; or both.

    A server with an example has a stream. Producers call :meth:`add` from any number of
    threads; each sample is copied once, into its place in a pre-allocated ring. Consumers call
    :meth:`sample` and get numpy views of that place. The methods that run per sample live in the
    native base class. With ``tables`` it has those.

    Args:
        example: A sample of the stream as all others will be: nested dicts, tuples, lists,
            namedtuples, dataclasses or nodes registered with optree, with arrays or scalars as
            leaves. Only its structure, dtypes and shapes matter.
        batch_size: How many samples make a batch.
        capacity: How many samples fit, rounded up to whole batches: at least 2 batches, 4 when
            ``None``. Producers wait while all are full or held.
        tables: :class:`~echoic.Table` objects with different names.
        checkpointer: Where and when tables, and what nobody took yet of the stream, are written to
            disk.
        journal: The directory of the journals of those tables that have a durability; it is made if
            it is not there. What they tell is there again when the server is made, on top of the
            newest checkpoint if there is one.
        rollouts: :class:`~echoic.rollouts.RolloutTable` objects with different names. They are
            closed with the server; :meth:`close` says what their clients hear of it.
        weights: What the learner publishes for the workers. It is closed with the server.
        transport: How workers in other processes connect: a :class:`~echoic.TcpTransport` or
            another, or several; ``None`` for this process only. They are opened by :meth:`start`.
        held_warning_after: After how many seconds a batch that is still held, while producers wait
            for memory, is worth a :class:`~echoic.errors.HeldBatchesWarning`.

    Raises:
        SpecError: The example can't be stored, and why.
        MemoryError: The batches do not fit into memory.
        ValueError: A table has a durability, and there is no ``journal``.
        JournalError: A journal is damaged, or does not belong to the table or the checkpoint.
            Nothing was loaded.
        OSError: A journal can't be read or written, or another process writes it.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server
        >>> example = {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}
        >>> with Server(example, batch_size=2) as server:
        ...     for step in range(2):
        ...         obs = np.full(4, step, np.float32)
        ...         server.add({"obs": obs, "reward": np.float32(step)})
        ...     sample = server.sample()
        >>> sample["obs"].shape
        (2, 4)
        >>> sample["reward"]
        array([0., 1.], dtype=float32)
    """

    # Transports that are not open yet.
    _waiting: list[Transport]
    _tables: list[Table]
    _rollouts: list[RolloutTable]
    _weights: WeightStore | None
    _schedule: Schedule | None
    # Why the last scheduled checkpoint was not made.
    _checkpoint_error: Exception | None

    def __new__(
        cls,
        example: Any = None,
        batch_size: int | None = None,
        capacity: int | None = None,
        transport: Transport | Sequence[Transport] | None = None,
        *,
        tables: Sequence[Table] = (),
        checkpointer: Checkpointer | None = None,
        journal: str | os.PathLike[str] | None = None,
        rollouts: Sequence[RolloutTable] = (),
        weights: WeightStore | None = None,
        held_warning_after: float = 10.0,
    ) -> Self:
        """Allocate the ring; see the class for the arguments."""
        others = bool(tables or rollouts or weights is not None)
        if batch_size is None and (example is not None or not others):
            raise TypeError(
                "a stream needs an example and a batch_size, or give tables, rollouts or weights"
            )
        stream = None if batch_size is None else (example, batch_size, capacity)
        if transport is None:
            transports: list[Transport] = []
        elif isinstance(transport, (list, tuple)):
            transports = list(transport)
        else:
            transports = [cast("Transport", transport)]
        for one in transports:
            if not isinstance(one, Transport):
                raise TypeError(
                    "transport must be a transport such as TcpTransport(port=50051), or several, "
                    f"got a {type(one).__name__}"
                )
        _check_tables(tables)
        if journal is None:
            for table in tables:
                if getattr(table, "durability", "none") != "none":
                    raise ValueError(
                        f"table {table.name!r} has durability {table.durability!r}, which needs a "
                        "place to write to: give the server journal=DIRECTORY"
                    )
        rollouts = _rollout_tables(rollouts)
        shared = any(isinstance(one, ShmTransport) for one in transports)
        checkpoints = None if checkpointer is None else (checkpointer.root, checkpointer.keep)
        self = super().__new__(
            cls,
            stream,
            held_warning_after,
            shared,
            list(tables),
            checkpoints,
            weights,
            [table._native for table in rollouts],
        )
        self._waiting = transports
        self._tables = list(tables)
        self._rollouts = list(rollouts)
        self._weights = weights
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

    def version(self) -> int:
        """Return the version that the learner has published last, in all rollout tables.

        Where tables have several, it is the lowest: what they all have reached.

        Raises:
            RolloutError: The server has no rollout tables.
        """
        from echoic.rollouts.table import common_version

        return common_version(self._rollouts)

    def publish_version(self, version: int) -> None:
        """Say that the learner has a later version of the policy, to all rollout tables.

        Raises:
            RolloutError: It is below that of one of them, and none was told; or there are none.
        """
        from echoic.rollouts.table import publish_everywhere

        publish_everywhere(self._rollouts, version)

    @property
    def port(self) -> int:
        """The port of the TCP or TLS transport, once the server was started.

        Raises:
            ValueError: If there is none, or more than one: see :attr:`addresses`.
        """
        found = [one for one in self.addresses if one.startswith(("tcp://", "tls://"))]
        if len(found) != 1:
            hint = "" if self.addresses else "; a server has addresses once start() opened them"
            raise ValueError(
                f"expected one TCP or TLS address, got {len(found)} among {self.addresses}{hint}"
            )
        return int(found[0].rpartition(":")[2])

    def start(self) -> Self:
        """Open the doors to other processes; returns the server.

        Without a transport there are none: ``add`` and ``sample`` work as soon as the server is
        made. Starting again changes nothing.

        Raises:
            OSError: A port or path can't be had; the message says which and why.
            ValueError: An address that other machines can reach was given no token.
        """
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
        """Close the doors, end intake and wake everyone who waits; see the native class."""
        if self._schedule is not None:
            self._schedule.stop()
        super().close(drain, restart)

    def batches(self, *, device: Any = None) -> Iterator[_native.Batch]:
        """Yield batches until the server is closed and all complete ones were taken.

        The loop variable keeps its batch while the next one is awaited, whose memory
        is not free until then.

        Args:
            device: Where batches get tensors of PyTorch; numpy arrays when ``None``. For a device
                other than the CPU, the next batch is taken and copied while one is used, so one
                is lost where a loop ends early.
        """
        if device is not None:
            from echoic.tensors import iterate

            yield from iterate(self.sample, device)
            return
        try:
            while True:
                # Not through a variable: this frame would keep the batch as well.
                yield self.sample()
        except ClosedError:
            return

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
