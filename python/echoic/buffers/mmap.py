"""A replay buffer with its newest transitions in memory and all others in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic import _native
from echoic._progress import working
from echoic.buffers._common import BufferStats, Common, seed_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["MmapReplayBuffer"]


class MmapReplayBuffer(_native.MmapReplayBuffer, Common):
    """Keep the last transitions, the newest in memory and all others in a file; sample uniformly.

    Fields, ``add``, ``extend`` and ``sample`` are those of :class:`echoic.ReplayBuffer`, which with
    the same seed and capacity makes the same draws.

    Transitions are written to the file in blocks, by the thread that adds the last one of a block.
    No thread is started. A slow disk makes ``add`` slow. A full disk makes it raise
    ``StorageError`` when there is no room in memory either; nothing in memory is lost, and ``add``
    works again when the disk has room.

    Close the buffer when it is not needed any more, or use it as a context manager. Closing removes
    the file unless ``keep`` is true; so does the end of the interpreter, or of the last reference.
    :meth:`open` opens the file of a process that was killed.

    Args:
        example: One transition, as a dict. Only dtypes and shapes matter.
        capacity: Number of transitions that fit. The oldest is removed when another is added.
        cold_path: Path of the file to create. It must not exist.
        hot_capacity: Number of transitions in memory; the lesser of 10,000 and ``capacity`` when
            ``None``. While they are written there is room for a sixteenth more, at least 16.
        cast: As in :class:`echoic.ReplayBuffer`.
        seed: Seed of the buffer's own draws; random when ``None``.
        keep: Whether closing keeps the file, with all transitions. Default: ``False``.
        overwrite: Whether to replace the file of an earlier buffer. A file that is in use, or not
            of a buffer, is still an error and is not changed. Default: ``False``.
        preallocate: Whether to allocate the whole file now, so that the disk can't be full later.

    Raises:
        StorageError: If the file can't be created.
        ReplayError: If a number is out of range.

    >>> import tempfile, numpy as np
    >>> path = tempfile.mkdtemp() + "/replay_cold.bin"
    >>> example = {"obs": np.zeros(84 * 84 * 4, np.float32), "rewards": np.float32(0)}
    >>> with MmapReplayBuffer(example, 1000, path, hot_capacity=10) as buffer:
    ...     for step in range(50):
    ...         buffer.add({**example, "rewards": float(step)})
    ...     batch = buffer.sample(32, seed=42)
    >>> batch["obs"].shape, batch["rewards"][:4]
    ((32, 28224), array([40., 15., 49., 35.], dtype=float32))
    """

    _seed: int

    def __new__(
        cls,
        example: Mapping[str, Any],
        capacity: int,
        cold_path: str | os.PathLike[str],
        *,
        hot_capacity: int | None = None,
        cast: bool = True,
        seed: int | None = None,
        keep: bool = False,
        overwrite: bool = False,
        preallocate: bool = False,
    ) -> Self:
        seed = seed_of(seed)
        self = super().__new__(
            cls,
            cold_path,
            hot_capacity,
            capacity,
            example=example,
            cast=cast,
            seed=seed,
            keep=keep,
            overwrite=overwrite,
            preallocate=preallocate,
        )
        self._seed = seed
        return self

    @classmethod
    def open(
        cls,
        cold_path: str | os.PathLike[str],
        *,
        hot_capacity: int | None = None,
        example: Mapping[str, Any] | None = None,
        cast: bool = True,
        seed: int | None = None,
        keep: bool = True,
    ) -> Self:
        """Open the file of a buffer that was closed with ``keep``, or whose process has ended.

        The file of a killed process is read completely, and has all transitions that were written
        before. Those that were only in memory are lost, unless :meth:`flush` was called.

        Args:
            cold_path: The file, which also has the fields and the capacity.
            hot_capacity: Number of transitions in memory; as before when ``None``.
            example: One transition. Needed only if it has classes of your own, of which the file
                has just the names of fields.
            cast: As in :class:`echoic.ReplayBuffer`.
            seed: Seed of the buffer's own draws; random when ``None``.
            keep: Whether closing keeps the file. Default: ``True``.

        Raises:
            StorageError: If the file does not exist, is damaged or is not of a buffer. It is not
                changed.
            SpecError: If the file has other fields than the example.

        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/replay.bin"
        >>> with MmapReplayBuffer({"obs": 0}, 100, path, hot_capacity=2, keep=True) as buffer:
        ...     for step in range(10):
        ...         buffer.add({"obs": step})
        >>> with MmapReplayBuffer.open(path, keep=False) as buffer:
        ...     len(buffer)
        10
        """
        seed = seed_of(seed)
        # Not by the constructor of this class, which creates a new file.
        with working(f"opening {cold_path}"):
            self = _native.MmapReplayBuffer.__new__(
                cls,
                cold_path,
                hot_capacity,
                example=example,
                cast=cast,
                seed=seed,
                keep=keep,
                reopen=True,
            )
        self._seed = seed
        return self

    def stats(self) -> BufferStats:
        """Return the buffer's statistics.

        Raises:
            ClosedError: If the buffer is closed.
        """
        sizes = len(self), self.capacity, self.nbytes
        return BufferStats(*sizes, self._seed, written=self.written)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
