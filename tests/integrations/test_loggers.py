"""What stores count is in the files of TensorBoard, W&B and MLflow, read back from them."""

from __future__ import annotations

import json
import struct

import echoic
import echoic.rl
import numpy as np
import pytest
from echoic.errors import ArgumentError
from echoic.integrations.loggers import StatsLogger
from echoic.rollouts import RolloutTable


def logged(stores, **settings):
    """What a function was given: a list that grows, and the logger."""
    found = []
    return found, StatsLogger(stores, lambda *told: found.append(told), **settings)


def scalars(folder):
    """Step, name and value of each number in TensorBoard's files."""
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for file in folder.glob("events.out.tfevents.*"):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            event = events.Event.FromString(content[at + 12 : at + 12 + size])
            found += [(event.step, one.tag, one.simple_value) for one in event.summary.value]
            at += 12 + size + 4
    return found


def wandb_records(content):
    """The records of a file of W&B: a log of LevelDB, in blocks of 32 KiB, after seven bytes."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        left = -at % 32768
        if 0 < left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        # Whole, or the last part of one.
        if kind in (1, 4):
            yield parts
            parts = b""


def table_of(count):
    table = echoic.Table("mine", np.int64(0), capacity=10, seed=1)
    table.extend(np.arange(count))
    return table


def check(found, table):
    """Check what was logged twice of a table of 3 and then of 4 items."""
    values = {(step, name): value for step, name, value in found}
    assert [values[step, "replay/size"] for step in (10, 20)] == [3, 4]
    assert values[20, "replay/sample_wait_seconds"] == 0
    names = {name for _, name in values}
    # No words, no limits that are not there, and no seed.
    assert not names & {f"replay/{name}" for name in ("name", "sampler", "max_diff", "seed")}
    assert names == {
        f"replay/{name}"
        for name, value in table.stats().as_dict().items()
        if name != "seed" and isinstance(value, (int, float)) and abs(value) != float("inf")
    }


def log_twice(writer):
    table = table_of(3)
    log = StatsLogger({"replay": table}, writer, every=0)
    log(10)
    table.add(5)
    log(20)
    return table


def test_tensorboard_has_the_numbers_of_each_step(tmp_path):
    tensorboard = pytest.importorskip("tensorboardX")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        table = log_twice(writer)
    check(scalars(tmp_path), table)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_weights_and_biases_has_the_numbers_of_each_step(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="no wandb here")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.chdir(tmp_path)
    with wandb.init(mode="offline", dir=tmp_path, project="echoic") as run:
        table = log_twice(run)
    # The run may end before its file has more than a header; the end of W&B's process does not.
    wandb.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    found = []
    for record in map(Record.FromString, wandb_records(file.read_bytes())):
        values = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        step = values.get("_step", record.history.step.num)
        found += [(step, name, one) for name, one in values.items() if not name.startswith("_")]
    check(found, table)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_mlflow_has_the_numbers_of_each_step(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="no mlflow here")
    # The store of files is what MLflow has without a database.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        table = log_twice(mlflow)
    client = mlflow.MlflowClient()
    found = [
        (one.step, name, one.value)
        for name in client.get_run(run.info.run_id).data.metrics
        for one in client.get_metric_history(run.info.run_id, name)
    ]
    check(found, table)


def test_every_kind_of_store_has_numbers(tmp_path):
    table = table_of(1)
    stream = echoic.Stream(np.int64(0), batch_size=2)
    stream.extend(np.arange(4))
    stream.sample()
    rollouts = RolloutTable("math", {"tokens": "int32"}, batch_groups=1)
    rollouts.reserve(source="a").add({"tokens": [1, 2]})
    with (
        echoic.Server(stream, table, listen="tcp://127.0.0.1:0") as server,
        echoic.rl.Run({"tokens": "int32"}, batch=1, dir=tmp_path) as run,
    ):
        connection = echoic.connect(server.address)
        stores = {
            "table": table,
            "remote": connection.table("mine"),
            "stream": stream,
            "remote_stream": connection.stream(np.int64(0)),
            "rollouts": rollouts,
            "run": run,
            "buffer": echoic.ReplayBuffer({"obs": 0.0}, 100),
            "server": server,
        }
        found, log = logged(stores)
        log(1)
        connection.close()
    ((numbers, step),) = found
    assert step == 1
    expected = {
        "table/size": 1,
        "remote/size": 1,
        "stream/inserted_total": 4,
        "stream/hold_time.p99": numbers["stream/hold_time.max"],
        "rollouts/tokens": 2,
        "run/accepted": 0,
        "buffer/capacity": 100,
        "server/table_items.mine": 1,
    }
    assert {name: numbers[name] for name in expected} == expected
    assert {name.split("/")[0] for name in numbers} == set(stores)
    assert all(np.isfinite(value) for value in numbers.values())
    assert not [name for name in numbers if "source" in name]


def test_waits_are_named_by_their_reason(background):
    rollouts = RolloutTable("math", {"tokens": "int32"}, batch_groups=1)
    with pytest.raises(echoic.errors.WaitTimeoutError):
        rollouts.sample(timeout=0.01)
    found, log = logged({"rollouts": rollouts})
    log(1)
    waits = {name: one for name, one in found[0][0].items() if "consumer_waits" in name}
    assert [one for name, one in waits.items() if name.endswith(".limited")] == [1]
    assert all(len(name.split(".")) == 3 for name in waits)


def test_calls_between_two_logs_cost_no_request(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("echoic.integrations.loggers.time.monotonic", lambda: now[0])

    class Store:
        asked = 0

        def stats(self):
            Store.asked += 1
            return {"asked": Store.asked}

    found, log = logged({"store": Store()}, every=5.0)
    for step, time in enumerate((100.0, 104.9, 105.0, 109.0, 111.0)):
        now[0] = time
        log(step)
    assert found == [({"store/asked": number}, step) for number, step in ((1, 0), (2, 2), (3, 4))]


def test_what_is_no_store_and_no_writer_is_refused():
    with pytest.raises(ArgumentError, match=r"a store with stats\(\) as 'replay', got a list"):
        StatsLogger({"replay": []}, print)
    with pytest.raises(ArgumentError, match=r"expected a SummaryWriter, .* got a str"):
        StatsLogger({}, "wandb")
    with pytest.raises(ArgumentError, match=r"every must be .* got -1"):
        StatsLogger({}, print, every=-1)
