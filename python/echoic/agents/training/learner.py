"""The learner of a run: new steps on policy, replayed steps off policy, one optimizer.

With μ the policy that acted and π' the one at the start of an update, the objective is

    w · min(1, π'/μ) · min(r A, clip(r) A),    r = π/π',

after Hilton et al., "Batch size-invariance for policy optimization" (2021).

- *New steps.* π' is μ and `A` is GAE's: this is PPO. (GAE is V-trace's sum at ratios of 1.)
- *Replayed steps.* A single step is a sequence of length 1: `A` is its temporal difference. `w`
  corrects for how the replay draws. The plan is the one that was acted on, an input like any other:
  policy and values learn from a replayed step, the encoder from new ones, whose windows are known.
- *IMPALA.* Actors are an update behind; `A` and the values' targets are V-trace's. One step is
  taken, so r is 1.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from echoic.agents.plans import LatentPlanningOptimizer
from echoic.agents.training.actors import Batch
from echoic.agents.training.ppo import PPOLearner, PPOTrainingStep
from echoic.primitives import compute_vtrace

if TYPE_CHECKING:
    from echoic.agents.training.config import TrainingConfig

__all__ = ["VectorLearner"]

_CHUNK = 2048
_FIELDS = {field.name for field in dataclasses.fields(PPOTrainingStep)}


class VectorLearner(PPOLearner):
    """Trains on new and on replayed steps; ``tracker`` is a mean plan shared with a replay."""

    def __init__(self, config: TrainingConfig, seed: int, tracker: Any = None) -> None:
        torch.manual_seed(seed)
        sizes, plans = (config.state_dim, config.action_dim), config.planning_config
        more: dict[str, Any] = {"seed": seed, "hidden_dim": plans.hidden_dim}
        if config.use_plans:
            more["planner"] = LatentPlanningOptimizer(
                *sizes, plans, config.device, tracker=tracker, seed=seed
            )
        # Advantages are normalised over new steps here: replayed ones have another scale.
        changes: dict[str, Any] = {"normalize_advantages": False}
        self._impala = config.algorithm == "impala"
        if self._impala:
            changes |= {"num_epochs": 1, "batch_size": config.steps_per_update, "kl_coef": 0.0}
            changes |= {"value_clip": False, "target_kl": math.inf}
        ppo = dataclasses.replace(config.ppo_config, **changes)
        super().__init__(*sizes, config.plan_dim, ppo, config.device, **more)
        self._state_dim = config.state_dim
        self._normalize = config.ppo_config.normalize_advantages and not self._impala
        self._spread = 1.0

    @torch.no_grad()
    def next_plans(self, batch: Batch) -> Any:
        """Return the means of the plans at the states that steps led to, ``(T, N, plan_dim)``."""
        if self.planner is None:
            return torch.zeros_like(batch.latent_plans)
        flat = (batch.next_windows.flatten(0, 1), batch.next_masks.flatten(0, 1))
        chunks = zip(*(one.to(self.device).split(_CHUNK) for one in flat), strict=True)
        found = torch.cat([self.planner.encoder(*one) for one in chunks])
        return found.view(*batch.rewards.shape, -1).cpu()

    def learn(self, batch: Batch, drawn: Any = None) -> dict[str, float]:
        """Learn from new steps, or once from replayed ones, drawn with these importance weights."""
        shape, gamma = batch.rewards.shape, self.config.gamma
        steps = self._steps(batch)
        log_probs, values = self._look(steps)
        log_ratio = (log_probs - steps.log_probs.to(self.device)).cpu().view(shape)
        worth = values.cpu().view(shape)
        following = self.get_value_estimate(batch.next_states, batch.next_plans).cpu()
        # A failed step is worth what was expected of it: no error is traced back from it.
        rewards = torch.where(batch.valid, batch.rewards, worth - gamma * following).float()
        targets, advantages = compute_vtrace(
            log_ratio if self._impala else torch.zeros_like(log_ratio),
            rewards,
            worth,
            batch.dones,
            following[-1],
            gamma,
            1.0,
            1.0,
            lam=1.0 if self._impala else self.config.gae_lambda,
            truncated=batch.truncated,
            final_values=following,
            time_axis=0,
        )
        steps.values, steps.returns = values, targets.flatten()
        steps.advantages = (advantages if self._impala else targets - worth).flatten()
        valid = batch.valid.flatten()
        steps.importance_weights = valid.float()
        if self._impala or drawn is not None:
            steps.log_probs = log_probs
        if drawn is not None:
            steps.importance_weights = drawn * log_ratio.flatten().exp().clamp(max=1.0)
            steps.advantages /= self._spread
            return self.update(steps, epochs=1)
        raw = steps.advantages[valid]
        if self._normalize and len(raw) > 1:
            self._spread = float(raw.std(correction=0)) + 1e-8
            steps.advantages = (steps.advantages - raw.mean()) / self._spread
        return self.update(steps)

    def learn_replayed(self, rows: dict[str, Any]) -> dict[str, float]:
        """Learn once from steps that a replay has drawn, each a sequence of length 1."""
        row = {name: torch.as_tensor(one)[None] for name, one in rows.items()}
        dim, valid = self._state_dim, torch.ones(1, len(rows["reward"]), dtype=torch.bool)
        batch = Batch(
            states=row["state"][..., :dim],
            latent_plans=row["state"][..., dim:],
            next_states=row["next_state"][..., :dim],
            rewards=row["reward"],
            next_plans=row["next_state"][..., dim:],
            log_probs=row["log_prob"].float(),
            actions=row["action"][..., 0],
            action_masks=row["action"][..., 1:] != 0,
            dones=row["done"].bool(),
            truncated=~valid,
            valid=valid,
        )
        return self.learn(batch, drawn=row["weight"][0])

    def _steps(self, batch: Batch) -> PPOTrainingStep:
        """Return a batch as steps without advantages."""
        blank = dict.fromkeys(("values", "advantages", "returns"), torch.zeros_like(batch.rewards))
        given = {name: one for name, one in vars(batch).items() if name in _FIELDS} | blank
        return PPOTrainingStep(**{name: one.flatten(0, 1) for name, one in given.items()})

    @torch.no_grad()
    def _look(self, steps: PPOTrainingStep) -> tuple[Any, Any]:
        """Return the current log-probabilities of the actions, and the values."""
        # Without the plans' changes.
        moved = dataclasses.replace(steps, previous_windows=None).to(self.device)
        chunks = torch.arange(len(steps), device=self.device).split(_CHUNK)
        found = [self.evaluate(moved[index]) for index in chunks]
        return torch.cat([one.chosen for one in found]), torch.cat([one.values for one in found])
