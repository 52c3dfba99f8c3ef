"""The replay buffer of CleanRL's scripts: one import changes.

``from echoic.integrations.cleanrl import ReplayBuffer`` takes the place of
``from cleanrl_utils.buffers import ReplayBuffer``. CleanRL itself is not imported.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from echoic.integrations._baselines import BaselinesBuffer

if TYPE_CHECKING:
    from echoic import Table

__all__ = ["ReplayBuffer", "ReplayBufferSamples"]


class ReplayBufferSamples(NamedTuple):
    """A batch of tensors; all but observations have two axes."""

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any


class ReplayBuffer(BaselinesBuffer):
    """Keep the last transitions, and sample them uniformly.

    Args:
        buffer_size: Number of transitions that fit.
        observation_space: The space of one environment.
        action_space: The space of one environment.
        device: Where batches are. ``"auto"``, and ``"cuda"`` without a GPU, find one.
        n_envs: Number of environments.
        optimize_memory_usage: Whether to store an observation once that is the next one of one step
            and the first of another.
        handle_timeout_termination: Whether values count after episodes of which ``infos`` says that
            a time limit ended them.
        table: A table of any connection with these transitions, which other processes may fill:
            see :meth:`echoic.Table.from_spaces`. Its capacity counts, not ``buffer_size``.
        seed: Seed of the draws. Default: drawn from numpy's, which scripts have seeded.

    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> rb = ReplayBuffer(1000, spaces.Box(-1, 1, (4,)), spaces.Discrete(2), "cpu")
    >>> obs = np.zeros((1, 4), np.float32)
    >>> rb.add(obs, obs, np.array([1]), np.array([0.5]), np.array([False]), [{}])
    >>> data = rb.sample(32)
    >>> data.observations.shape, data.rewards.shape
    (torch.Size([32, 4]), torch.Size([32, 1]))
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        table: Table | None = None,
        seed: int | None = None,
    ) -> None:
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.observation_space = observation_space
        self.action_space = action_space
        self.obs_shape = observation_space.shape or (1,)
        self.action_dim = math.prod(action_space.shape)
        if device == "auto" or torch.device(device).type == "cuda":
            wanted = "cuda" if device == "auto" else device
            device = wanted if torch.cuda.is_available() else "cpu"
        self.device = device
        self.n_envs = n_envs
        self.pos, self.full = 0, False
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self._samples = ReplayBufferSamples
        self._open(table, seed)
