"""A buffer with its newest transitions in memory and all others in a file."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from echoic.buffers import MmapReplayBuffer, ReplayBuffer
from echoic.errors import ClosedError, EchoicError, ReplayError, SpecError, StorageError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbered import content, make, push, rows, steps_of, transition, vectors


def in_one_folder(examples):
    """Settings of a test all of whose examples share a folder."""
    allowed = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, deadline=None, suppress_health_check=allowed)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "replay_cold.bin"


PRELUDE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from numbered import *
from echoic.errors import ClosedError, StorageError
"""


def command(code, *arguments):
    """Another interpreter that runs this, with the names of `numbered`."""
    here = str(Path(__file__).parent)
    return [sys.executable, "-c", PRELUDE + code, here, *map(str, arguments)]


def run(code, *arguments):
    started = command(code, *arguments)
    return subprocess.run(started, capture_output=True, text=True, timeout=100, check=False)


def test_the_form_of_the_call_is_that_of_a_flat_buffer(path):
    buffer = MmapReplayBuffer(vectors(84 * 84 * 4, 1), 100, str(path), hot_capacity=10)
    obs = np.zeros(84 * 84 * 4)
    for step in range(30):
        buffer.add(transition(obs + step, step, step, False, False, obs))
    batch = buffer.sample(64, seed=42)
    assert {name: (array.dtype.name, array.shape) for name, array in batch.data.items()} == {
        "obs": ("float32", (64, 28224)),
        "actions": ("float32", (64, 1)),
        "rewards": ("float32", (64,)),
        "terminated": ("bool", (64,)),
        "truncated": ("bool", (64,)),
        "next_obs": ("float32", (64, 28224)),
    }
    assert (batch["obs"] == batch["rewards"][:, None]).all()
    assert path.exists()
    buffer.close()
    assert not path.exists()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    hot=st.integers(1, 40),
    more=st.integers(0, 60),
    parts=st.lists(st.integers(0, 70), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
)
def test_draws_are_those_of_a_buffer_in_memory(tmp_path, hot, more, parts, seed):
    memory = ReplayBuffer(vectors(3, 1), hot + more, seed=seed)
    path = tmp_path / "same"
    with MmapReplayBuffer(
        vectors(3, 1), hot + more, path, hot_capacity=hot, seed=seed, overwrite=True
    ) as buffer:
        first = 0
        for number, count in enumerate(parts):
            if number % 2:
                push(buffer, first, count)
            else:
                buffer.extend(rows(first, count))
            memory.extend(rows(first, count))
            first += count
            assert len(buffer) == len(memory)
            for own in (seed, None):
                if first:
                    ours, theirs = buffer.sample(40, seed=own), memory.sample(40, seed=own)
                    assert steps_of(ours) == steps_of(theirs)


def test_fields_are_what_the_example_says(path):
    pixels = np.arange(84 * 84, dtype=np.uint8).reshape(84, 84)
    example = {
        "obs": {"image": pixels, "speed": np.float64(0.5)},
        "actions": np.int64(3),
        "rewards": 0.0,
        "terminated": False,
        "note": np.int16(0),
    }
    with MmapReplayBuffer(example, 40, path, hot_capacity=4, keep=True) as buffer:
        for step in range(30):
            obs = {"image": pixels + np.uint8(step), "speed": np.float64(step)}
            fields = {"note": np.int16(-step)}
            buffer.add(transition(obs, np.int64(step), float(step), False, **fields), env=step)
        before = buffer.sample(50, seed=3)
    with MmapReplayBuffer.open(path) as buffer:
        batch = buffer.sample(50, seed=3)
    for batch_ in (before, batch):
        steps = batch_["actions"]
        assert batch_["obs"]["image"].dtype == np.uint8
        expected = pixels + steps[:, None, None].astype(np.uint8)
        np.testing.assert_array_equal(batch_["obs"]["image"], expected)
        np.testing.assert_array_equal(batch_["obs"]["speed"], steps.astype(float))
        np.testing.assert_array_equal(batch_["note"], -steps.astype(np.int16))
    np.testing.assert_array_equal(before["actions"], batch["actions"])


class Pair(NamedTuple):
    left: Any
    right: Any


