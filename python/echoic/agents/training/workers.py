"""Workers that act in a run: threads, processes, or actors of Ray.

Each worker runs some of the run's actors. It loads the latest published weights and inserts
segments into one table, whose limiter makes it wait while the learner is behind. In lock-step,
:meth:`Workers.fill` collects one segment from each actor; otherwise workers run by themselves.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic import connect
from echoic.agents.training.actors import ActorGroup
from echoic.agents.training.config import as_json, from_json
from echoic.errors import (
    ArgumentError,
    ClosedError,
    CollectorError,
    DisconnectedError,
    WaitTimeoutError,
)
from echoic.transports import Listener
from echoic.workers import Supervisor, Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from echoic import Server, Table
    from echoic.agents.training.actors import Transcript
    from echoic.agents.training.config import TrainingConfig
    from echoic.weights import WeightStore

__all__ = ["TABLE", "ProcessWorkers", "RayWorkers", "ThreadWorkers", "Workers"]

TABLE = "segments"
# Seconds that a process may need for its imports on a busy machine.
IMPORTS = 180.0
_log = logging.getLogger("echoic.agents.training")


def _divided(config: TrainingConfig) -> list[list[int]]:
    """Divide the numbers of the actors among the workers; each worker has at least one."""
    workers = min(config.num_workers, config.num_actors)
    return [one.tolist() for one in np.array_split(np.arange(config.num_actors), workers)]


class Workers:
    """The interface of all workers; by default they run by themselves and keep no state."""

    restarts = 0

    def start(self) -> None:
        """Start to act, unless in lock-step."""

    def fill(self) -> None:
        """In lock-step, insert one segment of each actor, made with the latest weights."""

    def note(self, actors: NDArray[np.int64]) -> None:
        """Take note of the actors that segments came from."""

    def check(self, waited: float = 0.0) -> None:
        """Replace dead workers, or raise their error.

        Args:
            waited: Seconds that the learner has waited for segments since the last call. Other time
                does not count: then it was not the workers' turn.
        """

    def state(self) -> list[Any] | None:
        """Return the episodes under way, in lock-step; otherwise None: episodes start again."""
        return None

    def restore(self, state: list[Any] | None) -> None:
        """Continue the episodes of :meth:`state`."""

    def close(self) -> None:
        """Stop all workers and close their environments."""


class ThreadWorkers(Workers):
    """Workers in threads of this process. Silent threads are not replaced.

    Args:
        config: Settings of the run.
        seed: Seed of the run.
        table: Table that segments are inserted into.
        weights: Store that weights are loaded from.
        judge: Pays episodes in place of the environment.
        generation: Number of earlier workers of this run; what actors draw differs.
    """

    def __init__(
        self,
        config: TrainingConfig,
        seed: int,
        table: Table,
        weights: WeightStore,
        judge: Callable[[Transcript], float] | None = None,
        generation: int = 0,
    ) -> None:
        self._table = table
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self.groups = [
            ActorGroup(config, numbers, seed, generation=generation, judge=judge)
            for numbers in _divided(config)
        ]
        self._subscriptions = [weights.subscribe() for _ in self.groups]
        self._pool = ThreadPoolExecutor(len(self.groups), "echoic-actors")
        self._asynchronous = config.is_asynchronous

    def start(self) -> None:
        for i in range(len(self.groups) if self._asynchronous else 0):
            self._pool.submit(self._loop, i)

    def fill(self) -> None:
        if not self._asynchronous:
            list(self._pool.map(self._insert, range(len(self.groups))))

    def check(self, waited: float = 0.0) -> None:
        del waited
        if self._error is not None:
            raise CollectorError(f"an actor ended: {self._error!r}") from self._error

    def state(self) -> list[Any] | None:
        return None if self._asynchronous else [group.state() for group in self.groups]

    def restore(self, state: list[Any] | None) -> None:
        if state is not None and not self._asynchronous:
            for group, kept in zip(self.groups, state, strict=True):
                group.restore(kept)

    def close(self) -> None:
        self._stopping.set()
        self._pool.shutdown()
        for subscription in self._subscriptions:
            subscription.close()
        for group in self.groups:
            group.close()

    def _insert(self, i: int) -> None:
        group = self.groups[i]
        group.refresh(self._subscriptions[i])
        # Waiting for room ends when the table is closed.
        self._table.extend(group.collect(), version=group.version)

    def _loop(self, i: int) -> None:
        try:
            while not self._stopping.is_set():
                self._insert(i)
        except ClosedError:
            return
        except BaseException as error:  # raised by check()
            self._error = error


class ProcessWorkers(Workers):
    """Workers in processes, which are replaced when they die or are silent for too long."""

    def __init__(
        self, config: TrainingConfig, seed: int, address: str, folder: Path, generation: int = 0
    ) -> None:
        settings = as_json(config)
        self._tasks: list[dict[str, Any]] = [
            {"config": settings, "seed": seed, "address": address, "actors": one}
            for one in _divided(config)
        ]
        self._folder = folder
        self._timeout = config.execution_config.timeout
        self._generation = generation
        # The worker of each actor; for each worker, at how many seconds of waiting it was heard
        # from last, and whether it was heard from since it started.
        self._home = {actor: i for i, task in enumerate(self._tasks) for actor in task["actors"]}
        self._waited = 0.0
        self._since = [0.0] * len(self._tasks)
        self._awake = [False] * len(self._tasks)
        self.processes = Supervisor(self._start, len(self._tasks), config.max_restarts)

    @property
    def restarts(self) -> int:  # type: ignore[override]
        """Number of processes that were replaced."""
        return self.processes.restarts

    def start(self) -> None:
        self.processes.start()

    def _start(self, i: int, restarts: int) -> Worker:
        task = {**self._tasks[i], "generation": self._generation + restarts}
        name = f"actors-{i}"
        # A process has one thread of torch: there are as many processes as are wanted.
        return Worker(
            _act_in_process,
            task,
            name=name,
            env={"OMP_NUM_THREADS": "1"},
            log=self._folder / f"{name}.log",
        )

    def note(self, actors: NDArray[np.int64]) -> None:
        for i in {self._home[actor] for actor in actors.tolist()}:
            self._since[i], self._awake[i] = self._waited, True

    def check(self, waited: float = 0.0) -> None:
        self._waited += waited
        replaced = self.processes.check()
        for i, (since, awake) in enumerate(zip(self._since, self._awake, strict=True)):
            limit = self._timeout if awake else IMPORTS
            if i not in replaced and self._waited - since > limit:
                replaced[i] = self.processes.replace(i)
        for i, ending in replaced.items():
            _log.warning("actors-%d %s", i, ending)
            self._since[i], self._awake[i] = self._waited, False

    def close(self) -> None:
        self.processes.stop()


class RayWorkers(Workers):
    """Workers on all nodes of Ray, which restarts them when they die.

    Segments and weights use the server's addresses: shared memory on this machine, TCP to the
    others. If no Ray is running here, one is started, and shut down by :meth:`close`.

    Args:
        config: Settings of the run.
        seed: Seed of the run.
        server: Server of the table and the weights, without an address yet.
        generation: Number of earlier workers of this run; what actors draw differs.
    """

    def __init__(
        self, config: TrainingConfig, seed: int, server: Server, generation: int = 0
    ) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ArgumentError('backend="ray" needs Ray: pip install "echoic[ray]"') from error
        self._ray = ray
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            ray.init(include_dashboard=False, log_to_driver=False)
        try:
            addresses, token = _listen(server, ray.util.get_node_ip_address())
        except BaseException:
            self._stop_ray()
            raise
        shared = {"config": as_json(config), "seed": seed, "addresses": addresses, "token": token}
        self._tasks: list[dict[str, Any]] = [
            {**shared, "actors": one, "generation": generation} for one in _divided(config)
        ]
        self._max_restarts = config.max_restarts
        self._running: list[Any] = []
        self._actors: list[Any] = []

    @property
    def restarts(self) -> int:  # type: ignore[override]
        """Number of restarts by Ray."""
        from echoic.integrations.ray.registry import restarts_of

        return sum(map(restarts_of, self._actors))

    def start(self) -> None:
        # Two threads: one acts, the other answers Ray meanwhile.
        remote = self._ray.remote(
            num_cpus=1,
            max_restarts=self._max_restarts,
            max_task_retries=-1,
            max_concurrency=2,
            scheduling_strategy="SPREAD",
        )(_RayActor)
        for task in self._tasks:
            actor = remote.remote()
            self._actors.append(actor)
            self._running.append(actor.act.remote(task))

    def check(self, waited: float = 0.0) -> None:
        del waited
        ended, _ = self._ray.wait(self._running, num_returns=1, timeout=0)
        if not ended:
            return
        try:
            self._ray.get(ended)
        except self._ray.exceptions.RayError as error:
            raise CollectorError(f"an actor of Ray ended: {error}") from error
        raise CollectorError("an actor of Ray ended by itself")

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._stop_ray()

    def _stop_ray(self) -> None:
        if self._started_ray:
            self._ray.shutdown()


def _listen(server: Server, host: str) -> tuple[Any, str]:
    """Open addresses of a server for actors on all nodes, and return them with their token."""
    from echoic.integrations.ray.addresses import Addresses, this_host

    token = secrets.token_hex(16)
    tcp = Listener(f"tcp://{host}:0", token=token).open(server)
    shm = None
    if sys.platform == "linux":
        name = f"training-{os.getpid()}-{secrets.token_hex(4)}"
        shm = Listener(f"shm://{name}", token=token).open(server)
    return Addresses(this_host(), tcp, shm), token


class _RayActor:
    """Runs a worker in a process of Ray."""

    def act(self, task: dict[str, Any]) -> None:
        from echoic.integrations.ray.addresses import nearest
        from echoic.integrations.ray.registry import own_restarts

        _prepare(task)
        address = nearest(task["addresses"], task["token"])
        # A replacement draws other numbers than the one before it.
        _act({**task, "address": address, "generation": task["generation"] + own_restarts()})


def _act_in_process(_connection: object, task: dict[str, Any]) -> None:
    _prepare(task)
    _act(task)


def _prepare(task: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    for module in task["config"]["worker_imports"]:
        importlib.import_module(module)


def _act(task: dict[str, Any]) -> None:
    """Act until the server is gone."""
    config = from_json(task["config"])
    with connect(task["address"], token=task.get("token")) as connection:
        subscription = connection.weights().subscribe()
        group = ActorGroup(config, task["actors"], task["seed"], generation=task["generation"])
        try:
            group.load(subscription.wait(timeout=60.0))
            while True:
                group.refresh(subscription)
                connection.table(TABLE).extend(group.collect(), version=group.version)
                # The table answers when it has room again.
                connection.flush()
        except (ClosedError, DisconnectedError, WaitTimeoutError):
            return
        finally:
            group.close()
