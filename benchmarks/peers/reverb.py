"""DeepMind's Reverb (`dm-reverb`) as an engine of tables, over its only network, gRPC on TCP.

Each call is the fastest that its documentation offers for the purpose; what was compared is told
where there was a choice. Tables have no signature: the data sets are told shapes themselves.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.tables.engine import EXPONENT, TABLE, Plan, TableClient, TableServer
from benchmarks.tables.items import Items
from benchmarks.timing import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.payload import Array, Tree
    from benchmarks.tables.engine import Drawn

# Faster than fewer workers, smaller requests and the data set of trajectories, for small items and
# for frames alike or within the noise.
_WORKERS = 4
_IN_FLIGHT = 256


def _drawn(data: Any, columns: Iterable[Any]) -> Drawn:
    keys, *others, _ = columns
    probabilities, table_size, priorities = map(np.asarray, others)
    info = SimpleNamespace(
        probabilities=probabilities, priorities=priorities, table_size=table_size
    )
    return cast("Drawn", SimpleNamespace(data=data, keys=np.asarray(keys, np.uint64), info=info))


class Reverb:
    """The peer."""

    name = "dm-reverb"

    def serve(self, plan: Plan) -> TableServer:
        """Open a server with the table at a free port."""
        reverb = _reverb()
        selectors = reverb.selectors
        table = reverb.Table(
            TABLE,
            sampler=selectors.Uniform()
            if plan.sampler == "uniform"
            else selectors.Prioritized(EXPONENT),
            remover=selectors.Fifo(),
            max_size=plan.capacity,
            rate_limiter=reverb.rate_limiters.SampleToInsertRatio(*plan.limits)
            if plan.ratio
            else reverb.rate_limiters.MinSize(1),
        )
        server = reverb.Server([table], port=None)
        return TableServer(f"127.0.0.1:{server.port}", _no_client, server.stop)

    def dial(self, address: str, plan: Plan) -> TableClient:
        """Connect with the defaults."""
        return Client(address, Items(plan.kind).example)


class Client:
    """A client of the table; its writer opens when it is first used."""

    def __init__(self, address: str, example: Tree) -> None:
        """Connect."""
        self._address = address
        self._example = example
        # It flattens trees in the order of their sorted keys.
        self._names = sorted(example)
        self._client: Any = _reverb().Client(address)
        self._writer: Any = None
        self.insert = lambda tree, priority: self._client.insert(tree, {TABLE: priority})

    def append(self, tree: Tree) -> None:
        """Make an item of one step."""
        if self._writer is None:
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=1)
        writer = self._writer
        writer.append(tree)
        history = writer.history
        writer.create_item(TABLE, 1.0, {name: history[name][-1:] for name in self._names})

    def flush(self) -> None:
        """Wait for the writer; `insert` and `fill` have waited themselves."""
        if self._writer is not None:
            self._writer.flush()

    def fill(self, columns: Tree) -> None:
        """Write all rows with the older of its writers, which is twice as fast."""
        with self._client.writer(
            max_sequence_length=1, chunk_length=1, max_in_flight_items=1000
        ) as writer:
            for row in zip(*(columns[name] for name in self._names), strict=True):
                writer.append(dict(zip(self._names, row, strict=True)))
                writer.create_item(TABLE, 1, 1.0)

    def sample(self, size: int) -> Drawn:
        """Take single items and stack them."""
        samples = [steps[0] for steps in self._client.sample(TABLE, size)]
        data = {name: np.stack([s.data[i] for s in samples]) for i, name in enumerate(self._names)}
        return _drawn(data, zip(*(sample.info for sample in samples), strict=True))

    def batches(self, size: int) -> Iterator[Drawn]:
        """Read its data set of single steps."""
        tf = importlib.import_module("tensorflow")
        steps = _reverb().TimestepDataset(
            server_address=self._address,
            table=TABLE,
            dtypes={name: tf.as_dtype(leaf.dtype) for name, leaf in self._example.items()},
            shapes={name: tf.TensorShape(leaf.shape) for name, leaf in self._example.items()},
            max_in_flight_samples_per_worker=_IN_FLIGHT,
            num_workers_per_iterator=_WORKERS,
        )
        batches = steps.batch(size).prefetch(2).as_numpy_iterator()
        return (_drawn(batch.data, batch.info) for batch in batches)

    def update(self, keys: Array, priorities: Array) -> None:
        """Update in one request, which takes numbers of Python only."""
        pairs = zip(keys.tolist(), priorities.tolist(), strict=True)
        self._client.mutate_priorities(TABLE, updates=dict(pairs))

    post = update

    def close(self) -> None:
        """Close the writer; the client has no such call."""
        if self._writer is not None:
            self._writer.close()


def _reverb() -> Any:
    """Import it, which only the peer's own environment has, and keep it quiet."""
    if "reverb" not in sys.modules:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        # It writes about every server and every slow writer, past Python and with no level to set.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return importlib.import_module("reverb")


def _no_client() -> TableClient:
    raise UnavailableError("a million items take gigabytes in it: its items are sampled over TCP")


ENGINE = Reverb()
