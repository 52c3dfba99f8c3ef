"""Improves a causal language model by what its answers earned: what GRPO and RLOO share.

A :class:`TokenLearner` takes a batch of groups, compares each token's probability with the one that
it had when it was drawn, and makes likelier what earned more than the rest of its group. How much
more is a subclass's :meth:`~TokenLearner.advantages`; all else is a :class:`TokenLearnerConfig`.

Invariants:

1. The parameters change in ``optimizer.step()`` alone, once in each epoch, after a whole batch. A
   gradient that is no number is an error before it.
2. How a batch is split into micro-batches changes nothing but the order of sums.
3. The model is in its evaluation mode: with dropout, a token would have another probability than it
   had when it was drawn, at the same weights. Gradients flow all the same.

Does not generate, does not synchronise weights, knows one process. Gradient checkpointing, which
transformers models do in their training mode only, is not available.
"""

from __future__ import annotations

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from echoic.agents import _checks
from echoic.agents.devices import resolve
from echoic.agents.learners import checkpoint
from echoic.agents.learners.lora import LoRAConfig, add_lora, has_lora, without_lora
from echoic.agents.learners.masters import MasterWeights
from echoic.agents.learners.token_batch import TokenBatch
from echoic.agents.learners.token_loss import (
    Aggregation,
    KlKind,
    RatioLevel,
    clipped_gain,
    importance_ratio,
    keeps_apart,
    lay_out,
    score,
    token_kl,
    token_weights,
)
from echoic.errors import ArgumentError, CheckpointError
from echoic.primitives import (
    compute_batch_token_kl,
    compute_effective_sample_size,
    compute_token_kl,
    plan_micro_batches,
)
from echoic.rollouts import RolloutBatch

if TYPE_CHECKING:
    import os

    from torch import Tensor

    from echoic.agents.learners.token_loss import MicroBatch, TokenScores

    Array = np.ndarray[Any, Any]

__all__ = ["TokenLearner", "TokenLearnerConfig"]

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class TokenLearnerConfig:
    """How a token policy learns. The defaults are those of :class:`GRPOConfig`."""

    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    #: Of Adam.
    betas: tuple[float, float] = (0.9, 0.999)
    #: How the learning rate goes from its value to 0 at step ``total_steps``, if it does.
    schedule: Schedule = "constant"
    #: Steps in which it first rises from 0 to its value.
    warmup_steps: int = 0
    #: For schedules that end.
    total_steps: int | None = None
    #: The gradient is shortened to this length; ``None`` leaves it.
    max_grad_norm: float | None = 1.0
    #: How often a batch is learned from.
    epochs: int = 1

    #: How far a ratio may be below and above 1 and still count; ``None``: any distance.
    clip_low: float | None = 0.2
    clip_high: float | None = 0.28
    #: Whose ratio it is: a token's, the product or the geometric mean of a whole item's.
    ratio_level: RatioLevel = "token"
    #: What the ratio is a ratio to: the policy that drew the token, or the one before this update.
    #: In the second case each token is weighted by how much likelier it was before this update
    #: than when it was drawn, up to ``max_importance`` (the decoupled objective of AReaL,
    #: arXiv:2505.24298).
    proximal: Literal["behaviour", "start"] = "behaviour"
    max_importance: float = 2.0
    #: How tokens are put together, see ``token_loss.token_weights``.
    aggregation: Aggregation = "token_mean"
    #: The length that stands for every item's, for ``aggregation="fixed_length"``.
    fixed_length: int | None = None
    #: Tokens that are more versions old are not learned from; at the level of sequences, neither is
    #: the rest of their item.
    max_lag: int | None = None

    #: The weight of the divergence from the reference policy. With 0 there is no such policy.
    kl_coef: float = 0.0
    kl_kind: KlKind = "k3"
    #: Whether the divergence is part of the loss, or is taken from what an item earned.
    kl_place: Literal["loss", "reward"] = "loss"
    entropy_coef: float = 0.0

    #: By what the policy divided its logits when it drew.
    temperature: float = 1.0
    #: Tokens that go through the model at once, at most; ``None``: all.
    max_tokens: int | None = None
    #: Items in one row without gaps, for transformers models that keep them apart, instead of a
    #: row for each.
    packed: bool = False
    #: Learn adapters only; ``None`` learns all parameters that require a gradient.
    lora: LoRAConfig | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        _check_choices(self)
        _check_numbers(self)
        if (self.schedule == "constant") != (self.total_steps is None):
            raise ArgumentError(
                'schedules "linear" and "cosine" end at total_steps, and "constant" has none; got '
                f"{self.schedule!r} and {self.total_steps}"
            )
        if self.total_steps is not None and self.total_steps <= self.warmup_steps:
            raise ArgumentError(
                f"total_steps ({self.total_steps}) come after warmup_steps ({self.warmup_steps})"
            )
        if (self.aggregation == "fixed_length") != (self.fixed_length is not None):
            raise ArgumentError(
                'fixed_length belongs to aggregation="fixed_length", and only there'
            )
        if self.kl_coef > 0 and self.kl_place == "loss" and self.kl_kind == "k1":
            raise ArgumentError(
                'the gradient of k1 is 0 on average: take kl_kind "k2" or "k3", or '
                'kl_place="reward", where k1 is right'
            )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.total_steps is None:
            return self.learning_rate
        done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        left = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * left


