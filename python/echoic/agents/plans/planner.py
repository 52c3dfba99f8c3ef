"""π_θ(a | s, τ), and the planner: an encoder of plans and the one policy that acts on them.

What acts is what learns. :class:`LatentPlanningOptimizer` draws a plan from the window of states
and an action from the policy given the plan, and remembers the noise it drew. Its loss makes the
same plan from the same window and noise, now with gradients, so that the ratio of the action's
probability now to then is 1 before the first update, moves with every update of θ or φ, and carries
gradients to both. A :class:`~echoic.agents.training.PPOLearner` given this planner trains the same
two networks, by minibatches and with a value network.

The mean plan is one :class:`~echoic.agents.kernels.EMAPlanTracker`, which replay may share. Plans
are scored against it first and move it then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from echoic.agents import checkpoint
from echoic.agents.devices import resolve
from echoic.agents.kernels import EMAPlanTracker, plan_surprise_batch
from echoic.agents.plans.encoder import (
    PlanDivergence,
    PlanPosterior,
    PlanWindows,
    TrajectoryEncoder,
)
from echoic.agents.updates import clipped_gain, step
from echoic.errors import ArgumentError
from echoic.primitives import compute_discounted_sums

if TYPE_CHECKING:
    import os

    from echoic.agents.plans.config import PlanningConfig

__all__ = [
    "LatentPlanningOptimizer",
    "PlannedAction",
    "PolicyNetwork",
    "SoftPrefixAdapter",
    "TrajectoryPrior",
]

_KIND = "latent planner"


class SoftPrefixAdapter(nn.Module):
    """Mixes states and plans: ``h = LayerNorm(α W_s s + (1 - α) W_τ τ)``.

    The norm applies to the sum, so α bounds how much each part counts, not how large it is.

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
    """A policy over ``action_dim`` actions, conditioned on a state and a plan.

    Args:
        state_dim: Numbers of a state.
        action_dim: Number of actions.
        latent_dim: Numbers of a plan.
        hidden_dim: Width of the layers.
        soft_prefix_alpha: The state's share of the input.
        device: The CPU, with a warning, where CUDA is missing.

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
        self.state_dim, self.action_dim, self.latent_dim = state_dim, action_dim, latent_dim
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
    """A plan, or one for each row of a batch, without gradients.

    Attributes:
        latent_plan: ``(embedding_dim,)`` or ``(B, embedding_dim)``.
        state_window: The states it was made of.
        timestamp: Number of plans that the planner made before.
        kl_divergence: From the plan before, in nats, if that was given.
        surprise_score: Squared distance from the mean plan before this one.
        mask: Which places of the window hold a state; None: all.
        noise: Noise of the plan, in standard deviations: with it and the window, a learner rebuilds
            the plan with gradients.
        posterior: Distribution that the plan was drawn from.
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