def test_classes_of_ones_own_come_back_with_an_example(path):
    example = {"obs": Pair(np.zeros(2), np.zeros(3))}
    with MmapReplayBuffer(example, 40, path, hot_capacity=4, keep=True) as buffer:
        buffer.add(transition(Pair(np.ones(2), np.ones(3))))
    with MmapReplayBuffer.open(path) as buffer:
        assert buffer.sample(1)["obs"]._fields == Pair._fields
    with MmapReplayBuffer.open(path, example=example) as buffer:
        assert isinstance(buffer.sample(1)["obs"], Pair)
    other = {"obs": Pair(np.zeros(2), np.zeros(4))}
    with pytest.raises(SpecError, match=r"expected obs/right: float64\[4\], found .*\[3\]"):
        MmapReplayBuffer.open(path, example=other)


def test_an_earlier_batch_can_be_written_into(path):
    with make(path) as buffer:
        push(buffer, 0, 60)
        out = buffer.sample(100, seed=1)
        expected = steps_of(buffer.sample(100, seed=2))
        assert buffer.sample(100, seed=2, out=out) is out
        assert steps_of(out) == expected
        out.data["rewards"] = out["rewards"][:50]
        with pytest.raises(SpecError, match="rewards"):
            buffer.sample(100, out=out)


def test_batches_outlive_the_buffer(path):
    buffer = make(path)
    push(buffer, 0, 60)
    batch = buffer.sample(100, seed=1)
    expected = steps_of(batch)
    batches = buffer.batches(7)
    assert len(steps_of(next(batches))) == 7
    assert buffer.stats().capacity == 50
    buffer.close()
    assert list(batches) == []
    del buffer
    assert steps_of(batch) == expected


def test_a_kept_file_goes_on(path):
    with make(path, keep=True) as buffer:
        push(buffer, 0, 65)
    with MmapReplayBuffer.open(path) as buffer:
        assert (buffer.capacity, buffer.hot_capacity, buffer.keep) == (50, 8, True)
        assert content(buffer) == list(range(15, 65))
        push(buffer, 65, 10)
    with MmapReplayBuffer.open(path, hot_capacity=30, keep=False) as buffer:
        assert content(buffer) == list(range(25, 75))
        assert buffer.hot_capacity == 30
        buffer.close(keep=True)
    with pytest.raises(ReplayError, match="hot_capacity must be at most the capacity, got 51"):
        MmapReplayBuffer.open(path, hot_capacity=51)
    MmapReplayBuffer.open(path, keep=False).close()
    assert not path.exists()


def test_a_file_that_is_there_is_not_touched(path):
    with make(path, keep=True) as buffer:
        push(buffer, 0, 20)
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"MmapReplayBuffer.open\(.*overwrite=True") as caught:
        make(path)
    assert caught.value.errno == errno.EEXIST
    assert isinstance(caught.value, (OSError, EchoicError))
    assert path.read_bytes() == before
    with make(path, overwrite=True) as buffer:
        assert len(buffer) == 0


def test_what_is_no_file_of_a_buffer_is_never_overwritten(path):
    path.write_bytes(b"precious" * 1000)
    for attempt in (make, MmapReplayBuffer.open, lambda path: make(path, overwrite=True)):
        with pytest.raises(StorageError):
            attempt(path)
    assert path.read_bytes() == b"precious" * 1000


def test_a_file_in_use_belongs_to_its_buffer(path):
    with make(path) as buffer:
        push(buffer, 0, 20)
        for attempt in (MmapReplayBuffer.open, lambda path: make(path, overwrite=True)):
            with pytest.raises(StorageError, match="is in use") as caught:
                attempt(path)
            assert caught.value.errno == errno.EWOULDBLOCK
        code = "MmapReplayBuffer.open(sys.argv[2])"
        assert "is in use" in run(code, path).stderr
        assert content(buffer) == list(range(20))


def test_a_file_that_is_not_there_is_an_error(path):
    with pytest.raises(StorageError) as caught:
        MmapReplayBuffer.open(path)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(StorageError):
        make(path / "nowhere")
    assert not path.exists()


