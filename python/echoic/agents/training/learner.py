"""The learner of a run: new segments on policy, replayed steps off policy, one optimizer.

The objective is that of PPO with the policy that acted and the policy that is stayed near held
apart (Hilton et al., "Batch size-invariance for policy optimization", 2021). With μ the policy that
acted and π' the one at the start of an update,

    w · min(1, π'/μ) · min(r A, clip(r) A),    r = π/π'.

- *New segments.* `A` is GAE's, along the true sequence of the segment, with values at its arrival:
  V-trace's sum at ratios of 1. In lock-step π' is μ, and this is PPO. Where actors are behind, the
  truncated weight corrects for it.
- *Replayed steps.* A single step is a sequence of length 1: `A` is its temporal difference, and
  with the weight before it, V-trace's of that sequence. `w` corrects for how the replay draws. The
  plan is the one that was acted on, an input like any other: policy and values learn from a
  replayed step, the encoder from new ones, whose windows are known.
- *IMPALA.* `A` and the values' targets are V-trace's along the segment, π' is the current policy,
  and one step is taken, so r is 1.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from echoic.agents.plans import LatentPlanningOptimizer
from echoic.agents.training.ppo import PPOLearner, PPOTrainingStep
from echoic.primitives import compute_vtrace

if TYPE_CHECKING:
    from echoic.agents.training.config import TrainingConfig
    from echoic.agents.training.segments import Batch

__all__ = ["VectorLearner"]

_CHUNK = 2048
_FIELDS = tuple(field.name for field in dataclasses.fields(PPOTrainingStep))


class VectorLearner(PPOLearner):
    """Trains on segments and on replayed steps.

    Args:
        config: Settings of the run.
        seed: Seed of the networks and of minibatches.
        tracker: Mean plan that is shared with a replay.
    """

    def __init__(self, config: TrainingConfig, seed: int, tracker: Any = None) -> None:
        torch.manual_seed(seed)
        sizes, planner = (config.state_dim, config.action_dim), None
        if config.use_plans:
            planner = LatentPlanningOptimizer(
                *sizes, config.planning_config, config.device, tracker=tracker, seed=seed
            )
        # Advantages are normalised over new steps here: replayed ones have another scale.
        ppo = dataclasses.replace(config.ppo_config, normalize_advantages=False)
        if config.algorithm == "impala":
            ppo = dataclasses.replace(
                ppo,
                num_epochs=1,
                batch_size=config.num_actors * config.train_frequency,
                value_clip=False,
                target_kl=math.inf,
                kl_coef=0.0,
            )
        super().__init__(
            *sizes,
            config.plan_dim,
            ppo,
            config.device,
            planner=planner,
            seed=seed,
            hidden_dim=config.planning_config.hidden_dim,
            threads=config.num_learners,
        )
        self.run_config = config
        self._spread = 1.0

    def learn(self, batch: Batch, current: bool) -> dict[str, float]:
        """Learn from new segments.

        Args:
            batch: The segments.
            current: Whether the current policy made them.
        """
        config, shape = self.run_config, batch.rewards.shape
        impala = config.algorithm == "impala"
        steps = self.steps_of(batch)
        log_probs, values = self._look(steps)
        following = self._next_values(batch).cpu().view(shape)
        log_ratio = (log_probs - steps.log_probs.to(self.device)).cpu().view(shape)
        worth = values.cpu().view(shape)
        # A failed step is worth what was expected of it: no error is traced back from it.
        gamma = self.config.gamma
        rewards = torch.where(batch.valid, batch.rewards, worth - gamma * following).float()
        targets, advantages = compute_vtrace(
            log_ratio if impala else torch.zeros_like(log_ratio),
            rewards,
            worth,
            batch.dones,
            following[-1],
            gamma,
            1.0,
            1.0,
            lam=1.0 if impala else self.config.gae_lambda,
            truncated=batch.truncated,
            final_values=following,
            time_axis=0,
        )
        steps.values, steps.returns = values, targets.flatten()
        steps.advantages = (advantages if impala else targets - worth).flatten()
        weight = torch.ones(shape)
        if impala or not current:
            steps.log_probs = log_probs
        if not impala and not current:
            weight = log_ratio.exp().clamp(max=1.0)
        steps.importance_weights = (weight * batch.valid).flatten()
        raw = steps.advantages[batch.valid.flatten()]
        if config.ppo_config.normalize_advantages and not impala and len(raw) > 1:
            self._spread = float(raw.std(correction=0)) + 1e-8
            steps.advantages = (steps.advantages - raw.mean()) / self._spread
        return self.update(steps)

    def learn_replayed(self, rows: dict[str, Any]) -> dict[str, float]:
        """Learn once from steps that a replay has drawn."""
        dim = self.run_config.state_dim
        state, following, reward, acted, drawn = (
            self._tensor(rows[name])
            for name in ("state", "next_state", "reward", "log_prob", "weight")
        )
        action = torch.as_tensor(rows["action"], device=self.device).long()
        blank = torch.zeros_like(reward)
        steps = PPOTrainingStep(
            states=state[:, :dim],
            latent_plans=state[:, dim:],
            actions=action[:, 0],
            rewards=reward,
            values=blank,
            log_probs=acted,
            advantages=blank,
            returns=blank,
            frozen_plans=torch.ones_like(reward, dtype=torch.bool),
            action_masks=action[:, 1:] != 0,
        )
        log_probs, values = self._look(steps)
        going_on = ~torch.as_tensor(rows["done"], device=self.device).bool()
        followed = self.get_value_estimate(following[:, :dim], following[:, dim:])
        error = reward + self.config.gamma * going_on * followed - values
        steps.importance_weights = drawn * (log_probs - acted).exp().clamp(max=1.0)
        steps.log_probs, steps.values = log_probs, values
        steps.advantages, steps.returns = error / self._spread, values + error
        return self.update(steps, epochs=1)

    def steps_of(self, batch: Batch) -> PPOTrainingStep:
        """Return a batch as steps without advantages."""
        blank = dict.fromkeys(("values", "advantages", "returns"), torch.zeros_like(batch.rewards))
        given = {**vars(batch), **blank}
        return PPOTrainingStep(
            **{name: given[name].flatten(0, 1) for name in _FIELDS if name in given}
        )

    @torch.no_grad()
    def next_plans(self, batch: Batch) -> Any:
        """Return the means of the plans at the states that steps led to; computed once."""
        if not hasattr(batch, "next_plans"):
            steps = batch.rewards.numel()
            batch.next_plans = torch.zeros(steps, 1, device=self.device)
            if self.planner is not None:
                flat = (batch.next_windows.flatten(0, 1), batch.next_masks.flatten(0, 1))
                chunks = zip(*(one.to(self.device).split(_CHUNK) for one in flat), strict=True)
                batch.next_plans = torch.cat([self.planner.encoder(*one) for one in chunks])
        return batch.next_plans

    def _next_values(self, batch: Batch) -> Any:
        return self.get_value_estimate(batch.next_states.flatten(0, 1), self.next_plans(batch))

    @torch.no_grad()
    def _look(self, steps: PPOTrainingStep) -> tuple[Any, Any]:
        """Return the current log-probabilities of the actions, and the values."""
        # Without the plans' changes.
        moved = dataclasses.replace(steps, previous_windows=None).to(self.device)
        chunks = torch.arange(len(steps), device=self.device).split(_CHUNK)
        found = [self.evaluate(moved[index]) for index in chunks]
        return torch.cat([one.chosen for one in found]), torch.cat([one.values for one in found])

    def state_dict(self) -> dict[str, Any]:
        """Return all that learning changes."""
        return {**super().state_dict(), "spread": self._spread}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._spread = state["spread"]
