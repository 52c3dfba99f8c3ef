"""Use tables that are spread over several servers.

- ``client``: :class:`ShardedClient`, which ``echoic.connect`` makes when it gets several addresses.
- ``table``: one sharded table. ``writers``: its writers; each episode goes to one shard.
- ``shards``: the servers, their state and the order of turns. ``shard``: one of them.
- ``places``: reads lists of addresses.
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
