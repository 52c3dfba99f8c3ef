"""What the tests put into tables of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from echoic.rollouts import Permit

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


def fill(permit: Permit, rewards: list[float], length: int = 3, **options: Any) -> str:
    """Add an item for each reward."""
    for item, reward in enumerate(rewards):
        fields = {"reward": reward, "prompt": permit.group}
        permit.add(columns(length, 10 * item), fields, **options)
    return permit.fate
