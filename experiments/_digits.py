"""A task whose answers can be checked, turning a few digits round, and a transformer for it.

A prompt is some digits and ``SEP``, its answer the same digits from last to first and ``END``. The
reward is the share of places that are right, so that a policy which knows nothing has something to
learn from.

The transformer has two layers and no cache: sequences have a dozen tokens, so they are read again
for each token that is added. Rows of different lengths are filled up on the right, where causal
attention does not look.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

# Tokens are the digits from 0 on, and two more.
DIGITS = 6
SEP, END = DIGITS, DIGITS + 1
VOCABULARY = DIGITS + 2
# Digits of a prompt.
SHORTEST, LONGEST = 2, 4
# Tokens of an answer; a policy that does not stop is cut off.
MOST = LONGEST + 2
# Tokens of a prompt and its answer.
CONTEXT = LONGEST + 1 + MOST


def prompt(seed: int, group: int) -> list[int]:
    """Return the prompt of a group."""
    rng = np.random.default_rng((seed, group))
    length = int(rng.integers(SHORTEST, LONGEST, endpoint=True))
    return [*rng.integers(DIGITS, size=length).tolist(), SEP]


def solution(prompt: Sequence[int]) -> list[int]:
    """Return the answer that is right."""
    return [*reversed(prompt[:-1]), END]


def is_over(answer: Sequence[int]) -> bool:
    """Whether nothing is to be added to an answer."""
    return len(answer) >= MOST or (len(answer) > 0 and answer[-1] == END)


def reward(prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Return the share of places that are right, of those that either has."""
    expected = solution(prompt)
    right = sum(a == b for a, b in zip(expected, answer, strict=False))
    return right / max(len(expected), len(answer))


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