def _check_choices(config: TokenLearnerConfig) -> None:
    _checks.one_of(config, "schedule", get_args(Schedule))
    _checks.one_of(config, "ratio_level", get_args(RatioLevel))
    _checks.one_of(config, "proximal", ("behaviour", "start"))
    _checks.one_of(config, "aggregation", get_args(Aggregation))
    _checks.one_of(config, "kl_kind", get_args(KlKind))
    _checks.one_of(config, "kl_place", ("loss", "reward"))


def _check_numbers(config: TokenLearnerConfig) -> None:
    def given(*names: str) -> list[str]:
        return [name for name in names if getattr(config, name) is not None]

    _checks.number(
        config, *given("learning_rate", "temperature", "max_importance", "max_grad_norm"), above=0
    )
    _checks.number(
        config, *given("weight_decay", "clip_low", "clip_high", "kl_coef", "entropy_coef"), least=0
    )
    _checks.whole(config, *given("warmup_steps", "max_lag"), least=0)
    _checks.whole(config, *given("epochs", "fixed_length", "max_tokens", "total_steps"))
    if len(config.betas) != 2 or not all(0 <= beta < 1 for beta in config.betas):
        raise ArgumentError(f"betas are two numbers from 0 to below 1, got {config.betas}")


@dataclass
class _Totals:
    """Sums over the tokens of an epoch, as the metrics need them."""

    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    ratios: list[Any] = field(default_factory=list)

    def add(self, tokens: int, ratio: Tensor, sums: dict[str, Tensor]) -> None:
        self.tokens += tokens
        # One read for all: each is a wait for the device.
        values = torch.stack([value.detach().double() for value in sums.values()]).tolist()
        for name, value in zip(sums, values, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.ratios.append(ratio.detach().cpu())


@dataclass(frozen=True, eq=False)
class _Work:
    """A batch, and what is the same for it in every epoch. Arrays of tensors are (tokens,)."""

    parts: list[MicroBatch]
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    reference: Tensor | None
    #: What the policy said before this update, as the first epoch finds it.
    start: Tensor


class TokenLearner(ABC):
    """A policy, its optimizer and its reference; see :class:`GRPOLearner` for an example.

    Parameters of 16 bits learn by float32 copies (4 bytes more for each), so that steps which are
    smaller than their last digit add up.

    Args:
        policy: A causal model: ``policy(ids)`` returns logits (rows, places, vocabulary), or an
            object that has them as ``logits``, as transformers models do. It is moved to the
            device.
        config: How it learns.
        reference: What ``kl_coef`` keeps the policy near to. By default the policy as it is now:
            a copy of it, or with LoRA the policy without its adapters. Another model is the
            learner's from then on: it is moved to the device, and frozen.
        device: Where to learn, ``"auto"``, ``"cpu"`` or ``"cuda"``.
    """

    def __init__(
        self,
        policy: Any,
        config: TokenLearnerConfig,
        *,
        reference: Any = None,
        device: str | torch.device = "auto",
    ) -> None:
        self.config = config
        self.device = resolve(device)
        if config.lora is not None:
            policy = add_lora(policy, config.lora)
        #: The model that learns: with LoRA, the one that has the adapters.
        self.policy = policy.to(self.device).eval()
        parameters = [one for one in self.policy.parameters() if one.requires_grad]
        if not parameters:
            raise ArgumentError("no parameter of the policy requires a gradient")
        self._masters = MasterWeights(parameters)
        self.optimizer = torch.optim.AdamW(
            self._masters.parameters,
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
        #: Batches that were learned from.
        self.updates = 0
        #: Steps of the optimizer: one in each epoch of an update.
        self.steps = 0
        self._reference = self._make_reference(reference)
        if config.packed and not keeps_apart(self.policy, self.device):
            raise ArgumentError(
                "packed items see each other in this model: it takes no position_ids, or does not "
                "tell items apart by them; use packed=False"
            )

    def _make_reference(self, given: Any) -> Any:
        """The reference model; ``None`` if there is none, or it is the policy without adapters."""
        if self.config.kl_coef == 0:
            if given is not None:
                raise ArgumentError("a reference was given, but kl_coef is 0: it would not be used")
            return None
        if given is self.policy:
            # Freezing it would end its learning: what is meant is the policy as it is now.
            given = None
        if given is None and has_lora(self.policy):
            return None
        model = copy.deepcopy(self.policy) if given is None else given.to(self.device)
        return model.eval().requires_grad_(requires_grad=False)

    @abstractmethod
    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return how much better than expected each item was, (items,)."""

    def update(self, batch: TokenBatch | RolloutBatch) -> dict[str, float]:
        """Learn from a batch.

        Returns:
            ``loss`` and its parts ``policy_loss``, ``kl`` and ``entropy``; ``clip_fraction`` with
            its sides ``clip_low_fraction`` and ``clip_high_fraction``; ``ratio_mean``,
            ``ratio_min``, ``ratio_max`` and ``effective_samples`` (the share of tokens or items
            that the ratios leave); ``kl_behaviour``: how far the policy has moved from the one that
            drew; ``grad_norm``, ``learning_rate``; ``tokens``, ``stale_tokens``, ``items``,
            ``micro_batches``, ``reward``, ``advantage_std``; ``stepped``: 0 if every token was too
            old, so that nothing was learned. Several epochs are averaged.

        Raises:
            ArgumentError: An item is longer than ``max_tokens``.
            FloatingPointError: The gradient is no number. That step was not made.
        """
        found = TokenBatch.from_rollouts(batch) if isinstance(batch, RolloutBatch) else batch
        learned = self._learned(found)
        metrics: dict[str, float] = {
            "items": len(found),
            "tokens": int(learned.sum()),
            "stale_tokens": int(found.mask.sum() - learned.sum()),
            "reward": float(found.rewards.mean()) if len(found) else 0.0,
        }
        if not learned.any():
            return {**metrics, "stepped": 0.0, "loss": 0.0, "learning_rate": self._rate()}
        self.policy.eval()
        work, advantages = self._prepare(found, learned)
        epochs = [self._epoch(work, epoch) for epoch in range(self.config.epochs)]
        self.updates += 1
        for name in epochs[0]:
            metrics[name] = float(np.mean([epoch[name] for epoch in epochs]))
        metrics["advantage_std"] = float(advantages.std())
        metrics["micro_batches"] = len(work.parts)
        return metrics

    def _learned(self, batch: TokenBatch) -> Array:
        """Which tokens are learned from: those of the policy that are not too old."""
        if self.config.max_lag is None:
            return batch.mask
        is_old = batch.mask & (batch.lags > self.config.max_lag)
        if self.config.ratio_level != "token":
            # The ratio of an item is that of all of its tokens, or of another item.
            is_old = (batch.count(is_old) > 0)[batch.items]
        kept: Array = batch.mask & ~is_old
        return kept

    def _parts(self, batch: TokenBatch, mask: Array) -> list[MicroBatch]:
        """Split the items that have tokens in ``mask`` into micro-batches."""
        items = np.flatnonzero(batch.count(mask))
        budget = self.config.max_tokens
        if budget is None:
            plan, count = np.zeros(len(items), np.int64), 1
        else:
            lengths = batch.lengths[items]
            plan, count = plan_micro_batches(lengths, np.zeros_like(lengths), 1, budget)
        return [
            lay_out(
                batch,
                mask,
                items[plan == number],
                packed=self.config.packed,
                device=self.device,
            )
            for number in range(count)
        ]

    def _prepare(self, batch: TokenBatch, learned: Array) -> tuple[_Work, Array]:
        config = self.config
        parts = self._parts(batch, learned)
        rewards = batch.rewards
        reference = None
        if config.kl_coef > 0 and config.kl_place == "reward":
            # What an item costs is a matter of all its tokens, however old.
            said = self._ask_reference(batch, self._parts(batch, batch.mask))
            rewards = rewards - config.kl_coef * self._divergences(batch, said.cpu().numpy())
            reference = said
        elif config.kl_coef > 0:
            reference = self._ask_reference(batch, parts)
        advantages = np.asarray(self.advantages(rewards, batch.group_offsets))
        weights = token_weights(batch, learned, config.aggregation, config.fixed_length)
        work = _Work(
            parts=parts,
            behaviour=self._give(batch.logprobs),
            advantages=self._give(advantages.astype(np.float32)[batch.items]),
            weights=self._give(weights),
            reference=reference,
            start=torch.zeros(len(batch.tokens), device=self.device),
        )
        return work, advantages

    def _give(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(self.device)

    def _score(self, model: Any, part: MicroBatch, *, with_entropy: bool = False) -> TokenScores:
        return score(model, part, self.config.temperature, with_entropy=with_entropy)

    def _ask_reference(self, batch: TokenBatch, parts: list[MicroBatch]) -> Tensor:
        """The reference's log-probabilities, (tokens,)."""
        said = torch.zeros(len(batch.tokens), device=self.device)
        is_off = self._reference is None
        model = self.policy if is_off else self._reference
        with torch.no_grad(), without_lora(self.policy) if is_off else nullcontext():
            for part in parts:
                said[part.index] = self._score(model, part).logprobs.float()
        return said

    def _divergences(self, batch: TokenBatch, reference: Array) -> Array:
        """How far the policy that drew was from the reference, summed over each item."""
        found: Array = compute_batch_token_kl(
            np.ascontiguousarray(batch.logprobs[batch.mask]),
            np.ascontiguousarray(reference[batch.mask]),
            estimator=self.config.kl_kind,
            offsets=np.concatenate([[0], np.cumsum(batch.count(batch.mask))]),
        )
        return found

    def _epoch(self, work: _Work, epoch: int) -> dict[str, float]:
        """Make one step from a whole batch, a micro-batch at a time."""
        self.policy.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)
        totals = _Totals()
        for part in work.parts:
            self._loss(work, part, totals, is_first=epoch == 0).backward()
            self._masters.take_gradients()
        metrics = self._metrics(totals)
        metrics["learning_rate"] = self._rate()
        metrics["grad_norm"] = self._step()
        metrics["stepped"] = 1.0
        return metrics

    def _loss(self, work: _Work, part: MicroBatch, totals: _Totals, *, is_first: bool) -> Tensor:
        """A micro-batch's share of the loss."""
        config = self.config
        said = self._score(self.policy, part, with_entropy=config.entropy_coef > 0)
        logprobs = said.logprobs.float()
        advantages, weights = work.advantages[part.index], work.weights[part.index]
        behaviour = work.behaviour[part.index]
        old = behaviour
        if config.proximal == "start":
            if is_first:
                # Nothing has changed yet, so this is what the policy was before the update.
                work.start[part.index] = logprobs.detach()
            old = work.start[part.index]
            shift = importance_ratio(old - behaviour, part.items, part.size, config.ratio_level)
            weights = weights * shift.clamp(max=config.max_importance)
        ratio = importance_ratio(logprobs - old, part.items, part.size, config.ratio_level)
        gain, low, high = clipped_gain(ratio, advantages, config.clip_low, config.clip_high)
        policy_loss = -(gain * weights).sum()
        loss = policy_loss
        sums = {
            "policy_loss": policy_loss,
            "clip_low_fraction": low.sum(),
            "clip_high_fraction": high.sum(),
            "ratio_mean": ratio.sum(),
            "entropy": said.entropy.sum(),
            "kl_behaviour": _divergence(behaviour, logprobs),
        }
        plain = work.weights[part.index]
        if work.reference is not None:
            reference = work.reference[part.index]
            divergence = token_kl(logprobs, reference, config.kl_kind)
            sums["kl"] = divergence.sum()
            if config.kl_place == "loss":
                loss = loss + config.kl_coef * (divergence * plain).sum()
        if config.entropy_coef > 0:
            loss = loss - config.entropy_coef * (said.entropy * plain).sum()
        totals.add(
            len(part.index), _one_each(ratio, part, config.ratio_level), {"loss": loss, **sums}
        )
        return loss

    @staticmethod
    def _metrics(totals: _Totals) -> dict[str, float]:
        are_weighted = ("loss", "policy_loss")
        found = {
            name: value if name in are_weighted else value / totals.tokens
            for name, value in totals.sums.items()
        }
        ratios = torch.cat(totals.ratios).double().numpy()
        found["clip_fraction"] = found["clip_low_fraction"] + found["clip_high_fraction"]
        found["ratio_min"], found["ratio_max"] = float(ratios.min()), float(ratios.max())
        found["effective_samples"] = compute_effective_sample_size(ratios) / len(ratios)
        return found

    def _step(self) -> float:
        parameters = self.optimizer.param_groups[0]["params"]
        longest = math.inf if self.config.max_grad_norm is None else self.config.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, longest))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(
                f"the gradient of step {self.steps} is {norm}; the step was not made. Look at the "
                "rewards, at the log-probabilities of the batch, and at the learning rate"
            )
        self.optimizer.param_groups[0]["lr"] = self._rate()
        self._masters.follow()
        self.optimizer.step()
        self._masters.give()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return norm

    def _rate(self) -> float:
        return self.config.rate(self.steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is needed to go on into one file, all or nothing.

        It has the parameters that learn, their float32 copies where they have 16 bits, the
        optimizer and the generators. Frozen parameters and
        the reference are not in there but for a fingerprint.
        """
        state = {
            "policy": self._trained(),
            "masters": self._masters.state(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "steps": self.steps,
            "config": _plain(asdict(self.config)),
            "frozen": self._fingerprint,
            "random": checkpoint.get_random_state(),
        }
        checkpoint.save(path, state, kind=type(self).__name__)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from what a learner of the same kind, settings and first model has saved.

        On the CPU, the updates after it are bit for bit those that would have followed.

        Raises:
            CheckpointError: It is another kind of learner's, or of another model. Nothing was
                loaded.
        """
        state = checkpoint.load(path, kind=type(self).__name__)
        mine = self._trained()
        theirs = state["policy"]
        shapes = [
            {name: (tuple(one.shape), one.dtype) for name, one in of.items()}
            for of in (mine, theirs)
        ]
        if shapes[0] != shapes[1]:
            odd = sorted(dict(shapes[0].items() ^ shapes[1].items()))
            raise CheckpointError(f"{path} is of another model: {odd[:4]} differ")
        if state["config"] != _plain(asdict(self.config)):
            theirs_config, mine_config = state["config"], _plain(asdict(self.config))
            odd = [name for name in mine_config if mine_config[name] != theirs_config.get(name)]
            raise CheckpointError(f"{path} was made with other settings: {odd} differ")
        if state["frozen"] != self._fingerprint:
            raise CheckpointError(
                f"{path} belongs to another frozen model or reference; make the learner from the "
                "model that it was first made from"
            )
        # Earlier releases kept none.
        masters = state.get("masters")
        if masters is not None:
            self._masters.check(masters)
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(theirs[name])
        self._masters.load(masters)
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates, self.steps = state["updates"], state["steps"]
        checkpoint.set_random_state(state["random"])

    def _trained(self) -> dict[str, Tensor]:
        """The parameters that learn, each once: tied ones share a tensor."""
        return {name: one.data for name, one in self.policy.named_parameters() if one.requires_grad}

    @cached_property
    def _fingerprint(self) -> str:
        """A digest of everything that an update reads and never writes."""
        digest = hashlib.sha256()
        frozen = [one for one in self.policy.named_parameters() if not one[1].requires_grad]
        frozen += self.policy.named_buffers()
        if self._reference is not None:
            frozen += self._reference.named_parameters()
        for name, tensor in frozen:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            raw = tensor.detach().contiguous().flatten().view(torch.uint8)
            digest.update(raw.cpu().numpy().tobytes())
        return digest.hexdigest()


def _divergence(behaviour: Tensor, logprobs: Tensor) -> Tensor:
    """The k3 estimate of KL(behaviour ‖ policy), summed: tokens were drawn by the first."""
    total = compute_token_kl(behaviour.cpu(), logprobs.detach().cpu(), estimator="k3")
    return torch.tensor(total, dtype=torch.float64, device=logprobs.device)


def _one_each(ratio: Tensor, part: MicroBatch, level: RatioLevel) -> Tensor:
    """The ratios of tokens, or one of each item that has some."""
    if level == "token":
        return ratio
    is_first = torch.ones_like(part.items, dtype=torch.bool)
    is_first[1:] = part.items[1:] != part.items[:-1]
    return ratio[is_first]


def _plain(tree: Any) -> Any:
    """A config as JSON gives it back."""
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, tuple | list) else tree
