"""Stable-Baselines3's buffers."""

from __future__ import annotations

from echoic import ReplayBuffer
from echoic.integrations import stable_baselines3 as ours
from stable_baselines3.common import buffers as theirs

from benchmarks.adapters import Case, _baselines
from benchmarks.adapters._baselines import CAPACITY, SPACES


def cases() -> list[Case]:
    """Return the calls to be timed."""
    bare = ReplayBuffer.from_spaces(*SPACES, CAPACITY, n_step=3)
    steps = [kind.NStepReplayBuffer(CAPACITY, *SPACES, "cpu") for kind in (ours, theirs)]
    _baselines.fill(bare, *steps)
    return [
        *_baselines.cases(ours.ReplayBuffer, theirs.ReplayBuffer),
        _baselines.sampling(256, bare, *steps, more=", 3 steps"),
    ]
