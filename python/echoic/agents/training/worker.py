"""What the processes of a run have in common, and what those of its actors do."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from echoic import connect
from echoic.agents.training.actors import ActorGroup
from echoic.agents.training.config import from_json
from echoic.errors import ClosedError, DisconnectedError, WaitTimeoutError
from echoic.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["IMPORTS", "act", "act_in_process", "prepare", "start"]

TABLE = "segments"
# Seconds that a process may take until it does anything, on a machine that is busy.
IMPORTS = 180.0


def start(work: Callable[..., None], task: dict[str, Any], name: str, folder: Path) -> Worker:
    """Start a process for a task; what it prints goes to a file of its own in the folder."""
    # A process has one thread of torch: there are as many processes as are wanted.
    env = {"OMP_NUM_THREADS": "1"}
    return Worker(work, task, name=name, env=env, log=folder / f"{name}.log")


def prepare(task: dict[str, Any]) -> None:
    """Import what the task's settings need."""
    torch.set_num_threads(1)
    for module in task["config"]["worker_imports"]:
        importlib.import_module(module)


def act_in_process(_connection: object, task: dict[str, Any]) -> None:
    """Act in a process of its own."""
    prepare(task)
    act(task)


def act(task: dict[str, Any]) -> None:
    """Act until the server is gone."""
    config = from_json(task["config"])
    address, token = task["address"], task.get("token")
    with connect(address, token=token) as connection:
        subscription = connection.weights().subscribe()
        group = ActorGroup(config, task["actors"], task["seed"], generation=task["generation"])
        try:
            group.load(subscription.wait(timeout=60.0))
            while True:
                group.refresh(subscription)
                segments = group.collect()
                connection.table(TABLE).extend(segments, version=group.version)
                # The table has room for so many, and waits with its answer: so do the actors.
                connection.flush()
        except (ClosedError, DisconnectedError, WaitTimeoutError):
            return
        finally:
            group.close()
