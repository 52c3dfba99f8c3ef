"""Make tables of ours with Reverb's settings, and describe them to clients.

Our tables have selectors and limiters of their own, so Reverb's settings are sent to clients as
JSON in the table's metadata.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from echoic import Table as EngineTable
from echoic.reverb import _signature
from echoic.reverb._engine import values
from echoic.reverb._engine.selectors import ItemSelector, options_of
from echoic.reverb.cc.schema_pb2 import RateLimiterCallStats, RateLimiterInfo, TableWorkerTime

if TYPE_CHECKING:
    from echoic.reverb._engine.selectors import RateLimiter
    from echoic.table_stats import TableStats

__all__ = ["Table"]

# The most items that our tables can hold.
_MOST_ITEMS = 2**32 - 2


class Table:
    """A table with the settings of :class:`echoic.reverb.Table`."""

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
        settings = {
            "reverb": 1,
            "sampler": sampler.form,
            "remover": remover.form,
            "limiter": [
                rate_limiter.samples_per_insert,
                rate_limiter.min_diff,
                rate_limiter.max_diff,
                rate_limiter.min_size_to_sample,
            ],
            "max_size": max_size,
            "max_times_sampled": max_times_sampled,
            "signature": None if signature is None else _signature.encode(signature),
        }
        size = min(max_size, _MOST_ITEMS)
        self.table = EngineTable(
            values.name(name),
            capacity=size,
            sampler=sampler._setting,
            remover=remover._setting,
            limiter=rate_limiter.setting(size),
            max_times_sampled=max_times_sampled if max_times_sampled > 0 else None,
            metadata=json.dumps(settings, separators=(",", ":")).encode(),
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


def _settings(metadata: bytes) -> dict[str, Any] | None:
    """Read the settings in a table's metadata; ``None`` if they are of another origin."""
    try:
        settings = json.loads(metadata)
    except ValueError:
        return None
    ours = isinstance(settings, dict) and settings.get("reverb") == 1
    return settings if ours else None


def is_ours(metadata: bytes) -> bool:
    """Return whether a table was made by this module."""
    return _settings(metadata) is not None


def _signature_of(settings: dict[str, Any] | None) -> Any:
    """Return the signature in a table's settings; ``None`` if it has none."""
    encoded = None if settings is None else settings["signature"]
    return None if encoded is None else _signature.decode(encoded)


@lru_cache(maxsize=256)
def columns_of(metadata: bytes) -> tuple[_signature.Column, ...] | None:
    """Return dtype and shape of each leaf of a table's signature; ``None`` if it has none."""
    signature = _signature_of(_settings(metadata))
    return None if signature is None else tuple(_signature.flat_columns(signature))


def fields_of_info(stats: TableStats, metadata: bytes) -> dict[str, Any]:
    """Return the fields of a ``TableInfo``."""
    settings = _settings(metadata)
    if settings is None:
        raise ValueError(
            f"table {stats.name!r} was not made by echoic.reverb; use echoic.connect for it"
        )
    spi, min_diff, max_diff, min_size = settings["limiter"]
    return {
        "name": stats.name,
        "sampler_options": options_of(*settings["sampler"]),
        "remover_options": options_of(*settings["remover"]),
        "max_size": settings["max_size"],
        "max_times_sampled": settings["max_times_sampled"],
        "rate_limiter_info": RateLimiterInfo(
            samples_per_insert=spi,
            min_diff=min_diff,
            max_diff=max_diff,
            min_size_to_sample=min_size,
            insert_stats=RateLimiterCallStats(completed=stats.inserts),
            sample_stats=RateLimiterCallStats(completed=stats.samples),
        ),
        "signature": _signature.as_given(_signature_of(settings)),
        "current_size": stats.size,
        "num_episodes": stats.episodes,
        "num_deleted_episodes": stats.deleted_episodes,
        "num_unique_samples": stats.unique_samples,
        "table_worker_time": TableWorkerTime(),
    }
