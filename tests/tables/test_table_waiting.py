"""Who waits, why, and what ends it: limiters, queues, pauses, Ctrl-C, closing, forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest
from echoic import limiters, selectors
from echoic.errors import ClosedError, LimiterError, WaitTimeoutError
from polling import check_ctrl_c

pytestmark = pytest.mark.timeout(60)

MakeTable = Callable[..., echoic.Table]


def timed_out(call: Callable[[], Any]) -> WaitTimeoutError:
    with pytest.raises(WaitTimeoutError) as caught:
        call()
    return caught.value


def test_a_timeout_says_why(make_table: MakeTable) -> None:
    limiter = limiters.RateLimiter(2, 1.0, 0.0, 4.0)
    table = make_table(np.int64(0), limiter=limiter)
    error = timed_out(lambda: table.sample(1, timeout=0))
    assert (error.reason, str(error)) == (
        "MIN_SIZE",
        "timed out: the table has too few items to sample from",
    )
    table.extend(np.arange(4))
    behind = "timed out: the limiter keeps inserts and samples together, and the others are behind"
    error = timed_out(lambda: table.add(4, timeout=0))
    assert (error.reason, error.stored, str(error)) == ("RATIO", 0, behind)
    table.sample(4)
    error = timed_out(lambda: table.sample(1, timeout=0))
    assert (error.reason, str(error)) == ("RATIO", behind)
    table.pause()
    for call in (lambda: table.add(4, timeout=0), lambda: table.sample(1, timeout=0)):
        error = timed_out(call)
        assert (error.reason, str(error)) == ("PAUSED", "timed out: the table is paused")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, echoic.EchoicError)


def test_a_timeout_takes_its_time(make_table: MakeTable) -> None:
    table = make_table(np.int64(0))
    start = time.monotonic()
    assert timed_out(lambda: table.sample(1, timeout=0.1)).reason == "MIN_SIZE"
    assert 0.1 <= time.monotonic() - start < 5


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
def test_a_timeout_that_is_none_is_refused(make_table: MakeTable, timeout: Any) -> None:
    table = make_table(np.int64(0))
    for call in (table.add, table.extend, table.sample):
        with pytest.raises((ValueError, TypeError)):
            call(1, timeout=timeout)
    assert len(table) == 0


@pytest.mark.parametrize("count", [0, -1])
def test_a_batch_has_at_least_one_item(make_table: MakeTable, count: int) -> None:
    table = make_table(np.int64(0))
    table.add(1)
    with pytest.raises((ValueError, OverflowError)):
        table.sample(count)


@pytest.mark.parametrize("count", [1 << 40, 1 << 61, (1 << 63) - 1])
def test_a_batch_larger_than_any_memory_is_refused_and_the_table_lives_on(
    run_script: Callable[..., Any], count: int
) -> None:
    # In a process of its own, which must not end by it.
    script = f"""
import numpy as np, echoic
table = echoic.Table("t", np.int64(0), capacity=3)
table.add(7)
try:
    table.sample({count}, timeout=0)
except (MemoryError, ValueError, OverflowError) as error:
    print("refused")
