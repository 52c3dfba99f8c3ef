"""Collect groups of token sequences from producers and deliver batches of them to a learner."""

from __future__ import annotations

import secrets
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
    """Collect groups of token sequences from producers and deliver batches of them to a learner.

    Versions count the learner's updates. V is the version that it published last, t the version
    that the next batch will update, and B = ``batch_groups`` × ``batches_per_version`` the number
    of groups for one version. Three rules bound how old data can be:

    - *Reservation.* At most min(``max_running`` − running, (``pipeline_depth`` + V + 1) · B −
      (accepted + running), ``capacity`` − stored) more groups are reserved, so that a group is used
      before it is too old.
    - *Selection.* A complete group is delivered if t − v ≤ ``max_lag``, where v is the version of
      its oldest token.
    - *Shipping.* The batch that updates t is delivered when V ≥ t − ``target_lag``.

    Args:
        name: The name of the table, unique in a server.
        columns: The name and dtype of each column; every token has a value in each.
        fields: The name and dtype of each number that an item has as a whole.
        mask: The column that says which tokens count, for ``on_stale="mask"``.
        late: Names of columns and fields that may come later, by :meth:`Reservation.update`. They
            may be left out when an item is added. It counts as finished when it has its end and all
            of them.
        group_size: Number of finished items that make a group complete: n. Default: 1.
        redundancy: Number of items that may be started beyond n. The first n that are finished
            count. Default: 0.
        group_deadline: Seconds after which a group with at least ``min_group_size`` finished items
            is complete, and any other is rejected. ``None`` is no limit.
        min_group_size: See ``group_deadline``; n when ``None``.
        batch_groups: Number of groups in a batch.
        batches_per_version: Number of batches that the learner takes for each version that it
            publishes. It may take them in parts: groups are counted.
        max_lag: Largest age of a token, in versions. ``None`` is no limit; versions then limit
            neither reservations nor batches.
        pipeline_depth: Number of versions ahead for which groups are reserved, at most ``max_lag``,
            which is also the default.
        auto_tune: Whether to adapt ``pipeline_depth``, below ``max_lag``, to the time that the
            learner waits for groups.
        max_running: Number of groups that may be made at the same time.
        capacity: Number of groups that fit; (``max_lag`` + 1) · B + ``max_running`` when ``None``.
        max_tokens: Largest number of tokens in an item.
        max_blob_bytes: Largest size of an item's blobs together, in bytes, as they are stored: one
            byte more than the bytes or text, and an array with its header.
        order: Which complete group is delivered first: the first to be complete (``"ready"``), the
            first reserved (``"submission"``, which waits for it), the first to be complete of the
            ``window`` that were reserved first (``"window"``), the one with the youngest
            (``"freshest"``) or oldest (``"oldest"``) tokens, or one drawn with a probability
            proportional to priority / (lag + 1) (``"weighted"``).
        window: See ``order``.
        on_stale: What to do with a group that is too old: remove it, so that another can be made
            (``"drop"``); let batches wait for groups so that none gets too old (``"wait"``);
            deliver and count it (``"keep"``); or mask its tokens that are too old (``"mask"``).
        target_lag: See *Shipping*; ``None`` delivers batches as soon as they are complete.
        max_mean_lag: Largest mean age of the groups of a batch, in versions.
        max_uses: Number of times that a group is delivered; ``None`` delivers it until it is too
            old.
            Values other than 1 need ``order="weighted"``.
        delivery: Whether a batch is delivered again if its consumer fails.
        reservation_ttl: Seconds without a call after which a reservation ends. Default: 60.
        on_expiry: Whether to reject the group of a reservation that ended (``"reject"``), or to
            suspend it until another producer resumes it (``"suspend"``).
        filter: Which complete groups to keep: a condition on their items' fields and ``length``,
            such as ``"spread(reward) > 0 and max(length) < 4096"``. It is evaluated once, when the
            group is complete.
        limiter: How often groups are delivered on average, in addition to the other limits.
        seed: Seed of all random choices; random when ``None``. :attr:`settings` reports it. A table
            of a directory keeps the seed that it began with.
        directory: Folder in which the table survives its process; created if it does not exist.
            An existing table is continued. Its settings must be the same, except for limits such as
            ``max_running`` and ``reservation_ttl``; an error names a setting that differs.
        durability: What a change must survive before its call returns: ``"none"``, ``"async"``
            (the end of the process) or ``"sync"`` (a failure of the machine).
        history: Whether to keep the whole journal in the directory, for :class:`History` and
            ``echoic replay``. Otherwise each :meth:`checkpoint` removes the part that it covers.

    Raises:
        RolloutError: If the settings contradict each other, or differ from those in the directory.
            The message has the arithmetic.
        SpecError: If a dtype can't be stored.
        JournalError: If the directory's files are damaged, or belong to something else.
        OSError: If they can't be read or written, or another process has the table open.

    Warns:
        JournalWarning: If the journal ends in an incomplete record, which was dropped. The message
            says how many acknowledged changes may be lost.

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
        late: Iterable[str] = (),
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
        max_uses: int | None = 1,
        delivery: Literal["at_least_once", "at_most_once"] = "at_least_once",
        reservation_ttl: float = 60.0,
        on_expiry: Literal["reject", "suspend"] = "reject",
        filter: str | None = None,  # noqa: A002 - what users call it
        limiter: Limiter | None = None,
        seed: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        durability: Literal["none", "async", "sync"] = "async",
        history: bool = False,
    ) -> None:
        if capacity is None:
            capacity = ((max_lag or 0) + 1) * batch_groups * batches_per_version + max_running
        settings = {
            "name": name,
            "columns": [(column, np.dtype(dtype)) for column, dtype in columns.items()],
            "fields": [(field, np.dtype(dtype)) for field, dtype in (fields or {}).items()],
            "mask": mask,
            "late": list(late),
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
            "seed": secrets.randbits(64) if seed is None else seed,
        }
        with working(f"opening rollout table {name!r}"):
            self._native = _native.RolloutTable(settings, directory, durability, history)
        if (dropped := self._native.dropped) is not None:
            count, what, lost = dropped
            warnings.warn(
                f"the journal of rollout table {name!r} ends in an incomplete record of {count} "
                f"bytes ({what}), which was dropped. After a crash in the middle of a write this "
                "is expected, and nothing acknowledged is lost. If the disk or the machine "
                f"failed, up to {lost} acknowledged changes may be lost",
                JournalWarning,
                stacklevel=2,
            )

    @classmethod
    def _of(cls, native: _native.RolloutTable) -> Self:
        """Wrap a native table, of this process or of a server."""
        self = cls.__new__(cls)
        self._native = native
        return self

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._native.name

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the table: ``RolloutTable(**settings)`` makes another like it.

        ``directory``, ``durability`` and ``history`` are not included.
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
            key: The producer's name for the group, for example its prompt. Batches have it. It need
                not be unique: each reservation is a group of its own. Producers share a group by
                its :attr:`Reservation.ticket`.
            source: The name of the producer, in statistics and batches.
            version: The version of the policy that the producer has; the learner's when ``None``.
            ttl: Seconds without a call after which the reservation ends; the table's
                ``reservation_ttl`` when ``None``.
            timeout: Seconds to wait; ``None`` waits forever.

        Raises:
            WaitTimeoutError: If there was no room in time. ``reason`` is ``"STALENESS"`` (the
                learner has to publish its next version), ``"CAPACITY"``, ``"RATIO"`` or
                ``"PAUSED"``.
            ClosedError: If the table is closed.
        """
        (given,) = self._native.reserve(1, source, [key], version, ttl, timeout)
        return Reservation._of(self._native, given)

    def reserve_many(
        self,
        count: int | None = None,
        *,
        keys: Iterable[str] | None = None,
        source: str = "",
        version: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> list[Reservation]:
        """Reserve several groups: wait for room for one, and reserve all that fit.

        Args:
            count: Number of groups at most, up to 4,096. Needed without ``keys``.
            keys: The names of the groups instead, at most 255 bytes each and 256 KiB together. If
                fewer groups fit, they are those of the first keys.
            source: As for :meth:`reserve`.
            version: As for :meth:`reserve`.
            ttl: As for :meth:`reserve`.
            timeout: As for :meth:`reserve`.

        Raises:
            TypeError: If neither ``count`` nor ``keys`` is given, or both are.
            RolloutError: If there are too many groups or bytes of keys.
            WaitTimeoutError: As for :meth:`reserve`.
            ClosedError: If the table is closed.
        """
        if (count is None) == (keys is None):
            raise TypeError(f"expected count or keys, got count={count!r} and keys={keys!r}")
        names = [] if keys is None else list(keys)
        if keys is not None and not names:
            return []
        count = len(names) if count is None else count
        reservations = self._native.reserve(count, source, names, version, ttl, timeout)
        return [Reservation._of(self._native, given) for given in reservations]

    def acquire(
        self,
        *,
        source: str = "",
        version: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Reservation:
        """Resume a suspended group if one exists; otherwise :meth:`reserve` a new one."""
        try:
            return Reservation.resume(self, source=source, ttl=ttl, timeout=0)
        except WaitTimeoutError:
            return self.reserve(source=source, version=version, ttl=ttl, timeout=timeout)

    def reservation(
        self, ticket: tuple[int, int] | Reservation, *, version: int | None = None
    ) -> Reservation:
        """Open the reservation of another process by its :attr:`Reservation.ticket`.

        Items of the group that have tokens are continued, and :attr:`Reservation.status` says how
        a group has ended.

        Args:
            ticket: The ticket; or a reservation of this table from before it was restarted or
                connected again.
            version: The version of tokens that are added without one; the learner's when ``None``.

        Raises:
            GroupNotFoundError: If the table never had such a group.
        """
        if isinstance(ticket, Reservation):
            return ticket.at(self._native)
        status, segments = self._native.status(ticket)
        if version is None:
            version = self.version
        return Reservation(self._native, ticket, version=version, segments=segments, status=status)

    def renew(self, reservations: Iterable[Reservation]) -> int:
        """Renew many reservations at once; return how many of them are still valid."""
        return self._native.renew([reservation.ticket for reservation in reservations])

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the table has everything that was added with ``wait=False``.

        Args:
            timeout: Seconds to wait; ``None`` waits forever.

        Raises:
            WaitTimeoutError: If it was not in time. Items are still being sent.
            EchoicError: If an item was refused and its reservation has not raised the error yet.
                Each call raises one.
        """
        self._native.flush(timeout)

    # The learner.

    @property
    def version(self) -> int:
        """The version that the learner published last."""
        return self._native.version()

    def publish_version(self, version: int) -> None:
        """Set the version of the policy that the learner has.

        Raises:
            RolloutError: If it is below the version before.
        """
        self._native.publish_version(version)

    def wait_version(self, newer_than: int, timeout: float | None = None) -> int:
        """Wait until the learner's version is above ``newer_than``, and return it."""
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
        device: Any = None,
    ) -> RolloutBatch:
        """Wait until a batch can be delivered, and return it, or one rank's share of it.

        Args:
            groups: Number of groups in the batch; ``batch_groups`` when ``None``.
            tokens: Instead, the largest number of tokens in each rank's share: as many groups as
                fit, and at most ``batch_groups``.
            lease: Seconds within which the caller has to call :meth:`RolloutBatch.ack`. After them
                the batch is delivered again, or lost, as the table's ``delivery`` says. ``None``
                acknowledges the batch at once.
            rank: The share of the batch to return, from 0 on. All ranks pass the same arguments.
                The first to ask has the batch made, and a rank that asks again after a failure gets
                the same share.
            ranks: Number of ranks that share a batch. Each gets the same number of groups.
            balance: What the shares have in common: the number of groups (``"count"``), and with it
                the tokens (``"tokens"``) or the sum of squares of items' lengths (``"squares"``).
            form: The layout of tokens: ``"flat"``, item after item; ``"padded"``, one item in a
                row; or ``"packed"``, several in a row.
            width: Tokens of a row; 0 is the length of the longest item, for padded rows.
            left: Whether padded rows are filled up on the left.
            timeout: Seconds to wait; ``None`` waits forever.
            device: Where the batch gets tensors of PyTorch, see :meth:`RolloutBatch.as_torch`;
                numpy arrays when ``None``.

        Raises:
            WaitTimeoutError: If there was no batch in time. ``reason`` is ``"GROUP"`` (too few
                groups are complete), ``"STALENESS"``, ``"LEASED"``, ``"MIN_SIZE"``, ``"RATIO"`` or
                ``"PAUSED"``.
            RolloutError: If the arguments contradict each other, or an item is longer than
                ``width``. A batch that was made is delivered again.
            ClosedError: If the table is closed.
        """
        if device is not None:
            from echoic.tensors import torch_device

            # Checked before a batch is made for it.
            device = torch_device(device)
        native = self._native.sample(
            groups, tokens, rank, ranks, balance, lease, (form, width, left), timeout
        )
        batch = RolloutBatch(self._native, native, form)
        return batch if device is None else batch.as_torch(device)

    def batches(self, **how: Any) -> Iterator[RolloutBatch]:
        """Yield batches without end; the arguments are those of :meth:`sample`.

        With a lease, each batch is acknowledged when the next one is asked for.
        """
        while True:
            batch = self.sample(**how)
            yield batch
            if not batch.is_over:
                batch.ack()

    def remove(self, groups: Iterable[int]) -> int:
        """Remove complete groups by their numbers, so that others can be reserved.

        Returns:
            The number of groups that were removed. Groups with a lease stay.
        """
        return self._native.remove([int(group) for group in groups])

    def update_priorities(self, groups: Any, priorities: Any) -> int:
        """Set priorities of groups, for the weighted order; return how many groups were found."""
        return self._native.update_priorities(groups, priorities)

    def restore(self, version: int) -> None:
        """Continue from the version of a learner that was restored from its own checkpoint.

        All leases end. Those of batches with a ``target`` below ``version`` are acknowledged: the
        learner's weights have learned from them. The groups of all others are queued again. Room
        for reservations is counted as if the learner had published ``version`` versions, and all
        complete groups belonged to the next.

        A learner that samples with a lease, publishes, saves its checkpoint with that version, and
        then acknowledges the batch uses every group once, wherever it is killed. A lease that ends
        before this call is queued again by then, so leases must be longer than a restart takes. In
        a table with a directory they stand still while it is not open.
        """
        self._native.restore(version)

    def set_pipeline_depth(self, depth: int) -> None:
        """Set the number of versions ahead for which groups are reserved, at most ``max_lag``."""
        self._native.set_pipeline_depth(depth)

    def checkpoint(self) -> Path:
        """Write the table to its directory and return the path.

        A restart loads it from there and applies the later changes of the journal.

        Raises:
            JournalError: If the table has no directory.
            OSError: If the files can't be written.
        """
        return self._native.checkpoint()

    # Everyone.

    def stats(self) -> RolloutStats:
        """Return a snapshot of the table's numbers."""
        return RolloutStats._of(self._native.stats(), self._native.settings)

    def pause(self) -> None:
        """Stop reservations and batches until :meth:`resume`. Reserved groups continue."""
        self._native.pause()

    def resume(self) -> None:
        """End a pause."""
        self._native.resume()

    def close(self) -> None:
        """Close the table; waiting calls raise :class:`~echoic.errors.ClosedError`."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether the table is closed."""
        return self._native.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
    """Return settings of the core as arguments of :class:`~echoic.rollouts.RolloutTable`."""
    limiter = settings["limiter"]
    if limiter is not None:
        # The core keeps four numbers of a limiter, whatever its class was.
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
        raise RolloutError("the server has no rollout tables, and so no version")
    return tables


def publish_everywhere(tables: Collection[RolloutTable], version: int) -> None:
    """Publish a version in all tables; if one of them has a later version, change none."""
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
