"""The interface of language models for an engine: one forward pass over tokens of many sequences.

The tokens of a tick are laid end to end. A model passes queries, keys and values of all of them to
:meth:`PagedBatch.attend`, which writes keys and values to their pages and reads those of each
sequence. So a model does not depend on pages or scheduling.

Attention without copies: pages of a sequence are anywhere in the pool, and gathering them in every
layer of every tick took as long as all matrix products of the weights. So a sequence that generates
also has its keys and values in a :class:`Window`, copied there once; pieces of prompts gather.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from echoic.agents import _checks
from echoic.agents.devices import resolve
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["CausalModel", "PagedBatch", "TinyConfig", "TinyTransformer"]


class PagedBatch:
    """Tokens of a tick, and the pages of their keys and values.

    ``tokens`` are ids, [T], 0 for virtual ones; ``positions`` are those in their sequences, and
    ``ends`` has for each span the index of its last token.

    Args:
        spans: Of each sequence the tokens that are computed, ids or the bytes of a virtual token's
            embedding in float32, and its pages from the first token to the last of these. The first
            spans have one token each, and are those of ``windows``.
        pages: Of the cache.
        windows: Windows that have begun a tick.
    """

    def __init__(
        self,
        spans: Sequence[tuple[Sequence[int | bytes], NDArray[np.int64]]],
        pages: Any,
        windows: Sequence[Window] = (),
    ) -> None:
        def put(numbers: Any) -> Any:
            return torch.tensor(numbers, device=pages.device)

        self._pages, self._windows = pages, windows
        flat = [token for tokens, _ in spans for token in tokens]
        given = [(row, token) for row, token in enumerate(flat) if isinstance(token, bytes)]
        # Rows of virtual tokens, and their embeddings.
        self._given: tuple[Any, Any] | None = None
        if given:
            vectors = np.stack([np.frombuffer(token, np.float32) for _, token in given])
            self._given = put([row for row, _ in given]), put(vectors)
        self.tokens = put([0 if isinstance(token, bytes) else token for token in flat])
        positions, written, ends = [], [], [-1]
        # Rows, pages and mask of each span without a window. Without pages it begins its sequence,
        # so that it sees nothing but itself.
        self._pieces: list[tuple[slice, Any, Any]] = []
        for ids, where in spans:
            start = len(where) - len(ids)
            positions.append(np.arange(start, len(where)))
            written.append(where[start:])
            part = slice(ends[-1] + 1, ends[-1] + 1 + len(ids))
            ends.append(part.stop - 1)
            if part.start >= sum(len(window.members) for window in windows):
                mask = put(np.tri(len(ids), len(where), start, bool)) if start else None
                self._pieces.append((part, put(where) if start else None, mask))
        self.positions = put(np.concatenate(positions))
        self._written = put(np.concatenate(written))
        self.ends = put(ends[1:])

    def embed(self, embedded: Any) -> Any:
        """Return input embeddings of ``tokens``, [T, width], with those of virtual tokens set."""
        if self._given is None:
            return embedded
        rows, vectors = self._given
        return embedded.index_copy(0, rows, vectors.to(embedded.dtype))

    def attend(self, layer: int, query: Any, key: Any, value: Any, scale: float) -> Any:
        """Compute attention of every token to those before it in its own sequence, and itself.

        Queries and the result are [T, heads, head_dim], keys and values [T, kv_heads, head_dim],
        rotated if the model does that. ``scale`` multiplies products of queries and keys.
        """
        keys, values = self._pages[2 * layer], self._pages[2 * layer + 1]
        keys.index_copy_(0, self._written, key.to(keys.dtype))
        values.index_copy_(0, self._written, value.to(values.dtype))
        seen = []
        row = 0
        for window in self._windows:
            part = slice(row, row := row + len(window.members))
            seen.append(window.attend(layer, query[part], key[part], value[part], scale))
        for part, where, mask in self._pieces:
            read = key[part], value[part]
            if where is not None:
                read = keys.index_select(0, where), values.index_select(0, where)
            # [1, heads, tokens, head_dim]
            q, k, v = (x.to(query.dtype).transpose(0, 1)[None] for x in (query[part], *read))
            result = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
            )
            seen.append(result[0].transpose(0, 1))
        return torch.cat(seen)


class Window:
    """Keys and values of sequences that grow by a token per tick, where attention reads them.

    ``stem`` has those of the tokens that all sequences begin with, once; each sequence has a row
    with those of its other tokens, to which a tick appends.

    ``pages`` are the cache's, ``stem`` those of the beginning; a row has ``width`` tokens at most.
    """

    def __init__(self, pages: Any, stem: NDArray[np.int64], width: int) -> None:
        planes, _, heads, dim = pages.shape
        self._pages, self._start, self._width = pages, len(stem), width
        # [planes, kv_heads, tokens, head_dim]
        self._stem = self._read(stem).contiguous()
        # [planes, rows, kv_heads, tokens, head_dim]
        self._own = pages.new_empty((planes, 0, heads, width, dim))
        self.rows: list[Any] = []
        #: Sequences that take part in the tick.
        self.members: list[Any] = []

    def size(self, more: int = 0) -> int:
        """Return the tokens for which there is memory, or would be with ``more`` rows."""
        rows = max(int(self._own.shape[1]), len(self.rows) + more)
        return self._start + rows * self._width

    def add(self, sequences: Mapping[Any, NDArray[np.int64]]) -> None:
        """Add sequences, whose tokens so far are in these pages."""
        planes, had, *row = self._own.shape
        if len(self.rows) + len(sequences) > had:
            height = max(len(self.rows) + len(sequences), had + had // 4)
            # What a row does not use is finite: a weight of 0 would not hide a NaN.
            old, self._own = self._own, self._own.new_zeros((planes, height, *row))
            self._own[:, :had] = old
        for key, pages in sequences.items():
            own = self._read(pages[self._start :])
            self._own[:, len(self.rows), :, : own.shape[2]] = own
            self.rows.append(key)

    def remove(self, key: Any) -> None:
        """Remove a sequence."""
        row, last = self.rows.index(key), len(self.rows) - 1
        self.rows[row] = self.rows[last]
        self.rows.pop()
        if row < last:
            self._own[:, row] = self._own[:, last]
        # An empty window is dropped: clearing all its memory would be for nothing.
        if self.rows:
            self._own[:, last] = 0

    def _read(self, pages: NDArray[np.int64]) -> Any:
        index = torch.tensor(pages, device=self._pages.device)
        # Twice as fast as an index.
        return self._pages.index_select(1, index).transpose(1, 2)

    def begin(self, lengths: Mapping[Any, int]) -> bool:
        """Prepare a tick for the sequences in ``lengths``; return whether any has a row here.

        A length counts the tokens of a sequence, the new one included.
        """
        rows = [row for row, key in enumerate(self.rows) if key in lengths]
        self.members = [self.rows[row] for row in rows]
        if not rows:
            return False
        device = self._pages.device
        where = torch.tensor(rows, device=device)
        # A slice is a view, an index would be a copy.
        self._use: Any = slice(0, len(rows)) if len(rows) == len(self.rows) else where
        tokens = [lengths[key] - self._start for key in self.members]
        own = torch.tensor(tokens, device=device)
        heads = self._own.shape[2]
        head = torch.arange(heads, device=device)
        self._at = ((where[:, None] * heads + head) * self._width + own[:, None] - 1).flatten()
        self._longest = max(tokens)
        self._mask: Any = None
        if min(tokens) < self._longest:
            hidden = torch.arange(self._longest, device=device) >= own[:, None]
            self._mask = hidden[:, None, None]
        return True

    def attend(self, layer: int, query: Any, key: Any, value: Any, scale: float) -> Any:
        """Compute attention as :meth:`PagedBatch.attend`, for one token of each row."""
        keys, values = self._own[2 * layer], self._own[2 * layer + 1]
        count, kv_heads, dim = key.shape
        keys.view(-1, dim).index_copy_(0, self._at, key.reshape(-1, dim).to(keys.dtype))
        values.view(-1, dim).index_copy_(0, self._at, value.reshape(-1, dim).to(keys.dtype))
        keys = keys[self._use, :, : self._longest]
        values = values[self._use, :, : self._longest]
        query = (query * scale).to(keys.dtype).view(count, kv_heads, -1, dim)
        weights = query @ keys.transpose(-1, -2)
        if self._mask is not None:
            weights = weights.masked_fill(self._mask, -torch.inf)
        if not self._start:
            return (weights.float().softmax(-1).to(values.dtype) @ values).reshape(count, -1, dim)
        # The stem's products are one for all rows, and one softmax is over both.
        stem = query.transpose(0, 1).reshape(kv_heads, -1, dim)
        stem = stem @ self._stem[2 * layer].transpose(-1, -2)
        stem = stem.view(kv_heads, count, -1, self._start).transpose(0, 1)
        weights = torch.cat([stem, weights], -1).float().softmax(-1).to(values.dtype)
        stem = weights[..., : self._start].transpose(0, 1).reshape(kv_heads, -1, self._start)
        stem = (stem @ self._stem[2 * layer + 1]).view(kv_heads, count, -1, dim).transpose(0, 1)
        return (weights[..., self._start :] @ values + stem).reshape(count, -1, dim)


class CausalModel(ABC):
    """A language model that an engine can run.

    Attributes:
        shape: Of a token's keys and values, (2 * layers, kv_heads, head_dim).
        dtype: Of them.
        vocab_size: Ids go from 0 to below this.
        max_length: Most tokens of a sequence.
        width: Length of an input embedding; 0 if it takes none, and so no virtual tokens.
        device: Device of the weights.
        model: Module with the weights, if that is another one.
    """

    shape: tuple[int, int, int]
    dtype: Any = torch.float32
    vocab_size: int
    max_length: int
    width: int = 0
    device: Any

    @abstractmethod
    def forward_paged(self, batch: PagedBatch) -> Any:
        """Return logits after the last token of each span, [spans, vocab_size]."""

    def load_weights(self, weights: Mapping[str, Any] | Callable[[Any], None]) -> None:
        """Load a state dict, or call a function with the module, whose changes stay if it raises.

        A state dict is checked first: other names or shapes are an ``ArgumentError``.
        """
        module: Any = getattr(self, "model", self)
        with torch.no_grad():
            if callable(weights):
                weights(module)
                return
            own = {name: tuple(value.shape) for name, value in module.state_dict().items()}
            new = {name: tuple(value.shape) for name, value in weights.items()}
            wrong = sorted(name for name in own | new if own.get(name) != new.get(name))
            if wrong:
                shapes = [f"{name} is {new.get(name)}, not {own.get(name)}" for name in wrong[:5]]
                raise ArgumentError(f"new weights do not fit: {'; '.join(shapes)}")
            module.load_state_dict(weights)


class PolicyModel(CausalModel):
    """A policy over vectors: its tokens are states, and the one that is drawn is an action.

    ``policy`` is a ``PolicyNetwork`` or has its sizes, and returns logits for states and plans; the
    plans are zeros. It has no keys and values.
    """

    shape = (0, 1, 1)
    max_length = 1

    def __init__(self, policy: Any, device: Any) -> None:
        self.model, self.device = policy.to(device), device
        self.width, self.vocab_size = policy.state_dim, policy.action_dim

    def forward_paged(self, batch: PagedBatch) -> Any:
        """Return logits of the actions for each state."""
        states = batch.embed(torch.zeros(len(batch.tokens), self.width, device=self.device))
        return self.model(states, states.new_zeros(len(states), self.model.latent_dim))


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of a :class:`TinyTransformer`."""

    vocab_size: int = 256
    dim: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 128
    max_length: int = 4_096
    rope_base: float = 10_000.0

    def __post_init__(self) -> None:
        _checks.whole(self, "vocab_size", "dim", "layers", "heads", "kv_heads", "hidden")
        _checks.whole(self, "max_length")
        if self.dim % (2 * self.heads) or self.heads % self.kv_heads:
            raise ArgumentError(
                f"dim ({self.dim}) must be a multiple of twice the heads ({self.heads}), and heads "
                f"a multiple of kv_heads ({self.kv_heads})"
            )


