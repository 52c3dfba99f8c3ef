"""A client whose tables are in this process, so that limiters act at once."""

from __future__ import annotations


class Shelf:
    """What a replay buffer of RLlib needs of a client.

    Args:
        *tables: Those that it has.
    """

    def __init__(self, *tables):
        """Take the tables."""
        self.tables = {table.name: table for table in tables}
        self.closed = False

    def table(self, name):
        """Return one of them."""
        return self.tables[name]

    def close(self, timeout):
        """Note it."""
        self.closed = True
