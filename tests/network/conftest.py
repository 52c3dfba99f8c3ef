"""Fixtures of the fault tests: transports, processes behind them, and a network that misbehaves."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import echoic
import pytest
from content import SMALL, Intake, example
from processes import Processes
from proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from echoic.remote_stream import RemoteStream
    from forks import Forks


@dataclass
class Transport:
    """One kind of address, new addresses of it, and servers in this process behind them."""

    kind: str
    folder: Path
    make_server: Callable[..., echoic.Server]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def address(self) -> str:
        """An address that nobody serves yet; the port of a TCP one is the system's choice."""
        number = next(self._numbers)
        return {
            "tcp": "tcp://127.0.0.1:0",
            "unix": f"unix://{self.folder}/{number}",
            "shm": f"shm://echoic-test-{os.getpid()}-{number}",
        }[self.kind]

    def open(
        self, words: int = SMALL, batch_size: int = 32, capacity: int | None = None, **rest: Any
    ) -> echoic.Server:
        """Start a server; `rest` are its other arguments."""
        address = self.address()
        return self.make_server(
            example(words), batch_size, capacity, listen=address, **rest
        ).start()

    def open_and_take(self, *arguments: Any, **rest: Any) -> tuple[echoic.Server, Intake]:
        """Like `open`, with somebody who takes and checks all that comes."""
        server = self.open(*arguments, **rest)
        return server, Intake(server)


# What is over TCP and over a Unix socket differs in the address alone: the tests of addresses try
# all three each time, and so do those of `crates/net`.
UNIX = pytest.param("unix", marks=pytest.mark.nightly)


@pytest.fixture(params=["tcp", UNIX, "shm"])
def transport(request: pytest.FixtureRequest, folder: Path, make_server: Any) -> Transport:
    """Every transport."""
    return Transport(request.param, folder, make_server)


@pytest.fixture(params=["tcp", UNIX])
def socket_transport(request: pytest.FixtureRequest, folder: Path, make_server: Any) -> Transport:
    """The transports whose clients have a window; over shared memory, sent is stored."""
    return Transport(request.param, folder, make_server)


@pytest.fixture
def tcp(folder: Path, make_server: Any) -> Transport:
    """The transport of tests that need a network."""
    return Transport("tcp", folder, make_server)


@pytest.fixture
def processes(make_server: object, forks: Forks) -> Iterator[Processes]:
    """Start processes; they end before the servers of the test do."""
    started = Processes(forks)
    yield started
    started.end()


@pytest.fixture
def connect(make_server: object) -> Iterator[Callable[..., RemoteStream]]:
    """Connect clients of this process; they are closed before the servers are."""
    clients: list[RemoteStream] = []

    def open_client(server: echoic.Server | str, words: int = SMALL, **rest: Any) -> RemoteStream:
        address = server if isinstance(server, str) else server.address
        clients.append(echoic.connect(address, **rest).stream(example(words)))
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
        port = int(server.address.rsplit(":", 1)[1])
        made.append(Proxy(("127.0.0.1", port)))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()
