"""Where a server writes its checkpoints, and what it begins with."""

from __future__ import annotations

from echoic.reverb.platform.checkpointers_lib import (
    CheckpointerBase,
    DefaultCheckpointer,
    TempDirCheckpointer,
)

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"]


def default_checkpointer(group: str | None = None) -> CheckpointerBase:  # noqa: ARG001 - upstream's
    """What a server uses that is given none."""
    return TempDirCheckpointer()
