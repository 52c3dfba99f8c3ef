"""A producer or a consumer in a process of its own."""

# ruff: noqa: T201 - what it says is read by the test

from __future__ import annotations

import sys
import time

import numpy as np
from echoic.rollouts import RolloutTable, connect
from rollout_items import columns


def produce(table: RolloutTable, seed: str) -> None:
    """Make groups until the table is closed or this is killed."""
    rng = np.random.default_rng(int(seed))
    print("ready", flush=True)
    while True:
        permit = table.admit(source=seed, ttl=1.0)
        for item in range(2):
            length = int(rng.integers(1, 30))
            # A kill is likely between two segments.
            permit.extend(item, columns(length))
            permit.finish(item, {"reward": item, "prompt": permit.group})


def consume(table: RolloutTable, lease: str) -> None:
    """Take a batch, say so, and keep it for ever."""
    batch = table.sample(lease=float(lease))
    print(*batch.group_ids.tolist(), flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    with connect(sys.argv[1]) as client:
        {"produce": produce, "consume": consume}[sys.argv[2]](client["math"], sys.argv[3])
