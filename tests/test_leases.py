"""Batches are leases: their memory is theirs until the last view is gone, whatever happens."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest

pytestmark = pytest.mark.timeout(60)

MakeStream = Callable[..., echoic.Stream]


def fill(stream: echoic.Stream, value: int, rows: int) -> None:
    stream.extend(np.full(rows, value), timeout=5)


@pytest.mark.parametrize("ending", ["close", "del", "close and del"])
def test_arrays_outlive_their_stream(ending: str) -> None:
    stream = echoic.Stream(np.zeros(1000, np.int64), batch_size=8)
    stream.extend(np.arange(8000).reshape(8, 1000))
    batch = stream.sample().data
    if "close" in ending:
        stream.close()
    if "del" in ending:
        del stream
    gc.collect()
    # Memory that was given back would be handed out again here.
    others = [np.full((8, 1000), -1) for _ in range(16)]
    np.testing.assert_array_equal(batch, np.arange(8000).reshape(8, 1000))
    assert len(others) == 16


def test_a_stream_is_freed_while_its_batches_live() -> None:
    stream = echoic.Stream(np.int64(0), batch_size=1)
    stream.add(7)
    batch = stream.sample().data
    alive = weakref.ref(stream)
    del stream
    gc.collect()
    assert alive() is None
    assert batch.tolist() == [7]


def test_a_kept_batch_never_changes_while_producers_go_on(
    counter_stream: MakeStream, background: Any
) -> None:
    stream = counter_stream(batch_size=64, capacity=256)
    fill(stream, -1, 64)
    kept = stream.sample().data

    def produce() -> None:
        for lap in range(500):
            fill(stream, lap, 64)
        stream.close()

    produced = background.start(produce)
    laps = 0
    for sample in stream.batches():
        assert (sample.data == laps).all()
        assert (kept == -1).all()
        laps += 1
    produced()
    assert laps == 500


@pytest.mark.parametrize(
    "view",
    [
        lambda leaf: leaf,
        lambda leaf: leaf[1:],
        lambda leaf: leaf[1:].reshape(-1, 1)[:2].T,
        memoryview,
        lambda leaf: np.frombuffer(leaf, np.uint8),
        np.from_dlpack,
        lambda leaf: np.from_dlpack(leaf)[1:],
        lambda leaf: leaf.__dlpack__(),
        iter,
        lambda leaf: leaf.view(np.uint64)[::-1],
    ],
    ids=[
        "array",
        "slice",
        "view of views",
        "memoryview",
        "frombuffer",
        "dlpack",
        "slice of dlpack",
        "capsule",
        "iterator",
        "other dtype",
    ],
)
def test_any_kind_of_view_keeps_the_lease(
    counter_stream: MakeStream, view: Callable[[np.ndarray], Any]
) -> None:
    stream = counter_stream(batch_size=4, capacity=8)
    stream.extend(np.arange(4))
    kept = view(stream.sample().data)
    gc.collect()
    assert stream.stats().batches_held == 1
    for lap in range(5):
        fill(stream, lap, 4)
        assert stream.sample().data.tolist() == [lap] * 4
    assert stream.stats().batches_held == 1
    del kept
    gc.collect()
    assert stream.stats().batches_held == 0


def test_one_leaf_keeps_the_whole_batch(make_stream: MakeStream) -> None:
    stream = make_stream({"a": 0, "b": 0.0}, batch_size=1)
    stream.add({"a": 1, "b": 2.0})
    batch = stream.sample().data
    assert stream.stats().batches_held == 1
    del batch["a"]
    assert stream.stats().batches_held == 1
    assert batch["b"].tolist() == [2.0]
    del batch["b"]
    assert stream.stats().batches_held == 0


def test_a_scalar_taken_from_a_batch_is_a_copy(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1)
    stream.add(3)
    scalar = stream.sample().data[0]
    assert stream.stats().batches_held == 0
    assert scalar == 3


def test_the_sample_object_holds_its_batch_too(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1)
    stream.add(3)
    sample = stream.sample()
    assert sample.data is sample.data
    assert stream.stats().batches_held == 1
    del sample
    assert stream.stats().batches_held == 0


def test_batches_held_counts_batches_not_arrays(make_stream: MakeStream) -> None:
    stream = make_stream({"a": 0, "b": 0.0}, batch_size=1, capacity=4)
    held = []
    for count in range(1, 4):
        stream.add({"a": 1, "b": 2.0})
        held.append(stream.sample())
        assert stream.stats().batches_held == count
    while held:
        held.pop(1 if len(held) > 1 else 0)
        assert stream.stats().batches_held == len(held)


def test_a_remainder_is_a_lease_too(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=4)
    stream.extend(np.arange(3))
    stream.close()
    sample = stream.rest()
    assert sample is not None
    rows = sample.data[1:]
    del sample
    assert stream.stats().batches_held == 1
    del stream
    gc.collect()
    assert rows.tolist() == [1, 2]


def test_batches_are_writable_and_writing_stays_in_the_batch(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=4, capacity=12)
    stream.extend(np.arange(8))
    first, second = stream.sample().data, stream.sample().data
    assert first.flags.writeable
    first[...] = -1
    assert second.tolist() == [4, 5, 6, 7]
    del first
    fill(stream, 9, 4)
    assert stream.sample().data.tolist() == [9] * 4


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_every_leaf_of_every_batch_is_aligned_to_a_cache_line(
    make_stream: MakeStream, batch_size: int
) -> None:
    example = {
        "flag": True,
        "byte": np.zeros(3, np.uint8),
        "text": np.zeros((), "S5"),
        "nothing": np.zeros((0, 3), np.float32),
        "obs": np.zeros((7, 5), np.float32),
        "reward": 0.0,
    }
    stream = make_stream(example, batch_size, capacity=3 * batch_size)
    kept = []
    for _ in range(9):
        for _ in range(batch_size):
            stream.add(example)
        batch = stream.sample().data
        assert batch.keys() == example.keys()
        for name, leaf in batch.items():
            assert leaf.ctypes.data % 64 == 0, name
            assert leaf.flags.c_contiguous
            assert leaf.flags.aligned
        if len(kept) < 1:
            kept.append(batch)


def test_leaves_and_batches_do_not_overlap(make_stream: MakeStream) -> None:
    example = {"a": np.zeros(3, np.uint8), "b": np.zeros(5, np.uint8)}
    stream = make_stream(example, batch_size=3, capacity=9)
    held = []
    for _ in range(3):
        stream.extend({"a": np.zeros((3, 3), np.uint8), "b": np.zeros((3, 5), np.uint8)})
        held.append(stream.sample())
    spans = sorted(
        (leaf.ctypes.data, leaf.ctypes.data + leaf.nbytes)
        for sample in held
        for leaf in sample.data.values()
    )
    assert len(spans) == 6
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start


def test_views_dropped_in_other_threads_give_their_memory_back(
    counter_stream: MakeStream, background: Any
) -> None:
    stream = counter_stream(batch_size=4, capacity=12)
    done = threading.Event()
    handed: list[Any] = []

    def drop() -> None:
        while not done.is_set() or handed:
            if handed:
                handed.pop()

    droppers = [background.start(drop) for _ in range(2)]
    for lap in range(500):
        fill(stream, lap, 4)
        sample = stream.sample(timeout=5)
        assert sample.data.tolist() == [lap] * 4
        handed.append(sample)
        del sample
    done.set()
    for dropper in droppers:
        dropper()
    assert stream.stats().batches_held == 0
    assert stream.stats().hold_time.count == 500


# The warning about batches that are held.


def hold_all_and_submit(stream: echoic.Stream, times: int = 1) -> None:
    for _ in range(times):
        stream.extend(np.arange(2))
        held = [stream.sample(), stream.sample()]
        with pytest.raises(echoic.errors.WaitTimeoutError):
            stream.add(2, timeout=0.3)
        held.clear()


def test_one_warning_says_that_held_batches_keep_producers_waiting(
    counter_stream: MakeStream,
) -> None:
    stream = counter_stream(batch_size=1, capacity=2, held_warning_after=0.05)
    with pytest.warns(echoic.errors.HeldBatchesWarning, match="2 of 2 batches are held") as caught:
        hold_all_and_submit(stream, times=2)
    assert len(caught) == 1


def test_the_warning_points_at_the_submit_that_waits(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1, capacity=2, held_warning_after=0.05)
    stream.extend(np.arange(2))
    held = [stream.sample(), stream.sample()]
    with (
        pytest.warns(echoic.errors.HeldBatchesWarning) as caught,
        pytest.raises(echoic.errors.WaitTimeoutError) as raised,
    ):
        stream.add(2, timeout=0.3)
    assert len(held) == 2
    assert (caught[0].filename, caught[0].lineno) == (__file__, raised.tb.tb_lineno)


def test_a_short_hold_is_worth_no_warning(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1, capacity=2, held_warning_after=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hold_all_and_submit(stream)


def test_batches_that_nobody_takes_are_not_called_held(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1, capacity=2, held_warning_after=0.0)
    stream.extend(np.arange(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(echoic.errors.WaitTimeoutError):
            stream.add(2, timeout=0.2)


def test_a_warning_made_an_error_ends_the_wait_and_stores_nothing(
    counter_stream: MakeStream,
) -> None:
    stream = counter_stream(batch_size=1, capacity=2, held_warning_after=0.0)
    stream.extend(np.arange(2))
    held = [stream.sample(), stream.sample()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(echoic.errors.HeldBatchesWarning):
            stream.add(2, timeout=5)
    assert stream.stats().inserted_total == 2
    del held
    stream.add(3, timeout=0)
    assert stream.sample(timeout=0).data.tolist() == [3]


# Processes that end.


def test_a_batch_used_after_its_stream_is_gone_does_not_crash(run_script: Any) -> None:
    done = run_script(
        "import gc, numpy as np, echoic\n"
        "kept = []\n"
        "for lap in range(20):\n"
        "    stream = echoic.Stream(np.zeros(1 << 16, np.float32), batch_size=4)\n"
        "    stream.extend(np.full((4, 1 << 16), lap, np.float32))\n"
        "    kept.append(stream.sample().data[1:])\n"
        "    stream.close()\n"
        "    del stream\n"
        "    gc.collect()\n"
        "print(sum(float(batch.mean()) for batch in kept))\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "190.0\n", "")


# At exit the interpreter kills daemon threads as soon as they ask for it. The object in `sys` is
# the last to go, so its pause keeps the dying interpreter around long enough for all of them.
EXIT = """
import os, sys, threading, time
import numpy as np
import echoic

