"""Waits of tests: for what another thread or process brings about, and for Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60.0


def until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and return what it returned."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.005)
    return found


def free_port() -> int:
    """A port that no process listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def check_ctrl_c(source: str) -> None:
    """Check that a program which prints `waiting`, and then waits, is ended by Ctrl-C at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waiting\n"
        # Time to really wait; the test is right without, but shows less.
        time.sleep(0.2)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
        took = time.monotonic() - start
    finally:
        process.kill()
    assert out == ""
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
    # Includes the end of the interpreter.
    assert took < 10.0
