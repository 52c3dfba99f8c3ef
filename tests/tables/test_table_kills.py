"""Servers and clients of tables that are killed: what was inserted is there, whole and once."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import tiers
from echoic import Table
from forks import Killable
from polling import until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from forks import Forks

STEP = {"number": np.int64(0), "filling": np.zeros(700, np.uint8)}

# Inserts, writes, samples and updates for ever. Whatever is torn shows: a filling is the number's
# last byte, and the steps of a window follow one another.
CLIENT = """
import sys
import numpy as np
import echoic

client = echoic.connect(sys.argv[1])
rows = client.table("rows")
number = int(sys.argv[2]) * 1_000_000
writer = client.trajectory_writer(num_keep_alive_refs=3, chunk_length=2)
print("ready", flush=True)
while True:
    number += 1
    step = {"number": np.int64(number), "filling": np.full(700, number & 255, np.uint8)}
    rows.add(step)
    writer.append(step)
    if number % 5 > 2 and number % 64 > 2:
        windows = {name: column[-3:] for name, column in writer.history.items()}
        writer.create_item("windows", 1.0, windows)
    if number % 16 == 0:
        # Enough bytes for a place in the arena where there is one.
        batch = rows.sample(128)
        rows.update_priorities(batch.keys, np.ones(128), wait=False)
    if number % 64 == 0:
        writer.end_episode()
"""


def kill(client: subprocess.Popen[str]) -> None:
    client.kill()
    client.communicate()


def check_steps(data: Any) -> None:
    numbers = data["number"]
    assert (data["filling"] == (numbers & 255)[..., None]).all()
    if numbers.ndim > 1:
        assert (np.diff(numbers, axis=1) == 1).all()


@pytest.mark.parametrize(
    "transport", ["tcp", pytest.param("unix", marks=pytest.mark.nightly), "shm"]
)
def test_a_killed_client_leaves_whole_items_and_disturbs_nobody(
    forks: Forks, transport: str, tmp_path: Path
) -> None:
    address = {
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tmp_path}/echoic",
        "shm": f"shm://kills-{tmp_path.name}",
    }[transport]
    moments = random.Random(7)
    rows = Table("rows", STEP, capacity=1000, sampler=echoic.selectors.Prioritized(), seed=1)
    windows = Table("windows", capacity=300, seed=2)
    with echoic.Server(rows, windows, listen=address) as server:
        rows.add(STEP)
        running: list[subprocess.Popen[str]] = []
        try:
            for number in range(6):
                client = forks.run(CLIENT, server.address, str(number))
                assert client.stdout is not None
                running.append(client)
                assert client.stdout.readline() == "ready\n"
                # Two are at work when one of them is killed.
                if len(running) > 1:
                    time.sleep(moments.uniform(0, 0.15))
                    kill(running.pop(0))
                    check_steps(rows.get(rows.items().keys).data)
                    if len(windows):
                        check_steps(windows.get(windows.items().keys).data)
            before = rows.stats().inserts
            deadline = time.monotonic() + 20
            while rows.stats().inserts < before + 100 or len(windows) < 100:
                assert time.monotonic() < deadline, "the client that is left has stopped"
                time.sleep(0.01)
        finally:
            for client in running:
                kill(client)
        # The dead have left; a new one is served as the first was.
        until(lambda: not server.connections())
        with echoic.connect(server.address) as client:
            check_steps(client.table("rows").sample(200).data)
            check_steps(client.table("windows").sample(100).data)


PATIENCE = 60.0
KILLS = tiers.size(3, 8)

# A server at one address, with a table that writes a journal, one of trajectories that does, and
# one that comes back from checkpoints only; the ratio table is full as soon as nobody samples.
SERVE = """
import sys, warnings
import echoic, numpy as np
from pathlib import Path
warnings.simplefilter("ignore", echoic.errors.JournalWarning)
root, durability = Path(sys.argv[1]), sys.argv[2]
step = {"at": np.int64(0), "filling": np.zeros(30, np.int64)}
ratio = echoic.limiters.SampleToInsertRatio(2.0, min_size=10, error_buffer=15.0)
tables = [
    echoic.Table("rows", step, capacity=500_000, durability=durability, seed=1),
    echoic.Table("windows", capacity=500_000, durability=durability, seed=2),
    echoic.Table("saved", step, capacity=500_000, seed=3),
    echoic.Table("ratio", step, capacity=500_000, limiter=ratio, durability=durability, seed=4),
]
server = echoic.Server(
    *tables,
    listen=f"unix://{root}/echoic",
    journal=root / "journals",
    checkpointer=echoic.Checkpointer(root / "checkpoints", every=0.3),
)
with server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


