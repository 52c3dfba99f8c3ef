"""Proximal policy optimisation of a policy of vectors, with or without a planner.

Schulman et al., "Proximal Policy Optimization Algorithms" (2017). Details that matter:

1. Log-probabilities are those of the policy that acted, recorded when it did; the ratio is exactly
   of these actions. It is 1 in the first minibatch and nowhere else.
2. Importance weights multiply the loss of a step, outside the clipping: inside they would count as
   a change of the policy.
3. The larger of clipped and plain value losses is taken for each step, not of their means.
4. When the policy has moved by more than `target_kl`, the update ends with all of its epochs, and
   the minibatch that showed it is not stepped on.

With a planner, the policy is the planner's own, the one that acts, and plans are rebuilt from their
windows so that gradients reach the encoder. Without one, plans are inputs like any other.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from echoic.agents import _checks, checkpoint
from echoic.agents.devices import resolve
from echoic.agents.plans import PolicyNetwork, SoftPrefixAdapter
from echoic.agents.training.steps import PPOTrainingStep
from echoic.agents.updates import clipped_gain, step
from echoic.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = [
    "ActorCritic",
    "Evaluation",
    "PPOConfig",
    "PPOLearner",
    "PPOTrainingStep",
    "ValueNetwork",
    "masked",
]


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
                    f"{found}, expected {(state_dim, action_dim, latent_dim)}"
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
        """Evaluate a :class:`~echoic.agents.training.PPOTrainingStep` on the device.

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


