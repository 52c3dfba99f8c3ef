"""The planner: an encoder of plans and the one policy that acts on them, learning together.

What acts is what learns. :class:`LatentPlanningOptimizer` draws a plan from the window of states
and an action from the policy given the plan, and remembers the noise it drew. Its loss makes the
same plan from the same window and noise, now with gradients, so that the ratio of the action's
probability now to then is 1 before the first update, moves with every update of θ or φ, and carries
gradients to both.

A :class:`~echoic.agents.training.PPOLearner` given this planner trains the same two networks, by
minibatches and with a value network; the loss here is one step of the same without them.

The mean plan is one :class:`~echoic.agents.kernels.EMAPlanTracker`, which replay may share.
Plans are scored against it first and move it then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from echoic.agents import checkpoint
from echoic.agents.devices import resolve
from echoic.agents.kernels import EMAPlanTracker
from echoic.agents.plans.encoder import PlanDivergence, PlanPosterior, TrajectoryEncoder
from echoic.agents.plans.policy import PlannedAction, PolicyNetwork, TrajectoryPrior
from echoic.agents.plans.windows import PlanWindows
from echoic.agents.updates import clipped_gain, step
from echoic.errors import ArgumentError
from echoic.primitives import compute_discounted_sums

if TYPE_CHECKING:
    import os

    from echoic.agents.plans.config import PlanningConfig

__all__ = ["LatentPlanningOptimizer"]

_KIND = "latent planner"


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
        if tracker is None:
            tracker = EMAPlanTracker(config.embedding_dim, config.ema_decay)
        self.tracker = tracker
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
        return PlanWindows(
            num_envs,
            self.encoder.state_dim,
            self.config.state_window_size,
            history=history,
            device=self.device,
        )

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
        scores = self._score_and_follow(plans)
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
        scale: Literal["sum", "mean"] = "sum",
    ) -> Any:
        """Return ``w |τ - mean τ|² + α |r|`` against the current mean plan.

        ``scale="mean"`` divides the squared distance by the number of dimensions, as replay does by
        default.
        """
        if scale not in {"sum", "mean"}:
            raise ArgumentError(f'scale is "sum" or "mean", got {scale!r}')
        plans = prior.latent_plan.detach().to("cpu", torch.float64).numpy()
        distance = np.square(plans - self._mean_plan()).sum(axis=-1)
        if scale == "mean":
            distance /= plans.shape[-1]
        score = surprise_weight * distance + reward_weight * np.abs(np.asarray(reward, np.float64))
        return float(score) if np.ndim(score) == 0 else score

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
            log_probs: ``(B,)``, of the actions when they were taken. By default the steps count as
                the current policy's, and the loss is the plain policy gradient.
            noise: ``(B, embedding_dim)``, of the plans acted on; by default they were the means.
            current_mask: Which places of the current windows hold a state.
            previous_mask: The same of the previous windows.
            pairs: ``(B,)``, where both windows are of one episode; by default everywhere.
            dones: ``(B,)``, where an episode ends, and its return with it.

        Returns:
            ``total_loss``, ``policy_loss``, ``kl_loss`` (in the unit of
            :class:`~echoic.agents.plans.PlanDivergence`), ``kl_divergence`` (per
            dimension, in nats), ``ratio``, ``current_plan`` and ``previous_plan``.
        """
        if advantages is None:
            advantages = self._returns(rewards, dones)
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
        self._metrics = {
            **{
                name: float(loss_dict[name].detach())
                for name in ("total_loss", "policy_loss", "kl_loss", "kl_divergence")
            },
            "grad_norm": norm,
        }
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

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with which :meth:`load_state_dict` continues bit for bit."""
        return {
            "encoder": self.encoder.state_dict(),
            "policy": self.policy.state_dict(),
            "divergence": self.divergence.state_dict(),
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
        for name in ("encoder", "policy", "divergence"):
            getattr(self, name).load_state_dict(state[name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self._plans_made = state["plans_made"]
        self.tracker.load_state_dict(state["tracker"])

    def check_fit(self, state: dict[str, Any]) -> None:
        """Raise a ``CheckpointError`` unless the networks of ``state`` are like these."""
        parts = {"encoder": self.encoder, "policy": self.policy, "divergence": self.divergence}
        checkpoint.check_fit(parts, state)
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

    def _score_and_follow(self, plans: Any) -> Any:
        """Return squared distances from the mean plan, then move it by the plans, row by row."""
        rows = plans.detach().to("cpu", torch.float64).numpy()
        scores = np.square(rows - self._mean_plan()).sum(axis=-1)
        self.tracker.update(rows)
        return scores

    def _mean_plan(self) -> Any:
        if not self.tracker.initialized:
            return np.zeros(self.config.embedding_dim)
        return np.asarray(self.tracker.get_ema(), np.float64)

    def _returns(self, rewards: Any, dones: Any) -> Any:
        if rewards is None:
            raise ArgumentError("compute_planning_loss needs advantages, or rewards to make them")
        gains = compute_discounted_sums(
            np.asarray(rewards, np.float64), dones, self.config.discount_gamma
        )
        return gains - gains.mean()
