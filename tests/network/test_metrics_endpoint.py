"""Numbers over HTTP: read by Prometheus's own parser, and enough to see why a pipeline is stuck."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic import Checkpointer, Server, Stream, Table, connect, limiters
from echoic.errors import ClosedError, WaitTimeoutError
from echoic.rollouts import RolloutTable
from echoic.weights import WeightStore
from polling import until
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE = {"obs": np.zeros(4, np.float32)}
ROOT = Path(__file__).parents[2]


def read(url: str, token: str | None = None) -> str:
    request = urllib.request.Request(url)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers.get_content_type() == "text/plain"
        return str(answer.read().decode())


def until_it_fails(step: Callable[[], object]) -> None:
    for _ in range(100):
        step()


def numbers(url: str) -> dict[str, float]:
    """Every number by its name and labels, as Prometheus understands them."""
    return {
        sample.name
        + "".join(f",{label}={value}" for label, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(read(url))
        for sample in family.samples
    }


def rollouts() -> RolloutTable:
    """A rollout table of which everything can be counted."""
    table = RolloutTable("math", {"tokens": "int32"}, batch_groups=1, max_lag=2)
    for _ in range(2):
        table.reserve(source="w").add({"tokens": [1, 2]})
    table.sample()
    with pytest.raises(WaitTimeoutError):
        table.sample(2, timeout=0.001)
    table.reserve_many(8)
    with pytest.raises(WaitTimeoutError):
        table.reserve(source="late", timeout=0.001)
    return table


def everything(folder: Path | None = None) -> tuple[Server, Stream]:
    """A server that has whatever can be counted, its stream, and a client that was refused.

    With a folder it has a journal too, and has written a checkpoint.
    """
    limiter = limiters.SampleToInsertRatio(4.0, 2, error_buffer=10.0)
    durability: Any = "none" if folder is None else "async"
    table = Table("replay", EXAMPLE, capacity=100, limiter=limiter, durability=durability)
    stream = Stream(EXAMPLE, batch_size=4)
    server = Server(
        stream,
        table,
        rollouts(),
        WeightStore(),
        listen="tcp://127.0.0.1:0",
        token=b"right",
        checkpointer=None if folder is None else Checkpointer(folder / "checkpoints"),
        journal=None if folder is None else folder / "journal",
    ).start()
    if folder is not None:
        server.checkpoint()
    with pytest.raises(Exception, match="token"):
        connect(server.address, token=b"wrong").stream(EXAMPLE)
    return server, stream


def test_every_number_of_a_server_is_there_and_right() -> None:
    server, stream = everything()
    with server:
        url = server.serve_metrics()
        stream.extend({"obs": np.zeros((6, 4), np.float32)})
        sample = stream.sample()
        # The server closes the connection that it refused in its own time.
        until(lambda: numbers(url)["echoic_connections"] == 0)
        got = numbers(url)
        assert got["echoic_stream_inserted_samples_total"] == 6
        assert got["echoic_stream_partial_samples"] == 2
        assert got["echoic_stream_held_batches"] == 1
        assert got["echoic_stream_copy_seconds_count"] >= 1
        assert got["echoic_stream_copy_seconds_sum"] > 0
        assert got["echoic_table_items,table=replay"] == 0
        assert sum(v for n, v in got.items() if n.startswith("echoic_connections_refused")) == 1
        del sample
        assert numbers(url)["echoic_stream_held_batches"] == 0


def test_one_sees_why_a_starved_learner_waits() -> None:
    """The question that it is all for: nothing moves, so who waits, and for what?"""
    table = Table("replay", EXAMPLE, capacity=100, limiter=limiters.MinSize(10))
    with Server(table) as server:
        url = server.serve_metrics()
        table.add(EXAMPLE)
        learner = threading.Thread(target=lambda: table.sample(1, timeout=30))
        learner.start()
        waiting = "echoic_table_waiting,side=sample,table=replay"
        until(lambda: numbers(url)[waiting] >= 1)
        got = numbers(url)
        assert got["echoic_table_blocked,reason=MIN_SIZE,side=sample,table=replay"] == 1
        assert got["echoic_table_blocked,reason=NONE,side=insert,table=replay"] == 0
        assert got["echoic_table_items,table=replay"] == 1
        # Nobody is held to a ratio here.
        assert "echoic_table_target_samples_per_insert,table=replay" not in got
        flat = server.metrics()
        assert flat["table_blocked.replay.sample.MIN_SIZE"] == 1
        assert flat["table_waiting.replay.sample"] == 1
        # While it goes on, not only in the end.
        assert flat["table_wait_seconds_total.replay.sample"] > 0
        for _ in range(9):
            table.add(EXAMPLE)
        learner.join()
        got = numbers(url)
        assert got["echoic_table_blocked,reason=NONE,side=sample,table=replay"] == 0
        assert got["echoic_table_wait_seconds_total,side=sample,table=replay"] > 0


@pytest.mark.parametrize("side", ["insert", "sample"])
def test_one_sees_which_side_is_ahead(side: str) -> None:
    limiter = limiters.SampleToInsertRatio(1.0, 1, error_buffer=3.0)
    table = Table("replay", EXAMPLE, capacity=100, limiter=limiter)
    with Server(table) as server:
        url = server.serve_metrics()
        step = partial(table.add, EXAMPLE) if side == "insert" else partial(table.sample, 1)
        table.add(EXAMPLE)
        with pytest.raises(WaitTimeoutError, match="the others are behind"):
            until_it_fails(lambda: step(timeout=0))
        assert numbers(url)[f"echoic_table_blocked,reason=RATIO,side={side},table=replay"] == 1
        ratio = numbers(url)["echoic_table_samples_per_insert,table=replay"]
        target = numbers(url)["echoic_table_target_samples_per_insert,table=replay"]
        assert (ratio < target) == (side == "insert")


def test_a_connection_that_waits_says_for_what() -> None:
    stream = Stream(EXAMPLE, batch_size=4, capacity=8)
    with Server(stream, listen="tcp://127.0.0.1:0") as server:
        url = server.serve_metrics()
        with connect(server.address).stream(EXAMPLE) as client:
            client.extend({"obs": np.zeros((100, 4), np.float32)})
            until(lambda: numbers(url).get("echoic_connections_blocked,reason=CAPACITY"))
            for _ in range(25):
                stream.sample(timeout=10)
            assert client.flush(timeout=10) is None


def test_strangers_need_the_token() -> None:
    with Server(Stream(EXAMPLE, batch_size=4)) as server:
        with pytest.raises(ValueError, match=r"needs a token.*Authorization: Bearer"):
            server.serve_metrics("0.0.0.0:0")
        assert ":" in server.serve_metrics("0.0.0.0:0", insecure=True)
        for token in (b"\xff", b" x", b"x\n"):
            with pytest.raises(ValueError, match="printable ASCII"):
                server.serve_metrics(token=token)
        url = server.serve_metrics("127.0.0.1:0", token=b"secret")
        for token in (None, "", "secre", "secrets"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                read(url, token)
        assert "echoic_stream_capacity_samples" in read(url, "secret")


@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1", "127.0.0.1:70000", ":::"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with (
        Server(Stream(EXAMPLE, batch_size=4)) as server,
        pytest.raises(ValueError, match="no address"),
    ):
        server.serve_metrics(address)


def test_an_address_that_is_taken_is_an_error_of_the_system() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        Server(Stream(EXAMPLE, batch_size=4)) as server,
    ):
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match="in use"):
            server.serve_metrics(taken)


def test_closing_a_server_ends_it() -> None:
    server = Server(Stream(EXAMPLE, batch_size=4))
    url = server.serve_metrics()
    assert read(url)
    server.close()
    with pytest.raises(urllib.error.URLError):
        read(url)
    with pytest.raises(ClosedError):
        server.serve_metrics()


def test_a_server_that_is_dropped_ends_it() -> None:
    url = Server(Stream(EXAMPLE, batch_size=4)).serve_metrics()
    with pytest.raises(urllib.error.URLError):
        until_it_fails(lambda: read(url))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_keeps_neither_the_threads_nor_the_port() -> None:
    server = Server(Stream(EXAMPLE, batch_size=4))
    url = server.serve_metrics()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        start = time.monotonic()
        server.close()
        assert time.monotonic() - start < 10
        with pytest.raises(urllib.error.URLError):
            read(url)
        address = re.findall(r"//(.*)/", url)[0]
        with Server(Stream(EXAMPLE, batch_size=4)) as other:
            assert other.serve_metrics(address) == url
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_drops_its_copy_waits_for_nobody() -> None:
    server = Server(Stream(EXAMPLE, batch_size=4))
    url = server.serve_metrics()
    child = os.fork()
    if child == 0:
        del server
        gc.collect()
        os._exit(0)
    deadline = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    assert read(url)
    server.close()


def test_readers_of_all_kinds_do_not_hold_up_the_server() -> None:
    stream = Stream(EXAMPLE, batch_size=4)
    with Server(stream) as server:
        url = server.serve_metrics()
        host, port = re.findall(r"//(.*):(\d+)/", url)[0]
        silent = [socket.create_connection((host, int(port))) for _ in range(4)]
        start = time.monotonic()
        stream.extend({"obs": np.zeros((8, 4), np.float32)})
        assert stream.sample(timeout=10) is not None
        # Two readers are answered at a time, and those who ask nothing have two seconds each.
        assert time.monotonic() - start < 2
        assert read(url)
        for each in silent:
            each.close()


def table_of_names() -> dict[str, tuple[str, str]]:
    text = (ROOT / "docs/guides/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(echoic_\w+)` \| (.*) \| (.*) \|$", text, re.MULTILINE)
    return {name: (labels, meaning) for name, labels, meaning in rows}


def families(folder: Path) -> dict[str, tuple[str, str]]:
    server, stream = everything(folder)
    with server:
        server.set_gauge("success_rate", 0.5)
        url = server.serve_metrics()
        client_example = {"obs": np.zeros(4, np.float32)}
        with connect(server.address, token=b"right").stream(client_example) as client:
            client.extend({"obs": np.zeros((128, 4), np.float32)})
            deadline = time.monotonic() + 10
            while "echoic_connections_blocked{" not in (text := read(url)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for _ in range(128 // 4):
                stream.sample(timeout=10)
    helps = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    labels: dict[str, list[str]] = {name: [] for name in helps}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = sample.name if sample.name in labels else family.name
            seen = labels[own]
            seen += [label for label in sample.labels if label not in seen]
    return {
        name: (", ".join(f"`{label}`" for label in labels[name]), helps[name]) for name in helps
    }


def test_the_guide_has_every_name(tmp_path: Path) -> None:
    assert table_of_names() == families(tmp_path)


def names_of(dashboard: Any) -> set[str]:
    return set(re.findall(r"echoic_\w+", json.dumps(dashboard)))


def test_the_dashboard_shows_numbers_that_there_are() -> None:
    dashboard = json.loads((ROOT / "docs/assets/grafana.json").read_text(encoding="utf-8"))
    used = {re.sub(r"_(sum|count|bucket)$", "", name) for name in names_of(dashboard)}
    known = set(table_of_names())
    assert used <= known
    shown = [panel["title"] for panel in dashboard["panels"]]
    assert len(shown) == len(set(shown)) > 8
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
