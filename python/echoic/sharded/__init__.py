"""Use tables that are spread over several servers.

``echoic.connect([address, ...]).table(name)`` returns one of them.

- ``table``: one sharded table. ``writers``: its writers; each episode goes to one shard.
- ``shards``: the servers, their state and the order of turns. ``shard``: one of them.
- ``places``: reads lists of addresses.
"""

from echoic.sharded.table import ShardedTable
from echoic.sharded.writers import ShardedStructuredWriter, ShardedTrajectoryWriter

__all__ = [
    "ShardedStructuredWriter",
    "ShardedTable",
    "ShardedTrajectoryWriter",
]
