"""A queue of groups that is an actor of Ray, with the payloads in Ray's store of objects.

This is what frameworks on Ray write for themselves: the actor has references, the arrays go through
shared memory. It bounds how many groups wait, knows no versions and leases nothing. A learner
stacks the arrays of a batch itself, as the others give it one array for each column.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rollouts.engine import AHEAD, PATIENCE, Host, Learner, Plan, Producer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.payload import Array

_NAME = "groups"
_NAMESPACE = "benchmarks"
# More than all that is under way, so that nothing spills.
_STORE_BYTES = 1 << 30
# The actors of a peer on Ray have one each; it is a number for its scheduler only.
_CPUS = 4
_COMMON: dict[str, Any] = {
    "namespace": _NAMESPACE,
    "log_to_driver": False,
    "logging_level": "ERROR",
}


class Ray:
    """The peer."""

    name = "ray"

    def serve(self, plan: Plan) -> Host:
        """Start Ray, and the actor."""
        ray, address = start_ray()
        actor = ray.remote(num_cpus=0)(Groups)
        handle = actor.options(name=_NAME, max_concurrency=1000).remote(plan.room)
        ray.get(handle.put.remote([]))
        # Its handle keeps it alive.
        self._handle = handle
        return Host(address, ray.shutdown)

    def produce(self, address: str, plan: Plan) -> Producer:
        """Join as a driver of its own."""
        return Sender(join_ray(address))

    def learn(self, address: str, plan: Plan) -> Learner:
        """Join as a driver of its own."""
        return Taker(join_ray(address), plan.batch_groups)


def start_ray() -> tuple[Any, str]:
    """Start a cluster of this machine alone; it, and its address with the word that opens it."""
    # It would tell its makers about this.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    word = secrets.token_hex(32)
    ray = _ray(word)
    ray.init(
        num_cpus=_CPUS,
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        **_COMMON,
    )
    return ray, f"{ray.get_runtime_context().gcs_address}#{word}"


def join_ray(address: str) -> Any:
    """Join the cluster."""
    where, _, word = address.partition("#")
    ray = _ray(word)
    ray.init(where, **_COMMON)
    return ray


def _ray(word: str) -> Any:
    """Import it, which reads the word from here and else from a file that all clusters share."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = word
    return importlib.import_module("ray")


class Groups:
    """The actor."""

    def __init__(self, room: int) -> None:
        """Have no group yet."""
        self._room = room
        self._waiting: deque[Any] = deque()
        self._changed = asyncio.Condition()

    async def put(self, references: list[Any]) -> None:
        """Take references to groups, when there is room."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < self._room)
            self._waiting.extend(references)
            self._changed.notify_all()

    async def take(self, count: int) -> list[Any]:
        """Give the oldest references, when there are so many."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) >= count)
            taken = [self._waiting.popleft() for _ in range(count)]
            self._changed.notify_all()
            return taken


class Sender:
    """A producer."""

    def __init__(self, ray: Any) -> None:
        """Find the actor."""
        self._ray = ray
        self._actor = ray.get_actor(_NAME)
        self._ahead: deque[Any] = deque()
        self.close = ray.shutdown

    def put(self, columns: Mapping[str, Array], rewards: Array) -> None:
        """Store the group as one object, and tell the actor."""
        stored = self._ray.put({**columns, "reward": rewards})
        self._ahead.append(self._actor.put.remote([stored]))
        if len(self._ahead) > AHEAD:
            self._ray.get(self._ahead.popleft())

    def flush(self) -> None:
        """Wait for the actor's answers."""
        self._ray.get(list(self._ahead))
        self._ahead.clear()


class Taker:
    """The learner."""

    def __init__(self, ray: Any, batch: int) -> None:
        """Find the actor."""
        self._ray, self._batch = ray, batch
        self._actor = ray.get_actor(_NAME)
        self.close = ray.shutdown

    def take(self) -> Mapping[str, Array]:
        """Get a batch's objects, and stack them."""
        try:
            references = self._ray.get(self._actor.take.remote(self._batch), timeout=PATIENCE)
        except self._ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(f"no batch within {PATIENCE:.0f} s") from error
        groups = self._ray.get(references)
        return {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}

    def done(self) -> None:
        """Do nothing: an object goes with the last reference to it."""


ENGINE = Ray()