class LatentPlanningOptimizer:
    """Plans, acts and learns.

    Args:
        state_dim: Numbers of a state.
        action_dim: Number of actions.
        config: All other settings.
        device: Device of the networks; the CPU, with a warning, where CUDA is missing.
        tracker: Mean plan that is shared with others, an ``EMAPlanTracker`` of ``embedding_dim``.
        seed: Seed of the noise in plans and of actions. By default drawn from torch's own
            generator, so that ``torch.manual_seed`` repeats a run.

    Attributes:
        encoder: F_φ.
        policy: π_θ, the policy that acts.
        divergence: The cost of a plan's changes.
        tracker: The mean plan.
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        config: PlanningConfig,
        device: Any = "cuda",
        *,
        tracker: Any = None,
        seed: int | None = None,
    ) -> None:
        self.config = config
        self.device = resolve(device)
        self.encoder = TrajectoryEncoder(state_dim, config, self.device)
        self.policy = PolicyNetwork(
            state_dim,
            action_dim,
            config.embedding_dim,
            config.hidden_dim,
            config.soft_prefix_alpha,
            self.device,
        )
        self.divergence = PlanDivergence(config).to(self.device)
        self.tracker = tracker or EMAPlanTracker(config.embedding_dim, config.ema_decay)
        self._optimizer = torch.optim.Adam(self.parameters(), lr=config.learning_rate)
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._plans_made = 0
        self._metrics: dict[str, float] = {}

    def parameters(self) -> list[Any]:
        """Return the parameters of the encoder and the policy."""
        return [*self.encoder.parameters(), *self.policy.parameters()]

    def windows(self, num_envs: int, *, history: int | None = None) -> PlanWindows:
        """Return windows of this planner's sizes, for environments side by side."""
        size = self.config.state_window_size
        dim, device = self.encoder.state_dim, self.device
        return PlanWindows(num_envs, dim, size, history=history, device=device)

    @torch.no_grad()
    def encode_trajectory(
        self,
        window: Any,
        mask: Any = None,
        *,
        previous: TrajectoryPrior | None = None,
        deterministic: bool = False,
    ) -> TrajectoryPrior:
        """Draw the plan of a window, score it against the mean plan, and then move the mean.

        Args:
            window: ``(k + 1, state_dim)``, or ``(B, k + 1, state_dim)``.
            mask: Which places hold a state, shaped like ``window`` without its last axis.
            previous: Plan of the step before, for ``kl_divergence``.
            deterministic: Take the mean instead of drawing.
        """
        window = torch.as_tensor(window, dtype=torch.float32, device=self.device)
        single = window.ndim == 2
        rows = window[None] if single else window
        if mask is not None:
            mask = torch.as_tensor(mask, dtype=torch.bool, device=self.device)
        row_mask = mask[None] if single and mask is not None else mask
        posterior = self.encoder.posterior(rows, row_mask)
        noise = torch.zeros_like(posterior.mean)
        if not deterministic:
            noise.normal_(generator=self.generator)
        plans = posterior.at(noise)
        scores = self._surprise(plans, np.zeros(len(rows)), 1.0, 0.0)
        self.tracker.update(plans.cpu().double().numpy())
        if single:
            posterior, noise, plans, scores = posterior[0], noise[0], plans[0], float(scores[0])
        divergence = None
        if previous is not None and previous.posterior is not None:
            divergence = self.encoder.compute_kl_divergence(posterior, previous.posterior)
            divergence = float(divergence) if single else divergence
        timestamp = self._plans_made
        self._plans_made += len(rows)
        return TrajectoryPrior(plans, window, timestamp, divergence, scores, mask, noise, posterior)

    def act(self, window: Any, mask: Any = None, *, greedy: bool = False) -> PlannedAction:
        """Draw a plan and an action for each window; ``greedy`` takes the likeliest of both."""
        prior = self.encode_trajectory(window, mask, deterministic=greedy)
        state = prior.state_window[..., -1, :]
        action, log_prob = self.policy.sample_action(
            state, prior.latent_plan, greedy=greedy, generator=self.generator
        )
        return PlannedAction(action, log_prob, prior)

    def get_trajectory_surprise(
        self,
        prior: TrajectoryPrior,
        reward: Any = 0.0,
        *,
        surprise_weight: float = 1.0,
        reward_weight: float = 1.0,
    ) -> Any:
        """Return ``w |τ - mean τ|² + α |r|`` against the current mean plan."""
        plans = prior.latent_plan.detach()
        rewards = np.broadcast_to(np.asarray(reward, np.float64), plans.shape[:-1]).reshape(-1)
        rows = plans.reshape(-1, plans.shape[-1])
        scores = self._surprise(rows, rewards, surprise_weight, reward_weight)
        return float(scores[0]) if plans.ndim == 1 else scores

    def get_ema_plan(self) -> Any:
        """Return the mean plan; zeros before the first plan."""
        return torch.as_tensor(self._mean_plan(), dtype=torch.float32, device=self.device)

    def replan(self, window: Any, mask: Any, noise: Any) -> tuple[PlanPosterior, Any]:
        """Rebuild the plans acted on from their windows and noise, with gradients."""
        posterior = self.encoder.posterior(window, mask)
        return posterior, posterior.mean if noise is None else posterior.at(noise)

    def compute_planning_loss(
        self,
        current_state_window: Any,
        previous_state_window: Any,
        actions: Any,
        rewards: Any = None,
        advantages: Any = None,
        *,
        log_probs: Any = None,
        noise: Any = None,
        current_mask: Any = None,
        previous_mask: Any = None,
        pairs: Any = None,
        dones: Any = None,
    ) -> dict[str, Any]:
        """Return the policy's clipped loss on these steps, and the cost of the plans' changes.

        Args:
            current_state_window: ``(B, k + 1, state_dim)``.
            previous_state_window: Windows of the steps before, with the same shape.
            actions: ``(B,)``.
            rewards: ``(B,)``, of consecutive steps; needed without ``advantages``.
            advantages: ``(B,)``; by default the returns of ``rewards``, discounted by
                ``discount_gamma``, minus their mean.
            log_probs: ``(B,)``, of the actions when they were taken; by default the current ones.
            noise: ``(B, embedding_dim)``, of the plans acted on; by default they were the means.
            current_mask: Which places of the current windows hold a state.
            previous_mask: The same of the previous windows.
            pairs: ``(B,)``, where both windows are of one episode; by default everywhere.
            dones: ``(B,)``, where an episode ends, and its return with it.

        Returns:
            ``total_loss``, ``policy_loss``, ``kl_loss`` (of :class:`PlanDivergence`),
            ``kl_divergence`` (per dimension, in nats), ``ratio``, ``current_plan``,
            ``previous_plan``.
        """
        if advantages is None:
            if rewards is None:
                raise ArgumentError(
                    "compute_planning_loss needs advantages, or rewards to make them"
                )
            gamma = self.config.discount_gamma
            gains = compute_discounted_sums(np.asarray(rewards, np.float64), dones, gamma)
            advantages = gains - gains.mean()
        advantages = torch.as_tensor(advantages, dtype=torch.float32, device=self.device)
        actions = torch.as_tensor(actions, dtype=torch.int64, device=self.device)
        current, plans = self.replan(current_state_window, current_mask, noise)
        with torch.no_grad():
            previous = self.encoder.posterior(previous_state_window, previous_mask)
        if pairs is None:
            pairs = torch.ones(len(actions), dtype=torch.bool, device=self.device)
        logits = self.policy(current_state_window[:, -1], plans)
        chosen = logits.log_softmax(dim=-1).gather(-1, actions[:, None]).squeeze(-1)
        before = chosen.detach() if log_probs is None else log_probs
        ratio = (chosen - before).exp()
        reach = self.config.clip_epsilon
        policy_loss = -clipped_gain(ratio, advantages, reach, reach)[0].mean()
        kl_loss, plain = self.divergence(current, previous, pairs)
        return {
            "total_loss": policy_loss + self.divergence.weight * kl_loss,
            "policy_loss": policy_loss,
            "kl_loss": kl_loss,
            "kl_divergence": plain,
            "ratio": ratio.detach(),
            "current_plan": plans,
            "previous_plan": previous.mean,
        }

    def update(self, loss_dict: dict[str, Any]) -> dict[str, float]:
        """Take one step along the gradient of ``total_loss``, and return its numbers.

        Raises:
            FloatingPointError: If the gradient is not finite. The step was not taken.
        """
        self._optimizer.zero_grad(set_to_none=True)
        loss_dict["total_loss"].backward()
        norm = step(self._optimizer, self.parameters(), self.config.max_grad_norm)
        self.after_step(loss_dict["kl_divergence"])
        names = ("total_loss", "policy_loss", "kl_loss", "kl_divergence")
        self._metrics = {name: float(loss_dict[name].detach()) for name in names}
        self._metrics["grad_norm"] = norm
        return dict(self._metrics)

    def after_step(self, plain: Any) -> None:
        """Update the bounds and the scale; call it after each step of any optimizer."""
        self.encoder.project()
        self.divergence.advance(plain)

    def get_training_metrics(self) -> dict[str, float]:
        """Return the numbers of the latest update, and the state of the divergence."""
        return {
            **self._metrics,
            "updates": float(self.divergence.updates),
            "kl_scale": float(self.divergence.scale),
            "kl_weight": self.divergence.weight,
            "lipschitz_bound": self.encoder.get_lipschitz_bound(),
            "plans_made": float(self._plans_made),
        }

    @property
    def _modules(self) -> dict[str, Any]:
        return {"encoder": self.encoder, "policy": self.policy, "divergence": self.divergence}

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with which :meth:`load_state_dict` continues bit for bit."""
        return {
            **{name: module.state_dict() for name, module in self._modules.items()},
            "optimizer": self._optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "plans_made": self._plans_made,
            "tracker": self.tracker.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`. A shared mean plan is restored, too.

        Raises:
            CheckpointError: If a network has other names, shapes or dtypes. Nothing was changed.
        """
        self.check_fit(state)
        for name, module in self._modules.items():
            module.load_state_dict(state[name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self._plans_made = state["plans_made"]
        self.tracker.load_state_dict(state["tracker"])

    def check_fit(self, state: dict[str, Any]) -> None:
        """Raise a ``CheckpointError`` unless the networks of ``state`` are like these."""
        checkpoint.check_fit(self._modules, state)
        checkpoint.check_optimizer(self._optimizer, state["optimizer"])

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the planner to a file for :meth:`load_checkpoint`."""
        checkpoint.save(path, self.state_dict(), kind=_KIND)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save_checkpoint`.

        Raises:
            CheckpointError: If the file is damaged, or of a planner of other sizes. Nothing was
                changed.
        """
        state = checkpoint.load(path, kind=_KIND)
        with checkpoint.all_or_nothing(self.load_state_dict, self.state_dict(), kind=_KIND):
            self.load_state_dict(state)

    def _surprise(self, plans: Any, rewards: Any, weight: float, reward_weight: float) -> Any:
        rows = plans.cpu().float().numpy()
        return plan_surprise_batch(rows, self._mean_plan(), rewards, weight, reward_weight)

    def _mean_plan(self) -> Any:
        if not self.tracker.initialized:
            return np.zeros(self.config.embedding_dim)
        return self.tracker.get_ema()
