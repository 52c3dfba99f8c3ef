"""HTML that a notebook shows of stores, connections and batches."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import echoic
import numpy as np
import pytest
from echoic import (
    Ragged,
    Server,
    Stream,
    Table,
    TrajectoryWriter,
    VectorWriter,
    limiters,
    selectors,
)
from echoic.rollouts import RolloutTable
from echoic.views import notebook
from echoic.views.reading import read
from echoic.weights import WeightStore

STEP = {"obs": np.zeros(4, np.float32)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Do not wait between the first two readings."""
    monkeypatch.setattr(notebook, "_FIRST", 0.001)


def test_importing_the_package_imports_no_view():
    code = "import sys, echoic; sys.exit('echoic.views' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_text_is_escaped():
    table = Table("<script>", STEP, capacity=3)
    shown = table._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown


def test_a_table_shows_its_size_its_items_and_why_a_call_waits():
    limit = limiters.SampleToInsertRatio(2.0, 5, 4.0)
    table = Table("replay", STEP, capacity=10, limiter=limit, sampler=selectors.Prioritized(0.6))
    steps = {"obs": np.ones((10, 4), np.float32)}
    worker = threading.Thread(target=lambda: table.extend(steps, timeout=20))
    worker.start()
    while not table.stats().add_calls_waiting and worker.is_alive():
        pass
    shown = table._repr_html_()
    table.sample(6, timeout=20)
    worker.join()
    for words in ("1 insert waits: RATIO", "inserts are ahead of samples", "7", "obs float32[4]"):
        assert words in shown, shown
    assert "no call waits" in table._repr_html_()


@pytest.mark.parametrize(
    ("limiter", "inserts", "samples"),
    [
        (limiters.MinSize(3), 2, 0),
        (limiters.MinSize(3), 4, 5),
        (limiters.Queue(4), 4, 0),
        (limiters.Queue(4), 4, 4),
        (limiters.SampleToInsertRatio(2.0, 1, 2.0), 1, 2),
        (limiters.RateLimiter(2, 0.5, -1.0, 1.0), 2, 0),
    ],
)
def test_a_tables_numbers_are_those_of_top_and_of_the_page(limiter, inserts, samples):
    table = Table("replay", STEP, capacity=10, limiter=limiter)
    with Server(table) as server:
        for _ in range(inserts):
            table.add(STEP, timeout=5)
        for _ in range(samples):
            table.sample(1, timeout=5)
        for pause in (False, True):
            if pause:
                table.pause()
            (theirs,) = read(server.stats()).tables
            reasons = [
                replace(side, reason=side.reason.removesuffix("NONE"))
                for side in theirs.sides.values()
            ]
            expected = replace(
                theirs,
                **dict(zip(("insert", "sample"), reasons, strict=True)),
                **{name: {} for name in ("times_sampled", "priorities", "lags")},
            )
            assert notebook.table_reading(table.stats()) == expected


def test_a_rollout_tables_numbers_are_those_of_top_and_of_the_page():
    table = RolloutTable("math", {"tokens": "int32"}, {"reward": "float32"}, batch_groups=1)
    with Server(table) as server:
        first = table.reserve(source="cook")
        first.add({"tokens": [1, 2, 3]}, {"reward": 1})
        table.reserve(source="cook")
        (theirs,) = read(server.stats()).rollouts
        ours = notebook.rollout_reading(table.stats(), table.settings)
        for name in ("running", "ready", "room", "submitted", "accepted", "tokens", "max_running"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.sources == theirs.sources
        shown = table._repr_html_()
    assert "source cook" in shown
    assert "tokens: int32, reward: float32" in shown


def test_a_store_that_does_not_answer_says_so(monkeypatch):
    monkeypatch.setattr(notebook, "_PATIENCE", 0.05)
    over = threading.Event()

    class Away:
        name = "far"
        spec = None

        def stats(self):
            over.wait(10)

    shown = notebook.table_html(Away())
    over.set()
    assert "no numbers: no answer within 50 ms" in shown


def test_a_server_its_stream_and_its_connections_are_shown():
    table = Table("replay", STEP, capacity=10)
    stream = Stream(STEP, batch_size=2)
    with Server(stream, table, listen="tcp://127.0.0.1:0") as server:
        stream.extend({"obs": np.ones((4, 4), np.float32)})
        batch = stream.sample()
        (address,) = server.addresses
        assert address in repr(server)
        shown = server._repr_html_()
        assert f"Server at {address}" in shown
        assert "table &#x27;replay&#x27;" in shown
        with echoic.connect(address) as client:
            shown = client.table("replay")._repr_html_()
            assert "not connected" not in client._repr_html_()
            assert "0 items" not in shown
            assert "of 10 (0%)" in shown
        with echoic.connect([address]) as client:
            assert "shard 0" in client.table("replay")._repr_html_()
        shown = stream._repr_html_()
        assert "1 held" in shown
        assert "2 of 8" in shown
        assert "2 items, 32 B" in batch._repr_html_()
    assert "closed" in repr(server)


def test_a_connection_says_whether_it_is_connected():
    with Server(Table("replay", STEP, capacity=10), listen="tcp://127.0.0.1:0") as server:
        assert "in this process" in echoic.connect(server)._repr_html_()
        with echoic.connect(server.address, reconnect=0.1) as client:
            assert "no service was used yet" in client._repr_html_()
            client.table("replay")
            assert ">connected<" in client._repr_html_()
        assert ">closed<" in client._repr_html_()


def test_writers_say_what_they_hold():
    table = Table("replay", capacity=3)
    writer = TrajectoryWriter([table], 2)
    writer.append(STEP)
    assert repr(writer) == "TrajectoryWriter(episode_steps=1, pending=0)"
    assert repr(VectorWriter([table], 4)) == "VectorWriter(num_envs=4, pending=0)"


def test_weights_and_local_buffers_are_shown():
    store = WeightStore()
    assert "nothing is published" in store._repr_html_()
    store.publish({"w": np.zeros(4)}, version=3)
    assert "version 3" in store._repr_html_()
    assert repr(store) == "WeightStore(version=3, bytes=32, held=1 of 3)"
    buffer = echoic.PrioritizedReplayBuffer(STEP, 10)
    buffer.add(STEP)
    shown = buffer._repr_html_()
    assert 'value="0.1000"' in shown
    assert "capacity" in shown
    shown = notebook.batch_html(buffer.sample(2))
    assert ">keys<" in shown
    assert ">weights<" in shown


def test_a_batch_shows_each_leaf_and_what_is_not_a_number():
    class OnDevice:
        dtype, shape, nbytes, device = "torch.float32", (2, 3), 24, "cuda:0"

    class Batch:
        data = {  # noqa: RUF012 - never changed
            "<b>": np.array([1.0, np.nan], np.float32),
            "far": OnDevice(),
            "steps": Ragged(np.arange(5, dtype=np.int64), np.array([0, 2, 5])),
        }
        keys = None

        def __len__(self):
            return 2

    shown = notebook.batch_html(Batch())
    for words in (
        "&lt;b&gt;",
        "1 are NaN or infinite",
        "2 of different lengths",
        "72 B",
        "on cuda:0",
    ):
        assert words in shown, shown
