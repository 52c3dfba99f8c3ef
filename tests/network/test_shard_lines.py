"""Shards behind a bad network: a lost connection is not a lost server."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from content import PATIENCE
from polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore::echoic.errors.ShardWarning")


@pytest.fixture
def open_shards(make_proxy: Any) -> Iterator[Callable[[], Any]]:
    """Make two servers with a table each, and a client that reaches the second by a proxy."""
    servers: list[echoic.Server] = []

    def make() -> tuple[echoic.Connection, Any, list[echoic.Table]]:
        tables = [echoic.Table("t", np.int64(0), capacity=100_000, seed=1) for _ in range(2)]
        for table in tables:
            address = "tcp://127.0.0.1:0"
            servers.append(echoic.Server(table, listen=address).start())
        proxy = make_proxy(servers[1])
        addresses = [servers[0].addresses[0], proxy.address]
        return echoic.connect(addresses, seed=1, reconnect=PATIENCE), proxy, tables

    yield make
    for server in servers:
        server.close()


def test_keys_are_good_after_a_connection_was_lost(open_shards: Any) -> None:
    client, proxy, _ = open_shards()
    with client:
        client.table("t").extend(np.arange(600))
        client.flush(PATIENCE)
        keys = np.unique(client.table("t").sample(12_000).keys)
        assert len(keys) == 600
        proxy.cut()
        # Both connections: a request on one whose loss is not known yet would do without the shard.
        until(lambda: client.stats().reconnects == 2)
        until(lambda: all(client.shards_there))
        assert client.table("t").update_priorities(keys, np.full(600, 2.0)) == 600
        assert client.table("t").remove(keys) == 600


def test_each_item_is_inserted_once_while_connections_are_cut(open_shards: Any) -> None:
    client, proxy, tables = open_shards()
    count = 20_000
    done = threading.Event()

    def cut() -> None:
        while not done.wait(0.05):
            proxy.cut()

    cutter = threading.Thread(target=cut)
    with warnings.catch_warnings(), client:
        cutter.start()
        try:
            sampled = 0
            for first in range(0, count, 50):
                client.table("t").add(np.int64(first), timeout=PATIENCE)
                client.table("t").extend(np.arange(first + 1, first + 50), timeout=PATIENCE)
                sampled += len(client.table("t").sample(20, timeout=PATIENCE))
        finally:
            done.set()
            cutter.join(PATIENCE)
        client.flush(PATIENCE)
        until(lambda: all(client.shards_there))
        assert len(client.table("t")) == count
        there = [table.get(table.items().keys).data for table in tables]
        assert sorted(np.concatenate(there).tolist()) == list(range(count))
        assert sampled == 20 * count // 50
