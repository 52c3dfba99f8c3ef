"""Weights over every transport."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import echoic
import numpy as np
import pytest
from echoic.weights import WeightStore
from polling import until
from weights_trees import PATIENCE, check, tree


def said(process: Any, word: str) -> str:
    """Read lines of a process up to one that begins with this word; the rest of that line."""
    for line in process.stdout:
        first, _, rest = line.strip().partition(" ")
        if first == word:
            return rest
    raise AssertionError(f"the process ended without {word!r}")


def test_subscribers_elsewhere_see_the_latest(transport: Any) -> None:
    store = WeightStore()
    transport.open(store)
    subscription = transport.client().subscribe()
    assert subscription.latest() is None
    for version in range(1, 8):
        store.publish(tree(version), version)
        publication = subscription.wait(newer_than=version - 1, timeout=PATIENCE)
        assert publication.version == version
        check(publication)


def test_who_comes_late_gets_what_is_there(transport: Any) -> None:
    store = WeightStore()
    store.publish(tree(3), 3)
    transport.open(store)
    check(transport.client().subscribe().wait(timeout=PATIENCE))


def test_views_stay_valid_when_everything_is_closed(transport: Any) -> None:
    store = WeightStore()
    server = transport.open(store)
    client = transport.client()
    store.publish(tree(1), 1)
    publication = client.subscribe().wait(timeout=PATIENCE)
    server.close()
    client.close()
    del server, client, store
    check(publication)


def test_a_learner_elsewhere_publishes(transport: Any) -> None:
    store = WeightStore()
    transport.open(store)
    client = transport.client()
    subscription = store.subscribe()
    for version in (1, 2, 9):
        client.publish(tree(version), version)
        check(subscription.wait(timeout=0))
    client.publish_version(10)
    assert (store.version, store.latest().tree) == (10, None)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="expected one above 10, the latest, got 4"):
        client.publish(tree(4), 4)
    client.publish({"other": np.ones(5)}, 11)
    assert store.latest().tree["other"].tolist() == [1] * 5  # type: ignore[union-attr]


def test_versions_alone_reach_subscribers(transport: Any) -> None:
    store = WeightStore()
    transport.open(store)
    subscription = transport.client().subscribe()
    store.publish_version(5)
    publication = subscription.wait(timeout=PATIENCE)
    assert (publication.version, publication.tree) == (5, None)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_only_chunks_that_changed_are_sent(make_transport: Any, kind: str) -> None:
    transport, store = make_transport(kind), WeightStore()
    transport.open(store)
    subscription = transport.client().subscribe()
    weights = tree(1, size=2_000_000)
    store.publish(weights, 1)
    subscription.wait(timeout=PATIENCE)
    first = store.metrics()["sent_bytes"]
    weights["body"][0][7, 7] = 42
    store.publish(weights, 2)
    publication = subscription.wait(timeout=PATIENCE)
    assert publication.tree["body"][0][7, 7] == 42
    assert np.array_equal(publication.tree["body"][0], weights["body"][0])
    metrics = store.metrics()
    assert metrics["sent_bytes"] - first <= 256 * 1024
    assert metrics["saved_bytes"] >= first - 2 * 256 * 1024


def test_only_chunks_that_changed_are_published(transport: Any) -> None:
    store = WeightStore()
    server = transport.open(store)
    client = transport.client()
    weights = tree(1, size=2_000_000)
    client.publish(weights, 1)
    before = server.metrics()["received_bytes_total"]
    weights["body"][0][7, 7] = 42
    client.publish(weights, 2)
    assert server.metrics()["received_bytes_total"] - before < 400 * 1024
    assert store.latest().tree["body"][0][7, 7] == 42  # type: ignore[union-attr]


def test_memory_is_mapped_not_copied(make_transport: Any) -> None:
    transport, store = make_transport("shm"), WeightStore()
    transport.open(store)
    subscription = transport.client().subscribe()
    for version in range(1, 9):
        store.publish(tree(version), version)
        check(subscription.wait(newer_than=version - 1, timeout=PATIENCE))
    assert store.metrics()["sent_bytes"] == 0
    assert subscription.received_bytes < 100_000


def test_changed_forms_follow(transport: Any) -> None:
    store = WeightStore()
    transport.open(store)
    subscription = transport.client().subscribe()
    store.publish({"a": np.zeros(300_000)}, 1)
    assert subscription.wait(timeout=PATIENCE).tree["a"].shape == (300_000,)
    store.publish([np.ones((2, 3), np.int16)], 2)
    got = subscription.wait(timeout=PATIENCE).tree
    assert got[0].tolist() == [[1] * 3] * 2
    store.publish([np.ones((1000, 3000), np.int16)], 3)
    assert subscription.wait(timeout=PATIENCE).tree[0].sum() == 3_000_000


def test_a_worker_that_holds_one_for_long_keeps_it_whole(transport: Any) -> None:
    store = WeightStore()
    transport.open(store)
    worker = transport.worker("hold")
    said(worker, "ready")
    store.publish(tree(1), 1)
    assert said(worker, "saw") == "1"
    for version in range(2, 30):
        store.publish(tree(version), version, timeout=PATIENCE)
    worker.stdin.write("?\n")
    worker.stdin.flush()
    assert said(worker, "still") == "1"


def test_a_killed_subscriber_frees_its_places(transport: Any) -> None:
    store = WeightStore(capacity=3)
    transport.open(store)
    workers = []
    for version in (1, 2):
        worker = transport.worker("hold", str(version - 1))
        said(worker, "ready")
        store.publish(tree(version), version, timeout=PATIENCE)
        assert said(worker, "saw") == str(version)
        workers.append(worker)
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    for version in range(3, 12):
        store.publish(tree(version), version, timeout=PATIENCE)
    until(lambda: store.metrics()["subscribers"] == 0)
    until(lambda: store.metrics()["held_publications"] == 1)


def test_a_killed_publisher_leaves_the_last_whole_publication(transport: Any) -> None:
    store = WeightStore()
    transport.open(store)
    learner = transport.worker("publish")
    said(learner, "published")
    learner.send_signal(signal.SIGKILL)
    learner.wait()
    until(lambda: store.metrics()["held_publications"] == 1)
    check(store.latest())
    last = store.version or 0
    with transport.client() as client:
        client.publish(tree(last + 1), last + 1)
    check(store.latest())


def test_a_stopped_subscriber_slows_nobody(make_transport: Any) -> None:
    transport, store = make_transport("tcp"), WeightStore(capacity=3)
    transport.open(store)
    slow, fast = transport.worker("watch"), transport.client().subscribe()
    said(slow, "ready")
    slow.send_signal(signal.SIGSTOP)
    size = 3_000_000
    for version in range(1, 20):
        store.publish(tree(version, size), version, timeout=PATIENCE)
        check(fast.wait(newer_than=version - 1, timeout=PATIENCE), size)
    slow.send_signal(signal.SIGCONT)


def test_a_subscriber_comes_back_and_goes_on_with_what_a_new_server_has(transport: Any) -> None:
    store = WeightStore()
    server = transport.open(store)
    subscription = transport.client().subscribe()
    store.publish(tree(8), 8)
    held = subscription.wait(timeout=PATIENCE)
    server.close()
    check(held)
    assert subscription.latest().version == 8
    # A learner that went back to an earlier checkpoint.
    again = WeightStore()
    again.publish(tree(5), 5)
    transport.open(again)
    publication = subscription.wait(timeout=PATIENCE)
    assert publication.version == 5
    check(publication)
    check(held)
    assert subscription.reconnects == 1


def test_a_client_that_gave_up_says_so(transport: Any) -> None:
    store = WeightStore()
    server = transport.open(store)
    subscription = transport.client(reconnect=0.1).subscribe()
    store.publish(tree(1), 1)
    held = subscription.wait(timeout=PATIENCE)
    server.close()
    with pytest.raises(echoic.errors.DisconnectedError):
        subscription.wait(timeout=PATIENCE)
    check(held)


def test_a_full_server_is_waited_for_by_a_learner_elsewhere(transport: Any) -> None:
    store = WeightStore(capacity=2)
    transport.open(store)
    client = transport.client()
    client.publish(tree(1), 1)
    held = store.latest()
    client.publish(tree(2), 2)
    with pytest.raises(echoic.errors.WaitTimeoutError) as caught:
        client.publish(tree(3), 3, timeout=0.1)
    assert caught.value.reason == "LEASED"
    check(held)
    del held
    client.publish(tree(3), 3, timeout=PATIENCE)
    check(store.latest())


class Stuck:
    """A client of which another thread's publication waits for a place at the server."""

    def __init__(self, transport: Any) -> None:
        self.store = WeightStore(capacity=2)
        transport.open(self.store)
        self.client = transport.client()
        self.client.publish(tree(1), 1)
        self.held = self.store.latest()
        self.client.publish(tree(2), 2)
        self.ended: list[Any] = []
        self.thread = threading.Thread(target=self._publish)
        self.thread.start()
        # It has said so to the server, and is kept waiting there.
        time.sleep(0.2)
        assert not self.ended

    def _publish(self) -> None:
        try:
            self.ended.append(self.client.publish(tree(3), 3))
        except Exception as error:  # the test looks at it
            self.ended.append(error)

    def end(self) -> Any:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        return self.ended[0]


