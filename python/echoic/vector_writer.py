"""Write trajectories of environments that step together: one call has the steps of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic import _native
from echoic._writing import Writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from echoic.trajectory_writer import ChunkLength, Encoding

__all__ = ["VectorWriter"]


class VectorWriter(Writes, _native.VectorWriter):
    """Append a step of each of many environments, and make items of each.

    ``client.vector_writer`` makes one. It does the work of a :class:`~echoic.TrajectoryWriter` for
    each environment, with one call for all: each environment has its own episodes, and no item
    mixes two. Leave out environments that did not step with a mask, as vector environments provide
    it. Use a writer in one thread.

    Args:
        tables: The tables that items may go to.
        num_envs: How many environments there are.
        num_keep_alive_refs: How many of an environment's latest steps new items may refer to.
        chunk_length: How many steps a chunk has at most: see :class:`~echoic.TrajectoryWriter`.
        encoding: How chunks are stored: see there.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, Table, connect
        >>> server = Server(Table.queue("pairs", capacity=100))
        >>> with server, connect(server).vector_writer(3, num_keep_alive_refs=2) as writer:
        ...     for step in range(3):
        ...         writer.append_batch({"obs": np.array([0, 10, 20]) + step, "reward": np.ones(3)})
        ...         obs, reward = writer.history["obs"], writer.history["reward"]
        ...         pair = {"obs": obs[-2], "next_obs": obs[-1], "reward": reward[-2]}
        ...         made = writer.create_items("pairs", 1.0, pair)
        ...         writer.end_episode(np.array([False, step == 1, False]))
        ...     writer.flush()
        ...     batch = connect(server).table("pairs").sample(5)
        >>> made
        array([ True, False,  True])
        >>> sorted(batch.data["next_obs"].tolist())
        [1, 2, 11, 21, 22]
    """

    def __new__(
        cls,
        tables: Sequence[_native.Table],
        num_envs: int,
        num_keep_alive_refs: int = 1,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding = "none",
    ) -> Self:
        return super().__new__(
            cls, list(tables), num_envs, num_keep_alive_refs, chunk_length, encoding
        )

    def configure(
        self,
        column: str,
        num_keep_alive_refs: int | None = None,
        chunk_length: ChunkLength | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        """Set the options of one column, as ``TrajectoryWriter.configure``."""
        super().configure(column, num_keep_alive_refs, chunk_length, encoding)

    def __repr__(self) -> str:
        """Return how much the writer holds."""
        return f"VectorWriter(num_envs={self.num_envs}, pending={self.pending})"
