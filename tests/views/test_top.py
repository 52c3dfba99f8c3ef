"""`echoic top`: what a person reads in a terminal while a real server runs, waits, or is gone.

The pictures that the guide shows are made here. With ECHOIC_PICTURES=write they are made anew; else
they must say the same as what is seen now, but for numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import io
import itertools
import json
import math
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic import Server, Stream, Table, connect, limiters, selectors
from echoic.cli.app import app as command_line
from echoic.errors import ClosedError
from echoic.views.reading import Side, StreamReading, TableReading, buckets
from echoic.views.terminal import Top, sections
from echoic.views.terminal.sections import bar, chart, sparkline
from rich.console import Console
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from textual.pilot import Pilot

    Play = Callable[[Pilot[None]], Awaitable[None]]

PATIENCE = 40.0
INTERVAL = 0.05
STEP = np.float32(0)
ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "assets"
# Of a picture: how wide a character is.
CELL = 12.2


def text_of(svg: str) -> str:
    """What a picture says, each character where it is."""
    rows: dict[float, dict[int, str]] = {}
    pattern = r'<text class="[^"]*-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>'
    for x, y, words in re.findall(pattern, svg):
        start = round(float(x) / CELL)
        for place, letter in enumerate(html.unescape(words)):
            rows.setdefault(float(y), {})[start + place] = letter.replace("\xa0", " ")
    lines = []
    for _, row in sorted(rows.items()):
        lines.append("".join(row.get(place, " ") for place in range(max(row) + 1)).rstrip())
    return "\n".join(lines)


def seen(pilot: Pilot[None]) -> str:
    """What is on the screen."""
    return text_of(pilot.app.export_screenshot())


def sentences(screen: str) -> str:
    """The same as if the screen were wide enough for every sentence."""
    return re.sub(r"\s+", " ", screen)


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it never came true; the screen is\n{seen(pilot)}"
        await asyncio.sleep(INTERVAL)


def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, without waiting for the screen to come to rest: it never does."""
    for key in keys:
        pilot.app.simulate_key(key)


async def until_seen(pilot: Pilot[None], *words: str) -> str:
    """Wait until words are on the screen; return all that is there."""
    screen = ""

    def there() -> bool:
        nonlocal screen
        screen = sentences(seen(pilot))
        return all(word in screen for word in words)

    await until(pilot, there)
    return screen


def watch_it(address: str, play: Play, size: tuple[int, int] = (80, 24), **rest: Any) -> None:
    """Show a server while somebody plays with the keys."""

    async def run() -> None:
        with connect(address, **rest) as watch:
            async with Top(watch, INTERVAL).run_test(size=size) as pilot:
                await play(pilot)

    asyncio.run(run())


@contextlib.contextmanager
def served(*stores: Stream | Table, port: int = 0) -> Iterator[Server]:
    """A server of some stores."""
    with Server(*stores, listen=f"tcp://127.0.0.1:{port}") as server:
        yield server


def make_stream(batch_size: int = 4, capacity: int | None = None) -> Stream:
    return Stream(np.zeros(4, np.float32), batch_size=batch_size, capacity=capacity)


@pytest.fixture
def sample_waits(background: Any) -> Callable[[Server, str], None]:
    """Start a learner that waits for an item of a table, until the server is closed."""

    def begin(server: Server, table: str) -> None:
        def learn() -> None:
            with (
                contextlib.suppress(ClosedError, ConnectionError, TimeoutError),
                connect(server.address, reconnect=0.1, name="learner") as client,
            ):
                client.tables[table].sample(1)

        background.start(learn)

    return begin


def starved() -> Table:
    """A table with three items that wants ten."""
    table = Table("replay", STEP, capacity=100, limiter=limiters.MinSize(10))
    for _ in range(3):
        table.add(STEP)
    return table


# Why something is stuck.


def test_starved_limiter_says_which_table_who_waits_and_why(sample_waits: Any) -> None:
    async def play(pilot: Pilot[None]) -> None:
        screen = await until_seen(pilot, "STUCK", "1 sample call waits")
        assert "table 'replay' (MIN_SIZE)" in screen
        assert "the table has 3 items, its limiter wants 10 before the first sample" in screen
        assert "0 inserts/s come in" in screen
        assert "1 MIN_SIZE" in screen  # The table's own row says so too.

    with served(starved()) as server:
        sample_waits(server, "replay")
        watch_it(server.address, play)


