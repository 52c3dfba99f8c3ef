"""Choose where a server writes its checkpoints, and which one it starts from."""

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
        """Return the object that a server uses."""


class DefaultCheckpointer(CheckpointerBase):
    """Store checkpoints below a directory.

    Args:
        path: The directory; or a path that ``client.checkpoint()`` returned. A server starts from
            the newest checkpoint in it.
        group: Unused; it is for file systems with groups of users.
        fallback_checkpoint_path: A checkpoint to start from if the directory has none.
    """

    def __init__(
        self, path: str, group: str = "", fallback_checkpoint_path: str | None = None
    ) -> None:
        self.path = path
        self.group = group
        self.fallback_checkpoint_path = fallback_checkpoint_path

    def internal_checkpointer(self) -> pybind.Checkpointer:
        """Return the object that a server uses."""
        return pybind.create_default_checkpointer(
            self.path, self.group, self.fallback_checkpoint_path
        )


class TempDirCheckpointer(DefaultCheckpointer):
    """Store checkpoints in a new temporary directory.

    Checkpoints are kept. A directory without any is removed when the process ends, and not before,
    since a server that writes into it may outlive this object.
    """

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp(prefix="echoic-"))
        atexit.register(_remove_if_empty, self.path, os.getpid())


def _remove_if_empty(path: str, owner: int) -> None:
    # A forked child also runs the parent's exit functions.
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # noqa: PTH106 - the path is a string
