"""A small causal transformer of our own, for tests and for agents whose language is tiny.

Pre-norm blocks with RMS norms, rotary positions, grouped keys and a gated feed-forward layer: what
the Llama family is made of, in single precision and a page of code. It has two ways to the same
logits: :meth:`TinyTransformer.forward` over whole sequences, which gradients go through, and
:meth:`TinyTransformer.forward_paged` over pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from echoic.agents.async_execution.model import CausalModel, KVShape, PagedBatch, check_weights
from echoic.agents.devices import resolve
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["TinyConfig", "TinyTransformer"]


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
        for name in ("vocab_size", "dim", "layers", "heads", "kv_heads", "hidden", "max_length"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.dim % (2 * self.heads) or self.heads % self.kv_heads:
            raise ArgumentError(
                f"dim ({self.dim}) is a multiple of twice the heads ({self.heads}), and they are "
                f"of kv_heads ({self.kv_heads})"
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
        """Queries, keys and values, each [..., heads, head_dim]; the first two are rotated."""
        x = self.norm(x)
        query = self.query(x).unflatten(-1, (self.heads, -1))
        key = self.key(x).unflatten(-1, (self.kv_heads, -1))
        value = self.value(x).unflatten(-1, (self.kv_heads, -1))
        return _rotate(query, cos, sin), _rotate(key, cos, sin), value

    def finish(self, x: Any, seen: Any) -> Any:
        """What comes after attention."""
        x = x + self.out(seen.flatten(-2))
        y = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


class TinyTransformer(nn.Module, CausalModel):
    """A causal transformer whose weights come from ``seed``.

    >>> model = TinyTransformer(TinyConfig(vocab_size=10), device="cpu")
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
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

    def forward(self, tokens: Any) -> Any:
        """Logits after each token of ``tokens``, [batch, length] -> [batch, length, vocab]."""
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
        """Logits after the last token of each span."""
        cos, sin = self._angles(batch.positions)
        x = self.embed(batch.tokens)
        for layer, block in enumerate(self.blocks):
            query, key, value = block.project(x, cos, sin)
            x = block.finish(x, batch.attend(layer, query, key, value, query.shape[-1] ** -0.5))
        return self.norm(x[batch.ends]) @ self.embed.weight.T

    def load_weights(self, weights: Mapping[str, Any] | Callable[[Any], None]) -> None:
        """Take new weights between two ticks."""
        check_weights(self, weights)

    def _angles(self, positions: Any) -> tuple[Any, Any]:
        angles = positions[:, None, None] * self._rates
        return angles.cos(), angles.sin()
