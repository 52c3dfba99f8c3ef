"""Step environments in an actor of Ray, and insert the experience into a table.

It makes one rollout after the other. A rollout becomes items, and the next one begins when the
servers have acknowledged them: so the worker waits while a limiter blocks inserts, and a worker
that is killed loses only its current rollout.

Its methods run in two threads: :meth:`Worker.run` for as long as it works, and beside it those that
return its numbers or stop it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from echoic import _trees
from echoic.collectors._gymnasium_worker import Envs, Setup
from echoic.connection import connect
from echoic.errors import ClosedError, DisconnectedError, WaitTimeoutError
from echoic.integrations.ray.envs import VectorSteps
from echoic.integrations.ray.registry import own_restarts

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Task", "Worker"]

# Seconds that a worker waits for a server before it checks whether to stop.
_LOOK = 0.5
# Seconds that it may take to deliver what it has when it stops.
_GRACE = 2.0
# The mean return is of this many episodes.
_EPISODES = 100


@dataclass(frozen=True)
class Task:
    """Settings that the workers of a set share; see also the arguments of :class:`Collectors`."""

    # Pickled with their code.
    env: bytes
    policy: bytes
    items: bytes
    client: Any  # Where items go: a client, or an address.
    table: str | None  # `None` for a stream's client.
    weights: str | bool  # An address, or `True` for the client's cluster.
    envs: int  # How many environments each worker has.
    steps: int  # How many steps a rollout has.
    native: bool
    seed: int  # The one before any restart.
    options: dict[str, Any]  # Of connections to addresses.


class _Stopped(Exception):
    """Raised to end the worker's loop when it stops."""


class _Feed:
    """The latest weights, wherever their server is now."""

    def __init__(self, task: Task, client: Any) -> None:
        self._task = task
        self._cluster = client if task.weights is True else None
        self._weights: Any = None
        self._subscription: Any = None
        self._address = ""
        # Held, since the memory of its arrays is used again once they are freed.
        self._latest: Any = None

    def wait(self, look: Callable[[], None]) -> tuple[int, Any]:
        """Return the latest weights and their version; wait for the first ones."""
        while True:
            look()
            try:
                self._renew()
                self._latest = self._subscription.latest() or self._latest
                if self._latest is None:
                    self._latest = self._subscription.wait(timeout=_LOOK)
            except WaitTimeoutError:
                continue
            except DisconnectedError:
                # Its server has been away for long: connect again, with the old weights until then.
                self.close()
                if self._latest is None:
                    continue
            return self._latest.version, self._latest.tree

    def _renew(self) -> None:
        """Connect to the server of the weights, if its address has changed."""
        address = self._address
        if self._cluster is not None:
            address = self._cluster.addresses[0]
        elif not address:
            address = str(self._task.weights)
        if self._subscription is None or address != self._address:
            self.close()
            self._address = address
            source = self._cluster or connect(address, **self._task.options)
            self._weights = source.weights()
            self._subscription = self._weights.subscribe()

    def close(self) -> None:
        """Close the link, but keep the weights."""
        if self._weights is not None:
            if self._subscription is not None:
                self._subscription.close()
            self._weights.close()
        self._weights = self._subscription = None


class Worker:
    """Step environments, as an actor.

    Args:
        task: The settings of all workers.
        number: The worker's number.
    """

    def __init__(self, task: Task, number: int) -> None:
        """Store the settings; :meth:`run` makes the environments, and reports their errors."""
        self._task = task
        self._number = number
        self._stopping = threading.Event()
        self._returns: deque[float] = deque(maxlen=_EPISODES)
        self._client: Any = None
        counts = {"steps": 0, "episodes": 0, "items": 0}
        self._progress: dict[str, Any] = {**counts, "version": -1, "waited": 0.0}

    def ready(self) -> bool:
        """Return true, once the worker has started."""
        return True

    def stop(self) -> None:
        """Make :meth:`run` end after the current step."""
        self._stopping.set()

    def stats(self) -> dict[str, Any]:
        """Return the numbers of this process, and where it is."""
        addresses = [] if self._client is None else self._client.addresses
        return {
            **self._progress,
            "mean_return": float(np.mean(self._returns)) if self._returns else None,
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "transports": [address.partition("://")[0] for address in addresses],
        }

    def run(self) -> None:
        """Work until :meth:`stop` is called, or the table is closed."""
        task = self._task
        given = task.client
        self._client = connect(given, **task.options) if isinstance(given, str | list) else given
        feed = _Feed(task, self._client) if task.weights else None
        envs: Any = None
        try:
            version, weights = (0, None) if feed is None else feed.wait(self._look)
            envs = self._make_envs()
            form = envs.form(weights)
            rollout = form.rollout(task.steps, task.envs, following=True)
            items_of: Callable[[Any], Any] = pickle.loads(task.items)
            while True:
                if feed is not None:
                    version, weights = feed.wait(self._look)
                envs.roll(rollout, weights, self._look)
                self._insert(items_of(rollout), version)
                self._note(rollout, version)
        except (_Stopped, ClosedError):
            return
        finally:
            if feed is not None:
                feed.close()
            for env in () if envs is None else envs.envs:
                env.close()
            # If the table is closed or gone, the caller of `stop` knows it.
            with contextlib.suppress(WaitTimeoutError, DisconnectedError, ClosedError):
                self._client.close(_GRACE)

    def _make_envs(self) -> Any:
        task = self._task
        entropy = [task.seed, self._number, own_restarts()]
        seeds = [int(one) for one in np.random.SeedSequence(entropy).generate_state(task.envs)]
        if task.native:
            from echoic.collectors import VectorEnv

            made = VectorEnv(pickle.loads(task.env), task.envs, autoreset_mode="SameStep")
            return VectorSteps(made, pickle.loads(task.policy), seeds)
        return Envs(Setup(task.env, task.policy, task.steps, seeds, True, self._number, 0))

    def _look(self) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _insert(self, items: Any, version: int) -> None:
        """Wait until a rollout's items are acknowledged, however long the table blocks inserts."""
        began = time.monotonic()
        count = len(_trees.tree_leaves(items)[0])
        name, left, is_sent = self._task.table, items, False
        while True:
            self._look()
            try:
                if not is_sent and name is None:
                    self._client.extend(left, timeout=_LOOK)
                elif not is_sent:
                    self._client.table(name).extend(left, version=version, timeout=_LOOK)
                is_sent = True
                self._client.flush(_LOOK)
                break
            except WaitTimeoutError as error:
                if not is_sent:
                    stored = error.stored
                    left = _trees.tree_map(lambda leaf, stored=stored: leaf[stored:], left)
        self._progress["items"] += count
        self._progress["waited"] += time.monotonic() - began

    def _note(self, rollout: dict[str, Any], version: int) -> None:
        ended = rollout["episode_returns"][~np.isnan(rollout["episode_returns"])]
        self._returns.extend(ended.tolist())
        progress = self._progress
        progress["steps"] += rollout["rewards"].size
        progress["episodes"] += len(ended)
        progress["version"] = version
