"""Batches of all stores as tensors: on the CPU without a copy, elsewhere copied ahead."""

from __future__ import annotations

import contextlib
import gc
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import echoic
import ml_dtypes
import numpy as np
import pytest
from echoic.errors import SpecError
from echoic.integrations.torch import as_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch = pytest.importorskip("torch")

EXAMPLE = {"obs": np.zeros(3, np.float32), "actions": np.int64(0)}
ROWS = {"obs": np.arange(96, dtype=np.float32).reshape(32, 3), "actions": np.arange(32)}


def table(name: str = "replay") -> echoic.Table:
    return echoic.Table(name, EXAMPLE, capacity=100, seed=1)


@contextlib.contextmanager
def local(store: Any) -> Iterator[Any]:
    store.extend(ROWS)
    yield store, lambda device=None: store.sample(8, device=device)


@contextlib.contextmanager
def stream() -> Iterator[Any]:
    with echoic.Stream(EXAMPLE, batch_size=8, capacity=64) as store:
        store.extend(ROWS)
        yield store, lambda device=None: store.sample(1, device=device)


@contextlib.contextmanager
def remote(count: int) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(echoic.Server(table(), listen="tcp://127.0.0.1:0"))
            for _ in range(count)
        ]
        where: Any = [server.address for server in servers]
        client = stack.enter_context(echoic.connect(where if count > 1 else where[0]))
        store = client.table("replay")
        for _ in range(count):
            store.extend(ROWS)
        client.flush()
        yield store, lambda device=None: store.sample(8, device=device)


