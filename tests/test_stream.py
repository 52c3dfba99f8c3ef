"""Samples in one by one, fixed-size batches out: order, back-pressure, closing, numbers."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest
from polling import until

pytestmark = pytest.mark.timeout(60)

MakeStream = Callable[..., echoic.Stream]


def test_batches_have_the_samples_in_order(make_stream: MakeStream) -> None:
    example = {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}
    stream = make_stream(example, batch_size=3, capacity=12)
    for step in range(9):
        stream.add({"obs": np.full(4, step, np.float32), "reward": np.float32(-step)})

    for batch in range(3):
        steps = np.arange(3 * batch, 3 * batch + 3, dtype=np.float32)
        sample = stream.sample(timeout=0)
        assert sample.info.sequence == batch
        assert len(sample) == 3
        np.testing.assert_array_equal(sample.data["obs"], np.repeat(steps[:, None], 4, axis=1))
        np.testing.assert_array_equal(sample.data["reward"], -steps)


def test_a_sample_is_copied_before_submit_returns(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2)
    value = np.array(1, np.int64)
    stream.add(value)
    value[...] = 2
    stream.add(value)
    assert stream.sample(timeout=0).data.tolist() == [1, 2]


def test_batches_of_one_sample(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1)
    for step in range(50):
        stream.add(step)
        assert stream.sample(timeout=0).data.tolist() == [step]


# Many samples at once.


def test_extend_stores_rows_in_order_across_batches(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=4, capacity=16)
    stream.add(0)
    stream.extend(np.arange(1, 12))
    taken = [stream.sample(timeout=0).data.tolist() for _ in range(3)]
    assert taken == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_extend_may_be_larger_than_the_ring(counter_stream: MakeStream, background: Any) -> None:
    stream = counter_stream(batch_size=4, capacity=8)
    rows = np.arange(1003)
    stored = background.start(stream.extend, rows)
    taken = [stream.sample(timeout=10).data.copy() for _ in range(250)]
    stored()
    np.testing.assert_array_equal(np.concatenate(taken), rows[:1000])
    assert stream.stats().partial == 3


def test_extend_of_large_rows_keeps_every_byte(make_stream: MakeStream, background: Any) -> None:
    # Large enough that the copy runs without the GIL.
    rng = np.random.default_rng(0)
    rows = {"frame": rng.integers(0, 256, (20, 84, 84, 4), np.uint8), "step": np.arange(20)}
    stream = make_stream({"frame": rows["frame"][0], "step": np.int64(0)}, 5, 10)
    stored = background.start(stream.extend, rows)
    for batch in range(4):
        part = slice(5 * batch, 5 * batch + 5)
        sample = stream.sample(timeout=10)
        np.testing.assert_array_equal(sample.data["frame"], rows["frame"][part])
        np.testing.assert_array_equal(sample.data["step"], rows["step"][part])
        del sample
    stored()


def test_extend_of_no_rows_stores_nothing(counter_stream: MakeStream) -> None:
    stream = counter_stream()
    stream.extend(np.zeros(0, np.int64))
    assert stream.stats().inserted_total == 0


@pytest.mark.parametrize(
    "rows",
    [
        np.arange(24).reshape(8, 3)[::2],
        np.arange(24).reshape(8, 3)[::-2],
        np.asfortranarray(np.arange(12).reshape(4, 3)),
        np.arange(12).reshape(3, 4).T,
        np.broadcast_to(np.arange(3), (4, 3)),
    ],
    ids=["every-second", "backwards", "fortran", "transposed", "broadcast"],
)
def test_extend_takes_rows_that_are_not_contiguous(
    make_stream: MakeStream, rows: np.ndarray
) -> None:
    assert not rows.flags.c_contiguous
    stream = make_stream(np.zeros(3, np.int64), batch_size=4)
    stream.extend(rows)
    np.testing.assert_array_equal(stream.sample(timeout=0).data, rows)


def test_extend_needs_one_number_of_rows_in_all_leaves(make_stream: MakeStream) -> None:
    stream = make_stream({"a": np.zeros(2, np.float32), "b": np.int64(0)})
    rows = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.int64)}
    with pytest.raises(echoic.errors.SpecError) as caught:
        stream.extend(rows)
    assert str(caught.value) == "leaf `b`: expected int64[3], got int64[2]"
    assert stream.stats().inserted_total == 0


def test_extend_needs_a_leading_axis(make_stream: MakeStream) -> None:
    stream = make_stream({"a": np.zeros(2, np.float32)})
    with pytest.raises(echoic.errors.SpecError) as caught:
        stream.extend({"a": np.zeros(2, np.float32)})
    assert str(caught.value) == "leaf `a`: expected float32[n, 2], got float32[2]"


# Several threads.


def check_producers(stream: echoic.Stream, producers: int, each: int, background: Any) -> None:
    """Each producer counts up; every number arrives once, in its order, in an unmixed sample."""

    def produce(producer: int) -> None:
        for step in range(each):
            payload = np.full(3, producer * each + step, np.int64)
            stream.add({"producer": producer, "step": step, "payload": payload})

    results = [background.start(produce, producer) for producer in range(producers)]
    seen: list[list[int]] = [[] for _ in range(producers)]
    for _ in range(producers * each // stream.batch_size):
        batch = stream.sample(timeout=20).data
        expected = batch["producer"] * each + batch["step"]
        np.testing.assert_array_equal(batch["payload"], np.repeat(expected[:, None], 3, axis=1))
        for producer, step in zip(batch["producer"].tolist(), batch["step"].tolist(), strict=True):
            seen[producer].append(step)
    for result in results:
        result()
    assert seen == [list(range(each))] * producers


PRODUCED = {"producer": 0, "step": 0, "payload": np.zeros(3, np.int64)}


def test_samples_of_many_producers_arrive_once_unmixed_and_in_their_order(
    make_stream: MakeStream, background: Any
) -> None:
    check_producers(make_stream(PRODUCED, 32, 128), 6, 1600, background)


# A ring this small blocks at every sample, so a wake-up that gets lost is a stall.
def test_a_small_ring_with_blocked_producers_never_stalls(
    make_stream: MakeStream, background: Any
) -> None:
    check_producers(make_stream(PRODUCED, 1, 2), 4, 500, background)


def test_each_batch_goes_to_exactly_one_of_many_consumers(
    counter_stream: MakeStream, background: Any
) -> None:
    # Each of the four loops keeps its last batch while it waits, so four buffers would be too few.
    stream = counter_stream(batch_size=8, capacity=48)

    def consume() -> list[list[int]]:
        return [sample.data.tolist() for sample in stream.batches()]

    consumers = [background.start(consume) for _ in range(4)]
    for step in range(8 * 300):
        stream.add(step)
    stream.close()
    batches = sorted(batch for consumer in consumers for batch in consumer())
    assert batches == np.arange(8 * 300).reshape(300, 8).tolist()


def test_rows_of_one_extend_keep_their_order_among_other_producers(
    make_stream: MakeStream, background: Any
) -> None:
    stream = make_stream({"producer": 0, "row": 0}, batch_size=16, capacity=48)
    rows = 16 * 50

    def produce(producer: int) -> None:
        batch = {"producer": np.full(rows, producer), "row": np.arange(rows)}
        stream.extend(batch)

    results = [background.start(produce, producer) for producer in range(3)]
    seen: list[list[int]] = [[], [], []]
    for _ in range(150):
        batch = stream.sample(timeout=20).data
        for producer, row in zip(batch["producer"].tolist(), batch["row"].tolist(), strict=True):
            seen[producer].append(row)
    for result in results:
        result()
    assert seen == [list(range(rows))] * 3


# Back-pressure.


def test_a_producer_waits_until_a_batch_is_dropped(
    counter_stream: MakeStream, background: Any
) -> None:
    stream = counter_stream(batch_size=1, capacity=2)
    stream.add(0)
    stream.add(1)
    first = stream.sample()
    done = threading.Event()

    def produce() -> None:
        stream.add(2)
        done.set()

    produced = background.start(produce)
    assert not done.wait(0.1)
    assert first.data.tolist() == [0]
    del first
    produced()
    assert [stream.sample(timeout=0).data.tolist() for _ in range(2)] == [[1], [2]]


def test_a_batch_that_is_kept_does_not_stop_the_others(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2, capacity=6)
    stream.extend(np.array([-1, -2]))
    kept = stream.sample(timeout=0).data
    for lap in range(20):
        stream.extend(np.array([lap, lap]), timeout=0)
        assert stream.sample(timeout=0).data.tolist() == [lap, lap]
    assert kept.tolist() == [-1, -2]


def test_a_full_ring_stores_nothing_of_a_sample_that_timed_out(
    counter_stream: MakeStream,
) -> None:
    stream = counter_stream(batch_size=2, capacity=4)
    stream.extend(np.arange(4))
    with pytest.raises(echoic.errors.WaitTimeoutError):
        stream.add(99, timeout=0)
    assert stream.stats().inserted_total == 4
    assert [stream.sample(timeout=0).data.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    stream.extend(np.array([4, 5]), timeout=0)
    assert stream.sample(timeout=0).data.tolist() == [4, 5]


# Timeouts.


def test_capacity_is_the_reason_when_nobody_takes_batches(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2, capacity=4)
    stream.extend(np.arange(4))
    with pytest.raises(echoic.errors.WaitTimeoutError, match="no consumer has taken") as caught:
        stream.add(4, timeout=0.01)
    assert (caught.value.reason, caught.value.stored) == ("CAPACITY", 0)


def test_leased_is_the_reason_when_all_batches_are_held(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2, capacity=4)
    stream.extend(np.arange(4))
    held = [stream.sample(), stream.sample()]
    with pytest.raises(echoic.errors.WaitTimeoutError, match="still alive") as caught:
        stream.add(4, timeout=0.01)
    assert (caught.value.reason, caught.value.stored) == ("LEASED", 0)
    del held
    stream.add(4, timeout=0)


def test_empty_is_the_reason_when_no_batch_is_complete(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2)
    stream.add(0)
    with pytest.raises(echoic.errors.WaitTimeoutError, match="no batch is complete") as caught:
        stream.sample(timeout=0.01)
    assert (caught.value.reason, caught.value.stored) == ("EMPTY", 0)


@pytest.mark.parametrize("rows", [11, 100_003], ids=["small", "without the GIL"])
def test_a_batch_that_times_out_says_how_many_rows_are_stored(
    counter_stream: MakeStream, rows: int
) -> None:
    stream = counter_stream(batch_size=4, capacity=8)
    with pytest.raises(echoic.errors.WaitTimeoutError) as caught:
        stream.extend(np.arange(rows), timeout=0.01)
    assert (caught.value.reason, caught.value.stored) == ("CAPACITY", 8)
    assert f"8 of {rows} samples stored" in str(caught.value)
    assert stream.stats().inserted_total == 8
    taken = [stream.sample(timeout=0).data.tolist() for _ in range(2)]
    assert taken == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_timeout_is_waited_out_and_not_much_longer(counter_stream: MakeStream) -> None:
    stream = counter_stream()
    start = time.monotonic()
    with pytest.raises(echoic.errors.WaitTimeoutError):
        stream.sample(timeout=0.15)
    assert 0.15 <= time.monotonic() - start < 5.0


def test_a_timeout_of_zero_does_not_wait(counter_stream: MakeStream) -> None:
    stream = counter_stream()
    start = time.monotonic()
    for _ in range(100):
        with pytest.raises(echoic.errors.WaitTimeoutError):
            stream.sample(timeout=0)
    assert time.monotonic() - start < 5.0


BAD_TIMEOUTS = [-1, -0.001, float("nan"), float("-inf")]


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS)
def test_a_bad_timeout_is_refused_when_there_is_nothing_to_wait_for(
    counter_stream: MakeStream, timeout: float
) -> None:
    stream = counter_stream(batch_size=1)
    with pytest.raises(ValueError, match="timeout"):
        stream.add(0, timeout=timeout)
    with pytest.raises(ValueError, match="timeout"):
        stream.extend(np.arange(1), timeout=timeout)
    assert stream.stats().inserted_total == 0
    stream.add(0)
    with pytest.raises(ValueError, match="timeout"):
        stream.sample(timeout=timeout)
    stream.close()
    with pytest.raises(ValueError, match="timeout"):
        stream.rest(timeout=timeout)


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS)
def test_a_bad_timeout_is_refused_when_a_wait_would_begin(
    counter_stream: MakeStream, timeout: float
) -> None:
    stream = counter_stream(batch_size=1, capacity=2)
    with pytest.raises(ValueError, match="timeout"):
        stream.sample(timeout=timeout)
    stream.extend(np.arange(2))
    with pytest.raises(ValueError, match="timeout"):
        stream.add(2, timeout=timeout)
    with pytest.raises(ValueError, match="timeout"):
        stream.extend(np.arange(1), timeout=timeout)


@pytest.mark.parametrize("timeout", [1e300, float("inf")])
def test_a_timeout_past_what_a_clock_holds_is_for_ever(
    counter_stream: MakeStream, background: Any, timeout: float
) -> None:
    stream = counter_stream(batch_size=1)
    taken = background.start_and_let_block(stream.sample, timeout)
    stream.add(5)
    assert taken().data.tolist() == [5]


# Closing.


def test_close_wakes_blocked_producers_and_consumers(
    counter_stream: MakeStream, background: Any
) -> None:
    full = counter_stream(batch_size=1, capacity=2)
    full.extend(np.arange(2))
    empty = counter_stream()
    waiting = [
        background.start_and_let_block(full.add, 2),
        background.start_and_let_block(full.extend, np.arange(3)),
        background.start_and_let_block(full.extend, np.arange(100_000)),
        background.start_and_let_block(empty.sample),
        background.start_and_let_block(empty.sample),
    ]
    full.close()
    empty.close()
    for result in waiting:
        with pytest.raises(echoic.errors.ClosedError, match="the stream is closed"):
            result()
    assert [full.sample().data.tolist() for _ in range(2)] == [[0], [1]]


def test_a_batch_that_close_interrupts_says_how_many_rows_are_stored(
    counter_stream: MakeStream, background: Any
) -> None:
    stream = counter_stream(batch_size=2, capacity=4)
    stored = background.start(stream.extend, np.arange(10))
    until(lambda: stream.stats().inserted_total == 4)
    stream.close()
    with pytest.raises(echoic.errors.ClosedError, match="4 of 10 samples stored") as caught:
        stored()
    assert caught.value.stored == 4


def test_a_closed_stream_takes_no_samples_and_gives_what_it_has(
    counter_stream: MakeStream,
) -> None:
    stream = counter_stream(batch_size=2, capacity=6)
    stream.extend(np.arange(4))
    assert not stream.closed
    stream.close()
    assert stream.closed
    for rejected in (lambda: stream.add(4), lambda: stream.extend(np.arange(4))):
        with pytest.raises(echoic.errors.ClosedError):
            rejected()
    assert [stream.sample().data.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(echoic.errors.ClosedError):
        stream.sample()


def test_closing_twice_changes_nothing(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2)
    stream.extend(np.arange(3))
    stream.close()
    stream.close()
    assert stream.sample().data.tolist() == [0, 1]
    remainder = stream.rest()
    assert remainder is not None
    assert remainder.data.tolist() == [2]
    stream.close()
    assert stream.rest() is None


def test_threads_that_close_at_once_lose_nothing(counter_stream: MakeStream) -> None:
    for _ in range(50):
        stream = counter_stream(batch_size=2, capacity=4)
        stream.extend(np.arange(3))
        threads = [threading.Thread(target=stream.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        remainder = stream.rest()
        assert remainder is not None
        assert stream.sample().data.tolist() + remainder.data.tolist() == [0, 1, 2]


def test_batches_ends_when_closed_and_drained(counter_stream: MakeStream, background: Any) -> None:
    stream = counter_stream(batch_size=2, capacity=4)

    def produce() -> None:
        for step in range(11):
            stream.add(step)
        stream.close()

    produced = background.start(produce)
    batches = [sample.data.tolist() for sample in stream.batches()]
    produced()
    assert batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_batches_itself_holds_no_batch(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1, capacity=2)
    stream.extend(np.arange(2))
    batches = stream.batches()
    for step in range(10):
        assert next(batches).data.tolist() == [step]
        assert stream.stats().batches_held == 0
        stream.add(step + 2, timeout=0)


@pytest.mark.parametrize("rows", range(1, 4))
def test_the_rest_is_what_does_not_fill_a_batch(counter_stream: MakeStream, rows: int) -> None:
    stream = counter_stream(batch_size=4)
    stream.extend(np.arange(4 + rows))
    stream.close()
    sample = stream.rest()
    assert sample is not None
    assert len(sample) == rows
    assert sample.data.tolist() == list(range(4, 4 + rows))
    assert sample.info.sequence == 1
    assert stream.rest() is None
    assert stream.sample().data.tolist() == [0, 1, 2, 3]


def test_there_is_no_rest_when_all_batches_are_full(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2)
    stream.extend(np.arange(4))
    stream.close()
    assert stream.rest() is None


def test_the_rest_of_an_open_stream_is_refused(counter_stream: MakeStream) -> None:
    stream = counter_stream()
    stream.add(1)
    with pytest.raises(RuntimeError, match="rest"):
        stream.rest()


def test_nothing_that_was_stored_is_lost_when_close_races_with_producers(
    counter_stream: MakeStream, background: Any
) -> None:
    for _ in range(20):
        stream = counter_stream(batch_size=4, capacity=16)
        stored: list[list[int]] = [[], []]

        def produce(producer: int, stream: Any = stream, stored: Any = stored) -> None:
            try:
                for step in range(100_000):
                    stream.add(2 * step + producer)
                    stored[producer].append(2 * step + producer)
            except echoic.errors.ClosedError:
                pass

        producers = [background.start(produce, producer) for producer in range(2)]
        taken = [stream.sample(timeout=10).data.tolist() for _ in range(30)]
        stream.close()
        for producer in producers:
            producer()
        taken += [sample.data.tolist() for sample in stream.batches()]
        remainder = stream.rest()
        rest = [] if remainder is None else remainder.data.tolist()
        assert sorted(sum(taken, rest)) == sorted(stored[0] + stored[1])


def test_a_stream_is_a_context_manager_that_closes() -> None:
    with echoic.Stream(np.int64(0), batch_size=1) as stream:
        stream.add(3)
        assert not stream.closed
    assert stream.closed
    assert stream.sample().data.tolist() == [3]


def test_an_error_inside_the_context_passes_through_and_closes() -> None:
    with pytest.raises(KeyError), echoic.Stream(np.int64(0), batch_size=1) as stream:
        raise KeyError
    assert stream.closed


# Making one.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": -1}, r"batch_size must be .*, got -1"),
        ({"capacity": 3}, "capacity must be at least 2 batches = 4 samples, got 3"),
        ({"capacity": 0}, "capacity must be at least 2 batches = 4 samples, got 0"),
        ({"capacity": -3}, "capacity must be positive, got -3"),
        ({"held_warning_after": -1.0}, "held_warning_after"),
        ({"held_warning_after": float("nan")}, "held_warning_after"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        echoic.Stream(np.int64(0), **{"batch_size": 2, **arguments})


def test_a_stream_belongs_to_one_server() -> None:
    stream = echoic.Stream(np.int64(0), batch_size=1)
    server = echoic.Server(stream)
    with pytest.raises(ValueError, match="the stream belongs to another server"):
        echoic.Server(stream)
    server.close()
    assert stream.closed


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory is for Linux")
def test_a_stream_that_was_used_cannot_be_shared() -> None:
    stream = echoic.Stream(np.int64(0), batch_size=1)
    stream.add(1)
    with pytest.raises(ValueError, match=r"the stream was used before .* over shm://"):
        echoic.Server(stream, listen="shm://too-late")
    with echoic.Server(stream, listen="tcp://127.0.0.1:0"):
        assert stream.sample().data.tolist() == [1]


class Opened:
    """A transport of one's own."""

    def open(self, server: echoic.Server) -> str:
        """Listen at a free port."""
        return server.open_listener("tcp://127.0.0.1:0")


