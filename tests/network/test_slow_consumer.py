"""A learner that stops taking for a while: producers wait, and nothing grows or is lost."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import echoic
import numpy as np
import pytest
from content import FRAME, HUGE, SMALL, assert_exactly, by_producer, example, sample
from polling import until

# The issue asks for 30 seconds; every push runs with less.
PAUSE = float(os.environ.get("ECHOIC_TEST_PAUSE", "2"))
# Shorter than the pause by far, so that waiting is not mistaken for death.
HEARTBEAT = 0.5

pytestmark = [
    pytest.mark.timeout(50 + PAUSE),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc"),
]


# The window is small, so that it is full soon.
@pytest.mark.parametrize(
    "load", [(SMALL, 1 << 14), pytest.param((FRAME, 1 << 20), marks=pytest.mark.nightly)]
)
def test_a_learner_that_stops_for_a_while(
    transport: Any, processes: Any, folder: Any, load: tuple[int, int]
) -> None:
    words, window = load
    intake = folder / "intake"
    server = processes.start(
        "serve",
        transport.address(),
        words=words,
        intake=intake,
        options={"heartbeat": HEARTBEAT},
    )
    address = server.wait_for("ready")
    senders = [
        processes.start(
            "send",
            address,
            words=words,
            producer=number,
            report=10,
            rows=rows,
            options={"window_bytes": window},
        )
        for number, rows in enumerate([0, 20])
    ]
    until(lambda: all(sender.acked > 0 for sender in senders))
    server.ask("pause")

    # Everything is full when nothing moves any more.
    def stands_still() -> bool:
        before = server.ask("inserted"), [sender.acked for sender in senders]
        time.sleep(0.3)
        return before == (server.ask("inserted"), [sender.acked for sender in senders])

    until(stands_still)
    everybody = [server, *senders]
    memory, cpu = [each.rss() for each in everybody], [each.cpu() for each in everybody]
    start = time.monotonic()
    time.sleep(PAUSE)
    passed = time.monotonic() - start
    for each, before in zip(everybody, memory, strict=True):
        assert each.rss() - before < 2 << 20
    for each, before in zip(everybody, cpu, strict=True):
        assert each.cpu() - before < 0.05 * passed + 0.05
    server.ask("resume")

    # More than the whole ring, so that the learner has really gone on.
    goals = [sender.acked + 500 for sender in senders]
    until(lambda: all(s.acked > goal for s, goal in zip(senders, goals, strict=True)))
    sent = [sender.stop() for sender in senders]
    assert [sender.said("reconnects") for sender in senders] == [["0"], ["0"]]
    assert server.stop() == sum(sent)
    steps = by_producer([np.frombuffer(intake.read_bytes(), np.int64).reshape(-1, 2)])
    for producer, count in enumerate(sent):
        assert_exactly(steps[producer], count)


def test_signs_of_life_do_not_fall_into_samples(socket_transport: Any) -> None:
    # So large that the socket takes a part of one, while several signs of life are due.
    server, intake = socket_transport.open_and_take(
        HUGE, batch_size=2, capacity=4, heartbeat=HEARTBEAT
    )
    intake.pause()
    count = 12
    window = (count + 1) * server.stream.stats().bytes_per_sample
    with echoic.connect(server.address, window_bytes=window).stream(example(HUGE)) as client:
        for step in range(count):
            client.add(sample(0, step, HUGE))
        time.sleep(4 * HEARTBEAT)
        intake.resume()
        client.flush(timeout=20)
        assert client.stats().reconnects == 0
    assert_exactly(intake.finish()[0], count)
