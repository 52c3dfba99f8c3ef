"""Statistics of a rollout table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

__all__ = ["RolloutStats", "SourceStats", "SourceWaits", "WaitStats"]

_LIMITS = ("name", "batch_groups", "max_running", "capacity", "max_lag")


class WaitStats(NamedTuple):
    """Calls that wait, or waited, for one reason."""

    #: Number of calls that wait now.
    waiting: int
    #: Number of calls that had to wait since the table was created.
    limited: int
    #: Seconds that they waited in total.
    seconds: float


@dataclass(frozen=True)
class SourceStats:
    """Groups of the producers with one name. A group is counted as in :class:`RolloutStats`."""

    name: str
    submitted: int
    running: int
    accepted: int
    rejected: int
    filtered: int
    #: Tokens of its groups that were accepted.
    tokens: int
    #: Its groups in batches; a group that was delivered twice counts twice.
    delivered: int
    #: Seconds since it last reserved a group; ``None`` if it never did.
    idle: float | None


@dataclass(frozen=True)
class SourceWaits:
    """How the producers with one name wait for reservations."""

    #: Number of calls that wait now.
    waiting: int
    #: Seconds that the oldest of these has waited.
    oldest: float
    #: Number of groups that others reserved meanwhile.
    passed: int
    #: Seconds of the longest wait since the table was created.
    longest: float
    #: Whether the oldest has waited for over a minute while others reserved groups.
    starving: bool


@dataclass(frozen=True)
class RolloutStats:
    """A snapshot of the statistics of a rollout table; :meth:`RolloutTable.stats` returns one.

    Counts start when the table is created. ``submitted == running + accepted + rejected +
    filtered`` always holds.
    """

    #: Groups that were reserved.
    submitted: int = 0
    #: Groups with a reservation, and suspended groups.
    running: int = 0
    #: Groups that were complete and passed the filter, delivered or not.
    accepted: int = 0
    #: Groups that were never complete: given up, expired, late, or too old before.
    rejected: int = 0
    #: Groups that were complete and removed by the filter.
    filtered: int = 0
    #: Rejected groups whose reservation ended.
    expired: int = 0
    #: Rejected groups that had too few items at their deadline.
    late: int = 0
    #: Rejected and filtered groups that were too old.
    stale: int = 0
    #: Filtered groups that :meth:`RolloutTable.remove` removed.
    removed: int = 0
    #: Groups that were complete at their deadline with fewer than ``group_size`` items.
    short: int = 0
    #: Items that were started beyond the size of their group.
    surplus: int = 0
    #: Batches that were made.
    batches: int = 0
    #: Groups in batches.
    delivered: int = 0
    #: Tokens in batches.
    delivered_tokens: int = 0
    #: Delivered groups that were older than ``max_lag``.
    overdue: int = 0
    #: Delivered tokens that were masked because they were too old.
    masked_tokens: int = 0
    #: Shares of batches that were delivered again.
    redelivered: int = 0
    #: Delivered groups that were queued again because they were not acknowledged.
    returned: int = 0
    #: Groups that consumers acknowledged.
    acked: int = 0
    #: Groups that were delivered at least once and then removed, because of their age or for room.
    retired: int = 0
    #: Groups that were delivered at most once and never acknowledged.
    lost: int = 0
    #: Leases that ended before they were acknowledged.
    expired_leases: int = 0
    #: Calls of producers and consumers whose reservation or lease had ended.
    fenced: int = 0
    #: Tokens that were added.
    tokens: int = 0
    #: Segments that came twice and were taken once.
    duplicates: int = 0
    #: Suspended groups that another producer resumed.
    resumed: int = 0
    #: The version that the learner published last.
    version: int = 0
    #: The version that the next batch updates.
    target: int = 0
    #: How many versions ahead groups are reserved; ``None`` if ``max_lag`` is.
    pipeline_depth: int | None = None
    #: How many more groups can be reserved now.
    room: int = 0
    #: Complete groups that wait for a batch.
    queued: int = 0
    #: Groups that are with consumers.
    leased: int = 0
    #: Groups that wait for a producer that resumes them.
    suspended: int = 0
    #: The version of the oldest token in the queue; ``None`` if the queue is empty.
    oldest: int | None = None
    #: Whether the table is paused.
    paused: bool = False
    #: Waits for reservations, by reason.
    producer_waits: dict[str, WaitStats] = field(default_factory=dict)
    #: Waits for batches, by reason.
    consumer_waits: dict[str, WaitStats] = field(default_factory=dict)
    #: Producers by the name they gave.
    sources: dict[str, SourceStats] = field(default_factory=dict)
    #: Waits for reservations, by the name of the producer. Producers that never waited are left
    #: out.
    source_waits: dict[str, SourceWaits] = field(default_factory=dict)
    # Settings of the table that `why` needs.
    _limits: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def why(self) -> list[str]:
        """Why calls wait now: a sentence for each side and reason, as ``echoic top`` has them."""
        from echoic.views.notebook import rollout_reading
        from echoic.views.problems import why_rollouts_wait

        return why_rollouts_wait(rollout_reading(self, self._limits))

    @classmethod
    def _of(cls, numbers: dict[str, Any], settings: Mapping[str, Any] | None = None) -> Self:
        """Take the numbers and the table's settings as the core returns them."""
        waits = {
            side: {reason: WaitStats(*wait) for reason, wait in numbers.get(side, {}).items()}
            for side in ("producer_waits", "consumer_waits")
        }
        sources = {one["name"]: SourceStats(**one) for one in numbers.get("sources", ())}
        waiting = numbers.get("source_waits", {})
        source_waits = {name: SourceWaits(**one) for name, one in waiting.items()}
        limits = {name: settings[name] for name in _LIMITS} if settings is not None else {}
        return cls(
            **{**numbers, **waits, "sources": sources, "source_waits": source_waits},
            _limits=limits,
        )
