"""Weights that go through relays: a worker's host follows the learner, and serves who follows it.

A relay is nothing but a client and a server, as in docs/scaling.md.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from echoic import Server, connect
from echoic.errors import ClosedError
from echoic.weights import RemoteWeightStore, WeightStore

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 30


@contextlib.contextmanager
def relay(address: str) -> Iterator[str]:
    """Follow the weights at an address, and serve them at another, which is given."""
    store = WeightStore()
    with (
        connect(address).weights() as client,
        Server(store, listen="tcp://127.0.0.1:0") as server,
    ):
        subscription = client.subscribe()

        def hand_on() -> None:
            # It is a worker that went away, and no error, when either end is closed.
            with contextlib.suppress(ClosedError):
                for publication in subscription:
                    store.publish(publication.tree, publication.version)

        thread = threading.Thread(target=hand_on)
        thread.start()
        try:
            yield server.address
        finally:
            subscription.close()
            store.close()
            thread.join(WAIT)
            assert not thread.is_alive()


def weights(version: int) -> dict[str, Any]:
    return {"layers": [np.full((64, 300), version, np.float32)], "bias": np.arange(3.0)}


def wait_for(client: RemoteWeightStore, version: int) -> Any:
    publication = client.subscribe().wait(newer_than=version - 1, timeout=WAIT)
    assert publication.version == version
    return publication


def test_weights_reach_those_behind_two_relays() -> None:
    store = WeightStore()
    with (
        Server(store, listen="tcp://127.0.0.1:0") as learner,
        relay(learner.addresses[0]) as first,
        relay(first) as second,
        connect(second).weights() as worker,
    ):
        for version in (1, 2):
            store.publish(weights(version), version)
            publication = wait_for(worker, version)
            np.testing.assert_array_equal(
                publication.tree["layers"][0], weights(version)["layers"][0]
            )
            np.testing.assert_array_equal(publication.tree["bias"], np.arange(3.0))
        # However many follow behind, the learner's server has one subscriber.
        assert store.metrics()["subscribers"] == 1


def test_learner_sends_each_publication_once_however_many_follow_a_relay() -> None:
    store = WeightStore()
    with (
        Server(store, listen="tcp://127.0.0.1:0") as learner,
        relay(learner.addresses[0]) as address,
        contextlib.ExitStack() as stack,
    ):
        workers = [stack.enter_context(connect(address).weights()) for _ in range(5)]
        store.publish(weights(1), 1)
        for worker in workers:
            wait_for(worker, 1)
        size = store.latest().nbytes
        sent = store.metrics()["sent_bytes"]
        assert size <= sent < 1.1 * size + 1000


def test_relay_goes_on_with_what_it_has_when_the_learner_is_gone() -> None:
    store = WeightStore()
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(Server(store, listen="tcp://127.0.0.1:0"))
        address = stack.enter_context(relay(learner.addresses[0]))
        store.publish(weights(3), 3)
        with connect(address).weights() as early:
            wait_for(early, 3)
        learner.close()
        with connect(address).weights() as late:
            wait_for(late, 3)
