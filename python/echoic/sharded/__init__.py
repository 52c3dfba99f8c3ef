"""Tables that lie on several servers: one client of them all.

- ``client``: :class:`ShardedClient`, which ``echoic.connect`` makes when it gets several addresses.
- ``table``: one table of it. ``writers``: its writers, an episode on one shard each.
- ``shards``: which servers are there, who comes next, and where they go. ``shard``: one of them.
- ``places``: what is said of where they are.
"""

from echoic.sharded.client import ShardedClient
from echoic.sharded.table import ShardedTable
from echoic.sharded.writers import ShardedStructuredWriter, ShardedTrajectoryWriter

__all__ = [
    "ShardedClient",
    "ShardedStructuredWriter",
    "ShardedTable",
    "ShardedTrajectoryWriter",
]
