"""What the workloads need of a system that keeps items in tables.

A server has one table, [`TABLE`], and is described by a [`Plan`] whose words travel to the
server's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.payload import Array, Tree

TABLE = "items"
# Who prioritizes uses this exponent: the one of the paper on prioritized replay.
EXPONENT = 0.6


@dataclass(frozen=True)
class Plan:
    """A table whose oldest item is removed when it is full, and from which one may always sample.

    ``kind`` is the name of a function of `benchmarks.tables.items` that makes columns. With a
    ``ratio``, items are sampled so often each on average, and whoever runs ahead waits.
    """

    kind: str
    capacity: int
    sampler: Literal["uniform", "prioritized"] = "uniform"
    ratio: float = 0.0

    @property
    def limits(self) -> tuple[float, int, float]:
        """Of a limiter with a ratio: that, the least size, and how far one may run ahead."""
        return self.ratio, 1000, 1000 * self.ratio


class Info(Protocol):
    """What is told of each sampled item, a column each."""

    probabilities: Array
    priorities: Array
    table_size: Any


class Drawn(Protocol):
    """A sampled batch: stacked columns, each item's with or without an axis of time of length 1."""

    data: Tree
    keys: Array
    info: Info


class TableClient(Protocol):
    """A client of the table. What it offers may be the system's own calls."""

    @property
    def insert(self) -> Callable[[Tree, float], Any]:
        """The call that stores a tree with a priority."""
        ...

    def append(self, tree: Tree, /) -> None:
        """Append a step to a writer of trajectories, and make an item of it, of priority 1."""
        ...

    def flush(self) -> None:
        """Wait until all that was inserted, appended or posted is in the table."""
        ...

    def fill(self, columns: Tree, /) -> None:
        """Store an item of priority 1 for each row, in the fastest way there is."""
        ...

    def sample(self, size: int, /) -> Drawn:
        """Ask for a batch and wait for it."""
        ...

    def batches(self, size: int, /) -> Iterator[Drawn]:
        """Give batches for ever, fetched ahead with as many threads as suit it."""
        ...

    def update(self, keys: Array, priorities: Array, /) -> None:
        """Set the priorities of keys, and wait until they count."""
        ...

    def post(self, keys: Array, priorities: Array, /) -> None:
        """Set the priorities of keys; if it can, without waiting, which `flush` does."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


@dataclass(frozen=True)
class TableServer:
    """A server: where it listens, and a client of it in the same process."""

    address: str
    client: Callable[[], TableClient]
    close: Callable[[], Any]


class TableEngine(Protocol):
    """Opens servers and connects to them."""

    def serve(self, plan: Plan) -> TableServer:
        """Open a server in this process that listens at a free TCP port."""
        ...

    def dial(self, address: str, plan: Plan) -> TableClient:
        """Connect to a server of the same engine."""
        ...
