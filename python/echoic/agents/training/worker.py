"""A process of a run: `python -m echoic.agents.training.worker`, with its task on standard input.

It ends when its input does, so that none outlives the run, however that ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from typing import Any

import torch

from echoic import connect
from echoic.agents.training.actors import ActorGroup
from echoic.agents.training.config import from_json
from echoic.agents.training.learner import learner_of
from echoic.agents.training.shards import answer
from echoic.errors import ClosedError, DisconnectedError, WaitTimeoutError
from echoic.weights import WeightClient

__all__ = ["act", "main"]

TABLE = "segments"


def main() -> None:
    """Do the task."""
    torch.set_num_threads(1)
    # What environments print must not get into what is written to the one who reads it.
    out = os.dup(1)
    os.dup2(2, 1)
    task = json.loads(_line())
    for module in task["config"]["worker_imports"]:
        importlib.import_module(module)
    if task["kind"] == "actors":
        threading.Thread(target=_leave_with_input, daemon=True).start()
        act(task)
        return
    learner = learner_of(from_json({**task["config"], "device": "cpu"}), task["seed"])
    while True:
        try:
            data = memoryview(answer(learner, _read))
        except EOFError:
            return
        while data:
            data = data[os.write(out, data) :]


def act(task: dict[str, Any]) -> None:
    """Act until the server is gone."""
    config = from_json(task["config"])
    address, token = task["address"], task.get("token")
    with connect(address, token=token) as client, WeightClient(address, token=token) as weights:
        subscription = weights.subscribe()
        group = ActorGroup(config, task["actors"], task["seed"], generation=task["generation"])
        try:
            group.load(subscription.wait(timeout=60.0))
            while True:
                group.refresh(subscription)
                segments = group.collect()
                client.table(TABLE).extend(segments, version=group.version)
                # The table has room for so many, and waits with its answer: so do the actors.
                client.flush()
        except (ClosedError, DisconnectedError, WaitTimeoutError):
            return
        finally:
            group.close()


def _line() -> bytes:
    parts = []
    while (one := os.read(0, 1)) not in {b"\n", b""}:
        parts.append(one)
    return b"".join(parts)


def _read(count: int) -> bytes:
    parts = []
    while count:
        part = os.read(0, count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _leave_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
    sys.exit(0)
