"""Fixtures of the tables' tests: tables and clients that get closed, and every selector."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import selectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SELECTORS = [
    selectors.Uniform(),
    selectors.Prioritized(0.6),
    selectors.Fifo(),
    selectors.Lifo(),
    selectors.MinHeap(),
    selectors.MaxHeap(),
    selectors.Epoch(),
    selectors.HotCold(2),
]


@pytest.fixture
def make_table() -> Iterator[Callable[..., echoic.Table]]:
    """Make tables that are closed after the test, which wakes whoever still waits."""
    tables: list[echoic.Table] = []

    def make(spec: Any = None, **settings: Any) -> echoic.Table:
        settings = {"capacity": 100, "seed": 1, **settings}
        table = echoic.Table("replay", spec, **settings)
        tables.append(table)
        return table

    yield make
    for table in tables:
        table.close()


@pytest.fixture
def make_queue() -> Iterator[Callable[..., echoic.Table]]:
    """Make queues of int64 that are closed after the test."""
    tables: list[echoic.Table] = []

    def make(capacity: int) -> echoic.Table:
        tables.append(echoic.Table.queue("queue", np.int64(0), capacity=capacity))
        return tables[-1]

    yield make
    for table in tables:
        table.close()


@pytest.fixture(params=SELECTORS, ids=lambda selector: type(selector).__name__)
def selector(request: pytest.FixtureRequest) -> selectors.Selector:
    """Each of the selectors."""
    return request.param


@pytest.fixture(params=["process", "tcp"])
def serve(request: pytest.FixtureRequest) -> Iterator[Callable[..., echoic.Connection]]:
    """Serve tables, and make a client of them: in this process, and over TCP."""
    opened: list[Any] = []

    def make(*tables: echoic.Table) -> echoic.Connection:
        remote = request.param == "tcp"
        address = "tcp://127.0.0.1:0" if remote else None
        server = echoic.Server(*tables, listen=address).start()
        opened.append(server)
        client = echoic.connect(server.address) if remote else echoic.connect(server)
        opened.append(client)
        return client

    yield make
    for one in reversed(opened):
        one.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., echoic.Connection]]:
    """Connect to shards, and close with what is left."""
    clients: list[echoic.Connection] = []

    def make(where: Any, **options: Any) -> echoic.Connection:
        clients.append(echoic.connect(where, **{"seed": 5, "reconnect": 30.0, **options}))
        assert clients[-1].tables
        return clients[-1]

    yield make
    for client in clients:
        with warnings.catch_warnings(), contextlib.suppress(echoic.EchoicError):
            warnings.simplefilter("ignore", echoic.errors.ShardWarning)
            client.close(0.2)


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make setups of a module about writers; their servers are closed after the test."""
    setups: list[Any] = []

    def make(table: echoic.Table | None = None) -> Any:
        setups.append(request.module.Setup(table))
        return setups[-1]

    yield make
    for one in setups:
        one.server.close()


@pytest.fixture
def setup(make: Callable[..., Any]) -> Any:
    """A setup with a queue."""
    return make()
