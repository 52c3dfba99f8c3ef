"""How the next token is drawn from logits, for many rollouts at once.

Each rollout has random numbers of its own, so that what it draws depends on its seed and its
logits, and not on who else is in the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SamplingParams", "draw"]


@dataclass(frozen=True)
class SamplingParams:
    """How a rollout draws its tokens, and when it ends.

    >>> SamplingParams(temperature=0.0).greedy
    True

    Attributes:
        max_new_tokens: It ends after so many.
        temperature: Logits are divided by it; 0 takes the likeliest token.
        top_p: Only the likeliest tokens that together have this probability are drawn from.
        stop: It ends after one of these tokens, which is part of it.
        seed: Of its random numbers; None takes one from the engine's.
        forced: Tokens that are taken first, whatever the model would draw: their log-probabilities
            are what an answer is worth that somebody else wrote. ``stop`` does not look at them.
    """

    max_new_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[int, ...] = ()
    seed: int | None = None
    forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ArgumentError(f"max_new_tokens is at least 1, not {self.max_new_tokens}")
        if not 0 <= self.temperature < math.inf:
            raise ArgumentError(f"temperature is finite and not below 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p is above 0 and at most 1, not {self.top_p}")
        object.__setattr__(self, "stop", tuple(int(token) for token in self.stop))
        object.__setattr__(self, "forced", tuple(int(token) for token in self.forced))
        if len(self.forced) > self.max_new_tokens:
            raise ArgumentError(
                f"{len(self.forced)} tokens are forced, and max_new_tokens is {self.max_new_tokens}"
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0


def draw(
    logits: Any,
    params: Sequence[SamplingParams],
    chances: Sequence[float],
    forced: Sequence[int | None] = (),
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw a token for each row.

    Args:
        logits: [rows, vocab].
        params: Of each row.
        chances: For each row a random number from 0 to below 1; greedy rows do not look at it.
        forced: For each row the token that is taken instead, if one is; empty where none is.

    Returns:
        Tokens, and the logarithm of the probability of each under ``softmax(logits /
        temperature)``, where greedy rows have temperature 1. What ``top_p`` cuts off does not
        change it: it is what a learner computes from the same logits.
    """
    logits = logits.float()
    device = logits.device
    heats = torch.tensor([1.0 if p.greedy else p.temperature for p in params], device=device)
    logs = torch.log_softmax(logits / heats[:, None], -1)
    tokens = logs.argmax(-1)
    drawn = [row for row, p in enumerate(params) if not p.greedy]
    if drawn:
        rows = torch.tensor(drawn, device=device)
        chance = torch.tensor([chances[row] for row in drawn], dtype=torch.float64, device=device)
        likely = logs[rows].double().exp()
        order = None
        limits = [params[row].top_p for row in drawn]
        if min(limits) < 1:
            likely, order = likely.sort(-1, descending=True)
            limit = torch.tensor(limits, dtype=torch.float64, device=device)[:, None]
            # A token stays if those before it have not filled the limit, so that one always does.
            before = likely.cumsum(-1) - likely
            likely = torch.where((before < limit) | (limit >= 1), likely, 0.0)
        sums = likely.cumsum(-1)
        picks = torch.searchsorted(sums, (chance * sums[:, -1])[:, None], right=True)
        # Rounding could point behind the last token that has a probability.
        last = (likely > 0).long().cumsum(-1).argmax(-1, keepdim=True)
        picks = torch.minimum(picks, last)
        if order is not None:
            picks = order.gather(-1, picks)
        tokens[rows] = picks[:, 0]
    for row, token in enumerate(forced):
        if token is not None:
            tokens[row] = token
    taken = logs.gather(-1, tokens[:, None])[:, 0]
    return tokens.cpu().numpy(), taken.double().cpu().numpy()
