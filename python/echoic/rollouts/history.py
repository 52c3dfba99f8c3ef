"""What was done with a rollout table, once more."""

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
    """Return a point as the core names it: its times are whole milliseconds."""
    if not value >= 0:
        raise ValueError(f"a {what} to go to must be at least 0, got {value}")
    if what == "time":
        return what, round(value * 1000)
    number: Any = value
    return what, operator.index(number)


class Delivered(NamedTuple):
    """A batch as it was delivered."""

    #: The number of the record in the journal that tells of it.
    record: int
    #: When that was, in seconds of the table's time.
    time: float
    #: What was delivered, bit for bit. Its lease is over.
    batch: RolloutBatch


class History:
    """The past of a table whose directory nobody has open. Nothing in it is changed.

    It begins with the first change, if the table was made with ``history=True``, else with the
    oldest checkpoint. Every decision is taken again from the changes and their times, and each
    batch is compared with what the journal says of it.

    Args:
        directory: The table's.
        at: Where to begin: ``("batch", 7)`` when the batch of this number was just made,
            ``("record", n)`` before a record of the journal, ``("time", seconds)`` at a time of
            the table, as :attr:`time` and :attr:`Delivered.time` tell it.

    Raises:
        JournalError: The files are damaged, do not have that point, or something else came of a
            change than then.
        OSError: They can't be read, or somebody has the table open.

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
        """Open it; see the class for the arguments."""
        self._native = _native.RolloutHistory(directory, None if at is None else _point(*at))

    def batches(
        self, form: Form = "flat", *, width: int = 0, left: bool = False
    ) -> Iterator[Delivered]:
        """Go on through the batches that were delivered; the arguments are those of ``sample``."""
        while (found := self._native.next_batch((form, width, left))) is not None:
            record, time, native = found
            # Nobody can acknowledge a batch of the past, so it needs no table.
            yield Delivered(record, time, RolloutBatch(None, native, form))

    def __iter__(self) -> Iterator[Delivered]:
        """Go on through the batches that were delivered."""
        return self.batches()

    def go_to(self, what: Literal["record", "batch", "time"], value: float) -> bool:
        """Go on to a later point, or to the end; whether it is there."""
        return self._native.at(*_point(what, value))

    def stats(self) -> RolloutStats:
        """Return what the table had counted by then, without waits and sources."""
        return RolloutStats._of(self._native.stats())

    @property
    def settings(self) -> dict[str, Any] | None:
        """What the table was told, as arguments of it; ``None`` before the first record."""
        settings = self._native.settings
        return None if settings is None else as_arguments(settings)

    @property
    def record(self) -> int:
        """The number of the next record."""
        return self._native.record

    @property
    def end(self) -> int:
        """The number behind the last record."""
        return self._native.end

    @property
    def time(self) -> float:
        """The table's time, in seconds."""
        return self._native.time
