"""Every table has the methods of `Table`, with the same arguments and the same results.

In this process, over shared memory, over TCP and on two servers at once. A method that is added to
`Table` fails here until the others have it too, or say why they can't.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import Table, limiters, selectors
from echoic.remote_table import RemoteTable
from echoic.sharded import ShardedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KINDS = {"process": Table, "shm": RemoteTable, "tcp": RemoteTable, "sharded": ShardedTable}

# What only the process of a server can do, and what the error must name.
LOCAL = {"close": "closing it would end it for every client", "durability": "does not report"}

STEP = {"obs": np.zeros(3, np.float32), "at": np.int64(0)}


def public(kind: type) -> dict[str, Any]:
    """What users find on a table, but for other ways to make one."""
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if name[0] != "_"}
    return {name: one for name, one in found.items() if not isinstance(one, classmethod)}


class Opened:
    """One table somewhere, and how to wait until inserts are in it."""

    def __init__(self, client: echoic.Connection, name: str) -> None:
        self.client = client
        self.table: Any = client.table(name)

    def filled(self, count: int = 8) -> Any:
        """Insert numbered items, and return the table when it has them."""
        at = np.arange(count)
        obs = np.repeat(at, 3).reshape(count, 3).astype(np.float32)
        self.table.extend({"obs": obs, "at": at}, np.ones(count))
        self.client.flush()
        return self.table


@pytest.fixture(params=list(KINDS))
def open_table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Make a table somewhere."""
    opened: list[Any] = []

    def serve(spec: Any, settings: dict[str, Any], address: str) -> echoic.Server:
        settings = {"capacity": 100, "seed": 1, "metadata": b"of the program", **settings}
        server = echoic.Server(Table("t", spec, **settings), listen=address).start()
        opened.append(server)
        return server

    def make(spec: Any = STEP, **settings: Any) -> Opened:
        where: Any = request.param
        if where == "process":
            client = echoic.connect(serve(spec, settings, None))
        elif where == "shm":
            name = f"conformance-{tmp_path.name}-{len(opened)}"
            serve(spec, settings, f"shm://{name}")
            client = echoic.connect(f"shm://{name}")
        else:
            servers = [
                serve(spec, settings, "tcp://127.0.0.1:0")
                for _ in range(2 if where == "sharded" else 1)
            ]
            addresses = [server.address for server in servers]
            client = echoic.connect(addresses if where == "sharded" else addresses[0])
        opened.append(client)
        return Opened(client, "t")

    yield make
    for one in reversed(opened):
        one.close()


@pytest.mark.parametrize("kind", [RemoteTable, ShardedTable])
@pytest.mark.parametrize("name", [*public(Table), "__len__"])
def test_methods_have_the_same_arguments(kind: type, name: str) -> None:
    ours, theirs = getattr(Table, name), getattr(kind, name, None)
    assert theirs is not None, f"{kind.__name__} has no {name}"
    assert callable(ours) == callable(theirs)
    if not callable(ours) or name in LOCAL:
        return

    def arguments(method: Any) -> list[tuple[str, Any, Any]]:
        _self, *every = inspect.signature(method).parameters.values()
        return [(one.name, one.kind, one.default) for one in every if one.name != "shard_key"]

    assert arguments(theirs) == arguments(ours)


def add(open_table: Any) -> None:
    here = open_table(sampler=selectors.Prioritized())
    here.table.add({"obs": np.full(3, 7, np.float32), "at": 7}, 2.0, 5, 10.0)
    here.table.add({"obs": np.full(3, 8, np.float32), "at": 8}, priority=0.0, version=6)
    here.client.flush()
    batch = here.table.sample(4)
    assert batch.data["at"].tolist() == [7] * 4
    assert (batch.data["obs"] == 7).all()
    assert batch.info.priorities.tolist() == [2.0] * 4
    assert batch.info.versions.tolist() == [5] * 4
    with pytest.raises(echoic.errors.PriorityError):
        here.table.add(STEP, -1.0)
    with pytest.raises(echoic.errors.SpecError):
        here.table.add({"obs": np.zeros(4, np.float32), "at": 1})


def extend(open_table: Any) -> None:
    here = open_table()
    here.filled(5)
    at = np.arange(3)
    here.table.extend({"obs": np.zeros((3, 3), np.float32), "at": at}, [1.0, 2.0, 3.0], 4)
    here.client.flush()
    items = here.table.items()
    assert sorted(items.info.priorities.tolist()) == [1.0] * 6 + [2.0, 3.0]
    assert sorted(items.info.versions.tolist()) == [0] * 5 + [4] * 3


def sample(open_table: Any) -> None:
    here = open_table()
    with pytest.raises(echoic.errors.WaitTimeoutError):
        here.table.sample(1, timeout=0.0)
    batch = here.filled().sample(16, 10.0, 0.5)
    assert batch.data["obs"].shape == (16, 3)
    assert batch.info.probabilities.tolist() == [1 / 8] * 16
    assert batch.info.table_size == 8


def batches(open_table: Any) -> None:
    table = open_table().filled()
    for prefetch in (0, 2):
        with table.batches(4, prefetch=prefetch, workers=1, timeout=10.0, beta=0.5) as drawn:
            assert [len(next(drawn)) for _ in range(5)] == [4] * 5


