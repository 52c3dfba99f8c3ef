"""The parts of a gradient, computed side by side: in threads, or in processes that may die.

Both give what one part after the other gives, to the last bit: each part has its own rows, and sums
are made in the order of the parts.
"""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load, save

from echoic.agents.learners.steps import PPOTrainingStep
from echoic.agents.training.config import as_json, from_json
from echoic.agents.training.learner import learner_of
from echoic.agents.training.worker import IMPORTS, prepare, start
from echoic.workers import Supervisor, Worker

if TYPE_CHECKING:
    from pathlib import Path

    from echoic.agents.training.config import TrainingConfig
    from echoic.agents.training.learner import VectorLearner
    from echoic.workers import Connection

__all__ = ["ProcessShards", "ThreadShards"]

_log = logging.getLogger("echoic.agents.training")
# What asking a process raises that is gone, or says nonsense.
_GONE = (OSError, EOFError, ValueError, WaitedTooLong)


class ThreadShards:
    """Parts in threads, on the learner's own networks."""

    def __init__(self, learner: VectorLearner, config: TrainingConfig) -> None:
        self._learner = learner
        self._pool = ThreadPoolExecutor(config.num_learners, "echoic-learner")
        self.restarts = 0

    def gradients(self, parts: list[Any]) -> list[Any]:
        """The gradient of each part, and what its loss is made of."""
        return list(self._pool.map(lambda part: self._learner.gradient(*part), parts))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class ProcessShards:
    """The first part in this process, and the others in processes of their own.

    The part of one that died, or is silent for ``timeout`` seconds, is computed here, and another
    process takes its place.
    """

    def __init__(
        self, learner: VectorLearner, config: TrainingConfig, seed: int, folder: Path
    ) -> None:
        self._learner = learner
        self._timeout = config.execution_config.timeout
        task = {"config": as_json(config), "seed": seed}
        self._workers = Supervisor[Worker](
            lambda i, _: start(_learn, task, f"learner-{i}", folder),
            config.num_learners - 1,
            config.max_restarts,
        )
        self._workers.start()
        self._pool = ThreadPoolExecutor(max(1, config.num_learners - 1), "echoic-learner")

    @property
    def restarts(self) -> int:
        """How many processes were replaced."""
        return self._workers.restarts

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [one.pid for one in self._workers.members]

    def gradients(self, parts: list[Any]) -> list[Any]:
        """The gradient of each part, and what its loss is made of."""
        networks = {name: one.cpu() for name, one in self._learner.tensors().items()}
        asked = [
            self._pool.submit(self._ask, i, networks, *part) for i, part in enumerate(parts[1:])
        ]
        found = [self._learner.gradient(*parts[0])]
        for i, (answered, part) in enumerate(zip(asked, parts[1:], strict=True)):
            try:
                # It may be silent for longer while it is still importing.
                importing = self._workers.members[i].started + IMPORTS - time.monotonic()
                found.append(answered.result(max(self._timeout, importing)))
            except _GONE as error:
                _log.warning("a part of the gradient is computed again: %r", error)
                # The thread that waits for it wakes up: nothing comes from one that is gone.
                self._workers.replace(i)
                found.append(self._learner.gradient(*part))
        return found

    def close(self) -> None:
        """End the processes."""
        self._workers.stop()
        self._pool.shutdown()

    def _ask(self, i: int, networks: Any, steps: PPOTrainingStep, anchor: Any) -> Any:
        connection = self._workers.members[i].connection
        tensors = {f"networks/{name}": one for name, one in networks.items()}
        for field in fields(steps):
            if (value := getattr(steps, field.name)) is not None:
                tensors[f"steps/{field.name}"] = value.cpu()
        if anchor is not None:
            tensors["anchor"] = anchor.cpu()
        connection.send_bytes(_saved(tensors))
        words, told = json.loads(connection.recv_bytes()), load(connection.recv_bytes())
        device = self._learner.device
        slopes = [
            told[str(j)].to(device) if str(j) in told else None for j in range(words["count"])
        ]
        return slopes, words["parts"]


def _saved(tensors: dict[str, Any]) -> bytes:
    saved: bytes = save({name: one.detach().contiguous().clone() for name, one in tensors.items()})
    return saved


def _learn(connection: Connection, task: dict[str, Any]) -> None:
    """Compute gradients in a process of its own, until the run ends the connection."""
    prepare(task)
    learner = learner_of(from_json({**task["config"], "device": "cpu"}), task["seed"])
    while True:
        tensors = load(connection.recv_bytes())
        with torch.no_grad():
            learner.load_tensors(_under("networks/", tensors))
        steps = PPOTrainingStep(**_under("steps/", tensors))
        slopes, parts = learner.gradient(steps, tensors.get("anchor"))
        told = {str(j): one for j, one in enumerate(slopes) if one is not None}
        connection.send_bytes(json.dumps({"count": len(slopes), "parts": parts}).encode())
        connection.send_bytes(_saved(told))


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)
    }
