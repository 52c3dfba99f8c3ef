"""Proximal policy optimisation of a policy of vectors, with or without a planner.

Schulman et al., "Proximal Policy Optimization Algorithms" (2017). Log-probabilities are those of
the policy that acted, recorded when it did. Importance weights multiply the loss of a step outside
the clipping, where they are no change of the policy. The larger of clipped and plain value losses
is taken for each step, not of their means.

With a planner, the policy is the planner's own, and plans are rebuilt from their windows so that
gradients reach the encoder. Without one, plans are inputs like any other.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from echoic.agents import checkpoint
from echoic.agents.devices import resolve
from echoic.agents.plans import LatentPlanningOptimizer, PolicyNetwork, SoftPrefixAdapter
from echoic.agents.training.config import PPOConfig
from echoic.agents.updates import clipped_gain, step
from echoic.errors import ArgumentError, CheckpointError
from echoic.primitives import compute_gae, compute_vtrace

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from echoic.agents.training.config import TrainingConfig

__all__ = [
    "GAECalculator",
    "PPOConfig",
    "PPOLearner",
    "PPOTrainingStep",
    "ValueNetwork",
    "VectorLearner",
]

_KIND = "PPO learner"
# Rows that are evaluated at a time.
_CHUNK = 2048
# Tensors by name; see ActorGroup.collect.
Batch = SimpleNamespace


class GAECalculator:
    """Computes advantages and returns.

    Args:
        config: Any object with ``gamma`` and ``gae_lambda``, such as a ``PPOConfig``.

    >>> calculator = GAECalculator(PPOConfig(gamma=0.5, gae_lambda=1.0))
    >>> calculator.compute_advantages([[1.0, 1.0]], [[0.0, 0.0]], [[0, 1]])
    (array([[1.5, 1. ]]), array([[1.5, 1. ]]))
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def compute_advantages(
        self, rewards: Any, values: Any, dones: Any, next_values: Any = None
    ) -> tuple[Any, Any]:
        """Return advantages and returns of sequences ``(B, T)``.

        Nothing follows a step that is done. ``next_values`` ``(B,)`` are those of the states after
        the last steps, needed where a sequence ends within an episode; default: 0.
        """
        last = np.zeros(len(rewards)) if next_values is None else next_values
        gamma, lam = self.config.gamma, self.config.gae_lambda
        return compute_gae(rewards, values, dones, last, gamma, lam, time_axis=1)

    def compute_advantages_single_episode(
        self, rewards: Any, values: Any, next_value: float = 0.0
    ) -> tuple[Any, Any]:
        """Return those of one episode ``(T,)``; ``next_value`` is for one that is cut off."""
        dones, config = np.zeros(len(rewards)), self.config
        return compute_gae(rewards, values, dones, next_value, config.gamma, config.gae_lambda)