def test_a_server_opens_what_it_was_given() -> None:
    table, weights = echoic.Table("t", 0, capacity=1), echoic.WeightStore()
    with echoic.Server(table, weights, listen=["tcp://127.0.0.1:0", Opened()]) as server:
        assert len(server.addresses) == 2
        with pytest.raises(ValueError, match="expected one address, got 2"):
            _ = server.address


@pytest.mark.parametrize(
    ("stores", "listen", "message"),
    [
        ([], None, "at least one store to serve"),
        ([np.int64(0)], None, "each a Stream, Table, RolloutTable or WeightStore, got a int64"),
        ([echoic.Table("t", 0, capacity=1)], 5555, "expected addresses .* got a int"),
        ([echoic.Table("t", 0, capacity=1)], [object()], "expected addresses .* got a object"),
        (
            [echoic.Stream(0, batch_size=1), echoic.Stream(0, batch_size=1)],
            None,
            "one Stream, got 2",
        ),
        ([echoic.WeightStore(), echoic.WeightStore()], None, "one WeightStore, got 2"),
    ],
)
def test_what_cannot_be_served_is_refused(stores: list[Any], listen: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        echoic.Server(*stores, listen=listen)


def test_a_ring_that_no_address_can_hold_is_a_memory_error() -> None:
    huge = np.broadcast_to(np.float32(0), (1 << 40,))
    with pytest.raises(MemoryError, match="4398046511104 bytes"):
        echoic.Stream(huge, batch_size=1 << 20).stats()


def test_more_slots_than_memory_is_a_memory_error_even_without_bytes(run_script: Any) -> None:
    # With no bytes a sample, only the bookkeeping of the slots could be too large.
    done = run_script(
        "import resource, numpy as np, echoic\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "try:\n"
        "    echoic.Stream(np.zeros(0), batch_size=1 << 42).stats()\n"
        "except MemoryError:\n"
        "    print('MemoryError')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "MemoryError\n", "")


def test_a_stream_cannot_be_pickled(counter_stream: MakeStream) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(counter_stream())


# What it says about itself.


def test_info_counts_what_went_through(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=4, capacity=12)
    stream.extend(np.arange(10))
    info = stream.stats()
    assert (info.batch_size, info.capacity) == (4, 12)
    assert (info.inserted_total, info.batches_total, info.delivered_total) == (10, 2, 0)
    assert (info.store_size, info.partial, info.batches_ready) == (10, 2, 2)
    assert (info.batches_held, info.batches_free, info.sequence) == (0, 0, 0)
    assert info.bytes_per_sample == 8
    assert info.memory_bytes >= 12 * 8

    sample = stream.sample()
    info = stream.stats()
    assert (info.store_size, info.partial, info.batches_ready) == (6, 2, 1)
    assert (info.batches_held, info.delivered_total, info.sequence) == (1, 1, 1)
    assert info.oldest_hold > 0
    del sample
    info = stream.stats()
    assert (info.batches_held, info.batches_free, info.oldest_hold) == (0, 1, 0.0)
    assert (info.aborted, info.refused, info.blocked_pushes, info.sample_waits) == (0, 0, 0, 0)


def test_info_counts_waits(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1, capacity=2)
    with pytest.raises(echoic.errors.WaitTimeoutError):
        stream.sample(timeout=0.02)
    stream.extend(np.arange(2))
    for _ in range(3):
        with pytest.raises(echoic.errors.WaitTimeoutError):
            stream.add(2, timeout=0.02)
    info = stream.stats()
    assert (info.sample_waits, info.blocked_pushes) == (1, 3)
    assert 0.02 <= info.sample_wait_time < 5
    assert 0.06 <= info.blocked_time < 5


def test_info_counts_samples_that_were_refused(counter_stream: MakeStream) -> None:
    stream = counter_stream()
    for _ in range(3):
        with pytest.raises(echoic.errors.SpecError):
            stream.add("nonsense")
    assert (stream.stats().refused, stream.stats().inserted_total) == (3, 0)


def test_histograms_measure_submit_copy_and_hold(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2, capacity=4)
    assert stream.stats().hold_time.count == 0
    assert stream.stats().hold_time.max == 0.0
    stream.add(0)
    time.sleep(0.2)
    stream.add(1)
    sample = stream.sample()
    time.sleep(0.05)
    del sample
    info = stream.stats()
    # The first sample waited for the second, the second for nobody.
    assert info.submit_to_available.count == 2
    assert info.submit_to_available.max >= 0.2 > info.submit_to_available.min
    assert info.copy_time.count == 2
    assert info.hold_time.count == 1
    assert info.hold_time.min >= 0.05
    for histogram in (info.submit_to_available, info.copy_time, info.hold_time):
        assert 0 < histogram.min <= histogram.mean <= histogram.max < 10
        assert histogram.p50 <= histogram.p90 <= histogram.p99
    stream.reset_histograms()
    anew = stream.stats()
    assert anew.submit_to_available.count == anew.copy_time.max == anew.hold_time.mean == 0
    assert anew.inserted_total == 2


def test_the_info_of_a_sample_is_as_of_its_first_reading(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1, capacity=4)
    stream.extend(np.arange(2))
    first, second = stream.sample(), stream.sample()
    assert (first.info.sequence, second.info.sequence) == (0, 1)
    assert first.info.inserted_total == 2
    stream.add(2)
    assert first.info.inserted_total == 2
    assert stream.stats().inserted_total == 3


def test_info_as_a_dict_has_the_same_numbers_flat(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=2)
    stream.extend(np.arange(2))
    sample = stream.sample()
    info = sample.info
    numbers = info.as_dict()
    names = [name for name in dir(info) if not name.startswith("_") and name != "as_dict"]
    histograms = {"submit_to_available", "copy_time", "hold_time"}
    parts = ("count", "min", "mean", "p50", "p90", "p99", "max")
    flat = {name: getattr(info, name) for name in names if name not in histograms}
    for name in histograms:
        flat |= {f"{name}.{part}": getattr(getattr(info, name), part) for part in parts}
    assert numbers == flat
    assert all(type(number) in (int, float) for number in numbers.values())


def test_the_spec_tells_paths_dtypes_and_shapes(make_stream: MakeStream) -> None:
    stream = make_stream({"b": (np.zeros((2, 3), np.uint8), 0.0), "a": np.zeros((), "S5")})
    leaves = [(leaf.path, leaf.dtype, leaf.shape, leaf.nbytes) for leaf in stream.spec.leaves]
    assert leaves == [
        ("a", "S5", (), 5),
        ("b/0", "uint8", (2, 3), 6),
        ("b/1", "float64", (), 8),
    ]
    assert (stream.spec.nbytes, len(stream.spec)) == (19, 3)
    for path in ("a", "b/0", "b/1"):
        assert path in str(stream.spec)
