"""The steps that a learner of vectors learns from, and their advantages along true sequences.

A step has what the policy said when it acted, the plan it was acted on, and, where a planner is to
learn, what makes the plan again: its window and noise, and the window of the step before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from echoic.errors import ArgumentError
from echoic.primitives import compute_gae

__all__ = ["GAECalculator", "PPOTrainingStep"]


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


@dataclass
class PPOTrainingStep:
    """`B` steps, whose order does not matter any more.

    Attributes:
        states: ``(B, state_dim)``.
        latent_plans: ``(B, latent_dim)``, the plans acted on.
        actions: ``(B,)``.
        rewards: ``(B,)``.
        values: ``(B,)``, what the states were thought to be worth when acting.
        log_probs: ``(B,)``, of the actions, under the policy that acted.
        advantages: ``(B,)``, of the sequences that the steps are from.
        returns: ``(B,)``, targets of values.
        importance_weights: ``(B,)``, for steps that were not drawn evenly.
        windows: ``(B, k + 1, state_dim)``, of which the plans were made.
        masks: ``(B, k + 1)``, which places of a window hold a state.
        plan_noise: ``(B, latent_dim)``, of the plans, in standard deviations.
        previous_windows: ``(B, k + 1, state_dim)``, of the steps before.
        previous_masks: ``(B, k + 1)``.
        pairs: ``(B,)``, where the step before is of the same episode, and its window is right.
        frozen_plans: ``(B,)``, true of steps whose plans are inputs like any other: nothing is
            learned about them, and there are no windows. All steps of a batch, or none.
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
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if len(value) != count:
                raise ArgumentError(f"{field.name} has {len(value)} rows, and states has {count}")

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: Any) -> PPOTrainingStep:
        """Some of the steps."""
        return PPOTrainingStep(
            **{
                field.name: None if value is None else value[index]
                for field in fields(self)
                for value in [getattr(self, field.name)]
            }
        )

    def to(self, device: Any) -> PPOTrainingStep:
        """The same as tensors on a device, numbers in single precision."""
        moved = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                value = torch.as_tensor(value, device=device)
                if value.is_floating_point():
                    value = value.float()
            moved[field.name] = value
        return PPOTrainingStep(**moved)

    @classmethod
    def from_rollout(
        cls,
        gae: Any,
        *,
        states: Any,
        latent_plans: Any,
        actions: Any,
        rewards: Any,
        values: Any,
        log_probs: Any,
        dones: Any,
        starts: Any,
        next_values: Any,
        truncated: Any = None,
        final_values: Any = None,
        windows: Any = None,
        masks: Any = None,
        plan_noise: Any = None,
    ) -> PPOTrainingStep:
        """The steps of a rollout, with advantages along its true sequences.

        All arguments are ``(T, N, ...)``, time first, but ``next_values`` ``(N,)``.

        Args:
            gae: A :class:`~echoic.agents.learners.GAECalculator`.
            states: The states acted on.
            latent_plans: The plans acted on.
            actions: What was done.
            rewards: What it earned.
            values: Of the states, when acting.
            log_probs: Of the actions, when acting.
            dones: Whether the step terminated its episode.
            starts: Whether an episode starts with the state.
            next_values: Of the states after the last steps.
            truncated: Whether the step was cut off by a time limit.
            final_values: Of the states after such steps.
            windows: Of which the plans were made, if the planner is to learn.
            masks: Which places of the windows hold a state.
            plan_noise: Of the plans.
        """
        advantages, returns = gae.compute_advantages(
            *(_by_row(one) for one in (rewards, values, dones)),
            _array(next_values),
            truncated=None if truncated is None else _by_row(truncated),
            final_values=None if final_values is None else _by_row(final_values),
        )
        previous: dict[str, Any] = {}
        if windows is not None:
            # The first step of the rollout has the one before it elsewhere, and pairs with nothing.
            pairs = ~torch.as_tensor(starts, dtype=torch.bool)
            pairs[0] = False
            windows = torch.as_tensor(windows)
            masks = None if masks is None else torch.as_tensor(masks)
            previous = {
                "previous_windows": torch.cat([windows[:1], windows[:-1]]),
                "previous_masks": None if masks is None else torch.cat([masks[:1], masks[:-1]]),
                "pairs": pairs,
            }
        rows = {
            "states": states,
            "latent_plans": latent_plans,
            "actions": actions,
            "rewards": rewards,
            "values": values,
            "log_probs": log_probs,
            "advantages": advantages.T,
            "returns": returns.T,
            "windows": windows,
            "masks": masks,
            "plan_noise": plan_noise,
            **previous,
        }
        return cls(
            **{
                name: None if value is None else torch.as_tensor(value).flatten(0, 1)
                for name, value in rows.items()
            }
        )


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _by_row(value: Any) -> Any:
    """``(T, N)`` as ``(N, T)``, in numpy."""
    return np.ascontiguousarray(_array(value).T)
