"""A learner and its workers as processes, or as threads of this one, and how they are killed.

A job is started, looked at through the curve that its learner writes, and stopped. Its processes
have nothing else in common than the address of the learner's server, so any of them can be killed
at any moment (SIGKILL, without a word to anyone). A learner that is started in a folder where one
was saved goes on from there: its weights are those of its last checkpoint, its table has all that
workers had brought. Workers notice nothing of it but that they wait.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import echoic
import torch
from echoic.weights import WeightStore

from examples.grpo.learner import POLICY, Learner, learn
from examples.grpo.table import TABLE, make_table
from examples.grpo.worker import Worker

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from echoic.rollouts import RolloutTable

    from examples.grpo.settings import Settings

WORKERS = 2
# For how many seconds a worker tries to reach its learner, which may have to import torch first on
# a machine that has other things to do.
PATIENCE = 300.0
# Fresh interpreters, because a fork of a process with threads is half a process.
SPAWN = multiprocessing.get_context("spawn")


def wait_until_busy(table: RolloutTable) -> None:
    """Wait until the first worker is in the middle of a group, if it ever is."""
    for _ in range(1000):
        source = table.stats().sources.get("worker-0")
        if source is not None and source.running:
            return
        time.sleep(0.005)


def saved_or_first(settings: Settings) -> tuple[Learner, RolloutTable]:
    """Return the learner as it was saved last, and a table that goes on from its version."""
    learner, table = Learner(settings), make_table(settings)
    if (settings.folder / POLICY).exists():
        learner.load(settings.folder)
        table.restore(learner.version)
    return learner, table


class Job(ABC):
    """A learner and its workers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started = 0

    @abstractmethod
    def start_learner(self) -> None:
        """Start the learner, from its checkpoint if it has one."""

    @abstractmethod
    def start_worker(self) -> None:
        """Start one more worker."""

    @abstractmethod
    def kill_worker(self) -> None:
        """Have the worker that was started first vanish in the middle of what it does."""

    @abstractmethod
    def restart_learner(self) -> None:
        """Have the learner vanish, with the server in its process, and start another one."""

    @abstractmethod
    def stop(self) -> None:
        """End everyone."""

    @abstractmethod
    def check(self) -> None:
        """Raise an error, if a worker has failed: the learner would wait for it."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the learner has ended."""

    def start(self) -> None:
        """Start everyone."""
        self.start_learner()
        for _ in range(WORKERS):
            self.start_worker()


class Threads(Job):
    """Everyone is a thread. One that is killed leaves without telling the table.

    The table is gone with the learner here, and workers that have it with both.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._begin()

    def _begin(self) -> None:
        self._workers: list[tuple[threading.Thread, threading.Event]] = []
        self._error: BaseException | None = None

    def start_learner(self) -> None:
        self._learner, self._table = saved_or_first(self.settings)
        self._store = WeightStore()
        self._thread = threading.Thread(target=self._learn)
        self._thread.start()

    def _learn(self) -> None:
        try:
            learn(self._learner, self._table, self._store)
        except echoic.errors.ClosedError:
            pass
        finally:
            self._table.close()
            self._store.close()

    def start_worker(self) -> None:
        number, gone = self.started, threading.Event()
        self.started += 1
        weights = self._store.subscribe()
        worker = Worker(number, self._table, weights, self.settings, is_gone=gone.is_set)
        thread = threading.Thread(target=worker.work)
        self._workers.append((thread, gone))
        thread.start()

    def kill_worker(self) -> None:
        thread, gone = self._workers.pop(0)
        wait_until_busy(self._table)
        gone.set()
        thread.join()

    def restart_learner(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        self._table.close()
        self._store.close()
        for thread, gone in self._workers:
            gone.set()
            thread.join()
        self._thread.join()
        self._begin()

    def check(self) -> None:
        has_ended = not all(thread.is_alive() for thread, _ in self._workers)
        # Those that end in good order do so because the table is closed.
        if has_ended and not self._table.closed:
            raise RuntimeError("a worker has failed; its error is above")

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


def _learn_in_process(settings: Settings, address: str) -> None:
    torch.set_num_threads(1)
    learner, table = saved_or_first(settings)
    store = WeightStore()
    with echoic.Server(table, store, listen=address) as server:
        server.start()
        learn(learner, table, store)


def _work_in_process(settings: Settings, address: str, number: int) -> None:
    torch.set_num_threads(1)
    # A learner that is started again is there when it has imported torch.
    with (
        echoic.connect(address, timeout=PATIENCE, reconnect=PATIENCE) as learner,
    ):
        table, weights = learner.rollouts(TABLE), learner.weights()
        Worker(number, table, weights.subscribe(), settings).work()


class Processes(Job):
    """Everyone is a process; workers connect to the learner's server."""

    def __init__(self, settings: Settings, transport: str) -> None:
        super().__init__(settings)
        name = f"grpo-{os.getpid()}-{settings.seed}"
        if transport == "shm":
            self._address = f"shm://{name}"
        else:
            self._address = f"unix://{settings.folder.resolve()}/learner.sock"
        self._workers: list[BaseProcess] = []

    def start_learner(self) -> None:
        arguments = (self.settings, self._address)
        self._learner = SPAWN.Process(target=_learn_in_process, args=arguments, daemon=True)
        self._learner.start()

    def start_worker(self) -> None:
        arguments = (self.settings, self._address, self.started)
        self.started += 1
        worker = SPAWN.Process(target=_work_in_process, args=arguments, daemon=True)
        self._workers.append(worker)
        worker.start()

    def kill_worker(self) -> None:
        worker = self._workers.pop(0)
        with echoic.connect(self._address) as learner:
            wait_until_busy(learner.rollouts(TABLE))
        worker.kill()
        worker.join()

    def restart_learner(self) -> None:
        self._learner.kill()
        self._learner.join()
        self.start_learner()

    def stop(self) -> None:
        for process in [self._learner, *self._workers]:
            process.kill()
            process.join()
        self._workers.clear()

    def check(self) -> None:
        failed = [worker.exitcode for worker in self._workers if worker.exitcode]
        if failed:
            raise RuntimeError(f"a worker has failed with {failed[0]}; its error is above")

    @property
    def is_over(self) -> bool:
        return not self._learner.is_alive()
