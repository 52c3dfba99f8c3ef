"""Choose where a server writes its checkpoints, and which one it starts from."""

from __future__ import annotations

from echoic.reverb.platform.checkpointers_lib import (
    CheckpointerBase,
    DefaultCheckpointer,
    TempDirCheckpointer,
)

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"]


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """Return the checkpointer of a server for which none was given."""
    return TempDirCheckpointer()
