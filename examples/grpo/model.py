"""A transformer that is small enough to learn on a CPU while you watch, and how it answers.

Two layers, causal, without a cache: sequences have a dozen tokens, so they are read again for each
token that is added. Rows of different lengths are filled up on the right, where causal attention
does not look.

Knows the task's tokens, and nothing of Echoic.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from examples.grpo.task import CONTEXT, VOCABULARY

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

WIDTH, HEADS, LAYERS = 48, 4, 2


class Layer(nn.Module):
    """Attention to what came before, and a small network for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_network = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, hidden: Tensor, future: Tensor) -> Tensor:
        """Return the next (rows, places, width)."""
        rows, places, _ = hidden.shape
        parts = self.attention(self.before_attention(hidden))
        heads = parts.view(rows, places, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads[0], heads[1], heads[2]
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + future
        seen = (scores.softmax(-1) @ values).transpose(1, 2).reshape(rows, places, WIDTH)
        hidden = hidden + self.mix(seen)
        return hidden + self.network(self.before_network(hidden))


class Policy(nn.Module):
    """Says how likely each next token is."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
        future = torch.full((CONTEXT, CONTEXT), -math.inf).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities (rows, places, vocabulary) of what follows each place."""
        places = tokens.shape[1]
        hidden = self.tokens(tokens) + self.places.weight[:places]
        for layer in self.layers:
            hidden = layer(hidden, self.future[:places, :places])
        return torch.log_softmax(self.head(hidden), -1)

    @torch.no_grad()
    def draw(
        self, tokens: np.ndarray, lengths: np.ndarray, rng: torch.Generator | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the next token of each row; return it and its log-probability.

        Args:
            tokens: (rows, places), filled up on the right.
            lengths: (rows,): how many tokens each row has.
            rng: Where chance comes from; without it, the likeliest token is taken.
        """
        places = int(lengths.max())
        last = torch.from_numpy(lengths - 1)
        following = self(torch.from_numpy(tokens[:, :places]))[torch.arange(len(last)), last]
        if rng is None:
            drawn = following.argmax(-1, keepdim=True)
        else:
            drawn = torch.multinomial(following.exp(), 1, generator=rng)
        return drawn[:, 0].numpy(), following.gather(-1, drawn)[:, 0].numpy()
