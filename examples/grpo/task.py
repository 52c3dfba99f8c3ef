"""A task whose answers can be checked: turn a few digits round.

A prompt is some digits and ``SEP``, its answer the same digits from last to first and ``END``. The
reward is the share of places that are right, so that a policy which knows nothing has something to
learn from. The prompt of a group follows from the seed and the group's number: a worker that goes
on with a group of another one knows its prompt, which is never sent.

Knows neither torch nor Echoic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

# Tokens are the digits from 0 on, and two more.
DIGITS = 6
SEP, END = DIGITS, DIGITS + 1
VOCABULARY = DIGITS + 2
# Digits of a prompt.
SHORTEST, LONGEST = 2, 4
# Tokens of an answer; a policy that does not stop is cut off.
MOST = LONGEST + 2
# Tokens of a prompt and its answer.
CONTEXT = LONGEST + 1 + MOST


def prompt(seed: int, group: int) -> list[int]:
    """Return the prompt of a group."""
    rng = np.random.default_rng((seed, group))
    length = int(rng.integers(SHORTEST, LONGEST, endpoint=True))
    return [*rng.integers(DIGITS, size=length).tolist(), SEP]


def solution(prompt: Sequence[int]) -> list[int]:
    """Return the answer that is right."""
    return [*reversed(prompt[:-1]), END]


def is_over(answer: Sequence[int]) -> bool:
    """Whether nothing is to be added to an answer."""
    return len(answer) >= MOST or (len(answer) > 0 and answer[-1] == END)


def reward(prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Return the share of places that are right, of those that either has."""
    expected = solution(prompt)
    right = sum(a == b for a, b in zip(expected, answer, strict=False))
    return right / max(len(expected), len(answer))
