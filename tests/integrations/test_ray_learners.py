"""Ranks of a training take their shares of a table as tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import echoic
import numpy as np
import pytest

pytest.importorskip("torch")
import torch

STEP = {"number": np.int64(0), "square": np.zeros(2, np.float32)}


@pytest.fixture
def address():
    """Of a server with a queue, and a table that is drawn from."""
    tables = [
        echoic.Table.queue("queue", STEP, capacity=1000),
        echoic.Table("drawn", STEP, capacity=1000, sampler=echoic.selectors.Prioritized(1.0)),
    ]
    with echoic.Server(*tables, listen="tcp://127.0.0.1:0") as server:
        numbers = np.arange(400)
        items = {
            "number": numbers,
            "square": np.stack([numbers, numbers**2], 1).astype(np.float32),
        }
        for table in tables:
            table.extend(items, 1.0 + numbers)
        yield server.address


def rank(address, table, batches):
    """What one rank gets, over a connection of its own."""
    with echoic.connect(address) as client:
        stream = client.table(table).batches(20, prefetch=0, timeout=30.0, device="cpu")
        return list(islice(stream, batches))


def test_shares_of_a_queue_are_disjoint_and_together_they_are_all(address):
    with ThreadPoolExecutor(2) as pool:
        shares = list(pool.map(lambda _: rank(address, "queue", 10), range(2)))
    numbers = torch.cat([batch.data["number"] for share in shares for batch in share])
    assert sorted(numbers.tolist()) == list(range(400))
    squares = torch.cat([batch.data["square"] for share in shares for batch in share])
    assert torch.equal(squares[:, 1], squares[:, 0] ** 2)
    assert torch.equal(squares[:, 0].long(), numbers)


def test_ranks_draw_from_a_table_with_true_weights_and_may_write_to_what_they_get(address):
    batch = rank(address, "drawn", 1)[0]
    priorities = 1.0 + batch.data["number"].numpy()
    np.testing.assert_allclose(batch.info.probabilities, priorities / (1.0 + np.arange(400)).sum())
    batch.data["number"] += 1
    np.testing.assert_array_equal(batch.data["number"].numpy(), priorities)
