"""Workers that act in a run: threads or processes.

Each worker runs some of the run's actors. It loads the latest published weights and inserts
segments into one table, whose limiter makes it wait while the learner is behind. In lock-step,
:meth:`Workers.fill` collects one segment from each actor; otherwise workers run by themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic import Server, connect
from echoic.agents.training.actors import ActorGroup
from echoic.agents.training.config import from_json
from echoic.errors import ClosedError, CollectorError, DisconnectedError, WaitTimeoutError
from echoic.workers import Supervisor, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from echoic import Table
    from echoic.agents.training.actors import Transcript
    from echoic.agents.training.config import TrainingConfig
    from echoic.weights import WeightStore

__all__ = ["TABLE", "ProcessWorkers", "ThreadWorkers", "Workers", "workers_of"]

TABLE = "segments"
# Seconds that a process may need for its imports on a busy machine.
IMPORTS = 180.0
_log = logging.getLogger("echoic.agents.training")


def workers_of(config: TrainingConfig, *given: Any) -> Workers:
    """Make the workers of the config's backend; see :class:`Workers` for the arguments."""
    kinds = {"threads": ThreadWorkers, "processes": ProcessWorkers}
    return kinds[config.backend](config, *given)


class Workers:
    """The interface of all workers; by default they run by themselves and keep no state.

    Args:
        config: Settings of the run.
        seed: Seed of the run.
        generation: Number of earlier workers of this run; what actors draw differs.
        table: Table that segments are inserted into; closed with the workers.
        weights: Store that weights are loaded from; closed with the workers.
        judge: Pays episodes in place of the environment, with threads.
    """

    restarts = 0

    def __init__(
        self,
        config: TrainingConfig,
        seed: int,
        generation: int,
        table: Table,
        weights: WeightStore,
        judge: Callable[[Transcript], float] | None = None,
    ) -> None:
        self._config, self._seed, self._generation = config, seed, generation
        self._table, self._weights, self._judge = table, weights, judge
        # The numbers of each worker's actors; each has at least one.
        workers = min(config.num_workers, config.num_actors)
        split = np.array_split(np.arange(config.num_actors), workers)
        self._actors: list[list[int]] = [one.tolist() for one in split]
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._closing = stack.pop_all()

    def _open(self, stack: contextlib.ExitStack) -> None:
        """Make everything, and give the stack what :meth:`close` has to call, last first."""

    def start(self) -> None:
        """Start to act, unless in lock-step."""

    def fill(self) -> None:
        """In lock-step, insert one segment of each actor, made with the latest weights."""

    def check(self, waited: float = 0.0, heard: Iterable[int] = ()) -> None:
        """Replace dead workers, or raise their error.

        Args:
            waited: Seconds that the learner has waited for segments since the last call. Other time
                does not count: then it was not the workers' turn.
            heard: Actors whose segments came.
        """

    def state(self) -> list[Any] | None:
        """Return the episodes under way, in lock-step; otherwise None: episodes start again."""
        return None

    def restore(self, state: list[Any] | None) -> None:
        """Continue the episodes of :meth:`state`."""

    def close(self) -> None:
        """Stop all workers and close their environments."""
        self._closing.close()

    def _task(self, i: int, **more: Any) -> dict[str, Any]:
        """Return what another process needs to know, without pickle."""
        shared = {"config": dataclasses.asdict(self._config), "seed": self._seed}
        return {**shared, "actors": self._actors[i], "generation": self._generation, **more}


