"""The work of the buffers of Stable-Baselines3 and of CleanRL, which have the same methods."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from echoic import ReplayBuffer
from gymnasium import spaces

from benchmarks.adapters import Case

# Those of HalfCheetah.
SPACES = (spaces.Box(-1, 1, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32))
CAPACITY = 100_000


def cases(ours: Any, theirs: Any) -> list[Case]:
    """Return the calls of two classes, with 1 and with 8 environments."""
    found = []
    for n_envs in (1, 8):
        bare = ReplayBuffer.from_spaces(*SPACES, CAPACITY)
        buffers = [kind(CAPACITY, *SPACES, "cpu", n_envs) for kind in (ours, theirs)]
        fill(bare, *buffers, n_envs=n_envs)
        fields, step = step_of(n_envs)
        sides = [partial(bare.extend, fields), *(partial(each.add, *step) for each in buffers)]
        found.append(Case(f"add, {n_envs} environments", *sides))
    return found + [sampling(n, bare, *buffers) for n in (32, 256, 1024)]


def sampling(n: int, *buffers: Any, more: str = "") -> Case:
    """Return the call that samples ``n`` transitions."""
    return Case(f"sample({n}){more}", *(partial(each.sample, n) for each in buffers))


def step_of(n_envs: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return a step of environments in both forms."""
    rng = np.random.default_rng(7)
    obs, next_obs = rng.uniform(-1, 1, (2, n_envs, 17)).astype(np.float32)
    actions = rng.uniform(-1, 1, (n_envs, 6)).astype(np.float32)
    rewards, done = np.ones(n_envs, np.float32), np.zeros(n_envs, np.bool_)
    fields = {
        "obs": obs,
        "actions": actions,
        "rewards": rewards,
        "terminated": done,
        "truncated": done,
        "next_obs": next_obs,
    }
    infos = [{"TimeLimit.truncated": False} for _ in range(n_envs)]
    return fields, (obs, next_obs, actions, rewards, done, infos)


def fill(bare: Any, *buffers: Any, n_envs: int = 1, steps: int = 2000) -> None:
    """Put the same steps into all of them."""
    fields, step = step_of(n_envs)
    for _ in range(steps):
        bare.extend(fields)
        for each in buffers:
            each.add(*step)