def test_problem_goes_when_its_cause_goes(sample_waits: Any) -> None:
    table = starved()

    async def play(pilot: Pilot[None]) -> None:
        await until_seen(pilot, "STUCK", "1 sample call waits")
        for _ in range(7):
            table.add(STEP)
        assert "STUCK" not in await until_seen(pilot, "OK nothing is stuck")

    with served(table) as server:
        sample_waits(server, "replay")
        watch_it(server.address, play)


def test_ratio_that_is_not_kept_says_which_side_is_slow(sample_waits: Any) -> None:
    limiter = limiters.SampleToInsertRatio(2.0, min_size=1, error_buffer=2.0)
    table = Table("mixed", STEP, capacity=100, limiter=limiter)
    table.add(STEP)

    async def play(pilot: Pilot[None]) -> None:
        screen = await until_seen(pilot, "STUCK", "table 'mixed' (RATIO): 1 sample call waits")
        assert "samples are ahead of inserts" in screen
        assert "holds the table to its ratio of 2" in screen
        assert "inserts are the slow side" in screen

    with served(table) as server:
        # As many as there may be before it waits.
        with contextlib.suppress(TimeoutError):
            while True:
                table.sample(1, timeout=0)
        sample_waits(server, "mixed")
        watch_it(server.address, play)


def test_ring_that_nobody_empties_says_who_waits_for_room(background: Any) -> None:
    async def play(pilot: Pilot[None]) -> None:
        await until_seen(
            pilot,
            "STUCK the stream (CAPACITY): 1 push waits",
            "the ring is full, 2 batches are ready, and no batch is taken",
            "the learner is the slow side",
            "100% batches of 4: 2 ready, 0 held, 0 free",
        )
        # The connection that waits is the first of the list.
        first = r"waits for actor [^:]*% CAPACITY"
        await until(pilot, lambda: bool(re.search(first, sentences(seen(pilot)))))

    def work(address: str) -> None:
        with (
            contextlib.suppress(ClosedError, ConnectionError, TimeoutError),
            connect(address, window_bytes=1, reconnect=1.0, name="actor").stream(
                np.zeros(4, np.float32)
            ) as client,
        ):
            while True:
                client.add(np.zeros(4, np.float32))

    with served(make_stream(4, 8)) as server:
        background.start(work, server.address)
        watch_it(server.address, play)


def test_push_of_the_servers_own_process_is_seen_to_wait(background: Any) -> None:
    async def play(pilot: Pilot[None]) -> None:
        await until_seen(
            pilot, "(CAPACITY)", "the ring is full, 2 batches are ready, and no batch is taken"
        )

    stream = make_stream(4, 8)
    with served(stream) as server:

        def work() -> None:
            with contextlib.suppress(ClosedError):
                while True:
                    stream.add(np.zeros(4, np.float32))

        background.start(work)
        watch_it(server.address, play)


def test_stream_that_nobody_sends_to_is_told(background: Any) -> None:
    async def play(pilot: Pilot[None]) -> None:
        await until_seen(pilot, "the stream (EMPTY)", "a batch takes 4", "no sample has come yet")

    def learn() -> None:
        with contextlib.suppress(ClosedError):
            stream.sample()

    stream = make_stream()
    with served(stream) as server:
        background.start(learn)
        watch_it(server.address, play)


def test_screen_of_24_lines_shows_all_parts_beside_many_problems(sample_waits: Any) -> None:
    tables = [
        Table(f"a table with the long name {n}", STEP, capacity=100_000, limiter=limiters.MinSize())
        for n in range(5)
    ]

    async def play(pilot: Pilot[None]) -> None:
        await until_seen(pilot, "STUCK", "tables", "11 connections", "q quit")
        lines = seen(pilot).splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        screen = "\n".join(lines)
        for part in ("problems", "stream", "tables", "connections"):
            assert re.search(f"^─.*{part}", screen, re.MULTILINE), screen
        for key in ("open table", "next list", "sort", "pause", "help", "quit"):
            assert key in lines[-1]
        # There is room for connections, too.
        assert lines[-2].startswith((" learner ", " echoic top "))
        # Names that are too long can be told apart.
        tails = [line for line in lines if line.startswith(" …")]
        assert ["name 0" in tails[0], "name 1" in tails[1]] == [True, True]

    with served(*tables, make_stream()) as server:
        for table in tables:
            sample_waits(server, table.name)
        watch_it(server.address, play, name="echoic top")


