"""GRPO and RLOO: causal language models that learn by comparing answers to the same prompt.

A :class:`TokenLearner` takes a batch of groups, compares each token's probability with the one that
it had when it was drawn, and raises that of items which earned more than the rest of their group.

GRPO, after Shao et al., "DeepSeekMath" (2024, arXiv:2402.03300), compares an answer with the mean
of its group. Later variants are settings: the asymmetric clip and the mean over all tokens of DAPO
(arXiv:2503.14476), the fixed length and the missing deviation of Dr. GRPO (arXiv:2503.20783),
ratios of whole sequences of GSPO (arXiv:2507.18071).

RLOO, after Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!" (2019), and Ahmadian
et al. (2024, arXiv:2402.14740), is REINFORCE with the mean of the *other* answers as the baseline.
A whole answer is one action, and the divergence from the reference is subtracted from its reward.
As an answer is not part of its own baseline, the gradient is unbiased; with the mean of the group
it would be too small by ``1 / k``, for k answers.

Invariants:

1. The parameters change in ``optimizer.step()`` alone, once in each epoch, after a whole batch. A
   gradient that is not finite is an error before it.
2. How a batch is split into micro-batches changes only the order of sums.
3. The model is in evaluation mode: with dropout, a token would have another probability than when
   it was drawn, at the same weights. Gradients are computed all the same.

It does not generate or synchronise weights, and uses one process. Gradient checkpointing, which
transformers models do in training mode only, is not available.
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

from echoic.agents import _checks, checkpoint
from echoic.agents.devices import resolve
from echoic.agents.llm.batch import TokenBatch
from echoic.agents.llm.lora import LoRAConfig, add_lora, has_lora, without_lora
from echoic.agents.llm.loss import (
    Aggregation,
    KlKind,
    RatioLevel,
    importance_ratio,
    keeps_apart,
    lay_out,
    score,
    token_kl,
    token_weights,
)
from echoic.agents.updates import MasterWeights, clipped_gain, step
from echoic.errors import ArgumentError, CheckpointError
from echoic.primitives import (
    compute_batch_group_advantages,
    compute_batch_token_kl,
    compute_effective_sample_size,
    compute_token_kl,
    plan_micro_batches,
)
from echoic.rollouts import RolloutBatch

if TYPE_CHECKING:
    import os

    from torch import Tensor

    from echoic.agents.llm.loss import MicroBatch, TokenScores

    Array = np.ndarray[Any, Any]

__all__ = [
    "GRPOConfig",
    "GRPOLearner",
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
    #: How tokens are averaged, see ``token_loss.token_weights``.
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
    #: Most tokens of a micro-batch; ``None``: the whole batch.
    max_tokens: int | None = None
    #: Lay items out in one row without gaps, for transformers models that keep them apart, instead
    #: of a row for each.
    packed: bool = False
    #: Learn adapters only; ``None``: all parameters that require a gradient.
    lora: LoRAConfig | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        for name, known in _CHOICES.items():
            _checks.one_of(self, name, known)
        given = {name for name, value in vars(self).items() if value is not None}
        above = {"learning_rate", "temperature", "max_importance", "max_grad_norm"}
        least = {"weight_decay", "clip_low", "clip_high", "kl_coef", "entropy_coef"}
        _checks.number(self, *given & above, above=0)
        _checks.number(self, *given & least, least=0)
        _checks.whole(self, *given & {"warmup_steps", "max_lag"}, least=0)
        _checks.whole(self, *given & {"epochs", "fixed_length", "max_tokens", "total_steps"})
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ArgumentError(f"betas are two numbers from 0 to below 1, got {self.betas}")
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


_CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": get_args(Schedule),
    "ratio_level": get_args(RatioLevel),
    "proximal": ("behaviour", "start"),
    "aggregation": get_args(Aggregation),
    "kl_kind": get_args(KlKind),
    "kl_place": ("loss", "reward"),
}


@dataclass
class _Totals:
    """Sums over the tokens of an epoch, for the metrics."""

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
    """A batch, and what is the same for it in every epoch. Tensors are (tokens,)."""

    parts: list[MicroBatch]
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    reference: Tensor | None
    #: Log-probabilities before this update, filled in the first epoch.
    start: Tensor


class TokenLearner(ABC):
    """A policy, its optimizer and its reference; see :class:`GRPOLearner` for an example.

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
                "packed items attend to each other in this model: it takes no position_ids, or "
                "does not separate items by them; use packed=False"
            )

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
    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return how much better than expected each item was, (items,)."""

    def update(self, batch: TokenBatch | RolloutBatch) -> dict[str, float]:
        """Learn from a batch.

        Returns:
            ``loss`` and its parts ``policy_loss``, ``kl`` and ``entropy``; ``clip_fraction`` with
            its sides ``clip_low_fraction`` and ``clip_high_fraction``; ``ratio_mean``,
            ``ratio_min``, ``ratio_max`` and ``effective_samples`` (the share of tokens or items
            that the ratios leave); ``kl_behaviour``: the divergence from the policy that drew;
            ``grad_norm``, ``learning_rate``; ``tokens``, ``stale_tokens``, ``items``,
            ``micro_batches``, ``reward``, ``advantage_std``; ``stepped``: 0 if every token was too
            old, so that nothing was learned. Several epochs are averaged.

        Raises:
            ArgumentError: If an item is longer than ``max_tokens``.
            FloatingPointError: If the gradient is not finite. That step was not taken.
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
        """Return the mask of the policy's tokens that are not too old."""
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
        settings: Any = {"packed": self.config.packed, "device": self.device}
        return [lay_out(batch, mask, items[plan == number], **settings) for number in range(count)]

    def _prepare(self, batch: TokenBatch, learned: Array) -> tuple[_Work, Array]:
        config = self.config
        parts = self._parts(batch, learned)
        rewards = batch.rewards
        reference = None
        if config.kl_coef > 0 and config.kl_place == "reward":
            # The cost of an item is a sum over all its tokens, however old.
            reference = self._reference_logprobs(batch, self._parts(batch, batch.mask))
            divergences = self._divergences(batch, reference.cpu().numpy())
            rewards = rewards - config.kl_coef * divergences
        elif config.kl_coef > 0:
            reference = self._reference_logprobs(batch, parts)
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

    def _score(self, model: Any, part: MicroBatch, *, with_entropy: bool) -> TokenScores:
        return score(model, part, self.config.temperature, with_entropy=with_entropy)

    def _reference_logprobs(self, batch: TokenBatch, parts: list[MicroBatch]) -> Tensor:
        """Return the reference's log-probabilities, (tokens,)."""
        logprobs = torch.zeros(len(batch.tokens), device=self.device)
        is_off = self._reference is None
        model = self.policy if is_off else self._reference
        with torch.no_grad(), without_lora(self.policy) if is_off else nullcontext():
            for part in parts:
                logprobs[part.index] = self._score(model, part, with_entropy=False).logprobs.float()
        return logprobs

    def _divergences(self, batch: TokenBatch, reference: Array) -> Array:
        """Return the divergence of the policy that drew from the reference, summed over items."""
        found: Array = compute_batch_token_kl(
            np.ascontiguousarray(batch.logprobs[batch.mask]),
            np.ascontiguousarray(reference[batch.mask]),
            estimator=self.config.kl_kind,
            offsets=np.concatenate([[0], np.cumsum(batch.count(batch.mask))]),
        )
        return found

    def _epoch(self, work: _Work, epoch: int) -> dict[str, float]:
        """Take one step from a whole batch, a micro-batch at a time."""
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
        """Return a micro-batch's share of the loss."""
        config = self.config
        scores = self._score(self.policy, part, with_entropy=config.entropy_coef > 0)
        logprobs = scores.logprobs.float()
        advantages, weights = work.advantages[part.index], work.weights[part.index]
        behaviour = work.behaviour[part.index]
        old = behaviour
        if config.proximal == "start":
            if is_first:
                # Nothing has changed yet, so this is the policy before the update.
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
            "entropy": scores.entropy.sum(),
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
            loss = loss - config.entropy_coef * (scores.entropy * plain).sum()
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
        group = self.optimizer.param_groups[0]
        longest = math.inf if self.config.max_grad_norm is None else self.config.max_grad_norm
        group["lr"] = self._rate()
        self._masters.follow()
        norm = step(self.optimizer, group["params"], longest)
        self._masters.give()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return norm

    def _rate(self) -> float:
        return self.config.rate(self.steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the learner's state to one file, all or nothing.

        It has the parameters that learn, their float32 copies where they have 16 bits, the
        optimizer and the generators; of frozen parameters and the reference a fingerprint only.
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
        """Continue from what a learner of the same kind, settings and first model has saved.

        On the CPU, later updates are bit for bit those that would have followed.

        Raises:
            CheckpointError: If it is of another kind of learner, or of another model. Nothing was
                loaded.
        """
        state = checkpoint.load(path, kind=type(self).__name__)
        mine = self._trained()
        shapes, theirs = (
            {name: (tuple(one.shape), one.dtype) for name, one in of.items()}
            for of in (mine, state["policy"])
        )
        if shapes != theirs:
            odd = sorted(dict(shapes.items() ^ theirs.items()))
            raise CheckpointError(f"{path} is of another model: {odd[:4]} differ")
        config = _plain(asdict(self.config))
        if state["config"] != config:
            odd = [name for name in config if config[name] != state["config"].get(name)]
            raise CheckpointError(f"{path} was made with other settings: {odd} differ")
        if state["frozen"] != self._fingerprint:
            raise CheckpointError(
                f"{path} belongs to another frozen model or reference; make the learner from the "
                "model that the saved one was first made from"
            )
        masters = state["masters"]
        self._masters.check(masters)
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(state["policy"][name])
        self._masters.load(masters)
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates, self.steps = state["updates"], state["steps"]
        checkpoint.set_random_state(state["random"])

    def _trained(self) -> dict[str, Tensor]:
        """Return the parameters that learn, each once: tied ones share a tensor."""
        return {name: one.data for name, one in self.policy.named_parameters() if one.requires_grad}

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
            raw = tensor.detach().contiguous().flatten().view(torch.uint8)
            digest.update(raw.cpu().numpy().tobytes())
        return digest.hexdigest()


def _divergence(behaviour: Tensor, logprobs: Tensor) -> Tensor:
    """Return the k3 estimate of KL(behaviour ‖ policy), summed over tokens."""
    total = compute_token_kl(behaviour.cpu(), logprobs.detach().cpu(), estimator="k3")
    return torch.tensor(total, dtype=torch.float64, device=logprobs.device)


def _one_each(ratio: Tensor, part: MicroBatch, level: RatioLevel) -> Tensor:
    """Return the ratios of tokens, or one for each item."""
    if level == "token":
        return ratio
    is_first = torch.ones_like(part.items, dtype=torch.bool)
    is_first[1:] = part.items[1:] != part.items[:-1]
    return ratio[is_first]


def _plain(tree: Any) -> Any:
    """Return a config as JSON gives it back."""
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, tuple | list) else tree


