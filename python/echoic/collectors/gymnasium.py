"""Collect rollouts of any Gymnasium environments, in worker processes on this machine.

The collector requests rollouts from each worker, a few ahead of the learner, over a connection that
is otherwise idle. Rollouts arrive through the stream of a server, over shared memory if available.
So no call waits for room, the end of its connection shows that a worker died, and closing all
connections stops the workers.
"""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from echoic import _trees
from echoic.buffers._common import seed_of
from echoic.collectors._gymnasium_worker import Form, Request, Setup, by_value, run
from echoic.errors import (
    ClosedError,
    CollectorError,
    CollectorWarning,
    SpecError,
    WaitTimeoutError,
)
from echoic.server import Server
from echoic.stream import Stream
from echoic.workers import Supervisor, Worker, stop_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["GymnasiumCollector"]

# Seconds between two checks of the workers while no rollout arrives.
_POLL = 0.1


class _RolloutWorker(Worker):
    """A worker process with its requested and received rollouts."""

    def __init__(self, setup: Setup, folder: Path, version: int) -> None:
        super().__init__(run, setup, folder, name=f"worker {setup.worker}")
        self.setup = setup
        self.rollouts: deque[dict[str, Any]] = deque()
        # Versions of the weights of the rollouts that were requested and have not arrived.
        self.requested: deque[int] = deque()
        self.ready = False
        # The version of the weights for the example of a step.
        self.first = version


