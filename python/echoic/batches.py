"""Batches one after the other, fetched before they are taken, and the types of ``batch.info``."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from echoic._native import BatchInfo, Histogram, StreamStats
from echoic.errors import ClosedError, EchoicError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from echoic._native import Batch

    # A batch that was asked for: waits for it, up to some seconds.
    Pending: TypeAlias = Callable[[float], Batch]

__all__ = ["BatchInfo", "Batches", "Histogram", "StreamStats"]

# Seconds after which a thread that waits for the table checks whether it is still wanted.
_LOOK = 0.1


class Batches:
    """An iterator over batches of a table; ``table.batches`` makes one.

    ``prefetch`` batches are on their way before they are asked for: threads fetch them, or a server
    elsewhere sends them, which needs no thread. They count as sampled, whether they are taken or
    not. With 0 a batch is drawn when it is taken. The iterator ends when the table or its
    connection is closed, or with :meth:`close`, which also frees a thread that waits in ``next``.
    """

    def __init__(
        self,
        sample: Callable[[float | None], Batch],
        start: Callable[[], Pending] | None = None,
        *,
        prefetch: int = 2,
        workers: int = 1,
        timeout: float | None = None,
    ) -> None:
        """Take a function that samples a batch within a timeout, and one that asks for one."""
        for name, value, least in (("prefetch", prefetch, 0), ("workers", workers, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self._sample = sample
        self._start = start if prefetch else None
        self._asked: deque[Pending] = deque()
        self._prefetch = prefetch
        # No lock waits for longer.
        self._timeout = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        self._batches: deque[Batch] = deque()
        # Guards all that follows.
        self._changed = threading.Condition()
        self._on_their_way = 0
        self._reason = "MIN_SIZE"
        self._closed = False
        # Nothing more is fetched; what was fetched before can still be taken.
        self._ended = False
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._fetch, name=f"echoic-batches-{number}", daemon=True)
            for number in range(workers if prefetch and start is None else 0)
        ]
        if self._start is not None:
            self._ask(self._start)
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            WaitTimeoutError: If no batch came within the timeout. The call can be repeated.
        """
        if self._start is not None:
            return self._answered(self._start)
        return self._taken() if self._prefetch else self._drawn()

    def _ask(self, start: Callable[[], Pending]) -> None:
        """See to it that enough batches are on their way."""
        # When the connection is closed, no more are asked for, and the iterator ends.
        with self._changed, contextlib.suppress(ClosedError):
            while len(self._asked) < self._prefetch and not self._closed:
                self._asked.append(start())

    def _answered(self, start: Callable[[], Pending]) -> Batch:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        with self._changed:
            # Together: another thread may be about to take the only one.
            self._ask(start)
            if self._closed or not self._asked:
                raise StopIteration
            pending = self._asked.popleft()
        while not self._closed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                batch = pending(_LOOK if left is None else min(_LOOK, left))
            except ClosedError:
                self._closed = True
            except WaitTimeoutError:
                if left is not None and left <= _LOOK:
                    # It may come yet. A call without a wait at least has the reason for its error.
                    self._put_back(pending)
                    return self._sample(0.0)
            except EchoicError:
                self._closed = True
                raise
            except BaseException:
                self._put_back(pending)
                raise
            else:
                # While this one is used, the next ones come. Their errors are raised then.
                with contextlib.suppress(EchoicError):
                    self._ask(start)
                return batch
        raise StopIteration

    def _put_back(self, pending: Pending) -> None:
        with self._changed:
            self._asked.appendleft(pending)

    def _drawn(self) -> Batch:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while not self._closed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return self._sample(_LOOK if left is None else min(_LOOK, left))
            except ClosedError:
                break
            except WaitTimeoutError:
                if left is not None and left <= _LOOK:
                    raise
        raise StopIteration

    def _taken(self) -> Batch:
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._batches or self._closed or self._has_ended(), self._timeout
            )
            if self._batches and not self._closed:
                batch = self._batches.popleft()
                self._changed.notify_all()
                return batch
            if self._error is not None and not self._closed:
                self._closed = True
                raise self._error
            if not ready:
                error = WaitTimeoutError(f"timed out: the table gave no batch ({self._reason})")
                error.reason = self._reason
                raise error
        raise StopIteration

    def _has_ended(self) -> bool:
        """Whether no batch is fetched any more, by any thread."""
        return self._ended and not self._on_their_way

    def _fetch(self) -> None:
        """Keep the batches coming until this or the table is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._closed
                        or self._ended
                        or len(self._batches) + self._on_their_way < self._prefetch
                    )
                )
                if self._closed or self._ended:
                    return
                self._on_their_way += 1
            batch, error, ended = None, None, False
            try:
                batch = self._sample(_LOOK)
            except WaitTimeoutError as late:
                self._reason = late.reason
            except ClosedError:
                ended = True
            except BaseException as failure:  # raised by the iteration
                error, ended = failure, True
            with self._changed:
                self._on_their_way -= 1
                if batch is not None:
                    self._batches.append(batch)
                self._error = self._error or error
                self._ended = self._ended or ended
                self._changed.notify_all()

    def close(self) -> None:
        """End it; batches that were fetched and not taken are dropped. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._batches.clear()
        self._asked.clear()

    def __repr__(self) -> str:
        """Return how many batches are fetched, and whether the iterator is closed."""
        fetched = len(self._batches) + len(self._asked)
        closed = ", closed" if self._closed else ""
        return f"Batches(fetched={fetched}, prefetch={self._prefetch}{closed})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