_KIND = "PPO learner"
_AVERAGED = (
    "policy_loss",
    "value_loss",
    "entropy",
    "reference_kl",
    "plan_divergence",
    "clip_fraction",
)


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO.

    Attributes:
        learning_rate: Of Adam, for policy and values.
        clip_epsilon: How far a ratio of probabilities may move for its gain; also how far a value
            may, with ``value_clip``.
        value_loss_coef: Weight of the values' loss.
        entropy_coef: Weight of the policy's entropy, which is rewarded.
        kl_coef: Weight of ``KL(π || reference)``. The reference is that of ``set_reference``, or
            without it the policy at the start of the update.
        max_grad_norm: Length that a gradient is clipped to.
        gae_lambda: λ of GAE.
        gamma: The discount.
        num_epochs: Passes over the steps.
        batch_size: Steps of a minibatch.
        target_kl: Estimated ``KL(old || new)`` at which an update ends; infinity: never.
        value_clip: Whether values may move by ``clip_epsilon`` only.
        normalize_advantages: Whether advantages get mean 0 and deviation 1 over the steps of an
            update.
    """

    learning_rate: float = 3e-4
    clip_epsilon: float = 0.2
    value_loss_coef: float = 0.5
    entropy_coef: float = 0.01
    kl_coef: float = 0.1
    max_grad_norm: float = 1.0
    gae_lambda: float = 0.95
    gamma: float = 0.99
    num_epochs: int = 4
    batch_size: int = 256
    target_kl: float = 0.01
    value_clip: bool = True
    normalize_advantages: bool = True

    def __post_init__(self) -> None:
        _checks.number(self, "learning_rate", "clip_epsilon", "max_grad_norm", above=0)
        _checks.number(self, "value_loss_coef", "entropy_coef", "kl_coef", least=0)
        _checks.number(self, "gae_lambda", "gamma", least=0, most=1)
        _checks.whole(self, "num_epochs", "batch_size")
        _checks.number(self, "target_kl", above=0, finite=False)


class PPOLearner:
    """Trains a policy, its values, and the planner it acts with.

    Args:
        state_dim: Numbers of a state.
        action_dim: Number of actions.
        latent_dim: Numbers of a plan.
        config: All other settings.
        device: Device of the networks; the CPU, with a warning, where CUDA is missing.
        planner: A :class:`~echoic.agents.plans.LatentPlanningOptimizer`. Its policy is
            then :attr:`policy_network`, and its encoder learns through it.
        seed: Seed of minibatches and actions; by default drawn from torch's own generator.
        hidden_dim: Width of the networks, without a planner.

    Attributes:
        policy_network: The policy that acts and learns.
        value_network: The values of states.
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
        self.networks = ActorCritic(
            state_dim, action_dim, latent_dim, self.device, planner, hidden_dim
        )
        self.policy_network = self.networks.policy
        self.value_network = self.networks.value
        self.planner = planner
        self.optimizer = torch.optim.Adam(self.networks.parameter_groups(config.learning_rate))
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._reference: Any = None
        self._metrics: dict[str, float] = {}
        # Numbers of the latest minibatch, also of one that was not stepped on.
        self._latest: dict[str, float] = {}

    def set_reference(self, policy: Any = None) -> None:
        """Keep the policy near this one; by default near a copy of itself as it is now."""
        kept = copy.deepcopy(self.policy_network if policy is None else policy)
        self._reference = kept.to(self.device).requires_grad_(False)

    # Acting.

    @torch.no_grad()
    def get_value_estimate(self, states: Any, latent_plans: Any) -> Any:
        """Return the values of states, without a gradient."""
        return self.value_network(self._tensor(states), self._tensor(latent_plans))

    def get_action_and_log_prob(
        self, states: Any, latent_plans: Any, *, greedy: bool = False
    ) -> tuple[Any, Any]:
        """Draw actions; return them with their log-probabilities, for the training step."""
        drawn: tuple[Any, Any] = self.policy_network.sample_action(
            self._tensor(states),
            self._tensor(latent_plans),
            greedy=greedy,
            generator=self.generator,
        )
        return drawn

    # Learning.

    def compute_policy_loss(
        self, steps: PPOTrainingStep, evaluation: Evaluation | None = None
    ) -> Any:
        """Return the clipped loss of the policy, weighted outside the clipping."""
        found = self.networks.evaluate(steps) if evaluation is None else evaluation
        ratio, reach = (found.chosen - steps.log_probs).exp(), self.config.clip_epsilon
        return -_weighted(clipped_gain(ratio, steps.advantages, reach, reach)[0], steps)

    def compute_value_loss(
        self, steps: PPOTrainingStep, evaluation: Evaluation | None = None
    ) -> Any:
        """Return half the squared error of values: the larger of clipped and plain, by steps."""
        found = self.networks.evaluate(steps) if evaluation is None else evaluation
        error = (found.values - steps.returns).square()
        if self.config.value_clip:
            reach = self.config.clip_epsilon
            near = steps.values + (found.values - steps.values).clamp(-reach, reach)
            error = torch.maximum(error, (near - steps.returns).square())
        return 0.5 * _weighted(error, steps)

    def update(self, steps: PPOTrainingStep, *, epochs: int | None = None) -> dict[str, float]:
        """Learn from steps, in minibatches and epochs.

        Args:
            steps: Steps to learn from.
            epochs: Used in place of ``num_epochs``.

        Returns:
            Means over minibatches stepped on of ``policy_loss``, ``value_loss``, ``entropy``,
            ``reference_kl``, ``plan_divergence``, ``clip_fraction`` and ``grad_norm``, each over
            those that measured it, and NaN if none did;
            ``first_ratio_gap`` and ``last_ratio_gap``, how far the ratio was from 1 at most in the
            first and in the last minibatch; ``approx_kl`` of the last one; ``minibatches`` stepped
            on; ``epochs`` begun; and ``stopped``, 1 if ``target_kl`` ended the update.

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
        found_of: dict[str, list[float]] = {name: [] for name in (*_AVERAGED, "grad_norm")}
        gaps: list[float] = []
        done = begun = 0
        approx_kl = 0.0
        stopped = False
        while begun < (epochs or config.num_epochs) and not stopped:
            begun += 1
            order = torch.randperm(len(steps), generator=self.generator, device=self.device)
            for index in order.split(config.batch_size):
                parts = self._parts(index)
                evaluated = self._gradients(
                    [(steps[one], None if anchor is None else anchor[one]) for one in parts]
                )
                counts = [len(one) for one in parts]
                self._latest = numbers = {
                    name: _mean([one[1][name] for one in evaluated], counts)
                    for name in (*_AVERAGED, "approx_kl")
                }
                gaps.append(max(one[1]["ratio_gap"] for one in evaluated))
                approx_kl = numbers["approx_kl"]
                if math.isnan(approx_kl):
                    raise FloatingPointError(
                        "the policy's distance from the one that acted, approx_kl, is NaN; no step "
                        "was taken. Check the states and log-probabilities of the batch"
                    )
                if not approx_kl <= config.target_kl:
                    stopped = True
                    break
                norm = self._step_along([one[0] for one in evaluated], counts)
                if self.planner is not None:
                    self.planner.after_step(numbers["plan_divergence"])
                for name, values in found_of.items():
                    value = norm if name == "grad_norm" else numbers[name]
                    if math.isfinite(value):
                        values.append(value)
                done += 1
        self._metrics = {
            **{
                name: sum(values) / len(values) if values else math.nan
                for name, values in found_of.items()
            },
            "first_ratio_gap": gaps[0],
            "last_ratio_gap": gaps[-1],
            "approx_kl": approx_kl,
            "minibatches": float(done),
            "epochs": float(begun),
            "stopped": float(stopped),
        }
        return dict(self._metrics)

    def gradient(self, some: PPOTrainingStep, anchor: Any) -> tuple[list[Any], dict[str, float]]:
        """Return the gradient of the loss on some steps, and the numbers behind it.

        Args:
            some: The steps.
            anchor: The reference's log-probabilities of all actions; None for no reference.
        """
        config = self.config
        found = self.networks.evaluate(some)
        log_ratio = (found.chosen - some.log_probs).detach()
        ratio = log_ratio.exp()
        policy_loss = self.compute_policy_loss(some, found)
        value_loss = self.compute_value_loss(some, found)
        entropy = _weighted(found.entropy, some)
        loss = policy_loss + config.value_loss_coef * value_loss + found.plan_cost
        loss = loss - config.entropy_coef * entropy
        reference_kl = torch.zeros(())
        if anchor is not None:
            gap = (found.log_probs.exp() * (found.log_probs - anchor)).sum(dim=-1)
            reference_kl = _weighted(gap, some)
            loss = loss + config.kl_coef * reference_kl
        slopes = torch.autograd.grad(loss, list(self.networks.parameters()), allow_unused=True)
        parts = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "reference_kl": reference_kl,
            "plan_divergence": found.plan_divergence,
        }
        return list(slopes), {
            **{name: float(value.detach()) for name, value in parts.items()},
            "clip_fraction": float(((ratio - 1.0).abs() > config.clip_epsilon).float().mean()),
            "ratio_gap": float((ratio - 1.0).abs().max()),
            # Never negative, and of less variance than the mean of -log ratio (Schulman 2020).
            "approx_kl": float((ratio - 1.0 - log_ratio).mean()),
        }

    def _parts(self, index: Any) -> list[Any]:
        """Divide the rows of a minibatch into parts whose gradients are averaged."""
        return [index]

    def _gradients(self, parts: list[Any]) -> list[tuple[list[Any], dict[str, float]]]:
        return [self.gradient(*part) for part in parts]

    def _step_along(self, slopes: list[list[Any]], counts: list[int]) -> float:
        """Take a step along the mean of gradients, weighted by rows; parts are added in order."""
        total = sum(counts)
        self.optimizer.zero_grad(set_to_none=True)
        for i, parameter in enumerate(self.networks.parameters()):
            for slope, count in zip(slopes, counts, strict=True):
                if slope[i] is None:
                    continue
                share = slope[i] if count == total else slope[i] * (count / total)
                parameter.grad = share if parameter.grad is None else parameter.grad + share
        return step(self.optimizer, self.networks.parameters(), self.config.max_grad_norm)

    def get_training_metrics(self) -> dict[str, float]:
        """Return the metrics of the latest update."""
        return dict(self._metrics)

    # Checkpoints.

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write networks, optimizer, reference and generators, and the planner, to a file."""
        checkpoint.save(path, {**self.state_dict(), "metrics": self._metrics}, kind=_KIND)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of :meth:`save_checkpoint`: on the CPU, bit for bit.

        Raises:
            CheckpointError: If the file is damaged, or of a learner of other sizes. Nothing was
                changed.
        """
        state = checkpoint.load(path, kind=_KIND)
        self.load_state_dict(state)
        self._metrics = state["metrics"]

    def state_dict(self) -> dict[str, Any]:
        """Return all that learning changes."""
        reference = None if self._reference is None else self._reference.state_dict()
        return {**self._state(), "reference": reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            CheckpointError: If the state does not fit. Nothing was changed.
        """
        with checkpoint.all_or_nothing(self._restore, self._state(), kind=_KIND):
            self._restore(state)
            reference = None
            if state["reference"] is not None:
                checkpoint.check_fit({"reference": self.policy_network}, state)
                reference = copy.deepcopy(self.policy_network).requires_grad_(False)
                reference.load_state_dict(state["reference"])
        self._reference = reference

    def _state(self) -> dict[str, Any]:
        return {
            "networks": self.networks.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        checkpoint.check_optimizer(self.optimizer, state["optimizer"])
        self.networks.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])

    @torch.no_grad()
    def _anchor(self, steps: PPOTrainingStep) -> Any:
        """Return the reference's log-probabilities, given the plans that were acted on."""
        if self.config.kl_coef == 0.0:
            return None
        policy = self.policy_network if self._reference is None else self._reference
        return masked(policy(steps.states, steps.latent_plans), steps.action_masks)

    def _tensor(self, value: Any) -> Any:
        return torch.as_tensor(value, dtype=torch.float32, device=self.device)


def _weighted(each: Any, steps: PPOTrainingStep) -> Any:
    """Return the mean over steps, each with its importance weight."""
    return (each if steps.importance_weights is None else each * steps.importance_weights).mean()


def _mean(values: list[float], counts: list[int]) -> float:
    """Return the mean of the finite values, weighted by rows; NaN without one."""
    known = [(v, n) for v, n in zip(values, counts, strict=True) if math.isfinite(v)]
    total = sum(n for _, n in known)
    return sum(v * n for v, n in known) / total if total else math.nan
