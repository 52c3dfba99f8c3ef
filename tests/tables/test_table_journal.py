"""Tables with journals: what survives a server that is killed, and what is refused."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import tiers
from echoic import Table
from forks import Killable

if TYPE_CHECKING:
    from pathlib import Path

    from forks import Forks

STEP = {"obs": np.zeros(4, np.float32), "at": np.int64(0)}
ROUNDS = tiers.size(20, 100)
WINDOW = 3


def rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Items that are known by their number."""
    obs = np.repeat(numbers.astype(np.float32), 4).reshape(-1, 4)
    return {"obs": obs, "at": numbers}


class Ledger:
    """What a client was told is kept, and what it has asked for and not been told about."""

    def __init__(self) -> None:
        self.next = 0
        # Numbers of rows and of windows that must be there, and those that may be.
        self.rows: set[int] = set()
        self.asked: set[int] = set()
        self.windows: set[int] = set()
        self.deleted: set[int] = set()
        self.deleting: set[int] = set()
        # By number: keys that were seen, and priorities that may be there.
        self.keys: dict[int, int] = {}
        self.priorities: dict[int, set[float]] = {}
        self.calls = 0

    def work(self, address: str) -> None:
        """Change things until the server is gone."""
        try:
            client = echoic.connect(address, timeout=1.0, reconnect=0.01, linger=0.0)
        except echoic.errors.DisconnectedError:
            return
        with (
            contextlib.suppress(echoic.errors.DisconnectedError),
            client.trajectory_writer(num_keep_alive_refs=WINDOW + 1) as writer,
        ):
            while True:
                self.insert(client)
                self.insert_windows(writer)
                self.change(client)
        with contextlib.suppress(echoic.EchoicError):
            client.close(timeout=0)

    def numbers(self, count: int) -> np.ndarray:
        self.next += count
        return np.arange(self.next - count, self.next)

    def insert(self, client: echoic.Connection) -> None:
        numbers = self.numbers(8)
        self.asked.update(numbers.tolist())
        self.priorities.update((int(number), {1.0}) for number in numbers)
        client.table("rows").extend(rows(numbers[:7]))
        one = {"obs": np.full(4, numbers[7], np.float32), "at": numbers[7]}
        client.table("rows").add(one)
        client.flush(5)
        self.rows.update(numbers.tolist())
        self.calls += 1

    def insert_windows(self, writer: echoic.TrajectoryWriter) -> None:
        # Some steps more than the items need, so that chunks are shared and begin anywhere.
        numbers = self.numbers(5).tolist()
        for number in numbers:
            writer.append({"at": np.int64(number), "obs": np.full(4, number, np.float32)})
        history = writer.history
        for end in (0, 1):
            stop = len(history["at"]) - end
            window = {name: history[name][stop - WINDOW : stop] for name in ("at", "obs")}
            writer.create_item("windows", 1.0, window)
        writer.end_episode(timeout=5)
        self.windows.update({numbers[-WINDOW], numbers[-WINDOW - 1]})
        self.calls += 1

    def change(self, client: echoic.Connection) -> None:
        batch = client.table("rows").sample(6, timeout=5)
        numbers, keys = batch.data["at"].tolist(), batch.keys
        self.keys.update(zip(numbers, keys.tolist(), strict=True))
        priority = 2.0 + self.calls
        for number in numbers[:4]:
            self.priorities[number].add(priority)
        client.table("rows").update_priorities(keys[:4], np.full(4, priority))
        for number in numbers[:4]:
            self.priorities[number] = {priority}
        self.deleting.add(numbers[5])
        client.table("rows").remove(keys[5:])
        self.deleted.add(numbers[5])
        self.calls += 1

    def compare(self, path: Path) -> None:
        """See whether a server that was made has it all; from now on that is what there is."""
        content = np.load(path)
        numbers = content["rows.at"].tolist() if "rows.at" in content else []
        assert len(set(numbers)) == len(numbers), "a row is there twice"
        found = set(numbers)
        lost = self.rows - self.deleting - found
        assert not lost, f"acknowledged rows are lost: {sorted(lost)}"
        assert not found & self.deleted, "rows that were deleted are there"
        assert found <= self.asked, "rows are there that nobody inserted"
        keys, priorities = content["rows.key"].tolist(), content["rows.priority"].tolist()
        for number, key, priority in zip(numbers, keys, priorities, strict=True):
            assert self.keys.get(number, key) == key
            allowed = self.priorities[number]
            assert priority in allowed, f"row {number} has {priority}, not one of {allowed}"
            self.priorities[number] = {priority}
        if numbers:
            assert (content["rows.obs"] == rows(np.array(numbers))["obs"]).all()
        if "windows.at" in content:
            windows = content["windows.at"]
            assert (windows == windows[:, :1] + np.arange(WINDOW)).all()
            assert (content["windows.obs"] == windows[:, :, None]).all()
            there = set(windows[:, 0].tolist())
        else:
            there = set()
        lost = self.windows - there
        assert not lost, f"acknowledged trajectories are lost: {sorted(lost)}"
        self.rows, self.windows = found, there
        self.deleting = set(self.deleted)
        # Keys of items that were sampled and lost may be given to others.
        self.keys = {number: key for number, key in self.keys.items() if number in found}


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    forks: Forks, tmp_path: Path
) -> None:
    def start(*words: str) -> Killable:
        return Killable(forks.start, "journalled_server:main", str(tmp_path), *words)

    # Other moments each day of a week.
    random = np.random.default_rng(7 + tiers.part)
    ledger, calls = Ledger(), 0
    for number in range(ROUNDS):
        durability = "sync" if number % 10 == 9 else "async"
        checkpoints = "with" if number % 3 == 2 else "without"
        server = start(durability, checkpoints)
        ledger.compare(tmp_path / "content.npz")
        worker = threading.Thread(target=ledger.work, args=(server.address,), daemon=True)
        worker.start()
        time.sleep(random.uniform(0.0, 0.12))
        server.kill()
        worker.join(60)
        assert not worker.is_alive()
        calls = ledger.calls
    server = start("async", "without")
    server.kill()
    ledger.compare(tmp_path / "content.npz")
    assert calls > ROUNDS, "hardly anything was acknowledged"


