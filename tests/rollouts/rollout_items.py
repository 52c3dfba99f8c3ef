"""What the tests put into tables of rollouts; as a program, a producer or a consumer."""

# ruff: noqa: T201 - what it says is read by the test

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from echoic import connect

if TYPE_CHECKING:
    from echoic.rollouts import Reservation, RolloutTable

COLUMNS = {"tokens": "int32", "logprobs": "float32", "mask": "uint8"}
FIELDS = {"reward": "float32", "prompt": "int64"}


def columns(length: int, first: int = 0) -> dict[str, np.ndarray]:
    """Return tokens that tell their place."""
    tokens = np.arange(first, first + length, dtype=np.int32)
    return {
        "tokens": tokens,
        "logprobs": (-tokens / 8).astype(np.float32),
        "mask": np.ones(length, np.uint8),
    }


def fill(reservation: Reservation, rewards: list[float], length: int = 3, **options: Any) -> str:
    """Add an item for each reward."""
    for item, reward in enumerate(rewards):
        fields = {"reward": reward, "prompt": reservation.group}
        reservation.add(columns(length, 10 * item), fields, **options)
    return reservation.status


def produce(table: RolloutTable, seed: str) -> None:
    """Make groups until the table is closed or this is killed."""
    rng = np.random.default_rng(int(seed))
    print("ready", flush=True)
    while True:
        reservation = table.reserve(source=seed, ttl=1.0)
        for item in range(2):
            length = int(rng.integers(1, 30))
            # A kill is likely between two segments.
            reservation.extend(item, columns(length))
            reservation.finish(item, {"reward": item, "prompt": reservation.group})


def consume(table: RolloutTable, lease: str) -> None:
    """Take a batch, say so, and keep it for ever."""
    batch = table.sample(lease=float(lease))
    print(*batch.group_ids.tolist(), flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    with connect(sys.argv[1]) as client:
        {"produce": produce, "consume": consume}[sys.argv[2]](client.rollouts("math"), sys.argv[3])
