"""Fixtures that several test files share: servers that get closed, threads that get joined."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from forks import Forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A wait that should have ended fails its own test after this, long before the whole run does.
PATIENCE = 20.0

# A shell starts what runs in its background with interrupts ignored, and processes that tests start
# would inherit it. Then nothing that waits for Ctrl-C ends.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Background:
    """Runs functions in threads and gives back what they return or raise."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Start a thread; calling the result joins it, and returns or raises as it did."""
        outcome: list[tuple[bool, Any]] = []

        def run() -> None:
            try:
                outcome.append((True, function(*arguments)))
            except BaseException as error:  # raised again by `result`
                outcome.append((False, error))

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

        def result() -> Any:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{function} is still running"
            returned, value = outcome[0]
            if not returned:
                raise value
            return value

        return result

    def start_and_let_block(
        self, function: Callable[..., Any], *arguments: Any
    ) -> Callable[[], Any]:
        """Like `start`, for a function that is going to wait.

        The pause makes it likely that it waits already; a test must be right either way.
        """
        result = self.start(function, *arguments)
        time.sleep(0.03)
        return result

    def join(self) -> None:
        """Wait for all threads."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread outlived its test"


@pytest.fixture
def make_stream() -> Iterator[Callable[..., echoic.Stream]]:
    """Make streams that are closed after the test, which wakes whoever still waits."""
    streams: list[echoic.Stream] = []

    def make(
        example: Any, batch_size: int = 4, capacity: int | None = None, **rest: Any
    ) -> echoic.Stream:
        capacity = capacity or 2 * batch_size
        stream = echoic.Stream(example, batch_size=batch_size, capacity=capacity, **rest)
        streams.append(stream)
        return stream

    yield make
    for stream in streams:
        stream.close()


class Serving(echoic.Server):
    """A server of a stream, and the stream."""

    stream: echoic.Stream


@pytest.fixture
def make_server(make_stream: Callable[..., echoic.Stream]) -> Iterator[Callable[..., Serving]]:
    """Make servers of a stream that are closed after the test."""
    servers: list[Serving] = []

    def make(
        example: Any, batch_size: int = 4, capacity: int | None = None, **rest: Any
    ) -> Serving:
        stream = make_stream(example, batch_size, capacity)
        servers.append(Serving(stream, **rest))
        servers[-1].stream = stream
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def background(make_server: object) -> Iterator[Background]:
    """Run functions in threads.

    Joined before streams are closed, so that a thread which only a close would wake fails.
    """
    threads = Background()
    yield threads
    threads.join()


@pytest.fixture
def run_script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python source in a fresh interpreter."""

    def run(source: str, *flags: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *flags, "-c", source],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            **options,
        )

    return run


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Start programs in processes that need not import anything first."""
    started = Forks()
    yield started
    started.close()


@pytest.fixture
def counter_stream(make_stream: Callable[..., echoic.Stream]) -> Callable[..., echoic.Stream]:
    """Make streams whose samples are one int64."""

    def make(batch_size: int = 4, capacity: int | None = None, **rest: Any) -> echoic.Stream:
        return make_stream(np.int64(0), batch_size, capacity, **rest)

    return make


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path that is short enough for a socket's address."""
    path = Path(tempfile.mkdtemp(prefix="echoic-"))
    yield path
    shutil.rmtree(path)


@dataclass
class Command:
    """An `echoic serve` and where it listens."""

    popen: subprocess.Popen[str]
    addresses: list[str]

    def end(self, number: signal.Signals = signal.SIGTERM) -> str:
        """End it as it is meant to, and return what it said."""
        self.popen.send_signal(number)
        output, errors = self.popen.communicate(timeout=60)
        assert self.popen.returncode == 0, errors
        assert output == ""
        return str(errors)

    def kill(self) -> None:
        """End it as nobody means to."""
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def serve_command(forks: Forks) -> Iterator[Callable[..., Command]]:
    """Start `echoic serve` and wait until it listens."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: Any) -> Command:
        words = map(str, arguments)
        popen = forks.start("echoic.cli.app:app", "serve", *words, errors_apart=True)
        started.append(popen)
        assert popen.stdout is not None
        said = popen.stdout.readline().split()
        assert said[:1] == ["listening"], popen.communicate()
        return Command(popen, said[1:])

    yield start
    for popen in started:
        popen.kill()
        popen.communicate()
