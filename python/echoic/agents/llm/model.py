"""The interface of language models for an engine: one forward pass over tokens of many sequences.

The tokens of a tick are laid end to end: [T] ids, [T] positions. The batch computes attention: a
model passes it queries, keys and values of all tokens, and :meth:`PagedBatch.attend` writes keys
and values to their pages, reads those of each sequence, and returns the result. So a model does not
depend on pages or scheduling.

Attention without copies: pages of a sequence are anywhere in the pool, and gathering them in every
layer of every tick took as long as all matrix products of the weights. So a sequence that generates
has its keys and values in a :class:`Window`, copied there once; pieces of prompts gather.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
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

__all__ = ["CausalModel", "KVShape", "PagedBatch", "Span", "TinyConfig", "TinyTransformer"]


@dataclass(frozen=True)
class KVShape:
    """Keys and values of each token: ``2 * layers`` planes with rows [kv_heads, head_dim]."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: Any = torch.float32

    def planes(self) -> list[tuple[tuple[int, ...], Any]]:
        """Return shape and dtype of each plane: keys and values of layer 0, of layer 1, ..."""
        return [((self.kv_heads, self.head_dim), self.dtype)] * (2 * self.layers)


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence in a tick.

    Attributes:
        tokens: Their ids; a virtual token is the bytes of its input embedding, as float32.
        start: Position of the first.
        pages: Pages of the sequence from its first token to the last of this span.
    """

    tokens: Sequence[int | bytes]
    start: int
    pages: NDArray[np.int64]


class PagedBatch:
    """Tokens of a tick, and the pages of their keys and values.

    Attributes:
        tokens: Ids, [T]; 0 for virtual tokens.
        positions: Of each in its sequence, [T].
        ends: For each span the index of its last token, [spans].

    Args:
        spans: What is computed. The first ones have one token each, and are those of ``windows``.
        planes: Planes of the pages.
        device: Device of the model.
        windows: Windows that have begun a tick.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        planes: Sequence[Any],
        device: Any,
        windows: Sequence[Window] = (),
    ) -> None:
        self._planes, self._windows = planes, windows
        lengths = [len(span.tokens) for span in spans]
        bounds = np.cumsum([0, *lengths])
        flat = [token for span in spans for token in span.tokens]
        # Rows of virtual tokens, and their embeddings.
        self._given: tuple[Any, Any] | None = None
        given = [row for row, token in enumerate(flat) if isinstance(token, bytes)]
        if given:
            rows = np.frombuffer(b"".join(flat[row] for row in given), np.float32)  # type: ignore[misc]
            self._given = (
                torch.tensor(given, device=device),
                torch.tensor(rows.reshape(len(given), -1), device=device),
            )
            for row in given:
                flat[row] = 0
        tokens = np.array(flat, np.int64)
        positions = np.concatenate(
            [np.arange(s.start, s.start + n) for s, n in zip(spans, lengths, strict=True)]
        )
        inside = sum(window.count for window in windows)
        written = [s.pages[s.start :] for s in spans[inside:]]
        self.tokens = torch.from_numpy(tokens).to(device)
        self.positions = torch.from_numpy(positions).to(device)
        self.ends = torch.from_numpy(bounds[1:] - 1).to(device)
        if written:
            self._written = torch.from_numpy(np.concatenate(written)).to(device)
        self._pieces: list[tuple[int, int, Any, Any]] = []
        for i, span in enumerate(spans[inside:], inside):
            pages = mask = None
            if span.start:
                where = torch.arange(span.start, span.start + lengths[i], device=device)
                mask = torch.arange(len(span.pages), device=device)[None, :] <= where[:, None]
                pages = torch.from_numpy(np.ascontiguousarray(span.pages)).to(device)
            self._pieces.append((int(bounds[i]), int(bounds[i + 1]), pages, mask))

    @property
    def virtual(self) -> bool:
        """Whether there are virtual tokens, so that input embeddings need :meth:`embed`."""
        return self._given is not None

    def embed(self, embedded: Any) -> Any:
        """Return input embeddings of ``tokens``, [T, width], with those of virtual tokens set."""
        if self._given is None:
            return embedded
        rows, vectors = self._given
        return embedded.index_copy(0, rows, vectors.to(embedded.dtype))

    def attend(self, layer: int, query: Any, key: Any, value: Any, scale: float) -> Any:
        """Compute attention of every token to those before it in its own sequence, and itself.

        Args:
            layer: Number of the layer; each is called once in a forward pass.
            query: [T, heads, head_dim], as the result.
            key: [T, kv_heads, head_dim], already rotated if the model does that.
            value: As ``key``.
            scale: Factor of the products of queries and keys.
        """
        if len(self._windows) == 1 and not self._pieces:
            return self._windows[0].attend(layer, query, key, value, scale)
        seen = torch.empty_like(query)
        row = 0
        for window in self._windows:
            part = slice(row, row + window.count)
            seen[part] = window.attend(layer, query[part], key[part], value[part], scale)
            row += window.count
        if not self._pieces:
            return seen
        keys, values = self._planes[2 * layer], self._planes[2 * layer + 1]
        keys.index_copy_(0, self._written, key[row:].to(keys.dtype))
        values.index_copy_(0, self._written, value[row:].to(values.dtype))
        _, heads, dim = query.shape
        kv_heads = key.shape[1]
        # Heads that share keys are queries of one head, which needs no copy of the keys.
        group = heads // kv_heads
        for start, end, pages, mask in self._pieces:
            if pages is None:
                # It begins its sequence, so that it sees nothing but itself.
                result = functional.scaled_dot_product_attention(
                    query[start:end].transpose(0, 1)[None],
                    key[start:end].transpose(0, 1)[None],
                    value[start:end].transpose(0, 1)[None],
                    is_causal=True,
                    scale=scale,
                    enable_gqa=group > 1,
                )
                seen[start:end] = result[0].transpose(0, 1)
                continue
            count = end - start
            queries = query[start:end].view(count, kv_heads, group, dim).permute(1, 2, 0, 3)
            result = functional.scaled_dot_product_attention(
                queries.reshape(1, kv_heads, group * count, dim),
                keys[pages].transpose(0, 1)[None].to(query.dtype),
                values[pages].transpose(0, 1)[None].to(query.dtype),
                attn_mask=mask.repeat(group, 1),
                scale=scale,
            )
            seen[start:end] = (
                result.view(kv_heads, group, count, dim).permute(2, 0, 1, 3).reshape(-1, heads, dim)
            )
        return seen


