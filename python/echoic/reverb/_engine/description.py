"""Describe a table to clients: its settings in Reverb's terms, and its numbers.

Our tables have selectors and limiters of their own, so Reverb's settings are sent to clients as
JSON in the table's metadata.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from echoic.reverb import _signature
from echoic.reverb._engine.selectors import options_of
from echoic.reverb.cc.schema_pb2 import RateLimiterCallStats, RateLimiterInfo, TableWorkerTime

if TYPE_CHECKING:
    from echoic.reverb._engine.selectors import ItemSelector, RateLimiter
    from echoic.table_stats import TableStats

__all__ = ["columns_of", "describe", "fields_of_info", "is_ours"]


def describe(
    sampler: ItemSelector,
    remover: ItemSelector,
    limiter: RateLimiter,
    max_size: int,
    max_times_sampled: int,
    signature: Any,
) -> bytes:
    """Return the settings of a table as metadata."""
    settings = {
        "reverb": 1,
        "sampler": sampler.form,
        "remover": remover.form,
        "limiter": [
            limiter.samples_per_insert,
            limiter.min_diff,
            limiter.max_diff,
            limiter.min_size_to_sample,
        ],
        "max_size": max_size,
        "max_times_sampled": max_times_sampled,
        "signature": None if signature is None else _signature.encode(signature),
    }
    return json.dumps(settings, separators=(",", ":")).encode()


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
