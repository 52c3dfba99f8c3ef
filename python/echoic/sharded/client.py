"""The client of tables that lie on several servers."""

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
    """Adds to tables that lie on several servers, and samples from them as if it were one.

    ``connect([address, ...])`` makes one. The methods are those of :class:`~echoic.TableClient`;
    the servers have tables of the same names and kinds. When one of them goes away, a
    ``ShardWarning`` says so, and the client goes on with the others until it is back.

    Args:
        where: The addresses; or a function that returns them, which is asked again every
            ``refresh`` seconds, and each second while a shard is away, since it may come back at
            another. Their order is part of the items' keys: a shard keeps its place, and new ones
            join at the end. In the place of an address, a function may say ``(address,
            "draining")`` of a shard that no inserts are to go to, and ``None`` or ``""`` of one
            that was removed for good.
        options: Those of each connection.
        deadline: For how many seconds a call waits while it needs a shard that is away; for ever
            when ``None``.
        seed: Of the choice of shards when sampling; random when ``None``.
        refresh: How often a function is asked for the addresses, in seconds; only while a shard is
            away when ``None``.

    Raises:
        DisconnectedError: No server was reached. Those that were not are used when they are there.
        ValueError: The servers' tables differ.
        SpecError: The servers' items differ.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, Table, TcpTransport, connect
        >>> def serve():
        ...     table = Table("replay", np.int64(0), capacity=1000)
        ...     return Server(tables=[table], transport=TcpTransport(port=0))
        >>> with serve() as one, serve() as two:
        ...     with connect([one.addresses[0], two.addresses[0]]) as client:
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
        """Where the shards are, by their numbers; ``""`` of those that were removed."""
        return [shard.address for shard in self._shards.all]

    @property
    def shards_there(self) -> list[bool]:
        """Which of them are there now."""
        self._shards.look()
        return [shard.there for shard in self._shards.all]

    @property
    def shards_drained(self) -> list[bool]:
        """Which of them take no more inserts, or are no more."""
        return [one.drained or one.draining or one.removed for one in self._shards.all]

    def refresh(self) -> None:
        """Ask now where the shards are, if a function knows, and follow them there.

        New ones are connected to before this returns, as far as they can be reached.
        """
        self._shards.refresh()

    def move(self, shard: int, address: str) -> bool:
        """Look for a shard at another address from now on; whether it was there.

        What it has not acknowledged goes to there, each item once.
        """
        moved = self._shards.move(self._number(shard), address)
        self._shards.look()
        return moved

    def drain(self, shard: int, drained: bool = True) -> None:
        """Let no more inserts go to a shard; with ``drained=False``, let them go there again.

        Its items are sampled for as long as it is there, and what has a ``shard_key`` that belongs
        to it goes to others. An episode that was begun there is ended there. This is about this
        client only.
        """
        self._shards.drain(self._number(shard), drained)

    def move_items(self, shard: int, table: str, timeout: float | None = None) -> int:
        """Move the items of a drained shard to those that take inserts; returns how many.

        They keep their priorities and versions. They get other keys, count as never sampled and
        as inserts for the limiters, and their order in the table is another. While a part of them
        is moved, up to 16 MiB, each of these may be drawn at both places.

        Args:
            shard: Its number. No other client should insert there any more.
            table: A table of single items, not of trajectories: those share their steps.
            timeout: Seconds to wait in total; what was not moved then is still there.

        Raises:
            ValueError: The shard is not drained.
            SpecError: The table has trajectories.
            DisconnectedError: The shard is away.
            WaitTimeoutError: It took too long. Items that were on their way may be at both places.
        """
        return self._sharded(table).move_items(self._shards.all[self._number(shard)], timeout)

    def remove_shard(self, shard: int) -> None:
        """Count a shard no more: it is not sampled, and nothing waits for it.

        Its place stays, so that keys keep their meaning; :meth:`move` puts a shard there again.
        What it has not acknowledged goes to another. This is about this client only.

        Raises:
            ValueError: No other shard is there.
        """
        self._shards.remove(self._number(shard))

    def _number(self, shard: int) -> int:
        if not 0 <= shard < len(self._shards.all):
            raise IndexError(f"shard {shard} of {len(self._shards.all)}")
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
            shard_key: Items with equal keys go to one shard, in every process; shards take turns
                when it is ``None``.
        """
        for name in priorities:
            if name not in self._tables:
                self.table(name)
        for name, priority in priorities.items():
            self._tables[name].add(x, priority, version, timeout, shard_key)

    def extend(  # noqa: PLR0913 - one argument for each option
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
        """Make a writer of trajectories, an episode on one shard each.

        Args:
            *settings: As of ``TableClient.trajectory_writer``.
            shard_key: Where all episodes go, as with :meth:`add`; shards take turns when it is
                ``None``.
            **named: As of ``TableClient.trajectory_writer``.
        """
        return ShardedTrajectoryWriter(
            self._shards, lambda client: client.trajectory_writer(*settings, **named), shard_key
        )

    def structured_writer(  # type: ignore[override]
        self, configs: Iterable[Any], *, shard_key: Key | None = None, **named: Any
    ) -> ShardedStructuredWriter:
        """Make a writer of trajectories by patterns, an episode on one shard each."""
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

        It is the shard whose turn it is, or that the key belongs to; while it is away, what is
        written waits. With as many writers as shards, all shards fill up alike.

        Args:
            *settings: As of ``TableClient.vector_writer``.
            shard_key: Where all episodes go, as with :meth:`add`; shards take turns when it is
                ``None``.
            timeout: Seconds to wait for a shard while all are away; ``None`` waits for as long as
                the client's ``deadline`` says.
            **named: As of ``TableClient.vector_writer``.

        Raises:
            WaitTimeoutError: No shard was there in time.
            DisconnectedError: None was there within the client's ``deadline``, or the one that the
                key belongs to is away.
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
        """Have every server that is there write a checkpoint; see ``TableClient.checkpoint``.

        Returns:
            For each address, where it is on that machine. A warning names servers that are away.
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
                # It went while it was asked.
                pass
            if not shard.removed:
                warn(f"{shard} is away, so no checkpoint was written there")
        return written

    def stats(self) -> dict[str, float]:
        """Return the numbers of all connections, added up: those of ``TableClient.stats``.

        ``connected`` is then the number of shards that are there, and ``dropped_changes`` how many
        changes of items were not made because their shards were away, or had been since.
        """
        return super().stats()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as addresses and options: the copy connects anew, as another producer."""
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
