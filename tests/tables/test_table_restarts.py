"""Workers whose server is killed again and again: what they insert is there once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import echoic
import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0
KILLS = 8

# A server at one address, with a table that writes a journal, one of trajectories that does, and
# one that comes back from checkpoints only; the ratio table is full as soon as nobody samples.
SERVE = """
import sys, warnings
import echoic, numpy as np
from pathlib import Path
warnings.simplefilter("ignore", echoic.JournalWarning)
root, durability = Path(sys.argv[1]), sys.argv[2]
step = {"at": np.int64(0), "filling": np.zeros(30, np.int64)}
ratio = echoic.limiters.SampleToInsertRatio(2.0, min_size=10, error_buffer=15.0)
tables = [
    echoic.Table("rows", step, max_size=500_000, durability=durability, seed=1),
    echoic.Table("windows", max_size=500_000, durability=durability, seed=2),
    echoic.Table("saved", step, max_size=500_000, seed=3),
    echoic.Table("ratio", step, max_size=500_000, limiter=ratio, durability=durability, seed=4),
]
server = echoic.Server(
    tables=tables,
    transport=echoic.UnixTransport(root / "door"),
    journal=root / "journals",
    checkpointer=echoic.Checkpointer(root / "checkpoints", every=0.3),
)
with server:
    print(server.addresses[0], flush=True)
    sys.stdin.read()
"""


class Place:
    """Where a server is, as often as it is killed."""

    def __init__(self, root: Path, durability: str) -> None:
        self._command = [sys.executable, "-c", SERVE, str(root), durability]
        self.start()

    def start(self) -> None:
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        assert self._popen.stdout is not None
        self.address = self._popen.stdout.readline().strip()
        assert self.address.startswith("unix://")

    def kill(self) -> None:
        """As `kill -9` does."""
        self._popen.kill()
        self._popen.communicate(timeout=PATIENCE)


class Worker(threading.Thread):
    """Inserts numbers, each its own, and does not care what becomes of the server."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__()
        self._client = echoic.connect(address, deadline=PATIENCE, connect_timeout=PATIENCE)
        self.first = self.next = number * 1_000_000
        self.over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._client:
                self._work()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def _work(self) -> None:
        filling = np.arange(30)
        with self._client.trajectory_writer(num_keep_alive_refs=2) as writer:
            while not self.over.is_set():
                # One call inserts into two tables, and batches are cut by the one with a ratio.
                one = {"at": np.int64(self.next), "filling": self.next + filling}
                self._client.insert(one, {"rows": 1.0, "saved": 1.0}, timeout=PATIENCE)
                at = np.arange(self.next + 1, self.next + 10)
                batch = {"at": at, "filling": at[:, None] + filling}
                for table in ("rows", "saved", "ratio"):
                    self._client.insert_batch(batch, table, timeout=PATIENCE)
                for number in range(self.next, self.next + 10):
                    writer.append({"at": np.int64(number)}, timeout=PATIENCE)
                    writer.create_item("windows", 1.0, {"at": writer.history["at"][-1:]})
                self.next += 10
                # However long the test takes, all of it has room.
                time.sleep(0.001)
            writer.end_episode(timeout=PATIENCE)
        self._client.flush(PATIENCE)


class Learner(threading.Thread):
    """Samples what the ratio allows."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._client = echoic.connect(address, deadline=PATIENCE, connect_timeout=PATIENCE)
        self.over = threading.Event()
        self.drawn = 0
        self.asked = 0

    def run(self) -> None:
        with self._client:
            while not self.over.is_set():
                self.asked += 1
                try:
                    self.drawn += len(self._client.sample("ratio", 3, timeout=0.2))
                except echoic.WaitTimeoutError:
                    continue


def numbers(client: echoic.TableClient, table: str) -> list[int]:
    """What a table has, in order, and each whole."""
    there = client.table(table)
    keys = there.items().key
    if not len(keys):
        return []
    data = there.get(keys).data
    if "filling" in data:
        assert (data["filling"] == data["at"][:, None] + np.arange(30)).all()
    return sorted(data["at"].ravel().tolist())


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    one = Place(tmp_path, request.param)
    yield one
    one.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["async", "sync"], indirect=True)
def test_what_workers_insert_is_there_once_however_often_the_server_is_killed(place: Place) -> None:
    moments = random.Random(3)
    workers = [Worker(place.address, number) for number in range(3)]
    learner = Learner(place.address)
    for thread in (*workers, learner):
        thread.start()
    try:
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.2, 0.6))
            place.kill()
            time.sleep(moments.choice([0.0, 0.1]))
            place.start()
    finally:
        for worker in workers:
            worker.over.set()
        for worker in workers:
            worker.join(2 * PATIENCE)
        learner.over.set()
        learner.join(2 * PATIENCE)
    for worker in workers:
        assert worker.error is None
    sent = [number for one in workers for number in range(one.first, one.next)]
    assert len(sent) > 500
    with echoic.connect(place.address) as client:
        assert numbers(client, "rows") == sent
        assert numbers(client, "windows") == sent
        assert numbers(client, "ratio") == [number for number in sent if number % 10]
        # Of what was not in a checkpoint, this table has lost some; but it has nothing twice.
        saved = numbers(client, "saved")
        assert len(set(saved)) == len(saved)
        assert set(saved) <= set(sent)
        # The limiter counts on, as if it had been one server: samples that were answered are in,
        # and others only where a learner was not told. A few had not been written yet: with
        # "sync" those of the last write, which takes some milliseconds.
        info = client.info()["ratio"]
    assert info["inserts"] == len(sent) * 9 // 10
    # A disk that can't keep up loses more of them, but never most.
    assert learner.drawn > 100
    assert 0.5 * learner.drawn <= info["samples"] <= learner.drawn + 3 * (KILLS + 1)
