"""Echoic's tables, with the defaults of everything that is not the workload's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.engine import Echoic
from benchmarks.tables.engine import EXPONENT, TABLE, Plan, TableClient, TableServer
from benchmarks.tables.items import Items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.payload import Array, Tree
    from benchmarks.tables.engine import Drawn


class EchoicTables(Echoic):
    """The project itself."""

    def serve(self, plan: Plan) -> TableServer:
        """Open a server with the table at a free port."""
        import echoic

        selectors = echoic.selectors
        table = echoic.Table(
            TABLE,
            spec=Items(plan.kind).example,
            sampler=selectors.Uniform()
            if plan.sampler == "uniform"
            else selectors.Prioritized(EXPONENT),
            remover=selectors.Fifo(),
            limiter=echoic.limiters.SampleToInsertRatio(*plan.limits)
            if plan.ratio
            else echoic.limiters.MinSize(1),
            capacity=plan.capacity,
        )
        server = echoic.Server(table, listen="tcp://127.0.0.1:0").start()
        return TableServer(
            server.address,
            lambda: Client(echoic.connect(server)),
            server.close,
        )

    def dial(self, address: str, plan: Plan) -> TableClient:
        """Connect with the defaults."""
        import echoic

        return Client(echoic.connect(address))


class Client:
    """A client of the table, over whatever transport; its writer opens when it is first used."""

    def __init__(self, client: Any) -> None:
        """Wrap a client of the project."""
        self._client = client
        self._table = client.table(TABLE)
        self.insert = self._table.add
        self._writer: Any = None

    def append(self, tree: Tree) -> None:
        """Make an item of one step."""
        if self._writer is None:
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=1)
        writer = self._writer
        writer.append(tree)
        writer.create_item(TABLE, 1.0)

    def flush(self) -> None:
        """Wait for the acknowledgements."""
        if self._writer is not None:
            self._writer.flush()
        self._client.flush()

    def fill(self, columns: Tree) -> None:
        """Insert all rows at once."""
        rows = len(next(iter(columns.values())))
        self._table.extend(columns, np.ones(rows))

    def sample(self, size: int) -> Drawn:
        """Sample in one request."""
        return cast("Drawn", self._table.sample(size))

    def batches(self, size: int) -> Iterator[Drawn]:
        """Sample ahead by two batches."""
        return iter(self._table.batches(size, prefetch=2))

    def update(self, keys: Array, priorities: Array) -> None:
        """Update in one request."""
        self._table.update_priorities(keys, priorities)

    def post(self, keys: Array, priorities: Array) -> None:
        """Update in one request, and go on."""
        self._table.update_priorities(keys, priorities, wait=False)

    def close(self) -> None:
        """Close the writer and the client."""
        if self._writer is not None:
            self._writer.close()
        self._client.close()


ENGINE = EchoicTables()
