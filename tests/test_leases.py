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

MakeServer = Callable[..., echoic.Server]


def fill(server: echoic.Server, value: int, rows: int) -> None:
    server.extend(np.full(rows, value), timeout=5)


@pytest.mark.parametrize("ending", ["close", "del", "close and del"])
def test_arrays_outlive_their_server(ending: str) -> None:
    server = echoic.Server(np.zeros(1000, np.int64), batch_size=8)
    server.extend(np.arange(8000).reshape(8, 1000))
    batch = server.sample().data
    if "close" in ending:
        server.close()
    if "del" in ending:
        del server
    gc.collect()
    # Memory that was given back would be handed out again here.
    others = [np.full((8, 1000), -1) for _ in range(16)]
    np.testing.assert_array_equal(batch, np.arange(8000).reshape(8, 1000))
    assert len(others) == 16


def test_a_server_is_freed_while_its_batches_live() -> None:
    server = echoic.Server(np.int64(0), batch_size=1)
    server.add(7)
    batch = server.sample().data
    alive = weakref.ref(server)
    del server
    gc.collect()
    assert alive() is None
    assert batch.tolist() == [7]


def test_a_kept_batch_never_changes_while_producers_go_on(
    counter_server: MakeServer, background: Any
) -> None:
    server = counter_server(batch_size=64, capacity=256)
    fill(server, -1, 64)
    kept = server.sample().data

    def produce() -> None:
        for lap in range(500):
            fill(server, lap, 64)
        server.close()

    produced = background.start(produce)
    laps = 0
    for sample in server.batches():
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
    counter_server: MakeServer, view: Callable[[np.ndarray], Any]
) -> None:
    server = counter_server(batch_size=4, capacity=8)
    server.extend(np.arange(4))
    kept = view(server.sample().data)
    gc.collect()
    assert server.info.batches_held == 1
    for lap in range(5):
        fill(server, lap, 4)
        assert server.sample().data.tolist() == [lap] * 4
    assert server.info.batches_held == 1
    del kept
    gc.collect()
    assert server.info.batches_held == 0


def test_one_leaf_keeps_the_whole_batch(make_server: MakeServer) -> None:
    server = make_server({"a": 0, "b": 0.0}, batch_size=1)
    server.add({"a": 1, "b": 2.0})
    batch = server.sample().data
    assert server.info.batches_held == 1
    del batch["a"]
    assert server.info.batches_held == 1
    assert batch["b"].tolist() == [2.0]
    del batch["b"]
    assert server.info.batches_held == 0


def test_a_scalar_taken_from_a_batch_is_a_copy(counter_server: MakeServer) -> None:
    server = counter_server(batch_size=1)
    server.add(3)
    scalar = server.sample().data[0]
    assert server.info.batches_held == 0
    assert scalar == 3


def test_the_sample_object_holds_its_batch_too(counter_server: MakeServer) -> None:
    server = counter_server(batch_size=1)
    server.add(3)
    sample = server.sample()
    assert sample.data is sample.data
    assert server.info.batches_held == 1
    del sample
    assert server.info.batches_held == 0


def test_batches_held_counts_batches_not_arrays(make_server: MakeServer) -> None:
    server = make_server({"a": 0, "b": 0.0}, batch_size=1, capacity=4)
    held = []
    for count in range(1, 4):
        server.add({"a": 1, "b": 2.0})
        held.append(server.sample())
        assert server.info.batches_held == count
    while held:
        held.pop(1 if len(held) > 1 else 0)
        assert server.info.batches_held == len(held)


def test_a_remainder_is_a_lease_too(counter_server: MakeServer) -> None:
    server = counter_server(batch_size=4)
    server.extend(np.arange(3))
    server.close()
    sample = server.rest()
    assert sample is not None
    rows = sample.data[1:]
    del sample
    assert server.info.batches_held == 1
    del server
    gc.collect()
    assert rows.tolist() == [1, 2]


def test_batches_are_writable_and_writing_stays_in_the_batch(counter_server: MakeServer) -> None:
    server = counter_server(batch_size=4, capacity=12)
    server.extend(np.arange(8))
    first, second = server.sample().data, server.sample().data
    assert first.flags.writeable
    first[...] = -1
    assert second.tolist() == [4, 5, 6, 7]
    del first
    fill(server, 9, 4)
    assert server.sample().data.tolist() == [9] * 4


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_every_leaf_of_every_batch_is_aligned_to_a_cache_line(
    make_server: MakeServer, batch_size: int
) -> None:
    example = {
        "flag": True,
        "byte": np.zeros(3, np.uint8),
        "text": np.zeros((), "S5"),
        "nothing": np.zeros((0, 3), np.float32),
        "obs": np.zeros((7, 5), np.float32),
        "reward": 0.0,
    }
    server = make_server(example, batch_size, capacity=3 * batch_size)
    kept = []
    for _ in range(9):
        for _ in range(batch_size):
            server.add(example)
        batch = server.sample().data
        assert batch.keys() == example.keys()
        for name, leaf in batch.items():
            assert leaf.ctypes.data % 64 == 0, name
            assert leaf.flags.c_contiguous
            assert leaf.flags.aligned
        if len(kept) < 1:
            kept.append(batch)


