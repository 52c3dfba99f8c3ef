"""A buffer with its newest transitions in memory and all others in a file."""

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
    """The last transitions, drawn evenly: the newest from memory, all others from a file.

    Fields, ``add``, ``extend`` and ``sample`` are those of :class:`echoic.ReplayBuffer`, which with
    the same seed and capacity makes the same draws.

    Transitions are written to the file block by block, by the thread that adds the one that
    completes a block. No thread is started: a slow disk slows down ``add``, and a full one makes it
    raise ``StorageError`` when there is no room in memory either. Nothing that is in memory is lost
    then; when the disk has room again, the next ``add`` goes on.

    Close the buffer when it is not needed any more, or use it as a context manager. Closing removes
    the file, unless it is to be kept. So do the end of the interpreter and of the last reference.
    What a process that was killed leaves behind is opened with :meth:`open`.

    Args:
        example: One transition, as a dict. Its values don't matter.
        capacity: Transitions that fit. The oldest is removed when another is added.
        cold_path: Where the file is made. One that is there is an error.
        hot_capacity: Transitions in memory; 10,000, or ``capacity`` if that is less, when ``None``.
            A sixteenth more, but at least 16, has room there while they are written.
        cast: As in :class:`echoic.ReplayBuffer`.
        seed: Of the buffer's own draws; random when ``None``.
        keep: Whether closing leaves the file, with all transitions in it.
        overwrite: Begin anew in a file of an earlier buffer that is there. One that is not a
            buffer's, or in use, is still an error, and stays as it is.
        preallocate: Take the room on the disk now: then it can't be full later.

    Raises:
        StorageError: the file can't be made.
        ReplayError: a number is out of its range.

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
        """Goes on with the file of a buffer that was closed and kept, or whose process has died.

        The file of a process that has died is read as a whole, and has all transitions that were
        completely written. Those that were only in memory are gone: call :meth:`flush` to have none
        of these.

        Args:
            cold_path: The file. It has the fields and the capacity in it.
            hot_capacity: Transitions in memory; as before when ``None``.
            example: One transition. Needed only where observations are of classes of your own, of
                which the file has just the names of fields.
            cast: As in :class:`echoic.ReplayBuffer`.
            seed: Of the buffer's own draws; random when ``None``.
            keep: Whether closing leaves the file.

        Raises:
            StorageError: there is no such file, it is no buffer's, or it is damaged. It stays as
                it is.
            SpecError: the file has other fields than the example.

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
        # The native class takes this from nobody else: what a constructor gets is made anew.
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
        """Return the buffer's numbers.

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
