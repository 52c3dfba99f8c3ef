"""Fixtures of the fault tests: doors, processes behind them, and a network that misbehaves."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import pytest
from content import SMALL, Intake, example
from processes import Processes
from proxy import Proxy
from workers import transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Door:
    """One kind of address, and new addresses of it."""

    kind: str
    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def address(self) -> str:
        """An address that nobody serves yet; the port of a TCP one is the system's choice."""
        number = next(self._numbers)
        return {
            "tcp": "tcp://127.0.0.1:0",
            "unix": f"unix://{self.folder}/{number}",
            "shm": f"shm://echoic-test-{os.getpid()}-{number}",
        }[self.kind]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path that is short enough for a socket's address."""
    path = Path(tempfile.mkdtemp(prefix="echoic-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["tcp", "unix", "shm"])
def door(request: pytest.FixtureRequest, folder: Path) -> Door:
    """Every kind of door."""
    return Door(request.param, folder)


@pytest.fixture
def tcp(folder: Path) -> Door:
    """The door of tests that need a network."""
    return Door("tcp", folder)


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Start processes that end with the test."""
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def open_server(
    make_server: Callable[..., echoic.Server], processes: Processes
) -> Callable[..., echoic.Server]:
    """Start a server in this process behind a door; `rest` are options of its transport.

    Clients are other processes, and end first.
    """

    def start(
        door: Door, words: int = SMALL, batch_size: int = 32, num_buffers: int = 4, **rest: Any
    ) -> echoic.Server:
        way = transport(door.address(), **rest)
        return make_server(example(words), batch_size, num_buffers, transport=way).start()

    return start


@pytest.fixture
def open_intake(
    open_server: Callable[..., echoic.Server],
) -> Callable[..., tuple[echoic.Server, Intake]]:
    """Like `open_server`, with somebody who takes and checks all that comes."""

    def start(*arguments: Any, **rest: Any) -> tuple[echoic.Server, Intake]:
        server = open_server(*arguments, **rest)
        return server, Intake(server)

    return start


@pytest.fixture
def connect(make_server: object) -> Iterator[Callable[..., echoic.Client]]:
    """Connect clients of this process; they are closed before the servers are."""
    clients: list[echoic.Client] = []

    def open_client(server: echoic.Server | str, words: int = SMALL, **rest: Any) -> echoic.Client:
        address = server if isinstance(server, str) else server.addresses[0]
        clients.append(echoic.connect(address, example(words), **rest))
        return clients[-1]

    yield open_client
    for client in clients:
        with contextlib.suppress(echoic.EchoicError):
            client.close(timeout=1)


@pytest.fixture
def make_proxy() -> Iterator[Callable[[echoic.Server], Proxy]]:
    """Put a network that misbehaves on request before a server."""
    made: list[Proxy] = []

    def make(server: echoic.Server) -> Proxy:
        port = int(server.addresses[0].rsplit(":", 1)[1])
        made.append(Proxy(("127.0.0.1", port)))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()
