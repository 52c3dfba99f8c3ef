"""Worker processes end with their parent, say how they ended, and are replaced within a budget."""

from __future__ import annotations

import operator
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from echoic.errors import CollectorError
from echoic.workers import Process, Supervisor, Worker, stop_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = 60.0
# Functions that a worker can import. Each gets the connection first.
SLEEP = operator.methodcaller("recv")
FAIL = operator.attrgetter("no_such_thing")


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def start(function: Any, *args: Any, **options: Any) -> Worker:
        made.append(Worker(function, *args, **{"name": f"worker {len(made)}", **options}))
        return made[-1]

    yield start
    stop_all(made)
    assert all(one.process.poll() is not None for one in made)


def is_gone(pid: int) -> bool:
    """Whether a process ends soon; a zombie is there still."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_a_worker_gets_its_arguments_and_its_messages_come_before_its_end(worker: Any) -> None:
    one = worker(operator.methodcaller("send", {"a": [1, 2]}))
    assert list(one.messages(PATIENCE)) == [{"a": [1, 2]}]
    assert one.ending() == "ended with code 0"
    assert not one.alive


def test_large_arguments_need_no_reader(worker: Any) -> None:
    began = time.monotonic()
    one = worker(operator.methodcaller("send", b"x" * (32 << 20)))
    assert time.monotonic() - began < PATIENCE
    assert len(one.connection.recv()) == 32 << 20


def test_the_end_of_a_worker_has_its_traceback_or_its_signal(worker: Any) -> None:
    failing, killed = worker(FAIL), worker(SLEEP)
    assert "AttributeError" in failing.ending()
    assert failing.ending().startswith("failed:\nTraceback")
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.ending() == "was killed by SIGKILL"
    assert killed.traceback is None


def test_a_function_that_can_not_be_imported_is_reported(worker: Any, tmp_path: Path) -> None:
    (tmp_path / "gone.py").write_text("def work(connection): ...\n")
    sys.path.insert(0, str(tmp_path))
    try:
        work = __import__("gone").work
    finally:
        sys.path.remove(str(tmp_path))
    assert "No module named 'gone'" in worker(work).ending()


def test_what_a_worker_prints_goes_to_its_log(worker: Any, tmp_path: Path) -> None:
    log = tmp_path / "made" / "worker.log"
    assert worker(print, log=log).ending() == "ended with code 0"
    assert "Connection" in log.read_text()


def test_a_worker_that_ignores_its_end_is_killed_after_the_deadline() -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    )
    process = Process(
        [sys.executable, "-c", f"{stubborn}; time.sleep(1000)"], name="stubborn", stdout=-1
    )
    assert process.process.stdout is not None
    assert process.process.stdout.readline() == b"\n"
    process.stop(0.1)
    assert process.ending() == "was killed by SIGKILL"
    assert process.killed
    process.process.stdout.close()


def test_dead_workers_are_replaced_within_the_budget() -> None:
    started = []

    def start(i: int, restarts: int) -> Worker:
        started.append((i, restarts))
        return Worker(SLEEP, name=f"worker {i}")

    crew = Supervisor(start, 2, max_restarts=1)
    crew.start()
    try:
        assert crew.check() == {}
        os.kill(crew.members[1].pid, signal.SIGKILL)
        crew.members[1].wait()
        assert crew.check() == {1: "was killed by SIGKILL"}
        assert (started, crew.restarts) == ([(0, 0), (1, 0), (1, 1)], 1)
        with pytest.raises(CollectorError, match="worker 0 was killed by SIGKILL, and no worker"):
            crew.replace(0)
    finally:
        crew.stop()
    assert all(one.process.poll() is not None for one in crew.members)


def test_a_worker_that_can_not_be_started_ends_those_before_it() -> None:
    members = []

    def start(i: int, _: int) -> Worker:
        if i == 2:
            raise LookupError("no third")
        members.append(Worker(SLEEP, name=f"worker {i}"))
        return members[-1]

    with pytest.raises(LookupError, match="no third"):
        Supervisor(start, 3).start()
    assert [one.process.poll() is None for one in members] == [False, False]


SCRIPT = """
import operator, os, signal
from echoic.workers import Worker
sleep = operator.methodcaller("poll", 1000.0)
workers = [Worker(sleep, name="sleeper") for _ in range(2)]
print(*[worker.pid for worker in workers], flush=True)
END
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)", "1 / 0"])
def test_no_worker_outlives_its_parent(run_script: Callable[..., Any], end: str) -> None:
    pids = [int(pid) for pid in run_script(SCRIPT.replace("END", end)).stdout.split()]
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def test_an_interrupt_of_the_terminal_does_not_reach_workers(worker: Any) -> None:
    one = worker(SLEEP)
    assert os.getpgid(one.pid) == os.getsid(one.pid) == one.pid != os.getpgid(0)
