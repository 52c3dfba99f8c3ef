"""Rollout tables as a person sees them: what waits and why, in a terminal, a browser and a log.

All is read over a connection from a real server.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from echoic import Server, connect
from echoic.cli.app import app as command_line
from echoic.cli.status import LineView, PanelView
from echoic.errors import ClosedError
from echoic.rollouts import RolloutTable
from echoic.views.history import History
from echoic.views.monitor import Monitor
from echoic.views.plain import as_data, as_text
from echoic.views.problems import Problem, find_problems
from echoic.views.reading import Reading, RolloutReading, SourceReading, Waits, read
from echoic.views.terminal import Top
from echoic.views.terminal.overview import LiveGrid
from echoic.views.web.server import WebServer
from polling import until
from rich.console import Console
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from textual.pilot import Pilot

PATIENCE = 40.0
INTERVAL = 0.05


class Rolling:
    """A server of one rollout table, and those who use it in the background."""

    def __init__(self, stack: ExitStack, background: Any, **settings: Any) -> None:
        settings = {"batch_groups": 2, "max_lag": 1, **settings}
        self.table = RolloutTable("math", {"tokens": "int32"}, {"reward": "float32"}, **settings)
        server = Server(self.table, listen="tcp://127.0.0.1:0")
        self.server = stack.enter_context(server)
        self.address = self.server.address
        self._background = background

    def make(self, groups: int, *, source: str = "w", tokens: int = 3) -> None:
        for _ in range(groups):
            reservation = self.table.reserve(source=source, timeout=PATIENCE)
            reservation.add({"tokens": range(tokens)}, {"reward": 1.0})

    def start(self, call: Callable[[], object]) -> None:
        """Have a call wait until the server is closed."""

        def wait() -> None:
            try:
                while True:
                    call()
            except ClosedError:
                return

        self._background.start_and_let_block(wait)


@pytest.fixture
def roll(background: Any) -> Iterator[Callable[..., Rolling]]:
    """Serve a rollout table."""
    with ExitStack() as stack:
        yield lambda **settings: Rolling(stack, background, **settings)


def look(address: str, found: Callable[[list[Problem]], bool]) -> tuple[History, list[Problem]]:
    """Look until the problems are those that are waited for."""
    history = History()
    until = time.monotonic() + PATIENCE
    with connect(address) as watch:
        while True:
            history.add(read(next(iter(watch.server_stats().values()))))
            problems = find_problems(history)
            if found(problems):
                return history, problems
            assert time.monotonic() < until, problems
            time.sleep(0.02)


def problems_of(*tables: RolloutReading) -> list[Problem]:
    """What is wrong by one reading of some tables."""
    history = History()
    history.add(Reading(1.0, rollouts=tables))
    return find_problems(history)


def the_one(rolling: Rolling, reason: str, level: str = "stuck") -> Problem:
    """Wait for a problem, which must be the only one."""

    def found(problems: list[Problem]) -> bool:
        return any((one.reason, one.level) == (reason, level) for one in problems)

    _, problems = look(rolling.address, found)
    (problem,) = problems
    assert problem.subject == "rollout table 'math'"
    return problem


# Why it is stuck.


def test_a_learner_without_workers_is_told_that_nobody_asks_to_be_reserved(roll: Any) -> None:
    rolling = roll()
    rolling.make(1)
    rolling.start(rolling.table.sample)
    problem = the_one(rolling, "GROUP")
    assert problem.text == (
        "the learner waits: 1 group is ready, a batch takes 2; 0 groups are being made"
    )
    assert problem.advice.startswith("no worker asks for a reservation")


def test_a_learner_whose_workers_bring_nothing_is_told_to_look_at_them(roll: Any) -> None:
    rolling = roll()
    reservations = rolling.table.reserve_many(3)
    rolling.start(rolling.table.sample)
    problem = the_one(rolling, "GROUP")
    assert problem.text.endswith("3 groups are being made")
    assert "check the workers that hold the reservations" in problem.advice
    for reservation in reservations:
        reservation.fail()


def test_a_learner_whose_groups_were_left_is_told_to_have_them_resumed(roll: Any) -> None:
    rolling = roll(on_expiry="suspend")
    rolling.table.reserve().suspend()
    rolling.start(rolling.table.sample)
    assert "resume() or acquire()" in the_one(rolling, "GROUP").advice


def test_producers_that_are_ahead_of_the_learner_are_told_so(roll: Any) -> None:
    rolling = roll(max_lag=1)
    rolling.make(4)
    rolling.start(rolling.table.reserve)
    problem = the_one(rolling, "STALENESS")
    assert problem.text == (
        "1 call of a producer waits: enough is under way for version 0 of the learner, "
        "1 versions ahead at most: 0 groups are being made, 4 groups are ready"
    )
    assert problem.advice.startswith("the learner is the slow side (0 groups/s are taken)")


def test_workers_that_hold_all_reservations_are_told_apart_from_a_slow_learner(roll: Any) -> None:
    rolling = roll(max_running=2, max_lag=None)
    rolling.table.reserve_many(2)
    rolling.start(rolling.table.reserve)
    problem = the_one(rolling, "CAPACITY")
    assert "2 groups are being made, as many as max_running allows" in problem.text


def test_a_batch_that_may_not_leave_yet_names_the_versions(roll: Any) -> None:
    rolling = roll(max_lag=2, target_lag=0)
    rolling.make(4)
    rolling.table.sample()
    rolling.start(rolling.table.sample)
    problem = the_one(rolling, "STALENESS")
    assert "a batch for version 1 may not leave while the learner has published 0" in problem.text
    assert "publish_version" in problem.advice


def test_a_batch_that_lacks_groups_that_nobody_may_make_is_told_apart() -> None:
    waiting = {"consumers": {"STALENESS": Waits(1, 1.0)}, "batch_groups": 4, "ready": 2}
    [short] = problems_of(RolloutReading("math", **waiting))
    assert "too few groups are there, and no more may be reserved" in short.text
    assert "smaller batches" in short.advice
    [early] = problems_of(RolloutReading("math", **{**waiting, "ready": 4}))
    assert "may not leave" in early.text


def test_a_batch_that_another_has_is_told_by_its_lease(roll: Any) -> None:
    rolling = roll(order="submission", batch_groups=1)
    rolling.make(1)
    held = rolling.table.sample(lease=600)
    rolling.start(lambda: rolling.table.sample(lease=600))
    history, problems = look(rolling.address, bool)
    assert {problem.reason for problem in problems} <= {"LEASED", "GROUP"}
    assert history.last is not None
    assert history.last.rollouts[0].leased == 1
    held.ack()


def test_a_pause_is_told_also_when_nobody_waits(roll: Any) -> None:
    rolling = roll()
    rolling.table.pause()
    problem = the_one(rolling, "PAUSED")
    assert problem.text.startswith("the table is paused")
    assert "resume()" in problem.advice


def test_a_learner_that_gets_its_batches_is_not_called_stuck(roll: Any) -> None:
    rolling = roll(batch_groups=1, max_lag=None, max_running=4)

    def learn() -> None:
        rolling.table.sample()

    def work() -> None:
        time.sleep(0.01)
        rolling.make(1)

    rolling.start(learn)
    rolling.start(work)

    def is_known(problems: list[Problem]) -> bool:
        return any(problem.reason == "GROUP" for problem in problems)

    history, problems = look(rolling.address, is_known)
    with connect(rolling.address) as watch:
        for _ in range(60):
            history.add(read(next(iter(watch.server_stats().values()))))
            problems += find_problems(history)
            time.sleep(0.02)
    assert {problem.level for problem in problems} == {"slow"}
    assert history.last
    rates = history.rates(history.last.rollouts[0])
    assert rates["delivered"] > 0
    assert rates["tokens"] == pytest.approx(3 * rates["reserved"], rel=0.5)
    # It does nothing but wait, for nothing but groups.
    assert 0.5 < rates["consumers.GROUP"] <= 1.01
    assert rates["consumers"] == rates["consumers.GROUP"]


def test_a_source_of_which_little_is_kept_is_blamed(roll: Any) -> None:
    rolling = roll(filter="max(reward) > 1", max_lag=None, max_running=64)
    rolling.make(9, source="dull")
    for reservation in rolling.table.reserve_many(9, source="dying"):
        reservation.fail()
    rolling.table.reserve_many(9, source="slow")
    _, problems = look(rolling.address, bool)
    assert [(problem.level, problem.reason) for problem in problems] == [
        ("note", "FILTERED"),
        ("note", "REJECTED"),
    ]
    assert "9 of 9 groups of source 'dull' were filtered out" in problems[0].text
    assert "9 of 9 groups of source 'dying' were rejected" in problems[1].text


def test_a_source_that_is_passed_over_is_said_to_starve() -> None:
    hungry = SourceReading("late", waiting=2, waited=75.0, passed=1200, is_starving=True)
    history = History()
    history.add(Reading(1.0, rollouts=(RolloutReading("math", sources=(hungry,)),)))
    (problem,) = find_problems(history)
    assert (problem.level, problem.reason) == ("slow", "STARVING")
    assert problem.text == (
        "source 'late' has waited 75 s for a reservation, while others got 1,200 groups"
    )
    assert "waits 2 for 1 min STARVING" in as_text("tcp://learner:1", history)


# What is shown.


def delivered(roll: Any) -> Rolling:
    """A table that has delivered groups of different ages, and has one more ready."""
    rolling: Rolling = roll(max_lag=2)
    rolling.make(3)
    rolling.table.publish_version(1)
    rolling.table.sample()
    rolling.start(rolling.table.sample)
    return rolling


def test_lags_of_the_last_batch_are_told(roll: Any) -> None:
    rolling = roll(max_lag=4)
    reservation = rolling.table.reserve()
    reservation.add({"tokens": [1, 2]}, {"reward": 0.0}, versions=[0, 1])
    rolling.table.publish_version(2)
    rolling.make(1)
    rolling.table.publish_version(3)
    batch = rolling.table.sample()
    with connect(rolling.address) as watch:
        (table,) = read(next(iter(watch.server_stats().values()))).rollouts
    assert (table.lag_oldest, table.lag_mean, table.lag_newest) == (3, 2.0, 1)
    assert batch.lag_oldest.max() == 3
    assert batch.lag_oldest.mean() == 2
    assert batch.lag_newest.min() == 1
    assert table.lags == "1 to 3, 2 on average"


def test_reading_has_all_numbers_as_the_table_tells_them(roll: Any) -> None:
    rolling = delivered(roll)
    stats = rolling.table.stats()
    with connect(rolling.address) as watch:
        (table,) = read(next(iter(watch.server_stats().values()))).rollouts
    for name in ("submitted", "accepted", "rejected", "filtered", "running", "delivered", "tokens"):
        assert getattr(table, name) == getattr(stats, name), name
    assert (table.version, table.target) == (stats.version, stats.target)
    assert (table.ready, table.room) == (stats.queued, stats.room)
    assert (table.batch_groups, table.max_lag, table.depth) == (2, 2, 2)
    assert table.consumers["GROUP"].waiting == 1
    (source,) = table.sources
    assert (source.name, source.accepted, source.tokens) == ("w", 3, 9)


def test_text_and_data_of_one_reading_tell_of_rollout_tables(roll: Any) -> None:
    rolling = delivered(roll)
    history, _ = look(rolling.address, bool)
    text = as_text(rolling.address, history)
    for words in (
        "rollout table 'math': 1 consumer waits: GROUP",
        "version               1  (next batch for 2)",
        "running               0 groups  (0 suspended)",
        "ready                 1 group  (a batch takes 2)",
        "submitted             3  (= 0 running + 3 accepted + 0 rejected + 0 filtered)",
        "delivered             2  (in 1 batches,",
        "versions old          1 to 1, 1 on average  (at most 2, oldest ready",
        "consumers waiting     1  (GROUP 1 now",
        "source w, submitted 3, running 0",
    ):
        assert words in text
    data = json.loads(json.dumps(as_data(rolling.address, history)))
    (table,) = data["rollouts"]
    assert (table["name"], table["ready"], table["consumers"]["GROUP"]["waiting"]) == ("math", 1, 1)
    assert table["rates"].keys() >= {"reserved", "delivered", "tokens", "producers", "consumers"}
    found = CliRunner().invoke(command_line, ["top", rolling.address, "--once"])
    assert found.exit_code == 0
    assert "rollout table 'math': 1 consumer waits: GROUP" in found.output


def seen(pilot: Pilot[None]) -> str:
    """What is on the screen, in one line."""
    screen = pilot.app.export_screenshot()
    return " ".join(screen.replace("&#160;", " ").replace("\xa0", " ").split())


def test_terminal_shows_a_rollout_table_and_opens_it(roll: Any) -> None:
    rolling = delivered(roll)

    async def until_seen(pilot: Pilot[None], *words: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not all(word in seen(pilot) for word in words):
            assert time.monotonic() < deadline, seen(pilot)
            await asyncio.sleep(INTERVAL)

    async def run() -> None:
        with connect(rolling.address) as watch:
            async with Top(watch, INTERVAL).run_test(size=(100, 50)) as pilot:
                await until_seen(pilot, "rollout tables", "math", "1 of 2 ready", "lag 1", "GROUP")
                columns = pilot.app.screen.query_one("#rollouts", LiveGrid).ordered_columns
                titles = {column.label.plain: column.width for column in columns}
                assert [*titles] == ["table", "groups", "version", "tokens", "waiting", "of late"]
                assert all(len(title) <= width for title, width in titles.items()), titles
                pilot.app.simulate_key("enter")
                await until_seen(
                    pilot,
                    "tokens received of the last",
                    "= 0 running + 3 accepted",
                    "consumers waiting",
                    "sources",
                )
                pilot.app.simulate_key("escape")
                await until_seen(pilot, "rollout tables")

    asyncio.run(run())


def test_page_is_told_of_rollout_tables_and_their_rates(roll: Any) -> None:
    rolling = delivered(roll)
    with (
        Monitor(connect(rolling.address), INTERVAL) as monitor,
        WebServer([monitor]) as page,
    ):

        def state() -> Any:
            with urllib.request.urlopen(f"{page.url}state", timeout=PATIENCE) as answer:
                return json.load(answer)

        until(lambda: len(state()["ages"]) >= 2)
        now = state()
        table, server = now["things"]
        assert server["kind"] == "server"
        assert (table["kind"], table["name"], table["fill"]) == ("rollout table", "math", 0.5)
        assert table["state"] == ["stuck", "1 consumer waits: GROUP"]
        lines = {label: value for label, value, _ in table["lines"]}
        assert (lines["version"], lines["ready"]) == ("1", "1 group")
        assert lines["versions old"] == "1 to 1, 1 on average"
        assert table["sources"]["rows"][0][:2] == ["w", "3"]
        drawn = {
            (chart["title"], line["name"]): line["values"][-1]
            for chart in table["charts"]
            for line in chart["lines"]
        }
        assert drawn["Groups", "ready"] == 1
        assert drawn["Versions old when delivered", "mean"] == 1.0
        assert drawn["Calls that wait", "consumers"] == pytest.approx(1.0, abs=0.2)


BEFORE = Reading(
    1.0, rollouts=(RolloutReading("long math", delivered=10, tokens=1000, batch_groups=8),)
)
AFTER = Reading(
    3.0,
    rollouts=(
        RolloutReading(
            "long math",
            version=7,
            running=5,
            ready=3,
            batch_groups=8,
            delivered=30,
            tokens=9000,
            producers={"STALENESS": Waits(3, 9.0), "CAPACITY": Waits(1, 1.0)},
            consumers={"GROUP": Waits(0, 2.0)},
        ),
    ),
)


def test_line_has_the_numbers_of_each_rollout_table(capsys: Any) -> None:
    LineView(1.0, BEFORE).update(AFTER)
    numbers = dict(part.split("=") for part in capsys.readouterr().err.split()[1:])
    assert {name: value for name, value in numbers.items() if name.startswith("long")} == {
        "long_math.version": "7",
        "long_math.running": "5",
        "long_math.ready": "3",
        "long_math.delivered": "30",
        "long_math.delivered/s": "10",
        "long_math.tokens/s": "4000",
        "long_math.producers_waiting": "4",
        "long_math.consumers_waiting": "0",
    }


def test_panel_has_a_row_for_each_rollout_table() -> None:
    console = Console(record=True, width=100, color_system=None)
    view = PanelView(console, "echoic serve", [], BEFORE)
    console.print(view.render(AFTER))
    # Rates are those of the second reading on; a panel remembers them when it is updated.
    (row,) = [line for line in console.export_text().splitlines() if "long math" in line]
    for words in ("7 next batch for 0", "4 STALENESS"):
        assert words in row
