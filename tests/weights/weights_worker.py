"""A worker in a process of its own: says each version that it sees, and that all of it is right."""

# ruff: noqa: T201 - what it says is read by the test

from __future__ import annotations

import sys

from echoic.weights import WeightClient
from weights_trees import check, tree


def watch(address: str) -> None:
    """Look at what comes, for ever."""
    with WeightClient(address) as client:
        subscription = client.subscribe()
        print("ready", flush=True)
        for publication in subscription:
            check(publication)
            print("saw", publication.version, flush=True)


def hold(address: str, newer_than: str = "0") -> None:
    """Keep the first that comes above a version, and say so; then check it when asked."""
    with WeightClient(address) as client:
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
    with WeightClient(address) as client:
        version = 1
        while True:
            client.publish(tree(version), version)
            print("published", version, flush=True)
            version += 1


if __name__ == "__main__":
    {"watch": watch, "hold": hold, "publish": publish}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
