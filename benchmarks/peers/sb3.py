"""stable-baselines3 as an engine of one process, which has a uniform buffer.

It takes one step of an environment a call, and has no call for many. It keeps one flag, whether an
episode ended otherwise than by its time limit, and gives no other back.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.local.engine import Engine, Plan
from benchmarks.local.items import NAMES, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree


class StableBaselines(Engine):
    """The peer."""

    name = "stable-baselines3"

    def store(self, plan: Plan) -> Buffer:
        """Make a buffer."""
        if plan.hot or plan.prioritized or plan.length > 1:
            raise self.missing(f"buffer of this kind: {plan}")
        return Buffer(plan)


class Buffer:
    """A replay buffer of one environment."""

    indices = "indices"
    actions = "actions"

    def __init__(self, plan: Plan) -> None:
        """Make one with the spaces of the columns."""
        buffers = importlib.import_module("stable_baselines3.common.buffers")
        self._rows = Rows(plan.kind)
        example = self._rows.example
        self._buffer = buffers.ReplayBuffer(
            plan.capacity, _space(example["obs"]), _space(example["actions"]), device="cpu"
        )

    def push(
        self,
        obs: Array,
        action: Array,
        reward: float,
        terminated: bool,
        truncated: bool,
        next_obs: Array,
    ) -> None:
        """Add one, as its collector does."""
        infos = [{"TimeLimit.truncated": truncated and not terminated}]
        self._buffer.add(obs, next_obs, action, reward, terminated or truncated, infos)

    def extend(self, columns: Tree) -> None:
        """Add one after the other."""
        for transition in zip(*(columns[name] for name in NAMES), strict=True):
            self.push(*transition)

    def draws(self, size: int) -> Callable[[], Any]:
        """Draw by numpy's generator, into tensors."""
        return partial(self._buffer.sample, size)

    def columns(self, drawn: Any) -> Tree:
        """Return what was drawn; the flag that is not there is the one that is due."""
        numbers = self._rows.numbers(
            {"obs": drawn.observations.numpy(), "actions": drawn.actions.numpy()}
        )
        return {
            "obs": drawn.observations.numpy(),
            "actions": drawn.actions.numpy(),
            "rewards": drawn.rewards.numpy()[:, 0],
            "terminated": drawn.dones.numpy()[:, 0].astype(np.bool_),
            "truncated": self._rows.columns(numbers)["truncated"],
            "next_obs": drawn.next_observations.numpy(),
        }

    def update(self, indices: Array, priorities: Array) -> None:
        """Do nothing: all are alike."""

    def __len__(self) -> int:
        """How many transitions are stored."""
        return int(self._buffer.size())

    def close(self) -> None:
        """Forget the buffer."""
        self._buffer = None


def _space(leaf: Array) -> Any:
    """Describe a column as Gymnasium does."""
    spaces = importlib.import_module("gymnasium.spaces")
    limits = (-np.inf, np.inf) if leaf.dtype.kind == "f" else _limits(leaf.dtype)
    return spaces.Box(*limits, leaf.shape, leaf.dtype)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


ENGINE = StableBaselines()
