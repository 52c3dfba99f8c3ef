"""Write a server's tables to disk on a schedule, and keep the newest copies."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = ["Checkpointer"]


@dataclass(frozen=True)
class Checkpointer:
    """Checkpoints of a server's tables in a directory.

    Taking one does not stop inserts and samples. Each table is written as it was at one moment,
    with its limiter's counts, its selectors and its random state. Bytes that trajectories share,
    and that an earlier checkpoint has, are not written again.

    Args:
        path: The directory, which is created if it does not exist. It must hold nothing else.
        keep: How many of the newest checkpoints to keep.
        every: Seconds between two checkpoints. ``None``: only ``server.checkpoint()`` makes them.
        load: Whether a server starts from the newest checkpoint in the directory.

    Examples:
        >>> import tempfile
        >>> from echoic import Checkpointer, Server, Table, connect
        >>> with tempfile.TemporaryDirectory() as path:
        ...     table = Table("numbers", 0, capacity=10)
        ...     with Server(table, checkpointer=Checkpointer(path)) as server:
        ...         connect(server).table("numbers").add(7)
        ...         _ = server.checkpoint()
        ...     table = Table("numbers", 0, capacity=10)
        ...     with Server(table, checkpointer=Checkpointer(path)) as server:
        ...         print(connect(server).table("numbers").sample(1).data)
        [7]
    """

    path: str | os.PathLike[str]
    keep: int = 3
    every: float | None = None
    load: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.keep < 1:
            raise ValueError(f"keep must be at least 1, got {self.keep}")
        if self.every is not None and not self.every > 0:
            raise ValueError(f"every must be a number of seconds above 0, got {self.every}")

    @property
    def root(self) -> Path:
        """The directory, as a path."""
        return Path(self.path)


class Schedule:
    """Call a function at intervals, in a thread."""

    def __init__(self, every: float, call: Callable[[], object]) -> None:
        """Begin."""
        self._every = every
        self._call = call
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echoic-checkpointer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(min(self._every, threading.TIMEOUT_MAX)):
            self._call()

    def stop(self) -> None:
        """Stop after the call that is running."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
