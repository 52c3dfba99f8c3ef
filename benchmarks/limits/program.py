"""The program in Rust: built by cargo when it is first wanted, and run once for each repeat.

What its arguments mean is told in ``src/main.rs``. It checks what arrives by itself, and gives no
number when that is wrong.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.timing import Measure, Measurement, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.workload import Session

CRATE = Path(__file__).resolve().parent
TARGET = CRATE.parent.parent / "target" / "limits"
BUILD_TIMEOUT = 600.0
RUN_TIMEOUT = 60.0


def limit(
    *arguments: str | float, number: str = "value", convert: Callable[[float], float] = float
) -> Session:
    """Make a session of a probe; ``number`` says which of its numbers is converted and given."""
    words = [str(argument) for argument in arguments]
    return lambda _engine: _probed(words, number, convert)


@contextlib.contextmanager
def _probed(words: list[str], number: str, convert: Callable[[float], float]) -> Iterator[Measure]:
    program = str(built())

    def measure() -> Measurement:
        numbers = json.loads(_run([program, *words], RUN_TIMEOUT))
        value = numbers.pop(number)
        numbers.pop("value", None)
        return Measurement(convert(value), numbers)

    yield measure


def built() -> Path:
    """Build the program, unless that was done, and return where it is.

    Raises:
        UnavailableError: It can't be built here; that is not tried twice.
    """
    error = _build()
    if error is not None:
        raise UnavailableError(error)
    return TARGET / "release" / "limits"


@functools.cache
def _build() -> str | None:
    """Build it; why that failed, if so."""
    manifest, target = str(CRATE / "Cargo.toml"), str(TARGET)
    command = ["cargo", "build", "--release", "--locked", "--quiet"]
    try:
        _run([*command, "--manifest-path", manifest, "--target-dir", target], BUILD_TIMEOUT)
    except UnavailableError as error:
        return str(error)
    return None


def _run(command: list[str], timeout: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"the program of the limits: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UnavailableError(f"the program of the limits: {lines[-1]}")
    return done.stdout
