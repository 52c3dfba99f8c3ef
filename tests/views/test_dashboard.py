"""The web view: what a person reads in a browser, and what the page asks for over HTTP.

The browser is a real Chromium without a screen, where one is installed.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import limiters
from echoic.cli.app import app
from echoic.views.history import History
from echoic.views.monitor import Monitor
from echoic.views.reading import buckets
from echoic.views.web.items import frames, leaf, png
from echoic.views.web.server import WebServer
from echoic.views.web.state import state
from echoic.watch import Family, Number, Observation
from polling import until
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# For a machine that does other things too.
PATIENCE = 60.0
INTERVAL = 0.05
# What a hostile client could have named a table.
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


def get(url: str, path: str, host: str | None = None, **query: Any) -> tuple[int, bytes, Any]:
    """Ask as a browser does; returns the status, the body and the headers."""
    asked = f"{url}{path}?{urllib.parse.urlencode(query)}" if query else f"{url}{path}"
    request = urllib.request.Request(asked, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def asked(url: str, path: str, **query: Any) -> Any:
    """What the page gets."""
    return json.loads(get(url, path, **query)[1])


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Close all that a test opened, the last first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def serve(opened: ExitStack) -> Callable[..., echoic.Server]:
    """Serve tables over TCP."""

    def start(*tables: echoic.Table, port: int = 0, token: str | None = None) -> echoic.Server:
        address = f"tcp://127.0.0.1:{port}"
        return opened.enter_context(echoic.Server(*tables, listen=address, token=token))

    return start


@pytest.fixture
def page(opened: ExitStack) -> Callable[..., str]:
    """Open a page for the servers at some addresses, and return where it is."""

    def start(*addresses: str) -> str:
        monitors = [
            opened.enter_context(Monitor(echoic.connect(address), INTERVAL))
            for address in addresses
        ]
        return opened.enter_context(WebServer(monitors)).url

    return start


@pytest.fixture(scope="module")
def calm() -> Iterator[str]:
    """A page of a server of which nothing is asked, for many tests."""
    table = echoic.Table("replay", np.int64(0), capacity=100)
    with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
        address = server.address
        with Monitor(echoic.connect(address)) as monitor, WebServer([monitor]) as page:
            until(lambda: asked(page.url, "state")["things"])
            yield page.url


@pytest.fixture
def starve(opened: ExitStack) -> Callable[[echoic.Table], None]:
    """Sample in a thread until a call has to wait, and let it wait until the test is over."""

    def start(table: echoic.Table) -> None:
        def wait() -> None:
            with suppress(echoic.errors.ClosedError):
                while True:
                    table.sample(1, PATIENCE)

        thread = threading.Thread(target=wait)
        opened.callback(thread.join, PATIENCE)
        opened.callback(table.close)
        thread.start()

    return start


# What the page gets.


def thing(now: Any, name: str) -> Any:
    """One of the things on the page."""
    return next(one for one in now["things"] if one["name"] == name)


def numbers(now: Any, name: str) -> dict[str, str]:
    """The numbers of one of them."""
    return {label: value for label, value, _ in thing(now, name)["lines"]}


def drawn(now: Any, name: str, title: str) -> list[list[float | None]]:
    """The lines of one of its charts."""
    charts = {chart["title"]: chart for chart in thing(now, name)["charts"]}
    return [line["values"] for line in charts[title]["lines"]]


def test_starved_limiter_is_told_with_what_waits_and_why(
    serve: Any, page: Any, starve: Any
) -> None:
    table = echoic.Table("replay", np.int64(0), capacity=100, limiter=limiters.MinSize(10))
    url = page(serve(table).addresses[0])
    table.add(np.int64(1))
    starve(table)
    # At first items have just come; then nothing moves any more.
    (problem,) = until(
        lambda: [one for one in asked(url, "state")["problems"] if one["level"] == "stuck"]
    )
    assert problem["subject"] == "table 'replay'"
    assert problem["reason"] == "MIN_SIZE"
    assert problem["text"].startswith("1 sample call waits: the table has 1 items")
    assert "wants 10" in problem["text"]
    now = asked(url, "state")
    assert now["overview"]["rows"][0]["level"] == "stuck"
    assert thing(now, "replay")["state"] == ["stuck", "1 sample waits: MIN_SIZE"]


def test_page_that_is_opened_later_has_the_past_in_the_range_that_is_asked_for(
    serve: Any, page: Any
) -> None:
    table = echoic.Table("replay", np.int64(0), capacity=100)
    url = page(serve(table).addresses[0])
    until(lambda: asked(url, "state")["things"])
    table.extend(np.arange(7))
    now = until(lambda: (now := asked(url, "state", seconds=60))["ages"][30:] and now)
    assert now["ages"] == sorted(now["ages"], reverse=True)
    assert (now["ages"][0] > 1.2, now["ages"][-1]) == (True, 0)
    (items,) = drawn(now, "replay", "Items")
    assert (len(items), items[-1]) == (len(now["ages"]), 7)
    late = asked(url, "state", seconds=1)
    assert late["ages"][0] < 1.1
    assert numbers(late, "replay") == numbers(asked(url, "state"), "replay")


def test_old_points_are_means_of_ten_and_the_oldest_are_forgotten(serve: Any) -> None:
    table = echoic.Table("replay", np.int64(0), capacity=1000)
    address = serve(table).addresses[0]
    with echoic.connect(address) as watch:
        monitor = Monitor(watch, history=History(20, 3))
        for _ in range(75):
            table.add(np.int64(0))
            monitor.ask()
        points = monitor.history.past(3600.0, 10_000_000)
    # Of 74 points, 50 became five means, and the newest three of these are kept.
    assert len(points) == 3 + 24
    key = ("table", "replay")
    place = monitor.history.last.tables[0].series().index("items")  # type: ignore[union-attr]
    kept = [point.values[key][place] for point in points]
    assert kept == [26.5, 36.5, 46.5, *range(52, 76)]


def test_several_servers_have_a_row_each_and_one_of_them_is_shown(serve: Any, page: Any) -> None:
    names = ("first", "second")
    servers = [serve(echoic.Table(name, np.int64(0), capacity=9)) for name in names]
    url = page(*(server.address for server in servers))
    until(lambda: all(asked(url, "state", server=at)["things"] for at in (0, 1)))
    for at, name in enumerate(names):
        now = asked(url, "state", server=at)
        assert now["chosen"] == at
        rows = now["overview"]["rows"]
        assert [row["address"] for row in rows] == [server.address for server in servers]
        assert [one["title"] for one in now["things"]] == [name, "the server"]
        cells = dict(zip(now["overview"]["head"][2:], rows[at]["cells"], strict=True))
        assert (cells["release"], cells["connections"]) == (echoic.__version__, "1")
        assert re.fullmatch(r"[\d.]+ (ms|µs|s)", cells["p99"])
        # Its process does not report them.
        assert (cells["process"], cells["CPU"]) == ("?", "?")
        assert asked(url, "items", server=at, table=name, count=1)["total"] == 0
    assert "error" in asked(url, "state", server=2)


def test_memory_and_cpu_of_a_process_are_shown_if_its_program_reports_them() -> None:
    def answer(age: float, cpu: float) -> Observation:
        gauges = {"process_resident_memory_bytes": 123e6, "process_cpu_seconds_total": cpu}
        values = tuple(Number({"name": name}, value) for name, value in gauges.items())
        return Observation("0.1.0", 7, age, {"gauge": Family("", "gauge", values)}, ())

    answers = iter([answer(1.0, 5.0), answer(3.0, 6.0)])
    connection: Any = SimpleNamespace(
        address="tcp://learner", server_stats=lambda: {"tcp://learner": next(answers)}
    )
    monitor = Monitor(connection)
    monitor.ask()
    monitor.ask()
    now = state([monitor], 0, 60.0)
    server = next(one for one in now["things"] if one["kind"] == "server")
    lines = {label: value for label, value, _ in server["lines"]}
    assert (lines["memory of process"], lines["CPU"]) == ("123 MB", "0.50 cores")
    charts = {chart["title"]: chart["lines"] for chart in server["charts"]}
    assert charts["Memory, bytes"][1]["values"] == [123e6]
    assert charts["CPU, cores"][0]["values"] == [0.5]


def test_stream_has_percentiles_of_its_latencies_and_is_part_of_the_overview(
    page: Any, opened: ExitStack
) -> None:
    stream = echoic.Stream(np.float32(0), batch_size=2, capacity=198)
    server = opened.enter_context(echoic.Server(stream, listen="tcp://127.0.0.1:0"))
    stream.extend(np.zeros(4, np.float32))
    stream.sample()
    url = page(server.address)
    until(lambda: asked(url, "state")["ages"])
    stream.extend(np.zeros(40, np.float32))

    def flow() -> list[str]:
        overview = asked(url, "state")["overview"]
        cells = dict(zip(overview["head"][2:], overview["rows"][0]["cells"], strict=True))
        return [cells["in/s"], cells["out/s"]]

    until(lambda: flow()[0] != "0" and flow()[1] == "0")
    now = asked(url, "state")
    stream = next(one for one in now["things"] if one["kind"] == "stream")
    found = {label: (value, note) for label, value, note in stream["lines"]}
    value, note = found["from submit to batch"]
    assert re.fullmatch(r"p50 [\d.]+ \S+", value)
    assert re.fullmatch(r"p90 [\d.]+ \S+, p99 [\d.]+ \S+", note)


def test_guide_shows_an_address_like_the_one_that_is_printed(calm: str) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "dashboard.md"
    shown = guide.read_text(encoding="utf-8").partition("```text\n")[2].partition("\n")[0]

    def form(url: str) -> str:
        return re.sub(r":\d+/", ":PORT/", re.sub(r"/[\w-]{22}/", "/SECRET/", url))

    assert form(shown) == form(calm) == "http://127.0.0.1:PORT/SECRET/"


def test_rates_are_those_of_what_was_inserted(serve: Any, page: Any) -> None:
    table = echoic.Table("replay", np.int64(0), capacity=100)
    url = page(serve(table).addresses[0])
    until(lambda: asked(url, "state")["ages"])
    table.extend(np.arange(50))

    def inserted() -> float:
        # No two answers share a point.
        now = asked(url, "state", seconds=20)
        rates, ages = drawn(now, "replay", "Per second")[0], now["ages"]
        return sum((rates[at] or 0) * (ages[at - 1] - ages[at]) for at in range(1, len(ages)))

    assert until(inserted) == pytest.approx(50)


def test_browsers_share_one_connection_to_the_server(serve: Any, page: Any) -> None:
    url = page(serve(echoic.Table("replay", np.int64(0), capacity=100)).addresses[0])
    # It is asked several times meanwhile.
    now = until(lambda: (now := asked(url, "state"))["ages"][2:] and now)
    (note,) = [note for label, _, note in now["things"][-1]["lines"] if label == "connections"]
    assert note == "1 since the start"


def test_server_that_went_away_is_told_and_one_that_is_back_begins_anew(
    serve: Any, page: Any
) -> None:
    first = serve(echoic.Table("before", np.int64(0), capacity=100))
    url = page(first.addresses[0])
    until(lambda: asked(url, "state")["ages"][4:])
    first.close()
    away = until(lambda: (now := asked(url, "state"))["problems"] and now)
    (problem,) = away["problems"]
    assert (problem["level"], problem["subject"]) == ("away", "the server")
    assert re.search(r"has not answered since \d\d:\d\d:\d\d \w+: \w", problem["text"])
    assert [one["title"] for one in away["things"]] == ["before", "the server"]
    assert away["overview"]["rows"][0]["level"] == "away"
    serve(
        echoic.Table("after", np.int64(0), capacity=100),
        port=urllib.parse.urlsplit(first.addresses[0]).port,
    )
    back = until(lambda: not (now := asked(url, "state"))["problems"] and now)
    assert [one["title"] for one in back["things"]] == ["after", "the server"]
    assert len(back["ages"]) < len(away["ages"])


def test_server_is_another_though_it_is_older_than_the_first_was_when_it_was_seen(
    serve: Any,
) -> None:
    def seen(server: echoic.Server) -> float:
        with echoic.connect(server.address) as watch:
            return next(iter(watch.server_stats().values())).age

    first = serve(echoic.Table("replay", np.int64(0), capacity=100))
    until(lambda: seen(first) > 0.5)
    with echoic.connect(first.addresses[0]) as watch:
        monitor = Monitor(watch)
        monitor.ask()
        monitor.ask()
        before = monitor.history.last
        assert before is not None
        assert len(state([monitor], 0, 60.0)["ages"]) == 1
        first.close()
        port = urllib.parse.urlsplit(first.addresses[0]).port
        second = serve(echoic.Table("replay", np.int64(0), capacity=100), port=port)
        until(lambda: seen(second) > before.age + 0.1)
        monitor.ask()
    (now,) = monitor.history.readings
    assert now.age > before.age
    assert state([monitor], 0, 60.0)["ages"] == []


@pytest.mark.parametrize(
    ("cumulative", "expected"),
    [
        ({}, []),
        ({"0": 0, "1": 0, "+Inf": 0}, []),
        (
            {"+Inf": 9, "0": 0, "1": 2, "2": 2, "4": 6},
            [("up to 1", 2), ("up to 2", 0), ("up to 4", 4), ("above 4", 3)],
        ),
        ({"1": 5, "10": 5, "+Inf": 5}, [("up to 1", 5)]),
        (
            {"0.00006103515625": 1, "0.25": 2, "1099511627776": 3, "+Inf": 4},
            [("up to 6.1e-05", 1), ("up to 0.25", 1), ("up to 1.1e+12", 1), ("above 1.1e+12", 1)],
        ),
    ],
)
def test_bars_are_what_is_between_two_bounds(cumulative: Any, expected: Any) -> None:
    assert buckets(cumulative) == expected


# Items.


def test_item_of_rows_is_told_leaf_by_leaf_and_not_sampled(serve: Any, page: Any) -> None:
    picture = np.arange(10 * 12, dtype=np.uint8).reshape(10, 12)
    item = {
        "obs": picture,
        "note": np.array(b"<b>well done</b>", "S20"),
        "logits": np.linspace(-1, 1, 201),
        "step": {"reward": np.float32(0.5)},
    }
    table = echoic.Table("replay", item, capacity=100)
    url = page(serve(table).addresses[0])
    table.add(item, 2.5)
    listed = asked(url, "items", table="replay", count=10)
    assert listed["total"] == 1
    (one,) = listed["items"]
    assert (one["priority"], one["times_sampled"]) == (2.5, 0)
    found = asked(url, "item", table="replay", key=one["key"])
    leaves = {leaf["path"]: leaf for leaf in found["leaves"]}
    assert set(leaves) == {"obs", "note", "logits", "step/reward"}
    assert leaves["step/reward"]["values"] == "0.5"
    assert leaves["note"] == {
        "path": "note",
        "dtype": "S20",
        "shape": [],
        "nbytes": 20,
        "text": "<b>well done</b>",
    }
    assert (leaves["logits"]["min"], leaves["logits"]["max"]) == ("-1", "1")
    assert "..." in leaves["logits"]["values"]
    (image,) = leaves["obs"]["images"]
    assert np.array_equal(pixels(image["png"])[..., 0], picture)
    assert table.stats().samples == 0


def test_item_that_is_a_trajectory_has_a_picture_for_each_step(serve: Any, page: Any) -> None:
    table = echoic.Table("sequences", capacity=100)
    address = serve(table).addresses[0]
    url = page(address)
    with echoic.connect(address) as client, client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"rgb": np.full((8, 9, 3), step, np.uint8), "reward": float(step)})
        history = writer.history
        writer.create_item(
            "sequences", 1.0, {"rgb": history["rgb"][:], "reward": history["reward"][-2:]}
        )
        writer.flush()
    (one,) = asked(url, "items", table="sequences", count=10)["items"]
    rgb, reward = asked(url, "item", table="sequences", key=one["key"])["leaves"]
    assert (reward["path"], reward["values"]) == ("reward", "[1. 2.]")
    assert rgb["shape"] == [3, 8, 9, 3]
    assert [image["frame"] for image in rgb["images"]] == [0, 1, 2]
    assert (pixels(rgb["images"][2]["png"]) == 2).all()


def test_item_that_is_gone_is_told_so(calm: str) -> None:
    status, body, _ = get(calm, "item", table="replay", key=7)
    assert status == 502
    assert json.loads(body)["error"] == "item 7 is not in the table any more"


def test_item_that_is_too_large_is_not_read(serve: Any, page: Any) -> None:
    huge = echoic.Table("huge", np.broadcast_to(np.uint8(0), (65 << 20,)), capacity=1)
    url = page(serve(huge).addresses[0])
    assert "68,157,440 bytes" in asked(url, "item", table="huge", key=0)["error"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84), (1, 84, 84, 1)),
        ((84, 84, 1), (1, 84, 84, 1)),
        ((84, 84, 3), (1, 84, 84, 3)),
        ((5, 84, 84, 3), (5, 84, 84, 3)),
        ((4, 84, 84), (4, 84, 84, 1)),
        ((2, 3, 84, 84), (6, 84, 84, 1)),
        # Four frames, unless all of the last are opaque.
        ((84, 84, 4), (4, 84, 84, 1)),
        ((84,), None),
        ((4, 4), None),
        ((0, 84, 84), None),
    ],
)
def test_leaves_that_look_like_pictures_are_some(shape: Any, expected: Any) -> None:
    found = frames(np.zeros(shape, np.uint8))
    assert (None if found is None else found.shape) == expected
    assert frames(np.zeros(shape, np.float32)) is None


def test_opaque_fourth_channel_is_one_picture() -> None:
    leaf = np.zeros((9, 9, 4), np.uint8)
    leaf[..., 3] = 255
    found = frames(leaf)
    assert found is not None
    assert found.shape == (1, 9, 9, 4)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_has_the_pixels_of_the_picture(channels: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (11, 13, channels), np.uint8)
    assert np.array_equal(pixels(png(picture)), picture)


def test_large_picture_is_thinned_out() -> None:
    picture = np.zeros((1200, 30, 1), np.uint8)
    assert pixels(png(picture)).shape == (400, 10, 1)


def pixels(image: bytes | str) -> np.ndarray[Any, Any]:
    """Read a PNG as the standard has it, as far as ours go."""
    if isinstance(image, str):
        image = base64.b64decode(image.removeprefix("data:image/png;base64,"))
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(image):
        (length,) = struct.unpack_from(">I", image, at)
        kind, data = image[at + 4 : at + 8], image[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", image, at + 8 + length)[0] == zlib.crc32(kind + data)
        parts[kind] = data
        at += 12 + length
    assert list(parts) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colours = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert depth == 8
    channels = {0: 1, 2: 3, 6: 4}[colours]
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


def test_values_that_are_no_numbers_are_counted() -> None:
    found = leaf(np.array([np.nan, np.inf, *range(100)]))
    assert found["not_finite"] == 2
    assert (found["min"], found["max"]) == ("0", "99")
    json.dumps(found, allow_nan=False)


# Who may look.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("LOCALHOST:8080", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("localhost.evil.example", 421),
        ("[", 421),
    ],
)
def test_name_that_was_pointed_at_this_machine_is_refused(
    calm: str, host: str, status: int
) -> None:
    answer, body, _ = get(calm, "state", host=host)
    assert answer == status
    assert (b"replay" in body) == (status == 200)


def test_page_needs_nothing_from_elsewhere_and_may_not_ask_for_it(calm: str) -> None:
    paths, seen = [""], set()
    while paths:
        path = paths.pop()
        seen.add(path)
        status, body, headers = get(calm, path)
        assert status == 200, path
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        words = body.decode()
        assert set(re.findall(r"https?://[\w.]+", words)) <= {"http://www.w3.org"}, path
        linked = re.findall(r'(?:src=|href=|from )"(?:\./)?([^"]+)"', words)
        paths += [one for one in linked if one not in seen]
    assert {"page.js", "page.css", "icon.svg", "charts.js", "items.js"} <= seen


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nothing", 404),
        ("../state.py", 404),
        ("page/../../state.py", 404),
        ("state?seconds=x", 400),
        ("state?server=1", 400),
        ("items?server=x", 400),
        ("items", 400),
        ("items?table=replay&count=x", 400),
        ("item?table=replay", 400),
        ("item?table=replay&key=-1", 400),
        ("item?table=none&key=1", 502),
    ],
)
def test_request_that_makes_no_sense_is_refused(calm: str, path: str, status: int) -> None:
    answer, body, _ = get(calm, path)
    assert answer == status
    assert json.loads(body)["error"]


@pytest.mark.parametrize("path", ["", "state", "page.js", "x/state", "items?table=replay&count=1"])
def test_who_does_not_know_the_address_sees_nothing(calm: str, path: str) -> None:
    answer, body, _ = get(calm.rsplit("/", 2)[0] + "/", path)
    assert answer == 403
    assert "secret" in json.loads(body)["error"]


# The command.


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "echoic", "dashboard", *arguments]


def test_command_says_where_the_page_is_and_an_interrupt_ends_it(serve: Any) -> None:
    address = serve(echoic.Table("replay", np.int64(0), capacity=100)).addresses[0]
    with subprocess.Popen(
        command(address, "--interval", "0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert running.stdout is not None
            url = running.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{22}/", url)
            assert get(url, "")[0] == 200
            assert until(lambda: asked(url, "state")["things"])[0]["name"] == "replay"
            running.send_signal(signal.SIGINT)
            output, errors = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    assert running.returncode == 0, errors
    assert (output, errors) == ("", "press Ctrl-C to stop\n")


def test_command_says_in_a_line_why_it_can_not_begin(serve: Any, tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wrong" * 5)
    table = echoic.Table("replay", np.int64(0), capacity=100)
    server = serve(table, token="right" * 5)
    (address,) = server.addresses

    def refused(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["dashboard", *arguments])
        assert done.exit_code == 1
        assert done.output.count("\n") == 1
        return done.output

    assert "--token-file" in refused(address)
    assert "--token-file" in refused(address, "--token-file", str(secret))
    secret.write_text("right" * 5)
    options = [address, "--token-file", str(secret)]
    assert "--insecure" in refused(*options, "--host", "0.0.0.0")
    assert "can't listen" in refused(*options, "--port", address.rpartition(":")[2])
    server.close()
    assert "no server answers" in refused(*options)


# A real browser.


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Chromium without a screen."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Its sandbox does not work for root and in containers; the pages are our own.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


@pytest.fixture
def look(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a page in the browser; in the end it must have had nothing to complain of."""

    def start(url: str, width: int = 1180, scheme: str = "light") -> Any:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preference = {"name": "prefers-color-scheme", "value": scheme}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preference]})
        chromium.get(url)
        return chromium

    yield start
    complaints = chromium.get_log("browser")
    # It asks no more.
    chromium.get("about:blank")
    assert complaints == []


