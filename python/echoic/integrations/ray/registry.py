"""Track the shards of a cluster and their addresses, in an actor.

Clients ask it by its name, when they connect and at intervals. It asks the shards, since Ray may
have restarted one elsewhere. When Ray restarts the registry itself, it finds the shards by their
names; a shard also remembers that it is being drained.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray._private.state import actors as actor_state
from ray.exceptions import RayError

if TYPE_CHECKING:
    from echoic.integrations.ray.addresses import Addresses

__all__ = [
    "MAX_SHARDS",
    "ClusterState",
    "Entry",
    "Registry",
    "own_restarts",
    "restarts_of",
    "shard_name",
]

# The limit of a sharded client: a key has eight bits for its shard.
MAX_SHARDS = 256
# Seconds for which an answer is reused: many clients ask when a shard is away.
_FRESH = 0.25
# Seconds for which a shard may delay the answer about all others.
_PATIENCE = 1.0


def shard_name(name: str, number: int) -> str:
    """Return the name of a shard's actor."""
    return f"{name}/shard-{number}"


@dataclass
class Entry:
    """The state of a shard."""

    addresses: Addresses | None = None  # Or the last ones; `None` until they were reported.
    draining: bool = False  # Whether it gets no more inserts.
    removed: bool = False  # Whether it is gone for good.


@dataclass(frozen=True)
class ClusterState:
    """The registry's answer to clients: the token, and all shards by number.

    ``shards`` is empty while the cluster is still being started.
    """

    token: str
    shards: list[Entry]


class Registry:
    """Track the shards of one cluster.

    Args:
        name: The cluster's name.
        namespace: Ray's namespace of the cluster.
        token: The secret that shards require.
    """

    def __init__(self, name: str, namespace: str, token: str) -> None:
        """Look for shards that are there already: the registry may have been restarted."""
        self._name = name
        self._namespace = namespace
        self._token = token
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._asked = 0.0
        prefix = shard_name(name, 0)[:-1]
        numbers = {
            int(found["name"].removeprefix(prefix))
            for found in ray.util.list_named_actors(all_namespaces=True)
            if found["namespace"] == namespace and found["name"].startswith(prefix)
        }
        # None while the cluster starts, which calls `grow` when all are there.
        count = max(numbers, default=-1) + 1
        self._shards = [Entry(removed=number not in numbers) for number in range(count)]

    async def state(self) -> ClusterState:
        """Return the state of all shards."""
        now = time.monotonic()
        if now - self._asked > _FRESH:
            self._asked = now
            for number, entry in enumerate(self._shards):
                if number not in self._asking and not entry.removed:
                    self._asking[number] = asyncio.create_task(self._ask(number, entry))
        if self._asking:
            # Requests to those that don't answer continue; until then their last answer counts.
            await asyncio.wait(self._asking.values(), timeout=_PATIENCE)
        return ClusterState(self._token, self._shards)

    async def _ask(self, number: int, entry: Entry) -> None:
        try:
            shard: Any = ray.get_actor(shard_name(self._name, number), self._namespace)
            addresses, draining = await shard.report.remote()
        except (RayError, ValueError):
            # It is being restarted, or not there at all.
            return
        finally:
            del self._asking[number]
        # Unless it was removed meanwhile.
        if not entry.removed:
            entry.addresses = addresses
            entry.draining |= draining

    async def last(self, number: int) -> tuple[Addresses | None, bool]:
        """Return a shard's last addresses and whether it is being drained, for its next process."""
        if number >= len(self._shards):
            return None, False
        return self._shards[number].addresses, self._shards[number].draining

    async def grow(self, count: int, there: list[int]) -> None:
        """Set the number of shards, and which of them are there."""
        self._shards += [Entry() for _ in range(len(self._shards), count)]
        for number, entry in enumerate(self._shards):
            # A restarted registry does not know of shards that were removed.
            entry.removed |= number not in there
        self._asked = 0.0

    async def drain(self, number: int) -> None:
        """Mark a shard as getting no more inserts."""
        self._shards[number].draining = True

    async def remove(self, number: int) -> None:
        """Mark a shard as removed."""
        entry = self._shards[number]
        entry.addresses, entry.draining, entry.removed = None, False, True


def restarts_of(actor: Any) -> int:
    """Return how many times an actor was restarted, given its handle."""
    return _restarts(actor._actor_id.hex())


def own_restarts() -> int:
    """Return how many times the calling actor was restarted."""
    return _restarts(ray.get_runtime_context().get_actor_id())


def _restarts(actor_id: str) -> int:
    # Ray shows this number in its dashboard, which may not run, and has no other public way to it:
    # this reads what Ray's `was_current_actor_reconstructed` reads.
    state = actor_state(actor_id=actor_id)
    return int(state["NumRestarts"]) if state else 0
