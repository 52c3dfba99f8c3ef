"""Methods of all tables: of this process, of a server and of several servers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from echoic.batches import Batches
from echoic.limiters import Limiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic._native import Batch
    from echoic.selectors import Selector

__all__ = ["TableMethods", "settings"]


class _Table(Protocol):
    """The methods of a table that this module calls."""

    def sample(self, n: int, timeout: float | None = None, beta: float = 1.0) -> Batch: ...
    def _set_limiter(self, limiter: tuple[str, list[float]]) -> None: ...
    def _batch_requests(self, n: int, beta: float) -> Any: ...


class TableMethods:
    """Base of the tables of this process, of a server and of several servers."""

    __slots__ = ()

    def batches(
        self: _Table,
        n: int,
        *,
        prefetch: int = 2,
        workers: int = 1,
        timeout: float | None = None,
        beta: float = 1.0,
        device: Any = None,
    ) -> Batches:
        """Iterate over batches that are fetched ahead.

        Args:
            n: Number of items in a batch, at least 1.
            prefetch: Number of batches to fetch before they are asked for. They count as sampled.
                0 draws each when it is asked for. Default: 2.
            workers: Number of threads that fetch from a table of this process, or of several
                servers; a table of one remote server needs none. Default: 1.
            timeout: Seconds that ``next`` waits; ``None`` waits forever.
            beta: Exponent of the importance weights: finite, at least 0. Default: 1.
            device: Where batches get tensors of PyTorch, which the threads copy there; numpy arrays
                when ``None``.

        Raises:
            ValueError: If ``beta`` is out of range. Nothing is drawn.

        Examples:
            >>> import numpy as np
            >>> from echoic import Table
            >>> table = Table("numbers", np.int64(0), capacity=100, seed=3)
            >>> table.extend(np.arange(100))
            >>> with table.batches(4) as batches:
            ...     print(len(next(batches)))
            4
        """
        # Checked here, since a remote table would report it with the first batch.
        if not (math.isfinite(beta) and beta >= 0):
            raise ValueError(f"beta must be a finite number of at least 0, got {beta}")
        options: Any = {"prefetch": prefetch, "workers": workers, "timeout": timeout}
        if device is not None:
            from echoic.tensors import DeviceBatches

            return DeviceBatches(lambda wait: self.sample(n, wait, beta), device, **options)
        return Batches(
            lambda wait: self.sample(n, wait, beta), self._batch_requests(n, beta), **options
        )

    def _batch_requests(
        self,
        n: int,
        beta: float,
    ) -> Callable[[], Callable[[float], Batch]] | None:
        """Return a function that asks for a batch without waiting, if the table has one."""
        return None

    def flush(self, timeout: float | None = None) -> None:
        """Wait until what was added and updated before is in the table.

        A table of this process has it at once. One of a server waits for all tables of its
        connection, see :meth:`echoic.Connection.flush`.

        Args:
            timeout: Seconds to wait; ``None`` waits forever.

        Raises:
            WaitTimeoutError: If it was not in time. It is still being delivered.
            DisconnectedError: If the server was away for longer than ``reconnect``.
        """

    def set_limiter(self: _Table, limiter: Limiter) -> None:
        """Replace the limiter, keeping the counts of additions and samples.

        Raises:
            LimiterError: If a caller would wait forever with it; the old limiter is kept.
        """
        self._set_limiter(settings("limiter", Limiter, limiter))

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        from echoic.views.notebook import table_html

        return table_html(self)


def settings(name: str, kind: type[Selector | Limiter], value: Any) -> tuple[str, list[float]]:
    """Return a selector or a limiter in the form that the native core takes."""
    if not isinstance(value, kind):
        module = f"echoic.{kind.__name__.lower()}s"
        raise TypeError(f"{name} must be one of {module}, got a {type(value).__name__}")
    return value._settings()