def words(browser: Any, selector: str) -> str:
    """What a person reads there."""
    return str(
        browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')",
            selector,
        )
    )


def test_person_reads_which_table_is_stuck_who_waits_and_why(
    serve: Any, page: Any, starve: Any, look: Any
) -> None:
    limiter = limiters.SampleToInsertRatio(2.0, min_size=1, error_buffer=1.0)
    table = echoic.Table(HOSTILE, np.int64(0), capacity=100, limiter=limiter)
    table.add(np.int64(1))
    starve(table)
    browser = look(page(serve(table).addresses[0]))
    shown = until(lambda: "STUCK" in (now := words(browser, "#problems")) and now)
    # The name is text: what it would be as HTML did not come to be.
    assert HOSTILE in shown
    assert HOSTILE in words(browser, "h2")
    assert browser.execute_script("return window.hacked") is None
    assert "1 sample call waits: samples are ahead of inserts" in shown
    assert "inserts are the slow side" in shown
    assert "1 sample waits: RATIO" in words(browser, ".pill.stuck")


def test_charts_grow_while_items_come(serve: Any, page: Any, look: Any) -> None:
    table = echoic.Table("replay", np.int64(0), capacity=100)
    browser = look(page(serve(table).addresses[0]))

    def points() -> list[str]:
        line = "return document.querySelector('path.first')?.getAttribute('d') ?? ''"
        return re.findall(r"[\d.]+ [\d.]+", browser.execute_script(line))

    before = until(lambda: (now := points())[2:] and now)
    table.extend(np.arange(60))
    # Higher up is less.
    low = float(before[-1].split()[1])
    until(lambda: any(float(point.split()[1]) < low - 5 for point in points()))
    until(lambda: len(points()) > len(before))
    until(lambda: "of 100 (60%)" in words(browser, "dl"))
    resources = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => new URL(entry.name).origin)"
    )
    assert set(resources) == {browser.execute_script("return location.origin")}


