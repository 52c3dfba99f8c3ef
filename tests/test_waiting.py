"""Waiting: Ctrl-C ends it, it uses no CPU, and it lets other threads run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest
from polling import check_ctrl_c

pytestmark = pytest.mark.timeout(60)

MakeStream = Callable[..., echoic.Stream]

INTERRUPTED = """
import threading
import numpy as np, echoic
stream = echoic.Stream(np.int64(0), batch_size=1, capacity=2)
full = echoic.Stream(np.int64(0), batch_size=1, capacity=2)
full.extend(np.arange(2))
leased = echoic.Stream(np.int64(0), batch_size=1, capacity=2)
leased.extend(np.arange(2))
held = [leased.sample(), leased.sample()]
drained = echoic.Stream(np.uint8(0), batch_size=4, capacity=8)
drain = threading.Thread(target=lambda: [None for _ in drained.batches()], daemon=True)
drain.start()
print("waiting", flush=True)
{call}
print("not interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        "stream.sample()",
        "stream.sample(timeout=60)",
        "next(stream.batches())",
        "full.add(2)",
        "leased.add(2)",
        "full.extend(np.arange(3))",
        "full.extend(np.arange(1_000_000))",
        "drained.extend(np.broadcast_to(np.uint8(0), 20_000_000))",
    ],
)
def test_ctrl_c_ends_a_wait_at_once(call: str) -> None:
    check_ctrl_c(INTERRUPTED.replace("{call}", call))


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs a signal of our own")
def test_signal_handlers_run_while_the_main_thread_waits(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1)
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, lambda *_: stream.add(5))
    timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        timer.start()
        assert stream.sample(timeout=10).data.tolist() == [5]
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs a signal of our own")
def test_an_interrupted_submit_stores_nothing_and_the_stream_goes_on(
    counter_stream: MakeStream,
) -> None:
    class Interrupt(BaseException):
        pass

    def raise_it(*_: object) -> None:
        raise Interrupt

    stream = counter_stream(batch_size=1, capacity=2)
    stream.extend(np.arange(2))
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, raise_it)
    timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Interrupt):
            stream.add(2, timeout=10)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert [stream.sample(timeout=0).data.tolist() for _ in range(2)] == [[0], [1]]
    stream.add(3, timeout=0)
    assert stream.sample(timeout=0).data.tolist() == [3]


def wait_out(call: Callable[[], Any]) -> float:
    """CPU seconds of this process, all threads, in a call that times out."""
    before = time.process_time()
    with pytest.raises(echoic.errors.WaitTimeoutError):
        call()
    return time.process_time() - before


def test_a_wait_uses_no_cpu(counter_stream: MakeStream) -> None:
    stream = counter_stream(batch_size=1, capacity=2)
    assert wait_out(lambda: stream.sample(timeout=0.5)) < 0.1
    stream.extend(np.arange(2))
    assert wait_out(lambda: stream.add(2, timeout=0.5)) < 0.1
    held = [stream.sample(), stream.sample()]
    assert wait_out(lambda: stream.add(2, timeout=0.5)) < 0.1
    assert len(held) == 2


def test_many_parked_threads_use_no_cpu(counter_stream: MakeStream, background: Any) -> None:
    stream = counter_stream(batch_size=1, capacity=2)

    def take() -> list[int]:
        return stream.sample(timeout=20).data.tolist()

    waiting = [background.start_and_let_block(take) for _ in range(8)]
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    for step in range(8):
        stream.add(step)
    assert sorted(result() for result in waiting) == [[step] for step in range(8)]


@pytest.mark.parametrize("call", ["sample", "submit", "submit_batch"])
def test_other_threads_run_while_one_waits(
    counter_stream: MakeStream, background: Any, call: str
) -> None:
    stream = counter_stream(batch_size=1, capacity=2)
    calls = {
        "sample": lambda: stream.sample(timeout=0.5),
        "submit": lambda: stream.add(2, timeout=0.5),
        "submit_batch": lambda: stream.extend(np.arange(2, 4), timeout=0.5),
    }
    if call != "sample":
        stream.extend(np.arange(2))
    stop = threading.Event()

    begun = threading.Event()

    def look_at_the_clock() -> set[int]:
        hundredths = set()
        while not stop.is_set():
            hundredths.add(int(time.monotonic() * 100))
            begun.set()
        return hundredths

    looking = background.start(look_at_the_clock)
    begun.wait()
    with pytest.raises(echoic.errors.WaitTimeoutError):
        calls[call]()
    stop.set()
    # A wait that held the GIL would leave it those before and after; a busy machine leaves it more.
    assert len(looking()) >= 10


def test_a_wait_ends_by_what_another_python_thread_does(
    counter_stream: MakeStream, background: Any
) -> None:
    stream = counter_stream(batch_size=1, capacity=2)
    sampled = background.start_and_let_block(lambda: [*stream.sample().data.tolist()])
    stream.add(1)
    assert sampled() == [1]
    stream.extend(np.arange(2))
    submitted = background.start_and_let_block(stream.add, 2)
    assert [stream.sample(timeout=5).data.tolist() for _ in range(3)] == [[0], [1], [2]]
    submitted()
