"""Make a table of ours with the settings of one of Reverb's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic import Table as EngineTable
from echoic.reverb._engine import values
from echoic.reverb._engine.description import describe, fields_of_info
from echoic.reverb._engine.selectors import ItemSelector

if TYPE_CHECKING:
    from echoic.reverb._engine.selectors import RateLimiter

__all__ = ["Table"]

# The most items that our tables can hold.
_MOST_ITEMS = 2**32 - 2


class Table:
    """A table with Reverb's settings.

    Args:
        name: Unique in a server.
        sampler: Selects the items to sample.
        remover: Selects the item to remove when the table is full.
        max_size: How many items fit.
        max_times_sampled: Remove an item after it was sampled this many times. Below 1 means never.
        rate_limiter: Blocks inserts or samples.
        extensions: Not supported: they are C++ objects of upstream.
        signature: A nest of ``TensorSpec``, or ``None``.
    """

    def __init__(
        self,
        name: str,
        sampler: ItemSelector,
        remover: ItemSelector,
        max_size: int,
        max_times_sampled: int,
        rate_limiter: RateLimiter,
        extensions: Any = (),
        signature: Any = None,
    ) -> None:
        for what, selector in (("sampler", sampler), ("remover", remover)):
            if not isinstance(selector, ItemSelector):
                raise TypeError(f"{what} is one of reverb.selectors, got {selector!r}")
        if extensions:
            raise NotImplementedError("table extensions are C++ objects of Reverb's own process")
        self._text = (
            f"Table(sampler={sampler!r}, remover={remover!r}, max_size={max_size}, "
            f"max_times_sampled={max_times_sampled}, name={name}, rate_limiter={rate_limiter!r}, "
            f"signature={'nullptr' if signature is None else repr(signature)})"
        )
        size = min(max_size, _MOST_ITEMS)
        self.table = EngineTable(
            values.name(name),
            capacity=size,
            sampler=sampler._setting,
            remover=remover._setting,
            limiter=rate_limiter.setting(size),
            max_times_sampled=max_times_sampled if max_times_sampled > 0 else None,
            metadata=describe(
                sampler, remover, rate_limiter, max_size, max_times_sampled, signature
            ),
        )

    def name(self) -> str:
        """The table's name."""
        return self.table.name

    def can_sample(self, count: int) -> bool:
        """Return whether this many items could be sampled now without waiting."""
        try:
            return self.table.can_sample(count)
        except ValueError:
            # So many at once are never possible, which our tables report with an error.
            return False

    def can_insert(self, count: int) -> bool:
        """Return whether this many items could be inserted now without waiting."""
        return self.table.can_add(count)

    def info(self) -> dict[str, Any]:
        """Return the fields of a ``TableInfo``."""
        return fields_of_info(self.table.stats(), self.table.metadata)

    def __repr__(self) -> str:
        return self._text