def click_until(browser: Any, what: str, shown: str) -> None:
    """Click until something is shown, as a person does: what moves as charts grow may be missed."""

    from selenium.common.exceptions import WebDriverException

    def is_shown() -> bool:
        if browser.find_elements("css selector", shown):
            return True
        with suppress(WebDriverException):
            browser.find_element("css selector", what).click()
        return False

    until(is_shown)


def test_person_sees_the_picture_in_an_item(serve: Any, page: Any, look: Any) -> None:
    item = {"obs": np.full((2, 20, 30), 128, np.uint8), "note": np.array(b"<i>hello</i>", "S20")}
    table = echoic.Table("replay", item, capacity=100)
    browser = look(page(serve(table).addresses[0]))
    table.add(item)
    click_until(browser, "summary", "details[open]")
    until(lambda: browser.find_elements("css selector", ".keys button"))
    click_until(browser, ".keys button", ".item img")
    until(lambda: len(browser.find_elements("css selector", ".item img")) == 2)
    sizes = (
        "return [...document.images].filter(i => i.alt).map(i => [i.naturalWidth, i.naturalHeight])"
    )
    until(lambda: browser.execute_script(sizes) == [[30, 20], [30, 20]])
    shown = words(browser, ".item")
    assert "<i>hello</i>" in shown
    assert "uint8[2, 20, 30]" in shown