@dataclass
class PPOTrainingStep:
    """`B` steps in any order.

    Attributes:
        states: ``(B, state_dim)``.
        latent_plans: ``(B, latent_dim)``, the plans acted on.
        values: Of the states when acting.
        log_probs: Of the actions, under the policy that acted.
        advantages: Along the sequences that the steps are from.
        returns: Targets of values.
        importance_weights: For steps that were not drawn evenly.
        windows: ``(B, k + 1, state_dim)``, of the plans; ``masks`` ``(B, k + 1)``, which of their
            places hold a state. Without windows plans are inputs: the encoder does not learn.
        plan_noise: ``(B, latent_dim)``, of the plans, in standard deviations.
        previous_windows: Windows of the steps before, and ``previous_masks``.
        pairs: Where the step before is of the same episode, and its window is right.
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
        return self._each(lambda one: one[index])

    def to(self, device: Any) -> PPOTrainingStep:
        """Return the steps as tensors on a device, numbers in single precision."""

        def moved(one: Any) -> Any:
            tensor = torch.as_tensor(one, device=device)
            return tensor.float() if tensor.is_floating_point() else tensor

        return self._each(moved)

    def _each(self, function: Any) -> PPOTrainingStep:
        fields = vars(self).items()
        return PPOTrainingStep(**{k: None if v is None else function(v) for k, v in fields})

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
        **columns: Any,
    ) -> PPOTrainingStep:
        """Make steps of a rollout, with advantages along its true sequences.

        ``starts`` are true where an episode starts with the state; ``columns`` are other fields of
        this class, ``windows`` if the planner is to learn. The rest is as for
        :func:`~echoic.primitives.compute_gae`. All are ``(T, N, ...)``, time first, but
        ``next_values`` ``(N,)``.
        """
        rewards, values = torch.as_tensor(rewards), torch.as_tensor(values)
        advantages, returns = compute_gae(
            rewards,
            values,
            torch.as_tensor(dones),
            torch.as_tensor(next_values),
            gae.config.gamma,
            gae.config.gae_lambda,
            truncated=truncated,
            final_values=final_values,
            time_axis=0,
        )
        known = {name: torch.as_tensor(one) for name, one in columns.items() if one is not None}
        made = {"rewards": rewards, "values": values, "advantages": advantages, "returns": returns}
        given = {**known, **made}
        if "windows" in given:
            # The step before the first one is in another rollout: it has no pair.
            given["pairs"] = ~torch.as_tensor(starts, dtype=torch.bool)
            given["pairs"][0] = False
            for name in {"windows", "masks"} & given.keys():
                given[f"previous_{name}"] = torch.cat([given[name][:1], given[name][:-1]])
        return cls(**{name: one.flatten(0, 1) for name, one in given.items()})


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


class Evaluation(NamedTuple):
    """Outputs of the networks for `B` steps, with gradients.

    The plans' divergence is per dimension, in nats and without a gradient; NaN: not measured.
    """

    log_probs: Any
    #: Log-probabilities of the actions taken.
    chosen: Any
    values: Any
    #: Weighted cost of the plans' changes.
    plan_cost: Any
    plan_divergence: Any


def masked(logits: Any, action_masks: Any = None) -> Any:
    """Return log-probabilities of actions; those of masked ones are far below zero.

    Not minus infinity, with which an entropy would be NaN.
    """
    if action_masks is not None:
        logits = logits.masked_fill(~action_masks, -1e9)
    return logits.log_softmax(dim=-1)


class PPOLearner:
    """Trains a policy, its values, and the planner it acts with.

    Args:
        state_dim: Numbers of a state.
        action_dim: Number of actions.
        latent_dim: Numbers of a plan.
        config: All other settings.
        device: Device of the networks; the CPU, with a warning, where CUDA is missing.
        planner: A :class:`~echoic.agents.plans.LatentPlanningOptimizer`. Its policy is
            then ``policy_network``, and its encoder learns through it.
        seed: Seed of minibatches and actions; by default drawn from torch's own generator.
        hidden_dim: Width of the networks, without a planner.
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        latent_dim: int,
        config: PPOConfig,
        device: Any = "cuda",
        *,
        planner: Any = None,
        seed: int | None = None,
        hidden_dim: int = 512,
    ) -> None:
        self.config = config
        self.device = resolve(device)
        self.planner = planner
        sizes = state_dim, action_dim, latent_dim
        if planner is None:
            self.policy_network = PolicyNetwork(*sizes, hidden_dim, 0.5, self.device)
        else:
            self.policy_network = policy = planner.policy
            hidden_dim = planner.config.hidden_dim
            found = policy.state_dim, policy.action_dim, policy.latent_dim
            if found != sizes:
                names = "state_dim, action_dim and latent_dim"
                raise ArgumentError(f"expected a planner with {names} {sizes}, got {found}")
        alpha = self.policy_network.adapter.alpha
        self.value_network = ValueNetwork(state_dim, latent_dim, hidden_dim, alpha).to(self.device)
        own = [*self.policy_network.parameters(), *self.value_network.parameters()]
        groups = [{"params": own, "lr": config.learning_rate}]
        if planner is not None:
            encoder = list(planner.encoder.parameters())
            groups.append({"params": encoder, "lr": planner.config.learning_rate})
        self.optimizer = torch.optim.Adam(groups)
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        self.generator = torch.Generator(self.device).manual_seed(seed)
        # The policy that ``kl_coef`` ties to, if it is not that of the start of an update.
        self.reference: Any = None
        self._metrics: dict[str, float] = {}

    def parameters(self) -> list[Any]:
        """Return all parameters that learn."""
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    def set_reference(self) -> None:
        """Keep the policy near a copy of itself as it is now."""
        self.reference = copy.deepcopy(self.policy_network).requires_grad_(False)

    @torch.no_grad()
    def get_value_estimate(self, states: Any, latent_plans: Any) -> Any:
        """Return the values of states, without a gradient."""
        return self.value_network(self._tensor(states), self._tensor(latent_plans))

    def get_action_and_log_prob(
        self, states: Any, latent_plans: Any, *, greedy: bool = False
    ) -> tuple[Any, Any]:
        """Draw actions; return them with their log-probabilities, for the training step."""
        given = self._tensor(states), self._tensor(latent_plans)
        drawn: tuple[Any, Any] = self.policy_network.sample_action(
            *given, greedy=greedy, generator=self.generator
        )
        return drawn

    def evaluate(self, steps: PPOTrainingStep) -> Evaluation:
        """Evaluate the networks for steps on the device."""
        plans, planner = steps.latent_plans, self.planner
        cost = torch.zeros((), device=self.device)
        divergence = torch.tensor(0.0 if planner is None else math.nan)
        if planner is not None and steps.windows is not None:
            posterior, plans = planner.replan(steps.windows, steps.masks, steps.plan_noise)
            if steps.previous_windows is not None and planner.config.kl_weight > 0.0:
                with torch.no_grad():
                    before = planner.encoder.posterior(steps.previous_windows, steps.previous_masks)
                raw, divergence = planner.divergence(posterior, before, steps.pairs)
                cost = planner.divergence.weight * raw
        log_probs = masked(self.policy_network(steps.states, plans), steps.action_masks)
        chosen = log_probs.gather(-1, steps.actions.long()[:, None]).squeeze(-1)
        values = self.value_network(steps.states, plans)
        return Evaluation(log_probs, chosen, values, cost, divergence)

    def compute_policy_loss(
        self, steps: PPOTrainingStep, evaluation: Evaluation | None = None
    ) -> Any:
        """Return the clipped loss of the policy, weighted outside the clipping."""
        found = self.evaluate(steps) if evaluation is None else evaluation
        ratio, reach = (found.chosen - steps.log_probs).exp(), self.config.clip_epsilon
        return -_weighted(clipped_gain(ratio, steps.advantages, reach, reach)[0], steps)

    def compute_value_loss(
        self, steps: PPOTrainingStep, evaluation: Evaluation | None = None
    ) -> Any:
        """Return half the squared error of values: the larger of clipped and plain, by steps."""
        found = self.evaluate(steps) if evaluation is None else evaluation
        error = (found.values - steps.returns).square()
        if self.config.value_clip:
            reach = self.config.clip_epsilon
            near = steps.values + (found.values - steps.values).clamp(-reach, reach)
            error = torch.maximum(error, (near - steps.returns).square())
        return 0.5 * _weighted(error, steps)

    def update(self, steps: PPOTrainingStep, *, epochs: int | None = None) -> dict[str, float]:
        """Learn from steps, in minibatches and epochs.

        When the policy has moved by more than ``target_kl``, the update ends with all of its
        epochs, and the minibatch that showed it is not stepped on.

        Args:
            steps: Steps to learn from.
            epochs: Used in place of ``num_epochs``.

        Returns:
            Means over minibatches stepped on (if none was, of the one evaluated) of
            ``policy_loss``, ``value_loss``, ``entropy``, ``reference_kl``, ``plan_divergence``,
            ``clip_fraction`` and ``grad_norm``, NaN if not measured; how far the ratio was from 1
            at most in the first and in the last minibatch, ``first_ratio_gap`` and
            ``last_ratio_gap``; ``approx_kl`` of the last one; ``minibatches`` stepped on;
            ``epochs`` begun; and ``stopped``, 1 if ``target_kl`` ended the update.

        Raises:
            FloatingPointError: If an output of the networks for a minibatch, or its gradient, is
                not finite. It was not stepped on; those before it were.
        """
        if len(steps) == 0:
            raise ArgumentError("an update needs at least one step")
        config = self.config
        steps = steps.to(self.device)
        if config.normalize_advantages and len(steps) > 1:
            raw = steps.advantages
            steps.advantages = (raw - raw.mean()) / (raw.std(correction=0) + 1e-8)
        anchor = self._anchor(steps)
        evaluated: list[dict[str, float]] = []
        stopped = False
        for index in self._minibatches(len(steps), epochs or config.num_epochs):
            loss, numbers = self._loss(steps[index], None if anchor is None else anchor[index])
            evaluated.append(numbers)
            if math.isnan(numbers["approx_kl"]):
                raise FloatingPointError(
                    "the policy's distance from the one that acted, approx_kl, is NaN; no step was "
                    "taken. Check the states and log-probabilities of the batch"
                )
            if stopped := numbers["approx_kl"] > config.target_kl:
                break
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            longest = config.max_grad_norm
            numbers["grad_norm"] = step(self.optimizer, self.parameters(), longest)
            if self.planner is not None:
                self.planner.after_step(numbers["plan_divergence"])
        taken = [one for one in evaluated if not math.isnan(one["grad_norm"])]
        self._metrics = {
            **{name: _mean(name, taken or evaluated) for name in evaluated[0]},
            "first_ratio_gap": evaluated[0]["ratio_gap"],
            "last_ratio_gap": evaluated[-1]["ratio_gap"],
            "approx_kl": evaluated[-1]["approx_kl"],
            "minibatches": float(len(taken)),
            "epochs": float(math.ceil(len(evaluated) / math.ceil(len(steps) / config.batch_size))),
            "stopped": float(stopped),
        }
        return dict(self._metrics)

    def _minibatches(self, count: int, epochs: int) -> Iterator[Any]:
        for _ in range(epochs):
            order = torch.randperm(count, generator=self.generator, device=self.device)
            yield from order.split(self.config.batch_size)

    def _loss(self, some: PPOTrainingStep, anchor: Any) -> tuple[Any, dict[str, float]]:
        """Return the loss of some steps, and the numbers behind it."""
        config = self.config
        found = self.evaluate(some)
        log_ratio = (found.chosen - some.log_probs).detach()
        ratio = log_ratio.exp()
        policy_loss = self.compute_policy_loss(some, found)
        value_loss = self.compute_value_loss(some, found)
        entropy = _weighted(-(found.log_probs.exp() * found.log_probs).sum(dim=-1), some)
        loss = policy_loss + config.value_loss_coef * value_loss + found.plan_cost
        loss = loss - config.entropy_coef * entropy
        reference_kl = torch.zeros(())
        if anchor is not None:
            gap = (found.log_probs.exp() * (found.log_probs - anchor)).sum(dim=-1)
            reference_kl = _weighted(gap, some)
            loss = loss + config.kl_coef * reference_kl
        parts = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "reference_kl": reference_kl,
            "plan_divergence": found.plan_divergence,
            "clip_fraction": ((ratio - 1.0).abs() > config.clip_epsilon).float().mean(),
            "ratio_gap": (ratio - 1.0).abs().max(),
            # Never negative, and of less variance than the mean of -log ratio (Schulman 2020).
            "approx_kl": (ratio - 1.0 - log_ratio).mean(),
        }
        numbers = {name: float(value.detach()) for name, value in parts.items()}
        return loss, {**numbers, "grad_norm": math.nan}

    def get_training_metrics(self) -> dict[str, float]:
        """Return the metrics of the latest update."""
        return dict(self._metrics)

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write networks, optimizer, reference and generators, and the planner, to a file."""
        checkpoint.save(path, self.state_dict(), kind=_KIND)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save_checkpoint`: on the CPU, bit for bit.

        Raises:
            CheckpointError: If the file is damaged, or of a learner of other sizes. Nothing was
                changed.
        """
        self.load_state_dict(checkpoint.load(path, kind=_KIND))

    @property
    def _networks(self) -> dict[str, Any]:
        known = {"policy": self.policy_network, "value": self.value_network}
        return known if self.reference is None else {**known, "reference": self.reference}

    def state_dict(self) -> dict[str, Any]:
        """Return all that learning changes."""
        return {
            "networks": {name: one.state_dict() for name, one in self._networks.items()},
            "planner": None if self.planner is None else self.planner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "metrics": self._metrics,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            CheckpointError: If the state does not fit. Nothing was changed.
        """
        with checkpoint.all_or_nothing(self._restore, self.state_dict(), kind=_KIND):
            self._restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        if (state["planner"] is None) != (self.planner is None):
            raise CheckpointError("only one of the checkpoint and the learner has a planner")
        self.reference = None
        if "reference" in state["networks"]:
            self.set_reference()
        checkpoint.check_fit(self._networks, state["networks"])
        checkpoint.check_optimizer(self.optimizer, state["optimizer"])
        for name, module in self._networks.items():
            module.load_state_dict(state["networks"][name])
        if self.planner is not None:
            self.planner.load_state_dict(state["planner"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self._metrics = state["metrics"]

    @torch.no_grad()
    def _anchor(self, steps: PPOTrainingStep) -> Any:
        """Return the reference's log-probabilities, given the plans that were acted on."""
        if self.config.kl_coef == 0.0:
            return None
        policy = self.policy_network if self.reference is None else self.reference
        return masked(policy(steps.states, steps.latent_plans), steps.action_masks)

    def _tensor(self, value: Any) -> Any:
        return torch.as_tensor(value, dtype=torch.float32, device=self.device)


class VectorLearner(PPOLearner):
    """Trains on new steps of a run, by PPO or V-trace, and on replayed ones.

    A replayed step is a sequence of length 1, weighted by ``w · min(1, π'/μ)``: μ acted, π' is the
    policy at the start of the update (Hilton et al., "Batch size-invariance for policy
    optimization", 2021), and `w` corrects for how the replay draws. Its plan is the one acted on:
    the encoder learns from new steps only, whose windows are known.

    With ``algorithm="impala"`` actors are an update behind. Advantages and the values' targets are
    V-trace's; one step is taken, so ratios are 1. The replay shares ``tracker``, its mean plan.
    """

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
        ppo = replace(config.ppo_config, **changes)
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
        names = {field.name for field in fields(PPOTrainingStep)}
        given = {name: one for name, one in vars(batch).items() if name in names} | blank
        return PPOTrainingStep(**{name: one.flatten(0, 1) for name, one in given.items()})

    @torch.no_grad()
    def _look(self, steps: PPOTrainingStep) -> tuple[Any, Any]:
        """Return the current log-probabilities of the actions, and the values."""
        # Without the plans' changes.
        moved = replace(steps, previous_windows=None).to(self.device)
        chunks = torch.arange(len(steps), device=self.device).split(_CHUNK)
        found = [self.evaluate(moved[index]) for index in chunks]
        return torch.cat([one.chosen for one in found]), torch.cat([one.values for one in found])


def _weighted(each: Any, steps: PPOTrainingStep) -> Any:
    """Return the mean over steps, each with its importance weight."""
    return (each if steps.importance_weights is None else each * steps.importance_weights).mean()


def _mean(name: str, rows: list[dict[str, float]]) -> float:
    """Return the mean of a number over the rows that measured it; NaN without one."""
    known = [row[name] for row in rows if not math.isnan(row[name])]
    return sum(known) / len(known) if known else math.nan