# What goes on.


@pytest.fixture
def life(background: Any) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Do something again and again, a bit faster and a bit slower, until the test is over."""
    over = threading.Event()

    def live(act: Callable[[], object]) -> None:
        for beat in itertools.count():
            if over.wait(0.002 + 0.01 * math.sin(beat / 60) ** 2):
                return
            act()

    yield lambda act: background.start(live, act)
    over.set()


def test_rates_of_a_table_are_those_of_the_last_seconds(life: Any) -> None:
    table = Table("replay", STEP, capacity=100)

    def act() -> None:
        table.add(STEP)
        table.sample(3)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: bool(re.search(r"in +[1-9][\d.]* ?k?/s", seen(pilot))))
        assert re.search(r"out +[1-9][\d.]* ?k?/s", seen(pilot))
        # Three samples for each insert.
        await until_seen(pilot, "(100%) 3 ")
        line = next(line for line in seen(pilot).splitlines() if " in " in line)
        assert re.search("[▂▃▄▅▆▇█]{3}$", line), line

    with served(table) as server:
        life(act)
        watch_it(server.address, play)


def test_enter_opens_a_table_and_escape_closes_it(sample_waits: Any) -> None:
    other = Table("other", STEP, capacity=7)

    async def play(pilot: Pilot[None]) -> None:
        await until_seen(pilot, "1 sample call waits", "other")
        press(pilot, "down", "enter")
        screen = await until_seen(pilot, "table 'other'", "of 7 (0%)", "policy version")
        assert "STUCK" not in screen  # That is about the other one.
        press(pilot, "escape", "up", "enter")
        screen = await until_seen(pilot, "table 'replay'", "3 of 100")
        assert "(MIN_SIZE): 1 sample call waits" in screen
        assert "first sample at 10 items" in screen
        assert "samples waiting 1 MIN_SIZE; waited" in screen
        press(pilot, "escape")
        await until_seen(pilot, "connections")

    with served(starved(), other) as server:
        sample_waits(server, "replay")
        watch_it(server.address, play)


def test_pause_holds_the_screen_still_until_it_is_pressed_again() -> None:
    table = Table("replay", STEP, capacity=100)

    async def play(pilot: Pilot[None]) -> None:
        await until_seen(pilot, "LIVE", "0 (0%)", "q quit")
        press(pilot, "p")
        before = await until_seen(pilot, "PAUSED", "q quit")
        for _ in range(40):
            table.add(STEP)
        await asyncio.sleep(INTERVAL * 5)
        assert sentences(seen(pilot)) == before
        press(pilot, "p")
        await until_seen(pilot, "LIVE", "40 (40%)")

    with served(table) as server:
        watch_it(server.address, play)


def test_s_sorts_connections_by_something_else(life: Any) -> None:
    def clients(screen: str) -> list[str]:
        return re.findall(r"^ (slow|fast) ", screen, re.MULTILINE)

    stream = make_stream(1)
    with served(stream) as server:
        address = server.address
        example = np.zeros(4, np.float32)
        with (
            connect(address, name="slow").stream(example),
            connect(address, name="fast").stream(example) as fast,
        ):

            def act() -> None:
                fast.add(example)
                stream.sample()

            async def play(pilot: Pilot[None]) -> None:
                await until_seen(pilot, "connections, those that wait first")
                press(pilot, "s")
                await until_seen(pilot, "connections, the fastest first")
                await until(pilot, lambda: clients(seen(pilot)) == ["fast", "slow"])
                press(pilot, "s")
                await until_seen(pilot, "connections, the slowest first")
                await until(pilot, lambda: clients(seen(pilot)) == ["slow", "fast"])

            life(act)
            watch_it(address, play)


def test_help_says_what_every_key_and_reason_means() -> None:
    async def play(pilot: Pilot[None]) -> None:
        await until_seen(pilot, "LIVE")
        press(pilot, "question_mark")
        screen = await until_seen(pilot, "open the table under the cursor")
        for reason in ("MIN_SIZE", "RATIO", "PAUSED", "CAPACITY", "LEASED", "EMPTY"):
            assert reason in screen
        press(pilot, "escape")
        await until_seen(pilot, "LIVE")

    with served(starved()) as server:
        watch_it(server.address, play, size=(80, 40))


# A server that is not there.


def test_server_that_goes_is_missed_and_seen_again_when_it_is_back() -> None:
    async def play(pilot: Pilot[None]) -> None:
        await until_seen(pilot, "LIVE", "3 (3%)")
        await asyncio.to_thread(server.close)
        screen = await until_seen(pilot, "AWAY", "the server (AWAY): it has not answered since")
        assert re.search(r"since \d\d:\d\d:\d\d \w+: ", screen)
        assert "3 (3%)" in screen  # What was known stays.
        press(pilot, "enter")
        await until_seen(pilot, "table 'replay'", "AWAY")
        port = int(server.address.rpartition(":")[2])
        with served(Table("other", STEP, capacity=5), port=port):
            await until_seen(pilot, "LIVE", "the server no longer has this table")
            press(pilot, "escape")
            assert "replay" not in await until_seen(pilot, "LIVE", "of 5")

    with served(starved()) as server:
        watch_it(server.address, play)


def test_who_leaves_does_not_wait_for_a_server_that_is_silent() -> None:
    async def play(pilot: Pilot[None]) -> None:
        await until_seen(pilot, "LIVE")
        await asyncio.to_thread(server.close)
        port = int(server.address.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)) as silent:
            asked, _ = await asyncio.to_thread(silent.accept)
            with asked:
                press(pilot, "q")
                await until(pilot, lambda: not pilot.app.is_running)

    with served(starved()) as server:
        # A look would wait for longer than the test may take.
        watch_it(server.address, play, timeout=1000.0)


# One reading, for scripts.


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(command_line, ["top", *arguments])


def until_waiting(server: Server) -> None:
    deadline = time.monotonic() + PATIENCE
    while not server.metrics()["table_waiting.replay.sample"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_once_prints_what_is_wrong_first(sample_waits: Any) -> None:
    with served(starved(), make_stream()) as server:
        sample_waits(server, "replay")
        until_waiting(server)
        done = invoke(server.address, "--once", "--interval", "1")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{server.address}: echoic ")
    assert lines[2] == "STUCK: table 'replay' (MIN_SIZE)"
    assert lines[3].startswith("  1 sample call waits: the table has 3 items, its limiter wants 10")
    assert lines[4].startswith("  what helps: ")
    assert "table 'replay': 1 sample waits: MIN_SIZE" in lines
    assert "  items                 3  (of 100 (3%))" in lines
    assert "  samples/s             0  (0 in all)" in lines


def test_once_says_so_when_nothing_is_wrong() -> None:
    with served(starved()) as server:
        done = invoke(server.address, "--once", "--interval", "1")
    assert done.stdout.splitlines()[2] == "nothing is stuck"


def test_json_has_keys_that_scripts_may_rely_on(sample_waits: Any) -> None:
    with served(starved(), make_stream()) as server:
        sample_waits(server, "replay")
        until_waiting(server)
        done = invoke(server.address, "--json", "--interval", "1")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    parts = {"address", "release", "age", "problems", "stream", "tables", "server", "connections"}
    assert found.keys() >= parts
    problem = found["problems"][0]
    assert problem.keys() >= {"level", "subject", "reason", "text", "advice"}
    assert (problem["level"], problem["reason"]) == ("stuck", "MIN_SIZE")
    (table,) = found["tables"]
    assert (table["name"], table["items"], table["min_items"]) == ("replay", 3, 10)
    assert table["sample"].keys() >= {"waiting", "wait_seconds", "reason"}
    assert table["sample"]["waiting"] == 1
    assert (table["rates"]["inserts"], table["rates"]["samples"]) == (0.0, 0.0)
    assert table["rates"]["sample_wait"] == pytest.approx(1.0, abs=0.2)
    assert found["stream"]["rates"].keys() >= {"samples", "bytes", "starved", "blocked"}
    assert found["connections"][0].keys() >= {"peer", "age", "samples", "blocked_by", "rates"}


def test_nobody_there_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = invoke(f"tcp://127.0.0.1:{port}")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"no server answers at tcp://127.0.0.1:{port}" in done.stderr


def test_wrong_token_is_one_line_that_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("wrong")
    with Server(starved(), listen="tcp://127.0.0.1:0", token="right") as server:
        done = invoke(server.address, "--token-file", str(tmp_path / "token"))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "--token-file" in done.stderr


def test_without_a_terminal_one_line_says_what_does_without() -> None:
    with served(starved()) as server:
        done = invoke(server.address)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "--once" in done.stderr


def test_missing_textual_is_one_line_and_once_needs_none(run_script: Any) -> None:
    with served(starved()) as server:
        done = run_script(
            "import sys; sys.modules['textual'] = None\n"
            f"sys.argv = ['echoic', 'top', {server.address!r}]\n"
            "from echoic.cli import main\n"
            "try: main()\n"
            "except SystemExit as end: print(end.code)\n"
            "sys.argv += ['--once', '--interval', '0.05']; main()"
        )
    assert "pip install 'echoic[cli]'" in done.stderr
    assert (done.stderr.count("\n"), done.stdout.splitlines()[0]) == (1, "1")
    assert (done.returncode, "table 'replay'" in done.stdout) == (0, True)


def test_command_runs_in_a_terminal_until_q_is_pressed() -> None:
    ours, theirs = pty.openpty()
    with served(starved()) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "echoic", "top", server.address],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        )
        os.close(theirs)
        try:
            shown, deadline = b"", time.monotonic() + PATIENCE
            while b"replay" not in shown:
                assert time.monotonic() < deadline, shown
                if select.select([ours], [], [], 1.0)[0]:
                    shown += os.read(ours, 65536)
            os.write(ours, b"q")
            while process.poll() is None:
                assert time.monotonic() < deadline
                # What is not read would keep it from ending.
                if select.select([ours], [], [], 0.05)[0]:
                    with contextlib.suppress(OSError):
                        os.read(ours, 65536)
        finally:
            process.kill()
            process.wait()
            os.close(ours)
    assert process.returncode == 0


def test_demo_says_how_to_watch_it_and_is_seen(tmp_path: Path) -> None:
    async def play(pilot: Pilot[None]) -> None:
        rate = r"[1-9][\d.]*( k)? samples/s"
        await until(pilot, lambda: bool(re.search(rate, seen(pilot))))
        await until_seen(pilot, "shm://collector-", "batches of 1:", "2 connections")

    options = ("--workers", "1", "--target", "1000", "--steps", "10000000")
    with subprocess.Popen(
        [sys.executable, "-m", "echoic", "demo", *options, "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            invitation = re.search(r"echoic top (shm://\S+)$", process.stdout.readline().strip())
            assert invitation
            watch_it(invitation[1], play)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)


# What screens are made of.


def test_state_of_a_stream_counts_calls_of_both_sides() -> None:
    full = StreamReading(waiting_pushes=2, capacity=8, stored=8)
    assert full.state == ("stuck", "2 pushes wait: CAPACITY")
    empty = StreamReading(waiting_samples=1, capacity=8)
    assert empty.state == ("stuck", "1 sample call waits: EMPTY")
    assert StreamReading(capacity=8).state == ("good", "no call waits")


def test_chart_begins_at_zero_so_that_a_steady_rate_is_high() -> None:
    assert sparkline([5.0, 5.1, 5.0], 3) == "███"
    assert sparkline([0.0, 4.0, 8.0], 3) == "▁▄█"


def test_nothing_happening_looks_different_from_nothing_known() -> None:
    assert sparkline([], 4) == "    "
    assert sparkline([0.0, 0.0], 4) == "  ▁▁"


def test_small_rate_does_not_look_like_none() -> None:
    assert sparkline([0.0, 0.001, 1000.0], 3) == "▁▂█"


def test_chart_keeps_the_scale_of_time_while_values_become_more() -> None:
    few = chart([1.0] * 4, width=10, height=1, most=40)
    many = chart([1.0] * 40, width=10, height=1, most=40)
    assert (few, many) == (["         █"], ["██████████"])


def test_chart_of_several_lines_stacks_blocks() -> None:
    assert chart([1.0, 2.0], width=2, height=2) == [" █", "██"]


def test_bar_is_full_or_empty_only_when_its_share_is() -> None:
    assert (bar(0.0, 4), bar(0.001, 4), bar(0.999, 4), bar(1.0, 4)) == (
        "░░░░",
        "█░░░",
        "███░",
        "████",
    )


def test_buckets_hold_what_cumulative_counts_differ_by() -> None:
    found = buckets({"+Inf": 9.0, "0": 2.0, "10": 7.0, "2": 2.0})
    assert found == [("up to 0", 2.0), ("up to 2", 0.0), ("up to 10", 5.0), ("above 10", 2.0)]


def test_histograms_of_a_table_are_bars_as_long_as_their_counts() -> None:
    side = Side(waiting=0, wait_seconds=0.0, reason="")
    table = TableReading(
        name="replay",
        items=8,
        capacity=10,
        inserts=8,
        samples=14,
        deletions=0,
        ratio=1.75,
        target_ratio=None,
        min_items=1,
        paused=False,
        version=0,
        row_bytes=0,
        insert=side,
        sample=side,
        times_sampled={"0": 2.0, "1": 2.0, "2": 6.0, "+Inf": 8.0},
    )
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(sections.bars(table.bars(), 32))
    title, *lines = filter(None, map(str.strip, console.export_text().splitlines()))
    assert title == "Items by how often they were sampled"
    assert [line.split("  ")[0] for line in lines] == ["up to 0", "up to 1", "up to 2", "above 2"]
    assert [line.count("█") for line in lines] == [6, 0, 13, 6]


# The pictures of the guide.


def masked(screen: str) -> list[str]:
    """Words without numbers, bars, sparklines and what depends on their widths."""
    units = r"(?: ?(?:[kMGT]|[kMGT]?B|ns|µs|ms|s|min)\b)?"
    screen = re.sub(rf"\d[\d.,:]*(?:e[+-]?\d+)?{units}%?", "#", screen)
    screen = re.sub(r"[▁▂▃▄▅▆▇█░▎▊▋▌▍─]+", " ", screen)
    return [re.sub(r"\s+", " ", line).strip() for line in screen.splitlines()]


async def compare(pilot: Pilot[None], picture: Path) -> None:
    """Compare what is seen with a picture that was kept, or keep it."""
    if os.environ.get("ECHOIC_PICTURES") == "write":
        # It fetches nothing from elsewhere, so letters are those of the reader's machine.
        svg = re.sub(r"\s*@font-face \{.*?\}", "", pilot.app.export_screenshot(), flags=re.DOTALL)
        svg = svg.replace("Fira Code, monospace", "monospace")
        svg = re.sub(r"<!--.*?-->", "", svg)
        # For those who can't see it.
        words = html.escape(text_of(svg))
        told = f"<title>echoic top</title><desc>{words}</desc>"
        svg = re.sub(r"(<svg [^>]*>)", lambda start: start[1] + told, svg, count=1)
        svg = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE).rstrip() + "\n"
        await asyncio.to_thread(picture.write_text, svg)
    kept = masked(text_of(await asyncio.to_thread(picture.read_text)))
    try:
        await until(pilot, lambda: masked(seen(pilot)) == kept)
    except AssertionError:
        assert masked(seen(pilot)) == kept


def test_pictures_of_the_guide_say_what_is_seen(sample_waits: Any, life: Any) -> None:
    busy = Table("replay", STEP, capacity=1000, sampler=selectors.Prioritized(0.6))
    stuck = Table("sequences", STEP, capacity=5000, limiter=limiters.MinSize(10))
    for _ in range(3):
        stuck.add(STEP)
    answers = 150 if os.environ.get("ECHOIC_PICTURES") == "write" else 3

    async def play(pilot: Pilot[None]) -> None:
        history = pilot.app.monitor.history  # type: ignore[attr-defined]
        await until(pilot, lambda: bool(history.last))
        table = history.last.tables[0]
        await until(pilot, lambda: len(history.series(table, "inserts")) >= answers)
        await until_seen(pilot, "1 sample call waits", "3 connections", "q quit")
        await compare(pilot, PICTURES / "top.svg")
        press(pilot, "enter")
        await until_seen(pilot, "policy version", "q quit")
        await compare(pilot, PICTURES / "top-table.svg")

    stream = make_stream(256, 2048)
    with served(busy, stuck, stream) as server:
        steps = np.zeros((64, 4), np.float32)
        beats = itertools.count()

        def act() -> None:
            stream.extend(steps)
            if next(beats) % 4 == 3:
                stream.sample()
            busy.add(STEP)
            busy.sample(2)

        life(act)
        sample_waits(server, "sequences")
        deadline = time.monotonic() + PATIENCE
        # The list has them in the order in which they came.
        while sorted(one["name"] for one in server.connections()) != ["learner", "learner"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        watch_it(server.address, play, size=(80, 28), name="echoic top")