def test_a_publication_behind_another_threads_keeps_to_its_timeout(transport: Any) -> None:
    stuck = Stuck(transport)
    try:
        since = time.monotonic()
        with pytest.raises(echoic.errors.WaitTimeoutError) as caught:
            stuck.client.publish(tree(4), 4, timeout=0.1)
        assert time.monotonic() - since < 5
        assert caught.value.reason == "LEASED"
    finally:
        stuck.held = None
        ended = stuck.end()
    assert ended is None
    stuck.client.publish(tree(4), 4, timeout=PATIENCE)
    check(stuck.store.latest())


def test_a_publication_behind_another_threads_hears_ctrl_c(transport: Any) -> None:
    stuck = Stuck(transport)
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            stuck.client.publish(tree(4), 4, timeout=PATIENCE)
    finally:
        stuck.held = None
        ended = stuck.end()
    assert ended is None
    assert stuck.store.version == 3


def test_closing_the_client_ends_what_is_being_published(transport: Any) -> None:
    stuck = Stuck(transport)
    try:
        since = time.monotonic()
        stuck.client.close()
        assert time.monotonic() - since < 5
        ended = stuck.end()
    finally:
        stuck.held = None
        stuck.thread.join(PATIENCE)
    assert isinstance(ended, echoic.errors.ClosedError)
    assert stuck.store.version == 2
    until(lambda: stuck.store.metrics()["held_publications"] == 1)


