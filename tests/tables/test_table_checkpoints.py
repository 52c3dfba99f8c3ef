"""Checkpoints from Python: what is written, what comes back, what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import Checkpointer, Table, _native, selectors
from polling import until

if TYPE_CHECKING:
    from pathlib import Path

STEP = {"obs": np.zeros(3, np.float32), "at": np.int64(0)}


def server(path: Path, **options: Any) -> echoic.Server:
    tables = [
        Table("rows", STEP, capacity=50, sampler=selectors.Prioritized(0.5), seed=1),
        Table("windows", capacity=50, seed=2),
    ]
    return echoic.Server(*tables, checkpointer=Checkpointer(path, **options))


def fill(one: echoic.Server) -> None:
    client = echoic.connect(one)
    at = np.arange(70)
    obs = np.repeat(at, 3).reshape(70, 3).astype(np.float32)
    client.table("rows").extend({"obs": obs, "at": at}, at + 1.0)
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for number in range(20):
            writer.append({"at": number})
            if number >= 2:
                writer.create_item("windows", 1.0, {"at": writer.history["at"][-3:]})


def test_a_server_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    with server(tmp_path) as first:
        fill(first)
        client = echoic.connect(first)
        client.table("rows").sample(10)
        place = first.checkpoint()
        assert place.parent == tmp_path
        with server(tmp_path) as second:
            other = echoic.connect(second)
            for table in ("rows", "windows"):
                assert other.table(table).stats() == client.table(table).stats()
                one, two = (end.table(table).sample(100) for end in (client, other))
                assert (one.keys == two.keys).all()
                assert (one.info.probabilities == two.info.probabilities).all()
                assert (one.data["at"] == two.data["at"]).all()
        with server(tmp_path, load=False) as third:
            assert len(echoic.connect(third).table("rows")) == 0


def test_inserts_into_a_full_table_go_on_while_checkpoints_are_written(
    tmp_path: Path, background: Any
) -> None:
    """Of a full table, few rows are spare, and a checkpoint withholds those that items leave."""
    step = np.zeros(1000, np.uint8)
    table = Table("rows", step, capacity=5000, seed=1)
    many = np.repeat(step[None], 5000, axis=0)
    with echoic.Server(table, checkpointer=Checkpointer(tmp_path, keep=1)) as one:
        table.extend(many)
        done = threading.Event()

        def insert() -> None:
            for _ in range(5):
                table.extend(many, timeout=30)
            done.set()

        inserted = background.start(insert)
        # A wait that nothing ends, whatever the number of checkpoints, ends in an error.
        deadline = time.monotonic() + 40
        while not done.is_set() and time.monotonic() < deadline:
            one.checkpoint()
        inserted()
        assert table.stats().inserts == 30_000


FULL_DISK = """
import errno, resource, signal, sys
import echoic, numpy as np
from echoic.rollouts import RolloutTable

def rollouts(**settings):
    return RolloutTable(
        "r", {"tokens": "int32"}, batch_groups=99, group_size=1, max_blob_bytes=50_000, **settings
    )

def fill(table):
    for reservation in table.reserve_many(20):
        reservation.add({"tokens": np.arange(9, dtype=np.int32)}, blobs={"image": bytes(40_000)})

def refused(call):
    try:
        call()
    except OSError as error:
        print(errno.errorcode.get(error.errno), "File too large" in str(error))

def checkpoint(name, store):
    with echoic.Server(store, checkpointer=echoic.Checkpointer(sys.argv[1] + name)) as server:
        server.checkpoint()

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
table, here, kept = echoic.Table("t", np.zeros(99_000), capacity=9), rollouts(), rollouts(
    directory=sys.argv[1] + "/kept", durability="sync"
)
table.add(np.ones(99_000))
fill(here)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
refused(lambda: checkpoint("/tables", table))
refused(lambda: checkpoint("/rollouts", here))
try:
    fill(kept)
except OSError:
    refused(kept.checkpoint)
"""


def test_a_full_disk_is_told_as_an_error_of_the_system(tmp_path: Path) -> None:
    """A limit of a file's size stands for the end of the disk."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout.splitlines() == ["EFBIG True"] * 3, ended.stderr


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    with server(tmp_path, keep=2) as one:
        places = []
        for number in range(4):
            echoic.connect(one).table("rows").add({"obs": STEP["obs"], "at": number})
            places.append(one.checkpoint())
        assert _native.list_checkpoints(tmp_path) == places[-2:]
    assert _native.verify_checkpoint(tmp_path)["path"] == places[-1]
    tables = {table.name: table for table in _native.open_checkpoint(places[-2])}
    assert tables["rows"].get(tables["rows"].items().keys).data["at"].tolist() == [0, 1, 2]


