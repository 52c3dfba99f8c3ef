"""Advantages of recorded sequences, by :func:`echoic.primitives.compute_gae`.

Rows are true sequences: consecutive steps of one environment, with the values that the policy had
when it acted. A batch drawn from a replay buffer is no sequence, and has no such advantages.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from echoic.errors import ArgumentError
from echoic.primitives import compute_gae

__all__ = ["GAECalculator"]


class _Discounts(Protocol):
    @property
    def gamma(self) -> float: ...
    @property
    def gae_lambda(self) -> float: ...


class GAECalculator:
    """Computes advantages and returns.

    Args:
        config: Whatever has ``gamma`` and ``gae_lambda``, as a ``PPOConfig`` has.

    >>> from echoic.agents.learners import PPOConfig
    >>> calculator = GAECalculator(PPOConfig(gamma=0.5, gae_lambda=1.0))
    >>> calculator.compute_advantages([[1.0, 1.0]], [[0.0, 0.0]], [[0, 1]])
    (array([[1.5, 1. ]]), array([[1.5, 1. ]]))
    """

    def __init__(self, config: _Discounts) -> None:
        self.config = config

    def compute_advantages(
        self,
        rewards: npt.ArrayLike,
        values: npt.ArrayLike,
        dones: npt.ArrayLike,
        next_values: npt.ArrayLike | None = None,
        *,
        truncated: npt.ArrayLike | None = None,
        final_values: npt.ArrayLike | None = None,
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
        """Advantages and returns of sequences ``(B, T)``.

        Args:
            rewards: ``(B, T)``.
            values: Of the states that the steps began with.
            dones: Which steps terminated an episode, so that nothing follows.
            next_values: ``(B,)``, of the states after the last steps; needed where a sequence ends
                within an episode, and 0 without.
            truncated: Which steps were cut off by a time limit; needs ``final_values``.
            final_values: Of the states after the steps that were cut off.
        """
        rewards = _numbers("rewards", rewards, 2)
        last = np.zeros(len(rewards)) if next_values is None else _numbers("next", next_values, 1)
        advantages, returns = compute_gae(
            rewards,
            _numbers("values", values, 2),
            np.asarray(dones) != 0,
            last,
            self.config.gamma,
            self.config.gae_lambda,
            truncated=None if truncated is None else np.asarray(truncated) != 0,
            final_values=None if final_values is None else _numbers("final", final_values, 2),
            time_axis=1,
        )
        return advantages, returns

    def compute_advantages_single_episode(
        self, rewards: npt.ArrayLike, values: npt.ArrayLike, next_value: float = 0.0
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
        """Of one episode ``(T,)``. ``next_value`` is for one that is cut off; 0 is an end."""
        advantages, returns = compute_gae(
            _numbers("rewards", rewards, 1),
            _numbers("values", values, 1),
            None,
            float(next_value),
            self.config.gamma,
            self.config.gae_lambda,
        )
        return advantages, returns


def _numbers(name: str, given: npt.ArrayLike, axes: int) -> npt.NDArray[np.floating]:
    array = np.asarray(given)
    if array.ndim != axes:
        raise ArgumentError(f"{name}: expected an array of {axes} axes, got shape {array.shape}")
    return array.astype(np.float64) if array.dtype.kind != "f" else array
