"""Tables: items with priorities, sampled as a selector chooses and as often as a limiter allows."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Literal

from echoic import _native
from echoic.limiters import Limiter, MinSize, Queue, Stack
from echoic.selectors import Fifo, Lifo, Selector, Uniform
from echoic.table_methods import TableMethods, settings

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AnyLength", "Table"]


class AnyLength:
    """In what a table is told of its trajectories: any number of steps, each like this one.

    Args:
        step: An array or scalar, of which only dtype and shape matter.
    """

    __slots__ = ("step",)

    def __init__(self, step: Any) -> None:
        """Take the example of a step."""
        self.step = step

    def __repr__(self) -> str:
        """Show what it is made of."""
        return f"AnyLength({self.step!r})"


class Table(_native.Table, TableMethods):
    """Items that are added one by one and sampled in batches.

    A table works by itself, in this process; given to a :class:`~echoic.Server` it is also there
    for others. All methods may be called from any thread.

    Args:
        name: Unique in a server.
        spec: An item as all others will be: a tree of arrays or scalars, of which only structure,
            dtypes and shapes matter. The items' bytes then lie side by side, which is the fastest
            and smallest way to store items of one form. Without a spec items may be of any form,
            and trajectories that overlap share their steps.
        trajectories: Instead of a spec: what each item looks like, while items still share steps. A
            tree of arrays or scalars like a spec; a leaf that has a number of steps in front has an
            axis of that length, or is an :class:`AnyLength` of one step.
        sampler: Who is sampled.
        remover: Who goes when the table is full.
        limiter: Who must wait.
        capacity: How many items there may be.
        max_times_sampled: Remove an item after it was sampled this many times. 0 means never.
            Whether that holds over a crash depends on ``durability``.
        seed: Of all random choices; random when ``None``.
        durability: What an added item, an update or a removal survives once it is acknowledged,
            which is when the call returns in this process, and when ``flush`` does elsewhere.
            ``"none"``: nothing but what a checkpoint has. ``"async"``: the end of the process,
            however sudden, since the system has it then; when the machine fails, the last seconds
            are lost. ``"sync"``: also a failure of the machine, since it is on disk then. The last
            two need a server with a ``journal``. With ``"sync"`` and ``max_times_sampled``,
            ``sample`` returns a batch when its draws are on disk, so that no crash has an item
            sampled more often; with ``"async"`` a crash may, items of the last batches.
        metadata: Bytes for layers above, at most 64 KiB, which tables of a server also tell its
            clients elsewhere: ``table.metadata``. A setting, so no checkpoint and no journal has
            them.

    Raises:
        SpecError: The spec can't be stored.
        LimiterError: With this limiter somebody would wait for ever; the message has the
            arithmetic.
        ValueError: A setting makes no sense.
        MemoryError: So many items can't be stored.

    Examples:
        >>> import numpy as np
        >>> from echoic import Table, selectors
        >>> step = {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}
        >>> table = Table("replay", step, sampler=selectors.Prioritized(0.6), capacity=1000, seed=1)
        >>> for reward in range(10):
        ...     table.add({"obs": np.ones(4, np.float32), "reward": float(reward)}, priority=2.0)
        >>> batch = table.sample(4)
        >>> batch["obs"].shape, batch.info.probabilities
        ((4, 4), array([0.1, 0.1, 0.1, 0.1]))
        >>> table.update_priorities(batch.keys, np.abs(batch["reward"]) + 0.1)
        4

        Sequences of any length, each with one flag:

        >>> from echoic import AnyLength
        >>> step = AnyLength(np.zeros(4, np.float32))
        >>> table = Table("sequences", trajectories={"obs": step, "lost": np.bool_(0)}, capacity=10)
        >>> [(leaf.path, leaf.dtype, leaf.shape) for leaf in table.spec.leaves]
        [('lost', 'bool', ()), ('obs', 'float32', (None, 4))]
    """

    def __new__(
        cls,
        name: str,
        spec: Any = None,
        *,
        capacity: int,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        limiter: Limiter | None = None,
        max_times_sampled: int = 0,
        seed: int | None = None,
        trajectories: Any = None,
        durability: Literal["none", "async", "sync"] = "none",
        metadata: bytes = b"",
    ) -> Self:
        """Make an empty table; see the class for the arguments."""
        if spec is not None and trajectories is not None:
            raise ValueError("give a spec, or say what trajectories look like; got both")
        return super().__new__(
            cls,
            name,
            spec,
            settings("sampler", Selector, Uniform() if sampler is None else sampler),
            settings("remover", Selector, Fifo() if remover is None else remover),
            settings("limiter", Limiter, MinSize() if limiter is None else limiter),
            capacity,
            max_times_sampled,
            secrets.randbits(64) if seed is None else seed,
            trajectories,
            durability,
            metadata,
        )

    @classmethod
    def queue(
        cls,
        name: str,
        spec: Any = None,
        *,
        capacity: int,
        trajectories: Any = None,
        durability: Literal["none", "async", "sync"] = "none",
        metadata: bytes = b"",
    ) -> Self:
        """Make a table from which each item is sampled once, the oldest first.

        Inserts wait while it is full.
        """
        return cls(
            name,
            spec,
            capacity=capacity,
            sampler=Fifo(),
            remover=Fifo(),
            limiter=Queue(capacity),
            max_times_sampled=1,
            trajectories=trajectories,
            durability=durability,
            metadata=metadata,
        )

    @classmethod
    def stack(
        cls,
        name: str,
        spec: Any = None,
        *,
        capacity: int,
        trajectories: Any = None,
        durability: Literal["none", "async", "sync"] = "none",
        metadata: bytes = b"",
    ) -> Self:
        """Make a table from which each item is sampled once, the newest first.

        Inserts wait while it is full.
        """
        return cls(
            name,
            spec,
            capacity=capacity,
            sampler=Lifo(),
            remover=Lifo(),
            limiter=Stack(capacity),
            max_times_sampled=1,
            trajectories=trajectories,
            durability=durability,
            metadata=metadata,
        )

    def __repr__(self) -> str:
        """Name, size and capacity."""
        return f"Table({self.name!r}, size={len(self)}, capacity={self.capacity})"