def update_priorities(open_table: Any) -> None:
    here = open_table(sampler=selectors.Prioritized())
    table = here.filled()
    keys, at = table.items().keys, table.get(table.items().keys).data["at"]
    assert table.update_priorities(keys, np.where(at == 3, 1.0, 0.0)) == 8
    assert set(table.sample(8).data["at"].tolist()) == {3}
    assert table.update_priorities(keys, np.where(at == 4, 1.0, 0.0), wait=False) is None
    here.client.flush()
    assert set(table.sample(8).data["at"].tolist()) == {4}
    with pytest.raises(echoic.errors.PriorityError):
        table.update_priorities(keys[:1], [-1.0])


def items(open_table: Any) -> None:
    table = open_table().filled()
    assert len(table.items()) == 8
    assert len(table.items(limit=3)) == 3
    assert table.items().info.priorities.tolist() == [1.0] * 8


def get(open_table: Any) -> None:
    table = open_table().filled()
    keys = table.items().keys[2:5]
    batch = table.get(keys)
    assert batch.keys.tolist() == keys.tolist()
    assert (batch.data["obs"] == batch.data["at"][:, None]).all()
    assert table.stats().samples == 0


def remove(open_table: Any) -> None:
    table = open_table().filled()
    gone = table.items().keys[:3]
    assert table.remove(gone) == 3
    assert table.remove(gone) == 0
    assert len(table) == 5


def clear(open_table: Any) -> None:
    table = open_table().filled()
    table.clear()
    assert (len(table), table.stats().inserts) == (0, 0)


def pause(open_table: Any) -> None:
    table = open_table().filled()
    table.pause()
    assert table.stats().paused
    assert not table.can_add()
    assert not table.can_sample(1)
    table.resume()
    assert len(table.sample(2, 10.0)) == 2


def publish_version(open_table: Any) -> None:
    table = open_table().filled()
    table.publish_version(3)
    assert table.stats().version == 3


def set_limiter(open_table: Any) -> None:
    table = open_table().filled()
    table.set_limiter(limiters.MinSize(50))
    assert table.stats().min_size == 50
    assert not table.can_sample(1)
    with pytest.raises(TypeError, match=r"limiter must be one of echoic\.limiters, got a int"):
        table.set_limiter(50)


def can_sample(open_table: Any) -> None:
    here = open_table()
    assert not here.table.can_sample(1)
    assert here.filled().can_sample(4)


def can_add(open_table: Any) -> None:
    here = open_table(capacity=4, limiter=limiters.Queue(4))
    assert here.table.can_add()
    assert here.table.can_add(4)
    assert not here.table.can_add(n=5)


def flush(open_table: Any) -> None:
    table = open_table().table
    for at in range(50):
        table.add({"obs": np.zeros(3, np.float32), "at": at})
    table.flush(timeout=30)
    assert len(table) == table.stats().size == 50


def close(open_table: Any) -> None:
    here = open_table()
    table = here.filled()
    if not isinstance(table, RemoteTable | ShardedTable):
        table.close()
        with pytest.raises(echoic.errors.ClosedError):
            table.sample(1)
        return
    with pytest.raises(TypeError, match=LOCAL["close"]):
        table.close()
    assert len(table.sample(2)) == 2


def durability(open_table: Any) -> None:
    table = open_table().table
    if not isinstance(table, RemoteTable | ShardedTable):
        assert table.durability == "none"
        return
    with pytest.raises(TypeError, match=LOCAL["durability"]):
        _ = table.durability


def name(open_table: Any) -> None:
    table = open_table().table
    assert table.name == "t"
    assert isinstance(table, Table | ShardedTable)


def metadata(open_table: Any) -> None:
    assert open_table().table.metadata == b"of the program"


def spec(open_table: Any) -> None:
    leaves = open_table().table.spec.leaves
    assert [(leaf.path, leaf.dtype, leaf.shape) for leaf in leaves] == [
        ("at", "int64", ()),
        ("obs", "float32", (3,)),
    ]
    assert open_table(None).table.spec is None


def stats(open_table: Any) -> None:
    table = open_table().filled()
    table.sample(3)
    told = table.stats()
    assert (told.name, told.size, told.inserts, told.samples) == ("t", 8, 8, 3)
    # Which selectors and seed a table has is reported only in its own process.
    here = Table("t", capacity=1).stats().as_dict()
    assert here.keys() - {"sampler", "remover", "seed"} <= told.as_dict().keys()


def capacity(open_table: Any) -> None:
    table = open_table(capacity=7).table
    assert table.capacity == table.stats().capacity >= 7


RUNS = {
    run.__name__: run
    for run in (
        *(add, extend, sample, batches, update_priorities, items, get, remove, clear),
        *(pause, publish_version, set_limiter, can_sample, can_add, flush, close, durability),
        *(name, metadata, spec, stats, capacity),
    )
}
# `pause` is of no use without it.
RUNS["resume"] = pause


def test_every_method_is_run() -> None:
    assert set(RUNS) == set(public(Table))


@pytest.mark.parametrize("name", [name for name in RUNS if name != "resume"])
def test_methods_do_the_same(open_table: Any, name: str) -> None:
    RUNS[name](open_table)


def test_trajectories_go_in_and_out(open_table: Any) -> None:
    here = open_table(None)
    here.table.add({"obs": np.arange(5, dtype=np.float32)}, 1.0)
    with here.client.trajectory_writer(3) as writer:
        for at in range(4):
            writer.append({"obs": np.float32(at)})
            if at >= 2:
                writer.create_item("t", 1.0, last=3)
    here.client.flush()
    table = here.table
    assert len(table) == 3
    keys = table.items().keys
    steps = sorted(table.get([key]).data["obs"][0].tolist() for key in keys)
    assert steps == [[0, 1, 2], [0, 1, 2, 3, 4], [1, 2, 3]]
    assert table.remove(keys) == 3
