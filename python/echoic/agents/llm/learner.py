"""GRPO, RLOO and PPO: causal language models that learn from what their answers earned.

Invariants:

1. The parameters change in ``optimizer.step()`` alone, once in each epoch, after a whole batch. A
   gradient that is not finite is an error before it.
2. How a batch is split into ranks, micro-batches and chunks of logits changes only the order of
   sums.
3. The model is in evaluation mode: with dropout, a token would have another probability than when
   it was drawn, at the same weights. Gradients are computed all the same.

There is no autocast: the model computes in its own dtype, as it does in the engine that drew, and
what is made of its logits is float32.
"""

from __future__ import annotations

import copy
import hashlib
import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch

from echoic.agents import _checks, checkpoint
from echoic.agents.devices import Ranks, put, resolve, shard, whole
from echoic.agents.llm.batch import TokenBatch, offsets_of
from echoic.agents.llm.lora import LoRAConfig, add_lora, has_lora, merged_weights
from echoic.agents.llm.loss import (
    Aggregation,
    RatioLevel,
    can_split,
    decoder_layers,
    importance_ratio,
    lay_out,
    make_value_head,
    recompute,
    score,
    token_kl,
    token_weights,
)
from echoic.agents.updates import MasterWeights, clipped_gain, step
from echoic.errors import ArgumentError, CheckpointError
from echoic.primitives import compute_batch_group_advantages, compute_gae
from echoic.rollouts import RolloutBatch

if TYPE_CHECKING:
    import os

    from torch import Tensor

    from echoic.agents.llm.loss import MicroBatch
    from echoic.agents.llm.soft_prefix import PlanPrefix

    Array = np.ndarray[Any, Any]

__all__ = [
    "GRPOConfig",
    "GRPOLearner",
    "PPOTokenConfig",
    "PPOTokenLearner",
    "RLOOConfig",
    "RLOOLearner",
    "TokenLearner",
    "TokenLearnerConfig",
]

# Settings that a checkpoint does not depend on.
_HOW = ("max_tokens", "chunk", "checkpointing", "distributed")
# Parts of a checkpoint.
_PARTS = {"policy", "optimizer", "updates", "made of"}


@dataclass(frozen=True)
class TokenLearnerConfig:
    """How a token policy learns. The defaults are those of :class:`GRPOConfig`."""

    #: Of AdamW without weight decay; ``optimizer`` of the learner has all that can be changed.
    learning_rate: float = 1e-6
    max_grad_norm: float = 1.0
    #: Passes over each batch.
    epochs: int = 1
    #: How far a ratio may be below and above 1 and still count.
    clip_low: float = 0.2
    clip_high: float = 0.28
    #: Ratio of a token, or the product or the geometric mean of those of a whole item.
    ratio_level: RatioLevel = "token"
    #: The ratio is to the policy that drew the token, or to the one before this update. In the
    #: second case each token is weighted by how much likelier it was before this update than when
    #: it was drawn, up to 2 (the decoupled objective of AReaL, arXiv:2505.24298).
    proximal: Literal["behaviour", "start"] = "behaviour"
    #: How tokens are averaged, see ``loss.token_weights``; ``fixed_length`` stands for any item's.
    aggregation: Aggregation = "token_mean"
    fixed_length: int | None = None
    #: Weight of the divergence from the reference policy. With 0 there is no such policy.
    kl_coef: float = 0.0
    #: Temperature at which the tokens were drawn.
    temperature: float = 1.0
    #: Most tokens of a micro-batch, with what fills rows up; ``None``: the whole batch.
    max_tokens: int | None = None
    #: Tokens whose logits are in memory at a time.
    chunk: int = 256
    #: Keep only the inputs of the model's layers for the gradient, and run each layer once more.
    checkpointing: bool = False
    #: Learn adapters only; ``None``: all parameters that require a gradient.
    lora: LoRAConfig | None = None
    #: Learn in all ranks of ``torch.distributed``, each from its share of a batch: ``"ddp"`` with
    #: the whole model, ``"fsdp"`` with a shard of it.
    distributed: Literal["ddp", "fsdp"] | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                _checks.one_of(self, name, get_args(hint))
        _checks.one_of(self, "distributed", (None, "ddp", "fsdp"))
        _checks.number(self, "learning_rate", "temperature", above=0)
        _checks.number(self, "max_grad_norm", above=0, finite=False)
        _checks.number(self, "clip_low", "clip_high", least=0, finite=False)
        _checks.number(self, "kl_coef", least=0)
        given = {name for name, value in vars(self).items() if value is not None}
        _checks.whole(self, "epochs", "chunk", *given & {"fixed_length", "max_tokens"})
        if (self.aggregation == "fixed_length") != (self.fixed_length is not None):
            raise ArgumentError(
                'fixed_length belongs to aggregation="fixed_length", and only there'
            )