def test_leaves_and_batches_do_not_overlap(make_server: MakeServer) -> None:
    example = {"a": np.zeros(3, np.uint8), "b": np.zeros(5, np.uint8)}
    server = make_server(example, batch_size=3, capacity=9)
    held = []
    for _ in range(3):
        server.extend({"a": np.zeros((3, 3), np.uint8), "b": np.zeros((3, 5), np.uint8)})
        held.append(server.sample())
    spans = sorted(
        (leaf.ctypes.data, leaf.ctypes.data + leaf.nbytes)
        for sample in held
        for leaf in sample.data.values()
    )
    assert len(spans) == 6
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start


def test_views_dropped_in_other_threads_give_their_memory_back(
    counter_server: MakeServer, background: Any
) -> None:
    server = counter_server(batch_size=4, capacity=12)
    done = threading.Event()
    handed: list[Any] = []

    def drop() -> None:
        while not done.is_set() or handed:
            if handed:
                handed.pop()

    droppers = [background.start(drop) for _ in range(2)]
    for lap in range(500):
        fill(server, lap, 4)
        sample = server.sample(timeout=5)
        assert sample.data.tolist() == [lap] * 4
        handed.append(sample)
        del sample
    done.set()
    for dropper in droppers:
        dropper()
    assert server.info.batches_held == 0
    assert server.info.hold_time.count == 500


# The warning about batches that are held.


def hold_all_and_submit(server: echoic.Server, times: int = 1) -> None:
    for _ in range(times):
        server.extend(np.arange(2))
        held = [server.sample(), server.sample()]
        with pytest.raises(echoic.errors.WaitTimeoutError):
            server.add(2, timeout=0.3)
        held.clear()


def test_one_warning_says_that_held_batches_keep_producers_waiting(
    counter_server: MakeServer,
) -> None:
    server = counter_server(batch_size=1, capacity=2, held_warning_after=0.05)
    with pytest.warns(echoic.errors.HeldBatchesWarning, match="2 of 2 batches are held") as caught:
        hold_all_and_submit(server, times=2)
    assert len(caught) == 1


def test_the_warning_points_at_the_submit_that_waits(counter_server: MakeServer) -> None:
    server = counter_server(batch_size=1, capacity=2, held_warning_after=0.05)
    server.extend(np.arange(2))
    held = [server.sample(), server.sample()]
    with (
        pytest.warns(echoic.errors.HeldBatchesWarning) as caught,
        pytest.raises(echoic.errors.WaitTimeoutError) as raised,
    ):
        server.add(2, timeout=0.3)
    assert len(held) == 2
    assert (caught[0].filename, caught[0].lineno) == (__file__, raised.tb.tb_lineno)


def test_a_short_hold_is_worth_no_warning(counter_server: MakeServer) -> None:
    server = counter_server(batch_size=1, capacity=2, held_warning_after=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hold_all_and_submit(server)


def test_batches_that_nobody_takes_are_not_called_held(counter_server: MakeServer) -> None:
    server = counter_server(batch_size=1, capacity=2, held_warning_after=0.0)
    server.extend(np.arange(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(echoic.errors.WaitTimeoutError):
            server.add(2, timeout=0.2)


def test_a_warning_made_an_error_ends_the_wait_and_stores_nothing(
    counter_server: MakeServer,
) -> None:
    server = counter_server(batch_size=1, capacity=2, held_warning_after=0.0)
    server.extend(np.arange(2))
    held = [server.sample(), server.sample()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(echoic.errors.HeldBatchesWarning):
            server.add(2, timeout=5)
    assert server.info.inserted_total == 2
    del held
    server.add(3, timeout=0)
    assert server.sample(timeout=0).data.tolist() == [3]


# Processes that end.


def test_a_batch_used_after_its_server_is_gone_does_not_crash(run_script: Any) -> None:
    done = run_script(
        "import gc, numpy as np, echoic\n"
        "kept = []\n"
        "for lap in range(20):\n"
        "    server = echoic.Server(np.zeros(1 << 16, np.float32), batch_size=4)\n"
        "    server.extend(np.full((4, 1 << 16), lap, np.float32))\n"
        "    kept.append(server.sample().data[1:])\n"
        "    server.close()\n"
        "    del server\n"
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
small = echoic.Server(np.int64(0), batch_size=1, capacity=2)
full = echoic.Server(np.int64(0), batch_size=1, capacity=2)
full.extend(np.arange(2))
big = echoic.Server(np.zeros(1 << 17), batch_size=1, capacity=2)
value = np.zeros(1 << 17)
live = echoic.Server(np.int64(0), batch_size=1, capacity=2)
live.add(1)
sys.kept = [live.sample(), live.info]

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