def journalled(path: Path, durability: Any = "async", **options: Any) -> echoic.Server:
    tables = [
        Table("rows", STEP, capacity=50, durability=durability, seed=1),
        Table("windows", capacity=50, durability=durability, seed=2),
        Table("forgotten", 0, capacity=5),
    ]
    return echoic.Server(*tables, journal=path / "journals", **options)


@pytest.mark.parametrize("durability", ["async", "sync"])
def test_a_server_goes_on_where_the_last_one_was(tmp_path: Path, durability: str) -> None:
    with journalled(tmp_path, durability) as first:
        client = echoic.connect(first)
        client.table("rows").extend(rows(np.arange(60)), np.arange(60) + 1.0)
        client.table("forgotten").add(0)
        with client.trajectory_writer(num_keep_alive_refs=4) as writer:
            for number in range(20):
                writer.append({"at": number})
                if number >= 3:
                    writer.create_item("windows", 1.0, {"at": writer.history["at"][-4:]})
        for table in client.tables.values():
            table.publish_version(7)
        keys = client.table("rows").sample(5).keys
        client.table("rows").update_priorities(keys[:3], [5.0, 6.0, 7.0])
        client.table("rows").remove(keys[4:])
        stats = {name: table.stats() for name, table in client.tables.items()}
        assert stats["rows"].journal_kept == stats["rows"].journal_records > 4
        assert stats["forgotten"].journal_kept is None
        items = {name: client.table(name).items() for name in ("rows", "windows")}
        data = {name: client.table(name).get(items[name].keys).data for name in items}
    with journalled(tmp_path, durability) as second:
        client = echoic.connect(second)
        for name, expected in items.items():
            found = client.table(name).items()
            assert (found.keys == expected.keys).all()
            assert (found.info.priorities == expected.info.priorities).all()
            assert (found.info.versions == expected.info.versions).all()
            there = client.table(name).get(found.keys).data
            assert all((there[leaf] == data[name][leaf]).all() for leaf in there)
            there, before = client.table(name).stats(), stats[name]
            for number in ("inserts", "samples", "deletions", "version", "size"):
                assert getattr(there, number) == getattr(before, number), number
        assert len(client.table("forgotten")) == 0


