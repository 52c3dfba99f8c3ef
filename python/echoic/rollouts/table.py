"""A table of rollouts: reservations of groups in, batches of complete groups out."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from echoic import _native
from echoic._progress import working
from echoic.errors import JournalWarning, RolloutError, WaitTimeoutError
from echoic.limiters import RateLimiter
from echoic.rollouts.batch import RolloutBatch
from echoic.rollouts.reservation import Reservation
from echoic.rollouts.stats import RolloutStats

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import DTypeLike
    from typing_extensions import Self

    from echoic.limiters import Limiter

__all__ = ["RolloutTable", "as_arguments", "common_version", "publish_everywhere"]

Order = Literal["ready", "submission", "window", "freshest", "oldest", "weighted"]
OnStale = Literal["drop", "wait", "keep", "mask"]
Form = Literal["flat", "padded", "packed"]
Balance = Literal["count", "tokens", "squares"]


def _numbers(limiter: Limiter) -> tuple[str, list[float]]:
    return limiter._settings()


class RolloutTable:
    """Groups of token sequences on their way from those who generate to the one who learns.

    Versions count the learner's updates. V is the version that it has published last, t the version
    that the next batch will update, B = ``batch_groups`` × ``batches_per_version`` the groups that
    a
    version uses up. The table keeps three promises:

    - *Reservation.* At most min(``max_running`` − running, (``pipeline_depth`` + V + 1) · B −
      (accepted + running), ``capacity`` − those there) more groups are reserved, so that what is
      made
      is used before it is too old.
    - *Selection.* A complete group is delivered if t − v ≤ ``max_lag``, where v is the version of
    its
      oldest token.
    - *Shipping.* The batch that updates t leaves when V ≥ t − ``target_lag``.

    Args:
        name: What it is called.
        columns: The name and dtype of each column; every token has a value in each.
        fields: The name and dtype of each number that an item has as a whole.
        mask: The column that says which tokens count, for ``on_stale="mask"``.
        group_size: How many finished items make a group complete: n.
        redundancy: How many items may be started beyond these. The first n that are finished count.
        group_deadline: After this many seconds a group is complete with what it has ...
        min_group_size: ... if that is at least this much; n when ``None``. Else it is rejected.
        batch_groups: How many groups make a batch.
        batches_per_version: How many batches the learner takes for each version that it publishes.
            It may take them in parts: what counts are groups.
        max_lag: How many versions old a token may be. ``None`` bounds nothing, and versions pace
            nobody.
        pipeline_depth: How many versions ahead groups are reserved: at most, and by default,
            ``max_lag``.
        auto_tune: Whether that moves, below ``max_lag``, with how long the learner waits for
            groups.
        max_running: How many groups may be made at the same time.
        capacity: How many groups may be there; (``max_lag`` + 1) · B + ``max_running`` when
            ``None``.
        max_tokens: How many tokens an item may have.
        max_blob_bytes: How many bytes an item's blobs may have together, as they are stored: one
            more than the bytes or the text, and an array with its header.
        order: Which complete group goes first: the one complete first (``"ready"``), reserved first
            (``"submission"``, which waits for it), the first complete one of the ``window``
            reserved first (``"window"``), of the youngest (``"freshest"``) or oldest (``"oldest"``)
            tokens, or one drawn by priority / (lag + 1) (``"weighted"``).
        window: See ``order``.
        on_stale: What becomes of a group that is too old: it goes, and another one may be made for
            it (``"drop"``); batches wait for groups so that none gets too old (``"wait"``); it is
            delivered and counted (``"keep"``), or its tokens that are too old are masked
            (``"mask"``).
        target_lag: See *Shipping*; ``None`` lets batches leave as soon as they are complete.
        max_mean_lag: How old the groups of a batch may be on average.
        max_uses: How often a group is delivered; 0: until it is too old. Other than 1 needs the
            weighted order.
        delivery: Whether a batch whose consumer is gone is delivered again.
        reservation_ttl: Seconds without a call after which a reservation ends. Default: 60.
        on_expiry: Whether its group is rejected then (``"reject"``), or waits for another producer
            to resume it (``"suspend"``).
        filter: Which complete groups are kept: a condition on their items' fields and ``length``,
            such as ``"spread(reward) > 0 and max(length) < 4096"``.
        limiter: How often groups are delivered on average, on top of all that.
        seed: Of all random choices.
        directory: Where the table is kept, so that it survives its process; it is made if it is not
            there. A table that was there goes on, with the same settings but for those that bound
            it (``max_running``, ``reservation_ttl`` and the like). The error names one that may not
            change.
        durability: What a change must survive before its caller is told: ``"none"``, ``"async"``
            (the end of the process) or ``"sync"`` (a failure of the machine).
        history: Whether the whole journal stays in the directory, for :class:`History` and ``echoic
            replay``; else each :meth:`checkpoint` cuts off what it covers.

    Raises:
        RolloutError: The settings can't work together, with the arithmetic, or with those of the
            directory.
        SpecError: A dtype can't be stored.
        JournalError: The directory's files are damaged, or belong to something else.
        OSError: They can't be read or written, or another process has them.

    Warns:
        JournalWarning: The end of the journal was no whole record and was dropped. The message says
            how many acknowledged changes may be lost.

    Examples:
        >>> from echoic.rollouts import RolloutTable
        >>> table = RolloutTable(
        ...     "math", {"tokens": "int32", "logprobs": "float32"}, {"reward": "float32"},
        ...     group_size=2, batch_groups=1, max_lag=1,
        ... )
        >>> reservation = table.reserve()
        >>> for reward in (0.0, 1.0):
        ...     columns = {"tokens": [5, 6, 7], "logprobs": [-0.5, -1, -2]}
        ...     status = reservation.add(columns, {"reward": reward})
        >>> batch = table.sample()
        >>> batch["tokens"], batch.offsets, batch["reward"]
        (array([5, 6, 7, 5, 6, 7], dtype=int32), array([0, 3, 6]), array([0., 1.], dtype=float32))
        >>> table.publish_version(1)
        >>> table.version
        1
    """

    def __init__(
        self,
        name: str,
        columns: Mapping[str, DTypeLike],
        fields: Mapping[str, DTypeLike] | None = None,
        *,
        mask: str | None = None,
        group_size: int = 1,
        redundancy: int = 0,
        group_deadline: float | None = None,
        min_group_size: int | None = None,
        batch_groups: int,
        batches_per_version: int = 1,
        max_lag: int | None = None,
        pipeline_depth: int | None = None,
        auto_tune: bool = False,
        max_running: int = 1024,
        capacity: int | None = None,
        max_tokens: int = 1 << 20,
        max_blob_bytes: int = 16 << 20,
        order: Order = "ready",
        window: int | None = None,
        on_stale: OnStale = "drop",
        target_lag: int | None = None,
        max_mean_lag: float | None = None,
        max_uses: int = 1,
        delivery: Literal["at_least_once", "at_most_once"] = "at_least_once",
        reservation_ttl: float = 60.0,
        on_expiry: Literal["reject", "suspend"] = "reject",
        filter: str | None = None,  # noqa: A002 - what users call it
        limiter: Limiter | None = None,
        seed: int = 0,
        directory: str | os.PathLike[str] | None = None,
        durability: Literal["none", "async", "sync"] = "async",
        history: bool = False,
    ) -> None:
        """Make an empty table; see the class for the arguments."""
        if capacity is None:
            capacity = ((max_lag or 0) + 1) * batch_groups * batches_per_version + max_running
        settings = {
            "name": name,
            "columns": [(column, np.dtype(dtype)) for column, dtype in columns.items()],
            "fields": [(field, np.dtype(dtype)) for field, dtype in (fields or {}).items()],
            "mask": mask,
            "group_size": group_size,
            "redundancy": redundancy,
            "group_deadline": group_deadline,
            "min_group_size": group_size if min_group_size is None else min_group_size,
            "batch_groups": batch_groups,
            "batches_per_version": batches_per_version,
            "max_lag": max_lag,
            "pipeline_depth": pipeline_depth,
            "auto_tune": auto_tune,
            "max_running": max_running,
            "capacity": capacity,
            "max_tokens": max_tokens,
            "max_blob_bytes": max_blob_bytes,
            "order": order,
            "window": window,
            "on_stale": on_stale,
            "target_lag": target_lag,
            "max_mean_lag": max_mean_lag,
            "max_uses": max_uses,
            "delivery": delivery,
            "reservation_ttl": reservation_ttl,
            "on_expiry": on_expiry,
            "filter": filter,
            "limiter": None if limiter is None else _numbers(limiter),
            "seed": seed,
        }
        with working(f"opening rollout table {name!r}"):
            self._native = _native.RolloutTable(settings, directory, durability, history)
        if (dropped := self._native.dropped) is not None:
            count, what, lost = dropped
            warnings.warn(
                f"the journal of rollout table {name!r} ends in {count} bytes that are no whole "
                f"record ({what}), which were dropped. A crash in the middle of a write leaves "
                "such an end, and then nothing acknowledged is lost. If the disk or the machine "
                f"failed, up to {lost} acknowledged changes may be lost",
                JournalWarning,
                stacklevel=2,
            )

    @classmethod
    def _of(cls, native: _native.RolloutTable) -> Self:
        """Wrap a table that there is, here or at a server."""
        self = cls.__new__(cls)
        self._native = native
        return self

    @property
    def name(self) -> str:
        """What it is called."""
        return self._native.name

    @property
    def settings(self) -> dict[str, Any]:
        """What it was told: ``RolloutTable(**settings)`` makes another like it.

        Where it is kept, by ``directory``, ``durability`` and ``history``, is not among them.
        """
        return as_arguments(self._native.settings)

    # Producers.

    def reserve(
        self,
        *,
        key: str = "",
        source: str = "",
        version: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Reservation:
        """Reserve a group: wait until one may be made, and return the reservation for it.

        Args:
            key: What the producer calls the group, for example its prompt. It is in batches, and
                need not be unique: each reservation is a group of its own. Producers share a group
                by its :attr:`Reservation.ticket`.
            source: Who the producer is: in counters, and beside the group in batches.
            version: The version of the policy that the producer has; the learner's when ``None``.
            ttl: Seconds without a call after which the reservation ends; the table's
                ``reservation_ttl`` when ``None``.
            timeout: Seconds to wait; ``None`` waits for ever.

        Raises:
            WaitTimeoutError: There was no room in time; ``reason`` is ``"STALENESS"`` (the learner
                has to publish its next version), ``"CAPACITY"``, ``"RATIO"`` or ``"PAUSED"``.
            ClosedError: The table is closed.
        """
        (given,) = self._native.reserve(1, source, key, version, ttl, timeout)
        return Reservation._of(self._native, given)

    def reserve_many(
        self,
        count: int,
        *,
        source: str = "",
        version: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> list[Reservation]:
        """Reserve up to ``count`` groups: wait for room for one, and take what room there is."""
        reservations = self._native.reserve(count, source, "", version, ttl, timeout)
        return [Reservation._of(self._native, given) for given in reservations]

    def acquire(
        self,
        *,
        source: str = "",
        version: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Reservation:
        """Resume a suspended group if there is one; else :meth:`reserve` another."""
        try:
            return Reservation.resume(self, source=source, ttl=ttl, timeout=0)
        except WaitTimeoutError:
            return self.reserve(source=source, version=version, ttl=ttl, timeout=timeout)

    def reservation(
        self, ticket: tuple[int, int] | Reservation, *, version: int | None = None
    ) -> Reservation:
        """Open the reservation that another process was given, from its :attr:`Reservation.ticket`.

        Args:
            ticket: What the other process has; or a reservation from before this table, or the
                connection to it, was made anew.
            version: The version of tokens that are added without one; the learner's when ``None``.

        The table is asked for the progress of the group: items that have tokens go on from there,
        and :attr:`Reservation.status` says how a group has ended.

        Raises:
            GroupNotFoundError: The table never had such a group.
        """
        if isinstance(ticket, Reservation):
            return ticket.at(self._native)
        status, segments = self._native.status(ticket)
        if version is None:
            version = self.version
        return Reservation(self._native, ticket, version=version, segments=segments, status=status)

    def renew(self, reservations: Iterable[Reservation]) -> int:
        """Give a sign of life for many reservations; how many of them still stand."""
        return self._native.renew([reservation.ticket for reservation in reservations])

    def flush(self, timeout: float | None = None) -> None:
        """Wait until what was added without waiting, here or over the connection, has arrived.

        Raises:
            WaitTimeoutError: It was not in time; it is still on its way.
            EchoicError: An error of a group whose reservation has not raised it yet; one at a time.
        """
        self._native.flush(timeout)

    # The learner.

    @property
    def version(self) -> int:
        """The version that the learner has published last."""
        return self._native.version()

    def publish_version(self, version: int) -> None:
        """Say that the learner has a later version of the policy.

        Raises:
            RolloutError: It is below the one before.
        """
        self._native.publish_version(version)

    def wait_version(self, newer_than: int, timeout: float | None = None) -> int:
        """Wait until the learner's version is above one, and return it."""
        return self._native.wait_version(newer_than, timeout)

    def sample(
        self,
        groups: int | None = None,
        *,
        tokens: int | None = None,
        lease: float | None = None,
        rank: int = 0,
        ranks: int = 1,
        balance: Balance = "count",
        form: Form = "flat",
        width: int = 0,
        left: bool = False,
        timeout: float | None = None,
    ) -> RolloutBatch:
        """Wait until a batch can be delivered, and return it, or one rank's share of it.

        Args:
            groups: How many groups the batch has; ``batch_groups`` when ``None``.
            tokens: Instead, how many tokens each rank's share may have: as many groups as fit, and
                at most ``batch_groups``.
            lease: For how many seconds the batch is the caller's. If it does not say
                :meth:`RolloutBatch.ack` by then, the batch is delivered again, or lost, as the
                table's ``delivery`` says. Without a lease it is used up at once.
            rank: Which share of the batch, from 0 on. All ranks ask in the same way, and whichever
                comes first has the batch made; asked again after a failure, each gets the same
                share.
            ranks: How many share a batch. The groups of a batch are theirs in equal numbers.
            balance: What they have alike: the number of groups (``"count"``), and with it the
                tokens (``"tokens"``) or the sum of squares of items' lengths (``"squares"``).
            form: How tokens lie: ``"flat"``, item after item; ``"padded"``, a row of each; or
                ``"packed"``, several in a row.
            width: Tokens of a row; of padded rows, those of the longest item when 0.
            left: Whether padded rows are filled up on the left.
            timeout: Seconds to wait; ``None`` waits for ever.

        Raises:
            WaitTimeoutError: There was no batch in time; ``reason`` is ``"GROUP"`` (too few groups
                are complete), ``"STALENESS"``, ``"LEASED"``, ``"MIN_SIZE"``, ``"RATIO"`` or
                ``"PAUSED"``.
            RolloutError: The arguments can't work, or an item is longer than ``width``. A batch
                that was made is delivered again.
            ClosedError: The table is closed.
        """
        native = self._native.sample(
            groups, tokens, rank, ranks, balance, lease, (form, width, left), timeout
        )
        return RolloutBatch(self._native, native, form)

    def batches(self, **how: Any) -> Iterator[RolloutBatch]:
        """Go through batches for ever; the arguments are those of :meth:`sample`.

        With a lease, each batch is acknowledged when the next one is asked for.
        """
        while True:
            batch = self.sample(**how)
            yield batch
            if not batch.is_over:
                batch.ack()

    def remove(self, groups: Iterable[int]) -> int:
        """Remove complete groups by their numbers; others may be reserved for them.

        Returns:
            How many were removed. Groups that are with consumers stay.
        """
        return self._native.remove([int(group) for group in groups])

    def update_priorities(self, groups: Any, priorities: Any) -> int:
        """Say how much more likely than others groups are to be drawn; how many there were."""
        return self._native.update_priorities(groups, priorities)

    def restore(self, version: int) -> None:
        """Go on from the version of a learner that came back from its own checkpoint.

        All batches that are out are over, and their groups are queued again. Room for reservations
        is counted as if just so many versions had been made, and what is complete here belonged to
        the next.
        """
        self._native.restore(version)

    def set_pipeline_depth(self, depth: int) -> None:
        """Reserve groups so many versions ahead from now on, at most ``max_lag``."""
        self._native.set_pipeline_depth(depth)

    def checkpoint(self) -> Path:
        """Write the table to its directory as it is now; return where that is.

        It is brought back from there, and does again what the journal tells since.

        Raises:
            JournalError: It has no directory.
            OSError: The files can't be written.
        """
        return self._native.checkpoint()

    # Everyone.

    def stats(self) -> RolloutStats:
        """Return a snapshot of the table's numbers."""
        return RolloutStats._of(self._native.stats())

    def pause(self) -> None:
        """Stop reservations and batches until :meth:`resume`. Groups that are reserved go on."""
        self._native.pause()

    def resume(self) -> None:
        """End a pause."""
        self._native.resume()

    def close(self) -> None:
        """End it: whoever waits gets a :class:`~echoic.errors.ClosedError`."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._native.closed

    def __enter__(self) -> Self:
        """Return the table."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Return name, sizes and whether it is closed."""
        sizes = (
            f"batch_groups={self.settings['batch_groups']}, capacity={self.settings['capacity']}"
        )
        return f"RolloutTable({self.name!r}, {sizes}{', closed' if self.closed else ''})"

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        from echoic.views.notebook import rollouts_html

        return rollouts_html(self)


def as_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the core was told as arguments of :class:`~echoic.rollouts.RolloutTable`."""
    limiter = settings["limiter"]
    if limiter is not None:
        # Whatever it was made as, the core knows it by its four numbers.
        _, (min_size, *ratio) = limiter
        limiter = RateLimiter(int(min_size), *ratio)
    return {
        **settings,
        "columns": dict(settings["columns"]),
        "fields": dict(settings["fields"]),
        "limiter": limiter,
    }


def _some(tables: Collection[RolloutTable]) -> Collection[RolloutTable]:
    if not tables:
        raise RolloutError("the server has no rollout tables, so there is no version of them")
    return tables


def publish_everywhere(tables: Collection[RolloutTable], version: int) -> None:
    """Publish a version in all tables; in none, if one of them has a later one."""
    for table in _some(tables):
        if table.version > version:
            raise RolloutError(
                f"version must be at least that of every table, got {version}: "
                f"{table.name!r} has {table.version}"
            )
    for table in tables:
        table.publish_version(version)


def common_version(tables: Collection[RolloutTable]) -> int:
    """Return the version that all tables have reached."""
    return min(table.version for table in _some(tables))
