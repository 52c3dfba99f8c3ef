"""Weights in one process."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any, NamedTuple

import echoic
import numpy as np
import pytest
from echoic.weights import WeightStore
from weights_trees import PATIENCE, check, tree


class Pair(NamedTuple):
    first: Any
    second: Any


def test_a_subscription_says_where_it_is() -> None:
    with WeightStore() as store:
        subscription = store.subscribe()
        assert repr(subscription) == "Subscription(version=None)"
        store.publish_version(3)
        assert repr(subscription) == "Subscription(version=3)"
        subscription.close()
        assert repr(subscription) == "Subscription(version=3, closed)"


def test_the_latest_wins_and_keeps_its_tree() -> None:
    store = WeightStore()
    assert store.latest() is None
    for version in (1, 2, 5):
        store.publish(tree(version), version)
    latest = store.latest()
    assert latest is not None
    assert (latest.version, store.version) == (5, 5)
    check(latest)


def test_arrays_are_views_that_nobody_can_write() -> None:
    store = WeightStore()
    store.publish({"w": np.arange(8.0)}, 1)
    array = store.latest().tree["w"]  # type: ignore[union-attr]
    assert not array.flags.owndata
    assert array.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_every_kind_of_node_comes_back() -> None:
    store = WeightStore()
    store.publish(Pair(np.zeros(2), (np.ones(1), [np.int8(3), None])), 1)
    got = store.latest().tree  # type: ignore[union-attr]
    assert isinstance(got, Pair)
    assert isinstance(got.second, tuple)
    assert got.second[1][1] is None
    assert got.second[1][0] == 3


def test_what_is_held_never_changes_and_outlives_the_store() -> None:
    store = WeightStore(capacity=3)
    store.publish(tree(1), 1)
    held = store.latest()
    array = held.tree["body"][0]  # type: ignore[union-attr]
    for version in range(2, 12):
        store.publish(tree(version), version)
    check(held)
    del held
    store.close()
    del store
    gc.collect()
    assert (array == 1).all()


def test_a_version_that_does_not_rise_is_refused() -> None:
    store = WeightStore()
    store.publish(tree(7), 7)
    with pytest.raises(ValueError, match="expected one above 7, the latest, got 7"):
        store.publish(tree(7), 7)
    with pytest.raises(ValueError, match="expected one above 7, the latest, got 3"):
        store.publish_version(3)
    assert store.version == 7


def test_weights_of_another_form_replace_those_before() -> None:
    store = WeightStore()
    store.publish({"a": np.zeros(3)}, 1)
    store.publish((np.zeros(2, np.int8), np.ones((2, 2))), 2)
    got = store.latest().tree  # type: ignore[union-attr]
    assert isinstance(got, tuple)
    assert got[1].shape == (2, 2)


def test_a_publisher_that_finds_all_held_says_so_and_goes_on_when_one_is_dropped() -> None:
    store = WeightStore(capacity=2)
    store.publish(tree(1), 1)
    held = store.latest()
    store.publish(tree(2), 2)
    with pytest.raises(echoic.errors.WaitTimeoutError, match="held by arrays") as caught:
        store.publish(tree(3), 3, timeout=0)
    assert caught.value.reason == "LEASED"
    assert store.metrics()["blocked_publications"] == 1
    boxes = [held]
    del held
    threading.Timer(0.05, boxes.clear).start()
    store.publish(tree(3), 3, timeout=PATIENCE)
    check(store.latest())


def test_subscribers_wait_for_what_is_newer() -> None:
    store = WeightStore()
    subscription = store.subscribe()
    with pytest.raises(echoic.errors.WaitTimeoutError) as caught:
        subscription.wait(timeout=0.01)
    assert caught.value.reason == "EMPTY"
    threading.Timer(0.02, lambda: store.publish(tree(1), 1)).start()
    assert subscription.wait(timeout=PATIENCE).version == 1
    with pytest.raises(echoic.errors.WaitTimeoutError):
        subscription.wait(timeout=0)
    assert subscription.wait(newer_than=0, timeout=0).version == 1
    store.publish(tree(2), 2)
    store.publish(tree(3), 3)
    assert subscription.wait(newer_than=1, timeout=0).version == 3


def test_iterating_ends_when_the_store_is_closed() -> None:
    store = WeightStore()
    seen = []
    subscription = store.subscribe()

    def look() -> None:
        seen.extend(publication.version for publication in subscription)

    thread = threading.Thread(target=look)
    thread.start()
    store.publish(tree(4), 4)
    deadline = time.monotonic() + PATIENCE
    while not seen and time.monotonic() < deadline:
        time.sleep(0.001)
    store.close()
    thread.join(PATIENCE)
    assert seen == [4]
    with pytest.raises(echoic.errors.ClosedError):
        store.publish(tree(5), 5)


def test_closing_a_subscription_wakes_who_waits_in_it() -> None:
    store = WeightStore()
    with store.subscribe() as subscription:
        threading.Timer(0.02, subscription.close).start()
        with pytest.raises(echoic.errors.ClosedError, match="subscription is closed"):
            subscription.wait(timeout=PATIENCE)


def test_a_version_alone_has_no_tree() -> None:
    store = WeightStore()
    subscription = store.subscribe()
    store.publish_version(9)
    publication = subscription.wait(timeout=0)
    assert (publication.version, publication.tree, publication.nbytes) == (9, None, 0)


def test_what_can_be_read_as_an_array_can_be_published() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.full(3, 2.0, np.float32)

    store = WeightStore()
    store.publish({"t": Tensor(), "n": 5, "big_endian": np.ones(2, ">f4")}, 1)
    got = store.latest().tree  # type: ignore[union-attr]
    assert (got["t"] == 2).all()
    assert got["n"] == 5
    assert (got["big_endian"] == 1).all()
    with pytest.raises(echoic.errors.SpecError, match="no leaves"):
        store.publish({}, 2)
    with pytest.raises(echoic.errors.SpecError, match="object arrays"):
        store.publish({"o": np.array([object()])}, 2)


def test_bfloat16_is_kept() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    store = WeightStore()
    store.publish({"w": np.arange(4, dtype=ml_dtypes.bfloat16)}, 1)
    array = store.latest().tree["w"]  # type: ignore[union-attr]
    assert array.dtype == ml_dtypes.bfloat16
    assert array.astype(np.float32).tolist() == [0, 1, 2, 3]


def test_tensors_of_torch_are_published_with_gradients_and_in_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    store = WeightStore()
    module = torch.nn.Linear(3, 2)
    store.publish({"state": module.state_dict(), "parameters": list(module.parameters())}, 1)
    got = store.latest().tree  # type: ignore[union-attr]
    assert np.array_equal(got["parameters"][0], module.weight.detach().numpy())
    tied = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    rows = torch.arange(6.0).reshape(2, 3).T
    store.publish({"w": tied, "tied": tied, "rows": rows}, 2)
    got = store.latest().tree  # type: ignore[union-attr]
    assert [str(got[name].dtype) for name in ("w", "tied")] == ["bfloat16", "bfloat16"]
    assert got["rows"].tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(echoic.errors.SpecError, match="leaf `there`"):
        store.publish({"there": torch.ones(3, device="meta")}, 3)


def test_a_server_needs_something_to_serve() -> None:
    with pytest.raises(TypeError, match="at least one store"):
        echoic.Server()
    with pytest.raises(ValueError, match="at least 2"):
        WeightStore(capacity=1)


def test_numbers_are_among_those_of_the_server() -> None:
    store = WeightStore()
    with echoic.Server(store) as server:
        subscription = store.subscribe()
        store.publish(tree(1), 1)
        store.publish_version(2)
        metrics = server.metrics()
        assert metrics["weights_version"] == 2
        assert metrics["weights_publications_total"] == 2
        assert metrics["weights_versions_only_total"] == 1
        assert metrics["weights_subscribers"] == 1
        assert metrics["weights_lag_publications"] == 2
        subscription.latest()
        assert server.metrics()["weights_lag_publications"] == 0
    assert store.closed


def test_what_no_worker_could_read_is_refused_without_a_server_too() -> None:
    store = WeightStore()
    store.publish(tree(1), 1)
    with pytest.raises(echoic.errors.SpecError, match="structure of a tree"):
        store.publish({"x" * (17 << 20): np.float32(0)}, 2)
    check(store.latest())
    metrics = store.metrics()
    assert (metrics["version"], metrics["held_publications"]) == (1, 1)
    store.publish([np.float32(0)] * 1000, 2)
    assert store.version == 2
