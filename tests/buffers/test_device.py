"""DeviceReplayBuffer: the last transitions, on a device; here on the CPU."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from echoic.buffers import DeviceReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from echoic.errors import ReplayError, SpecError
from numbered import transition, vectors
from test_replay import EXAMPLE as TREE
from test_replay import check_numbered, tree_obs

torch = pytest.importorskip("torch")


def arrays(batch: Any) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in batch.data.items()}


def make(capacity: int = 10, **options: Any) -> DeviceReplayBuffer:
    return DeviceReplayBuffer(vectors(3, 1), capacity, **{"seed": 0, **options})


def test_the_last_transitions_come_out_as_they_went_in(fill: Any) -> None:
    buffer = make()
    for count in range(1, 50):
        fill(buffer, [count])
        batch = buffer.sample(64)
        check_numbered(arrays(batch), range(max(1, count - 9), count + 1))
        assert torch.equal(batch.weights, torch.ones(64))
        assert (len(buffer), batch.keys, len(batch)) == (min(count, 10), None, 64)
    assert set(buffer.sample(1000)["rewards"].tolist()) == set(range(40, 50))
    assert buffer.stats().size == buffer.stats().capacity == buffer.capacity == 10
    assert buffer.nbytes == buffer.stats().memory_bytes == 10 * 34
    assert buffer.stats().seed == 0
    assert repr(buffer) == "DeviceReplayBuffer(size=10, capacity=10, device='cpu')"
    assert "DeviceReplayBuffer" in buffer._repr_html_()


def test_trees_of_any_dtype_stay_what_they_are() -> None:
    widths: Any = {f"u{bits}": np.dtype(f"uint{bits}").type(0) for bits in (8, 16, 32, 64)}
    buffer = DeviceReplayBuffer({**TREE, **widths}, 20, seed=3)
    for step in range(30):
        more = {name: int(np.iinfo(one).max) - step for name, one in widths.items()}
        values = (tree_obs(step), step, step, step % 7 == 0)
        buffer.add(transition(*values, next_obs=tree_obs(step + 1), log_prob=-step, **more))
    batch = buffer.sample(100)
    number = batch["actions"].numpy()
    assert set(number) == set(range(10, 30))
    assert batch["rewards"].dtype == torch.float64
    for side, shift in (("obs", 0), ("next_obs", 1)):
        assert type(batch[side]["joint"]) is tuple
        assert batch[side]["image"].dtype == torch.uint8
        assert (batch[side]["image"].numpy() == (number + shift)[:, None, None]).all()
        assert (batch[side]["joint"][0].numpy() == (number + shift)[:, None] / 2).all()
        assert (batch[side]["joint"][1].numpy() == -(number + shift)).all()
    assert (batch["log_prob"].numpy() == -number).all()
    assert (batch["terminated"].numpy() == (number % 7 == 0)).all()
    for name, one in widths.items():
        assert batch[name].tolist() == [int(np.iinfo(one).max) - step for step in number.tolist()]


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
@pytest.mark.parametrize("capacity", [7, 40, 1100])
def test_extend_is_many_times_add(capacity: int, kind: str) -> None:
    one, many = make(capacity), make(capacity)
    start = 0
    for size in (0, 3, 1, 60, 5, 0, 39, 1100, 8):
        steps = np.arange(start, start + size, dtype=np.float32)
        start += size
        obs = np.repeat(steps[:, None], 3, axis=1)
        flags = steps % 5 == 4
        rows = transition(obs, steps[:, None], steps, flags, ~flags, obs + 1)
        if kind == "tensors":
            rows = {name: torch.from_numpy(array) for name, array in rows.items()}
        many.extend(rows)
        for row in zip(*rows.values(), strict=True):
            one.add(transition(*row))
        assert len(one) == len(many) == min(start, capacity)
    for name, array in one.state_dict()["rows"].items():
        np.testing.assert_array_equal(array, many.state_dict()["rows"][name], err_msg=name)
    for seed in (5, None):
        assert torch.equal(one.sample(50, seed=seed)["obs"], many.sample(50, seed=seed)["obs"])


def test_lists_are_arrays_in_extend() -> None:
    buffer = DeviceReplayBuffer({"actions": 0, "rewards": 0.0}, 5000, seed=1)
    buffer.extend({"actions": [4, 5], "rewards": np.zeros(2)})
    buffer.extend({"actions": [7] * 3000, "rewards": np.zeros(3000)})
    assert len(buffer) == 3002
    found = buffer.state_dict()["rows"]["actions"]
    assert (found[:3].tolist(), len(found)) == ([4, 5, 7], 3002)
    with pytest.raises(SpecError, match="rewards"):
        buffer.extend({"actions": [1, 2, 3], "rewards": 0.0})
    assert len(buffer) == 3002


def test_a_seed_gives_one_batch_and_none_gives_another_each_time(fill: Any) -> None:
    one, other = make(100), make(100, seed=0)
    fill(one, range(100))
    fill(other, range(100))
    drawn = [one.sample(20)["rewards"].tolist() for _ in range(3)]
    assert drawn == [other.sample(20)["rewards"].tolist() for _ in range(3)]
    assert drawn[0] != drawn[1]
    for seed in (0, 2**64 - 1):
        assert torch.equal(one.sample(20, seed=seed)["obs"], one.sample(20, seed=seed)["obs"])
    found = torch.bincount(one.sample(100_000)["rewards"].long(), minlength=100)
    assert (abs(found - 1000) < 6 * 1000**0.5).all()


def test_a_batch_stays_what_it_was(fill: Any) -> None:
    buffer = make()
    fill(buffer, range(10))
    batch = buffer.sample(20)
    before = batch["obs"].clone()
    fill(buffer, range(10, 40))
    buffer.sample(20)
    assert torch.equal(batch["obs"], before)
    batches = buffer.batches(20, device="cpu")
    check_numbered(arrays(next(batches)), range(30, 40))
    assert next(buffer.batches(4, device="meta"))["obs"].is_meta
    buffer.clear()
    assert len(buffer) == 0
    with pytest.raises(ReplayError, match="empty"):
        buffer.sample(1)
    fill(buffer, [7])
    check_numbered(arrays(buffer.sample(3)), [7])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda b: b.add(transition(np.zeros(2), 0.0, 0.0, False, False, np.zeros(3))),
            SpecError,
            "obs",
        ),
        (lambda b: b.add({"obs": np.zeros(3)}), SpecError, "actions"),
        (lambda b: b.add(3), SpecError, "expected a dict"),
        (lambda b: b.extend({}), SpecError, "no value .* `obs`"),
        (lambda b: b.extend({"obs": torch.zeros(2, 3)}), SpecError, "no value .* `actions`"),
        (lambda b: b.extend(tensors(2, rewards=torch.zeros(3))), SpecError, r"rewards.*\[3\]"),
        (lambda b: b.extend(tensors(2, obs=torch.zeros(2, 4))), SpecError, r"obs.*\[2, 4\]"),
        (
            lambda b: b.extend(tensors(2, truncated=torch.zeros(2))),
            SpecError,
            r"truncated`: expected torch.bool\[2\], got torch.float32\[2\]",
        ),
        (lambda b: b.extend({**rows(3000), "rewards": ["x"] * 3000}), SpecError, "rewards"),
        (lambda b: b.sample(0), ReplayError, "at least 1, got 0"),
        (lambda b: b.sample(1, seed=-1), ReplayError, "seed.*got -1"),
        (lambda b: b.sample(1, seed="x"), ReplayError, "seed.*got 'x'"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    fill: Any, call: Any, error: Any, text: str
) -> None:
    buffer = make()
    fill(buffer, range(5))
    with pytest.raises(error, match=text):
        call(buffer)
    assert len(buffer) == 5
    check_numbered(arrays(buffer.sample(20)), range(5))


def rows(count: int) -> dict[str, Any]:
    obs = np.zeros((count, 3), np.float32)
    flags = np.zeros(count, bool)
    return transition(obs, obs[:, :1], obs[:, 0], flags, flags, obs)


def tensors(count: int, **changes: Any) -> dict[str, Any]:
    return {**{name: torch.from_numpy(array) for name, array in rows(count).items()}, **changes}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"capacity": 0}, ReplayError, "capacity must be at least 1, got 0"),
        ({"capacity": 1, "example": 3}, SpecError, "dict"),
        ({"capacity": 1, "example": {}}, SpecError, "no leaves"),
        ({"capacity": 1 << 50}, MemoryError, "34 bytes do not fit on cpu"),
        ({"capacity": 1, "device": "gpu"}, RuntimeError, "gpu"),
    ],
)
def test_a_buffer_that_can_not_be_is_refused(arguments: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        DeviceReplayBuffer(**{"example": vectors(3, 1), **arguments})


@pytest.mark.parametrize("way", ["dict", "file"])
def test_a_loaded_buffer_goes_on_as_the_other(fill: Any, way: str, tmp_path: Any) -> None:
    buffer, other, small = make(50), make(50, seed=9), make(10)
    fill(buffer, range(70))
    buffer.sample(3)
    fill(other, [1])
    for one in (other, small):
        if way == "dict":
            one.load_state_dict(buffer.state_dict())
        else:
            buffer.save(tmp_path / "buffer.npz")
            one.load(tmp_path / "buffer.npz")
    for _ in range(2):
        assert torch.equal(buffer.sample(40)["rewards"], other.sample(40)["rewards"])
    fill(buffer, [70, 71])
    fill(other, [70, 71])
    assert torch.equal(buffer.sample(40)["rewards"], other.sample(40)["rewards"])
    check_numbered(arrays(other.sample(500)), range(22, 72))
    assert set(small.sample(500)["rewards"].tolist()) == set(range(60, 70))


def test_what_a_buffer_of_the_host_saved_is_loaded(fill: Any) -> None:
    for kind in (ReplayBuffer, PrioritizedReplayBuffer):
        host = kind(vectors(3, 1), 50, seed=1)
        fill(host, range(70))
        one, other = make(50, seed=1), make(50, seed=2)
        for buffer in (one, other):
            buffer.load_state_dict(host.state_dict())
        check_numbered(arrays(one.sample(500, seed=1)), range(20, 70))
        assert torch.equal(one.sample(40)["obs"], other.sample(40)["obs"])
    state = host.state_dict()
    state["rows"]["obs"] = state["rows"]["obs"][:-1]
    with pytest.raises(ValueError, match="49"):
        one.load_state_dict(state)
    assert len(one) == 50


def test_what_a_full_device_does_not_take_waits_on(fill: Any, monkeypatch: Any) -> None:
    buffer = make(5000)
    for start in (0, 2000):
        fill(buffer, range(start, start + 1024))
        with monkeypatch.context() as patch:
            patch.setattr(buffer, "_convert", lambda rows: torch.empty(-1))
            for call in (buffer.sample, lambda _: fill(buffer, [5000]), buffer.sample):
                with pytest.raises(RuntimeError, match="negative"):
                    call(1)
    assert len(buffer) == 2048
    check_numbered(arrays(buffer.sample(50_000)), [*range(1024), *range(2000, 3024)])


def test_tensors_of_another_device_are_there_when_they_are_stored(monkeypatch: Any) -> None:
    """A copy that nothing waits for is read too early, or its source is changed too early."""
    to = torch.Tensor.to

    def late(tensor: Any, *args: Any, non_blocking: bool = False) -> Any:
        return to(tensor, *args) * (not non_blocking)

    buffer = DeviceReplayBuffer({"obs": 0.0}, 4)
    monkeypatch.setattr(torch.Tensor, "to", late)
    buffer.extend({"obs": torch.ones(4)})
    assert buffer.sample(9)["obs"].tolist() == [1.0] * 9


def test_each_stream_waits_for_the_one_before_it(monkeypatch: Any) -> None:
    calls: list[Any] = []

    class Stream:
        def wait_stream(self, other: Any) -> None:
            calls.append((self, other))

    maker, reader = Stream(), Stream()
    current = iter([maker, reader, reader, reader, maker, maker])
    monkeypatch.setattr(DeviceReplayBuffer, "_current_stream", lambda _: next(current))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: calls.append(stream))
    buffer = DeviceReplayBuffer({"obs": 0.0}, 4)
    # The stream that has the columns' memory may still work on what was there before.
    buffer.extend({"obs": torch.ones(4)})
    assert calls == [(reader, maker), reader]
    buffer.sample(1)
    assert calls == [(reader, maker), reader]
    buffer.sample(1)
    buffer.sample(1)
    assert calls == [(reader, maker), reader, (maker, reader), maker]


def test_threads_add_and_sample_at_once() -> None:
    buffer = make(500)
    buffer.extend(rows(500))
    failed: list[Any] = []

    def add(thread: int) -> None:
        for step in range(300):
            value = float(thread * 1000 + step)
            obs = np.full(3, value, np.float32)
            buffer.add(transition(obs, obs[:1] * 2, value, False, False, obs + 1))

    def sample() -> None:
        try:
            for _ in range(60):
                batch = buffer.sample(64)
                assert (batch["obs"] == batch["rewards"][:, None]).all()
        except AssertionError as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(one,)) for one in range(3)]
    threads += [threading.Thread(target=sample) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(set(buffer.state_dict()["rows"]["rewards"].tolist())) == 500


def test_spaces_make_one() -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    box = spaces.Box(-1, 1, (3,), np.float32)
    buffer = DeviceReplayBuffer.from_spaces(box, spaces.Discrete(2), 10, device="cpu")
    buffer.extend({**rows(4), "actions": np.arange(4)})
    assert buffer.sample(5)["actions"].dtype == torch.int64
