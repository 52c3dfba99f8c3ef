"""Iterate over batches, each of which is acknowledged when the next one is asked for."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from echoic.errors import ClosedError, EchoicError
from echoic.rl.background import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping

    from typing_extensions import Self

    from echoic.rollouts import RolloutBatch, RolloutTable

__all__ = ["Batches"]


class Batches:
    """An iterator over batches, with ``for`` or ``async for``, until the run is closed.

    A batch is acknowledged when the next one is asked for. Of the last one of a loop that is left,
    by ``break`` or an exception, that depends on whether it was learned from: it is acknowledged if
    a version above its target was published since, and returned otherwise.
    """

    def __init__(self, table: Callable[[], RolloutTable], **how: Any) -> None:
        self._table, self._how = table, how
        self._iterator: Generator[RolloutBatch, None, None] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RolloutBatch:
        """Acknowledge the batch before, and wait for the next one."""
        if self._iterator is None:
            self._iterator = _each(self._table, self._how)
        return next(self._iterator)

    async def __aiter__(self) -> AsyncGenerator[RolloutBatch, None]:
        """Yield batches without holding up the loop."""
        table = await in_thread(self._table)
        while True:
            try:
                batch = await in_thread(lambda: table.sample(**self._how), _return)
            except ClosedError:
                return
            try:
                yield batch
            except BaseException:
                await in_thread(lambda: _settle(table, batch))  # noqa: B023 - runs before the next
                raise
            try:
                if not batch.is_over:
                    await in_thread(batch.ack)
            except ClosedError:
                return


def _each(
    find: Callable[[], RolloutTable], how: Mapping[str, Any]
) -> Generator[RolloutBatch, None, None]:
    """Yield batches; apart from the class, so that it ends when a loop is left."""
    table = find()
    while True:
        try:
            batch = table.sample(**how)
        except ClosedError:
            return
        try:
            yield batch
        except BaseException:
            _settle(table, batch)
            raise
        try:
            if not batch.is_over:
                batch.ack()
        except ClosedError:
            return


def _return(batch: RolloutBatch) -> None:
    """Return a batch that was not used."""
    with contextlib.suppress(EchoicError):
        if not batch.is_over:
            batch.nack()


def _settle(table: RolloutTable, batch: RolloutBatch) -> None:
    """End the lease of the last batch of a loop that was left."""
    with contextlib.suppress(EchoicError):
        if not batch.is_over and table.version > batch.target:
            batch.ack()
    _return(batch)
