"""Rollout tables that survive their process, and what was done with them once more."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.cli.app import app
from echoic.errors import JournalError, JournalWarning, LeaseError, RolloutError
from echoic.rollouts import History, RolloutTable
from rollout_items import columns, fill
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from echoic.rollouts import RolloutBatch

    from conftest import Background

    Make = Callable[..., RolloutTable]


def everything(batch: RolloutBatch) -> dict[str, Any]:
    """All that a batch tells, as plain values."""
    arrays = {**batch.columns, **batch.fields, "versions": batch.versions}
    found: dict[str, Any] = {name: array.tobytes() for name, array in arrays.items()}
    found |= {"groups": batch.group_ids.tolist(), "target": batch.target, "lease": batch.lease}
    found |= {"keys": batch.keys, "sources": batch.sources, "lags": batch.lag_oldest.tolist()}
    return found


def test_a_table_goes_on_where_it_was(make: Make, tmp_path: Path) -> None:
    table = make(directory=tmp_path, max_lag=3, batch_groups=1)
    fill(table.reserve(key="a"), [0, 1])
    running = table.reserve(key="b")
    running.extend(0, columns(3))
    table.publish_version(2)
    out = table.sample(lease=60)
    before = table.stats()
    table.close()
    table = make(directory=tmp_path, max_lag=3, batch_groups=1)
    after = table.stats()
    for name in ("submitted", "running", "accepted", "delivered", "version", "leased"):
        assert getattr(after, name) == getattr(before, name), name
    # The producer and the consumer go on with what they have.
    running = table.reservation(running)
    running.finish(0, {"reward": 0, "prompt": 0})
    assert running.add(columns(1), {"reward": 1, "prompt": 0}, item=1) == "complete"
    table._native.ack(out.lease)
    assert table.sample().keys == ["b"]


def test_other_settings_are_refused(make: Make, tmp_path: Path) -> None:
    make(directory=tmp_path, group_size=2).close()
    with pytest.raises(RolloutError, match="group_size"):
        make(directory=tmp_path, group_size=3)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_an_end_that_was_dropped_is_warned_of(make: Make, tmp_path: Path, damage: str) -> None:
    table = make(directory=tmp_path)
    table.reserve(key="first")
    table.reserve(key="last")
    table.close()
    (segment,) = tmp_path.glob("journal/*.log")
    found = bytearray(segment.read_bytes())
    if damage == "cut":
        del found[-5:]
    else:
        found[-5] ^= 0xFF
    segment.write_bytes(found)
    # Both were acknowledged, and the file was damaged afterwards.
    with pytest.warns(JournalWarning, match=r"'math' ends in .* up to \d acknowledged changes"):
        table = make(directory=tmp_path)
    assert table.stats().running == 1
    table.close()
    # It is gone, so the next time there is nothing to warn of.
    make(directory=tmp_path).close()


def test_a_directory_in_use_is_refused(make: Make, tmp_path: Path) -> None:
    make(directory=tmp_path)
    with pytest.raises(OSError, match="is in use"):
        make(directory=tmp_path)
    with pytest.raises(OSError, match="is in use"):
        History(tmp_path)


def test_checkpoints_need_a_directory(make: Make) -> None:
    with pytest.raises(JournalError):
        make().checkpoint()


@pytest.mark.parametrize("order", ["submission", "ready", "weighted"])
def test_a_replay_delivers_the_same_bit_for_bit(
    make: Make, tmp_path: Path, background: Background, order: str
) -> None:
    uses = 2 if order == "weighted" else 1
    settings = {"order": order, "max_uses": uses, "max_lag": 2, "seed": 5}
    table = make(directory=tmp_path, history=True, durability="none", **settings)
    stop = threading.Event()

    def produce(worker: int) -> None:
        rng = np.random.default_rng(worker)
        while not stop.is_set():
            try:
                reservation = table.reserve(source=str(worker), timeout=0.05)
            except TimeoutError:
                continue
            fill(reservation, rng.normal(size=2).tolist(), length=int(rng.integers(1, 40)))

    workers = [background.start(produce, worker) for worker in range(3)]
    live = []
    for version in range(1, 31):
        with table.sample(lease=60, timeout=30) as batch:
            live.append(everything(batch))
        if version == 15:
            table.checkpoint()
        table.publish_version(version)
    stop.set()
    for worker in workers:
        worker()
    table.close()
    assert [everything(delivered.batch) for delivered in History(tmp_path)] == live
    # From the middle on, too, and as often as one likes.
    later = [everything(delivered.batch) for delivered in History(tmp_path, ("batch", 20))]
    assert later == live[20:]
    assert History(tmp_path, ("batch", 20)).stats().batches == 20


def test_a_point_that_is_not_there_is_refused(make: Make, tmp_path: Path) -> None:
    table = make(directory=tmp_path, history=True, batch_groups=1)
    fill(table.reserve(), [0, 1])
    table.sample()
    table.close()
    with pytest.raises(JournalError, match="does not have Batch"):
        History(tmp_path, ("batch", 99))


def test_a_time_of_the_history_is_in_seconds_and_found_by_them(make: Make, tmp_path: Path) -> None:
    table = make(directory=tmp_path, history=True, batch_groups=1)
    for _ in range(3):
        fill(table.reserve(), [0, 1])
        time.sleep(0.02)
        table.sample()
    table.close()
    times = [delivered.time for delivered in History(tmp_path)]
    assert 0.02 <= times[0] < times[1] < times[2] < 60
    # A moment before the second batch.
    history = History(tmp_path, ("time", times[1] - 0.005))
    assert history.stats().batches == 1
    assert [delivered.time for delivered in history] == times[1:]
    history = History(tmp_path)
    assert history.go_to("time", times[1] - 0.005)
    assert history.stats().batches == 1
    with pytest.raises(ValueError, match="time must be at least 0, got -1"):
        history.go_to("time", -1.0)


def test_an_interrupted_replay_goes_on_from_where_it_was(make: Make, tmp_path: Path) -> None:
    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    groups = 5000
    table = make(directory=tmp_path, history=True, max_running=groups, capacity=groups + 2)
    for _ in range(groups):
        table.reserve()
    table.close()
    history = History(tmp_path)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while True:
            # Often sooner than all of it is done; the test is right without, but shows less.
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            try:
                assert list(history) == []
                break
            except Interrupt:
                continue
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert history.record == history.end > groups
    assert history.stats().running == groups


def test_a_batch_of_a_history_has_no_lease(make: Make, tmp_path: Path) -> None:
    table = make(directory=tmp_path, history=True, batch_groups=1)
    fill(table.reserve(), [0, 1])
    table.sample(lease=60)
    table.close()
    (delivered,) = History(tmp_path)
    with pytest.raises(LeaseError, match="of a history"):
        delivered.batch.ack()


def test_the_command_line_prints_what_was_delivered(make: Make, tmp_path: Path) -> None:
    table = make(directory=tmp_path, history=True, batch_groups=1)
    for reward in (0, 1, 2):
        fill(table.reserve(), [reward, 5])
        table.sample()
    table.close()
    runner = CliRunner()
    lines = runner.invoke(app, ["replay", str(tmp_path), "--json"]).output.splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["groups"] for one in found] == [[0], [1], [2]]
    assert len({one["crc32"] for one in found}) == 3
    again = runner.invoke(app, ["replay", str(tmp_path), "--json", "--at", "1"]).output
    assert [json.loads(line) for line in again.splitlines()] == found[1:]
    text = runner.invoke(app, ["replay", str(tmp_path)]).output
    assert "batch 3 rank 0" in text
    assert "3 submitted" in text
    missing = runner.invoke(app, ["replay", str(tmp_path / "nothing")])
    assert missing.exit_code == 1


KILLED = """
import os, signal, sys
from echoic.rollouts import RolloutTable