@dataclass(frozen=True)
class GRPOConfig(TokenLearnerConfig):
    """How GRPO learns."""

    #: Whose standard deviation advantages are divided by.
    scale: Literal["group", "batch", "none"] = "group"
    #: 1 reduces the count by one for a variance, as TRL does.
    ddof: Literal[0, 1] = 0

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        _checks.one_of(self, "scale", ("group", "batch", "none"))
        _checks.one_of(self, "ddof", (0, 1))


class GRPOLearner(TokenLearner):
    """A token policy that learns by GRPO.

    >>> import torch
    >>> from echoic.agents.llm import GRPOConfig, GRPOLearner, TokenBatch
    >>> # The logits of what follows each of eight tokens.
    >>> bigrams = torch.nn.Embedding.from_pretrained(torch.zeros(8, 8), freeze=False)
    >>> learner = GRPOLearner(bigrams, GRPOConfig(learning_rate=0.1), device="cpu")
    >>> guess = -2.0794  # log(1 / 8): all tokens are alike at first.
    >>> batch = TokenBatch.from_items(
    ...     tokens=[[1, 5], [1, 3]], logprobs=[[0, guess]] * 2, mask=[[0, 1]] * 2,
    ...     rewards=[1.0, 0.0], group_sizes=[2],
    ... )
    >>> metrics = learner.update(batch)
    >>> metrics["tokens"], round(metrics["ratio_mean"], 3), metrics["clip_fraction"]
    (2, 1.0, 0.0)
    >>> liked, disliked = learner.policy.weight[1, [5, 3]].tolist()
    >>> round(liked, 3), round(disliked, 3)
    (0.1, -0.1)
    """

    def __init__(
        self,
        policy: Any,
        config: GRPOConfig | None = None,
        *,
        reference: Any = None,
        device: str | torch.device = "auto",
    ) -> None:
        super().__init__(policy, config or GRPOConfig(), reference=reference, device=device)
        self.config: GRPOConfig

    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return ``(r − mean of the group) / deviation``, by ``echoic.primitives``."""
        return np.asarray(
            compute_batch_group_advantages(
                rewards, offsets=group_offsets, scale=self.config.scale, ddof=self.config.ddof
            )
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


class RLOOLearner(TokenLearner):
    """A token policy that learns by RLOO. A group of one item has nothing to be compared with.

    >>> import numpy as np
    >>> from torch import nn
    >>> from echoic.agents.llm import RLOOLearner
    >>> bigrams = nn.Embedding(8, 8)  # The logits of what follows each of eight tokens.
    >>> learner = RLOOLearner(bigrams, device="cpu")
    >>> learner.advantages(np.array([0.0, 0.0, 3.0, 1.0]), np.array([0, 3, 4]))
    array([-1.5, -1.5,  3. ,  0. ])
    """

    def __init__(
        self,
        policy: Any,
        config: RLOOConfig | None = None,
        *,
        reference: Any = None,
        device: str | torch.device = "auto",
    ) -> None:
        super().__init__(policy, config or RLOOConfig(), reference=reference, device=device)

    def advantages(self, rewards: Array, group_offsets: Array) -> Array:
        """Return ``r − mean of the others``, by ``echoic.primitives``."""
        return np.asarray(
            compute_batch_group_advantages(
                rewards, offsets=group_offsets, baseline="leave_one_out", scale="none"
            )
        )
