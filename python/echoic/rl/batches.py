"""Iterate over batches, each of which is acknowledged when the next one is asked for."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from echoic.errors import ClosedError, EchoicError
from echoic.rl.background import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

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
        # The batch that is learned from, and whether a loop of asyncio does so.
        self._batch: RolloutBatch | None = None
        self._is_async = False

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        self._is_async = True
        return self

    def __next__(self) -> RolloutBatch:
        """Acknowledge the batch before, and wait for the next one."""
        try:
            self._batch = self._take()
        except ClosedError:
            raise StopIteration from None
        return self._batch

    async def __anext__(self) -> RolloutBatch:
        """Acknowledge the batch before, and wait for the next one without holding up the loop."""
        try:
            self._batch = await in_thread(self._take, _return)
        except ClosedError:
            raise StopAsyncIteration from None
        return self._batch

    def _take(self) -> RolloutBatch:
        before, self._batch = self._batch, None
        if before is not None and not before.is_over:
            before.ack()
        return self._table().sample(**self._how)

    def __del__(self) -> None:
        """End the lease of the last batch of a loop that was left."""
        batch = self._batch
        if batch is None or batch.is_over:
            return
        if self._is_async:
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=_settle, args=(batch,)).start()
        else:
            _settle(batch)


def _return(batch: RolloutBatch) -> None:
    """Return a batch that was not used."""
    with contextlib.suppress(EchoicError):
        if not batch.is_over:
            batch.nack()


def _settle(batch: RolloutBatch) -> None:
    """Acknowledge a batch if it was learned from, and return it otherwise."""
    with contextlib.suppress(EchoicError):
        if batch._table.version() > batch.target:
            batch.ack()
    _return(batch)
