"""Copies to a device through blocks of memory that are used again, on a device of the CPU."""

from __future__ import annotations

import contextlib
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import _staging, tensors
from echoic._staging import BLOCKS, Staging

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")

from slow_link import SlowLink

EXAMPLE = {
    "obs": np.zeros(40, np.float32),
    "actions": np.int64(0),
    "rewards": np.float64(0),
    "terminated": np.bool_(False),
}


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowLink]:
    """A device, named cuda, with small blocks."""
    link = SlowLink()
    staging = Staging(link)
    monkeypatch.setattr(_staging, "BLOCK_BYTES", 16 << 10)
    monkeypatch.setattr(_staging, "_SMALL", 4 << 10)
    monkeypatch.setattr(tensors, "staging_of", lambda device: staging)
    yield link
    link.close()


def rows(count: int, start: int = 0) -> dict[str, Any]:
    steps = np.arange(start, start + count)
    obs = steps[:, None] + np.arange(40, dtype=np.float32)
    ends = steps % 3 == 0
    return {
        "obs": obs.astype(np.float32),
        "actions": steps,
        "rewards": -1.0 * steps,
        "terminated": ends,
    }


def is_whole(batch: Any, size: int) -> None:
    """That every row is one that was added."""
    steps = batch["actions"]
    assert (steps.dtype, len(batch)) == (torch.int64, size)
    assert torch.equal(batch["obs"], steps[:, None] + torch.arange(40.0))
    assert batch["rewards"].dtype == torch.float64
    assert torch.equal(batch["rewards"], -steps.double())
    assert torch.equal(batch["terminated"], steps % 3 == 0)
    assert torch.equal(batch.weights, torch.ones(size))


