"""Answers to two prompts, one of them with a tool in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from echoic.rollouts import RolloutTable

COLUMNS = {"tokens": "int32", "logprobs": "float32", "mask": "uint8"}
FIELDS = {"reward": "float32", "prompt": "int64"}
# Tokens, and which of them the policy made.
ANSWERS = [
    ([11, 12, 21], [0, 0, 1]),
    ([11, 12, 22, 91, 23], [0, 0, 1, 0, 1]),
    ([13, 24, 25], [0, 1, 1]),
    ([13, 26], [0, 1]),
]
REWARDS = [0.0, 1.0, 0.5, 0.25]


def add(table: RolloutTable, answers: list[int]) -> None:
    """Add a group of answers."""
    reservation = table.reserve(source="worker")
    for answer in answers:
        tokens, mask = ANSWERS[answer]
        logprobs = [-token / 8 if made else 0 for token, made in zip(tokens, mask, strict=True)]
        columns = {
            "tokens": np.array(tokens, np.int32),
            "logprobs": np.array(logprobs, np.float32),
            "mask": np.array(mask, np.uint8),
        }
        reservation.add(columns, {"reward": REWARDS[answer], "prompt": answer // 2})