def test_a_checkpoint_and_the_journal_go_together(tmp_path: Path) -> None:
    checkpointer = echoic.Checkpointer(tmp_path / "checkpoints")
    with journalled(tmp_path, checkpointer=checkpointer) as first:
        client = echoic.connect(first)
        client.table("rows").extend(rows(np.arange(10)))
        client.table("forgotten").add(1)
        first.checkpoint()
        client.table("rows").extend(rows(np.arange(10, 15)))
        client.table("forgotten").add(2)
        keys = client.table("rows").items().keys
        with pytest.raises(echoic.errors.CheckpointError, match="it has a journal"):
            first._load(tmp_path / "checkpoints")
    with journalled(tmp_path, checkpointer=checkpointer) as second:
        client = echoic.connect(second)
        assert (client.table("rows").items().keys == keys).all()
        assert len(client.table("forgotten")) == 1
        assert sorted(client.table("rows").get(keys).data["at"]) == list(range(15))


def test_a_durability_without_a_place_for_journals_is_refused() -> None:
    table = Table("rows", STEP, capacity=5, durability="sync")
    assert table.durability == "sync"
    with pytest.raises(ValueError, match=r"'rows' has durability 'sync'.*journal=DIRECTORY"):
        echoic.Server(table)
    with pytest.raises(ValueError, match='"none", "async" or "sync", got "always"'):
        Table("rows", STEP, capacity=5, durability="always")  # type: ignore[arg-type]


def test_tables_without_durability_write_no_journal(tmp_path: Path) -> None:
    with echoic.Server(Table("rows", 0, capacity=5), journal=tmp_path / "j") as server:
        echoic.connect(server).table("rows").add(1)
    assert not list((tmp_path / "j").iterdir())


def test_a_table_with_items_or_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    table = Table("rows", STEP, capacity=5, durability="async")
    table.add({"obs": np.zeros(4, np.float32), "at": 1})
    with pytest.raises(ValueError, match='"rows" has 1 items already'):
        echoic.Server(table, journal=tmp_path)
    with journalled(tmp_path), pytest.raises(OSError, match="is in use"):
        journalled(tmp_path)


def only_segment(path: Path, table: str) -> Path:
    return next((path / "journals" / table).glob("log-*/journal-*.log"))


def test_a_torn_end_is_warned_of_and_damage_is_refused(tmp_path: Path) -> None:
    with journalled(tmp_path) as first:
        for number in range(3):
            echoic.connect(first).table("rows").extend(rows(np.arange(number, number + 1)))
    segment = only_segment(tmp_path, "rows")
    segment.write_bytes(segment.read_bytes()[:-5])
    # The third item was acknowledged, and the file was cut afterwards.
    with pytest.warns(
        echoic.errors.JournalWarning, match="'rows' ends in .* up to 1 acknowledged items"
    ):
        second = journalled(tmp_path)
    with second:
        assert len(echoic.connect(second).table("rows")) == 2
        echoic.connect(second).table("rows").extend(rows(np.arange(9, 10)))
    # From the middle, where there are records behind that were durable.
    damaged = bytearray(segment.read_bytes())
    damaged[70] ^= 0xFF
    segment.write_bytes(damaged)
    with pytest.raises(echoic.errors.JournalError, match="is damaged at byte"):
        journalled(tmp_path)


