"""Types that describe a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from echoic.reverb import pybind
from echoic.reverb.cc import schema_pb2  # noqa: TC001 - programs look fields up by their types
from echoic.reverb.item_selectors import Fifo, Lifo, Prioritized, Uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

__all__ = [
    "Fifo",
    "Heap",
    "Lifo",
    "Prioritized",
    "SelectorType",
    "SpecNest",
    "TableInfo",
    "Uniform",
]

Heap = pybind.HeapSelector

SelectorType: TypeAlias = pybind.ItemSelector

# A nest whose leaves have a shape and a dtype.
SpecNest: TypeAlias = Any


@dataclass
class TableInfo:
    """A snapshot of a table: its settings, which are those of :class:`Table`, and its numbers.

    Attributes:
        rate_limiter_info: The rate limiter, and how many inserts and samples there were.
        signature: A nest of :class:`~echoic.reverb.TensorSpec`, or ``None``; of TensorFlow's if the
            program that made the table gave TensorFlow's, and this one has imported it.
        current_size: How many items there are.
        num_episodes: How many episodes the items refer to.
        num_deleted_episodes: How many episodes are no longer referred to by any item.
        num_unique_samples: How many items were sampled, each counted once.
        table_worker_time: All zero: there are no such threads here.
    """

    name: str
    sampler_options: schema_pb2.KeyDistributionOptions
    remover_options: schema_pb2.KeyDistributionOptions
    max_size: int
    max_times_sampled: int
    rate_limiter_info: schema_pb2.RateLimiterInfo
    signature: SpecNest | None
    current_size: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    table_worker_time: schema_pb2.TableWorkerTime

    @classmethod
    def from_serialized_proto(cls, proto_string: Mapping[str, Any]) -> Self:
        """Make one from the result of ``info`` of a table's ``internal_table``.

        Raises:
            TypeError: If the argument is a message of Reverb's own.
        """
        if isinstance(proto_string, bytes):
            raise TypeError(
                "expected what internal_table.info() of a table of echoic.reverb returns, got the "
                "bytes of a protocol buffer: messages of dm-reverb can't be read here"
            )
        return cls(**proto_string)
