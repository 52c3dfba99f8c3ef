"""Those who act in a run, in threads, in processes, or as actors of Ray.

All of them take the weights that were published last, and insert segments into one table, whose
limiter makes them wait when the learner is behind. In lock-step, :meth:`ThreadCrew.fill` has each
actor make one segment; else they go on by themselves.
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

from echoic.agents.training.actors import ActorGroup
from echoic.agents.training.config import as_json
from echoic.agents.training.worker import IMPORTS, act, act_in_process, prepare, start
from echoic.errors import ArgumentError, ClosedError, CollectorError
from echoic.transports import Listener
from echoic.workers import Supervisor, Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from echoic import Server, Table
    from echoic.agents.training.actors import Transcript
    from echoic.agents.training.config import TrainingConfig
    from echoic.integrations.ray.addresses import Addresses
    from echoic.weights import WeightStore

__all__ = ["ProcessCrew", "RayCrew", "ThreadCrew"]

_log = logging.getLogger("echoic.agents.training")


def _divided(config: TrainingConfig) -> list[list[int]]:
    """The numbers of the actors of each worker; no worker has none."""
    workers = min(config.num_workers, config.num_actors)
    return [one.tolist() for one in np.array_split(np.arange(config.num_actors), workers)]


class ThreadCrew:
    """Actors in threads of this process.

    Args:
        config: The settings of the run.
        seed: Of the run.
        table: Where segments go.
        weights: Where weights come from.
        judge: Says what episodes are worth, in place of the environment.
    """

    restarts = 0

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
        self._weights = weights
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
        """Begin, where actors go on by themselves."""
        if self._asynchronous:
            for i in range(len(self.groups)):
                self._pool.submit(self._go_on, i)

    def fill(self) -> None:
        """In lock-step, have each actor make a segment of the weights that are the latest."""
        if self._asynchronous:
            return
        for _ in self._pool.map(self._make, range(len(self.groups))):
            pass

    def heard(self, actors: NDArray[np.int64]) -> None:
        """Nothing: threads that are silent can't be replaced."""

    def check(self, waited: float = 0.0) -> None:
        """Raise what a thread ended with."""
        del waited
        if self._error is not None:
            raise CollectorError(f"an actor ended: {self._error!r}") from self._error

    def state(self) -> list[Any] | None:
        """What :meth:`restore` needs, in lock-step."""
        return None if self._asynchronous else [group.state() for group in self.groups]

    def restore(self, state: list[Any] | None) -> None:
        """Go on with the episodes that were under way."""
        if state is not None and not self._asynchronous:
            for group, kept in zip(self.groups, state, strict=True):
                group.restore(kept)

    def close(self) -> None:
        """End the threads and close the environments."""
        self._stopping.set()
        self._pool.shutdown()
        for subscription in self._subscriptions:
            subscription.close()
        for group in self.groups:
            group.close()

    def _make(self, i: int) -> None:
        group = self.groups[i]
        group.refresh(self._subscriptions[i])
        # Whoever waits for room is woken when the table is closed.
        self._table.extend(group.collect(), version=group.version)

    def _go_on(self, i: int) -> None:
        try:
            while not self._stopping.is_set():
                self._make(i)
        except ClosedError:
            return
        except BaseException as error:  # raised where it is looked for
            self._error = error


class ProcessCrew:
    """Actors in processes, which are replaced when they die or are silent for too long."""

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
        # Which worker has each actor; since when each is silent, in seconds that the learner has
        # waited; and which have said anything since they began.
        self._home = {actor: i for i, task in enumerate(self._tasks) for actor in task["actors"]}
        self._waited = 0.0
        self._since = [0.0] * len(self._tasks)
        self._awake = [False] * len(self._tasks)
        self.workers = Supervisor(self._start, len(self._tasks), config.max_restarts)

    @property
    def restarts(self) -> int:
        """How many processes were replaced."""
        return self.workers.restarts

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [one.pid for one in self.workers.members]

    def start(self) -> None:
        """Start the processes."""
        self.workers.start()

    def _start(self, i: int, restarts: int) -> Worker:
        task = {**self._tasks[i], "generation": self._generation + restarts}
        return start(act_in_process, task, f"actors-{i}", self._folder)

    def fill(self) -> None:
        """Nothing: they go on by themselves."""

    def heard(self, actors: NDArray[np.int64]) -> None:
        """Take note of whose segments came."""
        for i in {self._home[actor] for actor in actors.tolist()}:
            self._since[i], self._awake[i] = self._waited, True

    def check(self, waited: float = 0.0) -> None:
        """Replace those that are gone, and those that have been silent for too long.

        Args:
            waited: How many seconds the learner has waited for segments since it was asked last.
                Other time does not count: then it was not the workers' turn.
        """
        self._waited += waited
        replaced = self.workers.check()
        for i in range(len(self._tasks)):
            silent = self._waited - self._since[i]
            if i not in replaced and silent > (self._timeout if self._awake[i] else IMPORTS):
                replaced[i] = self.workers.replace(i)
        for i, ending in replaced.items():
            _log.warning("actors-%d %s", i, ending)
            self._since[i], self._awake[i] = self._waited, False

    def state(self) -> None:
        """Nothing: their episodes begin anew."""

    def restore(self, state: Any) -> None:
        """Episodes begin anew."""

    def close(self) -> None:
        """End the processes."""
        self.workers.stop()


