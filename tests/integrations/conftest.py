"""A batch of answers to prompts, in every form."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from echoic.rollouts import RolloutTable
from rollout_answers import COLUMNS, FIELDS, add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.rollouts import RolloutBatch


@pytest.fixture(autouse=True)
def own_ctrl_c() -> Iterator[None]:
    """Ray's Train and Tune take Ctrl-C for themselves and do not give it back to later tests."""
    ours = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, ours)


@pytest.fixture
def table() -> Iterator[RolloutTable]:
    """A table of groups of two, two in a batch."""
    with RolloutTable("math", COLUMNS, FIELDS, group_size=2, batch_groups=2, max_tokens=8) as table:
        yield table


@pytest.fixture(params=["flat", "padded", "left", "packed"])
def batch(request: pytest.FixtureRequest, table: RolloutTable) -> RolloutBatch:
    """The four answers; what adapters make of them does not depend on the form."""
    add(table, [0, 1])
    add(table, [2, 3])
    if request.param == "packed":
        return table.sample(form="packed", width=8)
    is_left = request.param == "left"
    return table.sample(form="padded" if is_left else request.param, left=is_left)