def test_a_tree_too_large_to_send_is_refused_where_it_is_published(transport: Any) -> None:
    store = WeightStore()
    transport.open(store)
    client = transport.client()
    client.publish(tree(1), 1)
    subscription = client.subscribe()
    check(subscription.wait(timeout=PATIENCE))
    large = {"x" * (17 << 20): np.float32(0)}
    with pytest.raises(echoic.errors.SpecError, match="structure of a tree"):
        client.publish(large, 2)
    with pytest.raises(echoic.errors.SpecError, match="structure of a tree"):
        store.publish(large, 2)
    assert store.version == 1
    client.publish(tree(2), 2)
    check(subscription.wait(newer_than=1, timeout=PATIENCE))


def test_strangers_are_refused(transport: Any) -> None:
    store = WeightStore()
    transport.open(store, token="secret")
    with pytest.raises(echoic.errors.RefusedError) as caught:
        transport.client(token="other").subscribe()
    assert caught.value.code == "AUTH"
    with pytest.raises(echoic.errors.RefusedError):
        transport.client().publish(tree(1), 1)
    transport.client(token="secret").publish(tree(1), 1)
    assert store.version == 1


def test_a_server_without_weights_says_so(transport: Any) -> None:
    table = echoic.Table("replay", {"x": np.zeros(1)}, capacity=2)
    with echoic.Server(table, listen=transport.address) as server:
        client = echoic.connect(server.address).weights()
        with pytest.raises(echoic.errors.RefusedError, match="no weights; it has tables"):
            client.subscribe()
        client.close()


def test_closing_the_client_wakes_who_waits(transport: Any) -> None:
    transport.open(WeightStore())
    client = transport.client()
    subscription = client.subscribe()
    threading.Timer(0.05, client.close).start()
    with pytest.raises(echoic.errors.ClosedError):
        subscription.wait(timeout=PATIENCE)
    with pytest.raises(echoic.errors.ClosedError):
        client.subscribe()
    with pytest.raises(echoic.errors.ClosedError):
        client.publish(tree(1), 1)


def test_a_tree_of_many_leaves_reaches_a_worker(transport: Any) -> None:
    names = [
        f"model.layers.{at // 400}.experts.{at % 400}.down_proj.weight" for at in range(20_000)
    ]
    rows = np.arange(40_000, dtype=np.float32).reshape(20_000, 2)
    store = WeightStore()
    transport.open(store)
    with transport.client().subscribe() as subscription:
        store.publish(dict(zip(names, rows, strict=True)), 1)
        publication = subscription.wait(timeout=30)
        assert list(publication.tree) == names
        assert np.array_equal(np.stack(list(publication.tree.values())), rows)
        if transport.kind == "tcp":
            transport.client().publish(dict(zip(names, rows + 1, strict=True)), 2, timeout=30)
            got = subscription.wait(newer_than=1, timeout=30).tree
            assert np.array_equal(np.stack(list(got.values())), rows + 1)
