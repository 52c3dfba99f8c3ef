"""IMPALA's learner: steps of older policies, corrected by V-trace.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures" (2018). The targets are :func:`echoic.primitives.compute_vtrace`'s; this adds the
loss, and the networks, which are PPO's.

Steps come as whole sequences, since the correction runs back along them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from echoic.agents.devices import resolve
from echoic.agents.learners import checkpoint, gradients
from echoic.agents.learners.actor_critic import ActorCritic
from echoic.agents.learners.steps import PPOTrainingStep
from echoic.errors import ArgumentError
from echoic.primitives import compute_vtrace

if TYPE_CHECKING:
    import os

__all__ = ["IMPALAConfig", "IMPALALearner", "IMPALASequences"]

_KIND = "IMPALA learner"


@dataclass(frozen=True)
class IMPALAConfig:
    """Settings of IMPALA.

    Attributes:
        learning_rate: Of Adam, for policy and values.
        gamma: The discount.
        rho_bar: The largest weight of a step's own error.
        c_bar: The largest weight with which later errors count.
        trace_lambda: With what these weights are multiplied.
        value_loss_coef: Weight of the values' loss.
        entropy_coef: Weight of the policy's entropy, which is rewarded.
        max_grad_norm: To what length a gradient is cut.
    """

    learning_rate: float = 3e-4
    gamma: float = 0.99
    rho_bar: float = 1.0
    c_bar: float = 1.0
    trace_lambda: float = 1.0
    value_loss_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "rho_bar", "c_bar"):
            if not getattr(self, name) > 0.0:
                raise ArgumentError(f"{name} must be above 0, got {getattr(self, name)!r}")
        if not math.isfinite(self.learning_rate):
            raise ArgumentError(f"learning_rate must be finite, got {self.learning_rate!r}")
        for name in ("gamma", "trace_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ArgumentError(f"{name} must be from 0 to 1, got {getattr(self, name)!r}")
        for name in ("value_loss_coef", "entropy_coef"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ArgumentError(f"{name} must be at least 0 and finite, got {value!r}")


@dataclass
class IMPALASequences:
    """`N` sequences of `T` consecutive steps; all arrays are ``(T, N, ...)``, time first.

    Attributes:
        states: ``(T, N, state_dim)``.
        latent_plans: ``(T, N, latent_dim)``, the plans acted on.
        actions: What was done.
        rewards: What it earned.
        log_probs: Of the actions, under the policy that acted.
        dones: Whether the step terminated its episode.
        last_states: ``(N, state_dim)``, the states after the last steps.
        last_plans: ``(N, latent_dim)``, the plans there.
        windows: ``(T, N, k + 1, state_dim)``, if a planner is to learn.
        masks: ``(T, N, k + 1)``.
        plan_noise: ``(T, N, latent_dim)``.
        starts: ``(T, N)``, whether an episode starts with the state; needed with windows.
        truncated: Whether the step was cut off by a time limit.
        final_states: ``(T, N, state_dim)``, the states after such steps.
        final_plans: ``(T, N, latent_dim)``, the plans there.
    """

    states: Any
    latent_plans: Any
    actions: Any
    rewards: Any
    log_probs: Any
    dones: Any
    last_states: Any
    last_plans: Any
    windows: Any = None
    masks: Any = None
    plan_noise: Any = None
    starts: Any = None
    truncated: Any = None
    final_states: Any = None
    final_plans: Any = None


class IMPALALearner:
    """Trains a policy, its values, and the planner it acts with, from older policies' sequences.

    Args:
        state_dim: Numbers of a state.
        action_dim: How many actions there are.
        latent_dim: Numbers of a plan.
        config: All other settings.
        device: Where the networks live; CUDA that is not there is the CPU, with a warning.
        planner: As for :class:`~echoic.agents.learners.PPOLearner`.
        hidden_dim: The width of the networks, where the planner does not say.
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        latent_dim: int,
        config: IMPALAConfig,
        device: Any = "cuda",
        *,
        planner: Any = None,
        hidden_dim: int = 512,
    ) -> None:
        self.config = config
        self.device = resolve(device)
        self.networks = ActorCritic(
            state_dim, action_dim, latent_dim, self.device, planner, hidden_dim
        )
        self.policy_network = self.networks.policy
        self.value_network = self.networks.value
        self.optimizer = torch.optim.Adam(self.networks.parameter_groups(config.learning_rate))

    def update(self, sequences: IMPALASequences) -> dict[str, float]:
        """One step of the optimizer on whole sequences; returns what happened.

        Raises:
            FloatingPointError: The gradient is no number. The step was not made.
        """
        config = self.config
        steps, shape = self._flat(sequences)
        found = self.networks.evaluate(steps)
        targets, advantages = self._targets(sequences, steps, found, shape)
        policy_loss = -(found.chosen * advantages).mean()
        value_loss = 0.5 * (found.values - targets).square().mean()
        entropy = found.entropy.mean()
        loss = (
            policy_loss
            + config.value_loss_coef * value_loss
            - config.entropy_coef * entropy
            + found.plan_cost
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = gradients.step(self.optimizer, self.networks.parameters(), config.max_grad_norm)
        self.networks.after_step(found)
        ratio = (found.chosen.detach() - steps.log_probs).exp()
        return {
            "policy_loss": float(policy_loss.detach()),
            "value_loss": float(value_loss.detach()),
            "entropy": float(entropy.detach()),
            "plan_divergence": float(found.plan_divergence),
            "mean_ratio": float(ratio.mean()),
            "clipped": float((ratio > config.rho_bar).float().mean()),
            "grad_norm": norm,
        }

    def compute_targets(self, sequences: IMPALASequences) -> tuple[Any, Any]:
        """V-trace's targets of values, and advantages, both ``(T, N)``; neither has a gradient."""
        steps, shape = self._flat(sequences)
        with torch.no_grad():
            found = self.networks.evaluate(steps)
        targets, advantages = self._targets(sequences, steps, found, shape)
        return targets.view(shape), advantages.view(shape)

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write networks and optimizer; the planner's too."""
        checkpoint.save(path, self._state(), kind=_KIND)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save_checkpoint`: on the CPU, bit for bit.

        Raises:
            CheckpointError: The file is damaged, or of a learner of other sizes. Nothing was
                changed.
        """
        state = checkpoint.load(path, kind=_KIND)
        with checkpoint.all_or_nothing(self._restore, self._state(), kind=_KIND):
            self._restore(state)

    def _state(self) -> dict[str, Any]:
        """What learning changes."""
        return {"networks": self.networks.state_dict(), "optimizer": self.optimizer.state_dict()}

    def _restore(self, state: dict[str, Any]) -> None:
        checkpoint.check_optimizer(self.optimizer, state["optimizer"])
        self.networks.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _flat(self, given: IMPALASequences) -> tuple[PPOTrainingStep, Any]:
        """The steps one after the other, for the networks, and the shape they had."""
        shape = tuple(given.rewards.shape)
        if len(shape) != 2:
            raise ArgumentError(f"expected rewards of shape (T, N), got {shape}")
        blank = torch.zeros(shape)
        pairs = before = before_masks = None
        if given.windows is not None:
            if given.starts is None:
                raise ArgumentError("windows need starts, to know which are of one episode")
            pairs = ~torch.as_tensor(given.starts, dtype=torch.bool)
            pairs[0] = False
            windows = torch.as_tensor(given.windows)
            before = torch.cat([windows[:1], windows[:-1]])
            if given.masks is not None:
                masks = torch.as_tensor(given.masks)
                before_masks = torch.cat([masks[:1], masks[:-1]])
        rows = {
            "states": given.states,
            "latent_plans": given.latent_plans,
            "actions": given.actions,
            "rewards": given.rewards,
            "values": blank,
            "log_probs": given.log_probs,
            "advantages": blank,
            "returns": blank,
            "windows": given.windows,
            "masks": given.masks,
            "plan_noise": given.plan_noise,
            "previous_windows": before,
            "previous_masks": before_masks,
            "pairs": pairs,
        }
        flat = {
            name: None if value is None else torch.as_tensor(value).flatten(0, 1)
            for name, value in rows.items()
        }
        return PPOTrainingStep(**flat).to(self.device), shape

    @torch.no_grad()
    def _targets(
        self, given: IMPALASequences, steps: PPOTrainingStep, found: Any, shape: Any
    ) -> tuple[Any, Any]:
        """V-trace's targets and advantages, flat and on the device."""
        final = None
        if given.truncated is not None:
            if given.final_states is None or given.final_plans is None:
                raise ArgumentError("truncated needs final_states and final_plans")
            final = self._values(given.final_states, given.final_plans).cpu()
        targets, advantages = compute_vtrace(
            (found.chosen.detach() - steps.log_probs).cpu().view(shape),
            steps.rewards.cpu().view(shape),
            found.values.detach().cpu().view(shape),
            torch.as_tensor(given.dones).cpu() != 0,
            self._values(given.last_states, given.last_plans).cpu(),
            self.config.gamma,
            self.config.rho_bar,
            self.config.c_bar,
            lam=self.config.trace_lambda,
            truncated=None if final is None else torch.as_tensor(given.truncated).cpu() != 0,
            final_values=final,
            time_axis=0,
        )
        return targets.flatten().to(self.device), advantages.flatten().to(self.device)

    def _values(self, states: Any, plans: Any) -> Any:
        tensors = [
            torch.as_tensor(one, dtype=torch.float32, device=self.device) for one in (states, plans)
        ]
        return self.value_network(*tensors)
