"""Write trajectories to several servers.

Items share the steps of their writer, so an episode goes to one shard. The next one goes to
another: the one whose turn it is, or that the key belongs to.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from echoic._links import deadline_in, left_until
from echoic._writing import Writes
from echoic.errors import WaitTimeoutError
from echoic.patterns import StructuredWriter
from echoic.sharded.shards import LOOK, Shards
from echoic.trajectory_writer import TrajectoryWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.connection import Connection
    from echoic.sharded.shard import Shard
    from echoic.sharded.shards import Key

__all__ = ["ShardedStructuredWriter", "ShardedTrajectoryWriter"]

# With this many items waiting in a writer, it waits for the server.
_CROWD = 512

_W = TypeVar("_W", TrajectoryWriter, StructuredWriter)


def _flush(writer: TrajectoryWriter | StructuredWriter, left: int, timeout: float) -> None:
    writer.flush(left, timeout)


class _Episodes(Writes, Generic[_W]):
    """A writer on each shard, one of which has the current episode.

    While the shard of an episode is away, its items wait in the client, and calls wait when that is
    full. ``end_episode`` does not wait for a shard that is away: the rest is sent when it is back,
    and the next episode goes to another.
    """

    def __init__(
        self, shards: Shards, make: Callable[[list[Any]], _W], shard_key: Key | None
    ) -> None:
        """Set the shards, and the function that makes a writer of tables."""
        self._shards = shards
        self._make: Callable[[list[Any]], _W] = make
        self._key = shard_key
        # With the client of each, since a shard may get another.
        self._made: dict[int, tuple[Connection, _W]] = {}
        self._shard: Shard | None = None
        self._closed = False

    def _current(self, deadline: float | None = None) -> tuple[Shard, _W]:
        """Return the shard of the episode, and its writer; wait while there is none.

        Raises:
            WaitTimeoutError: If there was none in time.
        """
        self._shards.check_open()
        while True:
            shard = self._shard
            while shard is None:
                self._shards.wait_for_any(deadline, to_insert=True)
                shard = self._shard = next(iter(self._shards.candidates(self._key)), None)
            client = shard.client
            made = self._made.get(shard.number)
            if client is not None and (made is None or made[0] is not client):
                shard.lent = True
                tables: list[Any] = list(shard.tables.values())
                made = self._made[shard.number] = (client, self._make(tables))
                self._begin(made[1])
            if made is not None:
                break
            # It was there a moment ago, and has moved since.
            self._shard = None
        if self._closed:
            made[1].close()
        return shard, made[1]

    def _begin(self, writer: _W) -> None:
        """Apply the others' settings to a new writer."""

    def _or_wait(self, call: Callable[[_W, float], None], timeout: float | None) -> None:
        """Call a function that stores steps first, and then may wait for room."""
        deadline = deadline_in(timeout)
        shard, writer = self._current(deadline)
        left = left_until(deadline)
        try:
            call(writer, LOOK if left is None else min(LOOK, left))
        except WaitTimeoutError:
            self._shards.patiently(shard, partial(_flush, writer, _CROWD), deadline)

    def append(self, step: Any, partial: bool = False, timeout: float | None = None) -> None:
        """Add a step, or a part of one."""
        self._or_wait(lambda writer, wait: writer.append(step, partial, wait), timeout)

    def append_batch(self, steps: Any, timeout: float | None = None) -> None:
        """Add many steps, one after the other."""
        self._or_wait(lambda writer, wait: writer.append_batch(steps, wait), timeout)

    def flush(self, block_until_num_items: int = 0, timeout: float | None = None) -> None:
        """Send all items, and wait until at most this many are unacknowledged on each shard.

        Raises:
            WaitTimeoutError: If a shard, named in the message, did not store them in time.
            DisconnectedError: If a shard that has items to store was away for too long.
        """
        self._shards.check_open()
        deadline = deadline_in(timeout)
        for shard, (_, writer) in self._all():
            flush = partial(_flush, writer, block_until_num_items)
            self._shards.patiently(shard, flush, deadline)

    def end_episode(self, clear: bool = True, timeout: float | None = None) -> None:
        """Start another episode: with ``clear`` on another shard, else on the same."""
        deadline = deadline_in(timeout)
        shard, writer = self._current(deadline)
        left = left_until(deadline)
        try:
            writer.end_episode(clear, LOOK if left is None else min(LOOK, left))
        except WaitTimeoutError:
            flush = partial(_flush, writer, 0)
            self._shards.patiently(shard, flush, deadline, while_there=True)
        finally:
            if clear:
                self._shard = None

    def close(self) -> None:
        """Close the writers."""
        self._closed = True
        for _, (_, writer) in self._all():
            writer.close()

    def _all(self) -> list[tuple[Shard, tuple[Connection, _W]]]:
        """Return the writers, without those of connections that were dropped."""
        made = [(self._shards.all[number], made) for number, made in self._made.items()]
        return [(shard, made) for shard, made in made if shard.client is made[0]]

    def __repr__(self) -> str:
        """Return how much the writer holds."""
        return f"{type(self).__name__}(pending={self.pending}{', closed' * self._closed})"

    @property
    def pending(self) -> int:
        """The number of items that were created and are not yet in a table."""
        return sum(writer.pending for _, (_, writer) in self._all())

    @property
    def episode_steps(self) -> int:
        """The number of complete steps of this episode."""
        return 0 if self._shard is None else self._current()[1].episode_steps


class ShardedTrajectoryWriter(_Episodes[TrajectoryWriter]):
    """A :class:`~echoic.TrajectoryWriter` over shards; ``connection.trajectory_writer`` makes one.

    All items of an episode go to one shard, the next episode to another. Steps that an
    ``end_episode(clear=False)`` has kept stay on their shard.
    """

    def __init__(
        self,
        shards: Shards,
        make: Callable[[list[Any]], TrajectoryWriter],
        shard_key: Key | None = None,
    ) -> None:
        """Set the shards, and the function that makes a writer of tables."""
        super().__init__(shards, make, shard_key)
        self._settings: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def _begin(self, writer: TrajectoryWriter) -> None:
        for settings, named in self._settings:
            writer.configure(*settings, **named)

    def configure(self, *settings: Any, **named: Any) -> None:
        """Set the options of one column; see ``TrajectoryWriter.configure``."""
        for _, (_, writer) in self._all():
            writer.configure(*settings, **named)
        self._settings.append((settings, named))

    @property
    def history(self) -> Any:
        """The steps that new items may refer to: a tree like the steps."""
        return self._current()[1].history

    def create_item(
        self, table: str, priority: float, trajectory: Any = None, *, last: int | None = None
    ) -> None:
        """Make an item of steps of this episode."""
        self._current()[1].create_item(table, priority, trajectory, last=last)


class ShardedStructuredWriter(_Episodes[StructuredWriter]):
    """A :class:`~echoic.StructuredWriter` over shards, of a connection's ``structured_writer``."""
