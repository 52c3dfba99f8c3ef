"""Steps that a learner of vectors learns from, and their advantages along true sequences.

A step has the log-probability and value of when it was taken, the plan it was acted on, and, where
a planner learns, what rebuilds the plan: its window and noise, and the window of the step before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from echoic.errors import ArgumentError
from echoic.primitives import compute_gae

__all__ = ["GAECalculator", "PPOTrainingStep"]


class GAECalculator:
    """Computes advantages and returns.

    Args:
        config: Any object with ``gamma`` and ``gae_lambda``, such as a ``PPOConfig``.

    >>> from echoic.agents.training import PPOConfig
    >>> calculator = GAECalculator(PPOConfig(gamma=0.5, gae_lambda=1.0))
    >>> calculator.compute_advantages([[1.0, 1.0]], [[0.0, 0.0]], [[0, 1]])
    (array([[1.5, 1. ]]), array([[1.5, 1. ]]))
    """

    def __init__(self, config: Any) -> None:
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
        """Return advantages and returns of sequences ``(B, T)``.

        Args:
            rewards: ``(B, T)``.
            values: ``(B, T)``, of the states that the steps started in.
            dones: Which steps terminated an episode, so that nothing follows.
            next_values: ``(B,)``, of the states after the last steps; needed where a sequence ends
                within an episode. Default: 0.
            truncated: Which steps were cut off by a time limit; needs ``final_values``.
            final_values: Values of the states after the steps that were cut off.
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
        """Return those of one episode ``(T,)``; ``next_value`` is for one that is cut off."""
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


@dataclass
class PPOTrainingStep:
    """`B` steps in any order.

    Attributes:
        states: ``(B, state_dim)``.
        latent_plans: ``(B, latent_dim)``, the plans acted on.
        actions: ``(B,)``.
        rewards: ``(B,)``.
        values: ``(B,)``, of the states when acting.
        log_probs: ``(B,)``, of the actions, under the policy that acted.
        advantages: ``(B,)``, along the sequences that the steps are from.
        returns: ``(B,)``, targets of values.
        importance_weights: ``(B,)``, for steps that were not drawn evenly.
        windows: ``(B, k + 1, state_dim)``, of the plans; ``masks`` ``(B, k + 1)``, which of their
            places hold a state.
        plan_noise: ``(B, latent_dim)``, of the plans, in standard deviations.
        previous_windows: Windows of the steps before, and ``previous_masks``.
        pairs: ``(B,)``, where the step before is of the same episode, and its window is right.
        frozen_plans: ``(B,)``, true of steps whose plans are inputs like any other: the planner
            does not learn from them, and there are no windows. All steps of a batch, or none.
        action_masks: ``(B, action_dim)``, which actions there were to choose from.
    """

    states: Any
    latent_plans: Any
    actions: Any
    rewards: Any
    values: Any
    log_probs: Any
    advantages: Any
    returns: Any
    importance_weights: Any = None
    windows: Any = None
    masks: Any = None
    plan_noise: Any = None
    previous_windows: Any = None
    previous_masks: Any = None
    pairs: Any = None
    frozen_plans: Any = None
    action_masks: Any = None

    def __post_init__(self) -> None:
        count = len(self.states)
        for name, value in vars(self).items():
            if value is not None and len(value) != count:
                raise ArgumentError(f"{name} has {len(value)} rows, and states has {count}")

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: Any) -> PPOTrainingStep:
        """Return some of the steps."""
        return PPOTrainingStep(
            **{name: None if one is None else one[index] for name, one in vars(self).items()}
        )

    def to(self, device: Any) -> PPOTrainingStep:
        """Return the steps as tensors on a device, numbers in single precision."""
        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            moved[name] = None if value is None else torch.as_tensor(value, device=device)
            if value is not None and moved[name].is_floating_point():
                moved[name] = moved[name].float()
        return PPOTrainingStep(**moved)

    @classmethod
    def from_rollout(
        cls,
        gae: GAECalculator,
        *,
        rewards: Any,
        values: Any,
        dones: Any,
        starts: Any,
        next_values: Any,
        truncated: Any = None,
        final_values: Any = None,
        windows: Any = None,
        masks: Any = None,
        **columns: Any,
    ) -> PPOTrainingStep:
        """Make steps of a rollout, with advantages along its true sequences.

        All arguments are ``(T, N, ...)``, time first, but ``next_values`` ``(N,)``.

        Args:
            gae: Computes the advantages.
            rewards: Rewards of the steps.
            values: Values of the states, when acting.
            dones: Whether the step terminated its episode.
            starts: Whether an episode starts with the state.
            next_values: Values of the states after the last steps.
            truncated: Whether the step was cut off by a time limit.
            final_values: Values of the states after such steps.
            windows: Windows of the plans, if the planner is to learn.
            masks: Which places of the windows hold a state.
            **columns: ``states``, ``latent_plans``, ``actions`` and ``log_probs``, and optionally
                ``plan_noise`` and other fields of this class.
        """
        advantages, returns = gae.compute_advantages(
            _by_row(rewards),
            _by_row(values),
            _by_row(dones),
            _array(next_values),
            truncated=None if truncated is None else _by_row(truncated),
            final_values=None if final_values is None else _by_row(final_values),
        )
        if windows is not None:
            # The step before the first one is in another rollout: it has no pair.
            pairs = ~torch.as_tensor(starts, dtype=torch.bool)
            pairs[0] = False
            columns["pairs"] = pairs
            for name, one in (("windows", windows), ("masks", masks)):
                if one is not None:
                    columns[name] = rows = torch.as_tensor(one)
                    columns[f"previous_{name}"] = torch.cat([rows[:1], rows[:-1]])
        columns |= {"rewards": rewards, "values": values}
        columns |= {"advantages": advantages.T, "returns": returns.T}
        return cls(
            **{
                name: torch.as_tensor(one).flatten(0, 1)
                for name, one in columns.items()
                if one is not None
            }
        )


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _by_row(value: Any) -> Any:
    """Return ``(T, N)`` as ``(N, T)``, in numpy."""
    return np.ascontiguousarray(_array(value).T)
