"""Servers of weights, and processes that subscribe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from echoic.weights import RemoteWeightStore, WeightStore

WORKER = Path(__file__).with_name("weights_trees.py")


class Transport:
    """A server of weights behind one kind of address."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self._open: list[Any] = []
        self.address = {
            "tcp": "tcp://127.0.0.1:0",
            "unix": f"unix://{folder}/weights",
            "shm": f"shm://echoic-weights-{os.getpid()}",
        }[kind]

    def open(self, store: WeightStore, **options: Any) -> echoic.Server:
        """Start a server of nothing but weights."""
        server = echoic.Server(store, listen=self.address, **options).start()
        self.address = server.address
        self._open.append(server)
        return server

    def client(self, **options: Any) -> RemoteWeightStore:
        """Connect to the server that was opened last."""
        client = echoic.connect(self.address, **options).weights()
        self._open.append(client)
        return client

    def worker(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a process that subscribes."""
        process = subprocess.Popen(
            [sys.executable, str(WORKER), self.address, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        self._open.append(process)
        return process

    def close(self) -> None:
        for one in reversed(self._open):
            if isinstance(one, subprocess.Popen):
                one.kill()
                one.communicate()
            else:
                one.close()


@pytest.fixture(params=["tcp", "unix", "shm"])
def transport(request: pytest.FixtureRequest, folder: Path) -> Iterator[Transport]:
    """Every kind of transport that needs no certificate."""
    transport = Transport(request.param, folder)
    yield transport
    transport.close()


@pytest.fixture
def make_transport(folder: Path) -> Iterator[Callable[[str], Transport]]:
    """Transports of the kind that a test asks for."""
    transports: list[Transport] = []

    def make(kind: str) -> Transport:
        transports.append(Transport(kind, folder))
        return transports[-1]

    yield make
    for one in transports:
        one.close()
