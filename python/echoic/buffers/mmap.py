"""A buffer with its newest transitions in memory and all others in a file."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from echoic import _native

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["MmapReplayBuffer"]


def _seed(seed: int | None) -> int:
    return secrets.randbits(64) if seed is None else seed


class MmapReplayBuffer(_native.MmapReplayBuffer):
    """The last transitions, drawn evenly: the newest from memory, all others from a file.

    Fields, ``push``, ``extend`` and ``sample`` are those of :class:`echoic.ReplayBuffer`, which
    with the same seed and ``capacity=total_capacity`` makes the same draws.

    Transitions are written to the file block by block, by whoever pushes the one that completes a
    block. No thread is started: a slow disk slows down ``push``, and a full one makes it raise
    ``StorageError`` when there is no room in memory either. Nothing that is in memory is lost then;
    when the disk has room again, the next ``push`` goes on.

    Close the buffer when it is not needed any more, or use it as a context manager. Closing removes
    the file, unless it is to be kept. So do the end of the interpreter and of the last reference.
    What a process that was killed leaves behind is opened with :meth:`open`.

    Args:
        hot_capacity: How many transitions are in memory. A sixteenth more, but at least 16, has
            room there while they are written.
        total_capacity: How many transitions are kept. The oldest goes when another comes.
        obs_dim: Width of an observation.
        act_dim: Width of an action.
        cold_path: Where the file is made. One that is there is an error.
        example: One transition, as a dict, in place of the widths. Its values don't matter.
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
    >>> obs = np.zeros(84 * 84 * 4, np.float32)
    >>> with MmapReplayBuffer(
    ...     hot_capacity=10, total_capacity=1000, obs_dim=84 * 84 * 4, act_dim=1, cold_path=path
    ... ) as buffer:
    ...     for step in range(50):
    ...         buffer.push(obs, [0.0], float(step), False, False, obs)
    ...     batch = buffer.sample(32, seed=42)
    >>> batch["obs"].shape, batch["rewards"][:4]
    ((32, 28224), array([40., 15., 49., 35.], dtype=float32))
    """

    def __new__(  # noqa: D102, PLR0913 - the class is documented; settings
        cls,
        hot_capacity: int,
        total_capacity: int,
        obs_dim: int | None = None,
        act_dim: int | None = None,
        cold_path: str | os.PathLike[str] | None = None,
        *,
        example: Mapping[str, Any] | None = None,
        cast: bool = True,
        seed: int | None = None,
        keep: bool = False,
        overwrite: bool = False,
        preallocate: bool = False,
    ) -> Self:
        if cold_path is None:
            raise TypeError("give cold_path: where the file is made")
        return super().__new__(
            cls,
            cold_path,
            hot_capacity,
            total_capacity,
            obs_dim,
            act_dim,
            example=example,
            cast=cast,
            seed=_seed(seed),
            keep=keep,
            overwrite=overwrite,
            preallocate=preallocate,
        )

    @classmethod
    def open(  # noqa: PLR0913 - settings
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
            cold_path: The file. It has the fields and the total capacity in it.
            hot_capacity: How many transitions are in memory; as before when ``None``.
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
        >>> with MmapReplayBuffer(2, 100, 1, 1, path, keep=True) as buffer:
        ...     for step in range(10):
        ...         buffer.push([step], [0], 0.0, False, False, [step + 1])
        >>> with MmapReplayBuffer.open(path, keep=False) as buffer:
        ...     len(buffer)
        10
        """
        # The native class takes this from nobody else: what a constructor gets is made anew.
        return _native.MmapReplayBuffer.__new__(
            cls,
            cold_path,
            hot_capacity,
            example=example,
            cast=cast,
            seed=_seed(seed),
            keep=keep,
            reopen=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