def test_a_killed_process_leaves_all_that_was_written(path):
    code = """
buffer = make(sys.argv[2], hot=64, total=400)
step = 0
while True:
    push(buffer, step, 33)
    step += 33
    print(buffer.written, step, flush=True)
"""
    with subprocess.Popen(command(code, path), stdout=subprocess.PIPE, text=True) as child:
        for _ in range(40):
            line = child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        # The last line may be cut off: the process was killed while it wrote.
        line = [line for line in (line, *child.stdout.readlines()) if line.endswith("\n")][-1]
    _, pushed = map(int, line.split())
    with MmapReplayBuffer.open(path, keep=False) as buffer:
        found = content(buffer)
        assert found == list(range(found[0], found[-1] + 1))
        # What was in memory only is gone: at most as much as fits there.
        assert found[-1] >= pushed - 1 - 64
        assert len(found) >= 400 - 64
        push(buffer, found[-1] + 1, 10)
        assert content(buffer)[-10:] == list(range(found[-1] + 1, found[-1] + 11))


def test_a_full_disk_is_an_error_that_loses_nothing(path):
    code = """
import resource
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limit[1]))
buffer = make(sys.argv[2], hot=32, total=5000, keep=True)
step = 0
try:
    while True:
        push(buffer, step, 1)
        step += 1
except StorageError as error:
    assert error.errno == 27, error
assert step == len(buffer) == buffer.written + 32, (step, buffer)
assert content(buffer) == list(range(step))
for attempt in (buffer.flush, buffer.close, lambda: push(buffer, step, 1)):
    try:
        attempt()
    except StorageError:
        continue
    raise AssertionError(attempt)
try:
    buffer.extend(rows(step, 100))
except StorageError as error:
    assert error.stored == 0, error.stored
    assert "0 of 100 transitions" in str(error), error
assert content(buffer) == list(range(step))
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
push(buffer, step, 100)
assert content(buffer) == list(range(step + 100))
buffer.close()
print(step)
"""
    done = run(code, path)
    assert done.returncode == 0, done.stderr
    with MmapReplayBuffer.open(path) as buffer:
        assert len(buffer) == int(done.stdout) + 100


def test_the_room_on_the_disk_can_be_taken_at_once(path):
    with make(path, preallocate=True) as buffer:
        size = path.stat().st_size
        push(buffer, 0, 200)
        assert path.stat().st_size == size
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
try:
    make(sys.argv[2], total=5000, preallocate=True)
except StorageError as error:
    print(error.errno, os.path.exists(sys.argv[2]))
"""
    assert run(code, path).stdout.split() == ["27", "False"]


def test_clearing_is_for_good(path):
    with make(path, keep=True) as buffer:
        push(buffer, 0, 60)
        buffer.clear()
        assert len(buffer) == 0
        with pytest.raises(ReplayError, match="empty"):
            buffer.sample(1)
        push(buffer, 60, 5)
        assert content(buffer) == list(range(60, 65))
    with MmapReplayBuffer.open(path) as buffer:
        assert content(buffer) == list(range(60, 65))


def test_a_closed_buffer_says_so(path):
    buffer = make(path)
    push(buffer, 0, 5)
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert "closed" in repr(buffer)
    for call in (
        lambda: push(buffer, 0, 1),
        lambda: buffer.extend(rows(0, 2)),
        lambda: buffer.sample(1),
        lambda: len(buffer),
        buffer.clear,
        buffer.flush,
    ):
        with pytest.raises(ClosedError):
            call()


def test_how_a_buffer_is_closed_can_be_decided_late(path):
    buffer = make(path)
    push(buffer, 0, 5)
    buffer.close(keep=True)
    MmapReplayBuffer.open(path).close(keep=False)
    assert not path.exists()


def test_the_last_reference_removes_the_file(path):
    buffer = make(path)
    push(buffer, 0, 20)
    del buffer
    gc.collect()
    assert not path.exists()


def test_the_end_of_the_interpreter_closes_buffers(path, tmp_path):
    kept = tmp_path / "kept"
    code = """
buffers = [make(sys.argv[2]), make(sys.argv[3], keep=True)]
for buffer in buffers:
    push(buffer, 0, 20)
