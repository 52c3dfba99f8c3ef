"""π_θ(a | s, τ): a policy of vectors, conditioned on a state and a plan.

The input is `h = LayerNorm(α W_s s + (1 - α) W_τ τ)`. The layer norm applies to the sum, so α
bounds how much each part counts, not how large it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from echoic.agents.devices import resolve
from echoic.errors import ArgumentError

__all__ = ["PlannedAction", "PolicyNetwork", "SoftPrefixAdapter", "TrajectoryPrior"]


class SoftPrefixAdapter(nn.Module):
    """Mixes states and plans.

    Args:
        state_dim: Numbers of a state.
        latent_dim: Numbers of a plan.
        hidden_dim: Numbers of the mixture.
        alpha: The state's share, from 0 to 1. At 1 the plan has no effect.
    """

    def __init__(
        self, state_dim: int, latent_dim: int, hidden_dim: int, alpha: float = 0.5
    ) -> None:
        super().__init__()
        if not 0.0 <= alpha <= 1.0:
            raise ArgumentError(f"alpha must be from 0 to 1, got {alpha!r}")
        self.alpha = alpha
        self.state = nn.Linear(state_dim, hidden_dim)
        self.plan = nn.Linear(latent_dim, hidden_dim)
        self.norm = nn.LayerNorm(hidden_dim)

    def forward(self, state: Any, latent_plan: Any) -> Any:
        """Return the mixtures, ``(..., hidden_dim)``."""
        return self.norm(
            self.alpha * self.state(state) + (1.0 - self.alpha) * self.plan(latent_plan)
        )


class PolicyNetwork(nn.Module):
    """A policy over a fixed number of actions, conditioned on a state and a plan.

    Args:
        state_dim: Numbers of a state.
        action_dim: Number of actions.
        latent_dim: Numbers of a plan.
        hidden_dim: Width of the layers.
        soft_prefix_alpha: The state's share of the input.
        device: Device of the parameters; the CPU, with a warning, where CUDA is missing.

    >>> policy = PolicyNetwork(state_dim=4, action_dim=3, latent_dim=8, hidden_dim=16, device="cpu")
    >>> action, log_prob = policy.sample_action(torch.zeros(4), torch.zeros(8))
    >>> action.shape, log_prob.shape
    (torch.Size([]), torch.Size([]))
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        latent_dim: int,
        hidden_dim: int = 512,
        soft_prefix_alpha: float = 0.5,
        device: Any = "cuda",
    ) -> None:
        super().__init__()
        if min(state_dim, action_dim, latent_dim, hidden_dim) < 1:
            raise ArgumentError(
                "state_dim, action_dim, latent_dim and hidden_dim must be at least 1, got "
                f"{state_dim}, {action_dim}, {latent_dim} and {hidden_dim}"
            )
        self.state_dim = state_dim
        self.action_dim = action_dim
        self.latent_dim = latent_dim
        self.adapter = SoftPrefixAdapter(state_dim, latent_dim, hidden_dim, soft_prefix_alpha)
        self.layers = nn.Sequential(
            nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, action_dim)
        )
        self.to(resolve(device))

    def forward(self, state: Any, latent_plan: Any) -> Any:
        """Return logits of the actions, ``(..., action_dim)``, for any leading axes."""
        if state.shape[-1] != self.state_dim or latent_plan.shape[-1] != self.latent_dim:
            raise ArgumentError(
                f"expected states of {self.state_dim} and plans of {self.latent_dim} numbers, got "
                f"shapes {tuple(state.shape)} and {tuple(latent_plan.shape)}"
            )
        return self.layers(self.adapter(state, latent_plan))

    def get_action_probs(self, state: Any, latent_plan: Any) -> Any:
        """Return probabilities of the actions, ``(..., action_dim)``."""
        return self(state, latent_plan).softmax(dim=-1)

    @torch.no_grad()
    def sample_action(
        self, state: Any, latent_plan: Any, *, greedy: bool = False, generator: Any = None
    ) -> tuple[Any, Any]:
        """Draw an action for each state; return it with its log-probability, without gradients."""
        log_probs = self(state, latent_plan).log_softmax(dim=-1)
        if greedy:
            action = log_probs.argmax(dim=-1)
        else:
            flat = log_probs.exp().reshape(-1, self.action_dim)
            drawn = torch.multinomial(flat, 1, generator=generator)
            action = drawn.reshape(log_probs.shape[:-1])
        return action, log_probs.gather(-1, action[..., None]).squeeze(-1)


@dataclass
class TrajectoryPrior:
    """A plan, or one for each row of a batch.

    Attributes:
        latent_plan: ``(embedding_dim,)`` or ``(B, embedding_dim)``, without a gradient.
        state_window: The states it was made of.
        timestamp: Number of plans that the planner made before.
        kl_divergence: From the plan before, in nats, if that was given.
        surprise_score: Squared distance from the mean plan before this one.
        mask: Which places of the window hold a state; None: all.
        noise: Noise of the plan, in standard deviations: with it and the window, a learner rebuilds
            the plan with gradients.
        posterior: Distribution that the plan was drawn from, without a gradient.
    """

    latent_plan: Any
    state_window: Any
    timestamp: int
    kl_divergence: Any = None
    surprise_score: Any = None
    mask: Any = None
    noise: Any = None
    posterior: Any = None


@dataclass
class PlannedAction:
    """Actions ``(B,)``, their log-probabilities ``(B,)``, and the plans acted on."""

    action: Any
    log_prob: Any
    prior: TrajectoryPrior
