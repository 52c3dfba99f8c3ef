"""Weights that are recognised by their value."""

from __future__ import annotations

from typing import Any

import numpy as np

PATIENCE = 30.0


def tree(value: float, size: int = 300_000) -> dict[str, Any]:
    """Weights that are recognised by their value; several chunks of them."""
    return {
        "body": [np.full((size // 100, 100), value, np.float32), np.full(3, value, np.float64)],
        "head": {"bias": np.float32(value), "steps": np.int64(value)},
    }


def check(publication: Any, size: int = 300_000) -> None:
    """Every leaf of these weights has the value of its version."""
    expected = tree(publication.version, size)
    got = publication.tree
    assert got["body"][0].shape == expected["body"][0].shape
    assert (got["body"][0] == publication.version).all()
    assert (got["body"][1] == publication.version).all()
    assert got["head"]["bias"] == publication.version
    assert got["head"]["steps"] == publication.version
    assert not got["body"][0].flags.writeable
