"""The worker processes of a :class:`~echoic.collectors.GymnasiumCollector`, as it sees them."""

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
    """A worker process with what was asked of it and what came."""

    def __init__(self, setup: Setup, folder: Path, version: int) -> None:
        super().__init__(run, setup, folder, name=f"worker {setup.worker}")
        self.setup = setup
        self.groups: deque[dict[str, Any]] = deque()
        # The versions of the rollouts that were asked for and have not come.
        self.asked: deque[int] = deque()
        self.ready = False
        # The version of the weights with which it is asked what a step looks like.
        self.first = version


def end_all(workers: list[RolloutWorker], folder: Path, process: int) -> None:
    """End all workers and remove what they read; not in a forked child, whose they are not."""
    if os.getpid() == process:
        stop_all(workers)
        shutil.rmtree(folder, ignore_errors=True)


def by_value(thing: Any) -> bytes:
    """Pickle a function with its code, where it could not be imported."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(thing)
    dumped: bytes = cloudpickle.dumps(thing)
    return dumped
