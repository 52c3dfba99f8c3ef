"""Workers as threads of the learner's process, or as processes that come in through a door.

A crew works for as long as its `with` block runs. The block ends by closing the server, and that
is what stops the workers: nothing else passes between them and the learner.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, cast

import echoic
from echoic.demo.worker import work, work_in_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from echoic.demo.policy import ActorCritic
    from echoic.demo.weights import WeightsSource

#: What `--door` may say. Without a door workers are threads.
DOORS = ("shm", "unix", "tcp", "none")
#: Fresh interpreters, because a fork of a process with threads is half a process.
SPAWN = multiprocessing.get_context("spawn")

# What workers are still sending when the run is over is of no use, so there is no wait for it.
DRAIN = 0.1
# How long workers have to end by themselves.
PATIENCE = 5.0
# How a process ends whose function raises.
FAILED = 1


@contextlib.contextmanager
def transport_of(door: str) -> Iterator[echoic.Transport | None]:
    """The transport for one of `DOORS`, at an address that nobody else has."""
    if door == "none":
        yield None
    elif door == "tcp":
        yield echoic.TcpTransport(port=0)
    elif door == "shm":
        yield echoic.ShmTransport(f"cartpole-{os.getpid()}")
    else:
        with tempfile.TemporaryDirectory(prefix="cartpole-") as folder:
            yield echoic.UnixTransport(Path(folder) / "learner.sock")


@dataclass(eq=False)
class Crew(ABC):
    """So many workers, for the time of a `with` block."""

    size: int
    model: ActorCritic
    weights: WeightsSource
    server: echoic.Server
    seed: int
    #: Rollouts that the server took, as the workers counted them; known after the block.
    sent: int = field(default=0, init=False)
    #: Workers that were gone before the end, and why.
    lost: list[str] = field(default_factory=list, init=False)

    @abstractmethod
    def __enter__(self) -> None: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


@dataclass(eq=False)
class ThreadCrew(Crew):
    """Workers in threads of this process.

    A worker that fails closes the server, so that nobody waits for samples that will not come; its
    error is raised at the end of the block.
    """

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.size, thread_name_prefix="worker")
        self._working: list[Future[int]] = []

    def __enter__(self) -> None:
        for number in range(self.size):
            working = self._pool.submit(
                work,
                number,
                self.model,
                self.weights,
                self.server.add,
                self.seed,
            )
            working.add_done_callback(lambda _: self.server.close())
            self._working.append(working)

    def __exit__(self, *_: object) -> None:
        self.server.close()
        self._pool.shutdown()
        self.sent = sum(working.result() for working in self._working)


@dataclass(eq=False)
class ProcessCrew(Crew):
    """Workers in processes, each connected to the first address of the server.

    One that is killed does not stop the others. One that fails by an error of its own ends the run,
    as does the loss of the last one; the end of the block raises an error then.
    """

    def __post_init__(self) -> None:
        self._ears: dict[SpawnProcess, Connection] = {}
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._ending = False
        self._failed = False

    def __enter__(self) -> None:
        address = self.server.addresses[0]
        with interrupts_ignored():
            for number in range(self.size):
                ear, mouth = SPAWN.Pipe(duplex=False)
                process = SPAWN.Process(
                    target=work_in_process,
                    args=(number, self.model, self.weights, address, self.seed, mouth),
                    name=f"worker {number}",
                    # Killed with this process where the block can't end in order.
                    daemon=True,
                )
                process.start()
                mouth.close()
                self._ears[process] = ear
        self._watching.start()

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self.server.close(DRAIN)
        self._watching.join(PATIENCE)
        if self._watching.is_alive():
            for process in self._ears:
                process.kill()
            self._watching.join()
        if self._failed:
            raise RuntimeError("; ".join(self.lost))

    def _watch(self) -> None:
        """Hear out every process at its end; close the server when the run is to end with it."""
        left = {process.sentinel: process for process in self._ears}
        while left:
            for sentinel in wait(list(left)):
                process = left.pop(cast("int", sentinel))
                process.join()
                delivered, why = last_words(process, self._ears[process])
                self.sent += delivered
                if not self._ending:
                    self.lost.append(f"{process.name}: {why}")
                    self._ending = self._failed = process.exitcode == FAILED or not left
            if self._failed:
                self.server.close(DRAIN)


def last_words(process: SpawnProcess, ear: Connection) -> tuple[int, str]:
    """How many rollouts a process delivered that has ended, as far as it said, and why it ended."""
    with ear:
        if process.exitcode == 0:
            delivered, why = ear.recv()
            return delivered, why
    if process.exitcode == FAILED:
        return 0, "failed, its own error is above"
    return 0, f"ended with status {process.exitcode}"


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Have processes that are started meanwhile ignore Ctrl-C for good.

    It reaches all processes of a terminal, and those that are still importing would answer with a
    traceback. What it means is for the learner alone to say.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
