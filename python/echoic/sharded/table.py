"""One table on several servers."""

from __future__ import annotations

import contextlib
import math
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

import numpy as np

from echoic import _native
from echoic._links import deadline_in, left_until
from echoic.errors import (
    ClosedError,
    DisconnectedError,
    EchoicError,
    WaitTimeoutError,
)
from echoic.remote_table import no_close, no_durability
from echoic.sharded.shards import LOOK, Shards, warn
from echoic.table_methods import TableMethods

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic._native import Batch, Spec
    from echoic.remote_table import RemoteTable
    from echoic.sharded.shard import Shard
    from echoic.sharded.shards import Key
    from echoic.table_stats import TableStats

__all__ = ["ShardedTable"]

# Items that a part of an `extend` has at least: with fewer, waking the threads of one more
# server costs more than it saves.
_LEAST = 256

# The most bytes of items, and the most items, that are moved at once.
_MOVED_BYTES = 16 << 20
_MOVED_ITEMS = 4096

# Errors of a shard that has just gone away.
_ABSENT = (WaitTimeoutError, DisconnectedError, ClosedError)

# The numbers of a table that are added up over its shards.
_SUMMED = (
    *("size", "total_weight", "capacity", "inserts", "samples", "deletions", "unique_samples"),
    *("episodes", "deleted_episodes", "memory_bytes"),
    *(
        f"{call}_{number}"
        for call in ("add", "sample")
        for number in ("calls_waiting", "calls_limited", "wait_seconds")
    ),
)

_T = TypeVar("_T")


