"""Items on their way from a shard that is emptied to the others.

An item is inserted elsewhere and acknowledged there before it is deleted here: so none is lost,
also when somebody is killed meanwhile, and for a moment some are at both. They are new items there,
with other keys: the newest for a remover, and not sampled yet.

What may be sampled only so often is moved when the doors are closed: nobody samples it meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

import echoic
from echoic import _trees
from echoic.errors import WaitTimeoutError
from echoic.integrations.ray.doors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from echoic._native import Batch
    from echoic.integrations.ray.doors import Doors
    from echoic.sharded import ShardedClient
    from echoic.table import Table

__all__ = ["move_items", "move_rest"]

# How many items are at two places for a moment, at most.
_PART = 256
# A trajectory's bytes are sent with each item, so fewer of them at a time.
_TRAJECTORIES = 16


def move_items(
    tables: Sequence[Table], others: Sequence[Doors], token: str, timeout: float
) -> dict[str, int]:
    """Give items to other servers while they may be sampled; how many there were in each table.

    Args:
        tables: They are empty afterwards, but for what was inserted meanwhile. Those whose items
            may be sampled only so often are left as they are.
        others: Where the other servers are; each has tables of the same names.
        token: What they ask for.
        timeout: Seconds until it is given up.

    Raises:
        WaitTimeoutError: It was not ready in time. What was moved so far stays there.
    """
    deadline = time.monotonic() + timeout
    moved = {}
    with _connect(others, token, timeout) as client:
        for table in tables:
            moved[table.name] = 0
            while len(table) and not table.stats().max_times_sampled:
                keys = table.items(_part(table)).keys
                batches = _copy(table, keys, client, deadline)
                # What was removed meanwhile is elsewhere all the same: it was an item until now.
                for batch in batches:
                    table.remove(batch.keys)
                moved[table.name] += sum(len(batch) for batch in batches)
    return moved


def move_rest(
    tables: Sequence[Table],
    others: Sequence[Doors],
    token: str,
    timeout: float,
    done: dict[str, int],
) -> dict[str, int]:
    """Give what closed tables have to other servers; how many there were in each table.

    Args:
        tables: They keep their items.
        others: Where the other servers are.
        token: What they ask for.
        timeout: Seconds until it is given up.
        done: How many of each table were moved, which a second call goes on from.

    Raises:
        WaitTimeoutError: It was not ready in time.
    """
    deadline = time.monotonic() + timeout
    moved = {table.name: len(table) for table in tables}
    if not any(moved.values()):
        return moved
    with _connect(others, token, timeout) as client:
        for table in tables:
            keys, part = table.items().keys, _part(table)
            for at in range(done.get(table.name, 0), len(keys), part):
                _copy(table, keys[at : at + part], client, deadline)
                done[table.name] = min(at + part, len(keys))
    return moved


def _connect(others: Sequence[Doors], token: str, timeout: float) -> ShardedClient:
    return echoic.connect(
        [nearest(doors, token) for doors in others], token=token, deadline=timeout
    )


def _part(table: Table) -> int:
    return _TRAJECTORIES if table.spec is None else _PART


def _copy(table: Table, keys: Any, client: ShardedClient, deadline: float) -> list[Batch]:
    """Insert items elsewhere, and wait until they are there; those that were here."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise WaitTimeoutError(
            f"timed out: table {table.name!r} still has {len(table)} items to be moved"
        )
    if table.spec is None:
        # One by one: several may be of different forms.
        batches = [table.get(keys[at : at + 1]) for at in range(len(keys))]
        insert = _insert_trajectory
    else:
        batches = [table.get(keys)]
        insert = _insert_rows
    batches = [batch for batch in batches if len(batch)]
    for batch in batches:
        insert(table.name, batch, client, left)
    client.flush(left)
    return batches


def _insert_rows(name: str, batch: Batch, client: ShardedClient, timeout: float) -> None:
    for version, places in _versions(batch):
        part = _trees.tree_map(lambda leaf, chosen=places: leaf[chosen], batch.data)
        priorities = batch.info.priorities[places]
        client.extend(part, name, priorities, version=version, timeout=timeout)


def _insert_trajectory(name: str, batch: Batch, client: ShardedClient, timeout: float) -> None:
    for version, _ in _versions(batch):
        item = _trees.tree_map(lambda leaf: leaf[0], batch.data)
        priority = float(batch.info.priorities[0])
        client.add(item, {name: priority}, version=version, timeout=timeout)


def _versions(batch: Batch) -> Iterator[tuple[int, Any]]:
    """The versions of the items of a batch, each with the places where it is."""
    versions = batch.info.versions
    for version in np.unique(versions):
        yield int(version), np.flatnonzero(versions == version)
