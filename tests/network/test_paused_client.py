"""A producer that the system stops in the middle of a sample, and lets go on later."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest
from content import HUGE, SMALL, assert_exactly
from tiers import size

pytestmark = pytest.mark.timeout(55)


def keeps_others_going(door: Any) -> bool:
    """Whether a producer that is stopped in the middle of a copy stops nobody else.

    Over shared memory it writes into the batch itself, which then waits for it: a limit that the
    guide states. What is tested there is that nothing is lost by it.
    """
    return door.kind != "shm"


@pytest.mark.parametrize("words", [SMALL, HUGE])
def test_a_stopped_producer_keeps_nobody_waiting_and_goes_on_later(
    door: Any, processes: Any, eventually: Any, words: int
) -> None:
    random_number = random.Random(f"{door.kind} {words}")
    server, intake = door.open_and_take(words, batch_size=3)
    stopped, other = (
        processes.start("send", server.addresses[0], words=words, producer=number, report=1)
        for number in range(2)
    )
    stopped.wait_for("ready")
    for _ in range(size(2, 6)):
        time.sleep(random_number.uniform(0, 0.1))
        stopped.signal(signal.SIGSTOP)
        # More than was on its way, so that it came after the stop.
        others_goal = other.acked + 30
        if keeps_others_going(door):
            eventually(lambda goal=others_goal: other.acked >= goal)
        goal = stopped.acked + 1
        stopped.signal(signal.SIGCONT)
        eventually(lambda goal=goal: stopped.acked >= goal)
        eventually(lambda goal=others_goal: other.acked >= goal)
    sent = [stopped.stop(), other.stop()]
    steps = intake.finish()
    for producer, count in enumerate(sent):
        assert_exactly(steps.pop(producer), count)
    assert not steps


@pytest.mark.parametrize("words", [SMALL, HUGE])
def test_a_producer_that_was_given_up_while_it_was_stopped_comes_back(
    door: Any, processes: Any, eventually: Any, words: int
) -> None:
    server, intake = door.open_and_take(words, batch_size=3, heartbeat=0.2)
    stopped, other = (
        processes.start("send", server.addresses[0], words=words, producer=number, report=1)
        for number in range(2)
    )
    for process in (stopped, other):
        process.wait_for("ready")
    for _ in range(2):
        time.sleep(0.05)
        stopped.signal(signal.SIGSTOP)
        # Longer than the server waits for a sign of life.
        start = time.monotonic()
        others_goal = other.acked + 30
        eventually(lambda start=start: time.monotonic() - start > 1.0)
        if keeps_others_going(door):
            eventually(lambda goal=others_goal: other.acked >= goal)
        goal = stopped.acked + 1
        stopped.signal(signal.SIGCONT)
        eventually(lambda goal=goal: stopped.acked >= goal)
        eventually(lambda goal=others_goal: other.acked >= goal)
    sent = [stopped.stop(), other.stop()]
    steps = intake.finish()
    for producer, count in enumerate(sent):
        assert_exactly(steps.pop(producer), count)
    assert not steps