FULL_DISK = """
import resource, sys, numpy as np, echoic
from pathlib import Path
table = echoic.Table("rows", np.zeros(1000), capacity=100, durability="async")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
server = echoic.Server(table, listen="tcp://127.0.0.1:0", journal=sys.argv[1])
server.start()
stored = 0
try:
    for _ in range(50):
        table.add(np.zeros(1000))
        stored += 1
except OSError as error:
    print(type(error).__name__, "takes no more records" in str(error))
print(5 < stored < 15, len(table.sample(4).keys))
for change in (lambda: table.remove([0]), lambda: table.update_priorities([0], [2.0]), table.clear):
    try:
        change()
    except OSError:
        print("refused")
try:
    with echoic.connect(server.address) as remote:
        remote.table("rows").add(np.zeros(1000))
        remote.flush(20)
except OSError as error:
    print(type(error).__name__, error.code)
try:
    with echoic.connect(server.address) as remote:
        remote.table("rows").update_priorities([0], [2.0])
except OSError as error:
    print(type(error).__name__)
server.close()

# What is in the table, and fails to be written afterwards, is not acknowledged either.
table = echoic.Table("rows", np.zeros(1000), capacity=100, durability="async")
other = echoic.Table("few", np.float32(0), capacity=30_000, durability="async")
server = echoic.Server(
    table, other, listen="tcp://127.0.0.1:0", journal=sys.argv[1] + "-2"
)
server.start()
try:
    with echoic.connect(server.address) as remote:
        remote.table("rows").extend(np.zeros((20, 1000)))
        remote.flush(20)
except OSError as error:
    # More than the disk took: how many came before it said so depends on the moment.
    print(type(error).__name__, error.code, len(table) > 11)
other.add(0.0)
try:
    with echoic.connect(server.address) as remote:
        few = remote.table("few")
        key = few.sample(1).keys
        few.update_priorities(np.repeat(key, 20_000), np.full(20_000, 2.0))
except OSError as error:
    print(type(error).__name__, other.items().info.priorities)
server.close()
"""


def test_a_full_disk_is_an_error_where_it_shows_and_the_table_lives(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "journals")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout.split("\n")[:-1] == [
        "OSError True",
        "True 4",
        *["refused"] * 3,
        "RefusedError JOURNAL",
        "OSError",
        "RefusedError JOURNAL True",
        "OSError [2.]",
    ], run.stderr


def test_many_threads_share_the_way_to_the_disk(tmp_path: Path) -> None:
    with journalled(tmp_path, "sync") as server:
        table = echoic.connect(server).table("rows")
        threads = [
            threading.Thread(
                target=lambda: [
                    table.add({"obs": np.zeros(4, np.float32), "at": 1}) for _ in range(20)
                ]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert table.stats().inserts == 80
        assert table.stats().journal_kept == 80
    with journalled(tmp_path, "sync") as server:
        assert echoic.connect(server).table("rows").stats().inserts == 80


def test_a_stream_comes_back_beside_a_table_with_a_journal(tmp_path: Path) -> None:
    def serve(stream: echoic.Stream) -> echoic.Server:
        table = Table("replay", np.int64(0), capacity=100, durability="async")
        keeper = echoic.Checkpointer(tmp_path / "checkpoints")
        return echoic.Server(stream, table, checkpointer=keeper, journal=tmp_path / "journal")

    stream = echoic.Stream(np.int64(0), batch_size=2, capacity=4)
    with serve(stream) as first:
        stream.add(1)
        echoic.connect(first).table("replay").add(10)
        first.checkpoint()
        # Only the table survives what comes after the checkpoint.
        stream.add(2)
        echoic.connect(first).table("replay").add(20)
    stream = echoic.Stream(np.int64(0), batch_size=2, capacity=4)
    with serve(stream) as second:
        table = echoic.connect(second).table("replay")
        assert sorted(table.get(table.items().keys).data.tolist()) == [10, 20]
        stream.add(3)
        assert stream.sample(1.0).data.tolist() == [1, 3]
