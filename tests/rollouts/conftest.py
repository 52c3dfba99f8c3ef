"""Tables of rollouts as the tests make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from echoic.rollouts import RolloutTable
from rollout_items import COLUMNS, FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def make() -> Iterator[Callable[..., RolloutTable]]:
    """Make tables that are closed at the end of the test."""
    tables = []

    def make(**settings: Any) -> RolloutTable:
        settings = {"group_size": 2, "batch_groups": 2, "max_tokens": 64, **settings}
        table = RolloutTable("math", COLUMNS, FIELDS, **settings)
        tables.append(table)
        return table

    yield make
    for table in tables:
        table.close()
