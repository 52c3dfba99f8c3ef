"""The server of a stream in the process of its learner, which producers on a Ray cluster find.

# Invariants

1. A server that has learned that another one has its rank takes no samples any more.
2. A server that the roster has not told for :data:`_SURE` seconds that it counts begins no
   checkpoint: its successor may write to the same directory.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from echoic.errors import ArgumentError, DisconnectedError
from echoic.integrations.ray.doors import open_doors
from echoic.integrations.ray.stream_roster import BEAT, Entered, Place, open_roster
from echoic.server import Server
from echoic.transports import ShmTransport

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from echoic.checkpointer import Checkpointer
    from echoic.integrations.ray.doors import Doors

__all__ = ["StreamServer", "check_name"]

_log = logging.getLogger(__name__)

# It is part of the name of a socket's file, which may be 108 bytes long.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_MAX_RANK = 9999
# How long the roster may take to answer: it may be that Ray starts it, or starts it anew.
_PATIENCE = 30.0
# For how long a server may take it that no other one has its rank.
_SURE = 5.0


class StreamServer(Server):
    """A stream for the workers of a Ray cluster, handed out in the process that makes it.

    The learner makes it: an actor, a rank of Ray Train, or the program itself. It is a
    :class:`~echoic.Server` whose doors are found by a name: shared memory for workers on its
    machine, TCP with a token for all others. :class:`StreamClient` is what they push to.

    When Ray starts the learner anew, on this node or another, what it makes again takes the old
    one's place, and the workers come there.

    Args:
        example: A sample of the stream as all others will be.
        batch_size: How many samples make a batch.
        capacity: How many samples fit, rounded up to whole batches, at least 2; 4 when ``None``.
        name: How workers find it. Letters, digits, ``-``, ``_`` and ``.``.
        namespace: Ray's namespace that the name is in; that of this process when ``None``.
        rank: Its number, where several learners have a stream each under one name. Each sample
            goes to one of them.
        checkpointer: Where and when what nobody took yet is written to disk. A server that has
            heard nothing of the roster for five seconds writes nothing there until it does, since
            another may have its place: a :class:`~echoic.CheckpointWarning` says so.
        threads: How many event loops each door has; half the cores, at most 4, when ``None``.
        held_warning_after: After how many seconds a batch that is still held, while producers wait
            for memory, is worth a :class:`~echoic.HeldBatchesWarning`.

    Raises:
        ArgumentError: An argument makes no sense; when it is started: Ray is not initialized.
        DisconnectedError: When it is started: Ray did not start what knows the servers.

    Examples:
        In the process that learns::

            with StreamServer(example, batch_size=256, name="rollouts") as stream:
                for batch in stream.batches():
                    learn(batch.data)
    """

    _name: str
    _namespace: str | None
    _rank: int
    _threads: int | None
    _example: bytes
    _entered: Entered | None
    _doors: Doors | None
    _ended: threading.Event
    # When the roster was asked last that has said that this is the server that counts.
    _sure: float
    _teller: threading.Thread | None

    def __new__(  # noqa: PLR0913 - one argument for each option
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
        """Allocate the ring; see the class for the arguments."""
        check_name(name)
        if not 0 <= rank <= _MAX_RANK:
            raise ArgumentError(f"rank must be 0 to {_MAX_RANK}, got {rank}")
        self = super().__new__(
            cls,
            example,
            batch_size,
            capacity,
            # For the ring to be in memory that can be shared.
            ShmTransport(name),
            checkpointer=checkpointer,
            held_warning_after=held_warning_after,
        )
        # What the doors are called is known when the roster was asked.
        self._waiting.clear()
        self._name = name
        self._namespace = namespace
        self._rank = rank
        self._threads = threads
        self._example = ray.cloudpickle.dumps(example)
        self._entered = None
        self._doors = None
        self._ended = threading.Event()
        self._sure = -math.inf
        self._teller = None
        return self

    @property
    def name(self) -> str:
        """How workers find it."""
        return self._name

    @property
    def rank(self) -> int:
        """Its number among those of this name."""
        return self._rank

    def start(self) -> Self:
        """Open the doors and say where they are; returns the server.

        Starting again changes nothing.

        Raises:
            ArgumentError: Ray is not initialized.
            DisconnectedError: Ray did not start the roster in time.
        """
        if self._teller is not None:
            return self
        if not ray.is_initialized():
            raise ArgumentError("a StreamServer is found through Ray: call ray.init() first")
        self._namespace = self._namespace or ray.get_runtime_context().namespace
        try:
            entered = ray.get(self._roster().enter.remote(self._rank), timeout=_PATIENCE)
            self._entered = entered
            self._doors = open_doors(
                self,
                f"{self._name}-{entered.identity}-{self._rank}",
                token=entered.token,
                threads=self._threads,
                before=entered.before,
            )
            self._tell()
        except (RayError, GetTimeoutError, ValueError) as error:
            # Nobody would find it.
            super().close()
            raise DisconnectedError(
                f"the roster of the stream {self._name!r} did not answer within {_PATIENCE} s: "
                f"{error}"
            ) from error
        name = f"echoic-stream-{self._name}"
        self._teller = threading.Thread(target=self._go_on_telling, name=name, daemon=True)
        self._teller.start()
        return self

    def _roster(self) -> Any:
        entered = self._entered
        identity = secrets.token_hex(4) if entered is None else entered.identity
        token = secrets.token_hex(16) if entered is None else entered.token
        assert self._namespace is not None  # noqa: S101 - `start` has set it
        return open_roster(self._name, self._namespace, identity, token)

    def _tell(self) -> bool:
        """Tell the roster where this is; whether it is this server that counts."""
        entered, doors = self._entered, self._doors
        assert entered is not None  # noqa: S101 - `start` has set both
        assert doors is not None  # noqa: S101
        place = Place(
            rank=self._rank,
            life=entered.life,
            doors=doors,
            token=entered.token,
            example=self._example,
            load=int(self.metrics()["connections"]),
        )
        asked = time.monotonic()
        counts: bool = ray.get(self._roster().tell.remote(place), timeout=_PATIENCE)
        if counts:
            self._sure = asked
        return counts

    def checkpoint(self) -> Path:
        """Write what nobody took yet to disk; see :meth:`echoic.Server.checkpoint`.

        Raises:
            DisconnectedError: The roster has not said for five seconds that this server is the one
                of its rank. Nothing was written.
        """
        silent = time.monotonic() - self._sure
        if self._entered is not None and silent > _SURE:
            raise DisconnectedError(
                f"the roster of the stream {self._name!r} has not answered for {silent:.0f} s, and "
                f"another server may have rank {self._rank} and write to the same directory"
            )
        return super().checkpoint()

    def _go_on_telling(self) -> None:
        while not self._ended.wait(BEAT):
            if not ray.is_initialized():
                # Nobody can find it any more; whoever is connected goes on.
                return
            try:
                counts = self._tell()
            except (RayError, GetTimeoutError, ValueError) as error:
                _log.warning("the roster of the stream %r does not answer: %s", self._name, error)
                continue
            if not counts:
                _log.warning(
                    "rank %d of the stream %r was made again elsewhere: this server closes",
                    self._rank,
                    self._name,
                )
                super().close()
                return

    def _leave(self) -> None:
        """Have producers look for another server, and end the roster if there is none."""
        entered = self._entered
        if entered is None or not ray.is_initialized():
            return
        try:
            roster = self._roster()
            if not ray.get(roster.leave.remote(self._rank, entered.life), timeout=_PATIENCE):
                ray.kill(roster)
        except (RayError, GetTimeoutError, ValueError) as error:
            _log.warning("the roster of the stream %r does not answer: %s", self._name, error)

    def close(self, drain: float = 1.0, restart: bool | None = None) -> None:
        """End intake as :meth:`Server.close` does; producers go to another rank if there is one."""
        if not self._ended.is_set():
            self._ended.set()
            if self._teller is not None:
                self._teller.join(_PATIENCE)
            self._leave()
        super().close(drain, restart)

    def __repr__(self) -> str:
        """Name it."""
        return f"StreamServer({self._name!r}, rank={self._rank})"


def check_name(name: str) -> None:
    """Raise an ``ArgumentError`` for what can't be the name of a stream."""
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"name must be 1 to 40 letters, digits, '-', '_' and '.', got {name!r}")