class Last:
    def __del__(self, sleep=time.sleep, write=os.write):
        sleep(1.2)
        write(1, b"last")

sys.last = Last()
small = echoic.Stream(np.int64(0), batch_size=1, capacity=2)
full = echoic.Stream(np.int64(0), batch_size=1, capacity=2)
full.extend(np.arange(2))
big = echoic.Stream(np.zeros(1 << 17), batch_size=1, capacity=2)
value = np.zeros(1 << 17)
live = echoic.Stream(np.int64(0), batch_size=1, capacity=2)
live.add(1)
sys.kept = [live.sample(), live.stats()]

def poll():
    while True:
        try:
            small.sample(timeout=0.001)
        except echoic.errors.WaitTimeoutError:
            pass

def produce():
    while True:
        big.add(value)

def consume():
    for sample in big.batches():
        pass

def wait_for_room():
    full.add(2)

def wait_for_rows():
    full.extend(np.arange(100_000))

def wait_for_batch():
    small.sample()

for function in [{functions}]:
    threading.Thread(target=function, daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "functions",
    ["", "poll", "produce, consume", "wait_for_room, wait_for_rows", "wait_for_batch"],
    ids=["no threads", "polling", "copying", "producers waiting", "consumer waiting"],
)
def test_the_interpreter_exits_cleanly_with_live_batches_and_threads(
    run_script: Any, functions: str
) -> None:
    done = run_script(EXIT.replace("{functions}", functions))
    assert (done.returncode, done.stdout, done.stderr) == (0, "last", "")
