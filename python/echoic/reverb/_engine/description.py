"""Describe a table to clients: its settings in Reverb's terms, and its numbers.

Our tables have selectors and limiters of their own, so Reverb's settings are sent to clients as
JSON in the table's metadata.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from echoic.reverb import _signature
from echoic.reverb.cc.schema_pb2 import (
    KeyDistributionOptions,
    RateLimiterCallStats,
    RateLimiterInfo,
    TableWorkerTime,
)

if TYPE_CHECKING:
    from echoic.reverb._engine.selectors import ItemSelector, RateLimiter
    from echoic.table_stats import TableStats

__all__ = ["columns_of", "describe", "fields_of_info", "is_ours", "signature_of"]


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
        "sampler": _of_selector(sampler.options()),
        "remover": _of_selector(remover.options()),
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


def _of_selector(options: KeyDistributionOptions) -> list[Any]:
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        return [kind, options.prioritized.priority_exponent]
    return [kind, options.heap.min_heap] if kind == "heap" else [kind]


def _to_selector(kind: str, *value: Any) -> KeyDistributionOptions:
    if kind == "prioritized":
        prioritized = KeyDistributionOptions.Prioritized(priority_exponent=value[0])
        return KeyDistributionOptions(prioritized=prioritized)
    if kind == "heap":
        heap = KeyDistributionOptions.Heap(min_heap=value[0])
        return KeyDistributionOptions(heap=heap, is_deterministic=True)
    if kind == "uniform":
        return KeyDistributionOptions(uniform=True)
    return KeyDistributionOptions(**{kind: True}, is_deterministic=True)


def _settings(metadata: bytes) -> dict[str, Any] | None:
    """Read the settings in a table's metadata; ``None`` if they are of another origin."""
    try:
        settings = json.loads(metadata)
    except ValueError:
        return None
    ours = isinstance(settings, dict) and settings.get("reverb") == 1
    return settings if ours else None


@lru_cache(maxsize=256)
def columns_of(metadata: bytes) -> tuple[_signature.Column, ...] | None:
    """Return dtype and shape of each leaf of a table's signature; ``None`` if it has none."""
    signature = signature_of(metadata)
    return None if signature is None else tuple(_signature.flat_columns(signature))


def is_ours(metadata: bytes) -> bool:
    """Return whether a table was made by this module."""
    return _settings(metadata) is not None


def signature_of(metadata: bytes) -> Any:
    """Return the signature of a table; ``None`` if it has none, or is not of this module."""
    settings = _settings(metadata)
    if settings is None or settings["signature"] is None:
        return None
    return _signature.decode(settings["signature"])


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
        "sampler_options": _to_selector(*settings["sampler"]),
        "remover_options": _to_selector(*settings["remover"]),
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
        "signature": _signature.as_given(signature_of(metadata)),
        "current_size": stats.size,
        "num_episodes": stats.episodes,
        "num_deleted_episodes": stats.deleted_episodes,
        "num_unique_samples": stats.unique_samples,
        "table_worker_time": TableWorkerTime(),
    }