print(table.sample(2, timeout=0).data.tolist(), table.stats().samples)
"""
    ended = run_script(script)
    assert (ended.stdout, ended.returncode) == ("refused\n[7, 7] 2\n", 0), ended.stderr[-500:]


def test_an_insert_in_another_thread_wakes_a_sample(make_table: MakeTable, background: Any) -> None:
    for spec in (np.int64(0), None):
        table = make_table(spec, limiter=limiters.MinSize(2))
        table.add(1)
        sampled = background.start_and_let_block(table.sample, 3, 20.0)
        table.add(1)
        assert sampled().data.tolist() == [1, 1, 1]


def test_an_insert_in_another_thread_wakes_a_sample_of_the_main_thread(
    make_table: MakeTable,
) -> None:
    table = make_table(np.int64(0))
    timer = threading.Timer(0.05, table.add, (5,))
    timer.start()
    assert table.sample(1, timeout=20).data.tolist() == [5]
    timer.join()


def test_a_sample_wakes_an_insert(make_queue: Callable[..., echoic.Table], background: Any) -> None:
    queue = make_queue(2)
    queue.extend(np.arange(2))
    inserted = background.start_and_let_block(lambda: queue.add(2, timeout=20))
    assert queue.sample(1).data.tolist() == [0]
    inserted()
    assert queue.sample(2).data.tolist() == [1, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda table, keys: table.remove(keys),
        lambda table, keys: table.clear(),
        lambda table, keys: table.set_limiter(limiters.MinSize()),
    ],
    ids=["delete", "reset", "set_limiter"],
)
def test_what_makes_room_wakes_an_insert(
    make_table: MakeTable, background: Any, change: Callable[..., Any]
) -> None:
    table = make_table(np.int64(0))
    table.add(1)
    keys = table.sample(1).keys
    # Another item, when this one is there, needs another sample.
    table.set_limiter(limiters.RateLimiter(1, 1.0, float("-inf"), 0.0))
    inserted = background.start_and_let_block(lambda: table.add(3, timeout=20))
    assert table.stats().inserts == 1
    change(table, keys)
    inserted()
    assert table.sample(1).data.tolist()[0] in (1, 3)


def test_a_ratio_is_kept(make_table: MakeTable) -> None:
    # Samples begin at 4 items, where inserts * 2 - samples is 8; it stays from 5 to 11.
    limiter = limiters.SampleToInsertRatio(2.0, min_size=4, error_buffer=3.0)
    table = make_table(np.int64(0), limiter=limiter)
    assert (table.can_add(4), table.can_add(5), table.can_add(6)) == (True, True, False)
    table.extend(np.arange(3))
    assert not table.can_sample(1)
    table.add(3)
    assert (table.can_sample(3), table.can_sample(4)) == (True, False)
    table.add(4)
    assert not table.can_add(1)
    table.sample(5)
    assert not table.can_sample(1)
    info = table.stats()
    assert (info.inserts, info.samples, info.size) == (5, 5, 5)
    for step in range(100):
        table.add(step, timeout=0)
        table.sample(2, timeout=0)
    assert timed_out(lambda: table.sample(1, timeout=0)).reason == "RATIO"


def test_a_batch_that_never_can_be_sampled_is_refused_at_once(
    make_table: MakeTable, make_queue: Callable[..., echoic.Table]
) -> None:
    limiter = limiters.SampleToInsertRatio(1.0, min_size=1, error_buffer=(0.0, 6.0))
    table = make_table(np.int64(0), limiter=limiter)
    with pytest.raises(LimiterError, match="a batch of 7 can never be sampled: inserts stop at"):
        table.sample(7)
    with pytest.raises(LimiterError, match="3 items, each sampled at most 1 times, give 3"):
        make_queue(3).sample(4)


def test_a_batch_that_uses_items_up_waits_for_no_more_than_it_needs(make_table: MakeTable) -> None:
    # What a synchronous learner does: collect 4, learn from these 4, forget them.
    table = make_table(
        np.int64(0),
        capacity=4,
        max_times_sampled=1,
        sampler=selectors.Fifo(),
        limiter=limiters.MinSize(4),
    )
    table.extend(np.arange(4))
    assert table.sample(4, timeout=0).data.tolist() == [0, 1, 2, 3]
    assert len(table) == 0


# Queues, stacks, and items that are sampled so often.


def test_a_queue_gives_each_item_once_in_order(
    make_queue: Callable[..., echoic.Table], background: Any
) -> None:
    queue = make_queue(5)
    inserted = background.start(lambda: queue.extend(np.arange(1000), timeout=20))
    taken = [value for _ in range(200) for value in queue.sample(5, timeout=20).data.tolist()]
    inserted()
    assert taken == list(range(1000))
    info = queue.stats()
    assert (info.size, info.inserts, info.samples, info.deletions) == (0, *[1000] * 3)


def test_a_queue_that_is_full_takes_what_fits(make_queue: Callable[..., echoic.Table]) -> None:
    queue = make_queue(3)
    error = timed_out(lambda: queue.extend(np.arange(5), timeout=0))
    assert (error.reason, error.stored) == ("RATIO", 3)
    assert not queue.can_add(1)
    assert queue.sample(3, timeout=0).data.tolist() == [0, 1, 2]
    assert timed_out(lambda: queue.sample(1, timeout=0)).reason == "MIN_SIZE"


def test_a_queue_of_many_threads_delivers_everything_once(
    make_queue: Callable[..., echoic.Table], background: Any
) -> None:
    queue = make_queue(16)

    def produce(first: int) -> None:
        for value in range(first, first + 500):
            queue.add(value, timeout=20)

    def consume() -> list[int]:
        return [queue.sample(1, timeout=20).data[0].item() for _ in range(500)]

    producers = [background.start(produce, 500 * number) for number in range(4)]
    consumers = [background.start(consume) for _ in range(4)]
    for produced in producers:
        produced()
    taken = [consumed() for consumed in consumers]
    assert sorted(value for own in taken for value in own) == list(range(2000))
    for own in taken:
        for first in range(0, 2000, 500):
            part = [value for value in own if first <= value < first + 500]
            assert part == sorted(part)


def test_a_stack_gives_each_item_once_the_newest_first() -> None:
    stack = echoic.Table.stack("stack", np.int64(0), capacity=4)
    stack.extend(np.arange(4))
    assert not stack.can_add(1)
    assert stack.sample(2).data.tolist() == [3, 2]
    stack.add(9)
    assert stack.sample(3, timeout=0).data.tolist() == [9, 1, 0]


def test_queues_of_any_form_keep_their_order() -> None:
    queue = echoic.Table.queue("queue", capacity=4)
    queue.add({"a": 1})
    queue.add((2, 3))
    assert queue.sample(1).data == {"a": np.array([1])}
    assert [leaf.item() for leaf in queue.sample(1).data] == [2, 3]


def test_items_go_when_they_were_sampled_often_enough(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), max_times_sampled=2, sampler=selectors.Fifo())
    table.extend(np.arange(4))
    batch = table.sample(3)
    assert batch.data.tolist() == [0, 0, 1]
    assert batch.info.times_sampled.tolist() == [1, 2, 1]
    assert (len(table), table.stats().deletions) == (3, 1)
    assert table.update_priorities(batch.keys, [1, 1, 1]) == 1


# Pausing, resetting, closing.


def test_a_pause_holds_inserts_and_samples_until_it_ends(
    make_table: MakeTable, background: Any
) -> None:
    table = make_table(np.int64(0))
    table.add(1)
    table.pause()
    assert table.stats().paused
    assert not table.can_sample(1)
    assert not table.can_add(1)
    sampled = background.start_and_let_block(table.sample, 1, 20.0)
    inserted = background.start_and_let_block(lambda: table.add(1, timeout=20))
    assert table.stats().inserts == 1
    table.resume()
    assert sampled().data.tolist() == [1]
    inserted()
    assert (len(table), table.stats().paused) == (2, False)


def test_a_limiter_can_be_replaced_and_the_counts_stay(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), limiter=limiters.MinSize(50))
    table.extend(np.arange(10))
    assert not table.can_sample(1)
    table.set_limiter(limiters.SampleToInsertRatio(1.0, 5, (0.0, 20.0)))
    assert (table.can_sample(10), table.can_sample(11)) == (True, False)
    assert (table.can_add(10), table.can_add(11)) == (True, False)
    info = table.stats()
    assert (info.min_size, info.max_diff, info.inserts) == (5, 20, 10)


def test_a_reset_empties_a_table_and_counts_from_zero(
    make_table: MakeTable, selector: selectors.Selector
) -> None:
    for spec in (np.int64(0), None):
        table = make_table(spec, sampler=selector, remover=selector, capacity=5)
        for value in range(9):
            table.add(value)
        held = table.sample(4)
        before = held.data.tolist()
        table.clear()
        info = table.stats()
        assert (info.size, info.inserts, info.samples, info.deletions) == (0, 0, 0, 0)
        assert timed_out(lambda: table.sample(1, timeout=0)).reason == "MIN_SIZE"  # noqa: B023
        for value in range(100, 107):
            table.add(value)
        drawn = set(table.sample(50).data.tolist())
        assert drawn <= set(range(100, 107))
        assert held.data.tolist() == before


def test_a_close_ends_everything_and_wakes_everyone(
    make_table: MakeTable, make_queue: Callable[..., echoic.Table], background: Any
) -> None:
    table, queue = make_table(np.int64(0)), make_queue(2)
    queue.add(0)
    held = queue.sample(1)
    calls = [
        background.start_and_let_block(table.sample, 1, 20.0),
        background.start_and_let_block(lambda: queue.extend(np.arange(5), timeout=20)),
    ]
    for closed in (table, queue):
        closed.close()
        closed.close()
    for call, stored in zip(calls, (0, 2), strict=True):
        with pytest.raises(ClosedError, match="the table is closed") as caught:
            call()
        assert caught.value.stored == stored
    with pytest.raises(ClosedError):
        table.add(1)
    with pytest.raises(ClosedError):
        table.extend(np.arange(2))
    with pytest.raises(ClosedError):
        table.sample(1)
    assert held.data.tolist() == [0]
    assert (len(queue), queue.can_sample(1), queue.can_add(1)) == (2, False, False)


# Ctrl-C.

INTERRUPTED = """
import numpy as np, echoic
from echoic import Table
empty = Table("empty", np.int64(0), capacity=3)
full = Table.queue("full", np.int64(0), capacity=2)
full.extend(np.arange(2))
paused = Table("paused", capacity=3)
paused.pause()
print("waiting", flush=True)
{call}
print("not interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        "empty.sample(1)",
        "empty.sample(1, timeout=60)",
        "full.add(2)",
        "full.extend(np.arange(5))",
        "paused.add(1)",
    ],
)
def test_ctrl_c_ends_a_wait_at_once(call: str) -> None:
    check_ctrl_c(INTERRUPTED.replace("{call}", call))


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs a signal of our own")
def test_an_interrupted_wait_changes_nothing_and_the_table_goes_on(
    make_queue: Callable[..., echoic.Table],
) -> None:
    class Interrupt(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    queue = make_queue(2)
    queue.extend(np.arange(2))
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        for wait in (lambda: queue.add(2, timeout=20), lambda: queue.sample(1, timeout=20)):
            timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
            timer.start()
            with pytest.raises(Interrupt):
                wait()
            timer.join()
            if len(queue) == 2:
                assert queue.sample(2, timeout=0).data.tolist() == [0, 1]
    finally:
        signal.signal(signal.SIGUSR1, before)
    queue.add(3, timeout=0)
    assert queue.sample(1, timeout=0).data.tolist() == [3]
    assert queue.stats().inserts == queue.stats().samples == 3


def test_a_wait_uses_no_cpu(make_table: MakeTable, make_queue: Callable[..., echoic.Table]) -> None:
    table, queue = make_table(np.int64(0)), make_queue(1)
    queue.add(0)
    before = time.process_time()
    timed_out(lambda: table.sample(1, timeout=0.7))
    timed_out(lambda: queue.add(1, timeout=0.7))
    assert time.process_time() - before < 0.1


# Forks.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(make_table: MakeTable) -> None:
    table = make_table(np.int64(0))
    table.add(1)
    key = table.sample(1).keys
    writer = echoic.TrajectoryWriter([table])
    writer.append(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        calls: list[Callable[[], Any]] = [
            lambda: table.add(2),
            lambda: table.extend(np.arange(2)),
            lambda: table.sample(1),
            lambda: table.update_priorities(key, [2.0]),
            lambda: table.remove(key),
            table.clear,
            table.pause,
            table.resume,
            lambda: table.publish_version(3),
            lambda: table.set_limiter(limiters.MinSize(2)),
            lambda: writer.append(2),
            lambda: writer.flush(timeout=10.0),
        ]
        for number, call in enumerate(calls):
            try:
                call()
                said.append(f"call {number} was not refused")
            except ClosedError as error:
                said.append("refused" if "made before a fork" in str(error) else str(error))
        writer.close()
        # A table of the child's own works.
        own = echoic.Table("own", np.int64(0), capacity=3)
        own.add(5)
        said.append(str(own.sample(2).data.tolist()))
        os.write(writing, "\n".join(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert said == ["refused"] * 12 + ["[5, 5]"]
    writer.append(2)
    writer.close()
    table.add(2)
    assert table.stats().inserts == 2
    assert len(table.sample(4)) == 4