"""
    done = run(code, path, kept)
    assert done.returncode == 0, done.stderr
    assert not path.exists()
    with MmapReplayBuffer.open(kept) as buffer:
        assert content(buffer) == list(range(20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_leaves_the_file_to_its_parent(path):
    code = """
import os, gc
buffer = make(sys.argv[2])
push(buffer, 0, 20)
child = os.fork()
if child == 0:
    try:
        buffer.sample(1)
    except ClosedError:
        del buffer
        gc.collect()
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert content(buffer) == list(range(20))
push(buffer, 20, 20)
buffer.close()
"""
    done = run(code, path)
    assert done.returncode == 0, done.stderr
    assert not path.exists()


def test_threads_add_draw_and_clear_together(path, background):
    stop = threading.Event()
    with make(path, hot=16, total=300) as buffer:

        def writes():
            for turn in range(60):
                push(buffer, turn * 10, 5)
                buffer.extend(rows(turn * 10, 40))

        def draws():
            while not stop.is_set():
                # Just cleared.
                with suppress(ReplayError):
                    steps_of(buffer.sample(64))

        def clears():
            for _ in range(10):
                buffer.clear()

        readers = [background.start(draws), background.start(draws)]
        writers = [background.start(work) for work in (writes, writes, clears)]
        for result in writers:
            result()
        stop.set()
        for result in readers:
            result()
        assert 45 <= len(buffer) <= 300


def test_a_file_that_somebody_cuts_is_an_error_and_no_signal(path):
    with make(path) as buffer:
        push(buffer, 0, 50)
        buffer.flush()
        os.truncate(path, 13_000)
        with pytest.raises(StorageError, match="damaged"):
            buffer.sample(200)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(st.tuples(st.integers(0, 3 * 4096 - 1), st.integers(0, 255)), max_size=5),
    cut=st.none() | st.integers(0, 2**15),
)
def test_a_damaged_file_is_an_error_or_what_it_was(tmp_path, changes, cut):
    path = tmp_path / "damaged"
    with make(path, keep=True, overwrite=True) as buffer:
        push(buffer, 0, 60)
    data = bytearray(path.read_bytes())
    # Before the records, of which each has a checksum of its own: those are the engine's tests.
    for at, value in changes:
        data[at] = value
    path.write_bytes(data[:cut])
    try:
        buffer = MmapReplayBuffer.open(path, keep=False)
    except StorageError:
        path.unlink()
        return
    with buffer:
        assert content(buffer) == list(range(10, 60))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda path: make(path, hot=0), "hot_capacity must be at least 1, got 0"),
        (lambda path: make(path, total=0), "capacity must be at least 1, got 0"),
        (lambda path: make(path, hot=-3), "hot_capacity must be at least 1, got -3"),
        (lambda path: make(path, hot=51), "hot_capacity must be at most the capacity, got 51"),
        (lambda path: make(path, total=2**62), "can't be made"),
        (lambda path: make(path).sample(0), "n must be at least 1, got 0"),
        (lambda path: make(path).sample(-1), "n must be at least 1, got -1"),
        (lambda path: make(path).sample(1), "empty"),
        (lambda path: make(path).add(transition(np.zeros(3))), "actions"),
        (lambda path: make(path).add(transition(*[0] * 6, colour="red")), "obs|colour"),
        (lambda path: make(path).sample(1, seed=-1), "seed"),
        (
            lambda path: make(path).add(transition(np.zeros(4), 0, 0.0, False, False, np.zeros(3))),
            "obs",
        ),
        (lambda path: make(path).extend(rows(0, 3) | {"next_obs": np.zeros((2, 3))}), "next_obs"),
    ],
)
def test_mistakes_are_errors_of_ours_and_leave_nothing_behind(path, call, text):
    with pytest.raises(EchoicError, match=text) as caught:
        call(path)
    assert isinstance(caught.value, ValueError)
    gc.collect()
    assert not path.exists()


def test_a_call_without_what_it_needs_is_a_type_error(path):
    for call in (
        lambda: MmapReplayBuffer(vectors(3, 1), 2),
        lambda: MmapReplayBuffer(capacity=2, cold_path=path),
        lambda: make(path).add(rows(0, 1), colour="red"),
    ):
        with pytest.raises(TypeError):
            call()
