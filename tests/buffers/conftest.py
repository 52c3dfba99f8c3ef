"""Transitions that tell which they are."""

from __future__ import annotations

import numpy as np
import pytest
from numbered import transition


def numbered(step: int, *, ended: bool = False, width: int = 3) -> dict[str, object]:
    """The transition of a number: everything in it follows from that."""
    obs = np.full(width, step, np.float32)
    return transition(obs, np.array([step * 2], np.float32), float(step), ended, False, obs + 1)


@pytest.fixture
def fill():
    """Adds transitions with these numbers."""

    def push(buffer, steps, **options):
        for step in steps:
            buffer.add(numbered(step), **options)

    return push