def test_histogram_is_drawn_as_bars_with_their_bounds(serve: Any, page: Any, look: Any) -> None:
    table = echoic.Table("replay", np.int64(0), capacity=3000)
    table.extend(np.arange(2000), priorities=np.full(2000, 3.0))
    table.extend(np.arange(500), priorities=np.full(500, 0.5))
    browser = look(page(serve(table).addresses[0]))

    def bars() -> Any:
        return browser.execute_script(
            """
            const found = [...document.querySelectorAll(".bars")].find(
              (one) => one.innerText.startsWith("Items by priority"));
            if (!found) return null;
            const bars = [...found.querySelectorAll("progress")];
            return [found.innerText.split(/\\s*[\\n\\t]+/), bars.map((bar) => bar.position)];
            """
        )

    words, shares = until(bars)
    assert words == ["Items by priority", "up to 1", "500", "up to 4", "2,000"]
    assert shares == [0.25, 1.0]


def test_person_chooses_a_server_and_a_range_and_a_reload_keeps_both(
    serve: Any, page: Any, look: Any
) -> None:
    servers = [serve(echoic.Table(name, np.int64(0), capacity=9)) for name in ("one", "two")]
    browser = look(page(*(server.address for server in servers)))
    until(lambda: "one" in words(browser, "h2"))
    until(lambda: len(browser.find_elements("css selector", "#overview button")) == 2)
    browser.execute_script("document.querySelectorAll('#overview button')[1].focus()")
    until(lambda: "two" in words(browser, "h2") or press(browser))
    browser.execute_script(
        "const range = document.querySelector('#range'); range.value = '60';"
        "range.dispatchEvent(new Event('change'))"
    )
    assert "60" in browser.current_url
    browser.refresh()
    until(lambda: "two" in words(browser, "h2"))
    assert "one" not in words(browser, "h2")
    assert browser.execute_script("return document.querySelector('#range').value") == "60"
    # The past is there at once.
    assert until(lambda: "ago" in words(browser, "figcaption"))


