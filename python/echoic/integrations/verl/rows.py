"""Rows of TransferQueue in a table of an echoic server.

What one call puts into a row is one item of the table. The item's *version* is a hash of partition
and key, by which a row's items are found in a listing of the table without its data. The whole part
of its *priority* is the *mark* of the row: 0 while the row is in the queue, otherwise the number of
the checkpoint that is the first without it. The fraction says how long the record is, so that
records of one length are read together. So all that is known of rows is in the table, and in its
journal; no process has to keep an index.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import limiters, selectors
from echoic.checkpointer import Checkpointer
from echoic.integrations.verl.records import Record, decode, encode
from echoic.server import Server
from echoic.table import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["Rows", "serve"]

_READ_BYTES = 32 * 1024 * 1024
Name = tuple[str, str]


def serve(
    directory: str | os.PathLike[str],
    *,
    listen: str | None = None,
    token: str | None = None,
    capacity: int = 1_000_000,
    durability: str = "async",
    checkpoint_every: float = 600,
) -> Server:
    """Return a server whose only table, ``rows``, is kept in a directory; it is not started yet.

    Args:
        directory: Where the journal and the checkpoints of the table are.
        listen: Its address, see :class:`echoic.Server`.
        token: The secret that clients must have.
        capacity: How many records there may be; more are refused, nothing is removed for them.
        durability: ``"async"`` survives the death of any process, ``"sync"`` that of the machine.
        checkpoint_every: Seconds between two checkpoints of the table, which shorten its journal.
    """
    if durability not in ("async", "sync"):
        raise ValueError(f"durability must be 'async' or 'sync', got {durability!r}")
    table = Table(
        "rows",
        capacity=capacity,
        sampler=selectors.Fifo(),
        # Adds wait while the table is full.
        limiter=limiters.RateLimiter(
            min_size=capacity, samples_per_insert=1.0, min_diff=-1e15, max_diff=0.0
        ),
        durability=durability,  # type: ignore[arg-type]
    )
    return Server(
        table,
        listen=listen,
        token=token,
        journal=f"{directory}/journal",
        checkpointer=Checkpointer(f"{directory}/checkpoints", keep=1, every=checkpoint_every),
    )


def _hash(name: Name) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in name:
        text = part.encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "little")


def _length_class(size: int) -> int:
    """Return a number below 256 that padded records of the same length have in common."""
    bits = size.bit_length()
    return bits * 8 + (size >> (bits - 4)) % 8


class Rows:
    """Put, read, mark and remove rows by name, from any thread.

    Args:
        table: The table of :func:`serve`, of this process or a connection's.
        flush: Waits until the table has what was added.
        timeout: Seconds that a call waits for room in the table.
    """

    def __init__(
        self, table: Any, flush: Callable[[float], object] | None = None, timeout: float = 60
    ) -> None:
        self._table = table
        self._flush = flush
        self._timeout = timeout
        self._lock = threading.Lock()
        self._last = 0

    def _now(self) -> int:
        """Return a time that is later than that of this process's record before."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last

    def put(self, records: Iterable[Record]) -> None:
        """Add records, and wait until the table has them.

        Raises:
            TypeError: If a value can't be stored. Nothing is stored.
            WaitTimeoutError: If the table is full. Some records may be stored.
        """
        added = []
        for record in records:
            record.extra["at"] = self._now()
            data = encode(record, pad=True)
            fraction = _length_class(len(data)) / 256
            added.append((data, fraction, _hash((record.partition, record.key))))
        for data, fraction, version in added:
            self._table.add(data, priority=fraction, version=version, timeout=self._timeout)
        if self._flush is not None:
            self._flush(self._timeout)

    def _find(self, names: Iterable[Name]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the keys and priorities of the items of rows."""
        items = self._table.items()
        hashes = np.array([_hash(name) for name in names], np.uint64)
        found = np.isin(items.info.versions, hashes)
        return items.keys[found], items.info.priorities[found]

    def _load(
        self,
        keys: np.ndarray[Any, Any],
        priorities: np.ndarray[Any, Any],
        fields: set[str] | None = None,
    ) -> Iterator[tuple[int, int, Record]]:
        """Yield key, mark and record of items, in any order; items that have gone are left out."""
        fractions = priorities % 1
        for fraction in np.unique(fractions):
            same = keys[fractions == fraction]
            size = _length(int(fraction * 256))
            count = max(1, _READ_BYTES // size)
            for start in range(0, len(same), count):
                batch = self._table.get(same[start : start + count])
                for i, key in enumerate(batch.keys.tolist()):
                    mark = int(batch.info.priorities[i])
                    yield key, mark, decode(batch.data[i], fields)

    def read(self, names: Sequence[Name], fields: set[str] | None = None) -> dict[Name, Record]:
        """Return the rows of these names that are there, each with the latest value of its fields.

        Args:
            names: Partitions and keys.
            fields: The fields to return; all when ``None``.
        """
        wanted = set(names)
        records = [record for _, _, record in self._load(*self._find(names), fields)]
        rows = merge(records)
        return {name: row for name, row in rows.items() if name in wanted}

    def items(self) -> list[tuple[int, int, Record]]:
        """Return key, mark and record, without its fields, of all items, the oldest first."""
        found = self._table.items()
        listed = list(self._load(found.keys, found.info.priorities, set()))
        return sorted(listed, key=lambda item: item[2].extra["at"])

    def replace(self, names: Sequence[Name]) -> None:
        """Remove the records of rows whose fields have all been put again."""
        by_name: dict[Name, list[tuple[int, Record]]] = {}
        for key, _, record in self._load(*self._find(names)):
            by_name.setdefault((record.partition, record.key), []).append((key, record))
        old = []
        for name in names:
            seen: set[str] = set()
            newest = sorted(by_name.get(name, []), key=lambda one: -one[1].extra["at"])
            for i, (key, record) in enumerate(newest):
                # The newest record has all tags of the row.
                if i and seen >= record.fields.keys() and "fetched" not in record.extra:
                    old.append(key)
                seen |= record.fields.keys()
        self.remove_items(old)

    def mark(self, names: Sequence[Name], mark: int) -> None:
        """Mark rows: 0 for rows in the queue, otherwise the first checkpoint without them."""
        keys, priorities = self._find(names)
        if len(keys):
            self._table.update_priorities(keys, priorities % 1 + mark)

    def remove(self, names: Sequence[Name]) -> None:
        """Remove rows."""
        self.remove_items(self._find(names)[0])

    def remove_items(self, keys: Any) -> None:
        """Remove items by their keys in the table."""
        if len(keys):
            self._table.remove(np.asarray(keys, np.uint64))

    def remove_marked(self, last: int) -> None:
        """Remove the rows with a mark from 1 to ``last``."""
        items = self._table.items()
        marks = items.info.priorities // 1
        self.remove_items(items.keys[(marks >= 1) & (marks <= last)])


def _length(number: int) -> int:
    """Return the length of records of a class."""
    bits, eighths = divmod(number, 8)
    return (8 + eighths) << max(0, bits - 4)


def merge(records: Iterable[Record]) -> dict[Name, Record]:
    """Join the records of each row: later values and tags replace earlier ones."""
    rows: dict[Name, Record] = {}
    for record in sorted(records, key=lambda record: record.extra["at"]):
        row = rows.setdefault((record.partition, record.key), Record(record.partition, record.key))
        row.fields.update(record.fields)
        if record.tags is not None:
            row.tags = {**(row.tags or {}), **record.tags}
        row.extra.update(record.extra)
    return rows