class RayCrew:
    """Actors of Ray on all of its nodes, which Ray starts again where they die.

    Segments and weights go over the server's addresses: shared memory on this machine, TCP
    to the others. If no Ray runs here, one is started, and ended with the crew.

    Args:
        config: The settings of the run.
        seed: Of the run.
        server: Has the table and the weights, and no door yet.
        generation: What actors draw differs from that of those before.
    """

    def __init__(
        self, config: TrainingConfig, seed: int, server: Server, generation: int = 0
    ) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ArgumentError('backend="ray" needs Ray: pip install "echoic[ray]"') from error
        self._ray = ray
        self._began_ray = not ray.is_initialized()
        if self._began_ray:
            ray.init(include_dashboard=False, log_to_driver=False)
        try:
            addresses, token = _open_addresses(server, ray.util.get_node_ip_address())
        except BaseException:
            self._end_ray()
            raise
        self._tasks = [
            {
                "config": as_json(config),
                "seed": seed,
                "addresses": addresses,
                "token": token,
                "actors": one,
                "generation": generation,
            }
            for one in _divided(config)
        ]
        self._most = config.max_restarts
        self._running: list[Any] = []
        self._actors: list[Any] = []

    @property
    def restarts(self) -> int:
        """How often Ray started one again."""
        from echoic.integrations.ray.registry import restarts_of

        return sum(map(restarts_of, self._actors))

    @property
    def pids(self) -> list[int]:
        """Of the actors' processes, waiting for those that are being started."""
        found: list[int] = self._ray.get([actor.pid.remote() for actor in self._actors])
        return found

    def start(self) -> None:
        """Have Ray start them."""
        # Two threads: one acts, and one answers meanwhile.
        remote = self._ray.remote(
            num_cpus=1,
            max_restarts=self._most,
            max_task_retries=-1,
            max_concurrency=2,
            scheduling_strategy="SPREAD",
        )(_RayActor)
        for task in self._tasks:
            actor = remote.remote()
            self._actors.append(actor)
            self._running.append(actor.act.remote(task))

    def fill(self) -> None:
        """Nothing: they go on by themselves."""

    def heard(self, actors: NDArray[np.int64]) -> None:
        """Nothing: Ray watches them."""

    def check(self, waited: float = 0.0) -> None:
        """Raise what one ended with, for good."""
        del waited
        ended, _ = self._ray.wait(self._running, num_returns=1, timeout=0)
        if not ended:
            return
        try:
            self._ray.get(ended)
        except self._ray.exceptions.RayError as error:
            raise CollectorError(f"an actor of Ray ended: {error}") from error
        raise CollectorError("an actor of Ray ended by itself")

    def state(self) -> None:
        """Nothing: their episodes begin anew."""

    def restore(self, state: Any) -> None:
        """Episodes begin anew."""

    def close(self) -> None:
        """Have Ray end them."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._end_ray()

    def _end_ray(self) -> None:
        if self._began_ray:
            self._ray.shutdown()


def _open_addresses(server: Server, host: str) -> tuple[Addresses, str]:
    """Let the actors of all nodes in, who have the token."""
    from echoic.integrations.ray.addresses import Addresses, this_host

    token = secrets.token_hex(16)
    tcp = Listener(f"tcp://{host}:0", token=token).open(server)
    shm = None
    if sys.platform == "linux":
        name = f"training-{os.getpid()}-{secrets.token_hex(4)}"
        shm = Listener(f"shm://{name}", token=token).open(server)
    return Addresses(this_host(), tcp, shm), token


class _RayActor:
    """A worker's loop where Ray puts it."""

    def act(self, task: dict[str, Any]) -> None:
        """Act until the server is gone."""
        from echoic.integrations.ray.addresses import nearest
        from echoic.integrations.ray.registry import own_restarts

        prepare(task)
        address = nearest(task["addresses"], task["token"])
        # A replacement draws otherwise than the one before it.
        act({**task, "address": address, "generation": task["generation"] + own_restarts()})

    def pid(self) -> int:
        """Return its process."""
        return os.getpid()
