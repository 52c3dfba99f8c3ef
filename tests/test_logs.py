"""What the core says, in Python's logging."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import echoic.logs
import numpy as np
import pytest
from echoic import Checkpointer, Server, Stream, Table, connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLE = {"obs": np.zeros(4, np.float32)}


@pytest.fixture(autouse=True)
def _quiet_again() -> Iterator[None]:
    yield
    echoic.logs.disable()


def run_a_server(tmp_path: Path) -> str:
    """A listener, a stranger and a checkpoint; where the listener was."""
    keeper = Checkpointer(tmp_path)
    table = Table("t", EXAMPLE, capacity=1)
    with Server(table, listen="tcp://127.0.0.1:0", token=b"right", checkpointer=keeper) as server:
        with pytest.raises(echoic.errors.RefusedError):
            connect(server.address, token=b"wrong").server_stats()
        server.checkpoint()
        return str(server.address)


def test_nothing_is_said_until_somebody_listens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    run_a_server(tmp_path)
    echoic.logs.enable("DEBUG")
    echoic.logs.disable()
    assert [record for record in caplog.records if record.name.startswith("echoic")] == []


def test_records_have_logger_level_and_what_it_is_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echoic.logs.enable("DEBUG")
    address = run_a_server(tmp_path)
    # What was said before the end still comes.
    echoic.logs.disable()
    said = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert ("echoic.net", "INFO", f"opened a listener address={address}") in said
    assert ("echoic.net", "INFO", f"closing a listener address={address}") in said
    refusal = [(name, level, text) for name, level, text in said if 'code="AUTH"' in text]
    assert [(name, level) for name, level, _ in refusal] == [("echoic.net", "WARNING")]
    assert "peer=" in refusal[0][2]
    checkpoint = [record for record in said if record[2].startswith("wrote a checkpoint")]
    assert [(name, level) for name, level, _ in checkpoint] == [("echoic.replay", "INFO")]
    assert str(tmp_path) in checkpoint[0][2]


def test_a_level_keeps_out_what_is_below_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echoic.logs.enable(logging.WARNING)
    run_a_server(tmp_path)
    echoic.logs.disable()
    levels = {record.levelname for record in caplog.records if record.name.startswith("echoic")}
    assert levels == {"WARNING"}


def test_a_filter_that_fails_does_not_end_the_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("echoic.net")
    failed: list[object] = []

    def fail_once(_: logging.LogRecord) -> bool:
        if not failed:
            failed.append(1)
            raise ValueError("on purpose")
        return True

    hook, told = threading.excepthook, []
    threading.excepthook = told.append
    logger.addFilter(fail_once)
    try:
        echoic.logs.enable("INFO")
        run_a_server(tmp_path)
        echoic.logs.disable()
    finally:
        logger.removeFilter(fail_once)
        threading.excepthook = hook
    assert [type(one.exc_value) for one in told] == [ValueError]
    assert any("closing a listener" in record.getMessage() for record in caplog.records)


def test_a_forked_child_listens_anew(tmp_path: Path) -> None:
    program = (
        "import echoic, echoic.logs, logging, numpy as np, os, sys\n"
        "logging.basicConfig(level=10, format=str(os.getpid()) + ' %(process)d %(message)s')\n"
        "def serve():\n"
        "    stream = echoic.Stream(np.zeros(1), batch_size=1)\n"
        "    with echoic.Server(stream, listen='tcp://127.0.0.1:0'): pass\n"
        "echoic.logs.enable('INFO')\n"
        "serve()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    serve()\n"
        "    echoic.logs.enable('INFO')\n"
        "    serve()\n"
        "    echoic.logs.disable()\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = [line.split(" ", 2) for line in done.stderr.splitlines()]
    opened = [own == parent for parent, own, text in said if text.startswith("opened a listener")]
    # One of the parent's, and of the child's only what it said after it began to listen.
    assert sorted(opened) == [False, True]


@pytest.mark.parametrize("level", ["LOUD", 0, -1, 51, 1.5, None])
def test_what_is_no_level_is_refused(level: object) -> None:
    with pytest.raises(ValueError, match="level must be"):
        echoic.logs.enable(level)  # type: ignore[arg-type]


def test_more_than_fits_is_counted_and_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    echoic._native.set_log_level(10)
    # Nobody takes them: each server says that its listener was opened and is closing.
    for _ in range(600):
        with Server(
            Stream(EXAMPLE, batch_size=1, capacity=2), listen="tcp://127.0.0.1:0", threads=1
        ):
            pass
    records, dropped = echoic._native.take_logs(0.0)
    assert len(records) == 1024
    assert dropped >= 2 * 600 - 1024
    assert echoic._native.take_logs(0.0) == ([], 0)


def test_a_program_that_listens_ends() -> None:
    program = (
        "import echoic, echoic.logs, logging, numpy as np\n"
        "logging.basicConfig(level=10, format='%(name)s %(message)s')\n"
        "echoic.logs.enable('INFO')\n"
        "stream = echoic.Stream(np.zeros(1), batch_size=1)\n"
        "server = echoic.Server(stream, listen='tcp://127.0.0.1:0').start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "echoic.net opened a listener" in done.stderr
