"""Move items from a shard that is drained to the others.

An item is inserted elsewhere and acknowledged before it is deleted here. So none is lost, even if a
process is killed meanwhile, and for a moment some are on both shards. They are new items there,
with other keys: the newest for a remover, and not sampled yet.

Items that may be sampled a limited number of times are moved after the transports are closed, so
that no client samples them meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic._links import deadline_in
from echoic.connection import connect
from echoic.errors import WaitTimeoutError
from echoic.integrations.ray.addresses import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echoic._native import Batch
    from echoic.connection import Connection
    from echoic.integrations.ray.addresses import Addresses
    from echoic.table import Table

__all__ = ["move_items", "move_rest"]

# The most items that are on two shards for a moment.
_PART = 256
# A trajectory's bytes are sent with each item, so fewer of them at a time.
_TRAJECTORIES = 16


def move_items(
    tables: Sequence[Table], others: Sequence[Addresses], token: str, timeout: float
) -> dict[str, int]:
    """Move items to other servers while they may be sampled; return how many of each table.

    Args:
        tables: They are empty afterwards, except for items inserted meanwhile. Tables whose items
            may be sampled a limited number of times are left as they are.
        others: The addresses of the other servers, which have tables of the same names.
        token: The secret that they require.
        timeout: Seconds until it gives up.

    Raises:
        WaitTimeoutError: If it was not done in time. What was moved so far stays there.
    """
    deadline = deadline_in(timeout)
    moved = {}
    with _connect(others, token, timeout) as client:
        for table in tables:
            moved[table.name] = 0
            while len(table) and not table.stats().max_times_sampled:
                batches = _copy(table, table.items(_part(table)).keys, client, deadline)
                # Also items that were removed meanwhile are moved: they were there until now.
                for batch in batches:
                    table.remove(batch.keys)
                moved[table.name] += sum(map(len, batches))
    return moved


def move_rest(
    tables: Sequence[Table],
    others: Sequence[Addresses],
    token: str,
    timeout: float,
    done: dict[str, int],
) -> dict[str, int]:
    """Copy the items of closed tables, which keep them, to other servers; see :func:`move_items`.

    ``done`` has how many of each table were copied; a second call continues there.
    """
    deadline = deadline_in(timeout)
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


def _connect(others: Sequence[Addresses], token: str, timeout: float) -> Connection:
    return connect([nearest(one, token) for one in others], token=token, reconnect=timeout)


def _part(table: Table) -> int:
    return _TRAJECTORIES if table.spec is None else _PART


def _copy(table: Table, keys: Any, client: Connection, deadline: float) -> list[Batch]:
    """Insert items elsewhere, wait until they are there, and return those that were here."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise WaitTimeoutError(
            f"timed out: table {table.name!r} still has {len(table)} items to be moved"
        )
    # Trajectories one by one, since they may have different forms.
    each = len(keys) if table.spec is not None else 1
    found = [table.get(keys[at : at + each]) for at in range(0, len(keys), max(each, 1))]
    batches = [batch for batch in found if len(batch)]
    there = client.table(table.name)
    for batch in batches:
        versions, priorities = batch.info.versions, batch.info.priorities
        for version in np.unique(versions).tolist():
            chosen: Any = versions == version
            if table.spec is None:
                item = _trees.tree_map(lambda leaf: leaf[0], batch.data)
                there.add(item, float(priorities[0]), version=version, timeout=left)
            else:
                part = _trees.tree_map(lambda leaf, chosen=chosen: leaf[chosen], batch.data)
                there.extend(part, priorities[chosen], version=version, timeout=left)
    client.flush(left)
    return batches
