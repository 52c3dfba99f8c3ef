"""Producers that are killed, or stopped for a while, at any moment.

Of those that are killed an unfinished sample is all that is lost; those that are stopped go on.
"""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import numpy as np
import pytest
from content import FRAME, HUGE, NOTHING, SMALL, assert_exactly, assert_run
from polling import until
from tiers import size

pytestmark = pytest.mark.timeout(55)


def in_order(transport: Any, steps: np.ndarray) -> np.ndarray:
    """Put the steps of a producer in order where killing another may have changed it.

    Over shared memory, the slot that a killed producer leaves in an older batch is filled by
    whoever comes next, which is the only way for that batch to become complete.
    """
    return np.sort(steps) if transport.kind == "shm" else steps


# Over all transports, fifty kills at full size. Large samples are nearly always cut in the middle.
@pytest.mark.parametrize(
    "load", [(SMALL, size(3, 7), 32), (FRAME, size(3, 6), 32), (HUGE, size(3, 4), 3)]
)
def test_killed_producers_leave_no_hole_and_nothing_acknowledged_is_lost(
    transport: Any, processes: Any, load: tuple[int, int, int]
) -> None:
    words, kills, batch_size = load
    random_number = random.Random(f"{transport.kind} {words}")
    server, intake = transport.open_and_take(words, batch_size)
    address = server.address
    # Slow enough to leave the victims some of the processor.
    others = [
        processes.start("send", address, words=words, producer=number, report=20, pause=0.005)
        for number in range(2)
    ]
    victims: list[Any] = []
    while len(victims) < kills:
        group = [
            processes.start(
                "send",
                address,
                words=words,
                producer=2 + len(victims) + number,
                rows=random_number.choice([0, 0, 1, 5] if words == HUGE else [0, 0, 1, 100]),
                report=random_number.choice([1, 10]),
            )
            for number in range(min(4, kills - len(victims)))
        ]
        for victim in group:
            # Some are killed while they start or connect.
            if random_number.random() < 0.9:
                victim.wait_for("ready")
            time.sleep(random_number.uniform(0, 0.05))
            victim.kill()
        victims += group

    before = [other.acked for other in others]
    until(lambda: all(now.acked > then for now, then in zip(others, before, strict=True)))
    sent = [other.stop() for other in others]
    steps = intake.finish()
    for producer, count in enumerate(sent):
        assert_exactly(in_order(transport, steps.pop(producer)), count)
    for producer, victim in enumerate(victims, 2):
        assert_run(in_order(transport, steps.pop(producer, NOTHING)), at_least=victim.acked)
    assert not steps
    assert server.stream.stats().inserted_total == intake.count


def test_producers_killed_while_they_wait_for_room_leave_no_hole(
    transport: Any, processes: Any
) -> None:
    server, intake = transport.open_and_take(FRAME, batch_size=5, capacity=10)
    intake.pause()
    address = server.address
    victims = [
        processes.start("send", address, words=FRAME, producer=number, rows=3, report=1)
        for number in range(4)
    ]
    for victim in victims:
        victim.wait_for("ready")
    # One batch is taken and looked at, the other is full.
    until(lambda: server.stream.stats().inserted_total == 10)
    time.sleep(0.1)
    for victim in victims:
        victim.kill()
    other = processes.start("send", address, words=FRAME, producer=9, count=100)
    other.wait_for("ready")
    intake.resume()
    assert other.done() == 100
    steps = intake.finish()
    assert_exactly(in_order(transport, steps.pop(9)), 100)
    for producer, victim in enumerate(victims):
        assert_run(in_order(transport, steps.pop(producer, NOTHING)), at_least=victim.acked)
    assert server.stream.stats().inserted_total == intake.count


def keeps_others_going(transport: Any) -> bool:
    """Whether a producer that is stopped in the middle of a copy stops nobody else.

    Over shared memory it writes into the batch itself, which then waits for it: a limit that the
    guide states. What is tested there is that nothing is lost by it.
    """
    return transport.kind != "shm"


@pytest.mark.parametrize("words", [SMALL, HUGE])
def test_a_stopped_producer_keeps_nobody_waiting_and_goes_on_later(
    transport: Any, processes: Any, words: int
) -> None:
    random_number = random.Random(f"{transport.kind} {words}")
    server, intake = transport.open_and_take(words, batch_size=3)
    stopped, other = (
        processes.start("send", server.address, words=words, producer=number, report=1)
        for number in range(2)
    )
    stopped.wait_for("ready")
    for _ in range(size(2, 6)):
        time.sleep(random_number.uniform(0, 0.1))
        stopped.signal(signal.SIGSTOP)
        # More than was on its way, so that it came after the stop.
        others_goal = other.acked + 30
        if keeps_others_going(transport):
            until(lambda goal=others_goal: other.acked >= goal)
        goal = stopped.acked + 1
        stopped.signal(signal.SIGCONT)
        until(lambda goal=goal: stopped.acked >= goal)
        until(lambda goal=others_goal: other.acked >= goal)
    sent = [stopped.stop(), other.stop()]
    steps = intake.finish()
    for producer, count in enumerate(sent):
        assert_exactly(steps.pop(producer), count)
    assert not steps


@pytest.mark.parametrize("words", [SMALL, HUGE])
def test_a_producer_that_was_given_up_while_it_was_stopped_comes_back(
    transport: Any, processes: Any, words: int
) -> None:
    server, intake = transport.open_and_take(words, batch_size=3, heartbeat=0.2)
    stopped, other = (
        processes.start("send", server.address, words=words, producer=number, report=1)
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
        until(lambda start=start: time.monotonic() - start > 1.0)
        if keeps_others_going(transport):
            until(lambda goal=others_goal: other.acked >= goal)
        goal = stopped.acked + 1
        stopped.signal(signal.SIGCONT)
        until(lambda goal=goal: stopped.acked >= goal)
        until(lambda goal=others_goal: other.acked >= goal)
    sent = [stopped.stop(), other.stop()]
    steps = intake.finish()
    for producer, count in enumerate(sent):
        assert_exactly(steps.pop(producer), count)
    assert not steps
