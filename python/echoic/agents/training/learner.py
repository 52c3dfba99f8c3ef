"""The learner of a run: new segments on policy, replayed steps off policy, one optimizer.

The objective is that of PPO with the policy that acted and the policy that is stayed near held
apart (Hilton et al., "Batch size-invariance for policy optimization", 2021). With μ the policy that
acted and π' the one at the start of an update,

    w · min(1, π'/μ) · min(r A, clip(r) A),    r = π/π'.

- *New segments.* `A` is GAE's, along the true sequence of the segment, with values at its arrival.
  In lock-step π' is μ, and this is PPO to the last bit. Where actors are behind, the truncated
  weight corrects for it.
- *Replayed steps.* A single step is a sequence of length 1: `A` is its temporal difference, and
  with the weight before it, V-trace's of that sequence. `w` corrects for how the replay draws. The
  plan is the one that was acted on, an input like any other: policy and values learn from a
  replayed step, the encoder from new ones, whose windows are known.
- *IMPALA.* `A` and the values' targets are V-trace's along the segment, π' is the current policy,
  and one step is taken, so r is 1.

A minibatch is divided among `num_learners` threads, whose gradients are averaged by their rows. The
cost of plans' changes is a mean over the pairs of each part.
"""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from echoic.agents.plans import LatentPlanningOptimizer
from echoic.agents.training.ppo import PPOLearner
from echoic.agents.training.steps import GAECalculator, PPOTrainingStep
from echoic.primitives import compute_vtrace

if TYPE_CHECKING:
    from echoic.agents.training.config import TrainingConfig
    from echoic.agents.training.segments import Batch

__all__ = ["VectorLearner", "learner_of"]


def learner_of(config: TrainingConfig, seed: int, tracker: Any = None) -> VectorLearner:
    """Make the learner of a run, with a planner if it uses plans."""
    torch.manual_seed(seed)
    planner = None
    if config.use_plans:
        planner = LatentPlanningOptimizer(
            config.state_dim,
            config.action_dim,
            config.planning_config,
            config.device,
            tracker=tracker,
            seed=seed,
        )
    return VectorLearner(config, planner, seed)


