"""Groups of items, as a worker has them: what is written is kept, and sent when the block ends."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import GroupNotFoundError, RolloutError, SpecError
from echoic.rollouts import blobs as _blobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Self

    from echoic._native import RolloutCall
    from echoic._native import RolloutTable as NativeTable
    from echoic.rl.worker import Given, Worker
    from echoic.rollouts.blobs import Blob

    Array = np.ndarray[Any, Any]
    # A group, a function that sends something of it and returns the answer, and its bytes.
    Call: TypeAlias = "tuple[Group, Callable[[], str | RolloutCall], int]"

__all__ = ["Group", "Item", "parse_handle"]

# What the table says of a group, for one that can still get tokens.
_RUNNING = "running"
_STATUS = {_RUNNING: "open", "complete": "complete", "delivered": "complete"}
# The fields of an item whose end was sent.
_SENT: dict[str, Any] = {}


def parse_handle(handle: str) -> tuple[tuple[int, int], int]:
    """Return the reservation and the index of an item's handle.

    Raises:
        ValueError: If it is no handle.
    """
    try:
        group, attempt, index = (int(part) for part in handle.split("."))
    except (ValueError, AttributeError):
        raise ValueError(
            f"expected the handle of an item, such as '12.1.0', got {handle!r}"
        ) from None
    return (group, attempt), index


def _joined(values: Sequence[Any]) -> Any:
    """Return values of some tokens and the next as one sequence."""
    if all(isinstance(one, list) for one in values):
        return [value for one in values for value in one]
    torch = sys.modules.get("torch")
    if torch is not None and all(isinstance(one, torch.Tensor) for one in values):
        return torch.cat(list(values))
    return np.concatenate(values)


def _bytes_of(blobs: Mapping[str, bytes] | None) -> int:
    """Return how many bytes the blobs of an item have."""
    return sum(map(len, blobs.values())) if blobs else 0


class Item:
    """One sequence of tokens of a group.

    Attributes:
        group: The group that it belongs to.
        index: Its index in the group, from 0 on.
    """

    __slots__ = (
        "_blobs",
        "_columns",
        "_fields",
        "_found",
        "_more",
        "_segments",
        "_version",
        "group",
        "index",
    )

    def __init__(self, group: Group, index: int) -> None:
        self.group = group
        self.index = index
        # What was written first, and the version that made it; what was written later.
        self._columns: dict[str, Any] | None = None
        self._version: Any = None
        self._more: list[tuple[dict[str, Any], Any]] | None = None
        # Set by `done`.
        self._fields: dict[str, Any] | None = None
        self._blobs: dict[str, Blob] | None = None
        # Segments that the table has; `None` if that is unknown.
        self._segments: int | None = 0
        # Tokens that another worker has written.
        self._found: dict[str, Array] | None = None

    @property
    def prompt(self) -> Any:
        """The prompt of the group."""
        return self.group.prompt

    @property
    def handle(self) -> str:
        """A short text by which another process finds the item: :meth:`Worker.item`."""
        return f"{self.group.handle}.{self.index}"

    @property
    def is_done(self) -> bool:
        """Whether :meth:`done` was called."""
        return self._fields is not None

    @property
    def columns(self) -> dict[str, Array]:
        """Tokens by column, and under ``"versions"`` the version of each.

        These are the tokens that another worker sent, of an item that it began, and those that were
        written and not sent yet.
        """
        parts = [] if self._found is None else [self._found]
        if self._columns is not None:
            for columns, version in ((self._columns, self._version), *(self._more or ())):
                length = len(next(iter(columns.values()), ()))
                parts.append({**columns, "versions": np.broadcast_to(version, length)})
        if not parts:
            return {}
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def write(
        self, *, version: Any = None, blobs: Mapping[str, Blob] | None = None, **columns: Any
    ) -> None:
        """Append tokens.

        The arrays are kept until the block of the group ends, so they must not be changed before.
        Of a worker with ``partial=True`` they are sent at once.

        Args:
            version: The version of the policy that made the tokens, or one for each;
                :attr:`Worker.version` when ``None``.
            blobs: Bytes, text or arrays to store with the item, by name.
            **columns: For each column of the table, a value of every token.

        Raises:
            RolloutError: If the item is done.
        """
        group = self.group
        if version is None:
            version = group._worker._version
            if version is None:
                version = group.version
        if self._fields is not None:
            raise RolloutError(f"expected an item that is not done, got {self!r}")
        if blobs is not None:
            self._blobs = {**(self._blobs or {}), **blobs}
        if self._columns is None:
            self._columns, self._version = columns, version
        elif self._more is None:
            self._more = [(columns, version)]
        else:
            self._more.append((columns, version))
        if group._at_once:
            group._worker._post(list(self._calls()), group._loop)

    def done(
        self,
        *,
        blobs: Mapping[str, Blob] | None = None,
        priority: float = 1.0,
        **fields: Any,
    ) -> None:
        """Mark the item as finished.

        Args:
            blobs: As for :meth:`write`.
            priority: Weight of the group in the weighted order. Default: 1.
            **fields: For each field of the table, a value.

        Raises:
            RolloutError: If the item is done already.
        """
        if self._fields is not None:
            raise RolloutError(f"expected an item that is not done, got {self!r}")
        if blobs is not None:
            self._blobs = {**(self._blobs or {}), **blobs}
        self._fields = fields
        group = self.group
        if priority != 1.0:
            group._priority = priority
        if group._at_once:
            group._worker._post(list(self._calls()), group._loop)

    def update(self, **values: Any) -> None:
        """Set values of tokens that are there, or of the item: any columns and fields.

        Columns and fields that the run has as ``late`` may be left out in :meth:`write` and
        :meth:`done`, and come by this, from any process that has the :attr:`handle`. The value that
        comes last counts. Once the group is delivered or gone, nothing is changed: see
        :attr:`Group.status` and :attr:`Group.reason`.

        Args:
            **values: For each column, a value of every token of the item; for each field, a value.

        Raises:
            RolloutError: If columns come before :meth:`write` in the block of the group, or fields
                before :meth:`done`.
        """
        group = self.group
        names = group._worker._names
        columns = {name: value for name, value in values.items() if name in names}
        fields = {name: value for name, value in values.items() if name not in names}
        if not group._at_once:
            if fields and self._fields is None:
                raise RolloutError(f"expected fields of {self!r} with done(), got them before")
            if columns and self._columns is None:
                raise RolloutError(f"expected tokens in {self!r} before other values of them")
            if columns:
                self._columns = {**self._join(), **columns}
            if fields:
                self._fields = {**(self._fields or {}), **fields}
            return
        size = len(next(iter(columns.values()), ())) * group._worker._token_bytes
        send = partial(group._table.update, group._hold, self.index, columns, fields, False)
        group._worker._post([(group, send, size)], group._loop)

    def _join(self) -> dict[str, Any]:
        """Join what was written in several calls; return the columns."""
        parts = [(self._columns or {}, self._version), *(self._more or ())]
        self._more = None
        names = parts[0][0].keys()
        for columns, _ in parts:
            if columns.keys() != names:
                raise SpecError(
                    f"expected the columns {', '.join(names)} in each write to {self!r}, got "
                    f"{', '.join(columns)}"
                )
        counts = [len(next(iter(columns.values()), ())) for columns, _ in parts]
        self._columns = {name: _joined([columns[name] for columns, _ in parts]) for name in names}
        versions = [version for _, version in parts]
        self._version = versions[0]
        if any(not isinstance(one, int) or one != versions[0] for one in versions):
            self._version = np.concatenate(
                [np.broadcast_to(one, count) for one, count in zip(versions, counts, strict=True)]
            )
        return self._columns

    def _calls(self) -> Iterator[Call]:
        """Yield the calls that send what was written."""
        parts: list[tuple[dict[str, Any] | None, Any]] = []
        if self._columns is not None:
            parts += [(self._columns, self._version), *(self._more or ())]
            self._columns = self._more = None
        if self._fields is not None and self._fields is not _SENT and not parts:
            parts.append((None, self.group.version))
        for index, (columns, version) in enumerate(parts):
            fields = self._fields if index == len(parts) - 1 else None
            if fields is not None:
                self._fields = _SENT
            size = len(next(iter((columns or {}).values()), ())) * self.group._worker._token_bytes
            yield self.group, partial(self._append, columns, version, fields), size

    def _append(
        self, columns: dict[str, Any] | None, version: Any, fields: dict[str, Any] | None
    ) -> str | RolloutCall:
        group = self.group
        if self._segments is None:
            self._segments = group._table.status(group._hold)[1].get(self.index, 0)
        blobs = None
        if fields is not None:
            blobs, self._blobs = _blobs.pack(self._blobs), None
        answer = group._table.append(
            group._hold,
            self.index,
            self._segments,
            columns,
            version,
            fields,
            blobs,
            group._priority,
            False,
        )
        # A call without tokens adds no segment.
        if columns and len(next(iter(columns.values()))):
            self._segments += 1
        return answer

    def __repr__(self) -> str:
        return f"Item({self.handle!r}{', done' if self.is_done else ''})"


class Group:
    """The items for one prompt: a worker fills them in a ``with`` or ``async with`` block.

    At the end of the block everything that was written is sent in one call that is not waited for.
    If some items are not done, the group stays open for others that have their handles, for
    ``reservation_ttl`` seconds from the last call. An exception that ends the block gives the
    group up, so that another can be made. While the block runs, the worker renews the reservation.

    Attributes:
        prompt: What the worker was given; of a group that another worker began, its key.
        key: Its name in batches.
        version: The version that the worker had when the group was reserved.
    """

    __slots__ = (
        "__weakref__",
        "_at_once",
        "_hold",
        "_is_ours",
        "_is_sent",
        "_items",
        "_loop",
        "_priority",
        "_source",
        "_table",
        "_word",
        "_worker",
        "key",
        "prompt",
        "version",
    )

    _hold: tuple[int, int]
    _table: NativeTable
    _items: list[Item] | None

    def __init__(self, worker: Worker, prompt: Any, key: str, source: str) -> None:
        self._worker = worker
        self._source = source
        self.prompt = prompt
        self.key = key
        self.version = 0
        self._items = None
        # What the table said last: `None` before the group is reserved, or if that is unknown.
        self._word: str | None = None
        self._priority = 1.0
        # Whether tokens are sent when they are written; whether the block is over.
        self._at_once = self._is_sent = False
        # Whether this worker has reserved it.
        self._is_ours = True
        self._loop: asyncio.AbstractEventLoop | None = None

    def _reserved(self, given: Given) -> Self:
        """Take a reservation."""
        self._table = self._worker._native
        self._hold = given[:2]
        self.version = given[3]
        self._word = _RUNNING
        self._at_once = self._worker._partial
        return self

    def _resumed(
        self, given: Given, begun: Sequence[tuple[int, int, int, bool, dict[str, Array]]]
    ) -> Self:
        """Take the reservation of a group that another worker began, and its items."""
        self._reserved(given)
        items = self.items
        for index, segments, _, is_done, columns in begun:
            item = items[index]
            item._segments, item._found = segments, columns
            item._fields = _SENT if is_done else None
        return self

    @property
    def items(self) -> list[Item]:
        """The items: as many as the table's groups have, and its ``redundancy`` more."""
        if self._items is None:
            self._items = [Item(self, index) for index in range(self._worker._size)]
            if self._is_sent:
                for item in self._items:
                    item._fields = _SENT
        return self._items

    def __iter__(self) -> Iterator[Item]:
        """Iterate over the items that are not done."""
        return iter([item for item in self.items if item._fields is None])

    @property
    def handle(self) -> str:
        """What the handles of its items begin with.

        Raises:
            RolloutError: If its block has not begun.
        """
        if self._word is None and self._is_ours:
            raise RolloutError(f"expected a group whose block has begun, got {self!r}")
        self._worker._unused.pop(self._hold, None)
        return f"{self._hold[0]}.{self._hold[1]}"

    @property
    def status(self) -> str:
        """What is known of the group: ``"open"``, ``"complete"`` or ``"dropped"``.

        Answers of remote servers are not waited for: after :meth:`Worker.flush` it is final.
        """
        word = self._known()
        return _STATUS.get(word, "dropped")

    @property
    def reason(self) -> str:
        """Why the group was dropped, in the table's word: ``"filtered"``, ``"stale"`` ...

        The others are ``"rejected"``, ``"expired"`` and ``"over"``; ``""`` if it was not dropped.
        ``"delivered"`` if it is complete and an :meth:`Item.update` came too late.
        """
        word = self._known()
        return "" if word in {_RUNNING, "complete"} else word

    def _known(self) -> str:
        self._worker._collect()
        if self._word is None:
            if self._is_ours:
                return _RUNNING
            try:
                self._word = self._table.status(self._hold)[0]
            except GroupNotFoundError:
                self._word = "expired"
        return self._word

    def fail(self) -> None:
        """Give the group up, so that another can be made; what was written is not sent."""
        is_reserved = self._word is not None or not self._is_ours
        self._is_sent = True
        self._items = None
        self._word = "rejected"
        self._worker._open.discard(self)
        if is_reserved:
            self._worker._unused.pop(self._hold, None)
            self._worker._give_back(self._table, [self._hold])

    # What the end of its block sends.

    def _calls(self) -> list[Call]:
        """Return the calls that send the items: one, if all are whole and alike."""
        items = self._items
        self._is_sent = self._at_once = True
        if items is None:
            return []
        calls: list[Call] = []
        whole: list[Item] = []
        names = ends = 0
        is_open = False
        for item in items:
            columns, fields = item._columns, item._fields
            if columns is None or fields is None or item._segments:
                if whole:
                    calls.append(self._whole(whole))
                    whole = []
                calls.extend(item._calls())
                is_open = is_open or fields is None
                continue
            if item._more is not None:
                columns = item._join()
            if len(columns) != names or len(fields) != ends:
                if whole:
                    calls.append(self._whole(whole))
                    whole = []
                names, ends = len(columns), len(fields)
            whole.append(item)
        if whole:
            calls.append(self._whole(whole))
        if not is_open:
            # An item refers to its group, so a list of them would keep both from being freed.
            self._items = None
        return calls

    def _whole(self, items: Sequence[Item]) -> Call:
        """Return the call that sends whole items, which have equally many columns and fields."""
        written: list[Any] = [item._columns for item in items]
        ended: list[Any] = [item._fields for item in items]
        try:
            columns = {name: [one[name] for one in written] for name in written[0]}
            fields = {name: [one[name] for one in ended] for name in ended[0]}
        except KeyError as error:
            raise SpecError(f"an item of {self!r} has no {error}, and others have it") from None
        versions = [item._version for item in items]
        blobs = None
        for item in items:
            if item._blobs is not None:
                blobs = _blobs.pack_items([one._blobs for one in items])
                break
        size = 0
        if self._loop is not None:
            tokens = next(iter(columns.values()), ())
            size = sum(map(len, tokens)) * self._worker._token_bytes
            size += sum(map(_bytes_of, blobs or ()))
        send = partial(
            self._table.append_flat,
            self._hold,
            items[0].index,
            None,
            columns,
            versions,
            fields,
            blobs,
            self._priority,
            False,
        )
        for item in items:
            item._columns = item._blobs = None
            item._fields = _SENT
        return self, send, size

    # Its block.

    def __enter__(self) -> Self:
        worker = self._worker
        if self._word is None:
            worker._raise()
            self._reserved(*worker._reserve([self.key], self._source, resumes=False))
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send what the items have; give the group up after an exception."""
        worker = self._worker
        worker._open.discard(self)
        if self._is_sent:
            return
        if kind is not None:
            self._end(kind)
            return
        try:
            worker._post(self._calls(), None)
        except BaseException as error:
            self._end(type(error))
            raise

    async def __aenter__(self) -> Self:
        worker = self._worker
        if self._word is None:
            reserve = worker._reserver.reserve([self.key], self._source, resumes=False)
            self._reserved(*await reserve)
        self._begin()
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send what the items have; give the group up after an exception."""
        worker = self._worker
        worker._open.discard(self)
        if self._is_sent:
            return
        if kind is not None:
            self._end(kind)
            return
        try:
            await worker._post_later(self._calls())
        except Exception as error:
            # A task that is cancelled while there is no room has sent nothing yet, but will.
            self._end(type(error))
            raise

    def _begin(self) -> None:
        """Have the reservation renewed while the block runs."""
        self._worker._unused.pop(self._hold, None)
        if not self._is_sent:
            self._worker._open.add(self)

    def __del__(self) -> None:
        """Give back a group whose block never began, and whose handle no other process has."""
        if self._word is not None and not self._is_sent:
            give_back = self._worker._unused.pop(self._hold, None)
            if give_back is not None:
                give_back(self._table, [self._hold])

    def _end(self, kind: type[BaseException]) -> None:
        """Give the group up; or leave it to another worker, if this one is being stopped."""
        if self._worker._partial and not issubclass(kind, Exception):
            self._is_sent = True
            self._word = "expired"
            self._worker._suspend(self._table, [self._hold])
        else:
            self.fail()

    def __repr__(self) -> str:
        key = f"key={self.key!r}, " if self.key else ""
        return f"Group({key}status={'new' if self._word is None else self.status!r})"