@pytest.mark.parametrize(("delay", "pause"), [(0.0, 0.0), (0.0005, 0.0), (0.0, 0.0005)])
@pytest.mark.parametrize("store", ["buffer", "table"])
def test_thousands_of_batches_come_whole_through_the_same_blocks(
    link: SlowLink, store: str, delay: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a link slower than its reader, and a reader slower than the link."""
    # So few that each is used again while copies are under way.
    monkeypatch.setattr(_staging, "BLOCKS", 2)
    link.delay = delay
    made: Any = echoic.ReplayBuffer(EXAMPLE, 500, seed=1)
    if store == "table":
        made = echoic.Table("t", EXAMPLE, capacity=500, seed=1)
    made.extend(rows(500))
    count = 2000 if store == "buffer" and not delay and not pause else 150
    # Of 70 rows `obs` is large, the others share a copy; of 20 all do.
    for size in (70, 20):
        with contextlib.closing(made.batches(size, device="cuda")) as batches:
            for number, batch in zip(range(count), batches, strict=False):
                is_whole(batch, size)
                if number % 50 == 0:
                    made.extend(rows(10, start=500 + number))
                if pause:
                    time.sleep(pause)
    assert len(link.blocks) <= 2
    assert all(len(block) == 16 << 10 for block in link.blocks)
    assert link.copies > 2 * count


def test_small_leaves_share_a_copy_and_large_ones_are_cut(link: SlowLink) -> None:
    staging = Staging(link)
    small = [torch.arange(10, dtype=torch.int32), torch.tensor(True), torch.zeros(0, 3)]
    copy = staging.copy(small)
    assert link.copies == 1
    for given, found in zip(small, staging.join(copy), strict=True):
        assert (found.dtype, found.shape) == (given.dtype, given.shape)
        assert torch.equal(found, given)
    assert link.joined == [1]
    large = torch.arange(10_000, dtype=torch.bfloat16).reshape(100, 100).T
    (found,) = staging.join(staging.copy([large]))
    assert torch.equal(found, large)
    assert link.copies == 1 + -(-20_000 // (16 << 10))
    many = [torch.full((3000,), n, dtype=torch.uint8) for n in range(20)]
    found = staging.join(staging.copy(many))
    assert [int(one.double().mean()) for one in found] == list(range(20))
    assert link.copies == 3 + 4
    assert staging.join(staging.copy([])) == []


def test_a_batch_may_change_when_its_copy_has_begun(link: SlowLink) -> None:
    link.delay = 0.02
    buffer = echoic.ReplayBuffer(EXAMPLE, 500, seed=1)
    buffer.extend(rows(500))
    batch = buffer.sample(20)
    with contextlib.closing(
        tensors.DeviceBatches(lambda _: buffer.sample(20, out=batch), "cuda", prefetch=3)
    ) as batches:
        for _ in range(20):
            is_whole(next(batches), 20)


def test_no_more_blocks_than_eight_are_made_however_slow_the_link_is(link: SlowLink) -> None:
    link.delay = 0.01
    staging = Staging(link)
    copies = [staging.copy([torch.full((100,), n)]) for n in range(3 * BLOCKS)]
    assert len(link.blocks) == staging.made == BLOCKS
    assert [int(staging.join(copy)[0][99]) for copy in copies] == list(range(3 * BLOCKS))
    # A link that keeps up needs one.
    link.delay = 0.0
    quick = SlowLink()
    staging = Staging(quick)
    for number in range(100):
        assert int(staging.join(staging.copy([torch.tensor(number)]))[0]) == number
    assert staging.made == 1
    quick.close()


def test_threads_share_the_blocks(link: SlowLink) -> None:
    link.delay = 0.0002
    staging = Staging(link)
    wrong: list[Any] = []

    def work(thread: int) -> None:
        for number in range(50):
            given = torch.full((2500,), thread * 1000 + number)
            (found,) = staging.join(staging.copy([given]))
            if not torch.equal(found, given):
                wrong.append((thread, number))

    threads = [threading.Thread(target=work, args=(one,)) for one in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert staging.made <= BLOCKS


def test_a_block_comes_back_when_a_copy_fails(link: SlowLink, monkeypatch: Any) -> None:
    staging = Staging(link)
    staging.join(staging.copy([torch.zeros(1)]))

    def fail(target: Any, source: Any) -> Any:
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(link, "copy", fail)
        for _ in range(2 * BLOCKS):
            with pytest.raises(RuntimeError, match="lost"):
                staging.copy([torch.zeros(1)])
    assert staging.made == 1
    assert staging.join(staging.copy([torch.ones(1)]))[0].tolist() == [1]
    # Also when waiting for its last copy fails: with no block left, threads would wait for ever.
    monkeypatch.setattr(_staging, "BLOCKS", 1)
    lost = SimpleNamespace(query=lambda: False, synchronize=lambda: fail(None, None))
    with monkeypatch.context() as patch:
        patch.setattr(link, "copy", lambda target, source: lost)
        staging.copy([torch.zeros(1)])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="lost"):
            staging.copy([torch.zeros(1)])


def test_batches_are_taken_while_their_copies_run(link: SlowLink, monkeypatch: Any) -> None:
    """No thread waits for a copy: what reads the batch does, on the device."""
    events: list[Any] = []
    monkeypatch.setattr(link, "join", lambda event, targets: events.append(event))
    link.gate.clear()
    buffer = echoic.ReplayBuffer(EXAMPLE, 500, seed=1)
    buffer.extend(rows(500))
    with contextlib.closing(buffer.batches(20, device="cuda")) as batches:
        both = next(batches), next(batches)
        assert all(batch["obs"].view(torch.uint8).unique().tolist() == [0xA5] for batch in both)
        link.gate.set()
        for batch, event in zip(both, events, strict=True):
            event.synchronize()
            is_whole(batch, 20)


def test_rollouts_are_copied_all_at_once(link: SlowLink) -> None:
    columns, fields = {"tokens": "int32", "logprobs": "float32"}, {"reward": "float32"}
    with echoic.RolloutTable("math", columns, fields, batch_groups=1) as math:
        tokens = np.arange(3, dtype=np.int32)
        given = {"tokens": tokens, "logprobs": tokens.astype(np.float32)}
        math.reserve().add(given, {"reward": 2.5})
        batch = math.sample(device="cuda")
        assert link.copies == 1
        assert (batch["tokens"].tolist(), batch["logprobs"].tolist()) == ([0, 1, 2], [0, 1, 2])
        assert (batch["reward"].tolist(), batch.positions.tolist()) == ([2.5], [0, 1, 2])


def test_copies_to_cuda_are_ordered_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fake of the parts of torch that need a GPU, which notes the order of the calls."""
    calls: list[str] = []

    def note(*names: str, result: Any = None) -> Any:
        return lambda *args, **options: (calls.extend(names), result)[1]

    empty = torch.empty

    def any_empty(size: int, *, dtype: Any, pin_memory: bool = False, device: Any = "cpu") -> Any:
        calls.append("page-locked" if pin_memory else f"memory of {device}")
        return empty(size, dtype=dtype)

    event = SimpleNamespace(query=lambda: True, synchronize=note("host waits"))
    cuda = SimpleNamespace(
        current_device=lambda: 1,
        Stream=lambda device: SimpleNamespace(record_event=note("event", result=event)),
        stream=lambda stream: contextlib.nullcontext(calls.append("side stream")),
        current_stream=lambda device: SimpleNamespace(wait_event=note("reader waits")),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "empty", any_empty)
    monkeypatch.setattr(torch.Tensor, "record_stream", note("reader keeps"))
    monkeypatch.setattr(_staging, "_stagings", {})
    buffer = echoic.ReplayBuffer(EXAMPLE, 500, seed=1)
    buffer.extend(rows(500))
    arrays = buffer.sample(20)
    is_whole(arrays.as_torch("cuda"), 20)
    target = ["side stream", "memory of cuda:1"]
    copied = ["side stream", "event", "reader waits", "reader keeps"]
    assert calls == [*target, "page-locked", *copied]
    calls.clear()
    is_whole(arrays.as_torch("cuda:1"), 20)
    assert calls == [*target, "host waits", *copied]
