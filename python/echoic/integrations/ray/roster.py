"""Who knows which shards a cluster has and where they are: an actor beside them.

Clients ask it by its name, when they connect and now and then. It asks the shards, since Ray may
have started one anew somewhere else. When Ray starts the roster itself anew, it finds the shards by
their names; that one of them is being emptied is written down there as well.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray._private.state import actors as told_of_actors
from ray.exceptions import RayError

if TYPE_CHECKING:
    from echoic.integrations.ray.doors import Doors

__all__ = ["MAX_SHARDS", "Entry", "Roster", "Sheet", "own_restarts", "restarts_of", "shard_name"]

# The limit of a sharded client: a key has eight bits for its shard.
MAX_SHARDS = 256
# For so many seconds an answer is as good as asking anew: many clients ask when a shard is away.
_FRESH = 0.25
# For how long a shard may keep all the others' addresses waiting.
_PATIENCE = 1.0


def shard_name(name: str, number: int) -> str:
    """Return what the actor of a shard is called."""
    return f"{name}/shard-{number}"


@dataclass(frozen=True)
class Entry:
    """What is known of a shard.

    Attributes:
        doors: Where it is, or was last; ``None`` before it has told.
        draining: Whether nothing new may go there.
        removed: Whether it is gone for good.
    """

    doors: Doors | None
    draining: bool = False
    removed: bool = False


@dataclass(frozen=True)
class Sheet:
    """What the roster tells clients: how shards let them in, and all shards by number.

    ``shards`` is empty while the cluster is still being started.
    """

    token: str
    shards: list[Entry]


class Roster:
    """Knows the shards of one cluster.

    Args:
        name: The cluster's.
        namespace: Ray's namespace that it is in.
        token: What shards ask clients for.
    """

    def __init__(self, name: str, namespace: str, token: str) -> None:
        """Look for shards that are there already: this may be a later life."""
        self._name = name
        self._namespace = namespace
        self._token = token
        self._doors: dict[int, Doors] = {}
        self._draining: set[int] = set()
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._asked = 0.0
        prefix = shard_name(name, 0)[:-1]
        numbers = {
            int(found["name"].removeprefix(prefix))
            for found in ray.util.list_named_actors(all_namespaces=True)
            if found["namespace"] == namespace and found["name"].startswith(prefix)
        }
        # While the cluster is started this is none: it tells when all are there.
        self._count = max(numbers, default=-1) + 1
        self._removed = set(range(self._count)) - numbers

    async def state(self) -> Sheet:
        """Return where all shards are."""
        now = time.monotonic()
        if now - self._asked > _FRESH:
            self._asked = now
            for number in range(self._count):
                if number not in self._asking and number not in self._removed:
                    self._asking[number] = asyncio.create_task(self._ask(number))
        if self._asking:
            # Those that don't answer go on being asked; until they do, it is what they said last.
            await asyncio.wait(self._asking.values(), timeout=_PATIENCE)
        entries = [
            Entry(self._doors.get(number), number in self._draining, number in self._removed)
            for number in range(self._count)
        ]
        return Sheet(self._token, entries)

    async def _ask(self, number: int) -> None:
        try:
            doors, draining = await self._shard(number).tell.remote()
        except (RayError, ValueError):
            # It is being started anew, or not there at all.
            return
        finally:
            del self._asking[number]
        if number in self._removed:
            # It was removed while it was asked.
            return
        self._doors[number] = doors
        if draining:
            self._draining.add(number)

    def _shard(self, number: int) -> Any:
        return ray.get_actor(shard_name(self._name, number), self._namespace)

    async def last_doors(self, number: int) -> Doors | None:
        """Return where a shard was last, for its next life."""
        return self._doors.get(number)

    async def is_draining(self, number: int) -> bool:
        """Whether nothing new may go to a shard, for its next life."""
        return number in self._draining

    async def grow(self, count: int, there: list[int]) -> None:
        """Take note that there are so many shards now, and which of them there are."""
        self._count = max(count, self._count)
        # A roster that was started anew does not know of those that were removed last.
        self._removed |= set(range(self._count)) - set(there)
        self._asked = 0.0

    async def drain(self, number: int) -> None:
        """Tell clients from now on that nothing new may go to a shard."""
        self._draining.add(number)

    async def remove(self, number: int) -> None:
        """Tell clients from now on that a shard is gone for good."""
        self._removed.add(number)
        self._draining.discard(number)
        self._doors.pop(number, None)


def restarts_of(actor: Any) -> int:
    """Return how often an actor was started anew, given its handle."""
    return _restarts(actor._actor_id.hex())  # noqa: SLF001 - a handle has no public id


def own_restarts() -> int:
    """Return how often the actor that calls this was started anew."""
    return _restarts(ray.get_runtime_context().get_actor_id())


def _restarts(actor_id: str) -> int:
    # Ray shows this number in its dashboard, which need not run. There is no public way to it
    # without that: this reads what Ray's `was_current_actor_reconstructed` reads.
    told = told_of_actors(actor_id=actor_id)
    return int(told["NumRestarts"]) if told else 0