class Worker(threading.Thread):
    """Inserts numbers, each its own, and does not care what becomes of the server."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__()
        self._client = echoic.connect(address, reconnect=PATIENCE, timeout=PATIENCE)
        self.first = self.next = number * 1_000_000
        # All numbers below are in their tables.
        self.flushed = self.first
        self.over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._client:
                self._work()
        except BaseException as error:  # the test raises it
            self.error = error

    def _work(self) -> None:
        filling = np.arange(30)
        with self._client.trajectory_writer(num_keep_alive_refs=2) as writer:
            while not self.over.is_set():
                # Batches are cut by the table with a ratio.
                one = {"at": np.int64(self.next), "filling": self.next + filling}
                for table in ("rows", "saved"):
                    self._client.table(table).add(one, timeout=PATIENCE)
                at = np.arange(self.next + 1, self.next + 10)
                batch = {"at": at, "filling": at[:, None] + filling}
                for table in ("rows", "saved", "ratio"):
                    self._client.table(table).extend(batch, timeout=PATIENCE)
                for number in range(self.next, self.next + 10):
                    writer.append({"at": np.int64(number)}, timeout=PATIENCE)
                    writer.create_item("windows", 1.0, {"at": writer.history["at"][-1:]})
                self.next += 10
                if self.next % 200 == 0:
                    self._client.flush(PATIENCE)
                    self.flushed = self.next
                # However long the test takes, all of it has room.
                time.sleep(0.001)
            writer.end_episode(timeout=PATIENCE)
        self._client.flush(PATIENCE)


def await_progress(workers: list[Worker]) -> None:
    """Returns when the server has taken something of each worker, however busy the machine is."""
    before = [worker.flushed for worker in workers]
    deadline = time.monotonic() + PATIENCE
    for worker, flushed in zip(workers, before, strict=True):
        while worker.flushed == flushed and worker.is_alive():
            assert time.monotonic() < deadline, "a worker does not go on"
            time.sleep(0.01)


class Learner(threading.Thread):
    """Samples what the ratio allows."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._client = echoic.connect(address, reconnect=PATIENCE, timeout=PATIENCE)
        self.over = threading.Event()
        self.drawn = 0
        self.asked = 0

    def run(self) -> None:
        with self._client:
            while not self.over.is_set():
                self.asked += 1
                try:
                    self.drawn += len(self._client.table("ratio").sample(3, timeout=0.2))
                except echoic.errors.WaitTimeoutError:
                    continue


def numbers(client: echoic.Connection, table: str) -> list[int]:
    """What a table has, in order, and each whole."""
    there = client.table(table)
    keys = there.items().keys
    if not len(keys):
        return []
    data = there.get(keys).data
    if "filling" in data:
        assert (data["filling"] == data["at"][:, None] + np.arange(30)).all()
    return sorted(data["at"].ravel().tolist())


@pytest.fixture
def place(forks: Forks, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Killable]:
    one = Killable(forks.run, SERVE, str(tmp_path), request.param)
    yield one
    one.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["async", "sync"], indirect=True)
def test_what_workers_insert_is_there_once_however_often_the_server_is_killed(
    place: Killable,
) -> None:
    # Other moments each day of a week.
    moments = random.Random(3 + tiers.part)
    workers = [Worker(place.address, number) for number in range(3)]
    learner = Learner(place.address)
    for thread in (*workers, learner):
        thread.start()
    try:
        for _ in range(KILLS):
            await_progress(workers)
            time.sleep(moments.uniform(0.0, 0.4))
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
        info = client.table("ratio").stats()
    assert info.inserts == len(sent) * 9 // 10
    # A disk that can't keep up loses more of them, but never most.
    assert learner.drawn > 100
    assert 0.5 * learner.drawn <= info.samples <= learner.drawn + 3 * (KILLS + 1)
