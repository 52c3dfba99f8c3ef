"""What the tests of all writers share: a server with one table, and what is in it."""

from __future__ import annotations

import resource
import signal
import threading
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import Server, Table

if TYPE_CHECKING:
    from collections.abc import Callable


class Setup:
    """A server with one table, and a client of it; each test module adds its own `writer`."""

    def __init__(self, table: Table | None = None) -> None:
        self.table = Table.queue("t", capacity=10_000) if table is None else table
        self.server = Server(self.table)
        self.client = echoic.connect(self.server)

    def items(self) -> list[Any]:
        """Take all items of a queue, one by one."""
        size = self.table.stats().size
        return [one(self.table.sample(1, timeout=0).data) for _ in range(size)]


def one(tree: Any) -> Any:
    """Return the only item of a batch, as nested lists."""
    if isinstance(tree, dict):
        return {key: one(value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [one(value) for value in tree]
    return tree[0].tolist()


def check_windows_while(write: Callable[[], None], setup: Setup, background: Any) -> None:
    """Check windows of four of 4,000 steps while a thread writes them."""
    done = threading.Event()
    written = background.start(lambda: (write(), done.set()))
    batches = 0
    while not done.is_set() or batches == 0:
        data = setup.table.sample(16, timeout=10).data
        np.testing.assert_array_equal(np.diff(data["step"], axis=1), 1)
        assert (data["obs"] == data["step"][:, -1:]).all()
        batches += 1
    written()
    assert setup.table.stats().inserts == 3997


def check_ctrl_c_ends_a_flush(writer: Any, setup: Setup) -> None:
    """Check that it does, and that items are kept: of three, a full queue has taken the first."""
    timer = threading.Timer(0.05, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        writer.flush(timeout=10)
    timer.join()
    assert writer.pending == 2
    assert setup.items() == [0]


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as numbers:  # noqa: PTH123 - as short as it gets
        return int(numbers.read().split()[1]) * resource.getpagesize()
