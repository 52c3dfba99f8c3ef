"""Weights that are recognised by their value; as a program, a worker that says what it sees."""

# ruff: noqa: T201 - what it says is read by the test

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from echoic import connect

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


def watch(address: str) -> None:
    """Look at what comes, for ever."""
    with connect(address).weights() as client:
        subscription = client.subscribe()
        print("ready", flush=True)
        for publication in subscription:
            check(publication)
            print("saw", publication.version, flush=True)


def hold(address: str, newer_than: str = "0") -> None:
    """Keep the first that comes above a version, and say so; then check it when asked."""
    with connect(address).weights() as client:
        subscription = client.subscribe()
        print("ready", flush=True)
        publication = subscription.wait(newer_than=int(newer_than), timeout=30)
        check(publication)
        print("saw", publication.version, flush=True)
        for _ in sys.stdin:
            check(publication)
            print("still", publication.version, flush=True)


def publish(address: str) -> None:
    """Publish ever larger versions, until it is killed."""
    with connect(address).weights() as client:
        version = 1
        while True:
            client.publish(tree(version), version)
            print("published", version, flush=True)
            version += 1


if __name__ == "__main__":
    {"watch": watch, "hold": hold, "publish": publish}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
