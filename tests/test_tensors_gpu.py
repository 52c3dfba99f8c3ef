"""Batches on a real GPU; what they go through is tested without one in test_staging.py."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import echoic
import numpy as np
import pytest
from echoic import tensors
from echoic._staging import BLOCKS, staging_of
from echoic.buffers import DeviceReplayBuffer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")

EXAMPLE = {
    "obs": np.zeros((84, 84), np.uint8),
    "actions": np.int64(0),
    "rewards": np.float32(0),
    "terminated": np.bool_(False),
}


def rows(count: int, start: int = 0) -> dict[str, Any]:
    steps = np.arange(start, start + count)
    obs = np.broadcast_to((steps % 251).astype(np.uint8)[:, None, None], (count, 84, 84))
    rewards, ends = steps.astype(np.float32), steps % 3 == 0
    return {"obs": np.array(obs), "actions": steps, "rewards": rewards, "terminated": ends}


def mistakes(batch: Any) -> Any:
    """How many values of a batch are wrong, as a number on the GPU, so that nothing waits."""
    steps = batch["actions"]
    wrong = (batch["obs"] != (steps % 251)[:, None, None]).sum()
    wrong += (batch["rewards"] != steps).sum() + (batch["terminated"] != (steps % 3 == 0)).sum()
    return wrong + (batch.weights != 1).sum()


def busy(milliseconds: float) -> None:
    """Let the GPU's current stream do nothing for a while."""
    torch.cuda._sleep(int(milliseconds * 1_500_000))


def store(kind: str) -> Any:
    if kind == "table":
        made: Any = echoic.Table("t", EXAMPLE, capacity=2000, seed=1)
    else:
        made = echoic.ReplayBuffer(EXAMPLE, 2000, seed=1)
    made.extend(rows(2000))
    return made


@pytest.mark.parametrize("pace", ["fast", "slow host", "slow gpu"])
@pytest.mark.parametrize("kind", ["buffer", "table"])
@pytest.mark.parametrize("size", [4, 256])
def test_thousands_of_batches_come_whole(kind: str, size: int, pace: str) -> None:
    """Of 4 rows all fields share a copy; of 256 `obs` is a tensor of its own."""
    count = 3000 if pace == "fast" and size == 4 else 300
    made, total = store(kind), torch.zeros((), dtype=torch.int64, device="cuda")
    with contextlib.closing(made.batches(size, device="cuda")) as batches:
        for number, batch in zip(range(count), batches, strict=False):
            if pace == "slow gpu":
                busy(1)
            total += mistakes(batch)
            del batch
            if pace == "slow host":
                time.sleep(0.002)
            if number % 20 == 0:
                made.extend(rows(50, start=2000 + number))
    assert int(total) == 0


def test_neither_staging_nor_the_gpu_gets_more_memory() -> None:
    made, used = store("buffer"), []
    with contextlib.closing(made.batches(256, device="cuda")) as batches:
        for number, batch in zip(range(600), batches, strict=False):
            mistakes(batch)
            del batch
            if number in (100, 599):
                torch.cuda.synchronize()
                used.append(torch.cuda.memory_reserved())
    assert staging_of(torch.device("cuda")).made <= BLOCKS
    assert used[1] <= used[0] * 1.1


def test_memory_is_not_used_again_before_its_reader_is_done() -> None:
    """A batch is dropped while work that reads it is queued, on a stream of the caller's."""
    made = store("buffer")
    mine = torch.cuda.Stream()
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    mine.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(mine), contextlib.closing(made.batches(256, device="cuda")) as batches:
        for _ in range(100):
            batch = next(batches)
            busy(2)
            total += mistakes(batch)
            del batch
    mine.synchronize()
    assert int(total) == 0


