"""GRPO, RLOO and PPO: causal language models that learn from what their answers earned.

A :class:`TokenLearner` compares each token's probability with the one that it had when it was
drawn, and raises that of tokens which were better than expected. GRPO (arXiv:2402.03300) compares
an answer with the mean of its group; DAPO (2503.14476), Dr. GRPO (2503.20783) and GSPO (2507.18071)
are settings. RLOO (2402.14740) is REINFORCE with the mean of the *other* answers as the baseline.
PPO (1707.06347) compares with values, which a layer on the model's last hidden states learns.

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
import json
import math
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from echoic.agents import _checks, checkpoint
from echoic.agents.devices import Distributed, Ranks, put, resolve, shard, whole
from echoic.agents.llm.batch import TokenBatch, offsets_of
from echoic.agents.llm.lora import LoRAConfig, add_lora, has_lora, merged_weights
from echoic.agents.llm.loss import (
    Aggregation,
    KlKind,
    RatioLevel,
    can_split,
    decoder_layers,
    importance_ratio,
    keeps_apart,
    lay_out,
    make_value_head,
    recomputed,
    score,
    token_kl,
    token_weights,
    value_error,
)
from echoic.agents.updates import MasterWeights, clipped_gain, step
from echoic.errors import ArgumentError, CheckpointError
from echoic.primitives import (
    compute_batch_group_advantages,
    compute_gae,
    compute_token_kl,
    plan_micro_batches,
)
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

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class TokenLearnerConfig:
    """How a token policy learns. The defaults are those of :class:`GRPOConfig`."""

    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    #: Of Adam.
    betas: tuple[float, float] = (0.9, 0.999)
    #: How the learning rate falls from its value to 0 at step ``total_steps``, if it does.
    schedule: Schedule = "constant"
    #: Steps in which it first rises from 0 to its value.
    warmup_steps: int = 0
    #: Last step of the schedules "linear" and "cosine".
    total_steps: int | None = None
    #: The gradient is clipped to this length; ``None``: not at all.
    max_grad_norm: float | None = 1.0
    #: Passes over each batch.
    epochs: int = 1

    #: How far a ratio may be below and above 1 and still count; ``None``: any distance.
    clip_low: float | None = 0.2
    clip_high: float | None = 0.28
    #: Ratio of a token, or the product or the geometric mean of those of a whole item.
    ratio_level: RatioLevel = "token"
    #: The ratio is to the policy that drew the token, or to the one before this update. In the
    #: second case each token is weighted by how much likelier it was before this update than when
    #: it was drawn, up to ``max_importance`` (the decoupled objective of AReaL, arXiv:2505.24298).
    proximal: Literal["behaviour", "start"] = "behaviour"
    max_importance: float = 2.0
    #: How tokens are averaged, see ``loss.token_weights``.
    aggregation: Aggregation = "token_mean"
    #: The length that stands for every item's, for ``aggregation="fixed_length"``.
    fixed_length: int | None = None
    #: Nothing is learned from tokens that are more versions old; at the level of sequences, nor
    #: from the rest of their item.
    max_lag: int | None = None

    #: Weight of the divergence from the reference policy. With 0 there is no such policy.
    kl_coef: float = 0.0
    kl_kind: KlKind = "k3"
    #: Whether the divergence is added to the loss, or subtracted from the rewards.
    kl_place: Literal["loss", "reward"] = "loss"
    entropy_coef: float = 0.0

    #: Temperature at which the tokens were drawn.
    temperature: float = 1.0
    #: Most tokens of a micro-batch, with what fills rows up; ``None``: the whole batch.
    max_tokens: int | None = None
    #: Lay items out in one row without gaps, for transformers models that keep them apart, instead
    #: of a row for each.
    packed: bool = False
    #: Tokens whose logits are in memory at a time; ``None``: those of a micro-batch.
    chunk: int | None = 256
    #: Keep only the inputs of the model's layers for the gradient, and run each layer once more.
    checkpointing: bool = False
    #: Learn adapters only; ``None``: all parameters that require a gradient.
    lora: LoRAConfig | None = None
    #: Learn in all ranks of ``torch.distributed``, each from its share of a batch: ``"ddp"`` with
    #: the whole model, ``"fsdp"`` with a shard of it.
    distributed: Distributed | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        for name in _CHOICES.keys() & vars(self).keys():
            _checks.one_of(self, name, _CHOICES[name])
        given = {name for name, value in vars(self).items() if value is not None}
        above = {"learning_rate", "temperature", "max_importance", "max_grad_norm"}
        least = {"weight_decay", "clip_low", "clip_high", "kl_coef", "entropy_coef"}
        _checks.number(self, *given & {*above, "value_learning_rate", "value_clip"}, above=0)
        _checks.number(self, *given & {*least, "value_loss_coef"}, least=0)
        _checks.number(self, *given & {"gamma", "gae_lambda"}, least=0, most=1)
        _checks.whole(self, *given & {"warmup_steps", "max_lag"}, least=0)
        counts = {"epochs", "fixed_length", "max_tokens", "total_steps", "chunk"}
        _checks.whole(self, *given & counts)
        wrong = ""
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            wrong = f"betas are two numbers from 0 to below 1, got {self.betas}"
        elif (self.schedule == "constant") != (self.total_steps is None):
            wrong = (
                'schedules "linear" and "cosine" end at total_steps, and "constant" has none; got '
                f"{self.schedule!r} and {self.total_steps}"
            )
        elif self.total_steps is not None and self.total_steps <= self.warmup_steps:
            wrong = f"total_steps ({self.total_steps}) come after warmup_steps {self.warmup_steps}"
        elif (self.aggregation == "fixed_length") != (self.fixed_length is not None):
            wrong = 'fixed_length belongs to aggregation="fixed_length", and only there'
        elif self.kl_coef > 0 and self.kl_place == "loss" and self.kl_kind == "k1":
            wrong = (
                'the gradient of k1 is 0 on average: take kl_kind "k2" or "k3", or '
                'kl_place="reward", where k1 is right'
            )
        if wrong:
            raise ArgumentError(wrong)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.total_steps is None:
            return self.learning_rate
        done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        left = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * left


_CHOICES: dict[str, tuple[Any, ...]] = {
    "schedule": get_args(Schedule),
    "ratio_level": get_args(RatioLevel),
    "proximal": ("behaviour", "start"),
    "aggregation": get_args(Aggregation),
    "kl_kind": get_args(KlKind),
    "kl_place": ("loss", "reward"),
    "distributed": (None, *get_args(Distributed)),
    "scale": ("group", "batch", "none"),
    "ddof": (0, 1),
}
# Settings that a checkpoint does not depend on.
_HOW = ("max_tokens", "packed", "chunk", "checkpointing", "distributed")
# Parts of a checkpoint.
_PARTS = {"policy", "optimizer", "updates", "steps", "config", "frozen"}


@dataclass(frozen=True, eq=False)
class _Work:
    """A batch, and what is the same for it in every epoch. Tensors are (tokens,)."""

    parts: list[MicroBatch]
    #: How many tokens all ranks learn from.
    tokens: float
    #: ``behaviour``, ``weights``, ``advantages``, ``start``: the log-probabilities before this
    #: update, filled in the first epoch; ``values`` and ``returns`` of PPO, and ``reference``.
    tensors: dict[str, Tensor]


class TokenLearner(ABC):
    """A policy, its optimizer and its reference.

    Parameters of 16 bits learn by float32 copies (4 bytes more for each), so that steps which are
    smaller than their last digit add up.

    Args:
        policy: A causal model: ``policy(ids)`` returns logits (rows, places, vocabulary), or an
            object that has them as ``logits``, as transformers models do. It is moved to the
            device.
        config: Settings.
        reference: Policy that ``kl_coef`` keeps this one near to. By default the policy as it is
            now: a copy of it, or with LoRA the policy without its adapters. Another model belongs
            to the learner from then on: it is moved to the device, and frozen.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
    """

    _config: Any = TokenLearnerConfig
    _has_values = False

    def __init__(
        self,
        policy: Any,
        config: TokenLearnerConfig | None = None,
        *,
        reference: Any = None,
        device: str | torch.device = "auto",
    ) -> None:
        self.config: Any = config or self._config()
        if not isinstance(self.config, self._config):
            kind = type(config).__name__
            raise ArgumentError(f"expected a {self._config.__name__} as config, got a {kind}")
        self.device = resolve(device)
        self.ranks = Ranks(self.config.distributed, self.device)
        if self.config.lora is not None:
            policy = add_lora(policy, self.config.lora)
        #: The model that learns: with LoRA, the one that has the adapters.
        self.policy = policy.to(self.device).eval()
        self._chunk = self.config.chunk if can_split(self.policy, self.device) else None
        self._layers = decoder_layers(self.policy)
        if self.config.packed and not keeps_apart(self.policy, self.device):
            raise ArgumentError(
                "packed items attend to each other in this model: it takes no position_ids, or "
                "does not separate items by them; use packed=False"
            )
        if self.config.checkpointing and not self._layers:
            raise ArgumentError(
                "checkpointing needs a model of transformers, or one that has the names of its "
                "layers' classes in _no_split_modules"
            )
        self._reference = self._make_reference(reference)
        if self._reference is not None:
            self.ranks.place(self._reference, decoder_layers(self._reference))
        self.ranks.place(self.policy, self._layers)
        parameters = [one for one in self.policy.parameters() if one.requires_grad]
        if not parameters:
            raise ArgumentError("no parameter of the policy requires a gradient")
        self._masters = MasterWeights(parameters)
        self.optimizer = torch.optim.AdamW(
            self._masters.parameters,
            lr=self.config.learning_rate,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
        )
        # Of the optimizer's groups, when the schedule is at its height.
        self._rates = [self.config.learning_rate]
        #: The layer that learns values, of :class:`PPOTokenLearner`.
        self.value_head: Any = None
        if self._has_values:
            self.value_head = make_value_head(self.policy, self.device)
            self.ranks.place(self.value_head)
            self._add(self.value_head, self.config.value_learning_rate)
        #: The soft prefix that learns with the policy; see :meth:`attach`.
        self.plans: PlanPrefix | None = None
        #: Batches that were learned from.
        self.updates = 0
        #: Steps of the optimizer: one in each epoch of an update.
        self.steps = 0

    def _add(self, module: Any, learning_rate: float) -> None:
        self.optimizer.add_param_group({"params": list(module.parameters())})
        self._rates.append(learning_rate)

    def attach(self, plans: PlanPrefix) -> None:
        """Let a soft prefix learn with the policy, at a learning rate of its own.

        Raises:
            ArgumentError: If there is one already, or several ranks learn.
        """
        if self.plans is not None or self.config.distributed is not None:
            raise ArgumentError("a learner in one process takes one soft prefix, before it learns")
        self.plans = plans.to(self.device)
        self._add(plans, plans.config.learning_rate)

    def _make_reference(self, given: Any) -> Any:
        """Return the reference model; None without one, or if it is the policy without adapters."""
        if self.config.kl_coef == 0:
            if given is not None:
                raise ArgumentError("a reference was given, but kl_coef is 0: it would not be used")
            return None
        if given is self.policy:
            # Freezing it would end its learning: the policy as it is now is meant.
            given = None
        if given is None and has_lora(self.policy):
            return None
        model = copy.deepcopy(self.policy) if given is None else given.to(self.device)
        return model.eval().requires_grad_(requires_grad=False)

    @abstractmethod
    def _estimate(
        self, batch: TokenBatch, learned: Array, parts: list[MicroBatch], costs: Array
    ) -> tuple[dict[str, Array], dict[str, float]]:
        """Return arrays of tokens, ``advantages`` at least, and metrics.

        ``parts`` has all that the policy drew, however old; ``costs`` is what is subtracted from
        the reward at each token.
        """

    def update(self, batch: TokenBatch | RolloutBatch) -> dict[str, float]:
        """Learn from a batch.

        With ``distributed`` every rank calls this with its own share of the batch, and gets the
        metrics of the whole; a share may be empty.

        Returns:
            ``loss`` and its parts ``policy_loss``, ``kl``, ``entropy``; ``clip_fraction``, with
            those of its sides, ``clip_low_fraction`` and ``clip_high_fraction``; ``ratio_mean``,
            ``ratio_min``, ``ratio_max``, and ``effective_samples``, the share that the ratios
            leave; ``kl_behaviour``, the divergence from the policy that drew; ``grad_norm``,
            ``learning_rate``, ``tokens``, ``stale_tokens``, ``items``, ``micro_batches``,
            ``reward``, ``advantage_std``; ``stepped``, 0 if every token was too old. Of PPO also
            ``value_loss``, ``value_mean``, ``explained_variance``. Epochs are averaged.

        Raises:
            ArgumentError: If an item is longer than ``max_tokens``.
            FloatingPointError: If the gradient is not finite. That step was not taken.
        """
        found = TokenBatch.from_rollouts(batch) if isinstance(batch, RolloutBatch) else batch
        if self.plans is None:
            return self._update(found)
        models = [self.policy, *([self._reference] if self._reference is not None else [])]
        with self.plans.bound(found, *models) as bound:
            return self._update(bound)

    def _update(self, found: TokenBatch) -> dict[str, float]:
        learned = self._learned(found)
        tokens, drawn, items, reward = self.ranks.sum(
            learned.sum(), found.mask.sum(), len(found), found.rewards.sum()
        )
        metrics: dict[str, float] = {
            "items": int(items),
            "tokens": int(tokens),
            "stale_tokens": int(drawn - tokens),
            "reward": reward / max(items, 1),
        }
        if not tokens:
            return {**metrics, "stepped": 0.0, "loss": 0.0, "learning_rate": self._rate()}
        self.policy.eval()
        with recomputed(self._layers if self.config.checkpointing else ()):
            work, estimated = self._prepare(found, learned, tokens)
            epochs = [self._epoch(work, epoch) for epoch in range(self.config.epochs)]
        self.updates += 1
        means = {name: float(np.mean([one[name] for one in epochs])) for name in epochs[0]}
        return {**metrics, **means, **estimated, "micro_batches": len(work.parts)}

    def _learned(self, batch: TokenBatch) -> Array:
        """Return the mask of the policy's tokens that are not too old."""
        if self.config.max_lag is None:
            return batch.mask
        is_old = batch.mask & (batch.lags > self.config.max_lag)
        if self.config.ratio_level != "token":
            # The ratio of an item is that of all of its tokens, or of another item.
            is_old = (batch.count(is_old) > 0)[batch.items]
        return np.asarray(batch.mask & ~is_old)

    def _parts(self, batch: TokenBatch, mask: Array) -> list[MicroBatch]:
        """Split the items that have tokens in ``mask`` into micro-batches, as many in each rank."""
        items = np.flatnonzero(batch.count(mask))
        budget, lengths = self.config.max_tokens, batch.lengths[items]
        plan, count = np.zeros(len(items), np.int64), 1
        if budget is not None and len(items):
            plan, count = plan_micro_batches(lengths, np.zeros_like(lengths), 1, budget)
            if not self.config.packed:
                # Rows are as long as the longest: those of a length go together.
                count = room = 0
                for item in np.argsort(-lengths, kind="stable"):
                    if room == 0:
                        count, room = count + 1, budget // lengths[item]
                    plan[item], room = count - 1, room - 1
        # Shards are gathered in every pass, which takes all ranks: the last parts may be empty.
        chosen = [items[plan == number] for number in range(self.ranks.most(count))]
        how: Any = {"packed": self.config.packed, "device": self.device}
        return [lay_out(batch, mask, one, **how) for one in chosen]

    def _prepare(
        self, batch: TokenBatch, learned: Array, tokens: float
    ) -> tuple[_Work, dict[str, float]]:
        config = self.config
        parts = self._parts(batch, learned)
        drawn = parts if learned is batch.mask else self._parts(batch, batch.mask)
        costs, tensors = np.zeros(len(batch.tokens)), {}
        if config.kl_coef > 0:
            in_reward = config.kl_place == "reward"
            is_off = self._reference is None
            with self.policy.disable_adapter() if is_off else nullcontext():
                tensors["reference"] = self._look(
                    self.policy if is_off else self._reference, batch, drawn if in_reward else parts
                )
            if in_reward:
                costs[batch.mask] = config.kl_coef * compute_token_kl(
                    batch.logprobs[batch.mask],
                    tensors["reference"].cpu().numpy()[batch.mask],
                    estimator=config.kl_kind,
                    reduction="none",
                )
        arrays, metrics = self._estimate(batch, learned, drawn, costs)
        arrays["behaviour"], arrays["start"] = batch.logprobs, np.zeros(len(batch.tokens))
        arrays["weights"] = token_weights(
            batch, learned, config.aggregation, config.fixed_length, self.ranks.sum
        )
        if batch.importance is not None:
            arrays["weights"] *= batch.importance[batch.items]
        tensors |= {name: put(one, np.float32, self.device) for name, one in arrays.items()}
        return _Work(parts, tokens, tensors), metrics

    def _score(self, model: Any, part: MicroBatch, **how: Any) -> tuple[Tensor, Tensor, Any]:
        return score(model, part, self.config.temperature, chunk=self._chunk, **how)

    @torch.no_grad()
    def _look(
        self, model: Any, batch: TokenBatch, parts: list[MicroBatch], value_head: Any = None
    ) -> Tensor:
        """Return the log-probabilities of a model, or the values, (tokens,)."""
        seen = torch.zeros(len(batch.tokens), device=self.device)
        for part in parts:
            logprobs, _, values = self._score(model, part, value_head=value_head)
            seen[part.index] = (logprobs if values is None else values).float()
        return seen

    def _epoch(self, work: _Work, epoch: int) -> dict[str, float]:
        """Take one step from a whole batch, a micro-batch at a time."""
        self.policy.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        reach = torch.full((2,), -torch.inf, dtype=torch.float64, device=self.device)
        for part in work.parts:
            loss, added, ratio = self._loss(work, part, is_first=epoch == 0)
            (loss * self.ranks.factor).backward()
            self._masters.take_gradients()
            for name, value in added.items():
                sums[name] = sums.get(name, 0) + value.detach().double()
            if len(ratio):
                reach = reach.maximum(torch.stack([-ratio.min(), ratio.max()]).detach())
        # One read for all: each is a wait for the device.
        totals = self.ranks.reduce(torch.stack(list(sums.values()))).tolist()
        found = dict(zip(sums, totals, strict=True))
        count, total, square = (found.pop(name) for name in ("samples", "once", "square"))
        for name in found.keys() - {"loss", "policy_loss", "value_loss"}:
            found[name] /= work.tokens
        found["clip_fraction"] = found["clip_low_fraction"] + found["clip_high_fraction"]
        found["effective_samples"] = total**2 / square / count
        low, found["ratio_max"] = self.ranks.reduce(reach, largest=True).tolist()
        found |= {"ratio_min": -low, "learning_rate": self._rate(), "grad_norm": self._step()}
        if self.plans is not None:
            found["plan_divergence"] = self.plans.after_step()
        return {**found, "stepped": 1.0}

    def _loss(
        self, work: _Work, part: MicroBatch, *, is_first: bool
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return a micro-batch's share of the loss, sums for the metrics, and the ratios."""
        config = self.config
        has_entropy = config.entropy_coef > 0
        logprobs, entropy, values = self._score(
            self.policy, part, with_entropy=has_entropy, value_head=self.value_head
        )
        logprobs = logprobs.float()
        if is_first:
            # Nothing has changed yet, so this is the policy before the update.
            work.tensors["start"][part.index] = logprobs.detach()
        of = {name: tensor[part.index] for name, tensor in work.tensors.items()}
        old, weights = of["behaviour"], of["weights"]
        items: Any = (part.items, part.size, config.ratio_level)
        if config.proximal == "start":
            old = of["start"]
            shift = importance_ratio(old - of["behaviour"], *items)
            weights = weights * shift.clamp(max=config.max_importance)
        ratio = importance_ratio(logprobs - old, *items)
        gain, low, high = clipped_gain(ratio, of["advantages"], config.clip_low, config.clip_high)
        loss = policy_loss = -(gain * weights).sum()
        samples = ratio
        if config.ratio_level != "token":
            # One for each item.
            samples = ratio[torch.diff(part.items, prepend=part.items.new_tensor([-1])) != 0]
        sums = {
            "policy_loss": policy_loss,
            "clip_low_fraction": low.sum(),
            "clip_high_fraction": high.sum(),
            "ratio_mean": ratio.sum(),
            "entropy": entropy.sum(),
            "kl_behaviour": token_kl(of["behaviour"], logprobs, "k3").sum(),
            "samples": logprobs.new_tensor(len(samples)),
            "once": samples.sum(),
            "square": samples.square().sum(),
        }
        if "reference" in of:
            divergence = token_kl(logprobs, of["reference"], config.kl_kind)
            sums["kl"] = divergence.sum()
            if config.kl_place == "loss":
                loss = loss + config.kl_coef * (divergence * of["weights"]).sum()
        if has_entropy:
            loss = loss - config.entropy_coef * (entropy * of["weights"]).sum()
        if values is not None:
            error = value_error(values, of["values"], of["returns"], config.value_clip)
            sums["value_loss"] = (error * of["weights"]).sum()
            loss = loss + config.value_loss_coef * sums["value_loss"]
        return loss, {"loss": loss, **sums}, ratio

    def _step(self) -> float:
        longest = math.inf if self.config.max_grad_norm is None else self.config.max_grad_norm
        share = self._rate() / self.config.learning_rate
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = share * rate
        self._masters.follow()
        self.ranks.add_up(self._stepped_on())
        norm = step(self.optimizer, self._stepped_on(), longest)
        self._masters.give()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return norm

    def _stepped_on(self) -> list[Tensor]:
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    def _rate(self) -> float:
        return float(self.config.rate(self.steps))

    def weights(self) -> dict[str, Tensor]:
        """Return the policy's weights for workers, without a copy where none is needed.

        Adapters are merged, shards are put together, and the names are those of the first model.
        With ``distributed`` every rank has to call this.
        """
        if has_lora(self.policy):
            return merged_weights(self.policy)
        return {name: whole(one).detach() for name, one in self.policy.state_dict().items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the learner's state to one file, all or nothing.

        It has the parameters that learn, their float32 copies where they have 16 bits, the
        optimizer; of frozen parameters and the reference a fingerprint only.
        With ``distributed`` every rank calls this, and rank 0 writes what one process would.
        """
        state = {
            "policy": self._trained(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "steps": self.steps,
            "config": self._settings(),
            "frozen": self._fingerprint,
        }
        state = _whole(state)
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
        state = checkpoint.load(path, kind=type(self).__name__)
        if missing := _PARTS - state.keys():
            raise CheckpointError(f"{path} is damaged: it has no {', '.join(sorted(missing))}")
        mine, config = self._trained(), self._settings()
        checkpoint.check_tensors("policy", mine, state["policy"])
        checkpoint.check_optimizer(self.optimizer, state["optimizer"])
        if state["config"] != config:
            odd = [name for name in config if config[name] != state["config"].get(name)]
            raise CheckpointError(f"{path} was made with other settings: {odd} differ")
        if state["frozen"] != self._fingerprint:
            raise CheckpointError(
                f"{path} belongs to another frozen model or reference; make the learner from the "
                "model that the saved one was first made from"
            )
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(shard(state["policy"][name], tensor))
        stepped_on = self._stepped_on()
        for index, averages in state["optimizer"]["state"].items():
            for name in ("exp_avg", "exp_avg_sq"):
                averages[name] = shard(averages[name], stepped_on[index])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates, self.steps = state["updates"], state["steps"]

    def _settings(self) -> dict[str, Any]:
        """Return the config as JSON gives it back."""
        settings = json.loads(json.dumps(asdict(self.config)))
        return {name: value for name, value in settings.items() if name not in _HOW}

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


class _GroupLearner(TokenLearner):
    """A learner that compares the items of a group."""

    @abstractmethod
    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return how much better than expected each item was, (items,)."""

    def _estimate(
        self, batch: TokenBatch, learned: Array, parts: list[MicroBatch], costs: Array
    ) -> tuple[dict[str, Array], dict[str, float]]:
        rewards = batch.rewards - np.bincount(batch.items, costs, len(batch))
        everyone, own = self.ranks.gather(rewards)
        sizes, _ = self.ranks.gather(np.diff(batch.group_offsets))
        found = np.asarray(self.advantages(everyone, offsets_of(sizes)))
        return {"advantages": found[own][batch.items]}, {"advantage_std": float(found.std())}


@dataclass(frozen=True)
class GRPOConfig(TokenLearnerConfig):
    """How GRPO learns."""

    #: Whose standard deviation advantages are divided by.
    scale: Literal["group", "batch", "none"] = "group"
    #: 1 reduces the count by one for a variance, as TRL does.
    ddof: Literal[0, 1] = 0


class GRPOLearner(_GroupLearner):
    """A token policy that learns by GRPO."""

    _config = GRPOConfig

    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return ``(r − mean of the group) / deviation``, by ``echoic.primitives``."""
        scale, ddof = self.config.scale, self.config.ddof
        return np.asarray(
            compute_batch_group_advantages(rewards, offsets=group_offsets, scale=scale, ddof=ddof)
        )


@dataclass(frozen=True)
class RLOOConfig(TokenLearnerConfig):
    """How RLOO learns. On policy these defaults are REINFORCE, sequence by sequence."""

    # The gradient of a ratio at 1 is that of the sum of an item's log-probabilities.
    ratio_level: RatioLevel = "sequence"
    aggregation: Aggregation = "sequence_mean"
    # In a reward k1 has no bias, nor has its gradient.
    kl_kind: KlKind = "k1"
    kl_place: Literal["loss", "reward"] = "reward"


class RLOOLearner(_GroupLearner):
    """A token policy that learns by RLOO. A group of one item has nothing to be compared with.

    As an answer is not part of its own baseline, the gradient is unbiased; with the mean of the
    group it would be too small by ``1 / k``, for k answers.
    """

    _config = RLOOConfig

    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return ``r − mean of the others``, by ``echoic.primitives``."""
        how: Any = {"baseline": "leave_one_out", "scale": "none"}
        return np.asarray(compute_batch_group_advantages(rewards, offsets=group_offsets, **how))


@dataclass(frozen=True)
class PPOTokenConfig(TokenLearnerConfig):
    """How PPO learns from tokens, of groups of any size."""

    clip_high: float | None = 0.2
    #: The discount of each token's reward.
    gamma: float = 1.0
    #: λ of GAE: 0 for differences of two values, 1 for what was earned until the end.
    gae_lambda: float = 0.95
    #: Weight of the values' loss.
    value_loss_coef: float = 0.1
    #: How far a value may move in an update and still gain from it; ``None``: any distance.
    value_clip: float | None = 0.2
    #: The learning rate of the value head, with the schedule of the other.
    value_learning_rate: float = 5e-3
    #: Whether advantages get mean 0 and deviation 1 over the learned tokens of a batch.
    normalize_advantages: bool = True
    # At each token; in a reward k1 has no bias.
    kl_kind: KlKind = "k1"
    kl_place: Literal["loss", "reward"] = "reward"


class PPOTokenLearner(TokenLearner):
    """A token policy that learns by PPO, with values of its own.

    The value of a token is that of what precedes it, and the end of an item is worth nothing.
    Tokens that were not drawn are no steps; what is earned at them counts for the drawn one before.
    Advantages are those of GAE (Schulman et al. 2016, arXiv:1506.02438) over the drawn tokens.
    """

    _config = PPOTokenConfig
    _has_values = True

    def _estimate(
        self, batch: TokenBatch, learned: Array, parts: list[MicroBatch], costs: Array
    ) -> tuple[dict[str, Array], dict[str, float]]:
        values = self._look(self.policy, batch, parts, self.value_head).double().cpu().numpy()
        config, mask = self.config, batch.mask
        advantages, returns = np.zeros((2, len(values)))
        advantages[mask], returns[mask] = compute_gae(
            batch.drawn_rewards() - costs[mask],
            values[mask],
            None,
            np.zeros(len(batch)),
            config.gamma,
            config.gae_lambda,
            offsets=offsets_of(batch.count(mask)),
        )
        mean, deviation = self._moments(advantages[learned])
        _, spread = self._moments(returns[learned])
        _, error = self._moments((returns - values)[learned])
        metrics = {
            "advantage_std": deviation,
            "value_mean": self._moments(values[learned])[0],
            "explained_variance": 1 - (error / spread) ** 2 if spread > 0 else 0.0,
        }
        if config.normalize_advantages:
            advantages = (advantages - mean) / max(deviation, 1e-8)
        return {"advantages": advantages, "values": values, "returns": returns}, metrics

    def _moments(self, values: Array) -> tuple[float, float]:
        """Return mean and deviation over all ranks."""
        count, total = self.ranks.sum(len(values), values.sum())
        (square,) = self.ranks.sum(((values - total / count) ** 2).sum())
        return total / count, math.sqrt(square / count)
