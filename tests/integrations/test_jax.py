"""Batches of all stores as arrays of JAX, which share memory with them and never change."""

from __future__ import annotations

import contextlib
import gc
import os
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.nightly
# Read when JAX looks for its devices.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
jax = pytest.importorskip("jax", reason="no jax here")

from echoic.integrations import jax as adapter
from jax import numpy as jnp
from jax.experimental import io_callback

EXAMPLE = {"obs": np.zeros(16, np.float32), "actions": np.int32(0), "rewards": np.float64(0)}


def rows(count: int, start: int = 0) -> dict[str, Any]:
    steps = np.arange(start, start + count)
    obs = np.repeat(steps[:, None], 16, axis=1).astype(np.float32)
    return {"obs": obs, "actions": steps.astype(np.int32), "rewards": steps / 2}


def is_whole(batch: Any, size: int = 8) -> None:
    assert all(isinstance(leaf, jax.Array) for leaf in batch.data.values())
    assert (batch["obs"].shape, batch["rewards"].dtype) == ((size, 16), jnp.float32)
    obs = np.asarray(batch["obs"])
    assert (obs == np.asarray(batch["actions"])[:, None]).all()
    assert (obs[:, 0] == np.asarray(batch["rewards"]) * 2).all()


@contextlib.contextmanager
def made(kind: str) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        if kind == "buffer":
            store: Any = echoic.ReplayBuffer(EXAMPLE, 500, seed=1)
        elif kind == "stream":
            store = stack.enter_context(echoic.Stream(EXAMPLE, batch_size=8, capacity=64))
        else:
            store = echoic.Table("t", EXAMPLE, capacity=500, seed=1)
        if kind == "tcp":
            server = stack.enter_context(echoic.Server(store, listen="tcp://127.0.0.1:0"))
            client = stack.enter_context(echoic.connect(server.address))
            store = client.table("t")
        store.extend(rows(32))
        if kind == "tcp":
            client.flush()
        yield store


@pytest.mark.parametrize("ahead", [False, True], ids=["cpu", "as a gpu"])
@pytest.mark.parametrize("kind", ["buffer", "table", "tcp", "stream"])
def test_every_store_gives_arrays(kind: str, ahead: bool, monkeypatch: Any) -> None:
    if ahead:
        monkeypatch.setattr(adapter, "_is_on_cpu", lambda device: False)
    with made(kind) as store, adapter.batches(store, None if kind == "stream" else 8) as batches:
        for _ in range(3):
            batch = next(batches)
            is_whole(batch)
        if kind != "stream":
            assert isinstance(batch.weights, jax.Array)
        if kind in ("table", "tcp"):
            assert isinstance(batch.keys, np.ndarray)
            assert batch.keys.dtype == np.uint64
            assert store.update_priorities(batch.keys, jnp.ones(8)) == 8
        if kind in ("table", "stream"):
            store.close()
            assert len(list(batches)) <= 2


def test_arrays_go_to_a_device_or_a_sharding() -> None:
    device = jax.devices()[-1]
    sharding = jax.sharding.SingleDeviceSharding(device)
    with made("buffer") as store:
        for where in (device, sharding):
            with adapter.batches(store, 8, device=where) as batches:
                batch = next(batches)
                is_whole(batch)
                assert batch["obs"].devices() == {device}
        with pytest.raises(ValueError, match="got a ReplayBuffer and n=None"):
            adapter.batches(store)
    with made("stream") as store, pytest.raises(ValueError, match="got a Stream and n=3"):
        adapter.batches(store, 3)


def test_the_default_device_is_that_of_the_caller(monkeypatch: Any) -> None:
    monkeypatch.setattr(adapter, "_is_on_cpu", lambda device: False)
    device = jax.devices()[-1]
    assert device != jax.devices()[0]
    with (
        made("buffer") as store,
        jax.default_device(device),
        adapter.batches(store, 8) as batches,
    ):
        obs = next(batches)["obs"]
        assert (obs.devices(), obs.committed) == ({device}, False)


@pytest.mark.parametrize("kind", ["buffer", "table"])
def test_arrays_that_are_held_never_change(kind: str) -> None:
    """They share the memory of the batch, which is not used again while they are there."""
    with made(kind) as store:
        arrays = store.sample(8)
        shared = arrays.as_jax()
        assert shared["obs"].unsafe_buffer_pointer() == arrays["obs"].ctypes.data
        del arrays
        held, expected = [shared["obs"]], [np.array(shared["obs"])]
        del shared
        for number, batch in zip(range(500), adapter.batches(store, 8), strict=False):
            if number % 10 == 0:
                held.append(batch["obs"])
                expected.append(np.array(batch["obs"]))
                store.extend(rows(1, start=32 + number))
        for array, copy in zip(held, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(array), copy)
        assert len({array.unsafe_buffer_pointer() for array in held}) == len(held)


def test_memory_is_used_again_when_the_last_array_is_gone() -> None:
    with made("buffer") as store:
        places = set()
        for _ in range(50):
            obs = store.sample(8).as_jax()["obs"]
            places.add(obs.unsafe_buffer_pointer())
            jax.block_until_ready(obs + 1)
            del obs
            gc.collect()
        assert len(places) < 10
    with made("stream") as stream:
        obs = stream.sample().as_jax()["obs"]
        copy = np.array(obs)
        for start in range(32, 72, 8):
            stream.extend(rows(8, start=start), timeout=1.0)
            stream.sample()
        np.testing.assert_array_equal(np.asarray(obs), copy)


def test_a_donated_array_does_not_write_into_the_batch() -> None:
    with made("buffer") as store:
        arrays = store.sample(8)
        before = arrays["obs"].copy()
        obs = arrays.as_jax()["obs"]
        jax.block_until_ready(jax.jit(lambda x: x * 2 + 1, donate_argnums=0)(obs))
        np.testing.assert_array_equal(arrays["obs"], before)


def test_a_learner_of_jax_learns() -> None:
    """The program of docs/guides/jax.md, with the chain of tests/test_stores.py."""
    example = {name: np.int32(0) for name in ("obs", "next_obs")}
    replay = echoic.ReplayBuffer({**example, "rewards": 0.0, "terminated": False}, 1000, seed=1)

    @jax.jit
    def update(values: Any, batch: Any) -> Any:
        target = batch["rewards"] + 0.9 * values[batch["next_obs"]] * ~batch["terminated"]
        error = target - values[batch["obs"]]
        return values.at[batch["obs"]].add(0.1 * error)

    values = jnp.zeros(5)
    for state in range(4):
        end = state == 3
        replay.add({"obs": state, "next_obs": state + 1, "rewards": float(end), "terminated": end})
    for step, batch in enumerate(adapter.batches(replay, 32)):
        values = update(values, batch.data)
        if step == 300:
            break
    np.testing.assert_allclose(values[:4], 0.9 ** np.arange(3, -1, -1), atol=0.02)


def test_why_there_is_no_buffer_inside_jit() -> None:
    """What docs/guides/jax.md says of callbacks: when JAX changes it, look at the page again."""
    calls: list[int] = []

    def add(version: Any) -> Any:
        calls.append(int(version))
        return np.uint32(version + 1)

    def step(version: Any) -> Any:
        result = jax.ShapeDtypeStruct((), jnp.uint32)
        return io_callback(add, result, version, ordered=True)

    with pytest.raises(ValueError, match="vmap"):
        jax.vmap(step)(jnp.zeros(2, jnp.uint32))
    state = step(jnp.uint32(0))
    # Nothing but our own check would see that an old state is used again.
    assert int(step(state)) == int(step(state)) == 2
    assert calls == [0, 1, 1]
