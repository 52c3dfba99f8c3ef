"""Plans of a language model: a soft prefix before each turn, which learns with the policy.

:class:`TrajectoryEncoder` makes a plan of the latest observations of a conversation, also of those
that its tokens lack, and a linear layer makes ``prefix`` input embeddings of the plan. They stand
before the answer as virtual tokens: ids from the vocabulary's size up, in the order in which an
item has them. An engine gets their embeddings with the request. What precedes them keeps its keys
and values; what follows them is shared only by what has equal embeddings there.

A learner gets the observations and the noise of each plan with the item, and makes the same
embeddings of them, with gradients: ratios of fresh answers are 1, and the policy's loss reaches the
encoder. The cost of the plans' changes (:class:`PlanDivergence`) is a part of its loss.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from echoic.agents.environments.base import TextEncoder
from echoic.agents.llm.batch import offsets_of
from echoic.agents.plans import PlanDivergence, PlanWindows, TrajectoryEncoder, windows_of
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from echoic.agents.llm.batch import TokenBatch
    from echoic.agents.plans import PlanningConfig

    Array = np.ndarray[Any, Any]

__all__ = ["PlanPrefix", "TurnPlans"]


class PlanPrefix(nn.Module):
    """Makes input embeddings of a language model from the latest observations.

    ``config`` sets encoder, divergence and this module's learning rate; an observation is encoded
    by ``state_dim`` numbers, and a plan has ``prefix`` embeddings.

    >>> from echoic.agents.llm import TinyConfig, TinyTransformer
    >>> from echoic.agents.plans import PlanningConfig
    >>> model = TinyTransformer(TinyConfig(vocab_size=8, dim=16, hidden=16), device="cpu")
    >>> sizes = PlanningConfig(embedding_dim=8, num_layers=1, num_heads=2)
    >>> plans = PlanPrefix(model, sizes, state_dim=32, prefix=2).begin(seed=0)
    >>> plans.plan("a door to the north"), plans.plan("a locked chest")
    ([8, 9], [10, 11])
    >>> plans.embeddings[11].shape, plans.rows().shape
    (torch.Size([16]), (2, 40))
    """

    def __init__(
        self,
        model: Any,
        config: PlanningConfig,
        *,
        state_dim: int = 512,
        prefix: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if prefix < 1:
            raise ArgumentError(f"prefix must be at least 1, not {prefix}")
        weight = _embedding(model).weight
        self.config = config
        self.prefix = prefix
        self.state_dim = state_dim
        self.vocab_size, self.width = weight.shape
        self.text = TextEncoder(state_dim)
        self.divergence = PlanDivergence(config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = TrajectoryEncoder(state_dim, config, "cpu")
            self.project = nn.Linear(config.embedding_dim, prefix * self.width)
        # Embeddings of a plan are about as long as those of tokens.
        scale = float(weight.detach().float().std())
        for number, one in enumerate(self.project.parameters()):
            nn.init.normal_(one, std=scale, generator=torch.Generator().manual_seed(seed + number))
        self.to(weight.device)
        #: What the changes of the plans cost that were read last, a part of the loss of a batch.
        self.cost: Any = 0.0
        # Sum of the divergence over the plans of an epoch; NaN if no plan follows another.
        self._plain = math.nan

    def forward(self, plans: Tensor) -> Tensor:
        """Return the embeddings of plans, ``(..., prefix, width)``."""
        return self.project(plans).view(*plans.shape[:-1], self.prefix, self.width)

    def begin(self, seed: int, *, greedy: bool = False) -> TurnPlans:
        """Return the plans of a new conversation; ``greedy`` ones have no noise."""
        return TurnPlans(self, seed, greedy=greedy)

    @contextmanager
    def bound(self, batch: TokenBatch, *models: Any) -> Iterator[TokenBatch]:
        """Let models read the virtual tokens of a batch within the block, with gradients.

        Yields:
            The batch, in which each plan has ids of its own.

        Raises:
            ArgumentError: If an item has virtual tokens without a plan or in its mask, or rows of
                another size.
        """
        found, bound = self._read(batch)
        waiting: list[Tensor] = []

        def known(_module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            waiting.append(inputs[0])
            return (inputs[0].clamp(max=self.vocab_size - 1), *inputs[1:])

        def insert(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
            return self._insert(waiting.pop(), output, bound)

        self._plain = 0.0 if bool(bound.follows.any()) else math.nan
        with ExitStack() as hooks:
            for layer in {_embedding(model) for model in models}:
                hooks.enter_context(layer.register_forward_pre_hook(known))
                hooks.enter_context(layer.register_forward_hook(insert))
            yield found

    @torch.no_grad()
    def means(self, batch: TokenBatch) -> Array:
        """Return the mean of each item's plans, ``(items, embedding_dim)``; zeros without one."""
        _, bound = self._read(batch)
        plans = np.zeros((0, self.config.embedding_dim), np.float32)
        if len(bound.noise):
            plans = self.encoder.posterior(bound.windows, bound.masks).at(bound.noise).cpu().numpy()
        ends = np.cumsum([0 if rows is None else len(rows) for rows in batch.plans])
        each = np.split(plans, ends[:-1])
        return np.array([one.sum(0) / max(1, len(one)) for one in each])

    def after_step(self) -> float:
        """Keep the encoder's bound after an epoch; return its divergence per dimension, in nats."""
        self.encoder.project()
        # Not measured is not 0: that would shrink the scale of what is measured later.
        self.divergence.advance(self._plain)
        plain, self._plain = self._plain, 0.0 * self._plain
        return 0.0 if math.isnan(plain) else plain

    def _read(self, batch: TokenBatch) -> tuple[TokenBatch, _Bound]:
        device, dim = self.project.weight.device, self.state_dim
        numbers = dim + self.config.embedding_dim
        empty = np.zeros((0, numbers), np.float32)
        rows = [empty if one is None else one for one in batch.plans]
        for item, one in enumerate(rows):
            fits = isinstance(one, np.ndarray) and one.dtype.kind == "f" and one.ndim == 2
            if not fits or one.shape[1] != numbers or not np.isfinite(one).all():
                raise ArgumentError(
                    f"plans of item {item}: expected rows of {numbers} finite numbers, got "
                    f"{type(one).__name__} of shape {np.shape(one)}"
                )
        counts = np.array([len(one) for one in rows], np.int64)
        first = offsets_of(counts)
        tokens = batch.tokens.copy()
        virtual = tokens >= self.vocab_size
        owners = batch.items[virtual]
        if batch.mask[virtual].any():
            raise ArgumentError("virtual tokens are not drawn: expected a mask of 0 at each")
        if (tokens[virtual] >= self.vocab_size + counts[owners] * self.prefix).any():
            raise ArgumentError("expected a plan for each virtual token of an item, got fewer")
        tokens[virtual] += first[owners] * self.prefix
        # The plans of all items, one after the other.
        flat = torch.from_numpy(np.concatenate([empty, *rows]).astype(np.float32)).to(device)
        follows = torch.ones(len(flat), dtype=torch.bool, device=device)
        follows[first[:-1][counts > 0]] = False
        size = self.config.state_window_size
        windows, masks = flat.new_zeros(0, 1, size + 1, dim), follows.new_zeros(0, 1, size + 1)
        if len(flat):
            windows, masks = windows_of(flat[:, None, :dim], ~follows[:, None], size)
        bound = _Bound(windows[:, 0], masks[:, 0], flat[:, dim:], follows)
        return replace(batch, tokens=tokens), bound

    def _insert(self, ids: Tensor, output: Tensor, bound: _Bound) -> Tensor:
        self.cost = 0.0
        virtual = ids >= self.vocab_size
        if not bool(virtual.any()):
            return output
        place = ids[virtual] - self.vocab_size
        plan, back = torch.unique(place // self.prefix, return_inverse=True)
        posterior = self.encoder.posterior(bound.windows[plan], bound.masks[plan])
        vectors = self(posterior.at(bound.noise[plan]))[back, place % self.prefix]
        pairs = bound.follows[plan]
        if torch.is_grad_enabled() and bool(pairs.any()):
            with torch.no_grad():
                before = (plan - 1).clamp(min=0)
                previous = self.encoder.posterior(bound.windows[before], bound.masks[before])
            cost, plain = self.divergence(posterior, previous, pairs)
            share = pairs.sum() / bound.follows.sum()
            self._plain += float(plain * share)
            self.cost = self.divergence.weight * share * cost
        return output.index_put((virtual,), vectors.to(output.dtype))


@dataclass(frozen=True)
class _Bound:
    """What the plans of a batch are made of; ``follows``: where the plan before is of one item."""

    windows: Tensor
    masks: Tensor
    noise: Tensor
    follows: Tensor


class TurnPlans:
    """The plans of one conversation; see :class:`PlanPrefix`."""

    def __init__(self, prefix: PlanPrefix, seed: int, *, greedy: bool) -> None:
        self._prefix = prefix
        self._greedy = greedy
        self._generator = torch.Generator().manual_seed(seed)
        size, device = prefix.config.state_window_size, prefix.project.weight.device
        self._windows = PlanWindows(1, prefix.state_dim, size, device=device)
        self._rows: list[Array] = []
        #: The embedding of each virtual token.
        self.embeddings: dict[int, Any] = {}

    @property
    def size(self) -> int:
        """Virtual tokens of a plan."""
        return self._prefix.prefix

    @torch.no_grad()
    def plan(self, observation: str | Array) -> list[int]:
        """Make a plan after a text or a vector was observed; return its virtual tokens."""
        prefix = self._prefix
        vector = prefix.text(observation) if isinstance(observation, str) else observation
        vector = np.asarray(vector, np.float32)
        if vector.shape != (prefix.state_dim,) or not np.isfinite(vector).all():
            raise ArgumentError(
                f"expected an observation of {prefix.state_dim} finite numbers, got shape "
                f"{vector.shape}"
            )
        starts = torch.tensor([not self._rows])
        posterior = prefix.encoder.posterior(*self._windows.push(vector[None], starts))
        noise = torch.zeros(posterior.mean.shape)
        if not self._greedy:
            noise.normal_(generator=self._generator)
        self._rows.append(np.concatenate([vector, noise[0].numpy()]))
        vectors = prefix(posterior.at(noise.to(posterior.mean.device)))[0]
        first = prefix.vocab_size + len(self.embeddings)
        ids = list(range(first, first + prefix.prefix))
        self.embeddings.update(zip(ids, vectors, strict=True))
        return ids

    def rows(self) -> Array:
        """Return observation and noise of each plan, ``(plans, state_dim + embedding_dim)``."""
        size = self._prefix.state_dim + self._prefix.config.embedding_dim
        return np.array(self._rows, np.float32).reshape(-1, size)


def _embedding(model: Any) -> Any:
    """Return the layer of a model's input embeddings."""
    if hasattr(model, "get_input_embeddings"):
        return model.get_input_embeddings()
    for layer in model.modules():
        if isinstance(layer, nn.Embedding):
            return layer
    raise ArgumentError("a soft prefix needs a model with a layer of input embeddings")
