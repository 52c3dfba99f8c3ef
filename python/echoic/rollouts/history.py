"""Replay the journal of a rollout table: its batches and statistics at any time."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from echoic import _native
from echoic.rollouts.batch import RolloutBatch
from echoic.rollouts.stats import RolloutStats
from echoic.rollouts.table import as_arguments

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from echoic.rollouts.table import Form

__all__ = ["Delivered", "History"]

Point = tuple[Literal["record", "batch"], int] | tuple[Literal["time"], float]


def _point(what: str, value: float) -> tuple[str, int]:
    """Return a point as the core takes it, with times in whole milliseconds."""
    if not value >= 0:
        raise ValueError(f"{what} must be at least 0, got {value}")
    if what == "time":
        return what, round(value * 1000)
    number: Any = value
    return what, operator.index(number)


class Delivered(NamedTuple):
    """A batch as it was delivered."""

    #: The number of its record in the journal.
    record: int
    #: The table's time of the delivery, in seconds.
    time: float
    #: The batch, bit for bit. Its lease has ended.
    batch: RolloutBatch


class History:
    """Replay the journal of a table that no process has open. The files are not changed.

    It begins with the first change if the table was made with ``history=True``, otherwise with the
    oldest checkpoint. All decisions are computed again from the changes and their times, and each
    batch is compared with its record in the journal.

    Args:
        directory: The directory of the table.
        at: Where to begin: ``("batch", 7)`` after the batch of this number was made,
            ``("record", n)`` before a record of the journal, ``("time", seconds)`` at a time of
            the table, in the unit of :attr:`time` and :attr:`Delivered.time`.

    Raises:
        JournalError: If the files are damaged or do not have that point, or a change had another
            result than the journal says.
        OSError: If the files can't be read, or a process has the table open.

    Examples:
        >>> import tempfile
        >>> from echoic.rollouts import History, RolloutTable
        >>> folder = tempfile.TemporaryDirectory()
        >>> with RolloutTable("t", {"tokens": "int32"}, batch_groups=1, directory=folder.name,
        ...                   history=True) as table:
        ...     for token in (7, 8):
        ...         status = table.reserve().add({"tokens": [token]})
        ...         batch = table.sample()
        >>> [delivered.batch["tokens"].tolist() for delivered in History(folder.name)]
        [[7], [8]]
        >>> History(folder.name, at=("batch", 1)).stats().delivered
        1
        >>> folder.cleanup()
    """

    def __init__(self, directory: str | os.PathLike[str], at: Point | None = None) -> None:
        self._native = _native.RolloutHistory(directory, None if at is None else _point(*at))

    def batches(
        self, form: Form = "flat", *, width: int = 0, left: bool = False
    ) -> Iterator[Delivered]:
        """Yield the next batches that were delivered; the arguments are those of ``sample``."""
        while (found := self._native.next_batch((form, width, left))) is not None:
            record, time, native = found
            # Without a table, since it can't be acknowledged.
            yield Delivered(record, time, RolloutBatch(None, native, form))

    def __iter__(self) -> Iterator[Delivered]:
        """Yield the next batches that were delivered."""
        return self.batches()

    def go_to(self, what: Literal["record", "batch", "time"], value: float) -> bool:
        """Go to a later point, or to the end; return whether the point exists."""
        return self._native.at(*_point(what, value))

    def stats(self) -> RolloutStats:
        """Return the statistics at this point, without waits and sources."""
        return RolloutStats._of(self._native.stats())

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings of the table, as its arguments; ``None`` before the first record."""
        settings = self._native.settings
        return None if settings is None else as_arguments(settings)

    @property
    def record(self) -> int:
        """The number of the next record."""
        return self._native.record

    @property
    def end(self) -> int:
        """The number of the last record, plus 1."""
        return self._native.end

    @property
    def time(self) -> float:
        """The table's time, in seconds."""
        return self._native.time
