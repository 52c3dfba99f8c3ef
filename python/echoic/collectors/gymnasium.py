"""Rollouts of any Gymnasium environments, made by worker processes of this machine.

The collector asks each worker for rollouts, a few ahead of the learner, over a connection that is
otherwise silent. Rollouts come through the stream of a server: over shared memory where there is
such a door. So nobody ever has to wait for room, a worker that dies is seen by the end of its
connection, and stopping is ending all connections.
"""

from __future__ import annotations

import os
import pickle
import secrets
import sys
import tempfile
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic.collectors._gymnasium_process import Process, by_value, end_all
from echoic.collectors._gymnasium_worker import Ask, Form, Setup
from echoic.errors import (
    ClosedError,
    CollectorError,
    CollectorWarning,
    SpecError,
    WaitTimeoutError,
)
from echoic.server import Server
from echoic.transports import ShmTransport, UnixTransport

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from echoic.transports import Transport

__all__ = ["GymnasiumCollector"]

# How many seconds pass until workers are looked at when no rollout comes.
_LOOK = 0.1


class GymnasiumCollector:
    """Collects rollouts of any Gymnasium environments in worker processes, ahead of the learner.

    Each worker steps its environments one after the other and resets each when its episode is over;
    :meth:`recv` puts the rollouts of all workers together. A worker makes up to ``capacity``
    rollouts that nobody has taken, and then waits.

    A worker that is killed is replaced by another one, of which a
    :class:`~echoic.CollectorWarning` tells: its environments start anew, and what it had not
    delivered is lost. An exception of an environment or of the policy is raised by :meth:`recv` as
    a :class:`~echoic.CollectorError`, with the worker's traceback, and ends the collector.

    Args:
        env: The id of an environment, or a function that makes one, without arguments. Functions,
            also those of a script or a notebook, are sent to the workers by ``cloudpickle``, which
            Gymnasium brings along.
        n_envs: How many environments there are.
        n_steps: How many steps of each environment a rollout has.
        policy: ``policy(weights, observations, rng)`` returns the actions for all environments of a
            worker, or ``(actions, extras)`` with a dict of more arrays that batches are to have,
            such as ``log_probs`` or ``values``. ``observations`` have an axis of environments, as
            what it returns must have; ``rng`` is a ``numpy.random.Generator``. ``None`` draws from
            the action space.
        n_workers: How many processes; as many as environments or cores, whichever are fewer, when
            ``None``. It must divide ``n_envs``.
        weights: What the policy gets at first: anything that can be pickled.
        seed: Decides all that is random, so that with the same number of workers rollouts are the
            same; random when ``None``.
        capacity: How many rollouts are made ahead. With 0 one is begun when :meth:`recv` waits for
            it, so that it is always made with the weights that were there by then.
        next_observations: Whether batches have the observation after each step, which doubles their
            size if observations are large.
        max_restarts: How often a worker is replaced; then :meth:`recv` raises
            :class:`~echoic.CollectorError`.
        start_timeout: How many seconds workers may take to make their environments.

    Raises:
        SpecError: A number is out of range.
        CollectorError: A worker could not make its environments or ask the policy; the message has
            its traceback.
        WaitTimeoutError: Workers took longer than ``start_timeout``.

    Examples:
        >>> from echoic.collectors.gymnasium import GymnasiumCollector
        >>> with GymnasiumCollector("CartPole-v1", n_envs=2, n_steps=8, n_workers=1) as collector:
        ...     batch = collector.recv()
        >>> batch["observations"].shape, batch["actions"].shape
        ((8, 2, 4), (8, 2))
    """

    def __init__(  # noqa: PLR0913 - one argument for each option
        self,
        env: str | Callable[[], Any],
        n_envs: int,
        n_steps: int,
        policy: Callable[[Any, Any, np.random.Generator], Any] | None = None,
        *,
        n_workers: int | None = None,
        weights: Any = None,
        seed: int | None = None,
        capacity: int = 1,
        next_observations: bool = True,
        max_restarts: int = 3,
        start_timeout: float = 60.0,
    ) -> None:
        if n_workers is None:
            most = min(n_envs, os.cpu_count() or 1)
            n_workers = max([count for count in range(1, most + 1) if n_envs % count == 0] or [1])
        least = {"n_envs": 1, "n_steps": 1, "n_workers": 1, "capacity": 0, "max_restarts": 0}
        numbers = (n_envs, n_steps, n_workers, capacity, max_restarts)
        for (name, bound), number in zip(least.items(), numbers, strict=True):
            if number < bound:
                raise SpecError(f"{name}: expected at least {bound}, got {number}")
        if n_envs % n_workers:
            text = f"expected a divisor of the {n_envs} environments"
            raise SpecError(f"n_workers: {text}, got {n_workers}")
        self._capacity, self._restarts = capacity, max_restarts
        self._sizes = (n_steps, n_envs // n_workers)
        self._following = next_observations
        # One thread receives at a time; the other lock is for workers and their connections.
        self._receiving = threading.Lock()
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._version = 0
        self._failure: str | None = None
        self._closed = False
        self._server: Server | None = None
        self._form: Form | None = None
        root = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - mkdtemp is private
        self._folder = Path(tempfile.mkdtemp(prefix="echoic-collector-", dir=root))
        self._workers: list[Process] = []
        self._finish = weakref.finalize(self, end_all, self._workers, self._folder, self._owner)
        try:
            self._write(0, weights)
            entropy = secrets.randbits(64) if seed is None else seed
            seeds = np.random.SeedSequence(entropy).generate_state(n_envs).reshape(n_workers, -1)
            made, asked = by_value(env), by_value(policy)
            for worker in range(n_workers):
                own = [int(number) for number in seeds[worker]]
                setup = Setup(made, asked, n_steps, own, next_observations, worker, 0)
                self._workers.append(Process(setup, self._folder))
                self._workers[-1].send(self._ask())
            self._wait_for_workers(start_timeout)
            self._ask_ahead(capacity)
        except BaseException:
            self.stop()
            raise

    @property
    def version(self) -> int:
        """How often weights were given; 0 for the first."""
        return self._version

    def sync_weights(self, weights: Any) -> int:
        """Give the policy other weights, and return their version.

        Rollouts that are begun from now on are made with them. Those that were begun, or asked for
        ahead, are not: up to ``capacity`` of each worker, and one if that is 0.
        """
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                raise ClosedError("the collector was stopped, or is another process's")
            self._write(self._version + 1, weights)
            self._version += 1
            return self._version

    def recv(self, timeout: float | None = None, *, min_version: int = 0) -> dict[str, Any]:
        """Return the next rollout of all environments, waiting until it is complete.

        The keys, with T steps and N environments, whose place does not change:

        - ``observations`` (T, N, ...): what each step saw, a tree if the environment's are.
        - ``next_observations`` (T, N, ...): what it led to, also where an episode ended with it.
        - ``last_observations`` (N, ...): what the next rollout begins with.
        - ``actions`` (T, N, ...), ``rewards`` (T, N) float32.
        - ``terminated``, ``truncated`` (T, N) bool, ``dones`` (T, N) float32: 1 where either is so.
        - ``episode_starts`` (T, N) bool: whether the observation is the first of an episode.
        - ``episode_returns`` (T, N) float32: the sum of rewards where an episode ended, else NaN.
        - ``versions`` (N,) int64: of the weights, and ``version``, the least of them.
        - what else the policy returned, each (T, N, ...).

        Args:
            timeout: How many seconds to wait; for ever when ``None``.
            min_version: Drops rollouts that were made with earlier weights.

        Raises:
            WaitTimeoutError: There was none in time. Nothing is lost: it can be waited for again.
            ClosedError: The collector was stopped.
            CollectorError: A worker failed. The collector is stopped.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if min_version > self._version:
            raise SpecError(f"min_version: expected at most {self._version}, got {min_version}")
        wait = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if not self._receiving.acquire(timeout=wait):
            raise self._late("another thread receives")
        try:
            while True:
                groups = self._take(deadline)
                self._ask_ahead(self._capacity)
                if min(int(group["version"]) for group in groups) >= min_version:
                    return self._joined(groups)
        finally:
            self._receiving.release()

    def stop(self) -> None:
        """End all workers. Who waits in :meth:`recv` gets a ClosedError. It may be called again."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            server = self._server
        # First, so that a thread that waits for a rollout wakes.
        if server is not None:
            server.close(drain=0.0)
        with self._lock:
            self._finish()

    close = stop

    def __enter__(self) -> Self:
        """Return the collector."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def __repr__(self) -> str:
        """Show how large it is."""
        steps, envs = self._sizes
        state = "stopped" if self._closed else f"version {self._version}"
        workers = len(self._workers)
        return (
            f"GymnasiumCollector({workers} workers of {envs} environments, {steps} steps, {state})"
        )

    def _wait_for_workers(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not all(worker.ready for worker in self._workers):
            if time.monotonic() > deadline:
                late = sum(not worker.ready for worker in self._workers)
                text = f"{late} of {len(self._workers)} workers have not started after {timeout} s"
                raise self._late(text)
            self._look(0.02)

    def _write(self, version: int, weights: Any) -> None:
        """Put the weights where workers find them, and remove those that nobody was told of."""
        (self._folder / f"weights-{version}").write_bytes(pickle.dumps(weights))
        asked = {version for worker in self._workers for version in worker.asked}
        asked |= {worker.first for worker in self._workers if not worker.ready}
        for file in self._folder.glob("weights-*"):
            if int(file.name.removeprefix("weights-")) not in {version, *asked}:
                file.unlink()

    def _ask(self) -> Ask:
        return Ask(self._version, str(self._folder / f"weights-{self._version}"))

    def _ask_ahead(self, count: int) -> None:
        """Have each worker make so many rollouts ahead."""
        with self._lock:
            self._check()
            for worker in self._workers:
                while worker.ready and len(worker.asked) + len(worker.groups) < count:
                    worker.asked.append(self._version)
                    worker.send(self._ask())

    def _take(self, deadline: float | None) -> list[dict[str, Any]]:
        """One rollout of each worker, waiting for them."""
        while True:
            self._check()
            self._look(0.0)
            self._ask_ahead(max(self._capacity, 1))
            if all(worker.groups for worker in self._workers):
                return [worker.groups.popleft() for worker in self._workers]
            left = _LOOK if deadline is None else deadline - time.monotonic()
            if not self._receive(max(0.0, min(left, _LOOK))) and left <= 0:
                late = sum(not worker.groups for worker in self._workers)
                text = f"{late} of {len(self._workers)} workers have made no rollout"
                raise self._late(text)

    @staticmethod
    def _late(text: str) -> WaitTimeoutError:
        error = WaitTimeoutError(f"timed out: {text}")
        error.reason = "EMPTY"
        return error

    def _receive(self, timeout: float) -> bool:
        """Take a rollout from the stream; whether there was one."""
        server = self._server
        if server is None:
            raise ClosedError("the collector was stopped")
        try:
            batch = server.sample(timeout=timeout).data
        except WaitTimeoutError:
            return False
        except ClosedError:
            self._check()
            raise
        group: Any = _trees.tree_map(lambda leaf: leaf[0], batch)
        worker = self._workers[int(group["worker"])]
        with self._lock:
            # Of a process that is gone others are made in its place.
            if int(group["life"]) == worker.setup.life and worker.asked:
                worker.asked.popleft()
                worker.groups.append(group)
        return True

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise ClosedError("the collector was made before a fork, and is the parent's")
        if self._failure is not None:
            raise CollectorError(self._failure)
        if self._closed:
            raise ClosedError("the collector was stopped")

    def _look(self, timeout: float) -> None:
        """Hear what workers say, and replace those that are gone."""
        replaced = []
        with self._lock:
            self._check()
            for worker in self._workers:
                for kind, content in worker.messages(timeout):
                    self._hear(worker, kind, content)
                if worker.gone:
                    replaced.append(self._replace(worker))
        # Only now, since a warning may be an error.
        for text in replaced:
            warnings.warn(CollectorWarning(text), stacklevel=4)

    def _hear(self, worker: Process, kind: str, content: Any) -> None:
        if kind == "error":
            self._fail(f"worker {worker.setup.worker} failed:\n{content}")
        if self._form is None:
            self._form = content
            self._open(content)
        elif not _same(self._form, content):
            text = f"expected environments and a policy like worker 0's, {self._form}"
            self._fail(f"worker {worker.setup.worker}: {text}, got {content}")
        if self._server is not None:
            worker.send(self._server.addresses[0])
            worker.ready = True

    def _open(self, form: Form) -> None:
        """Make the stream, with room for all that is asked for and for what is held."""
        example = form.rollout(*self._sizes, following=self._following)
        ahead = max(self._capacity, 1) * len(self._workers)
        door: Transport
        if sys.platform == "linux":
            door = ShmTransport(f"collector-{os.getpid()}-{secrets.token_hex(4)}")
        else:
            door = UnixTransport(str(self._folder / "door"))
        # What is ahead, what is being put together, and some of processes that are gone.
        room = ahead + len(self._workers) + 2
        server = Server(example, batch_size=1, capacity=room, transport=door)
        server.start()
        self._server = server

    def _replace(self, worker: Process) -> str:
        """Start another worker in the place of one that is gone; what to say of it."""
        number, fate = worker.setup.worker, worker.fate()
        if self._restarts == 0:
            self._fail(f"worker {number} {fate}, and no worker may be replaced any more")
        self._restarts -= 1
        worker.restart()
        worker.first = self._version
        worker.send(self._ask())
        return f"worker {number} {fate} and was replaced; its environments have started anew"

    def _fail(self, text: str) -> None:
        self._failure = text
        self.stop()
        raise CollectorError(text)

    def _joined(self, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """The rollouts of all workers as one."""
        versions = [np.full(self._sizes[1], int(group.pop("version"))) for group in groups]
        for group in groups:
            del group["worker"], group["life"]
        lasts: list[Any] = [group.pop("last_observations") for group in groups]
        all_of: list[Any] = list(groups)
        batch: Any = _trees.tree_map(lambda *leaves: np.concatenate(leaves, axis=1), *all_of)
        last = _trees.tree_map(lambda *leaves: np.concatenate(leaves), *lasts)
        batch["last_observations"] = last
        batch.update(batch.pop("extras"))
        batch["dones"] = (batch["terminated"] | batch["truncated"]).astype(np.float32)
        batch["versions"] = np.concatenate(versions)
        batch["version"] = int(batch["versions"].min())
        return dict(batch)


def _same(one: Any, other: Any) -> bool:
    """Whether what steps look like differs in nothing."""
    leaves, form = _trees.tree_flatten(one)
    others, other_form = _trees.tree_flatten(other)
    return form == other_form and all(
        (left.dtype, left.shape) == (right.dtype, right.shape)
        for left, right in zip(leaves, others, strict=True)
    )
