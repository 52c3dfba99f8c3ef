"""Make tables from messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.reverb import server
from echoic.reverb.pybind import selector_from_proto
from echoic.reverb.rate_limiters import rate_limiter_from_proto

if TYPE_CHECKING:
    from collections.abc import Iterable

    from echoic.reverb.cc.checkpointing import checkpoint_pb2

__all__ = ["rate_limiter_from_proto", "selector_from_proto", "tables_from_proto"]


def tables_from_proto(
    configs: Iterable[checkpoint_pb2.PriorityTableCheckpoint],
) -> list[server.Table]:
    """Make a table from each message."""
    return [
        server.Table(
            name=config.table_name,
            sampler=selector_from_proto(config.sampler),
            remover=selector_from_proto(config.remover),
            max_size=config.max_size,
            rate_limiter=rate_limiter_from_proto(config.rate_limiter),
            max_times_sampled=config.max_times_sampled,
        )
        for config in configs
    ]