class ThreadWorkers(Workers):
    """Workers in threads of this process. Silent threads are not replaced."""

    def _open(self, stack: contextlib.ExitStack) -> None:
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self.groups: list[ActorGroup] = []
        stack.callback(self._weights.close)
        for numbers in self._actors:
            more: Any = {"generation": self._generation, "judge": self._judge}
            group = ActorGroup(self._config, numbers, self._seed, **more)
            self.groups.append(group)
            stack.callback(group.close)
        self._subscriptions = [self._weights.subscribe() for _ in self.groups]
        for subscription in self._subscriptions:
            stack.callback(subscription.close)
        self._pool = stack.enter_context(ThreadPoolExecutor(len(self.groups), "echoic-actors"))
        # A thread that waits for room ends with its table.
        stack.callback(self._table.close)
        stack.callback(self._stopping.set)

    def start(self) -> None:
        for i in range(len(self.groups) if self._config.is_asynchronous else 0):
            self._pool.submit(self._loop, i)

    def fill(self) -> None:
        if not self._config.is_asynchronous:
            # All are inserted, or none: what is left in the table would be taken in the next round.
            filled = list(self._pool.map(self._collect, range(len(self.groups))))
            for group, columns in zip(self.groups, filled, strict=True):
                self._table.extend(columns, version=group.version)

    def check(self, waited: float = 0.0, heard: Iterable[int] = ()) -> None:
        del waited, heard
        if self._error is not None:
            raise CollectorError(f"an actor ended: {self._error!r}") from self._error

    def state(self) -> list[Any] | None:
        return None if self._config.is_asynchronous else [group.state() for group in self.groups]

    def restore(self, state: list[Any] | None) -> None:
        if state is not None and not self._config.is_asynchronous:
            for group, kept in zip(self.groups, state, strict=True):
                group.restore(kept)

    def _collect(self, i: int) -> dict[str, Any]:
        self.groups[i].refresh(self._subscriptions[i])
        return self.groups[i].collect()

    def _loop(self, i: int) -> None:
        try:
            while not self._stopping.is_set():
                columns = self._collect(i)
                self._table.extend(columns, version=self.groups[i].version)
        except ClosedError:
            return
        except BaseException as error:  # raised by check()
            self._error = error


class ProcessWorkers(Workers):
    """Workers in processes, which are replaced when they die or are silent for too long."""

    def _open(self, stack: contextlib.ExitStack) -> None:
        folder = tempfile.mkdtemp(prefix="echoic-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        listen = f"unix://{folder}/run.sock"
        self._server = Server(self._table, self._weights, listen=listen)
        stack.callback(self._server.close)
        self._server.start()
        # The worker of each actor; for each worker, at how many seconds of waiting it was heard
        # from last, and whether it was heard from since it started.
        self._home = {actor: i for i, actors in enumerate(self._actors) for actor in actors}
        self._waited, count = 0.0, len(self._actors)
        self._since, self._awake = [0.0] * count, [False] * count
        self.processes = Supervisor(self._start, count, self._config.max_restarts)
        stack.callback(self.processes.stop)

    @property
    def restarts(self) -> int:  # type: ignore[override]
        """Number of processes that were replaced."""
        return self.processes.restarts

    def start(self) -> None:
        self.processes.start()

    def _start(self, i: int, restarts: int) -> Worker:
        task = self._task(i, address=self._server.address)
        task["generation"] += restarts
        log = Path(self._config.results_dir) / f"actors-{i}.log"
        # A process has one thread of torch: there are as many processes as are wanted.
        one = {"OMP_NUM_THREADS": "1"}
        return Worker(_act_in_process, task, name=log.stem, env=one, log=log)

    def check(self, waited: float = 0.0, heard: Iterable[int] = ()) -> None:
        self._waited += waited
        for i in {self._home[actor] for actor in heard}:
            self._since[i], self._awake[i] = self._waited, True
        replaced = self.processes.check()
        for i, (since, awake) in enumerate(zip(self._since, self._awake, strict=True)):
            limit = self._config.execution_config.timeout if awake else IMPORTS
            if i not in replaced and self._waited - since > limit:
                replaced[i] = self.processes.replace(i)
        for i, ending in replaced.items():
            _log.warning("actors-%d %s", i, ending)
            self._since[i], self._awake[i] = self._waited, False


def _act_in_process(_connection: object, task: dict[str, Any]) -> None:
    _act(task)


def _act(task: dict[str, Any]) -> None:
    """Act until the server is gone."""
    torch.set_num_threads(1)
    for module in task["config"]["worker_imports"]:
        importlib.import_module(module)
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