# Tokens by which the rows of a window grow.
_STEP = 64


class Window:
    """Keys and values of sequences that grow by a token per tick, where attention reads them.

    ``stem`` has those of the tokens that all sequences begin with, once; each sequence has a row
    with those of its other tokens, to which a tick appends. They are copied from pages when a
    sequence comes (:meth:`add`), and generated ones back to pages (:meth:`save`).

    Args:
        planes: Planes of the pages.
        stem: Pages of the common beginning.
    """

    def __init__(self, planes: Sequence[Any], stem: NDArray[np.int64]) -> None:
        self._pages, self._start = planes, len(stem)
        #: Rows, and tokens of each, for which there is memory.
        self.height = self._width = 0
        index = torch.from_numpy(stem).to(planes[0].device)
        # [kv_heads, tokens, head_dim]
        self._stem = [p[index].transpose(0, 1).contiguous() for p in planes] if len(stem) else []
        self._planes = [p.new_zeros((0, p.shape[1], 0, p.shape[2])) for p in planes]
        self.rows: list[Any] = []
        #: Sequences that take part in the tick.
        self.count = 0

    def add(self, key: Any, pages: NDArray[np.int64]) -> None:
        """Add the sequence ``key``, whose tokens so far are in ``pages``."""
        row, end = len(self.rows), len(pages) - self._start
        self.fit(row + 1, end + 1)
        self.rows.append(key)
        own = np.ascontiguousarray(pages[self._start :])
        index = torch.from_numpy(own).to(self._pages[0].device)
        for page, plane in zip(self._pages, self._planes, strict=True):
            plane[row, :, :end] = page[index].transpose(0, 1)

    def fit(self, rows: int, tokens: int = 1) -> None:
        """Make room for this many rows, and tokens in each."""
        height, width = self.height, self._width
        if rows <= height and tokens <= width:
            return
        if rows > height:
            height = max(rows, height + height // 4)
        width = max(width, -(-tokens // _STEP) * _STEP)
        # One at a time, and counted at the end: memory may not be enough.
        for i, old in enumerate(self._planes):
            had, heads, long, dim = old.shape
            # What a row does not use is finite: a weight of 0 would not hide a NaN.
            self._planes[i] = old.new_zeros((height, heads, width, dim))
            self._planes[i][:had, :, :long] = old
        self.height, self._width = height, width

    def remove(self, key: Any) -> None:
        """Remove a sequence."""
        row, last = self.rows.index(key), len(self.rows) - 1
        self.rows[row] = self.rows[last]
        self.rows.pop()
        for plane in self._planes:
            if row < last:
                plane[row] = plane[last]
            plane[last] = 0

    def save(self, key: Any, start: int, pages: NDArray[np.int64]) -> None:
        """Copy keys and values of a sequence to ``pages``, from its token ``start`` on."""
        row, start = self.rows.index(key), start - self._start
        index = torch.from_numpy(pages).to(self._pages[0].device)
        for page, plane in zip(self._pages, self._planes, strict=True):
            page[index] = plane[row, :, start : start + len(pages)].transpose(0, 1)

    def begin(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Prepare a tick for some rows; ``lengths`` counts their tokens, the new ones included."""
        self.fit(len(self.rows), max(lengths) - self._start)
        device = self._pages[0].device
        self.count = len(rows)
        every = list(rows) == list(range(len(self.rows)))
        where = torch.tensor(rows, device=device)
        # A slice is a view, an index would be a copy.
        self._use: Any = slice(0, len(rows)) if every else where
        own = torch.tensor(lengths, device=device) - self._start
        heads = self._planes[0].shape[1]
        head = torch.arange(heads, device=device)
        self._at = ((where[:, None] * heads + head) * self._width + own[:, None] - 1).flatten()
        self._longest = max(lengths) - self._start
        self._mask: Any = None
        if min(lengths) < max(lengths):
            hidden = torch.arange(self._longest, device=device) >= own[:, None]
            self._mask = hidden[:, None, None]

    def attend(self, layer: int, query: Any, key: Any, value: Any, scale: float) -> Any:
        """Compute attention as :meth:`PagedBatch.attend`, for one token of each row."""
        keys, values = self._planes[2 * layer], self._planes[2 * layer + 1]
        count, kv_heads, dim = key.shape
        keys.view(-1, dim).index_copy_(0, self._at, key.reshape(-1, dim).to(keys.dtype))
        values.view(-1, dim).index_copy_(0, self._at, value.reshape(-1, dim).to(keys.dtype))
        keys = keys[self._use, :, : self._longest]
        values = values[self._use, :, : self._longest]
        query = (query * scale).to(keys.dtype).view(count, kv_heads, -1, dim)
        weights = query @ keys.transpose(-1, -2)
        if self._mask is not None:
            weights = weights.masked_fill(self._mask, -torch.inf)
        if not self._stem:
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
        shape: Keys and values of each token.
        vocab_size: Ids go from 0 to below this.
        max_length: Most tokens of a sequence.
        width: Length of an input embedding; 0 if it takes none, and so no virtual tokens.
        device: Device of the weights.
    """

    shape: KVShape
    vocab_size: int
    max_length: int
    width: int = 0
    device: Any

    @abstractmethod
    def forward_paged(self, batch: PagedBatch) -> Any:
        """Return logits after the last token of each span, [spans, vocab_size]."""

    @abstractmethod
    def load_weights(self, weights: Mapping[str, Any] | Callable[[Any], None]) -> None:
        """Load new weights: a state dict, or a function that changes the module it is given."""


def check_weights(module: Any, weights: Mapping[str, Any] | Callable[[Any], None]) -> None:
    """Load ``weights`` into ``module``.

    A state dict is checked before anything changes: other names or shapes are an ``ArgumentError``.
    A function is called with the module; its changes stay if it raises.
    """
    with torch.no_grad():
        if callable(weights):
            weights(module)
            return
        own = module.state_dict()
        if own.keys() != weights.keys():
            missing = sorted(own.keys() - weights.keys())
            unknown = sorted(weights.keys() - own.keys())
            raise ArgumentError(f"new weights lack {missing[:5]} and have unknown {unknown[:5]}")
        for name, value in own.items():
            if value.shape != weights[name].shape:
                raise ArgumentError(
                    f"weight {name!r} has shape {tuple(value.shape)}, and the new one "
                    f"{tuple(weights[name].shape)}"
                )
        module.load_state_dict(weights)


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


class _Norm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Any) -> Any:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class _Block(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        head_dim = config.dim // config.heads
        self.norm = _Norm(config.dim)
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * head_dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        self.feed_norm = _Norm(config.dim)
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def project(self, x: Any, cos: Any, sin: Any) -> tuple[Any, Any, Any]:
        """Return queries, keys and values, [..., heads, head_dim]; the first two are rotated."""
        x = self.norm(x)
        query = self.query(x).unflatten(-1, (self.heads, -1))
        key = self.key(x).unflatten(-1, (self.kv_heads, -1))
        value = self.value(x).unflatten(-1, (self.kv_heads, -1))
        return _rotate(query, cos, sin), _rotate(key, cos, sin), value

    def finish(self, x: Any, seen: Any) -> Any:
        """Apply what follows attention."""
        x = x + self.out(seen.flatten(-2))
        y = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


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
        self.norm = _Norm(config.dim)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
        head_dim = config.dim // config.heads
        self._rates = config.rope_base ** (-torch.arange(0, head_dim, 2) / head_dim)
        self.device = resolve(device)
        self.to(self.device)
        self._rates = self._rates.to(self.device)
        self.shape = KVShape(config.layers, config.kv_heads, head_dim)
        self.vocab_size = config.vocab_size
        self.max_length = config.max_length
        self.width = config.dim

    def forward(self, tokens: Any) -> Any:
        """Return logits after each token, [batch, length] -> [batch, length, vocab]."""
        cos, sin = self._angles(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.embed(tokens)
        for block in self.blocks:
            query, key, value = block.project(x, cos, sin)
            group = query.shape[-2] // key.shape[-2]
            key = key.repeat_interleave(group, -2)
            value = value.repeat_interleave(group, -2)
            seen = functional.scaled_dot_product_attention(
                query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
            )
            x = block.finish(x, seen.transpose(1, 2))
        return self.norm(x) @ self.embed.weight.T

    def forward_paged(self, batch: PagedBatch) -> Any:
        """Return logits after the last token of each span."""
        cos, sin = self._angles(batch.positions)
        x = batch.embed(self.embed(batch.tokens))
        for layer, block in enumerate(self.blocks):
            query, key, value = block.project(x, cos, sin)
            x = block.finish(x, batch.attend(layer, query, key, value, query.shape[-1] ** -0.5))
        return self.norm(x[batch.ends]) @ self.embed.weight.T

    def load_weights(self, weights: Mapping[str, Any] | Callable[[Any], None]) -> None:
        """Load new weights between two ticks."""
        check_weights(self, weights)

    def _angles(self, positions: Any) -> tuple[Any, Any]:
        angles = positions[:, None, None] * self._rates
        return angles.cos(), angles.sin()
