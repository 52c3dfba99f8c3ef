"""Add the items of a reserved group to a rollout table."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.errors import EchoicError, GroupNotFoundError
from echoic.rollouts import blobs as _blobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    import numpy as np
    from typing_extensions import Self

    from echoic._native import RolloutCall
    from echoic._native import RolloutTable as NativeTable
    from echoic.rollouts.blobs import Blob
    from echoic.rollouts.table import RolloutTable

__all__ = ["ItemProgress", "Reservation"]


class ItemProgress(NamedTuple):
    """An unfinished or finished item of a resumed group."""

    #: Number of its segments.
    segments: int
    #: Whether it has its end: it gets no more tokens.
    finished: bool
    #: Its tokens by column, and under ``"versions"`` the policy version of each token. Columns
    #: whose values have not come are left out.
    columns: dict[str, np.ndarray]


class _Sent(NamedTuple):
    """A request that may have to be undone if it fails."""

    #: Index of the first item.
    item: int
    #: Number of items.
    items: int
    #: Number of the segment in the first item.
    sequence: int
    #: Index of the next free item before the request.
    next: int


class Reservation:
    """The right to make one group, which ends after ``ttl`` seconds without a call.

    :meth:`RolloutTable.reserve` returns one. Every call renews it and returns the status of the
    group: ``"running"``; ``"complete"``; ``"filtered"`` (complete, but removed by the table's
    filter); or ``"rejected"``, ``"expired"``, ``"stale"`` or ``"over"``, after which the producer
    should make another reservation. A group of a server that was restarted without a directory is
    ``"expired"``. :meth:`update` also returns ``"delivered"``.

    As a context manager it gives the group up if an exception ends the block, so that another can
    be made.

    Examples:
        >>> import numpy as np
        >>> from echoic.rollouts import RolloutTable
        >>> table = RolloutTable("math", {"tokens": "int32"}, {"reward": "float32"},
        ...                      group_size=2, batch_groups=1)
        >>> with table.reserve() as reservation:
        ...     print(reservation.add({"tokens": [1, 2, 3]}, {"reward": 0.5}))
        ...     print(reservation.add({"tokens": [1, 2]}, {"reward": 0.0}))
        running
        complete
    """

    def __init__(
        self,
        table: NativeTable,
        hold: tuple[int, int],
        *,
        key: str = "",
        version: int = 0,
        ttl: float = 0.0,
        progress: Mapping[int, ItemProgress] | None = None,
        segments: Mapping[int, int] | None = None,
        status: str = "running",
    ) -> None:
        self._table = table
        self._hold = hold
        #: The producer's name for the group; may be empty.
        self.key = key
        #: The version of tokens that are added without one: the argument of
        #: :meth:`RolloutTable.reserve`, or the learner's version.
        self.version = version
        #: Seconds without a call after which the reservation ends.
        self.ttl = ttl
        #: After :meth:`resume`, the items that other producers have added to, by their index.
        self.progress = dict(progress or {})
        self._status = status
        # Requests without an answer yet.
        self._pending: deque[tuple[RolloutCall, _Sent]] = deque()
        # Segments that were sent of each item, by its index.
        self._segments = {index: item.segments for index, item in self.progress.items()}
        self._segments.update(segments or {})
        self._next = max(self._segments, default=-1) + 1

    @classmethod
    def _of(
        cls,
        table: NativeTable,
        given: tuple[int, int, str, int, float],
        progress: Mapping[int, ItemProgress] | None = None,
    ) -> Self:
        group, attempt, key, version, ttl = given
        return cls(table, (group, attempt), key=key, version=version, ttl=ttl, progress=progress)

    @classmethod
    def resume(
        cls,
        table: RolloutTable,
        *,
        source: str = "",
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Wait for a suspended group of a table, and return a reservation for it.

        The oldest is resumed first. :attr:`progress` has the tokens of its items.

        Args:
            table: The table.
            source: As for :meth:`RolloutTable.reserve`.
            ttl: As for :meth:`RolloutTable.reserve`.
            timeout: Seconds to wait; ``None`` waits forever.

        Raises:
            WaitTimeoutError: If no group was suspended in time.
            ClosedError: If the table is closed.
        """
        native = table._native
        given, items = native.resume_reservation(source, ttl, timeout)
        progress = {
            index: ItemProgress(segments, finished, columns)
            for index, segments, _, finished, columns in items
        }
        return cls._of(native, given, progress)

    @property
    def group(self) -> int:
        """The number of the group."""
        return self._hold[0]

    @property
    def status(self) -> str:
        """The status of the group, after waiting for the answers to all earlier calls.

        Raises:
            EchoicError: If one of those calls failed. Each error is raised once.
        """
        self._collect(everything=True)
        return self._status

    @property
    def ticket(self) -> tuple[int, int]:
        """Identifies the reservation in another process: pass it to ``table.reservation``.

        The other process continues with the items as they are then. Processes that share a group at
        the same time must add different items; :meth:`update` and :meth:`finish` may be called by
        any of them.
        """
        return self._hold

    def add(
        self,
        columns: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
        *,
        item: int | None = None,
        versions: int | Any | None = None,
        blobs: Mapping[str, Blob] | None = None,
        priority: float = 1.0,
        wait: bool = True,
    ) -> str:
        """Add a whole item, or the last segment of one.

        Args:
            columns: For each column of the table, a value of every token. Those that are
                :class:`late <RolloutTable>` may be left out.
            fields: For each field of the table, a value. Those that are late may be left out.
            item: Index of the item in the group, from 0 on; the next free one when ``None``.
                Producers that share a group must pass it.
            versions: The policy version that made the tokens, or one for each token;
                :attr:`version` when ``None``.
            blobs: Bytes, text or arrays to store with the item, by name.
            priority: Weight of the group in the weighted order. Default: 1.
            wait: Whether to wait for the answer of a remote server. With ``False`` the tokens are
                copied and queued, and the last known status is returned; :attr:`status` and
                :meth:`RolloutTable.flush` wait for the answer. A connection has at most 32 calls
                without an answer; the next one waits for the first of them. An error is raised by
                the first of these calls, or by the next call of the reservation. If the next call
                of another reservation raises it, a note names the group, and that call sent
                nothing.

        After a :exc:`KeyboardInterrupt` or a lost connection it is unknown whether the item was
        added. Repeating the call is safe: segments are numbered, and none is added twice.

        Raises:
            SpecError: If a column or field is missing, or has another dtype or length.
            RolloutError: If the item has too many tokens or is finished, or ``item`` is out of
                range.
        """
        index = self._free(1) if item is None else item
        return self._append(index, columns, versions, fields or {}, blobs, priority, wait=wait)

    def extend(
        self,
        item: int,
        columns: Mapping[str, Any],
        *,
        versions: int | Any | None = None,
        wait: bool = True,
    ) -> str:
        """Add a segment to an item that is not complete yet.

        A producer that has to stop can :meth:`suspend` the group. Another producer, also with
        another version of the policy, can :meth:`resume` it. The arguments are those of
        :meth:`add`.
        """
        return self._append(item, columns, versions, None, None, 1.0, wait=wait)

    def finish(
        self,
        item: int,
        fields: Mapping[str, Any] | None = None,
        *,
        blobs: Mapping[str, Blob] | None = None,
        priority: float = 1.0,
        wait: bool = True,
    ) -> str:
        """Mark an item as complete. The arguments are those of :meth:`add`."""
        return self._append(item, None, None, fields or {}, blobs, priority, wait=wait)

    def update(
        self,
        item: int,
        columns: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
    ) -> str:
        """Set whole columns or fields of an item that has tokens or its end.

        These are values that come later, such as a reward or log-probabilities of a reference
        model, from any process that has the :attr:`ticket`. Columns and fields need not be in the
        table's ``late``; the value that comes last counts. A group that is complete by this call is
        filtered and delivered as any other. Values that come after that count too, until the group
        is delivered, but it is not filtered again.

        Args:
            item: Index of the item in the group.
            columns: Any columns of the table, with a value for every token that the item has.
            fields: Any fields of the table.
            wait: As for :meth:`add`.

        Returns:
            The status of the group. After ``"running"`` or ``"complete"`` the values count. After
            any other, nothing was changed: ``"delivered"`` (the group is in a batch, or was
            before), ``"over"``, ``"expired"`` (the reservation has ended), ``"stale"``,
            ``"filtered"`` or ``"rejected"``. If a connection is lost, the call is repeated, and the
            answer can be one of these though the values were taken the first time.

        Raises:
            SpecError: If there is no such column or field, or a value has another dtype.
            RolloutError: If the item has no tokens and no end, or the number of values is not that
                of its tokens.
        """
        # Raise errors of earlier calls before this call sends anything.
        self._collect(everything=wait)
        answer: str | RolloutCall
        try:
            answer = self._table.update(
                self._hold,
                item,
                None if columns is None else dict(columns),
                None if fields is None else dict(fields),
                wait,
            )
        except GroupNotFoundError:
            answer = "expired"
        # There is nothing to undo if it fails.
        return self._note(answer, _Sent(item, 0, 0, self._next))

    def add_items(
        self,
        lengths: Sequence[int] | np.ndarray | None,
        columns: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
        *,
        versions: int | Any | None = None,
        blobs: Iterable[Mapping[str, Blob] | None] | None = None,
        priority: float = 1.0,
        wait: bool = True,
    ) -> str:
        """Add several whole items in one call, which is the fastest way.

        Args:
            lengths: Number of tokens of each item, or ``None`` if each item has arrays of its own.
            columns: For each column, the values of all tokens, item after item. Without
                ``lengths``, a sequence with an array for each item. Arrays of the column's dtype
                are copied once.
            fields: For each field, a value of each item.
            versions: As for :meth:`add`. Without ``lengths``, one version or a sequence with an
                entry for each item: a version, or one for each of its tokens.
            blobs: For each item, its blobs as for :meth:`add`, or ``None``.
            priority: As for :meth:`add`.
            wait: As for :meth:`add`.

        Raises:
            SpecError: If a column or field is missing, has another dtype, or values for another
                number of tokens or items.
            RolloutError: If an item has too many tokens or blobs, or there are too many items.
        """
        # Raise errors of earlier calls before this call sends anything.
        self._collect(everything=wait)
        count = len(next(iter(columns.values()), ()) if lengths is None else lengths)
        sent = _Sent(first := self._free(count), count, 0, self._next)
        version = self.version if versions is None else versions
        answer: str | RolloutCall
        try:
            answer = self._table.append_flat(
                self._hold,
                first,
                lengths,
                dict(columns),
                version,
                dict(fields or {}),
                _blobs.pack_items(blobs),
                priority,
                wait,
            )
        except GroupNotFoundError:
            answer = "expired"
        self._next = max(self._next, first + count)
        self._segments.update(dict.fromkeys(range(first, first + count), 1))
        return self._note(answer, sent)

    def at(self, table: NativeTable) -> Reservation:
        """Return this reservation for another connection to its table, or a restarted table."""
        moved = Reservation(
            table,
            self._hold,
            key=self.key,
            version=self.version,
            ttl=self.ttl,
            progress=self.progress,
        )
        moved._segments, moved._next = dict(self._segments), self._next
        # Requests without an answer may have failed, so they may be repeated.
        for _, sent in reversed(self._pending):
            moved._undo(sent)
        return moved

    def renew(self) -> bool:
        """Keep the reservation for another ``ttl`` seconds; return whether it is still valid."""
        return bool(self._table.renew([self._hold]))

    def fail(self) -> None:
        """Give the group up, so that another can be made."""
        # Errors of pending requests do not matter any more.
        while self._pending:
            self._pending.popleft()[0].forget()
        self._table.fail([self._hold])
        self._status = "rejected"

    def suspend(self) -> None:
        """End the reservation, so that another producer can :meth:`resume` the group."""
        self._collect(everything=True)
        self._table.suspend([self._hold])
        self._status = "expired"

    def _append(
        self,
        item: int,
        columns: Mapping[str, Any] | None,
        versions: int | Any | None,
        fields: Mapping[str, Any] | None,
        blobs: Mapping[str, Blob] | None,
        priority: float,
        *,
        wait: bool = True,
    ) -> str:
        # Raise errors of earlier calls before this call sends anything.
        self._collect(everything=wait)
        sequence = self._segments.get(item, 0)
        answer: str | RolloutCall
        try:
            answer = self._table.append(
                self._hold,
                item,
                sequence,
                None if columns is None else dict(columns),
                self.version if versions is None else versions,
                None if fields is None else dict(fields),
                _blobs.pack(blobs),
                priority,
                wait,
            )
        except GroupNotFoundError:
            # The server was restarted without a directory, so the table is empty.
            answer = "expired"
        sent = _Sent(item, 1, sequence, self._next)
        self._next = max(self._next, item + 1)
        # A call without tokens adds no segment.
        has_tokens = columns is not None and any(len(column) for column in columns.values())
        self._segments[item] = sequence + has_tokens
        return self._note(answer, sent)

    def _free(self, count: int) -> int:
        """Return the index of the first of ``count`` consecutive items that were never sent."""
        first = self._next
        # Items behind a refused one may have been added.
        while used := [index for index in range(first, first + count) if index in self._segments]:
            first = used[-1] + 1
        return first

    def _note(self, answer: str | RolloutCall, sent: _Sent) -> str:
        """Keep the status that a call returned, or the pending call."""
        if not isinstance(answer, str):
            self._pending.append((answer, sent))
            return self._status
        self._status = answer
        return answer

    def _collect(self, *, everything: bool = False) -> None:
        """Process the answers that have arrived, or wait for all."""
        while (entry := next(iter(self._pending), None)) is not None:
            call, sent = entry
            if not everything and not call.is_ready:
                return
            try:
                self._status = call.wait()
            except GroupNotFoundError:
                self._status = "expired"
            except Exception:
                # Refused items may be added again.
                self._undo(sent)
                self._drop(entry)
                raise
            self._drop(entry)

    def _drop(self, entry: tuple[RolloutCall, _Sent]) -> None:
        """Remove the first pending request, unless another thread has."""
        if next(iter(self._pending), None) is entry:
            self._pending.popleft()

    def _undo(self, sent: _Sent) -> None:
        """Free the indices of a request that failed."""
        self._next = min(self._next, sent.next)
        for index in range(sent.item, sent.item + sent.items):
            if sent.sequence == 0:
                self._segments.pop(index, None)
            elif index in self._segments:
                self._segments[index] = min(sent.sequence, self._segments[index])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the group up if an exception ends the block before it is complete."""
        if kind is None:
            return
        # The exception that ended the block must not be replaced by another.
        with contextlib.suppress(EchoicError):
            self._collect(everything=True)
        if self._status == "running":
            with contextlib.suppress(EchoicError):
                self.fail()

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key else ""
        return (
            f"Reservation(group={self.group}{key}, version={self.version}, status={self._status!r})"
        )