class TokenLearner:
    """A policy, its optimizer and its reference: what the learners below share.

    Parameters of 16 bits learn by float32 copies (4 bytes more for each), so that steps which are
    smaller than their last digit add up.

    Args:
        policy: A causal model: ``policy(ids)`` returns logits (rows, places, vocabulary), or an
            object that has them as ``logits``, as transformers models do.
        config: Settings of this kind of learner.
        reference: Policy that ``kl_coef`` keeps this one near to, from then on frozen. By default
            the policy as it is now: a copy of it, or with LoRA the policy without its adapters.
        plans: A soft prefix that learns with the policy, at a learning rate of its own.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``, where models are moved to.
        seed: Seed of the first values of adapters.
    """

    _config: Any
    # What an item is compared with, unless values are learned.
    _baseline: Any = "mean"
    _has_values = False
    # The divergence is added to the loss, by the estimator k3, or subtracted from the rewards,
    # where k1 has no bias.
    _kl_in_reward = False

    def __init__(
        self,
        policy: Any,
        config: Any = None,
        *,
        reference: Any = None,
        plans: PlanPrefix | None = None,
        device: str | torch.device = "auto",
        seed: int = 0,
    ) -> None:
        self.config: Any = config or self._config()
        if type(self.config) is not self._config:
            kind = type(config).__name__
            raise ArgumentError(f"expected a {self._config.__name__} as config, got a {kind}")
        self.device = resolve(device)
        self.ranks = Ranks(self.config.distributed, self.device)
        if self.config.lora is not None:
            policy = add_lora(policy, self.config.lora, seed)
        #: The model that learns: with LoRA, the one that has the adapters.
        self.policy = policy.to(self.device).eval()
        self._chunk = self.config.chunk if can_split(self.policy, self.device) else None
        self._reference = self._make_reference(reference)
        if self._reference is not None:
            self.ranks.place(self._reference, decoder_layers(self._reference))
        layers = decoder_layers(self.policy)
        if self.config.checkpointing:
            recompute(layers)
        self.ranks.place(self.policy, layers)
        parameters = [one for one in self.policy.parameters() if one.requires_grad]
        if not parameters:
            raise ArgumentError("no parameter of the policy requires a gradient")
        self._masters = MasterWeights(parameters)
        self.optimizer = torch.optim.AdamW(
            self._masters.parameters, lr=self.config.learning_rate, weight_decay=0.0
        )
        #: The layer that learns values, of :class:`PPOTokenLearner`.
        self.value_head: Any = None
        if self._has_values:
            self.value_head = make_value_head(self.policy, self.device)
            self.ranks.place(self.value_head)
            self._add(self.value_head, self.config.value_learning_rate)
        #: The soft prefix that learns with the policy.
        self.plans = plans
        if plans is not None:
            if self.config.distributed is not None:
                raise ArgumentError("soft prefixes learn in one process: distributed must be None")
            self._add(plans.to(self.device), plans.config.learning_rate)
        #: Batches that were learned from.
        self.updates = 0

    def _add(self, module: Any, learning_rate: float) -> None:
        self.optimizer.add_param_group({"params": list(module.parameters()), "lr": learning_rate})

    def _make_reference(self, given: Any) -> Any:
        """Return the reference model; None without one, or if it is the policy without adapters."""
        if self.config.kl_coef == 0:
            if given is not None:
                raise ArgumentError("a reference was given, but kl_coef is 0: it would not be used")
            return None
        # Freezing the policy would end its learning: the policy as it is now is meant.
        own = given is None or given is self.policy
        if own and has_lora(self.policy):
            return None
        model = copy.deepcopy(self.policy) if own else given.to(self.device)
        return model.eval().requires_grad_(requires_grad=False)

    def update(self, batch: TokenBatch | RolloutBatch) -> dict[str, float]:
        """Learn from a batch.

        With ``distributed`` every rank calls this with its own share of the batch, and gets the
        metrics of the whole; a share may be empty.

        Returns:
            ``loss`` and its parts ``policy_loss`` and ``kl``; ``entropy``; ``clip_fraction``;
            ``ratio_mean``, ``ratio_min``, ``ratio_max``; ``effective_samples``, the share of tokens
            that the ratios leave; ``kl_behaviour``, the divergence from the policy that drew;
            ``grad_norm``, ``tokens``, ``items``, ``micro_batches``, ``reward``, ``advantage_std``;
            ``stepped``, 0 if nothing was drawn. Of PPO also ``value_loss``, ``value_mean``,
            ``explained_variance``. Epochs are averaged.

        Raises:
            ArgumentError: If an item is longer than ``max_tokens``.
            FloatingPointError: If the gradient is not finite. That step was not taken.
        """
        found = TokenBatch.from_rollouts(batch) if isinstance(batch, RolloutBatch) else batch
        models = [one for one in (self.policy, self._reference) if one is not None]
        plans = self.plans
        with nullcontext(found) if plans is None else plans.bound(found, *models) as bound:
            return self._update(bound)

    def _update(self, batch: TokenBatch) -> dict[str, float]:
        tokens, items, reward = self.ranks.sum(batch.mask.sum(), len(batch), batch.rewards.sum())
        metrics: dict[str, float] = {
            "items": int(items),
            "tokens": int(tokens),
            "reward": reward / max(items, 1),
        }
        if not tokens:
            return {**metrics, "stepped": 0.0, "loss": 0.0}
        self.policy.eval()
        parts, tensors, estimated = self._prepare(batch)
        epochs = [self._epoch(parts, tensors, tokens) for _ in range(self.config.epochs)]
        self.updates += 1
        means = {name: float(np.mean([one[name] for one in epochs])) for name in epochs[0]}
        return {**metrics, **means, **estimated, "micro_batches": len(parts)}

    def _parts(self, batch: TokenBatch) -> list[MicroBatch]:
        """Split the items that have drawn tokens into micro-batches, as many in each rank."""
        lengths, chosen = batch.lengths, []
        # Rows are as long as the longest: those of a length go together.
        left = sorted(np.flatnonzero(batch.drawn), key=lambda item: -lengths[item])
        while left:
            room = len(left)
            if self.config.max_tokens is not None:
                room = self.config.max_tokens // int(lengths[left[0]])
            if room == 0:
                raise ArgumentError(
                    f"item {left[0]} has {lengths[left[0]]} tokens, more than a micro-batch may "
                    f"have: max_tokens is {self.config.max_tokens}"
                )
            chosen.append(np.array(sorted(left[:room])))
            left = left[room:]
        # Shards are gathered in every pass, which takes all ranks: the last parts may be empty.
        empty = self.ranks.most(max(1, len(chosen))) - len(chosen)
        chosen += [np.zeros(0, np.int64)] * empty
        return [lay_out(batch, items, self.device) for items in chosen]

    def _prepare(
        self, batch: TokenBatch
    ) -> tuple[list[MicroBatch], dict[str, Tensor], dict[str, float]]:
        """Return micro-batches, what is the same for them in every epoch, (tokens,), and metrics.

        The tensors are ``behaviour``, ``weights``, ``advantages``, ``returns`` of PPO,
        ``reference``, and ``start``, the log-probabilities before this update, at first NaN.
        """
        config, mask = self.config, batch.mask
        parts = self._parts(batch)
        costs, tensors = np.zeros(len(batch.tokens)), {}
        if config.kl_coef > 0:
            is_off = self._reference is None
            with self.policy.disable_adapter() if is_off else nullcontext():
                model = self.policy if is_off else self._reference
                tensors["reference"] = self._look(model, batch, parts)
            if self._kl_in_reward:
                reference = tensors["reference"].cpu().numpy()
                costs[mask] = config.kl_coef * (batch.logprobs - reference)[mask]
        arrays, metrics = self._estimate(batch, parts, costs)
        arrays["behaviour"], arrays["start"] = batch.logprobs, np.full(len(costs), np.nan)
        arrays["weights"] = token_weights(
            batch, config.aggregation, config.fixed_length, self.ranks.sum
        )
        arrays["weights"] *= batch.importance[batch.items]
        tensors |= {name: put(one, np.float32, self.device) for name, one in arrays.items()}
        return parts, tensors, metrics

    def advantages(self, rewards: Array, group_sizes: Array) -> Array:
        """Return how much better than expected each item was, (items,)."""
        found = compute_batch_group_advantages(
            rewards,
            baseline=self._baseline,
            scale=self.config.scale,
            offsets=offsets_of(group_sizes),
        )
        return np.asarray(found)

    def _estimate(
        self, batch: TokenBatch, parts: list[MicroBatch], costs: Array
    ) -> tuple[dict[str, Array], dict[str, float]]:
        """Return ``advantages`` and ``returns``, and metrics; ``costs`` lower the rewards."""
        config, mask = self.config, batch.mask
        if self.value_head is None:
            rewards = batch.rewards - np.bincount(batch.items, costs, len(batch))
            found = self.advantages(rewards, batch.group_sizes)
            return {"advantages": found[batch.items]}, {"advantage_std": self._moments(found)[1]}
        values = self._look(self.policy, batch, parts, self.value_head).double().cpu().numpy()
        advantages, returns = np.zeros((2, len(values)))
        advantages[mask], returns[mask] = compute_gae(
            batch.drawn_rewards() - costs[mask],
            values[mask],
            None,
            np.zeros(len(batch)),
            config.gamma,
            config.gae_lambda,
            offsets=offsets_of(batch.drawn),
        )
        mean, deviation = self._moments(advantages[mask])
        _, spread = self._moments(returns[mask])
        _, error = self._moments((returns - values)[mask])
        advantages = (advantages - mean) / max(deviation, 1e-8)
        return {"advantages": advantages, "returns": returns}, {
            "advantage_std": deviation,
            "value_mean": self._moments(values[mask])[0],
            "explained_variance": 1 - (error / spread) ** 2 if spread > 0 else 0.0,
        }

    @torch.no_grad()
    def _look(
        self, model: Any, batch: TokenBatch, parts: list[MicroBatch], value_head: Any = None
    ) -> Tensor:
        """Return the log-probabilities of a model, or the values, (tokens,)."""
        seen = torch.zeros(len(batch.tokens), device=self.device)
        how = self.config.temperature, self._chunk, value_head
        for part in parts:
            logprobs, _, values = score(model, part, *how)
            seen[part.index] = (logprobs if values is None else values).float()
        return seen

    def _epoch(
        self, parts: list[MicroBatch], tensors: dict[str, Tensor], tokens: float
    ) -> dict[str, float]:
        """Take one step from a whole batch, a micro-batch at a time."""
        self.policy.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        reach = torch.full((2,), -torch.inf, dtype=torch.float64, device=self.device)
        for part in parts:
            loss, added, ratio = self._loss(part, tensors)
            (loss * self.ranks.factor).backward()
            self._masters.take_gradients()
            for name, value in added.items():
                sums[name] = sums.get(name, 0) + value.detach().double()
            if len(ratio):
                reach = reach.maximum(torch.stack([-ratio.min(), ratio.max()]).detach())
        # One read for all: each is a wait for the device.
        totals = self.ranks.reduce(torch.stack(list(sums.values()))).tolist()
        found = dict(zip(sums, totals, strict=True))
        for name in found.keys() - {"loss", "policy_loss", "value_loss"}:
            found[name] /= tokens
        found["effective_samples"] = found["ratio_mean"] ** 2 / found.pop("square")
        low, found["ratio_max"] = self.ranks.reduce(reach, largest=True).tolist()
        self._masters.follow()
        self.ranks.add_up(self._stepped_on())
        found["grad_norm"] = step(self.optimizer, self._stepped_on(), self.config.max_grad_norm)
        self._masters.give()
        self.optimizer.zero_grad(set_to_none=True)
        if self.plans is not None:
            found["plan_divergence"] = self.plans.after_step()
        return {**found, "ratio_min": -low, "stepped": 1.0}

    def _loss(
        self, part: MicroBatch, tensors: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return a micro-batch's share of the loss, sums for the metrics, and the ratios."""
        config = self.config
        how = config.temperature, self._chunk, self.value_head
        logprobs, entropy, values = score(self.policy, part, *how)
        logprobs = logprobs.float()
        of = {name: tensor[part.index] for name, tensor in tensors.items()}
        old, weights = of["behaviour"], of["weights"]
        items: Any = (part.rows, len(part.ids), config.ratio_level)
        if config.proximal == "start":
            # In the first epoch nothing has changed yet, so this is the policy before the update.
            start = of["start"].where(~of["start"].isnan(), logprobs.detach())
            tensors["start"][part.index] = start
            shift = importance_ratio(start - old, *items)
            old, weights = start, weights * shift.clamp(max=2)
        ratio = importance_ratio(logprobs - old, *items)
        gain, clipped = clipped_gain(ratio, of["advantages"], config.clip_low, config.clip_high)
        loss = policy_loss = -(gain * weights).sum()
        sums = {
            "policy_loss": policy_loss,
            "clip_fraction": clipped.sum(),
            "ratio_mean": ratio.sum(),
            "entropy": entropy.sum(),
            "kl_behaviour": token_kl(of["behaviour"], logprobs).sum(),
            "square": ratio.square().sum(),
        }
        if "reference" in of:
            divergence = token_kl(logprobs, of["reference"])
            sums["kl"] = divergence.sum()
            if not self._kl_in_reward:
                loss = loss + config.kl_coef * (divergence * of["weights"]).sum()
        if values is not None:
            error = (values - of["returns"]).square() / 2
            sums["value_loss"] = (error * of["weights"]).sum()
            loss = loss + config.value_loss_coef * sums["value_loss"]
        if self.plans is not None:
            loss = loss + self.plans.cost
        return loss, {"loss": loss, **sums}, ratio

    def _stepped_on(self) -> list[Tensor]:
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    def _moments(self, values: Array) -> tuple[float, float]:
        """Return mean and deviation over all ranks."""
        count, total = self.ranks.sum(len(values), values.sum())
        (square,) = self.ranks.sum(((values - total / count) ** 2).sum())
        return total / count, math.sqrt(square / count)

    def weights(self) -> dict[str, Tensor]:
        """Return the policy's weights for workers, adapters merged and shards put together.

        The names are those of the first model. With ``distributed`` every rank has to call this.
        """
        if has_lora(self.policy):
            return merged_weights(self.policy)
        return {name: whole(one).detach() for name, one in self.policy.state_dict().items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the learner's state to one file, all or nothing.

        It has the parameters that learn, their float32 copies where they have 16 bits, and the
        optimizer; of frozen parameters and the reference a fingerprint only. With ``distributed``
        every rank calls this, and rank 0 writes what one process would.
        """
        state = _whole(
            {
                "policy": self._trained(),
                "optimizer": self.optimizer.state_dict(),
                "updates": self.updates,
                "made of": self._made_of(),
            }
        )
        if self.ranks.rank == 0:
            checkpoint.save(path, state, kind=type(self).__name__)
        # The file is there when any rank goes on.
        self.ranks.most(0)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from what a learner of the same kind, settings and first model has saved.

        On the CPU, later updates are bit for bit those that would have followed. The number of
        ranks, and settings that are about memory, may be others.

        Raises:
            CheckpointError: If it is of another kind of learner, or of another model. Nothing was
                loaded.
        """
        kind = type(self).__name__
        state = checkpoint.load(path, kind=kind)
        with checkpoint.fitting(kind):
            if missing := _PARTS - state.keys():
                raise CheckpointError(f"{path} is damaged: it has no {', '.join(sorted(missing))}")
            mine, made_of, saved = self._trained(), self._made_of(), state["optimizer"]
            checkpoint.check_tensors("policy", mine, state["policy"])
            checkpoint.check_optimizer(self.optimizer, saved)
            if state["made of"] != made_of:
                odd = [name for name in made_of if made_of[name] != state["made of"].get(name)]
                raise CheckpointError(f"{path} was made with another {', '.join(odd)}")
            updates, stepped_on = int(state["updates"]), self._stepped_on()
            for index, averages in saved["state"].items():
                for name in ("exp_avg", "exp_avg_sq"):
                    averages[name] = shard(averages[name], stepped_on[index])
            # First, since it refuses groups that don't fit, while copying tensors can't fail.
            self.optimizer.load_state_dict(saved)
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(shard(state["policy"][name], tensor))
        self.updates = updates

    def _made_of(self) -> dict[str, Any]:
        """Return what has to be equal to continue: settings, and a digest of what never changes."""
        settings = {name: one for name, one in asdict(self.config).items() if name not in _HOW}
        return {**settings, "frozen model or reference": self._fingerprint}

    def _trained(self) -> dict[str, Tensor]:
        """Return the parameters that learn, each once: tied ones share a tensor."""
        named = dict(self.policy.named_parameters())
        if self.value_head is not None:
            named |= self.value_head.named_parameters(prefix="value_head")
        trained = {name: one.data for name, one in named.items() if one.requires_grad}
        if self.plans is not None:
            trained |= {f"plans.{name}": one for name, one in self.plans.state_dict().items()}
        return trained | {f"float32 {name}": one for name, one in self._masters.copies.items()}

    @cached_property
    def _fingerprint(self) -> str:
        """Digest of everything that an update reads and never writes."""
        digest = hashlib.sha256()
        frozen = [one for one in self.policy.named_parameters() if not one[1].requires_grad]
        frozen += self.policy.named_buffers()
        if self._reference is not None:
            frozen += self._reference.named_parameters()
        for name, tensor in frozen:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            raw = whole(tensor.detach()).contiguous().flatten().view(torch.uint8)
            digest.update(raw.cpu().numpy())
        return digest.hexdigest()


def _whole(tree: Any) -> Any:
    """Put the shards of a tree's tensors together."""
    if isinstance(tree, dict):
        return {name: _whole(one) for name, one in tree.items()}
    return [_whole(one) for one in tree] if type(tree) is list else whole(tree)


@dataclass(frozen=True)
class GRPOConfig(TokenLearnerConfig):
    """How GRPO learns."""

    #: Whether advantages are divided by their group's standard deviation.
    scale: Literal["group", "none"] = "group"


class GRPOLearner(TokenLearner):
    """A token policy that learns by GRPO, from how much better than its group's mean an item is."""

    _config = GRPOConfig


@dataclass(frozen=True)
class RLOOConfig(GRPOConfig):
    """How RLOO learns. On policy these defaults are REINFORCE, sequence by sequence."""

    # The gradient of a ratio at 1 is that of the sum of an item's log-probabilities.
    ratio_level: RatioLevel = "sequence"
    aggregation: Aggregation = "sequence_mean"
    scale: Literal["group", "none"] = "none"


class RLOOLearner(TokenLearner):
    """A token policy that learns by RLOO. A group of one item has nothing to be compared with.

    As an answer is not part of its own baseline, the gradient is unbiased; with the mean of the
    group it would be too small by ``1 / k``, for k answers.
    """

    _config = RLOOConfig
    _baseline = "leave_one_out"
    _kl_in_reward = True


@dataclass(frozen=True)
class PPOTokenConfig(TokenLearnerConfig):
    """How PPO learns from tokens, of groups of any size."""

    clip_high: float = 0.2
    #: The discount of each token's reward.
    gamma: float = 1.0
    #: λ of GAE: 0 for differences of two values, 1 for what was earned until the end.
    gae_lambda: float = 0.95
    #: Weight of the values' loss.
    value_loss_coef: float = 0.1
    value_learning_rate: float = 5e-3

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        _checks.number(self, "gamma", "gae_lambda", least=0, most=1)
        _checks.number(self, "value_learning_rate", above=0)
        _checks.number(self, "value_loss_coef", least=0)


class PPOTokenLearner(TokenLearner):
    """A token policy that learns by PPO, with values of its own.

    The value of a token is that of what precedes it, and the end of an item is worth nothing.
    Tokens that were not drawn are no steps; what is earned at them counts for the drawn one before.
    Advantages are those of GAE (Schulman et al. 2016, arXiv:1506.02438) over the drawn tokens, with
    mean 0 and deviation 1 over the learned ones of a batch.
    """

    _config = PPOTokenConfig
    _has_values = True
    _kl_in_reward = True
