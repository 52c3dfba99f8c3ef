"""Fixtures of the tests of `echoic.reverb`.

They pass under the real dm-reverb as well, in an environment that has it, TensorFlow and pytest:

    ECHOIC_TEST_REVERB=reverb python -m pytest -c /dev/null --rootdir=tests/reverb \
        --confcutdir=tests/reverb -p no:cacheprovider tests/reverb

which is how to check a new test before it is trusted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from polling import until
from reverb_under_test import PATIENCE, UPSTREAM, reverb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# What is about ours alone, and imports it under its own name.
collect_ignore = (
    ["test_reverb_adders.py", "test_reverb_examples.py", "test_reverb_nests.py"] if UPSTREAM else []
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "upstream_differs: pins what we do otherwise than dm-reverb, on purpose."
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if UPSTREAM:
        skip = pytest.mark.skip(reason="dm-reverb behaves otherwise, which we do not copy")
        for item in items:
            if item.get_closest_marker("upstream_differs"):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def forget_writers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop what fixtures keep in a test's object, which pytest holds until the end.

    Writers among it would go on looking for their servers, beside later tests that count.
    """
    yield
    if request.instance is not None:
        vars(request.instance).clear()


@pytest.fixture
def make_server() -> Iterator[Callable[..., Any]]:
    """Start servers of the given tables that are stopped after the test."""
    servers: list[Any] = []

    def make(*tables: Any, **settings: Any) -> Any:
        servers.append(reverb.Server(list(tables), **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def make_client(make_server: Callable[..., Any]) -> Callable[..., Any]:
    """Start a server of the given tables, and give a client of it."""

    def make(*tables: Any, **settings: Any) -> Any:
        return make_server(*tables, **settings).localhost_client()

    return make


@pytest.fixture
def make_table() -> Callable[..., Any]:
    """Make a table that limits nothing, but for what the test names."""

    def make(name: str = "table", **settings: Any) -> Any:
        arguments = {
            "sampler": reverb.selectors.Fifo(),
            "remover": reverb.selectors.Fifo(),
            "max_size": 100,
            "rate_limiter": reverb.rate_limiters.MinSize(1),
        }
        return reverb.Table(name=name, **{**arguments, **settings})

    return make


class Running:
    """A call that runs in a thread of its own."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._outcome: list[tuple[bool, Any]] = []

        def run() -> None:
            try:
                self._outcome.append((True, function(*arguments)))
            except BaseException as error:  # raised again by `result`
                self._outcome.append((False, error))

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def is_blocked(self, seconds: float = 0.1) -> bool:
        """Whether the call has not ended after so long; a machine's load can only say yes."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self) -> Any:
        """Wait for the call, and return or raise what it did."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call is still running"
        returned, value = self._outcome[0]
        if not returned:
            raise value
        return value


@pytest.fixture
def start() -> Callable[..., Running]:
    """Start `function(*arguments)` in a thread."""
    return lambda function, *arguments: Running(function, arguments)


@pytest.fixture
def holds() -> Callable[[Any, int], bool]:
    """Whether a table has so many items, right after a writer's `flush` or `close`.

    That of dm-reverb's `Writer` may return before the last items are in, which we do not copy.
    """

    def check(table: Any, size: int) -> bool:
        if UPSTREAM:
            until(lambda: table.info.current_size == size)
        return table.info.current_size == size

    return check