class VectorLearner(PPOLearner):
    """Trains on segments and on replayed steps.

    Args:
        config: Settings of the run.
        planner: The planner, if there is one.
        seed: Seed of minibatches.
    """

    def __init__(self, config: TrainingConfig, planner: Any, seed: int) -> None:
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
            config.state_dim,
            config.action_dim,
            config.plan_dim,
            ppo,
            config.device,
            planner=planner,
            seed=seed,
            hidden_dim=config.planning_config.hidden_dim,
        )
        self.run_config = config
        self._pool = (
            ThreadPoolExecutor(config.num_learners, "echoic-learner")
            if config.num_learners > 1
            else None
        )
        self._spread = 1.0

    def learn(self, batch: Batch, current: bool) -> dict[str, float]:
        """Learn from new segments.

        Args:
            batch: The segments.
            current: Whether the current policy made them.
        """
        steps, followed = self.steps_of(batch)
        with torch.no_grad():
            log_probs, values = self._look(steps)
        shape = tuple(batch.rewards.shape)
        log_ratio = log_probs - steps.log_probs.to(self.device)
        worth, next_worth = values.cpu().view(shape), followed.cpu().view(shape)
        # A failed step is worth what was expected of it: no error is traced back from it.
        rewards = torch.where(
            batch.valid, batch.rewards, worth - self.config.gamma * next_worth
        ).float()
        numbers = (rewards, worth, batch.dones, next_worth)
        if self.run_config.algorithm == "impala":
            steps.returns, steps.advantages = self._vtrace(
                batch, log_ratio.cpu().view(shape), numbers
            )
            steps.log_probs = log_probs
            weight = torch.ones_like(log_ratio)
        else:
            steps.advantages, steps.returns = self._gae(batch, numbers)
            weight = torch.ones_like(log_ratio)
            if not current:
                weight = log_ratio.exp().clamp(max=1.0)
                steps.log_probs = log_probs
        steps.values = values
        valid = batch.valid.flatten().to(self.device)
        steps.importance_weights = weight * valid
        if self.run_config.ppo_config.normalize_advantages and self.run_config.algorithm == "ppo":
            steps = steps.to(self.device)
            raw = steps.advantages[valid]
            if len(raw) > 1:
                self._spread = float(raw.std(correction=0)) + 1e-8
                steps.advantages = (steps.advantages - raw.mean()) / self._spread
        return self.update(steps)

    def learn_replayed(self, rows: dict[str, Any]) -> dict[str, float]:
        """Learn once from steps that a replay has drawn."""
        dim = self.run_config.state_dim
        state, following = (
            torch.as_tensor(rows[name], dtype=torch.float32, device=self.device)
            for name in ("state", "next_state")
        )
        action = torch.as_tensor(rows["action"], device=self.device).long()
        count = len(state)
        blank = torch.zeros(count, device=self.device)
        steps = PPOTrainingStep(
            states=state[:, :dim],
            latent_plans=state[:, dim:],
            actions=action[:, 0],
            rewards=torch.as_tensor(rows["reward"], dtype=torch.float32, device=self.device),
            values=blank,
            log_probs=torch.as_tensor(rows["log_prob"], dtype=torch.float32, device=self.device),
            advantages=blank,
            returns=blank,
            frozen_plans=torch.ones(count, dtype=torch.bool, device=self.device),
            action_masks=action[:, 1:] != 0,
        )
        going_on = ~torch.as_tensor(rows["done"], device=self.device).bool()
        with torch.no_grad():
            log_probs, values = self._look(steps)
            followed = self.value_network(following[:, :dim], following[:, dim:])
        error = steps.rewards + self.config.gamma * going_on * followed - values
        drawn = torch.as_tensor(rows["weight"], dtype=torch.float32, device=self.device)
        steps.importance_weights = drawn * (log_probs - steps.log_probs).exp().clamp(max=1.0)
        steps.log_probs, steps.values = log_probs, values
        steps.advantages, steps.returns = error / self._spread, values + error
        return self.update(steps, epochs=1)

    def steps_of(self, batch: Batch) -> tuple[PPOTrainingStep, Any]:
        """Return a batch as steps without advantages, and the values of the states they led to."""

        def flat(value: Any) -> Any:
            return None if value is None else value.flatten(0, 1)

        blank = torch.zeros(batch.steps)
        steps = PPOTrainingStep(
            states=flat(batch.states),
            latent_plans=flat(batch.plans),
            actions=flat(batch.actions),
            rewards=flat(batch.rewards),
            values=blank,
            log_probs=flat(batch.log_probs),
            advantages=blank,
            returns=blank,
            windows=flat(batch.windows),
            masks=flat(batch.masks),
            plan_noise=flat(batch.noise) if self.planner is not None else None,
            previous_windows=flat(batch.previous_windows),
            previous_masks=flat(batch.previous_masks),
            pairs=flat(batch.pairs) if self.planner is not None else None,
            action_masks=flat(batch.allowed),
        )
        with torch.no_grad():
            return steps, self.value_network(
                flat(batch.next_states).to(self.device), self.next_plans(batch)
            )

    @torch.no_grad()
    def next_plans(self, batch: Batch) -> Any:
        """Return the means of the plans at the states that steps led to."""
        if self.planner is None:
            return torch.zeros(batch.steps, 1, device=self.device)
        windows, masks = (
            one.flatten(0, 1).to(self.device) for one in (batch.next_windows, batch.next_masks)
        )
        return torch.cat(
            [
                self.planner.encoder(some, mask)
                for some, mask in zip(windows.split(_CHUNK), masks.split(_CHUNK), strict=True)
            ]
        )

    def _look(self, steps: PPOTrainingStep) -> tuple[Any, Any]:
        """Return the current log-probabilities of the actions, and the values."""
        moved = steps.to(self.device)
        parts = [
            self.networks.evaluate(_without_pairs(moved[index]))
            for index in torch.arange(len(steps), device=self.device).split(_CHUNK)
        ]
        return torch.cat([one.chosen for one in parts]), torch.cat([one.values for one in parts])

    def _gae(self, batch: Batch, numbers: Any) -> tuple[Any, Any]:
        rewards, values, dones, followed = (one.T.numpy() for one in numbers)
        advantages, returns = GAECalculator(self.config).compute_advantages(
            rewards,
            values,
            dones,
            followed[:, -1],
            truncated=batch.truncated.T.numpy(),
            final_values=followed,
        )
        return tuple(
            torch.from_numpy(one.T.copy()).float().flatten() for one in (advantages, returns)
        )

    def _vtrace(self, batch: Batch, log_ratio: Any, numbers: Any) -> tuple[Any, Any]:
        rewards, values, dones, followed = numbers
        targets, advantages = compute_vtrace(
            log_ratio,
            rewards,
            values,
            dones,
            followed[-1],
            self.config.gamma,
            1.0,
            1.0,
            lam=1.0,
            truncated=batch.truncated,
            final_values=followed,
            time_axis=0,
        )
        return targets.flatten(), advantages.flatten()

    def update(self, steps: PPOTrainingStep, *, epochs: int | None = None) -> dict[str, float]:
        """Learn from steps, in minibatches and epochs, each divided into parts."""
        found = super().update(steps, epochs=epochs)
        # If no minibatch was stepped on, use the numbers of the one that was evaluated.
        return {
            name: self._latest.get(name, value) if math.isnan(value) else value
            for name, value in found.items()
        }

    def _parts(self, index: Any) -> list[Any]:
        """Divide the rows of a minibatch into parts, none of them empty."""
        return [one for one in index.tensor_split(self.run_config.num_learners) if len(one)]

    def _gradients(self, parts: list[Any]) -> list[Any]:
        if self._pool is None or len(parts) == 1:
            return [self.gradient(*part) for part in parts]
        return list(self._pool.map(lambda part: self.gradient(*part), parts))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """Return all that learning changes."""
        return {**super().state_dict(), "spread": self._spread}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._spread = state["spread"]


_CHUNK = 2048


def _without_pairs(steps: PPOTrainingStep) -> PPOTrainingStep:
    """Return steps whose plans' changes are not evaluated."""
    return dataclasses.replace(steps, previous_windows=None, previous_masks=None, pairs=None)