def press(browser: Any) -> bool:
    """Press Enter where the focus is, which a new answer does not take away."""
    from selenium.webdriver import ActionChains, Keys

    ActionChains(browser).send_keys(Keys.ENTER).perform()
    return False


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_phone_shows_all_without_scrolling_sideways_as_light_as_the_system(
    serve: Any, page: Any, look: Any, scheme: str, dark: bool
) -> None:
    table = echoic.Table("a-long-name-" * 10, np.int64(0), capacity=100)
    browser = look(page(serve(table).addresses[0]), width=375, scheme=scheme)
    until(lambda: "a-long-name" in words(browser, "h2"))
    until(lambda: "127.0.0.1" in words(browser, "#connections"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 375
    ground, ink = (
        sum(
            map(
                int,
                re.findall(
                    r"\d+",
                    browser.execute_script(
                        "return getComputedStyle(document.body)[arguments[0]]", name
                    ),
                )[:3],
            )
        )
        for name in ("backgroundColor", "color")
    )
    assert (ground < ink) == dark


def test_person_reads_that_the_server_is_away_and_since_when(
    serve: Any, page: Any, look: Any
) -> None:
    first = serve(echoic.Table("replay", np.int64(0), capacity=100))
    browser = look(page(first.addresses[0]))
    until(lambda: words(browser, "#state") == "live" and "replay" in words(browser, "h2"))
    first.close()
    until(lambda: words(browser, "#state") == f"{first.addresses[0]} is away")
    assert words(browser, "h2").startswith("replay")
    assert re.search(r"has not answered since \d\d:\d\d:\d\d", words(browser, "#problems"))
    port = urllib.parse.urlsplit(first.addresses[0]).port
    serve(echoic.Table("replay", np.int64(0), capacity=100), port=port)
    until(lambda: words(browser, "#state") == "live")
