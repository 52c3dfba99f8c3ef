"""What PPO trains: a policy, values, and, with a planner, its encoder.

With a planner, the policy is the planner's own, the one that acts, and plans are rebuilt from their
windows so that gradients reach the encoder. Without one, plans are inputs like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from echoic.agents.latent_planning.policy import PolicyNetwork, SoftPrefixAdapter
from echoic.agents.learners import checkpoint
from echoic.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ActorCritic", "Evaluation", "ValueNetwork", "masked"]


class ValueNetwork(nn.Module):
    """The value of a state, given the plan; arguments as those of ``PolicyNetwork``."""

    def __init__(
        self, state_dim: int, latent_dim: int, hidden_dim: int = 512, soft_prefix_alpha: float = 0.5
    ) -> None:
        super().__init__()
        self.adapter = SoftPrefixAdapter(state_dim, latent_dim, hidden_dim, soft_prefix_alpha)
        self.layers = nn.Sequential(
            nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, 1)
        )

    def forward(self, state: Any, latent_plan: Any) -> Any:
        """Return values, shaped like ``state`` without its last axis."""
        return self.layers(self.adapter(state, latent_plan)).squeeze(-1)


@dataclass
class Evaluation:
    """Outputs of the networks for some steps, with gradients.

    Attributes:
        log_probs: ``(B, action_dim)``, of all actions.
        chosen: ``(B,)``, of the actions that were taken.
        values: ``(B,)``.
        plan_cost: Weighted cost of the plans' changes; 0 without a planner.
        plan_divergence: Per dimension, in nats, without a gradient; NaN if a planner's was not
            measured, 0 without a planner.
    """

    log_probs: Any
    chosen: Any
    values: Any
    plan_cost: Any
    plan_divergence: Any

    @property
    def entropy(self) -> Any:
        """Entropy of the policy, ``(B,)``."""
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)


def masked(logits: Any, action_masks: Any = None) -> Any:
    """Return log-probabilities of actions; those of masked ones are far below zero.

    Not minus infinity, with which an entropy would be NaN.
    """
    if action_masks is not None:
        logits = logits.masked_fill(~action_masks, -1e9)
    return logits.log_softmax(dim=-1)


class ActorCritic:
    """The networks, and how they evaluate steps; arguments as those of ``PPOLearner``."""

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        latent_dim: int,
        device: Any,
        planner: Any = None,
        hidden_dim: int = 512,
    ) -> None:
        self.device = device
        self.planner = planner
        if planner is None:
            self.policy = PolicyNetwork(state_dim, action_dim, latent_dim, hidden_dim, 0.5, device)
        else:
            self.policy = planner.policy
            hidden_dim = planner.config.hidden_dim
            found = (self.policy.state_dim, self.policy.action_dim, self.policy.latent_dim)
            if found != (state_dim, action_dim, latent_dim):
                raise ArgumentError(
                    "the planner has other sizes: state_dim, action_dim and latent_dim are "
                    f"{found}, and {(state_dim, action_dim, latent_dim)} was asked for"
                )
        alpha = self.policy.adapter.alpha
        self.value = ValueNetwork(state_dim, latent_dim, hidden_dim, alpha).to(device)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return groups for an optimizer; the encoder has its own learning rate."""
        own = [*self.policy.parameters(), *self.value.parameters()]
        groups = [{"params": own, "lr": learning_rate}]
        if self.planner is not None:
            encoder = list(self.planner.encoder.parameters())
            groups.append({"params": encoder, "lr": self.planner.config.learning_rate})
        return groups

    def parameters(self) -> Iterator[Any]:
        """Yield all parameters."""
        for group in self.parameter_groups(0.0):
            yield from group["params"]

    def evaluate(self, steps: Any) -> Evaluation:
        """Evaluate a :class:`~echoic.agents.learners.PPOTrainingStep` on the device.

        Raises:
            ArgumentError: If there is a planner, and the steps have no windows to learn from.
        """
        plans = steps.latent_plans
        cost = divergence = torch.zeros((), device=self.device)
        if self.planner is not None and steps.frozen_plans is None:
            if steps.windows is None:
                raise ArgumentError(
                    "the planner learns from the windows of its plans: the steps have none"
                )
            divergence = torch.full_like(cost, torch.nan)
            posterior, plans = self.planner.replan(steps.windows, steps.masks, steps.plan_noise)
            if steps.previous_windows is not None and self.planner.config.kl_weight > 0.0:
                with torch.no_grad():
                    before = self.planner.encoder.posterior(
                        steps.previous_windows, steps.previous_masks
                    )
                raw, divergence = self.planner.divergence(posterior, before, steps.pairs)
                cost = self.planner.divergence.weight * raw
        log_probs = masked(self.policy(steps.states, plans), steps.action_masks)
        chosen = log_probs.gather(-1, steps.actions.long()[:, None]).squeeze(-1)
        return Evaluation(log_probs, chosen, self.value(steps.states, plans), cost, divergence)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the networks and of the planner."""
        return {
            "policy": self.policy.state_dict(),
            "value": self.value.state_dict(),
            "planner": None if self.planner is None else self.planner.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            CheckpointError: If a network has other names, shapes or dtypes. Nothing was changed.
        """
        if (state["planner"] is None) != (self.planner is None):
            raise CheckpointError("only one of the checkpoint and the learner has a planner")
        checkpoint.check_fit({"policy": self.policy, "value": self.value}, state)
        if self.planner is not None:
            self.planner.check_fit(state["planner"])
        self.policy.load_state_dict(state["policy"])
        self.value.load_state_dict(state["value"])
        if self.planner is not None:
            self.planner.load_state_dict(state["planner"])
