"""Serve a stream in its learner's process, for producers on a Ray cluster.

# Invariants

1. A server that has learned that another one has its rank accepts no samples any more.
2. A server that the registry has not confirmed for :data:`_SURE` seconds begins no checkpoint: its
   successor may write to the same directory.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from echoic.errors import ArgumentError, DisconnectedError
from echoic.integrations.ray.addresses import open_transports
from echoic.integrations.ray.stream_registry import BEAT, Entered, Place, open_registry
from echoic.server import Server
from echoic.stream import Stream

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from echoic.checkpointer import Checkpointer
    from echoic.integrations.ray.addresses import Addresses

__all__ = ["StreamServer", "check_name"]

_log = logging.getLogger(__name__)

# It is part of the name of a socket's file, which may have 108 bytes.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_MAX_RANK = 9999
# Seconds that the registry may take to answer: Ray may be starting or restarting it.
_PATIENCE = 30.0
# Seconds for which the registry's answer, that this server has its rank, is relied on.
_SURE = 5.0


class StreamServer(Server):
    """A stream for the workers of a Ray cluster, in the process that makes it.

    The learner makes it: an actor, a rank of Ray Train, or the program itself. It is a
    :class:`~echoic.Server` that is found by a name: over shared memory by workers on its machine,
    over TCP with a token by all others. :class:`StreamClient` sends to it.

    When Ray restarts the learner, on this node or another, the new server replaces the old one, and
    the workers connect to it.

    Args:
        example: A sample of the stream, as all others will be.
        batch_size: How many samples make a batch.
        capacity: How many samples fit, rounded up to whole batches, at least 2; 4 when ``None``.
        name: The name by which workers find it: letters, digits, ``-``, ``_`` and ``.``.
        namespace: Ray's namespace of the name; that of this process if ``None``.
        rank: Its number, if several learners have a stream each under one name. Each sample goes to
            one of them.
        checkpointer: Where and when unread samples are written to disk. After five seconds without
            an answer of the registry a server writes nothing there until it gets one, since another
            may have replaced it: a :class:`~echoic.errors.CheckpointWarning` says so.
        threads: How many event loops each transport has; half the cores, at most 4, if ``None``.
        held_warning_after: Seconds for which a batch may be held, while producers wait for memory,
            before a :class:`~echoic.errors.HeldBatchesWarning` is issued.

    Raises:
        ArgumentError: If an argument is invalid; on start, if Ray is not initialized.
        DisconnectedError: On start, if Ray did not start the registry.

    Examples:
        In the process that learns::

            with StreamServer(example, batch_size=256, name="rollouts") as server:
                for batch in server.stream.batches():
                    learn(batch.data)
    """

    #: The stream that it serves.
    stream: Stream
    #: The name by which workers find it.
    name: str
    #: Its number among the servers of this name.
    rank: int
    _namespace: str | None
    _threads: int | None
    _example: bytes
    _entered: Entered | None
    _addresses: Addresses | None
    _ended: threading.Event
    # When the registry last confirmed that this server has its rank.
    _sure: float
    _reporter: threading.Thread | None

    def __new__(
        cls,
        example: Any,
        batch_size: int,
        capacity: int | None = None,
        *,
        name: str = "stream",
        namespace: str | None = None,
        rank: int = 0,
        checkpointer: Checkpointer | None = None,
        threads: int | None = None,
        held_warning_after: float = 10.0,
    ) -> Self:
        check_name(name)
        if not 0 <= rank <= _MAX_RANK:
            raise ArgumentError(f"rank must be 0 to {_MAX_RANK}, got {rank}")
        stream = Stream(
            example,
            batch_size=batch_size,
            capacity=capacity,
            held_warning_after=held_warning_after,
        )
        self = super().__new__(
            cls,
            stream,
            # So that the ring is in memory that can be shared, where there is such memory.
            listen=f"shm://{name}" if sys.platform == "linux" else None,
            checkpointer=checkpointer,
        )
        # The registry's answer has the names of the transports.
        self._waiting.clear()
        self.stream = stream
        self.name = name
        self._namespace = namespace
        self.rank = rank
        self._threads = threads
        self._example = ray.cloudpickle.dumps(example)
        self._entered = None
        self._addresses = None
        self._ended = threading.Event()
        self._sure = -math.inf
        self._reporter = None
        return self

    def start(self) -> Self:
        """Open the transports and report the addresses; return the server.

        Starting again changes nothing.

        Raises:
            ArgumentError: If Ray is not initialized.
            DisconnectedError: If Ray did not start the registry in time.
        """
        if self._reporter is not None:
            return self
        if not ray.is_initialized():
            raise ArgumentError("a StreamServer is found through Ray: call ray.init() first")
        self._namespace = self._namespace or ray.get_runtime_context().namespace
        try:
            entered = ray.get(self._registry().enter.remote(self.rank), timeout=_PATIENCE)
            self._entered = entered
            self._addresses = open_transports(
                self,
                f"{self.name}-{entered.identity}-{self.rank}",
                token=entered.token,
                threads=self._threads,
                before=entered.before,
            )
            self._report()
        except (RayError, GetTimeoutError, ValueError) as error:
            # No client could find it.
            super().close()
            raise DisconnectedError(
                f"the registry of the stream {self.name!r} did not answer within {_PATIENCE} s: "
                f"{error}"
            ) from error
        name = f"echoic-stream-{self.name}"
        self._reporter = threading.Thread(target=self._keep_reporting, name=name, daemon=True)
        self._reporter.start()
        return self

    def _registry(self) -> Any:
        entered = self._entered
        identity = secrets.token_hex(4) if entered is None else entered.identity
        token = secrets.token_hex(16) if entered is None else entered.token
        assert self._namespace is not None
        return open_registry(self.name, self._namespace, identity, token)

    def _report(self) -> bool:
        """Report to the registry; return whether this server has its rank."""
        entered, addresses = self._entered, self._addresses
        assert entered is not None
        assert addresses is not None
        place = Place(
            rank=self.rank,
            generation=entered.generation,
            addresses=addresses,
            token=entered.token,
            example=self._example,
            load=int(self.metrics()["connections"]),
        )
        asked = time.monotonic()
        counts: bool = ray.get(self._registry().report.remote(place), timeout=_PATIENCE)
        if counts:
            self._sure = asked
        return counts

    def checkpoint(self) -> Path:
        """Write unread samples to disk; see :meth:`echoic.Server.checkpoint`.

        Raises:
            DisconnectedError: If the registry has not confirmed for five seconds that this server
                has its rank. Nothing was written.
        """
        silent = time.monotonic() - self._sure
        if self._entered is not None and silent > _SURE:
            raise DisconnectedError(
                f"the registry of the stream {self.name!r} has not answered for {silent:.0f} s, "
                f"and another server may have rank {self.rank} and write to the same directory"
            )
        return super().checkpoint()

    def _keep_reporting(self) -> None:
        while not self._ended.wait(BEAT):
            if not ray.is_initialized():
                # No new client can find it; those that are connected continue.
                return
            try:
                counts = self._report()
            except (RayError, GetTimeoutError, ValueError) as error:
                _log.warning("the registry of the stream %r does not answer: %s", self.name, error)
                continue
            if not counts:
                _log.warning(
                    "rank %d of the stream %r was made again elsewhere: this server closes",
                    self.rank,
                    self.name,
                )
                super().close()
                return

    def _leave(self) -> None:
        """Leave the registry, which sends producers elsewhere, and end it if no server is left."""
        entered = self._entered
        if entered is None or not ray.is_initialized():
            return
        try:
            registry = self._registry()
            if not ray.get(registry.leave.remote(self.rank, entered.generation), timeout=_PATIENCE):
                ray.kill(registry)
        except (RayError, GetTimeoutError, ValueError) as error:
            _log.warning("the registry of the stream %r does not answer: %s", self.name, error)

    def close(self, drain: float = 1.0, restart: bool | None = None) -> None:
        """Close as :meth:`Server.close` does; producers go to another rank if there is one."""
        if not self._ended.is_set():
            self._ended.set()
            if self._reporter is not None:
                self._reporter.join(_PATIENCE)
            self._leave()
        super().close(drain, restart)

    def __repr__(self) -> str:
        return f"StreamServer({self.name!r}, rank={self.rank})"


def check_name(name: str) -> None:
    """Raise an ``ArgumentError`` if a stream can't have this name."""
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"name must be 1 to 40 letters, digits, '-', '_' and '.', got {name!r}")
