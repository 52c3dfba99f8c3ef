"""Methods that every table has, wherever its items are."""

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
    """What the methods need of a table."""

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
            n: How many items each has, at least 1.
            prefetch: How many batches to fetch before they are asked for. They count as sampled;
                with 0 each is drawn when it is taken.
            workers: How many threads fetch from a table of this process, or of several servers; one
                server elsewhere needs none.
            timeout: Seconds that ``next`` waits; ``None`` waits forever.
            beta: The exponent of the importance weights: finite, at least 0.
            device: Where batches get tensors of PyTorch, which the threads copy there; numpy arrays
                when ``None``.

        Raises:
            ValueError: ``beta`` is out of range. Nothing is drawn.

        Examples:
            >>> import numpy as np
            >>> from echoic import Table
            >>> table = Table("numbers", np.int64(0), capacity=100, seed=3)
            >>> table.extend(np.arange(100))
            >>> with table.batches(4) as batches:
            ...     print(len(next(batches)))
            4
        """
        # A server elsewhere would draw before the first batch is taken with it.
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
        """Return what asks for a batch without waiting for it, if the table can."""
        return None

    def set_limiter(self: _Table, limiter: Limiter) -> None:
        """Replace the limiter; what was counted so far still counts.

        Raises:
            LimiterError: The table could not work with it, and goes on with the old one.
        """
        self._set_limiter(settings("limiter", Limiter, limiter))


def settings(name: str, kind: type[Selector | Limiter], value: Any) -> tuple[str, list[float]]:
    """Return a selector or a limiter as the native core takes it."""
    if not isinstance(value, kind):
        module = f"echoic.{kind.__name__.lower()}s"
        raise TypeError(f"{name} must be one of {module}, got a {type(value).__name__}")
    return value._settings()
