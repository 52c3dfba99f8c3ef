"""Write trajectories: append each step once, then name the steps that make an item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from echoic import _native
from echoic._native import ColumnHistory
from echoic._writing import Writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

__all__ = ["ChunkLength", "ColumnHistory", "Encoding", "TrajectoryWriter"]

# How tables store the values of a column: see the guide "Trajectories in tables".
Encoding: TypeAlias = Literal["none", "auto", "lz4", "zstd", "delta+lz4", "delta+zstd"]

# How many steps a chunk has: see the section "When items arrive" of that guide.
ChunkLength: TypeAlias = int | Literal["prompt"]


class TrajectoryWriter(Writes, _native.TrajectoryWriter):
    """Append steps, and make items of them that share their bytes.

    ``client.trajectory_writer`` makes one. Each step is stored once, in chunks of consecutive
    values of one column, however many items have it. Use a writer in one thread.

    Args:
        tables: The tables that items may go to.
        num_keep_alive_refs: How many of the latest steps new items may still refer to.
        chunk_length: How many steps a chunk has at most. ``None``: the writer chooses from
            measurements, up to 256 steps, and items may wait for a chunk to be complete.
            ``"prompt"``: the same, but items wait for at most 7 steps, the first ones for none.
        encoding: How chunks are stored and sent: ``"none"`` as they are, ``"auto"`` as measured for
            each column, or in the named form where that is smaller.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, Table, connect
        >>> server = Server(Table("pairs", capacity=100))
        >>> with server, connect(server).trajectory_writer(num_keep_alive_refs=2) as writer:
        ...     for step in range(3):
        ...         writer.append({"obs": np.full(4, step), "reward": float(step)})
        ...         if step > 0:
        ...             obs, reward = writer.history["obs"], writer.history["reward"]
        ...             writer.create_item("pairs", 1.0, {"obs": obs[-2:], "reward": reward[-1]})
        ...     writer.flush()
        ...     batch = connect(server).table("pairs").sample(2)
        >>> batch.data["obs"].shape, batch.data["reward"].shape
        ((2, 2, 4), (2,))
    """

    def __new__(
        cls,
        tables: Sequence[_native.Table],
        num_keep_alive_refs: int = 1,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
    ) -> Self:
        return super().__new__(cls, list(tables), num_keep_alive_refs, chunk_length, encoding)

    def configure(
        self,
        column: str,
        num_keep_alive_refs: int | None = None,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        """Set the options of one column.

        Args:
            column: Its path: keys joined by ``/``. It need not exist yet.
            num_keep_alive_refs: How many of its latest values new items may still refer to; as for
                other columns if ``None``.
            chunk_length: How many values a chunk has at most, and never more than are kept, or
                ``"prompt"``; as for other columns if ``None``.
            encoding: How its chunks are stored; as for other columns if ``None``.

        Raises:
            ValueError: If a setting is out of range or unknown.

        Examples:
            >>> from echoic import Server, Table, connect
            >>> with Server(Table("t", capacity=10)) as server:
            ...     writer = connect(server).trajectory_writer(num_keep_alive_refs=50)
            ...     writer.configure("image", encoding="auto")
        """
        super().configure(column, num_keep_alive_refs, chunk_length, encoding)

    def __repr__(self) -> str:
        """Return how much the writer holds."""
        return f"TrajectoryWriter(episode_steps={self.episode_steps}, pending={self.pending})"