table = RolloutTable(
    "late", {"tokens": "int32", "values": "float32"}, {"reward": "float32"}, group_size=2,
    batch_groups=1, late=("values", "reward"), directory=sys.argv[1], history=True, seed=1,
)
reservation = table.reserve()
reservation.add_items(None, {"tokens": [[1, 2], [3]]}, versions=[0, 1])
assert reservation.update(0, {"values": [5, 6]}, {"reward": 0.5}) == "running"
if sys.argv[2] == "checkpoint":
    table.checkpoint()
reservation.update(1, {"values": [7]})
print(*reservation.ticket, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("state", ["journal", "checkpoint"])
def test_values_that_came_late_survive_a_kill(tmp_path: Path, state: str) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, state],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    group, attempt = map(int, killed.stdout.split())
    settings: dict[str, Any] = {
        "columns": {"tokens": "int32", "values": "float32"},
        "fields": {"reward": "float32"},
        "group_size": 2,
        "batch_groups": 1,
        "directory": tmp_path,
        "history": True,
    }
    with pytest.raises(RolloutError, match="schema"):
        RolloutTable("late", **settings)
    with RolloutTable("late", late=("values", "reward"), **settings) as table:
        reservation = table.reservation((group, attempt))
        assert reservation.update(1, fields={"reward": 1}) == "complete"
        assert reservation.update(0, fields={"reward": 2}) == "complete"
        batch = table.sample()
    again = [delivered.batch for delivered in History(tmp_path)]
    for one in (batch, *again):
        assert one["values"].tolist() == [5, 6, 7]
        assert one["reward"].tolist() == [2, 1]
        assert one.versions.tolist() == [0, 0, 1]
    assert len(again) == 1