def test_a_checkpoint_is_made_on_schedule(tmp_path: Path) -> None:
    with server(tmp_path, every=0.05) as one:
        fill(one)
        until(lambda: len(_native.list_checkpoints(tmp_path)) >= 2)
    with server(tmp_path, every=float("inf")) as other:
        assert len(echoic.connect(other).table("rows")) in (0, 50)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(echoic.errors.CheckpointError, match="not ours"):
        server(tmp_path)
    with server(tmp_path, load=False) as one, pytest.raises(echoic.errors.CheckpointError):
        one.checkpoint()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(TypeError, match="no checkpointer"):
        echoic.Server(Table("t", STEP, capacity=1)).checkpoint()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        fill(one)
        place = one.checkpoint()
    section = max(place.glob("section-*"), key=lambda file: file.stat().st_size)
    bytes_ = bytearray(section.read_bytes())
    bytes_[len(bytes_) // 2] ^= 1
    section.write_bytes(bytes_)
    with pytest.raises(echoic.errors.CheckpointError, match=section.name):
        _native.verify_checkpoint(tmp_path)
    with pytest.raises(echoic.errors.CheckpointError):
        server(tmp_path)


@pytest.mark.parametrize("settings", [{"keep": 0}, {"every": 0.0}, {"every": float("nan")}])
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        Checkpointer(tmp_path, **settings)


def test_a_verification_tells_how_far_it_is(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        fill(one)
        one.checkpoint()
    steps: list[tuple[int, int]] = []
    _native.verify_checkpoint(tmp_path, lambda done, total: steps.append((done, total)))
    assert steps
    assert all(0 <= done <= total for done, total in steps)
    with pytest.raises(KeyboardInterrupt):
        _native.verify_checkpoint(tmp_path, interrupt)


def interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


def test_what_nobody_took_of_a_stream_comes_back(tmp_path: Path) -> None:
    stream = echoic.Stream(STEP, batch_size=4, capacity=12)
    with echoic.Server(stream, checkpointer=Checkpointer(tmp_path)) as first:
        for at in range(10):
            stream.add({"obs": np.full(3, at, np.float32), "at": at})
        assert stream.sample().data["at"].tolist() == [0, 1, 2, 3]
        first.checkpoint()
    # Batches of another size are as good.
    stream = echoic.Stream(STEP, batch_size=5, capacity=10)
    with echoic.Server(stream, checkpointer=Checkpointer(tmp_path)):
        for at in range(10, 14):
            stream.add({"obs": np.full(3, at, np.float32), "at": at})
        sample = stream.sample(1.0)
        assert sample.data["at"].tolist() == [4, 5, 6, 7, 8]
        assert sample.data["obs"][:, 2].tolist() == [4, 5, 6, 7, 8]
        assert stream.sample(1.0).data["at"].tolist() == [9, 10, 11, 12, 13]
    stream = echoic.Stream(STEP, batch_size=2, capacity=4)
    with pytest.raises(echoic.errors.CheckpointError, match=r"6 unread samples .* room for 4"):
        echoic.Server(stream, checkpointer=Checkpointer(tmp_path))
    with pytest.raises(
        echoic.errors.CheckpointError, match="the checkpoint has one, the server has not"
    ):
        server(tmp_path)


@pytest.mark.parametrize("transport", ["process", "tcp", "unix"])
def test_a_client_has_a_checkpoint_written(transport: str, tmp_path: Path) -> None:
    addresses = {
        "process": None,
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tmp_path}/echoic",
    }
    table = Table("rows", STEP, capacity=50)
    keeper = Checkpointer(tmp_path / "saved")
    with (
        echoic.Server(table, listen=addresses[transport], checkpointer=keeper) as one,
        echoic.connect(one) if transport == "process" else echoic.connect(one.address) as client,
    ):
        client.table("rows").add({"obs": STEP["obs"], "at": 7})
        client.flush()
        [place] = client.checkpoint(timeout=20).values()
        assert place.parent == tmp_path / "saved"
        (saved,) = _native.open_checkpoint(place)
        assert saved.get(saved.items().keys).data["at"].tolist() == [7]
        assert client.checkpoint()[client.address] > place


def test_a_client_learns_why_there_is_no_checkpoint(tmp_path: Path) -> None:
    table = Table("rows", STEP, capacity=50)
    with (
        echoic.Server(table, listen="tcp://127.0.0.1:0") as one,
        echoic.connect(one.address) as client,
    ):
        with pytest.raises(TypeError, match="no checkpointer"):
            echoic.connect(one).checkpoint()
        with pytest.raises(echoic.errors.CheckpointError, match="no checkpointer"):
            client.checkpoint()
    (tmp_path / "mine.txt").write_text("not a checkpoint")
    keeper = Checkpointer(tmp_path, load=False)
    table = Table("rows", STEP, capacity=50)
    with (
        echoic.Server(table, listen="tcp://127.0.0.1:0", checkpointer=keeper) as one,
        echoic.connect(one.address) as client,
    ):
        with pytest.raises(echoic.errors.CheckpointError, match=r"mine\.txt"):
            client.checkpoint()
        client.table("rows").add(STEP)
        assert len(client.table("rows").sample(1)) == 1
