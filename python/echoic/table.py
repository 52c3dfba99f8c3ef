"""Store items with priorities and sample them: a selector chooses, a limiter sets the rate."""

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
    """Declare a leaf of a table's ``trajectories`` that has any number of steps.

    Args:
        step: One step: an array or scalar, of which only dtype and shape matter.
    """

    __slots__ = ("step",)

    def __init__(self, step: Any) -> None:
        self.step = step

    def __repr__(self) -> str:
        return f"AnyLength({self.step!r})"


class Table(_native.Table, TableMethods):
    """Store items that are added one by one, and sample batches of them.

    A table works in this process. A :class:`~echoic.Server` also makes it available to other
    processes. All methods may be called from any thread.

    Args:
        name: The name of the table, unique in a server.
        spec: An example of an item: a tree of arrays or scalars, of which only structure, dtypes
            and shapes matter. All items must be like it, and are stored next to each other, which
            is the fastest and smallest way. Without a spec items may have any form, and
            trajectories that overlap share their steps.
        trajectories: Instead of ``spec``, an example of a trajectory, for tables whose items share
            steps: a tree of arrays or scalars. A leaf with a fixed number of steps has an axis of
            that length in front; one with any number is an :class:`AnyLength` of one step.
        sampler: Chooses the items to sample. Default: :class:`~echoic.selectors.Uniform`.
        remover: Chooses the item to remove when the table is full. Default:
            :class:`~echoic.selectors.Fifo`.
        limiter: Decides when ``add`` and ``sample`` wait. Default:
            :class:`~echoic.limiters.MinSize` of 1.
        capacity: Number of items that fit.
        max_times_sampled: Remove an item after it was sampled this many times; ``None`` is no
            limit. Whether that holds after a crash depends on ``durability``.
        seed: Seed of all random choices; random when ``None``. ``stats()`` reports it.
        durability: What an addition, an update or a removal survives once it is acknowledged: when
            the call returns in this process, or ``flush`` in another. ``"none"``: only
            checkpoints survive. ``"async"``: the sudden end of the process; if the machine fails,
            the last seconds are lost. ``"sync"``: also a failure of the machine, since the change
            is on disk. The last two need a server with a ``journal``. With ``max_times_sampled``,
            ``"sync"`` returns a batch when its draws are on disk, so that an item is not sampled
            more often after a crash; with ``"async"`` items of the last batches may be.
        metadata: Application data, at most 64 KiB, which clients read as ``table.metadata``. It is
            a setting, so checkpoints and journals do not have it.

    Raises:
        SpecError: If the spec can't be stored.
        LimiterError: If a caller would wait forever with this limiter; the message has the
            arithmetic.
        ValueError: If a setting is out of range.
        MemoryError: If there is not enough memory for ``capacity`` items.

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
        max_times_sampled: int | None = None,
        seed: int | None = None,
        trajectories: Any = None,
        durability: Literal["none", "async", "sync"] = "none",
        metadata: bytes = b"",
    ) -> Self:
        if spec is not None and trajectories is not None:
            raise ValueError("expected `spec` or `trajectories`, got both")
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
    def from_spaces(
        cls,
        observation_space: Any,
        action_space: Any,
        *,
        capacity: int,
        name: str = "replay",
        **settings: Any,
    ) -> Self:
        """Make a table for transitions of a Gymnasium environment.

        Items have the fields of :meth:`echoic.ReplayBuffer.from_spaces`, the form that all adapters
        share: ``obs``, ``actions``, ``rewards`` (float32), ``terminated``, ``truncated`` and
        ``next_obs``.

        Args:
            observation_space: A space of arrays or numbers, or a ``Dict`` or ``Tuple`` of them.
            action_space: As ``observation_space``.
            capacity: Number of items that fit.
            name: The name of the table, unique in a server. Default: ``"replay"``.
            settings: More arguments of the class.

        Raises:
            SpecError: If a space has values that are not arrays or numbers.

        Examples:
            >>> import gymnasium
            >>> from echoic import Table
            >>> env = gymnasium.make("CartPole-v1")
            >>> table = Table.from_spaces(env.observation_space, env.action_space, capacity=1000)
            >>> [(leaf.path, leaf.dtype, leaf.shape) for leaf in table.spec.leaves][:3]
            [('actions', 'int64', ()), ('next_obs', 'float32', (4,)), ('obs', 'float32', (4,))]
        """
        from echoic.buffers._common import transition_of

        example = transition_of(observation_space, action_space)
        return cls(name, example, capacity=capacity, **settings)

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

        ``add`` waits while it is full.
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

        ``add`` waits while it is full.
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
        return f"Table({self.name!r}, size={len(self)}, capacity={self.capacity})"
