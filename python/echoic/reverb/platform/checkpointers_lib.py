"""Where a server writes its checkpoints, and what it begins with."""

from __future__ import annotations

import abc
import atexit
import contextlib
import os
import tempfile

from echoic.reverb import pybind

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer"]


class CheckpointerBase(metaclass=abc.ABCMeta):
    """Base of checkpointers."""

    @abc.abstractmethod
    def internal_checkpointer(self) -> pybind.Checkpointer:
        """What a server uses."""


class DefaultCheckpointer(CheckpointerBase):
    """Checkpoints below a directory.

    Args:
        path: The directory. A server begins with the newest checkpoint in it; a path that
            ``client.checkpoint()`` returned does as well.
        group: Unused; for groups of users of file systems that have them.
        fallback_checkpoint_path: A checkpoint to begin with when the directory has none.
    """

    def __init__(
        self, path: str, group: str = "", fallback_checkpoint_path: str | None = None
    ) -> None:
        self.path = path
        self.group = group
        self.fallback_checkpoint_path = fallback_checkpoint_path

    def internal_checkpointer(self) -> pybind.Checkpointer:
        """What a server uses."""
        return pybind.create_default_checkpointer(
            self.path, self.group, self.fallback_checkpoint_path
        )


class TempDirCheckpointer(DefaultCheckpointer):
    """Checkpoints in a new directory for temporary files.

    Checkpoints stay. A directory without any is removed when the process ends, and not before: a
    server may write into it that outlives this object.
    """

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp(prefix="echoic-"))
        atexit.register(_remove_if_empty, self.path, os.getpid())


def _remove_if_empty(path: str, owner: int) -> None:
    # A child that was forked has the parent's, too.
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # noqa: PTH106 - a path of texts
