"""Tianshou's buffers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from echoic import PrioritizedReplayBuffer, ReplayBuffer
from echoic.integrations import tianshou as ours
from tianshou import data as theirs
from tianshou.data import Batch

from benchmarks.adapters import Case

CAPACITY = 100_000
PRIORITIES = {"alpha": 0.6, "beta": 0.4}


def cases() -> list[Case]:
    """Return the calls to be timed."""
    found = []
    # Observations of HalfCheetah; then frames of Atari, in a smaller buffer.
    for name, shape, dtype, capacity in (
        ("", (17,), np.float32, CAPACITY),
        (", frames", (4, 84, 84), np.uint8, 2_000),
    ):
        for envs in (1, 8):
            fields, batch = steps(envs, shape, dtype)
            bare = ReplayBuffer({key: value[0] for key, value in fields.items()}, capacity, seed=0)
            buffers = [kind.VectorReplayBuffer(capacity, envs) for kind in (ours, theirs)]
            fill(capacity, envs, fields, batch, bare, *buffers)
            adds = [partial(bare.extend, fields), *(partial(one.add, batch) for one in buffers)]
            found.append(Case(f"add, {envs} environments{name}", *adds))
            samples = (partial(one.sample, 256) for one in (bare, *buffers))
            found.append(Case(f"sample(256), {envs} envs{name}", *samples))
    fields, batch = steps(8, (17,), np.float32)
    example = {key: value[0] for key, value in fields.items()}
    bare = PrioritizedReplayBuffer(example, CAPACITY, alpha=0.6, seed=0)
    buffers = [
        kind.PrioritizedVectorReplayBuffer(CAPACITY, 8, **PRIORITIES) for kind in (ours, theirs)
    ]
    fill(CAPACITY, 8, fields, batch, bare, *buffers)
    samples = (partial(one.sample, 256) for one in buffers)
    found.append(Case("prioritized sample(256)", partial(bare.sample, 256, beta=0.4), *samples))
    return found


def steps(envs: int, shape: tuple[int, ...], dtype: Any) -> tuple[dict[str, Any], Batch]:
    """Return a step of environments in both forms."""
    rng = np.random.default_rng(7)
    obs, next_obs = (rng.integers(0, 255, (envs, *shape)).astype(dtype) for _ in range(2))
    actions = rng.uniform(-1, 1, (envs, 6)).astype(np.float32)
    rewards, ends = np.ones(envs), np.zeros(envs, bool)
    fields = {
        "obs": obs,
        "actions": actions,
        "rewards": rewards,
        "terminated": ends,
        "truncated": ends,
        "next_obs": next_obs,
    }
    info = Batch(env_id=np.arange(envs))
    batch = Batch(
        obs=obs,
        act=actions,
        rew=rewards,
        terminated=ends,
        truncated=ends,
        obs_next=next_obs,
        info=info,
        policy=Batch(),
    )
    return fields, batch


def fill(
    capacity: int, envs: int, fields: dict[str, Any], batch: Batch, bare: Any, *buffers: Any
) -> None:
    """Fill all of them with the same steps."""
    for _ in range(capacity // envs):
        bare.extend(fields)
        for buffer in buffers:
            buffer.add(batch)