class ShardedTable(TableMethods):
    """A table whose items are spread over several servers; ``connection.table(name)`` returns it.

    The methods and their arguments are those of :class:`~echoic.Table`; inserts also take a
    ``shard_key``. Each shard has its own limiter, its own ``capacity`` and its own selectors: the
    guide on shards describes what follows.

    Args:
        name: The table's name, which is the same everywhere.
        shards: The servers.
        seed: Seed of the choice of shards; random if ``None``.
    """

    def __init__(self, name: str, shards: Shards, seed: int | None = None) -> None:
        """Make the table; see the class for the arguments."""
        self._name = name
        self._shards = shards
        self._native = _native.Shards(
            len(shards.all), secrets.randbits(64) if seed is None else seed
        )
        self._version = 0
        shards.on_return.append(self._welcome)

    def _places(self) -> list[tuple[_native.RemoteTable, int] | None]:
        """Return the table and the first incarnation of each shard, ``None`` for those away."""
        self._shards.check_open()
        self._shards.look()
        return [self._place(shard) for shard in self._shards.all]

    def _place(self, shard: Shard) -> tuple[RemoteTable, int] | None:
        table = shard.tables.get(self.name) if shard.there else None
        return None if table is None else (table, shard.first_incarnation)

    def _each(self, doing: str, call: Callable[[RemoteTable], _T]) -> list[_T]:
        """Call the tables that are there, and warn where that was not possible."""
        results = []
        self._shards.check_open()
        self._shards.look()
        for shard in self._shards.all:
            place = self._place(shard)
            try:
                if place is not None:
                    results.append(call(place[0]))
                    continue
            except _ABSENT:
                # It went away during the call.
                pass
            if doing and not shard.removed:
                warn(f"{shard} is away, so `{doing}` was not done there")
        return results

    def _welcome(self, shard: Shard) -> None:
        """Send the learner's version to a shard that has come back."""
        table = shard.tables.get(self.name)
        if table is not None and self._version:
            # If it is away again, it gets the version at its next return.
            with contextlib.suppress(EchoicError):
                table.publish_version(self._version)

    def add(
        self,
        x: Any,
        priority: float = 1.0,
        version: int | None = None,
        timeout: float | None = None,
        shard_key: Key | None = None,
    ) -> None:
        """Send one item to the shard whose turn it is, or that its key belongs to.

        A shard that accepts nothing now, because its limiter blocks and its window is full, is
        skipped; not for an item with a key.
        """
        shard = self._shards.next() if shard_key is None else None
        if shard is not None:
            try:
                shard.tables[self.name].add(x, priority, version, 0.0)
            except _ABSENT:
                # Try the others.
                pass
            else:
                return
        self._put(lambda table, wait: table.add(x, priority, version, wait), timeout, shard_key)

    def extend(
        self,
        xs: Any,
        priorities: Any = None,
        version: int | None = None,
        timeout: float | None = None,
        shard_key: Key | None = None,
    ) -> None:
        """Send many items, in equal contiguous parts to as many shards as are there.

        Parts have at least 256 items, so a small batch goes to the one shard whose turn it is. With
        a key, all go to its shard.
        """
        deadline = deadline_in(timeout)
        takers = 0 if shard_key is not None else sum(one.takes for one in self._shards.there())
        asked = max(1, takers)
        part, parts, taken = 0, 1, 0

        def put(table: RemoteTable, wait: float) -> None:
            nonlocal parts, taken
            try:
                parts = table._insert_part(
                    xs, priorities, version, wait, (part, asked, _LEAST), taken
                )
            except WaitTimeoutError as error:
                # Those were sent; the next attempt is about the rest.
                taken += error.stored
                raise

        while part < parts:
            try:
                self._put(put, left_until(deadline), shard_key)
            except WaitTimeoutError as error:
                count = self._count(xs, priorities)
                error.stored = count * part // parts + taken
                raise
            part, taken = part + 1, 0

    def _count(self, xs: Any, priorities: Any) -> int:
        """Return how many items there are, that is the most parts that could be made."""
        table = next(shard.tables[self.name] for shard in self._shards.all if shard.tables)
        beyond = (1 << 60, 1 << 60, 1)
        return table._insert_part(xs, priorities, None, 0.0, beyond, 0)

    def _put(
        self,
        put: Callable[[RemoteTable, float], None],
        timeout: float | None,
        shard_key: Key | None,
    ) -> None:
        """Insert into the first shard that accepts."""
        deadline = deadline_in(timeout)
        pause = 0.0
        while True:
            candidates = self._shards.candidates(shard_key)
            refusal: WaitTimeoutError | None = None
            for shard in candidates:
                try:
                    return self._hand(put, shard, pause, deadline)
                except WaitTimeoutError as error:
                    refusal = error
                except (DisconnectedError, ClosedError):
                    # It was closed just now; the next check will see it.
                    continue
                # Only the first is waited for, a moment in each round.
                pause = 0.0
            if refusal is None:
                self._shards.wait_for_any(deadline, to_insert=True)
                if left_until(deadline) == 0.0:
                    late = WaitTimeoutError(f"timed out: no shard takes items of {self.name!r}")
                    late.reason = "AWAY"
                    raise late
            elif left_until(deadline) == 0.0:
                raise refusal
            pause = LOOK

    def _hand(
        self,
        put: Callable[[RemoteTable, float], None],
        shard: Shard,
        pause: float,
        deadline: float | None,
    ) -> None:
        """Insert into a shard, for as long as it accepts more."""
        while True:
            left = left_until(deadline)
            try:
                return put(shard.tables[self.name], pause if left is None else min(pause, left))
            except WaitTimeoutError as error:
                if not error.stored or left == 0.0:
                    raise
                pause = LOOK

    def sample(
        self,
        n: int,
        timeout: float | None = None,
        beta: float = 1.0,
        *,
        device: Any = None,
    ) -> Batch:
        """Draw a batch from all shards that are there, in proportion to their items.

        The items come in the order of the shards. Probabilities, weights and the table's size are
        those of the whole table.

        Raises:
            WaitTimeoutError: If a chosen shard's limiter blocked for too long, or all are away.
            DisconnectedError: If all were away for too long.
        """
        deadline = deadline_in(timeout)
        while True:
            self._shards.wait_for_any(deadline)
            try:
                return self._native.sample(self._places(), n, left_until(deadline), beta, device)
            except WaitTimeoutError as error:
                if error.reason != "AWAY" or left_until(deadline) == 0.0:
                    raise

    def items(self, limit: int | None = None) -> Batch:
        """Return the metadata of items of the shards that are there, one shard after the other."""
        return self._native.items(self._places(), limit)

    def get(self, keys: Any) -> Batch:
        """Read the items of these keys that are there, in the order of the shards."""
        return self._native.get(self._places(), keys)

    @overload
    def update_priorities(self, keys: Any, priorities: Any, wait: Literal[True] = True) -> int: ...
    @overload
    def update_priorities(self, keys: Any, priorities: Any, wait: bool) -> int | None: ...
    def update_priorities(self, keys: Any, priorities: Any, wait: bool = True) -> int | None:
        """Change priorities on the shards of the keys; return how many items were there.

        Changes for a shard that is away, or has been since it gave the key, are dropped and
        counted: ``connection.stats().dropped_changes``. If one value is not a finite number >= 0,
        nothing is changed. All shards are asked at once, and the call always waits for their
        answers, to count what was dropped. With ``wait=False`` the result is ``None``, as of other
        tables.
        """
        done, lost = self._native.update_priorities(self._places(), keys, priorities)
        self._shards.dropped += lost
        return done if wait else None

    def remove(self, keys: Any) -> int:
        """Remove items; return how many were there. Keys count as for :meth:`update_priorities`."""
        done, lost = self._native.remove(self._places(), keys)
        self._shards.dropped += lost
        return done

    def move_items(self, shard: Shard, timeout: float | None = None) -> int:
        """Move a drained shard's items to the others; see ``Connection.move_items``."""
        if shard.takes:
            text = f"{shard} takes inserts, so there would always be more to move; drain it first"
            raise ValueError(text)
        place = self._place(shard)
        if place is None:
            raise DisconnectedError(f"{shard} is away, so its items can't be moved")
        table, moved, deadline = place[0], 0, deadline_in(timeout)
        spec = self.spec
        size = 1 if spec is None else max(1, spec.nbytes)
        most = min(_MOVED_ITEMS, max(1, _MOVED_BYTES // size))
        while len(listed := table.items(most)):
            for version in np.unique(listed.info.versions):
                items = table.get(listed.keys[listed.info.versions == version])
                if len(items):
                    left = left_until(deadline)
                    self.extend(items.data, items.info.priorities, int(version), left)
            # Only items that the others have stored are removed.
            self._shards.flush(left_until(deadline))
            moved += table.remove(listed.keys)
        return moved

    def clear(self) -> None:
        """Remove all items of the shards that are there; a warning names the others."""
        self._each("clear", lambda table: table.clear())

    def flush(self, timeout: float | None = None) -> None:
        """Wait until what was added to tables of this connection is in them."""
        self._shards.flush(timeout)

    def pause(self) -> None:
        """Block inserts and samples on the shards that are there."""
        self._each("pause", lambda table: table.pause())

    def resume(self) -> None:
        """End a pause on the shards that are there."""
        self._each("resume", lambda table: table.resume())

    def publish_version(self, version: int) -> None:
        """Set the learner's policy version; a shard that is away gets it when it is back."""
        self._version = max(self._version, version)
        self._each("", lambda table: table.publish_version(version))

    def _set_limiter(self, limiter: tuple[str, list[float]]) -> None:
        self._each("set_limiter", lambda table: table._set_limiter(limiter))

    def close(self) -> NoReturn:
        """Raise: only the servers' processes can close a table.

        Raises:
            TypeError: Always.
        """
        raise TypeError(no_close(self.name))

    @property
    def durability(self) -> str:
        """Raise: servers do not report this setting to their clients.

        Raises:
            TypeError: Always.
        """
        raise TypeError(no_durability(self.name))

    def can_sample(self, n: int) -> bool:
        """Return whether every shard could give its share of a batch now, by its current state."""

        def ready(stats: TableStats) -> bool:
            return not stats.paused and stats.size >= max(1, stats.min_size)

        sizes = [one.size for one in self._stats() if one is not None and ready(one)]

        def could(table: RemoteTable) -> bool:
            stats = table.stats()
            return not ready(stats) or table.can_sample(
                max(1, math.ceil(n * stats.size / sum(sizes)))
            )

        return bool(sizes) and all(self._each("", could))

    def can_add(self, n: int = 1) -> bool:
        """Return whether some shard would take this many items now."""
        return any(self._each("", lambda table: table.can_add(n)))

    def _stats(self) -> list[TableStats | None]:
        each: list[TableStats | None] = []
        for place in self._places():
            try:
                each.append(None if place is None else place[0].stats())
            except _ABSENT:
                each.append(None)
        return each

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    @property
    def capacity(self) -> int:
        """How many items there may be on the shards that are there."""
        return self.stats().capacity

    def stats(self) -> TableStats:
        """Return the sums of the shards that are there; ``shards`` has the numbers of each.

        Settings, which should be the same everywhere, are the first shard's.
        """
        from echoic.table_stats import TableStats

        each = self._stats()
        there = [one for one in each if one is not None]
        return replace(
            there[0] if there else TableStats(name=self.name),
            **{name: sum(getattr(one, name) for one in there) for name in _SUMMED},
            version=max((one.version for one in there), default=0),
            paused=any(one.paused for one in there),
            shards=tuple(each),
        )

    @property
    def spec(self) -> Spec | None:
        """The form of items, if the table has a spec."""
        return next(
            shard.tables[self.name].spec for shard in self._shards.all if self.name in shard.tables
        )

    @property
    def metadata(self) -> bytes:
        """The bytes that the program of the first server that is there stored with the table."""
        return next(
            shard.tables[self.name].metadata
            for shard in self._shards.all
            if self.name in shard.tables
        )

    def __len__(self) -> int:
        """Return the number of items on the shards that are there."""
        return sum(self._each("", len))

    def __repr__(self) -> str:
        """Return the name and the number of shards."""
        return f"ShardedTable({self.name!r} on {len(self._shards.all)} shards)"
