"""The right to make a group."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from echoic.errors import EchoicError, GroupNotFoundError
from echoic.rollouts import blobs as _blobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    import numpy as np
    from typing_extensions import Self

    from echoic._native import RolloutCall
    from echoic._native import RolloutTable as NativeTable
    from echoic.rollouts.blobs import Blob
    from echoic.rollouts.table import RolloutTable

__all__ = ["ItemProgress", "Reservation"]


class ItemProgress(NamedTuple):
    """What a resumed group has of an item."""

    #: How many segments it has.
    segments: int
    #: Whether it is complete.
    finished: bool
    #: Its tokens by column, and under ``"versions"`` the version that made each.
    columns: dict[str, np.ndarray]


class _Sent(NamedTuple):
    """What a call asked for, as it has to be known if it comes to nothing."""

    #: The first of its places.
    item: int
    #: How many there are.
    places: int
    #: The number of its segment in the first.
    sequence: int
    #: Which place was the next one before.
    next: int


class Reservation:
    """The right to make a group. It ends after ``ttl`` seconds without a call.

    :meth:`RolloutTable.reserve` returns one. Every call renews it, and returns the status of the
    group: ``"running"``; ``"complete"``; ``"filtered"`` (it was complete, and the table's filter
    does not want it); or, when there is no use in going on, ``"rejected"``, ``"expired"``,
    ``"stale"`` or ``"over"``. The producer then asks for another reservation. A group that a server
    has forgotten, as it was started anew without a directory, is ``"expired"``.

    In a ``with`` block, a group that is left by an exception is given up, and another may be made
    for it.

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
        """Take what a table knows; :meth:`RolloutTable.reserve` makes a reservation."""
        self._table = table
        self._hold = hold
        #: What the producer calls the group; empty, if nothing.
        self.key = key
        #: The version of tokens that are added without one: what the producer passed to
        #: :meth:`RolloutTable.reserve`, or else the learner's.
        self.version = version
        #: Seconds without a call after which it ends.
        self.ttl = ttl
        #: Items that the producers before have added to, by their place, after :meth:`resume`.
        self.progress = dict(progress or {})
        self._status = status
        # What is on its way: the call, and what it asked for.
        self._ahead: deque[tuple[RolloutCall, _Sent]] = deque()
        # Of every place that something was sent to.
        self._segments = {place: item.segments for place, item in self.progress.items()}
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
        """Resume a suspended group of a table: wait for one, and return a reservation for it.

        The oldest goes first. :attr:`progress` has the tokens that its items have.

        Args:
            table: The table.
            source: As for :meth:`RolloutTable.reserve`.
            ttl: As for :meth:`RolloutTable.reserve`.
            timeout: Seconds to wait; ``None`` waits for ever.

        Raises:
            WaitTimeoutError: No group was suspended in time.
            ClosedError: The table is closed.
        """
        native = table._native
        given, items = native.resume_reservation(source, ttl, timeout)
        progress = {
            place: ItemProgress(segments, finished, columns)
            for place, segments, _, finished, columns in items
        }
        return cls._of(native, given, progress)

    @property
    def group(self) -> int:
        """The number of the group."""
        return self._hold[0]

    @property
    def status(self) -> str:
        """The status of the group, as far as this producer knows.

        It waits for the answers to what was added without waiting for them.

        Raises:
            EchoicError: One of them is an error, which is raised once.
        """
        self._look(at_all=True)
        return self._status

    @property
    def ticket(self) -> tuple[int, int]:
        """What another process needs to make the same group: give it to ``table.reservation``.

        Whoever opens it goes on where its items are then. Processes that share a group at the
        same time make items of their own.
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
        """Add an item as a whole, or its last segment.

        Args:
            columns: For each column of the table, a value of every token.
            fields: For each field of the table, a value.
            item: Its place in the group, from 0 on; the next one of this reservation when ``None``.
                Producers that share a group give their own.
            versions: The policy version that made the tokens, or one for each; :attr:`version` when
                ``None``.
            blobs: Bytes, text or arrays that the item carries, by name.
            priority: How much more likely than others the group is to be drawn, in the weighted
                order.
            wait: Whether to wait for the answer of a server elsewhere. Without, the tokens are
                copied and on their way when this returns, with what is known so far;
                :attr:`status` waits for the answer, and so does :meth:`RolloutTable.flush`. At most
                32 calls of a connection are on their way, and the next one waits for the first of
                them. An error is raised by whichever of these comes first, or by the next call
                of the reservation; by that of another reservation with a note that names the group,
                and then nothing was sent for the other.

        After a :exc:`KeyboardInterrupt` or a lost connection it is not known whether the item was
        taken. The same call once more is: segments are numbered, and none is taken twice.

        Raises:
            SpecError: A column or field is missing, or of another dtype or length.
            RolloutError: The item has too many tokens, is finished already, or has no such place.
        """
        place = self._free(1) if item is None else item
        return self._append(place, columns, versions, fields or {}, blobs, priority, wait=wait)

    def extend(
        self,
        item: int,
        columns: Mapping[str, Any],
        *,
        versions: int | Any | None = None,
    ) -> str:
        """Add tokens to an item of which there is more to come.

        A producer that stops in the middle can :meth:`suspend` the group; another one, with another
        version of the policy, can :meth:`resume` it.
        """
        return self._append(item, columns, versions, None, None, 1.0)

    def finish(
        self,
        item: int,
        fields: Mapping[str, Any] | None = None,
        *,
        blobs: Mapping[str, Blob] | None = None,
        priority: float = 1.0,
    ) -> str:
        """Say that an item has all of its tokens."""
        return self._append(item, None, None, fields or {}, blobs, priority)

    def add_items(
        self,
        lengths: Sequence[int] | np.ndarray,
        columns: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
        *,
        versions: int | Any | None = None,
        priority: float = 1.0,
        wait: bool = True,
    ) -> str:
        """Add several whole items at once, the quickest way.

        Args:
            lengths: How many tokens each has.
            columns: For each column, the values of all their tokens, item after item.
            fields: For each field, a value of each item.
            versions: As for :meth:`add`.
            priority: As for :meth:`add`.
            wait: As for :meth:`add`.
        """
        # A call that waits raises no error but its own once something was sent.
        self._look(at_all=wait)
        count = len(lengths)
        sent = _Sent(first := self._free(count), count, 0, self._next)
        version = self.version if versions is None else versions
        told: str | RolloutCall
        try:
            told = self._table.append_flat(
                self._hold,
                first,
                lengths,
                dict(columns),
                version,
                dict(fields or {}),
                priority,
                wait,
            )
        except GroupNotFoundError:
            told = "expired"
        self._next = max(self._next, first + count)
        self._segments.update(dict.fromkeys(range(first, first + count), 1))
        return self._note(told, sent)

    def at(self, table: NativeTable) -> Reservation:
        """Return the same reservation of a table that was made anew."""
        moved = Reservation(
            table,
            self._hold,
            key=self.key,
            version=self.version,
            ttl=self.ttl,
            progress=self.progress,
        )
        moved._segments, moved._next = dict(self._segments), self._next
        # Of what has no answer it is not known whether it was taken: it may be added once more.
        for _, sent in reversed(self._ahead):
            moved._go_back(sent)
        return moved

    def renew(self) -> bool:
        """Keep the reservation for another ``ttl`` seconds; return whether it still stands."""
        return bool(self._table.renew([self._hold]))

    def fail(self) -> None:
        """Give the group up, so that another may be made for it."""
        # Errors of what is on its way make no difference any more.
        while self._ahead:
            self._ahead.popleft()[0].forget()
        self._table.fail([self._hold])
        self._status = "rejected"

    def suspend(self) -> None:
        """Give the group back, so that another producer can :meth:`resume` it."""
        self._look(at_all=True)
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
        # A call that waits raises no error but its own once something was sent.
        self._look(at_all=wait)
        sequence = self._segments.get(item, 0)
        told: str | RolloutCall
        try:
            told = self._table.append(
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
            # Its table is no more: the server was started anew without a directory.
            told = "expired"
        sent = _Sent(item, 1, sequence, self._next)
        self._next = max(self._next, item + 1)
        # Tokens that there are none of make no segment.
        has_tokens = columns is not None and any(len(column) for column in columns.values())
        self._segments[item] = sequence + has_tokens
        return self._note(told, sent)

    def _free(self, count: int) -> int:
        """Find the first of so many places that nothing was sent to."""
        first = self._next
        # Behind items that were refused there may be some that were taken.
        while taken := [place for place in range(first, first + count) if place in self._segments]:
            first = taken[-1] + 1
        return first

    def _note(self, told: str | RolloutCall, sent: _Sent) -> str:
        """Take note of what came of a call, or that it is on its way."""
        if not isinstance(told, str):
            self._ahead.append((told, sent))
            return self._status
        self._status = told
        return told

    def _look(self, *, at_all: bool = False) -> None:
        """Look at answers that came, or wait for all."""
        while (entry := next(iter(self._ahead), None)) is not None:
            call, sent = entry
            if not at_all and not call.is_ready:
                return
            try:
                self._status = call.wait()
            except GroupNotFoundError:
                self._status = "expired"
            except Exception:
                # What was not taken may be added once more.
                self._go_back(sent)
                self._drop(entry)
                raise
            self._drop(entry)

    def _drop(self, entry: tuple[RolloutCall, _Sent]) -> None:
        """Forget the first of what is on its way, unless another thread has."""
        if next(iter(self._ahead), None) is entry:
            self._ahead.popleft()

    def _go_back(self, sent: _Sent) -> None:
        """Forget that something was sent: what is refused takes no place."""
        self._next = min(self._next, sent.next)
        for place in range(sent.item, sent.item + sent.places):
            if sent.sequence == 0:
                self._segments.pop(place, None)
            elif place in self._segments:
                self._segments[place] = min(sent.sequence, self._segments[place])

    def __enter__(self) -> Self:
        """Return the reservation."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the group up, if an exception ends the block while it is made."""
        if kind is None:
            return
        # What ended the block matters more than that nobody is there to be told.
        with contextlib.suppress(EchoicError):
            self._look(at_all=True)
        if self._status == "running":
            with contextlib.suppress(EchoicError):
                self.fail()

    def __repr__(self) -> str:
        """Name the group."""
        key = f", key={self.key!r}" if self.key else ""
        return (
            f"Reservation(group={self.group}{key}, version={self.version}, status={self._status!r})"
        )