class _Block(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        keys = config.kv_heads * self.head_dim
        self.norm = nn.RMSNorm(config.dim, 1e-5)
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.key = nn.Linear(config.dim, keys, bias=False)
        self.value = nn.Linear(config.dim, keys, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        self.feed_norm = nn.RMSNorm(config.dim, 1e-5)
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any, attend: Callable[..., Any]) -> Any:
        y = self.norm(x)
        query, key, value = (
            part(y).unflatten(-1, (-1, self.head_dim))
            for part in (self.query, self.key, self.value)
        )
        scale = self.head_dim**-0.5
        seen = attend(_rotate(query, cos, sin), _rotate(key, cos, sin), value, scale)
        x = x + self.out(seen.flatten(-2))
        y = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def _attend(layer: int, query: Any, key: Any, value: Any, scale: float) -> Any:
    """Compute attention over whole sequences, [batch, length, heads, head_dim]."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=True
    ).transpose(1, 2)


class TinyTransformer(nn.Module, CausalModel):
    """A small transformer of Llama's family, whose weights come from ``seed``.

    It computes the same logits over whole sequences, with gradients, and over pages.
    """

    def __init__(
        self, config: TinyConfig | None = None, *, seed: int = 0, device: Any = "auto"
    ) -> None:
        super().__init__()
        self.config = config = config or TinyConfig()
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, 1e-5)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
        head_dim = config.dim // config.heads
        self.device = resolve(device)
        self.to(self.device)
        rates = config.rope_base ** (-torch.arange(0, head_dim, 2) / head_dim)
        self._rates = rates.to(self.device)
        self.shape = 2 * config.layers, config.kv_heads, head_dim
        self.vocab_size, self.max_length = config.vocab_size, config.max_length
        self.width = config.dim

    def forward(self, tokens: Any) -> Any:
        """Return logits after each token, [batch, length] -> [batch, length, vocab]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self._run(self.embed(tokens), positions, _attend) @ self.embed.weight.T

    def forward_paged(self, batch: PagedBatch) -> Any:
        """Return logits after the last token of each span."""
        x = self._run(batch.embed(self.embed(batch.tokens)), batch.positions, batch.attend)
        return x[batch.ends] @ self.embed.weight.T

    def _run(self, x: Any, positions: Any, attend: Callable[..., Any]) -> Any:
        angles = positions[:, None, None] * self._rates
        cos, sin = angles.cos(), angles.sin()
        for layer, block in enumerate(self.blocks):
            x = block(x, cos, sin, partial(attend, layer))
        return self.norm(x)
