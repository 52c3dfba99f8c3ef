"""Items on their way from a shard that is emptied to the others.

An item is inserted elsewhere and acknowledged there before it is deleted here: so none is lost,
also when somebody is killed meanwhile, and for a moment some are at both. They are new items there,
with other keys: the newest for a remover, and not sampled yet.
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
    from echoic.table import Table
    from echoic.table_client import TableClient

__all__ = ["move_items", "why_unmovable"]

# How many items are at two places for a moment, at most.
_PART = 256
# A trajectory's bytes are sent with each item, so fewer of them at a time.
_TRAJECTORIES = 16


def why_unmovable(table: Table) -> str | None:
    """Why items of a table can't be moved; ``None`` when they can."""
    limit = table.info["max_times_sampled"]
    if not limit:
        return None
    return (
        f"table {table.name!r} has max_times_sampled={limit}, and an item that is moved while it "
        "is sampled would be sampled more often"
    )


def move_items(
    tables: Sequence[Table], others: Sequence[Doors], token: str, timeout: float
) -> dict[str, int]:
    """Give all items of some tables to other servers; how many there were in each.

    Args:
        tables: They are empty afterwards, but for what was inserted meanwhile.
        others: Where the other servers are; each has tables of the same names.
        token: What they ask for.
        timeout: Seconds until it is given up.

    Raises:
        WaitTimeoutError: It was not ready in time. What was moved so far stays there.
    """
    deadline = time.monotonic() + timeout
    addresses = [nearest(doors, token) for doors in others]
    moved = dict.fromkeys((table.name for table in tables), 0)
    with echoic.connect(addresses, token=token, deadline=timeout) as client:
        for table in tables:
            part = _TRAJECTORIES if table.spec is None else _PART
            while len(table):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeoutError(
                        f"timed out: table {table.name!r} still has {len(table)} items to be moved "
                        f"after {timeout} s; {moved[table.name]} were"
                    )
                moved[table.name] += _move(table, table.items(part).key, client, left)
    return moved


def _move(table: Table, keys: Any, client: TableClient, timeout: float) -> int:
    if table.spec is None:
        # One by one: several may be of different forms.
        batches = [table.get(keys[at : at + 1]) for at in range(len(keys))]
        for batch in batches:
            _insert_trajectory(table.name, batch, client, timeout)
    else:
        batches = [table.get(keys)]
        _insert_rows(table.name, batches[0], client, timeout)
    client.flush(timeout)
    # Only those that were inserted: others may have come under no other key, but gone.
    return sum(table.delete(batch.info.key) for batch in batches)


def _insert_rows(name: str, batch: Batch, client: TableClient, timeout: float) -> None:
    for version, places in _versions(batch):
        part = _trees.tree_map(lambda leaf, chosen=places: leaf[chosen], batch.data)
        priorities = batch.info.priority[places]
        client.insert_batch(part, name, priorities, version=version, timeout=timeout)


def _insert_trajectory(name: str, batch: Batch, client: TableClient, timeout: float) -> None:
    for version, _ in _versions(batch):
        item = _trees.tree_map(lambda leaf: leaf[0], batch.data)
        priority = float(batch.info.priority[0])
        client.insert(item, {name: priority}, version=version, timeout=timeout)


def _versions(batch: Batch) -> Iterator[tuple[int, Any]]:
    """The versions of the items of a batch, each with the places where it is."""
    versions = batch.info.version
    for version in np.unique(versions):
        yield int(version), np.flatnonzero(versions == version)
