"""A gateway: one client of a server of tables for all workers of a machine: docs/scaling.md."""

from __future__ import annotations

import os
import threading

import numpy as np
from echoic import Server, Stream, Table, connect

BATCH, WORKERS = 64, 5
EXAMPLE = {"obs": np.zeros(3, np.float32), "worker": np.int64(0)}


def hand_on(stream: Stream, address: str) -> None:
    """Insert what workers send, until the server is closed."""
    priorities = np.ones(BATCH)
    with connect(address) as client:
        for sample in stream.batches():
            client.table("replay").extend(sample.data, priorities)
        client.flush()


def test_items_of_all_workers_come_over_one_client() -> None:
    table = Table("replay", EXAMPLE, capacity=10_000)
    stream = Stream(EXAMPLE, batch_size=BATCH)
    address = f"shm://echoic-gateway-{os.getpid()}"
    with (
        Server(table, listen="tcp://127.0.0.1:0") as tables,
        Server(stream, listen=address) as gateway,
    ):
        thread = threading.Thread(target=hand_on, args=(stream, tables.address))
        thread.start()
        workers = [connect(gateway.address).stream(EXAMPLE) for _ in range(WORKERS)]
        for number, worker in enumerate(workers):
            for step in range(BATCH):
                worker.add({"obs": np.full(3, step, np.float32), "worker": np.int64(number)})
            worker.flush()
        for worker in workers:
            worker.close()
        # What was taken is handed on; the gateway ends when its stream does.
        gateway.close()
        thread.join(30)
        assert not thread.is_alive()
        assert len(table) == WORKERS * BATCH
        everything = table.sample(2000).data
        assert set(everything["worker"].tolist()) == set(range(WORKERS))
        assert set(everything["obs"][:, 0].tolist()) == set(range(BATCH))
        # Of a client of tables: one for what it inserts, one for what it asks.
        assert tables.metrics()["connections_accepted_total"] <= 2
