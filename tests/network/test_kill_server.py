"""A server that is killed, or ended in order, and started again at the same address under load."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from content import NOTHING, assert_run, by_producer
from polling import until
from tiers import size

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(55)

BATCH, BUFFERS, PRODUCERS, LIVES = 16, 3, 3, size(2, 4)


def taken(file: Path) -> dict[int, np.ndarray]:
    """What a server wrote down, by producer."""
    return by_producer([np.frombuffer(file.read_bytes(), np.int64).reshape(-1, 2)])


class Lives:
    """A server that ends and begins again, and its producers."""

    def __init__(self, transport: Any, processes: Any, folder: Path) -> None:
        self._processes, self._folder = processes, folder
        self.files: list[Path] = []
        self.address = transport.address()
        self.begin()
        self.address = self.server.wait_for("ready")
        self.producers = [
            processes.start(
                "send",
                self.address,
                producer=number,
                rows=number * 5,
                report=20,
                pause=0.01,
                options={"reconnect": 40},
            )
            for number in range(PRODUCERS)
        ]

    def begin(self) -> None:
        """Start the server."""
        self.files.append(self._folder / f"life-{len(self.files)}")
        self.files[-1].touch()
        self.server = self._processes.start(
            "serve",
            self.address,
            batch_size=BATCH,
            capacity=BUFFERS * BATCH,
            intake=self.files[-1],
        )

    def work(self) -> None:
        """Wait until this server has had a good number of samples of each producer."""

        def all_came() -> bool:
            # Not to spend the processor on this.
            time.sleep(0.05)
            steps = taken(self.files[-1])
            return all(len(steps.get(number, NOTHING)) > 200 for number in range(PRODUCERS))

        until(all_came)

    def end(self) -> tuple[list[int], list[dict[int, np.ndarray]]]:
        """End all in order: how much each producer sent, and what came in each life."""
        sent = [producer.stop() for producer in self.producers]
        self.server.stop()
        return sent, [taken(file) for file in self.files]


@pytest.fixture
def lives(transport: Any, processes: Any, folder: Path) -> Lives:
    return Lives(transport, processes, folder)


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"], indirect=True)
def test_clients_come_back_to_a_killed_server_and_repeat_nothing(lives: Lives) -> None:
    random_number = random.Random(1)
    for _ in range(LIVES - 1):
        lives.work()
        time.sleep(random_number.uniform(0, 0.02))
        lives.server.kill()
        # Clients also try while nobody is there.
        time.sleep(random_number.choice([0.0, 0.2]))
        lives.begin()
    lives.work()
    sent, came = lives.end()
    # Acknowledged but not yet taken, or not yet written down: gone with the server that had it.
    lost_at_most = (LIVES - 1) * BATCH * (BUFFERS + 1)
    lost = 0
    for producer, count in enumerate(sent):
        runs = [life[producer] for life in came]
        for run in runs:
            assert_run(run, start=int(run[0]), at_least=1)
        assert runs[0][0] == 0
        assert runs[-1][-1] == count - 1
        lost += count - len(np.unique(np.concatenate(runs)))
    assert lost <= lost_at_most


def test_a_server_that_ends_in_order_and_begins_again_misses_and_repeats_nothing(
    lives: Lives,
) -> None:
    for _ in range(LIVES - 1):
        lives.work()
        lives.server.signal(signal.SIGTERM)
        lives.server.done()
        lives.begin()
    lives.work()
    sent, came = lives.end()
    for producer, count in enumerate(sent):
        steps = np.concatenate([life[producer] for life in came])
        assert_run(steps, at_least=count, at_most=count)