STORES: dict[str, Callable[[], Any]] = {
    "buffer": lambda: local(echoic.ReplayBuffer(EXAMPLE, 100, seed=1)),
    "priorities": lambda: local(echoic.PrioritizedReplayBuffer(EXAMPLE, 100, seed=1)),
    "table": lambda: local(table()),
    "stream": stream,
    "tcp": lambda: remote(1),
    "shards": lambda: remote(2),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    with STORES[request.param]() as made:
        yield made


def parts(batch: echoic.Batch) -> list[Any]:
    return [*batch.data.values(), *(x for x in (batch.keys, batch.weights) if x is not None)]


def is_right(batch: echoic.Batch) -> None:
    assert type(batch) is echoic.Batch
    assert (len(batch), batch["obs"].shape, batch["actions"].dtype) == (8, (8, 3), torch.int64)
    assert torch.equal(batch["obs"][:, 0], batch["actions"].float() * 3)
    assert all(isinstance(part, torch.Tensor) for part in parts(batch))


def test_every_store_gives_tensors(store: Any) -> None:
    store, sample = store
    arrays = sample()
    batch = sample("cpu")
    is_right(batch)
    assert (batch.keys is None, batch.weights is None) == (
        arrays.keys is None,
        arrays.weights is None,
    )
    assert type(batch.info) is type(arrays.info)
    same = arrays.as_torch()
    is_right(same)
    for array, tensor in zip(parts(arrays), parts(same), strict=True):
        assert tensor.data_ptr() == array.ctypes.data
    assert "obs: torch.float32[8, 3]" in repr(same)
    size = () if isinstance(store, echoic.Stream) else (8,)
    iterator = store.batches(*size, device=torch.device("cpu"))
    is_right(next(iterator))
    iterator.close()
    iterator = store.batches(*size, device="meta")
    assert all(part.is_meta for part in parts(next(iterator)))
    iterator.close()


def test_tensors_change_priorities() -> None:
    for store in (echoic.PrioritizedReplayBuffer(EXAMPLE, 100, seed=1), table()):
        store.extend(ROWS)
        batch = store.sample(8, device="cpu")
        errors = batch["obs"].sum(1).requires_grad_() + 1
        assert store.update_priorities(batch.keys, errors) == 8


def test_a_stream_keeps_the_memory_of_its_tensors_and_no_longer() -> None:
    with echoic.Stream(EXAMPLE, batch_size=8, capacity=64) as store:
        store.extend(ROWS)
        obs = store.sample(1, device="cpu")["obs"]
        copy = store.sample(1).as_torch("meta")
        expected = obs.clone()
        store.extend(ROWS)
        assert torch.equal(obs, expected)
        assert copy.info.batches_held == 1
        del obs
        gc.collect()
        info = store.sample(1).as_torch("meta").info
        assert info.batches_held == 0


def test_trees_ragged_leaves_and_bfloat16() -> None:
    example = {"a": (np.zeros(2, ml_dtypes.bfloat16), {"b": np.uint8(0)})}
    ones = {"a": (np.ones(2, ml_dtypes.bfloat16), {"b": np.uint8(7)})}
    nested = echoic.Table("nested", example, capacity=10)
    nested.add(ones)
    pair = nested.sample(1, device="cpu")["a"]
    assert (pair[0].dtype, pair[0].tolist()) == (torch.bfloat16, [[1.0, 1.0]])
    assert (pair[1]["b"].dtype, pair[1]["b"].tolist()) == (torch.uint8, [7])
    assert nested.items().as_torch().data is None
    # Tensors of a dtype that numpy lacks are as good as arrays of it.
    half = torch.full((2,), 3.0, dtype=torch.bfloat16)
    with echoic.Stream(half, batch_size=1) as store:
        store.add(half)
        assert store.sample(1, device="cpu").data.tolist() == [[3.0, 3.0]]
        with echoic.Server(store, listen="tcp://127.0.0.1:0") as server:
            with echoic.connect(server.address).stream(half) as remote:
                remote.add(half)
            assert store.sample(1, device="cpu").data.tolist() == [[3.0, 3.0]]
    loose = echoic.Table("loose", trajectories=echoic.AnyLength(np.float32(0)), capacity=10)
    writer = echoic.TrajectoryWriter([loose], num_keep_alive_refs=3)
    for step in range(3):
        writer.append(np.float32(step))
        writer.create_item("loose", 1.0, writer.history[-step - 1 :])
    writer.flush()
    ragged = loose.get(loose.items().keys).as_torch().data
    assert type(ragged) is echoic.Ragged
    assert sorted(row.tolist() for row in ragged) == [[0], [0, 1], [0, 1, 2]]


def test_a_batch_of_rollouts_has_tensors_for_its_tokens() -> None:
    columns, fields = {"tokens": "int32"}, {"reward": "float32"}
    with echoic.RolloutTable("math", columns, fields, batch_groups=2) as math:
        for length in (3, 2):
            math.reserve().add({"tokens": np.arange(length, dtype=np.int32)}, {"reward": length})
        with pytest.raises(RuntimeError, match="gpu"):
            math.sample(device="gpu")
        batch = math.sample(form="padded", lease=60, device="cpu")
        assert batch["tokens"].tolist() == [[0, 1, 2], [0, 1, 0]]
        assert (batch["tokens"].dtype, batch["reward"].tolist()) == (torch.int32, [3.0, 2.0])
        for values in (batch.versions, batch.positions, batch.is_token, batch.items_of_cells):
            assert (type(values), values.shape) == (torch.Tensor, (2, 3))
        assert batch.item(1)["tokens"].tolist() == [0, 1]
        assert type(batch.lengths) is np.ndarray
        meta = batch.as_torch("meta")
        assert meta["reward"].is_meta
        with meta:
            batch.ack()
        assert meta.is_over
        assert math.stats().acked == 2


def test_tensors_go_into_rollouts_and_come_out() -> None:
    columns: dict[str, Any] = {
        "tokens": "int32",
        "hidden": ("bfloat16", 3),
        "logprobs": "float32",
        "values": "bfloat16",
    }
    hidden = torch.arange(12, dtype=torch.bfloat16).reshape(4, 3) / 8
    given = {
        "tokens": torch.arange(4),
        "hidden": hidden,
        # Of a width that float32 has, and with a gradient.
        "logprobs": torch.arange(4, dtype=torch.bfloat16, requires_grad=True),
        "values": [0.5, 1, 1.5, 2],
    }
    fields: dict[str, Any] = {"reward": "float32", "score": "bfloat16"}
    with echoic.RolloutTable("t", columns, fields, batch_groups=1) as table:
        assert table.settings["columns"]["hidden"] == np.dtype((ml_dtypes.bfloat16, 3))
        for form in ({}, {"form": "padded"}, {"form": "packed", "width": 8}):
            reward = torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)
            table.reserve().add(given, {"reward": reward, "score": 0.25})
            arrays = table.sample(**form)
            batch = arrays.as_torch()
            (found,) = batch
            assert torch.equal(as_tensors(arrays.columns)["hidden"], batch["hidden"])
            assert batch["hidden"].shape == (*batch.shape, 3)
            assert batch["hidden"].dtype == batch["values"].dtype == torch.bfloat16
            assert torch.equal(found["hidden"], hidden)
            assert found["tokens"].dtype == torch.int32
            assert found["tokens"].tolist() == found["logprobs"].tolist() == [0, 1, 2, 3]
            assert found["values"].tolist() == [0.5, 1, 1.5, 2]
            assert (batch["reward"].tolist(), batch["score"].tolist()) == ([0.5], [0.25])
            assert len(batch.versions) == len(batch["tokens"])
        with pytest.raises(SpecError, match=r"fit int32, got 4294967296 at \[3\]"):
            table.reserve().extend(0, {**given, "tokens": torch.tensor([0, 0, 0, 1 << 32])})
        with pytest.raises(SpecError, match="'logprobs': expected dtype float32, got float64"):
            table.reserve().extend(0, {**given, "logprobs": torch.ones(4, dtype=torch.float64)})


def test_what_is_no_device_is_said_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replay = table()
    replay.extend(ROWS)
    with pytest.raises(RuntimeError, match="gpu"):
        replay.sample(8, device="gpu")
    for name, convert in (("torch", lambda: replay.sample(8, device="cpu")), ("jax", None)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=f"pip install {name}"):
            (convert or replay.items().as_jax)()
    assert replay.stats().samples == 0
    monkeypatch.undo()
    buffer = echoic.ReplayBuffer(EXAMPLE, 100)
    with pytest.raises(ValueError, match="out"):
        buffer.sample(8, out={}, device="cpu")


def test_jax_gets_its_arrays_and_keys_keep_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = SimpleNamespace(device_put=lambda arrays, device: [("jax", one) for one in arrays])
    monkeypatch.setitem(sys.modules, "jax", jax)
    replay = table()
    replay.extend(ROWS)
    arrays = replay.sample(8)
    batch = arrays.as_jax()
    assert batch["obs"][0] == batch.weights[0] == "jax"
    assert batch["obs"][1] is arrays["obs"]
    assert batch.keys is arrays.keys
