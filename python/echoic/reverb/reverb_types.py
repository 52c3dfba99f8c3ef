"""What describes a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from echoic.reverb import pybind
from echoic.reverb.cc import schema_pb2  # noqa: TC001 - programs look fields up by their types

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

Fifo = pybind.FifoSelector
Heap = pybind.HeapSelector
Lifo = pybind.LifoSelector
Prioritized = pybind.PrioritizedSelector
Uniform = pybind.UniformSelector

SelectorType: TypeAlias = pybind.ItemSelector

# A nest whose leaves have a shape and a dtype.
SpecNest: TypeAlias = Any


@dataclass
class TableInfo:
    """A snapshot of a table.

    Attributes:
        name: Of the table.
        sampler_options: What is sampled.
        remover_options: What goes when the table is full.
        max_size: How many items there may be.
        max_times_sampled: After how many samples an item goes; never, when 0.
        rate_limiter_info: Who must wait, and how many inserts and samples there were.
        signature: A nest of :class:`~echoic.reverb.TensorSpec`, or ``None``; of TensorFlow's where
            the program that made the table gave TensorFlow's, and this one has imported it.
        current_size: How many items there are.
        num_episodes: How many episodes the items refer to.
        num_deleted_episodes: To how many episodes items referred, and none does any more.
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
        """Make it of what ``info`` of a table's ``internal_table`` returns.

        Raises:
            TypeError: The argument is a message of Reverb's own.
        """
        if isinstance(proto_string, bytes):
            raise TypeError(
                "expected what internal_table.info() of a table of echoic.reverb returns, got the "
                "bytes of a protocol buffer: messages of dm-reverb can't be read here"
            )
        return cls(**proto_string)
