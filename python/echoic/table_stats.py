"""The numbers and settings of a table at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["TableStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """A snapshot of a table; ``table.stats()`` returns one.

    Counts begin when the table is new or cleared. What a table does not report is ``None``: a
    table of a server has no ``sampler``, ``remover`` and ``seed``, one without a journal no
    ``journal_`` fields, and only one on several servers has ``shards``.

    Attributes:
        name: The table's name.
        size: Items now.
        total_weight: Sum of the items' weights: ``sum(p**e)`` if the sampler is prioritized, else
            their number.
        capacity: How many items there may be.
        max_times_sampled: An item is removed after it was sampled this often; ``None`` is no
            limit.
        inserts: Items added.
        samples: Items sampled.
        deletions: Items removed, for whatever reason.
        add_calls_waiting: Calls of ``add`` and ``extend`` that wait now.
        add_calls_limited: Calls that had to wait, for whatever reason and with any outcome. A
            batch that waits is one.
        add_wait_seconds: Seconds that all these waited, together.
        sample_calls_waiting: Calls of ``sample`` that wait now.
        sample_calls_limited: Calls of ``sample`` that had to wait.
        sample_wait_seconds: Seconds that all these waited, together.
        unique_samples: Items that were sampled at least once.
        episodes: Episodes that items have steps of; 0 with a spec. An item that no writer made is
            an episode.
        deleted_episodes: Episodes that items had steps of and have no more; 0 with a spec.
        min_size: The limiter's least number of items for a sample.
        samples_per_insert: The limiter's ratio.
        min_diff: The limiter's lower bound.
        max_diff: The limiter's upper bound.
        paused: Whether adds and samples wait for ``resume``.
        version: The learner's policy version.
        memory_bytes: Bytes of the rows; 0 without a spec, since tables may share chunks then.
        sampler: The sampler in words.
        remover: The remover in words.
        seed: The seed of all random choices, which equal stats need not have in common.
        journal_records: Changes given to the journal.
        journal_kept: Changes that survive what the table's durability says.
        journal_held_bytes: Bytes that wait to be written.
        journal_segments: Files of the journal.
        shards: The stats of each shard, ``None`` for one that is away.
    """

    name: str
    size: int = 0
    total_weight: float = 0.0
    capacity: int = 0
    max_times_sampled: int | None = None
    inserts: int = 0
    samples: int = 0
    deletions: int = 0
    add_calls_waiting: int = 0
    add_calls_limited: int = 0
    add_wait_seconds: float = 0.0
    sample_calls_waiting: int = 0
    sample_calls_limited: int = 0
    sample_wait_seconds: float = 0.0
    unique_samples: int = 0
    episodes: int = 0
    deleted_episodes: int = 0
    min_size: int = 0
    samples_per_insert: float = 0.0
    min_diff: float = 0.0
    max_diff: float = 0.0
    paused: bool = False
    version: int = 0
    memory_bytes: int = 0
    sampler: str | None = None
    remover: str | None = None
    seed: int | None = field(default=None, compare=False)
    journal_records: int | None = None
    journal_kept: int | None = None
    journal_held_bytes: int | None = None
    journal_segments: int | None = None
    shards: tuple[TableStats | None, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that the table reports, by name."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}
