"""CleanRL's buffer, ``cleanrl_utils.buffers`` of a checkout."""

from __future__ import annotations

from cleanrl_utils.buffers import ReplayBuffer as Theirs
from echoic.integrations.cleanrl import ReplayBuffer

from benchmarks.adapters import Case, _baselines


def cases() -> list[Case]:
    """Return the calls to be timed."""
    return _baselines.cases(ReplayBuffer, Theirs)
