"""Start and stop the worker processes of a :class:`~echoic.collectors.GymnasiumCollector`."""

from __future__ import annotations

import os
import pickle
import shutil
from collections import deque
from typing import TYPE_CHECKING, Any

from echoic.collectors._gymnasium_worker import Setup, run
from echoic.workers import Worker, stop_all

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RolloutWorker", "by_value", "end_all"]


class RolloutWorker(Worker):
    """A worker process with its requested and received rollouts."""

    def __init__(self, setup: Setup, folder: Path, version: int) -> None:
        super().__init__(run, setup, folder, name=f"worker {setup.worker}")
        self.setup = setup
        self.rollouts: deque[dict[str, Any]] = deque()
        # Versions of the weights of the rollouts that were requested and have not arrived.
        self.requested: deque[int] = deque()
        self.ready = False
        # The version of the weights for the example of a step.
        self.first = version


def end_all(workers: list[RolloutWorker], folder: Path, process: int) -> None:
    """End all workers and remove their files; in a forked child do nothing."""
    if os.getpid() == process:
        stop_all(workers)
        shutil.rmtree(folder, ignore_errors=True)


def by_value(thing: Any) -> bytes:
    """Pickle a function, with its code if cloudpickle is installed."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(thing)
    dumped: bytes = cloudpickle.dumps(thing)
    return dumped
