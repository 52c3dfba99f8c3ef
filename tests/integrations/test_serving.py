"""Weights that are pushed into inference servers: a real store, stubs of the servers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic import Server, connect
from echoic.errors import DisconnectedError, ServingError, SpecError, WaitTimeoutError
from echoic.integrations import serving
from echoic.integrations.serving import SglangServer, VllmServer, WeightPusher
from echoic.weights import WeightStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from serving_stub import InferenceServer

pytest.importorskip("safetensors")
from serving_stub import StubSglang, StubVllm

UPDATE = {
    VllmServer: ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version"],
    SglangServer: ["/pause_generation", "/update_weights_from_disk", "/flush_cache"],
}
RESUME = {VllmServer: "/resume", SglangServer: "/continue_generation"}


def policy(value: float) -> dict[str, Any]:
    return {
        "embed": np.full((3, 2), 7, np.float32),
        "layer": {"w": np.full((2, 2), value, np.float16), "b": np.full((), value, np.float32)},
    }


@pytest.fixture(params=[(StubVllm, VllmServer), (StubSglang, SglangServer)], ids=["vllm", "sglang"])
def kinds(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def stub(kinds: Any) -> Iterator[InferenceServer]:
    made = kinds[0]()
    yield made
    made.close()
    assert made.mistakes == []


@pytest.fixture
def server(kinds: Any, stub: InferenceServer) -> Any:
    return kinds[1](stub.url, token="secret", timeout=30)


@pytest.fixture
def store() -> Iterator[WeightStore]:
    with WeightStore() as store:
        yield store


def folders(pusher: WeightPusher) -> list[str]:
    return sorted(path.name for path in pusher._root.iterdir())


def test_each_version_is_loaded_while_the_server_stands_still(
    stub: InferenceServer, server: Any, tmp_path: Path
) -> None:
    assert server.version() is None
    reported: list[int] = []
    with (
        WeightStore() as store,
        Server(store, listen=f"unix://{tmp_path}/learner.sock") as learner,
        connect(learner.address).weights() as weights,
        WeightPusher(
            weights, server, directory=tmp_path, rename=rename, on_version=reported.append
        ) as pusher,
    ):
        assert (pusher.version, pusher.model) == (None, None)
        for version in (1, 2, 3):
            store.publish(policy(version), version=version)
            pusher.wait(version, timeout=30)
            assert pusher.version == server.version() == version
        assert folders(pusher) == ["3-v3"]
    assert reported == [1, 2, 3]
    assert sorted(stub.weights) == ["model.embed", "model.layer.w"]
    np.testing.assert_array_equal(stub.weights["model.layer.w"], policy(3)["layer"]["w"])
    assert not stub.is_paused
    steps = [call for call in stub.calls if "info" not in call]
    assert steps == [*UPDATE[type(server)], RESUME[type(server)]] * 3
    assert [path.name for path in tmp_path.iterdir() if "weights" in path.name] == []


def rename(name: str) -> str | None:
    return None if name == "layer.b" else f"model.{name}"


def test_a_server_that_is_behind_skips_versions(
    stub: InferenceServer, server: Any, store: WeightStore
) -> None:
    stub.gate.clear()
    with WeightPusher(store, server) as pusher:
        for version in range(1, 6):
            # The store has memory for three, and no update holds any.
            store.publish(policy(version), version=version, timeout=30)
        with pytest.raises(WaitTimeoutError, match=r"for version 5; servers have \[None\]"):
            pusher.wait(5, timeout=0.01)
        stub.gate.set()
        pusher.wait(5, timeout=30)
    assert 1 <= len(stub.loaded) <= 2
    np.testing.assert_array_equal(stub.weights["layer.b"], np.float32(5))


def test_a_server_is_resumed_after_a_failure(
    stub: InferenceServer, server: Any, store: WeightStore
) -> None:
    update = UPDATE[type(server)][1]
    stub.faults[update] = [500]
    store.publish(policy(1), version=1)
    with WeightPusher(store, server) as pusher:
        with pytest.raises(
            ServingError, match=rf"{update}: expected status 200, got 500: .*memory"
        ):
            pusher.wait(1, timeout=30)
        with pytest.raises(ServingError):
            pusher.run()
    assert stub.calls == [UPDATE[type(server)][0], update, RESUME[type(server)]]
    assert not stub.is_paused


def test_a_server_that_is_away_is_tried_again(
    stub: InferenceServer, server: Any, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_PAUSE", 0.01)
    first = UPDATE[type(server)][0]
    stub.faults[first] = [503, 502]
    store.publish(policy(1), version=1)
    with WeightPusher(store, server) as pusher:
        pusher.wait(1, timeout=30)
    stub.faults[first] = [503] * 1000
    store.publish(policy(2), version=2)
    with (
        WeightPusher(store, server, patience=0.05) as pusher,
        pytest.raises(DisconnectedError, match="answered 503"),
    ):
        pusher.wait(2, timeout=30)


def test_adapters_have_the_version_in_their_name(
    stub: InferenceServer, server: Any, store: WeightStore
) -> None:
    config = {"r": 8, "lora_alpha": 16, "target_modules": {"q_proj", "v_proj"}}
    name = "base_model.model.q_proj.lora_A.weight"
    with WeightPusher(store, server, adapter=config, name="math") as pusher:
        for version in (1, 2, 3):
            store.publish({name: np.full((8, 4), version, np.float32)}, version=version)
            pusher.wait(version, timeout=30)
            assert pusher.model == f"math-v{version}"
            assert server.version("math") == version
        # Those that are loaded may be read again.
        assert folders(pusher) == ["2-v2", "3-v3"]
    assert sorted(stub.adapters) == ["math-v2", "math-v3"]
    np.testing.assert_array_equal(stub.adapters["math-v3"][name], np.full((8, 4), 3))
    assert not {*UPDATE[type(server)]} & {*stub.calls}


def test_only_tensors_that_changed_are_written_if_the_server_has_the_others(
    store: WeightStore,
) -> None:
    stub = StubSglang()
    server = SglangServer(stub.url, token="secret")
    with WeightPusher(store, server, changes=True) as pusher:
        store.publish(policy(1), version=1)
        pusher.wait(1, timeout=30)
        store.publish(policy(2), version=2)
        pusher.wait(2, timeout=30)
        # It is started again: what it has is not what was pushed.
        stub.weights, stub.reported = {}, "default"
        store.publish(policy(3), version=3)
        pusher.wait(3, timeout=30)
        store.publish(policy(3), version=4)
        pusher.wait(4, timeout=30)
    assert stub.loaded == [3, 2, 3, 1]
    assert sorted(stub.weights) == ["embed", "layer.b", "layer.w"]
    np.testing.assert_array_equal(stub.weights["layer.b"], np.float32(3))
    stub.close()
    assert stub.mistakes == []
    with pytest.raises(SpecError, match="vLLM loads all tensors"):
        WeightPusher(store, VllmServer("http://localhost:1"), changes=True)


def test_servers_go_their_own_pace(store: WeightStore) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    quick, slow = StubVllm(), StubSglang()
    slow.gate.clear()
    servers = [VllmServer(quick.url, token="secret"), SglangServer(slow.url, token="secret")]
    weights = {"w": np.arange(4).astype(ml_dtypes.bfloat16)}
    pusher = WeightPusher(store, servers).start()
    done = threading.Thread(target=pusher.run)
    done.start()
    store.publish(weights, version=1)
    while pusher.versions[0] != 1:
        threading.Event().wait(0.005)
    assert (pusher.versions, pusher.version) == ([1, None], None)
    slow.gate.set()
    pusher.wait(1, timeout=30)
    store.publish(weights, version=2)
    # What was published last is pushed before it ends.
    store.close()
    done.join(timeout=30)
    assert not done.is_alive()
    assert (quick.reported, slow.reported) == ("2", "2")
    for stub in (quick, slow):
        assert stub.weights["w"].astype(np.float32).tolist() == [0, 1, 2, 3]
        assert stub.mistakes == []
        stub.close()


@pytest.mark.parametrize(
    "answer",
    [
        [1],
        "x",
        {"data": 1, "weight_version": [1]},
        {"data": [1, {"id": "math-v1e9"}]},
        {"weight_version": float("inf")},
    ],
    ids=range(5),
)
def test_a_server_that_answers_something_else_reports_no_version(
    answer: Any, stub: InferenceServer, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub, "answer", lambda *_: answer)
    assert (server.version(), server.version("math")) == (None, None)


def test_pushing_without_safetensors_says_what_to_install(
    store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="pip install safetensors"):
        WeightPusher(store, VllmServer("http://localhost:1"))


def test_a_version_without_weights_can_not_be_pushed(store: WeightStore, tmp_path: Path) -> None:
    store.publish_version(4)
    with (
        WeightPusher(store, VllmServer("http://127.0.0.1:1")) as pusher,
        pytest.raises(SpecError, match="version 4 was published without weights"),
    ):
        pusher.wait(4, timeout=30)
    # What was never started has no folder.
    WeightPusher(store, VllmServer("http://127.0.0.1:1"), directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SpecError, match="expected at least one, got none"):
        WeightPusher(store, [])
    for url in ("gpu:8000", "http://gpu:port", "http://"):
        with pytest.raises(SpecError, match=f"one like 'http://host:8000', got '{url}'"):
            VllmServer(url)
