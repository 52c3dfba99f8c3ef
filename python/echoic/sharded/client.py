"""Connect to tables that are spread over several servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic.errors import ClosedError, DisconnectedError
from echoic.sharded.shards import Shards, deadline_in, left_until, warn
from echoic.sharded.table import ShardedTable
from echoic.sharded.writers import ShardedStructuredWriter, ShardedTrajectoryWriter
from echoic.table_client import TableClient, connect_again

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from echoic.sharded.places import Where
    from echoic.sharded.shards import Key
    from echoic.vector_writer import VectorWriter

__all__ = ["ShardedClient"]


class ShardedClient(TableClient):
    """Insert into and sample from tables that are spread over several servers.

    ``connect([address, ...])`` makes one. The methods are those of :class:`~echoic.TableClient`;
    the servers have tables of the same names and kinds. When one of them goes away, the client
    issues a ``ShardWarning`` and uses the others until it is back.

    Args:
        where: The addresses; or a function that returns them, which is called again every
            ``refresh`` seconds, and each second while a shard is away, since it may come back at
            another address. Their order is part of the items' keys: a shard keeps its position, and
            new ones are added at the end. In place of an address, a function may return ``(address,
            "draining")`` for a shard that gets no more inserts, and ``None`` or ``""`` for one
            that was removed for good.
        options: The options of each connection.
        deadline: Seconds that a call waits while it needs a shard that is away; ``None`` waits for
            ever.
        seed: Seed of the choice of shards when sampling; random if ``None``.
        refresh: Seconds between two calls of a function for the addresses; ``None`` calls it only
            while a shard is away.

    Raises:
        DisconnectedError: If no server was reached. Those that were not are used once they can be.
        ValueError: If the servers' tables differ.
        SpecError: If the servers' items differ.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, Table, connect
        >>> def serve():
        ...     table = Table("replay", np.int64(0), capacity=1000)
        ...     return Server(table, listen="tcp://127.0.0.1:0")
        >>> with serve() as one, serve() as two:
        ...     with connect([one.address, two.address]) as client:
        ...         client.extend(np.arange(800), "replay")
        ...         client.flush()
        ...         batch = client.sample("replay", 32)
        ...         sizes = [shard.size for shard in client.table("replay").stats().shards]
        >>> sizes, batch.info.table_size, float(batch.info.probabilities[0])
        ([400, 400], 800, 0.00125)
    """

    def __init__(
        self,
        where: Where,
        options: Mapping[str, Any],
        *,
        deadline: float | None = 60.0,
        seed: int | None = None,
        refresh: float | None = 10.0,
    ) -> None:
        """Connect; see the class for the arguments."""
        if refresh is not None and refresh <= 0:
            raise ValueError(f"refresh must be above 0 seconds, got {refresh}")
        self._where = where
        self._settings = {"deadline": deadline, "seed": seed, "refresh": refresh}
        self._shards = Shards(where, connect_again, options, deadline, refresh)
        names = next(shard.tables for shard in self._shards.all if shard.client is not None)
        tables = [
            ShardedTable(name, self._shards, None if seed is None else seed + number)
            for number, name in enumerate(names)
        ]
        super().__init__(tables, self._shards, options)

    @property
    def addresses(self) -> list[str]:
        """The addresses of the shards, by number; ``""`` for removed ones."""
        return [shard.address for shard in self._shards.all]

    @property
    def shards_there(self) -> list[bool]:
        """Which of the shards can be used now, by number."""
        self._shards.look()
        return [shard.there for shard in self._shards.all]

    @property
    def shards_drained(self) -> list[bool]:
        """Which of the shards get no more inserts, or are removed, by number."""
        return [one.drained or one.draining or one.removed for one in self._shards.all]

    def refresh(self) -> None:
        """Call the function for the addresses now, if there is one, and apply what it returns.

        Connects to new shards that can be reached before it returns.
        """
        self._shards.refresh()

    def move(self, shard: int, address: str) -> bool:
        """Set a shard's address; return whether the server was reached there.

        Inserts that it has not acknowledged are sent there, each item once.
        """
        moved = self._shards.move(self._number(shard), address)
        self._shards.look()
        return moved

    def drain(self, shard: int, drained: bool = True) -> None:
        """Send no more inserts to a shard; with ``drained=False``, send them again.

        Its items are sampled for as long as it is there. Items with a ``shard_key`` that belongs to
        it go to others. An episode that was begun there ends there. This applies to this client
        only.
        """
        self._shards.drain(self._number(shard), drained)

    def move_items(self, shard: int, table: str, timeout: float | None = None) -> int:
        """Move the items of a drained shard to those that take inserts; return how many.

        They keep their priorities and versions. They get other keys, count as never sampled and
        as inserts for the limiters, and their order in the table changes. While a part of them, up
        to 16 MiB, is moved, each of these may be drawn on both shards.

        Args:
            shard: Its number. No other client should insert there any more.
            table: A table of single items, not of trajectories: those share their steps.
            timeout: Seconds to wait in total; items that were not moved by then stay there.

        Raises:
            ValueError: If the shard is not drained.
            SpecError: If the table has trajectories.
            DisconnectedError: If the shard is away.
            WaitTimeoutError: If it took too long. Items of the last part may be on both shards.
        """
        return self._sharded(table).move_items(self._shards.all[self._number(shard)], timeout)

    def remove_shard(self, shard: int) -> None:
        """Remove a shard: it is not sampled, and no call waits for it.

        Its position stays, so that keys keep their meaning; :meth:`move` puts a shard there again.
        Inserts that it has not acknowledged go to another. This applies to this client only.

        Raises:
            ValueError: If no other shard is there.
        """
        self._shards.remove(self._number(shard))

    def _number(self, shard: int) -> int:
        if not 0 <= shard < len(self._shards.all):
            raise IndexError(f"expected a shard below {len(self._shards.all)}, got {shard}")
        return shard

    def add(
        self,
        x: Any,
        priorities: Mapping[str, float],
        *,
        version: int | None = None,
        timeout: float | None = None,
        shard_key: Key | None = None,
    ) -> None:
        """Add an item to each of some tables; see ``TableClient.add``.

        Args:
            x: The item.
            priorities: Its priority in each table.
            version: The policy version that made it; the tables' when ``None``.
            timeout: Seconds to wait for each table.
            shard_key: Items with equal keys go to one shard, in every process. With ``None`` shards
                take turns.
        """
        for name in priorities:
            if name not in self._tables:
                self.table(name)
        for name, priority in priorities.items():
            self._tables[name].add(x, priority, version, timeout, shard_key)

    def extend(
        self,
        xs: Any,
        table: str,
        priorities: Any = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
        shard_key: Key | None = None,
    ) -> None:
        """Add many items, in equal parts to all shards; see ``TableClient.extend``.

        With a ``shard_key``, all go to its shard.
        """
        self._sharded(table).extend(xs, priorities, version, timeout, shard_key)

    def _sharded(self, name: str) -> ShardedTable:
        self.table(name)
        table: ShardedTable = self._tables[name]
        return table

    def trajectory_writer(  # type: ignore[override]
        self, *settings: Any, shard_key: Key | None = None, **named: Any
    ) -> ShardedTrajectoryWriter:
        """Make a writer of trajectories; each episode goes to one shard.

        Args:
            *settings: As of ``TableClient.trajectory_writer``.
            shard_key: Which shard all episodes go to, as with :meth:`add`. With ``None`` shards
                take turns.
            **named: As of ``TableClient.trajectory_writer``.
        """
        return ShardedTrajectoryWriter(
            self._shards, lambda client: client.trajectory_writer(*settings, **named), shard_key
        )

    def structured_writer(  # type: ignore[override]
        self, configs: Iterable[Any], *, shard_key: Key | None = None, **named: Any
    ) -> ShardedStructuredWriter:
        """Make a writer of trajectories by patterns; each episode goes to one shard."""
        configs = list(configs)
        return ShardedStructuredWriter(
            self._shards, lambda client: client.structured_writer(configs, **named), shard_key
        )

    def vector_writer(
        self,
        *settings: Any,
        shard_key: Key | None = None,
        timeout: float | None = None,
        **named: Any,
    ) -> VectorWriter:
        """Make a writer for environments that step together, all of them on one shard.

        It is the shard whose turn it is, or that the key belongs to; while it is away, steps wait
        in the client. With as many writers as shards, all shards fill up alike.

        Args:
            *settings: As of ``TableClient.vector_writer``.
            shard_key: Which shard all episodes go to, as with :meth:`add`. With ``None`` shards
                take turns.
            timeout: Seconds to wait for a shard while all are away; ``None`` waits for the client's
                ``deadline``.
            **named: As of ``TableClient.vector_writer``.

        Raises:
            WaitTimeoutError: If no shard was there in time.
            DisconnectedError: If none was there within the client's ``deadline``, or the one that
                the key belongs to is away.
        """
        if shard_key is None:
            self._shards.wait_for_any(deadline_in(timeout), to_insert=True)
        shard = (self._shards.next() if shard_key is None else None) or next(
            iter(self._shards.candidates(shard_key)), None
        )
        if shard is None or shard.client is None:
            raise DisconnectedError("the shard that a vector_writer is for is away")
        shard.lent = True
        return shard.client.vector_writer(*settings, **named)

    def checkpoint(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> dict[str, Path]:
        """Write a checkpoint on every server that is there; see ``TableClient.checkpoint``.

        Returns:
            For each address, its path on that machine. A warning names servers that are away.
        """
        deadline = deadline_in(timeout)
        written = {}
        self._shards.look()
        for shard in self._shards.all:
            try:
                if shard.there and shard.client is not None:
                    written[shard.address] = shard.client.checkpoint(left_until(deadline))
                    continue
            except (DisconnectedError, ClosedError):
                # It went away during the call.
                pass
            if not shard.removed:
                warn(f"{shard} is away, so no checkpoint was written there")
        return written

    def stats(self) -> dict[str, float]:
        """Return the sums of all connections' numbers: those of ``TableClient.stats``.

        ``connected`` is the number of shards that are there. ``dropped_changes`` counts the changes
        of items that were dropped because their shards were away, or had been since.
        """
        return super().stats()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as addresses and options: the copy connects again, as another producer."""
        places = zip(self.addresses, self._shards.all, strict=False)
        named = [
            (address, "draining") if one.drained and address else address for address, one in places
        ]
        where = self._where if callable(self._where) else named
        return _connect_again, (where, self._options, self._settings)


def _connect_again(
    where: Any, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> ShardedClient:
    return ShardedClient(where, options, **settings)