class GymnasiumCollector:
    """Collect rollouts of any Gymnasium environments in worker processes, ahead of the learner.

    Each worker steps its environments one after the other and resets each when its episode is over;
    :meth:`recv` joins the rollouts of all workers. A worker makes up to ``capacity`` rollouts ahead
    and then waits.

    A worker that is killed is replaced, with a :class:`~echoic.errors.CollectorWarning`: its
    environments start again, and rollouts that it had not delivered are lost. An exception of an
    environment or of the policy closes the collector; :meth:`recv` raises it as a
    :class:`~echoic.errors.CollectorError` with the worker's traceback.

    Args:
        env: The id of an environment, or a function that makes one, without arguments. Functions,
            also those of a script or a notebook, are sent to the workers by ``cloudpickle``, which
            comes with Gymnasium.
        num_envs: Number of environments.
        num_steps: Number of steps of each environment in a rollout.
        policy: ``policy(weights, observations, rng)`` returns the actions for all environments of a
            worker, or ``(actions, extras)`` with a dict of more arrays to put into batches, such as
            ``log_probs`` or ``values``. ``observations`` and all results have an axis of
            environments; ``rng`` is a ``numpy.random.Generator``. ``None`` draws from the action
            space.
        num_workers: Number of processes, a divisor of ``num_envs``. ``None``: the largest divisor
            that is at most the number of cores.
        weights: The policy's initial weights: anything that can be pickled.
        seed: Seed of all random choices; random when ``None``. The same seed and number of workers
            give the same rollouts.
        capacity: Number of rollouts that are made ahead. 0 begins one when :meth:`recv` waits for
            it, so that it always has the latest weights. Default: 1.
        next_observations: Whether batches have the observation after each step, which doubles their
            size if observations are large. Default: ``True``.
        max_restarts: Number of times that a worker is replaced before :meth:`recv` raises
            :class:`~echoic.errors.CollectorError`. Default: 3.
        timeout: Seconds that workers may take to make their environments. Default: 60.

    Raises:
        SpecError: If a number is out of range.
        CollectorError: If a worker failed to make its environments or to call the policy; the
            message has its traceback.
        WaitTimeoutError: If workers took longer than ``timeout``.

    Examples:
        >>> from echoic.collectors.gymnasium import GymnasiumCollector
        >>> with GymnasiumCollector("CartPole-v1", num_envs=2, num_steps=8) as collector:
        ...     batch = collector.recv()
        >>> batch["observations"].shape, batch["actions"].shape
        ((8, 2, 4), (8, 2))
    """

    def __init__(
        self,
        env: str | Callable[[], Any],
        num_envs: int,
        num_steps: int,
        policy: Callable[[Any, Any, np.random.Generator], Any] | None = None,
        *,
        num_workers: int | None = None,
        weights: Any = None,
        seed: int | None = None,
        capacity: int = 1,
        next_observations: bool = True,
        max_restarts: int = 3,
        timeout: float = 60.0,
    ) -> None:
        if num_workers is None:
            most = min(num_envs, os.cpu_count() or 1)
            num_workers = max(
                [count for count in range(1, most + 1) if num_envs % count == 0] or [1]
            )
        least = {"num_envs": 1, "num_steps": 1, "num_workers": 1, "capacity": 0, "max_restarts": 0}
        numbers = (num_envs, num_steps, num_workers, capacity, max_restarts)
        for (name, bound), number in zip(least.items(), numbers, strict=True):
            if number < bound:
                raise SpecError(f"{name}: expected at least {bound}, got {number}")
        if num_envs % num_workers:
            text = f"expected a divisor of the {num_envs} environments"
            raise SpecError(f"num_workers: {text}, got {num_workers}")
        self._capacity = capacity
        #: The seed of all random choices, also if it was drawn at random.
        self.seed = seed_of(seed)
        self._sizes = (num_steps, num_envs // num_workers)
        self._following = next_observations
        # One thread receives at a time; the other lock is for workers and their connections.
        self._receiving = threading.Lock()
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._version = 0
        self._failure: str | None = None
        self._closed = False
        self._server: Server | None = None
        self._stream: Stream
        self._form: Form | None = None
        root = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._folder = Path(tempfile.mkdtemp(prefix="echoic-collector-", dir=root))
        self._setups: list[Setup] = []
        me = weakref.proxy(self)
        self._supervisor = Supervisor[_RolloutWorker](
            lambda worker, generation: me._start(worker, generation),  # noqa: PLW0108 - weak
            num_workers,
            max_restarts,
        )
        self._workers = self._supervisor.members
        self._finish = weakref.finalize(self, _end_all, self._workers, self._folder, self._owner)
        try:
            self._write(0, weights)
            seeds = (
                np.random.SeedSequence(self.seed).generate_state(num_envs).reshape(num_workers, -1)
            )
            pickled = by_value(env), by_value(policy)
            self._setups = [
                Setup(*pickled, num_steps, own.tolist(), next_observations, worker, 0)
                for worker, own in enumerate(seeds)
            ]
            self._supervisor.start()
            self._wait_for_workers(timeout)
            self._request_ahead(capacity)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The address of the stream that rollouts come through, for `echoic top`."""
        if self._server is None:
            raise ClosedError("the collector is closed")
        return self._server.address

    @property
    def version(self) -> int:
        """The version of the weights: the number of calls of :meth:`sync_weights`."""
        return self._version

    def sync_weights(self, weights: Any) -> int:
        """Set the policy's weights, and return their version.

        Rollouts that are requested from now on use them. Those that were requested before do not:
        up to ``capacity`` of each worker, and one if that is 0.

        Raises:
            ClosedError: If the collector is closed, or belongs to another process.
        """
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                raise ClosedError("the collector is closed, or belongs to another process")
            self._write(self._version + 1, weights)
            self._version += 1
            return self._version

    def recv(self, timeout: float | None = None, *, min_version: int = 0) -> dict[str, Any]:
        """Return the next rollout of all environments; wait until it is complete.

        The keys, with T steps and N environments in a fixed order:

        - ``observations`` (T, N, ...): before each step; a tree if the environment's are.
        - ``next_observations`` (T, N, ...): after each step, also at the end of an episode.
        - ``last_observations`` (N, ...): with which the next rollout begins.
        - ``actions`` (T, N, ...), ``rewards`` (T, N) float32.
        - ``terminated``, ``truncated`` (T, N) bool, ``dones`` (T, N) float32: 1 for either.
        - ``episode_starts`` (T, N) bool: whether the observation is the first of an episode.
        - ``episode_returns`` (T, N) float32: the sum of rewards of an episode at its last step,
          otherwise NaN.
        - ``versions`` (N,) int64: of the weights, and ``version``, the lowest of them.
        - the policy's extras, each (T, N, ...).

        Args:
            timeout: Seconds to wait; ``None`` waits forever.
            min_version: Drop rollouts that were made with earlier weights.

        Raises:
            WaitTimeoutError: If none was complete in time. Nothing is lost: call it again.
            ClosedError: If the collector is closed.
            CollectorError: If a worker failed. The collector is closed.
            SpecError: If ``min_version`` is above :attr:`version`.
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
                self._request_ahead(self._capacity)
                if min(int(group["version"]) for group in groups) >= min_version:
                    return self._joined(groups)
        finally:
            self._receiving.release()

    def close(self) -> None:
        """Stop all workers; a waiting :meth:`recv` raises ClosedError. Safe to call again."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            server = self._server
        # First, to wake a thread that waits for a rollout.
        if server is not None:
            server.close(drain=0.0)
        with self._lock:
            self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        steps, envs = self._sizes
        state = "closed" if self._closed else f"version {self._version}"
        workers = len(self._workers)
        return (
            f"GymnasiumCollector({workers} workers of {envs} environments, {steps} steps, {state})"
        )

    def _start(self, worker: int, generation: int) -> _RolloutWorker:
        """Start a worker; ``generation`` is the number of workers that were replaced before."""
        setup = self._setups[worker]
        if generation:
            # Its environments start again, with other seeds, so that episodes are not repeated.
            entropy = np.random.SeedSequence([generation, *setup.seeds])
            seeds = entropy.generate_state(len(setup.seeds))
            setup = setup._replace(generation=generation, seeds=seeds.tolist())
        started = _RolloutWorker(setup, self._folder, self._version)
        started.send(self._request())
        if generation:
            started.rollouts = self._workers[worker].rollouts
        return started

    def _wait_for_workers(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not all(worker.ready for worker in self._workers):
            if time.monotonic() > deadline:
                late = sum(not worker.ready for worker in self._workers)
                text = f"{late} of {len(self._workers)} workers have not started after {timeout} s"
                raise self._late(text)
            self._poll(0.02)

    def _write(self, version: int, weights: Any) -> None:
        """Write the weights for the workers, and remove those that no request uses any more."""
        (self._folder / f"weights-{version}").write_bytes(pickle.dumps(weights))
        used = {version for worker in self._workers for version in worker.requested}
        used |= {worker.first for worker in self._workers if not worker.ready}
        for file in self._folder.glob("weights-*"):
            if int(file.name.removeprefix("weights-")) not in {version, *used}:
                file.unlink()

    def _request(self) -> Request:
        return Request(self._version, str(self._folder / f"weights-{self._version}"))

    def _request_ahead(self, count: int) -> None:
        """Request rollouts of each worker until this many are requested or waiting."""
        with self._lock:
            self._check()
            for worker in self._workers:
                while worker.ready and len(worker.requested) + len(worker.rollouts) < count:
                    worker.requested.append(self._version)
                    worker.send(self._request())

    def _take(self, deadline: float | None) -> list[dict[str, Any]]:
        """Wait for one rollout of each worker, and return them."""
        while True:
            self._check()
            self._poll(0.0)
            self._request_ahead(max(self._capacity, 1))
            if all(worker.rollouts for worker in self._workers):
                return [worker.rollouts.popleft() for worker in self._workers]
            left = _POLL if deadline is None else deadline - time.monotonic()
            if not self._receive(max(0.0, min(left, _POLL))) and left <= 0:
                late = sum(not worker.rollouts for worker in self._workers)
                text = f"{late} of {len(self._workers)} workers have made no rollout"
                raise self._late(text)

    @staticmethod
    def _late(text: str) -> WaitTimeoutError:
        error = WaitTimeoutError(f"timed out: {text}")
        error.reason = "EMPTY"
        return error

    def _receive(self, timeout: float) -> bool:
        """Take a rollout from the stream; return whether there was one."""
        if self._server is None:
            raise ClosedError("the collector is closed")
        try:
            batch = self._stream.sample(timeout=timeout).data
        except WaitTimeoutError:
            return False
        except ClosedError:
            self._check()
            raise
        rollout: Any = _trees.tree_map(lambda leaf: leaf[0], batch)
        worker = self._workers[int(rollout["worker"])]
        with self._lock:
            # Rollouts of a process that has died are requested again.
            if int(rollout["generation"]) == worker.setup.generation and worker.requested:
                worker.requested.popleft()
                worker.rollouts.append(rollout)
        return True

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise ClosedError("the collector belongs to the parent of this forked process")
        if self._failure is not None:
            raise CollectorError(self._failure)
        if self._closed:
            raise ClosedError("the collector is closed")

    def _poll(self, timeout: float) -> None:
        """Read messages of workers, and replace those that have died."""
        replaced = []
        with self._lock:
            self._check()
            for worker in self._workers:
                alive = worker.alive
                for form in worker.messages(timeout):
                    self._accept(worker, form)
                if not alive:
                    replaced.append(self._replace(worker))
        # After all were replaced, since warnings may be raised as errors.
        for text in replaced:
            warnings.warn(CollectorWarning(text), stacklevel=4)

    def _accept(self, worker: _RolloutWorker, form: Form) -> None:
        """Compare a worker's example of a step with the others', and send it the address."""
        if self._form is None:
            self._form = form
            self._open(form)
        elif not _same(self._form, form):
            text = f"expected environments and a policy like worker 0's, {self._form}"
            self._fail(f"worker {worker.setup.worker}: {text}, got {form}")
        if self._server is not None:
            worker.send(self._server.address)
            worker.ready = True

    def _open(self, form: Form) -> None:
        """Start the stream, with room for all requested rollouts and for those still referenced."""
        example = form.rollout(*self._sizes, following=self._following)
        ahead = max(self._capacity, 1) * len(self._workers)
        if sys.platform == "linux":
            address = f"shm://collector-{os.getpid()}-{secrets.token_hex(4)}"
        else:
            address = f"unix://{self._folder}/echoic"
        # Rollouts ahead, those being joined, and some of processes that have died.
        room = ahead + len(self._workers) + 2
        self._stream = Stream(example, batch_size=1, capacity=room)
        self._server = Server(self._stream, listen=address).start()

    def _replace(self, worker: _RolloutWorker) -> str:
        """Replace a worker that has died; return the text of the warning."""
        if worker.traceback is not None:
            self._fail(f"{worker.name} {worker.ending()}")
        try:
            ending = self._supervisor.replace(worker.setup.worker)
        except CollectorError as error:
            self._fail(str(error))
        return f"{worker.name} {ending} and was replaced; its environments have started again"

    def _fail(self, text: str) -> NoReturn:
        self._failure = text
        self.close()
        raise CollectorError(text)

    def _joined(self, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """Join the rollouts of all workers."""
        versions = [np.full(self._sizes[1], int(group.pop("version"))) for group in groups]
        for group in groups:
            del group["worker"], group["generation"]
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
    """Return whether two descriptions of a step are equal."""
    leaves, form = _trees.tree_flatten(one)
    others, other_form = _trees.tree_flatten(other)
    return form == other_form and all(
        (left.dtype, left.shape) == (right.dtype, right.shape)
        for left, right in zip(leaves, others, strict=True)
    )


def _end_all(workers: list[_RolloutWorker], folder: Path, process: int) -> None:
    """End all workers and remove their files; in a forked child do nothing."""
    if os.getpid() == process:
        stop_all(workers)
        shutil.rmtree(folder, ignore_errors=True)
