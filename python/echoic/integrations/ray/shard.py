"""A shard: a native server in an actor of Ray, which restores its items when it is killed.

Ray restarts the actor with the same arguments, on its node or another. It restores its checkpoint
and journals from its directory, and asks for the port that it had, so that clients on other
machines find it again. A restarted shard that can't start, for instance because its directory is
not mounted, tries again until it can: it never starts with less than it had.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from echoic.checkpointer import Checkpointer
from echoic.errors import StorageError
from echoic.integrations.ray import manifest
from echoic.integrations.ray.addresses import Addresses, open_transports
from echoic.integrations.ray.moving import move_items, move_rest
from echoic.server import Server
from echoic.weights import WeightStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from echoic.rollouts import RolloutTable
    from echoic.table import Table

__all__ = ["Shard", "ShardSettings"]

_log = logging.getLogger(__name__)

# Seconds that a process tries to start before another one does. The earlier process may still hold
# the directory: Ray gave it up, but its machine may only be cut off.
_START_PATIENCE = 60.0
# The first pause between two attempts, which doubles, and the longest.
_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
# Seconds to wait for the registry, which Ray may be restarting as well.
_REGISTRY_PATIENCE = 5.0


@dataclass(frozen=True)
class ShardSettings:
    """Settings that the shards of a cluster share; see also the arguments of its class."""

    name: str
    namespace: str
    identity: str  # Eight random letters, unique to this cluster on this machine.
    token: str  # The secret that clients need.
    tables: Callable[[], Sequence[Table]]
    directory: Path | None = None
    directory_identity: str = ""  # That in the directory's manifest.
    checkpoint_every: float | None = None
    rollouts: Callable[[Path | None], Sequence[RolloutTable]] | None = None
    weights: bool = False
    threads: int | None = None


class Shard:
    """One of several servers that hold tables together, as an actor.

    Its methods run in several threads: it reports its address while it writes a checkpoint.

    Args:
        settings: Those of all shards.
        number: The shard's number.
    """

    def __init__(self, settings: ShardSettings, number: int) -> None:
        """Restore what the directory has, and open the transports."""
        # Ray's workers run with a niceness of 15. Clients that wait for this process would keep the
        # processor from it. This needs a permission; without it, set RAY_worker_niceness when a
        # node is started.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._settings = settings
        self._number = number
        directory = settings.directory
        self._folder = None if directory is None else manifest.shard_folder(directory, number)
        self._draining = False
        # How many items of each table were moved since the transports closed; one call at a time.
        self._finishing = threading.Lock()
        self._moved: dict[str, int] | None = None
        self._started = time.time()
        self._tables: list[Table] = []
        self._server, self._addresses = self._start(self._before())

    def _before(self) -> Addresses | None:
        """Ask for the addresses of the earlier process, and whether it was being drained."""
        try:
            registry = ray.get_actor(self._settings.name, self._settings.namespace)
            last = registry.last.remote(self._number)
            before: Addresses | None
            before, self._draining = ray.get(last, timeout=_REGISTRY_PATIENCE)
        except (RayError, ValueError, TimeoutError) as error:
            _log.warning("shard %d takes another port: no registry (%s)", self._number, error)
            return None
        return before

    def _start(self, before: Addresses | None) -> tuple[Server, Addresses]:
        """Start; after a restart, try until that succeeds.

        An error of ``__init__`` would end the actor for good; a process that dies is restarted.
        """
        is_later = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        deadline = time.monotonic() + _START_PATIENCE
        pause = _PAUSE
        while True:
            try:
                return self._attempt(before)
            except Exception as error:
                is_held = isinstance(error, StorageError) and error.errno == errno.EWOULDBLOCK
                if not (is_later or is_held):
                    raise
                text = "shard %d of %r could not start and tries again: %s"
                _log.warning(text, self._number, self._settings.name, error)
            if time.monotonic() >= deadline:
                os._exit(1)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _attempt(self, before: Addresses | None) -> tuple[Server, Addresses]:
        settings, number, folder = self._settings, self._number, self._folder
        identity, closed_with = settings.directory_identity, None
        if settings.directory is not None:
            closed_with = manifest.open_shard(settings.directory, identity, number)
        server = self._make_server()
        try:
            if folder is not None and closed_with is not None:
                manifest.check_items(folder, closed_with, self.sizes())
                manifest.record_items(folder, identity, number, None)
            addresses = open_transports(
                server,
                f"{settings.name}-{settings.identity}-{number}",
                token=settings.token,
                threads=settings.threads,
                before=before,
            )
        except BaseException:
            server.close(0.0)
            raise
        return server, addresses

    def _make_server(self) -> Server:
        settings, folder = self._settings, self._folder
        self._tables = list(settings.tables())
        stores: list[Any] = [*self._tables]
        if self._number == 0 and settings.rollouts is not None:
            stores += settings.rollouts(None if folder is None else folder / "rollouts")
        if self._number == 0 and settings.weights:
            stores.append(WeightStore())
        if folder is None:
            return Server(*stores)
        every = settings.checkpoint_every
        checkpointer = Checkpointer(folder / "checkpoints", keep=2, every=every)
        return Server(*stores, checkpointer=checkpointer, journal=folder / "journal")

    def report(self) -> tuple[Addresses, bool]:
        """Return its addresses, and whether it gets no more inserts."""
        return self._addresses, self._draining

    def process(self) -> dict[str, Any]:
        """Return its process id, its node of Ray and its start time."""
        node = ray.get_runtime_context().get_node_id()
        return {"pid": os.getpid(), "node": node, "started": self._started}

    def sizes(self) -> dict[str, int]:
        """Return how many items each table has."""
        return {table.name: len(table) for table in self._tables}

    def drain(self) -> None:
        """Remember that it gets no more inserts, in case the registry is restarted."""
        self._draining = True

    def move_items(self, others: list[Addresses], timeout: float) -> dict[str, int]:
        """Move items to other shards; return how many of each table."""
        if self._moved is not None:
            # The transports are closed: `finish` moves the rest.
            return dict.fromkeys(self.sizes(), 0)
        return move_items(self._tables, others, self._settings.token, timeout)

    def finish(self, others: list[Addresses], drain: float, timeout: float) -> dict[str, int]:
        """Close the transports, and move what is left to other shards; return how many of each.

        Nothing is acknowledged once they are closed, so no item is left behind.
        """
        with self._finishing:
            if self._moved is None:
                self._moved = {}
                self._server.close(drain)
            return move_rest(self._tables, others, self._settings.token, timeout, self._moved)

    def secure(self) -> None:
        """Write a checkpoint if there is a directory and a table without a journal."""
        if self._folder is not None and any(one.durability == "none" for one in self._tables):
            self._server.checkpoint()

    def close(self, drain: float) -> None:
        """Stop accepting samples, write a last checkpoint and the items' counts, and close."""
        self._server.close(drain)
        if self._folder is not None:
            self._server.checkpoint()
            identity = self._settings.directory_identity
            manifest.record_items(self._folder, identity, self._number, self.sizes())
