"""The side of a run that learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic.errors import RolloutError
from echoic.rl.batches import Batches
from echoic.rl.modules import tree_of
from echoic.rollouts import RolloutTable
from echoic.server import Server
from echoic.weights import WeightStore

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import DTypeLike
    from typing_extensions import Self

    from echoic.rollouts import RolloutBatch, RolloutStats
    from echoic.rollouts.table import Balance, Form
    from echoic.transports import Transport

__all__ = ["Run"]


class Run:
    """A learner's rollouts, weights and server: workers :func:`join` it.

    Args:
        columns: The name and dtype of each column, or a dtype and a shape such as
            ``("uint8", (48, 8))``; every token has a value in each.
        fields: The name and dtype of each number that an item has as a whole.
        listen: The addresses for other processes, as those of :class:`echoic.Server`; ``None`` for
            this process only.
        group: Number of items in a group. Default: 1.
        batch: Number of groups in a batch.
        max_lag: Largest age of a token in a batch, in versions. Default: 1.
        dir: Folder in which rollouts survive this process; see ``directory`` of
            :class:`~echoic.rollouts.RolloutTable`.
        name: The name of the table.
        token: A secret that workers must have.
        **table: Other arguments of :class:`~echoic.rollouts.RolloutTable`.

    Attributes:
        table: The table of rollouts.
        weights: The store of weights.
        server: The server of both.

    Raises:
        RolloutError: If the settings contradict each other.
        OSError: If an address can't be opened.

    Examples:
        >>> import numpy as np
        >>> import echoic.rl
        >>> run = echoic.rl.Run({"tokens": "int32"}, {"reward": "float32"}, batch=1)
        >>> run.publish({"w": np.zeros(3, np.float32)})
        0
        >>> with echoic.rl.join(run) as worker, worker.group("2 + 2") as group:
        ...     for item in group:
        ...         item.write(tokens=[4])
        ...         item.done(reward=1.0)
        >>> for batch in run.batches():
        ...     print(batch["tokens"], batch["reward"], batch.keys)
        ...     print(run.publish({"w": np.ones(3, np.float32)}))
        ...     run.close()
        [4] [1.] ['2 + 2']
        1
    """

    def __init__(
        self,
        columns: Mapping[str, DTypeLike],
        fields: Mapping[str, DTypeLike] | None = None,
        *,
        listen: str | Transport | Sequence[str | Transport] | None = None,
        group: int = 1,
        batch: int,
        max_lag: int | None = 1,
        dir: str | os.PathLike[str] | None = None,  # noqa: A002 - what users call it
        name: str = "rollouts",
        token: str | bytes | None = None,
        **table: Any,
    ) -> None:
        self.table = RolloutTable(
            name,
            columns,
            fields,
            group_size=group,
            batch_groups=batch,
            max_lag=max_lag,
            directory=dir,
            **table,
        )
        try:
            self.weights = WeightStore()
            self.server = Server(self.table, self.weights, listen=listen, token=token)
            self.server.start()
        except BaseException:
            self.table.close()
            raise
        # Batches that were made before this object.
        self._batches = self.table.stats().batches
        self._is_first = True

    @property
    def address(self) -> str:
        """The address that workers join.

        Raises:
            ValueError: If ``listen`` had none or several.
        """
        return self.server.address

    @property
    def version(self) -> int:
        """The version that was published last."""
        return self.table.version

    def publish(self, model: Any = None, version: int | None = None) -> int:
        """Publish weights, and then their version; return the version.

        So a worker that is admitted for a version can load weights of it.

        Args:
            model: A module of PyTorch, or any tree of arrays or tensors such as a ``state_dict()``.
                ``None`` publishes a version alone, for weights that go another way.
            version: The version. When ``None``: for the first publication, before a batch was
                taken, the table's own version, which is 0 in a new run; else one more.

        Raises:
            RolloutError: If the version is below that of the table, or not above that of the
                weights.
            SpecError: If a leaf can't be published.
        """
        if version is None:
            version = self.table.version
            if not self._is_first or self.table.stats().batches != self._batches:
                version += 1
        last = self.weights.version
        if version < self.table.version or (last is not None and version <= last):
            raise RolloutError(
                f"expected a version of at least {self.table.version} and above that of the "
                f"weights, {last}, got {version}"
            )
        if model is None:
            self.weights.publish_version(version)
        else:
            self.weights.publish(tree_of(model), version)
        self.table.publish_version(version)
        self._is_first = False
        return version

    def batches(
        self,
        *,
        rank: int = 0,
        world: int = 1,
        lease: float | None = 600.0,
        groups: int | None = None,
        tokens: int | None = None,
        balance: Balance = "count",
        form: Form = "flat",
        width: int = 0,
        left: bool = False,
        device: Any = None,
        timeout: float | None = None,
    ) -> Batches:
        """Iterate over batches, with ``for`` or ``async for``, until the run is closed.

        A batch is acknowledged when the next one is asked for. If the loop is left, by ``break`` or
        an exception, the last batch is acknowledged if a version above its target was published
        since, and returned to be delivered again otherwise.

        Args:
            rank: The share of each batch to yield, from 0 on.
            world: Number of ranks that share each batch. The others are processes that
                :func:`join` the run.
            lease: Seconds in which a batch must be done; then it is delivered again. ``None``
                acknowledges it at once.
            groups: As for :meth:`RolloutTable.sample`, as all that follow.
            tokens: The largest number of tokens of each rank's share, in place of ``groups``.
            balance: What ranks get the same amount of.
            form: ``"flat"``, ``"padded"`` or ``"packed"``.
            width: Tokens of a row.
            left: Whether padded rows are filled up on the left.
            device: Where the batch gets tensors of PyTorch; numpy arrays when ``None``.
            timeout: Seconds to wait for a batch; ``None`` waits forever.

        Raises:
            WaitTimeoutError: If there was no batch in time; ``reason`` says why.
            LeaseError: If a batch was not done within its lease.
        """
        return Batches(
            lambda: self.table,
            rank=rank,
            ranks=world,
            lease=lease,
            groups=groups,
            tokens=tokens,
            balance=balance,
            form=form,
            width=width,
            left=left,
            device=device,
            timeout=timeout,
        )

    def sample(self, groups: int | None = None, **how: Any) -> RolloutBatch:
        """Wait for one batch; see :meth:`RolloutTable.sample`."""
        return self.table.sample(groups, **how)

    def stats(self) -> RolloutStats:
        """Return a snapshot of the numbers; ``why`` says why anything waits."""
        return self.table.stats()

    def checkpoint(self) -> Path:
        """Write the rollouts to ``dir``, so that a restart has less to replay; return the path."""
        return self.table.checkpoint()

    def restore(self, version: int) -> None:
        """Continue from a learner's checkpoint of this version, before anything is published.

        Batches that this version has learned from are acknowledged, and the groups of all others
        are queued again.

        Raises:
            RolloutError: If weights of this version or a later one were published.
        """
        last = self.weights.version
        if last is not None and last >= version:
            raise RolloutError(
                f"expected no weights of version {version} or later, but version {last} was "
                "published: call restore() before publish()"
            )
        self.table.restore(version)
        self._batches, self._is_first = self.table.stats().batches, True

    def pause(self) -> None:
        """Stop reservations and batches until :meth:`resume`."""
        self.table.pause()

    def resume(self) -> None:
        """End a pause."""
        self.table.resume()

    def close(self, restart: bool | None = None) -> None:
        """Close the server, the rollouts and the weights.

        Args:
            restart: Whether workers wait for the next server at the address, or get
                :class:`~echoic.errors.ClosedError`. With ``None`` they wait if the run has a
                ``dir``.
        """
        self.server.close(restart=restart)

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
        where = ", ".join(self.server.addresses) or "this process"
        return f"Run({self.table.name!r}, {where}, version={self.version})"