def test_as_torch_may_be_called_on_any_stream_and_its_batch_changed() -> None:
    made = store("buffer")
    arrays = made.sample(256)
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for number in range(50):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            batch = arrays.as_torch("cuda")
            made.sample(256, out=arrays, seed=number)
            total += mistakes(batch)
        torch.cuda.current_stream().wait_stream(stream)
    assert int(total) == 0
    again = arrays.as_torch("cuda").as_torch("cuda")
    assert int(mistakes(again)) == 0


def test_the_host_waits_for_no_copy() -> None:
    """Batches are taken while the GPU is busy for longer than that takes."""
    made = store("buffer")
    with contextlib.closing(made.batches(256, device="cuda")) as batches:
        # Takes the memory that will be needed.
        held = [next(batches) for _ in range(14)]
        for batch in held:
            mistakes(batch)
        del held, batch
        torch.cuda.synchronize()
        busy(500)
        start = time.perf_counter()
        wrong = [mistakes(next(batches)) for _ in range(10)]
        taken = time.perf_counter() - start
        assert not torch.cuda.current_stream().query()
    assert sum(map(int, wrong)) == 0
    assert taken < 0.25


def test_copies_run_beside_the_work_of_the_learner() -> None:
    """Steps of 3 ms on batches whose copy takes less take as long as without copies."""
    made = store("buffer")

    def steps(count: int, batches: Any) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            if batches is not None:
                next(batches)
            busy(3)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    with contextlib.closing(made.batches(256, device="cuda")) as batches:
        steps(20, batches)
        bare = min(steps(100, None) for _ in range(3))
        both = min(steps(100, batches) for _ in range(3))
    assert both < 1.15 * bare


def test_a_stream_and_rollouts_reach_the_gpu() -> None:
    with echoic.Stream(EXAMPLE, batch_size=16, capacity=64) as stream:
        batches, wrong = stream.batches(device="cuda"), 0
        for start in range(0, 1600, 16):
            stream.extend(rows(16, start=start))
            batch = next(batches)
            wrong += int((batch["rewards"] != batch["actions"]).sum())
        batches.close()
        assert wrong == 0
    with echoic.RolloutTable("m", {"tokens": "int32"}, {"reward": "float32"}) as math:
        for _ in range(math.settings["batch_groups"]):
            math.reserve().add({"tokens": np.arange(5, dtype=np.int32)}, {"reward": 2.5})
        batch = math.sample(device="cuda")
        assert batch["tokens"].is_cuda
        assert batch["reward"].unique().tolist() == [2.5]


def test_a_buffer_on_the_gpu() -> None:
    buffer = DeviceReplayBuffer(EXAMPLE, 3000, device="cuda", seed=1)
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(2)]
    for number in range(200):
        for row in zip(*rows(5, start=number * 50).values(), strict=True):
            buffer.add(dict(zip(EXAMPLE, row, strict=True)))
        many = rows(45, start=number * 50 + 5)
        if number % 2:
            many = {name: torch.from_numpy(array).cuda() for name, array in many.items()}
        buffer.extend(many)
        with torch.cuda.stream(streams[number % 2]):
            batch = buffer.sample(64)
            assert batch["obs"].is_cuda
            found = mistakes(batch)
        torch.cuda.current_stream().wait_stream(streams[number % 2])
        total += found
    assert int(total) == 0
    assert len(buffer) == 3000
    other = DeviceReplayBuffer(EXAMPLE, 3000, device="cuda", seed=2)
    other.load_state_dict(buffer.state_dict())
    assert torch.equal(buffer.sample(50)["actions"], other.sample(50)["actions"])
    assert torch.equal(buffer.sample(50, seed=3)["obs"], buffer.sample(50, seed=3)["obs"])
    with pytest.raises(MemoryError, match="do not fit on cuda"):
        DeviceReplayBuffer(EXAMPLE, 1 << 40, device="cuda")


def test_the_device_of_the_caller_is_that_of_the_thread() -> None:
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(last):
        batches = tensors.DeviceBatches(lambda _: store("buffer").sample(4), "cuda", prefetch=1)
    with contextlib.closing(batches):
        assert next(batches)["obs"].device.index == last
