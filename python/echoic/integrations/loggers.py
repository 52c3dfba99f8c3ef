"""Log the numbers of stores to TensorBoard, Weights & Biases or MLflow.

None of them is imported here but by :func:`summary_writer`: a logger takes the writer that the
program has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["StatsLogger", "log_function", "summary_writer"]

# Numbers that no curve is wanted of: a seed, and those of each of many producers.
_LEFT_OUT = frozenset({"seed", "sources", "source_waits"})


class StatsLogger:
    """Log what stores count whenever it is called, but no more often than ``every`` seconds.

    A number has the name of its store and its own, such as ``replay/size``. Numbers in groups are
    joined by dots, as ``stream/copy_time.p99``. What is not a finite number is left out.

    Args:
        stores: What to log, by the name to log it under: tables, streams, rollout tables, local
            buffers, an :class:`echoic.rl.Run`, or anything else with ``stats()`` or ``metrics()``;
            a :class:`~echoic.Server` for all that it has.
        writer: A ``SummaryWriter`` of TensorBoard, a run of W&B, the module ``mlflow`` with a run
            under way, or a function of a dict of numbers and a step.
        every: Least seconds between two logs; calls in between return at once. Default: 10.

    Raises:
        ArgumentError: If a store has no numbers, the writer is not one of these, or ``every`` is
            negative.

    Examples:
        >>> from echoic import ReplayBuffer
        >>> from echoic.integrations.loggers import StatsLogger
        >>> buffer = ReplayBuffer({"obs": 0.0}, 100)
        >>> log = StatsLogger({"replay": buffer}, lambda numbers, step: print(step, numbers))
        >>> log(1)
        1 {'replay/size': 0, 'replay/capacity': 100, 'replay/memory_bytes': 0}
    """

    def __init__(self, stores: Mapping[str, Any], writer: Any, *, every: float = 10.0) -> None:
        if not every >= 0:
            raise ArgumentError(f"every must be a number of seconds >= 0, got {every}")
        self._reads: dict[str, Callable[[], Any]] = {}
        for name, store in stores.items():
            read = getattr(store, "metrics", None) or getattr(store, "stats", None)
            if not callable(read):
                raise ArgumentError(
                    f"expected a store with stats() as {name!r}, got a {type(store).__name__}"
                )
            self._reads[name] = read
        self._write = log_function(writer)
        self._every = every
        self._next = -math.inf

    def __call__(self, step: int) -> None:
        """Log the numbers of all stores at a step, if it is time for it.

        Raises:
            EchoicError: What ``stats()`` of a store raises, for example because its server is away.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        found: dict[str, float] = {}
        for name, read in self._reads.items():
            found.update(_numbers(f"{name}/", read()))
        self._write(found, step)


def log_function(writer: Any) -> Callable[[dict[str, float], int], Any]:
    """Return a function that gives numbers of a step to a logging library's writer.

    Raises:
        ArgumentError: If the writer is of no known kind.
    """
    if hasattr(writer, "add_scalar"):

        def add(numbers: dict[str, float], step: int) -> None:
            for name, value in numbers.items():
                writer.add_scalar(name, value, step)

        return add
    # MLflow has both; W&B only the second.
    for method in ("log_metrics", "log"):
        if hasattr(writer, method):
            log = getattr(writer, method)
            return lambda numbers, step: log(numbers, step=step)
    if callable(writer):
        write: Callable[[dict[str, float], int], Any] = writer
        return write
    raise ArgumentError(
        "expected a SummaryWriter, a run of W&B, the module mlflow or a function of numbers and a "
        f"step, got a {type(writer).__name__}"
    )


def summary_writer(folder: str) -> Any:
    """Return a writer of TensorBoard's files, or ``None`` if no package has one."""
    for name in ("tensorboardX", "torch.utils.tensorboard"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).SummaryWriter(folder)
    return None


def _numbers(prefix: str, stats: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers of statistics in any of their forms, with their names."""
    for name, value in _items(stats):
        if name in _LEFT_OUT or name.startswith("_"):
            continue
        if isinstance(value, (int, float, np.number)):
            if math.isfinite(value):
                yield f"{prefix}{name}", value  # type: ignore[misc]
        else:
            yield from _numbers(f"{prefix}{name}.", value)


def _items(stats: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(stats, "as_dict"):
        stats = stats.as_dict()
    elif hasattr(stats, "_asdict"):
        stats = stats._asdict()
    elif dataclasses.is_dataclass(stats):
        stats = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
    if isinstance(stats, dict):
        yield from stats.items()
