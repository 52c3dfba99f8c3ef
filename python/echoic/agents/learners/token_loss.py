"""What a token policy is improved by: ratios to who acted, the clip, and divergences.

All functions take a value for each learned token and return one. How much each counts is decided
once for a whole batch (:func:`token_weights`), so that the losses of micro-batches add up to that
of the batch.

What needs no gradient comes from ``echoic.primitives``: advantages, divergences in rewards and the
values of divergences in losses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from echoic.primitives import compute_token_kl

if TYPE_CHECKING:
    from torch import Tensor

    from echoic.agents.learners.token_batch import TokenBatch

    Array = np.ndarray[Any, Any]

__all__ = [
    "Aggregation",
    "KlKind",
    "RatioLevel",
    "clipped_gain",
    "importance_ratio",
    "token_kl",
    "token_weights",
]

RatioLevel = Literal["token", "sequence", "sequence_mean"]
Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]
KlKind = Literal["k1", "k2", "k3"]

# exp(20) is 5e8: a token that far off teaches nothing, and must not become an infinity.
_LARGEST_LOG_RATIO = 20.0


def token_weights(
    batch: TokenBatch, mask: Array, aggregation: Aggregation, fixed_length: int | None
) -> Array:
    """Return by what each token of ``mask`` is multiplied in the loss, (tokens,); 0 elsewhere.

    With N items and n_i learned tokens in item i::

        token_mean      1 / sum of n_i          every token counts alike (DAPO)
        sequence_mean   1 / (N' · n_i)          every item counts alike (GRPO); N' items have tokens
        fixed_length    1 / (N · fixed_length)  no item's length matters (Dr. GRPO)
    """
    counts = batch.count(mask)
    weights = np.zeros(len(batch.tokens), np.float32)
    if aggregation == "token_mean":
        weights[mask] = 1 / max(1, int(counts.sum()))
    elif aggregation == "sequence_mean":
        share = 1 / (np.maximum(counts, 1) * max(1, int((counts > 0).sum())))
        weights[mask] = share[batch.items[mask]]
    else:
        weights[mask] = 1 / (len(batch) * (fixed_length or 1))
    return weights


def importance_ratio(log_ratio: Tensor, items: Tensor, size: int, level: RatioLevel) -> Tensor:
    """Return how much likelier a token, or the whole of its item, is than it was, (tokens,).

    As ``echoic.primitives.compute_importance_weights``, with a gradient; an item's ratio is that of
    each of its tokens. Those ratios that no float could hold end at exp(±20).

    Args:
        log_ratio: Differences of log-probabilities, (tokens,).
        items: The item of each token, from 0 on, (tokens,).
        size: How many items there are.
        level: ``"token"``; ``"sequence"``: the product over an item; ``"sequence_mean"``: its
            geometric mean (GSPO, arXiv:2507.18071).
    """
    if level != "token":
        sums = log_ratio.new_zeros(size).index_add(0, items, log_ratio)
        if level == "sequence_mean":
            counts = torch.bincount(items, minlength=size).clamp_min(1)
            sums = sums / counts
        log_ratio = sums[items]
    return log_ratio.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()


def clipped_gain(
    ratio: Tensor, advantages: Tensor, low: float | None, high: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return PPO's gain ``min(ρ·A, clip(ρ, 1 − low, 1 + high)·A)``, and where the clip took over.

    Without ``low`` or ``high`` there is no bound on that side.

    Returns:
        The gain, where it was bounded from below (ρ too small, A < 0), and from above (A > 0).
    """
    gain = ratio * advantages
    bounded = ratio
    if low is not None:
        bounded = bounded.clamp(min=1 - low)
    if high is not None:
        bounded = bounded.clamp(max=1 + high)
    bounded = bounded * advantages
    is_clipped = bounded < gain
    return (
        torch.minimum(gain, bounded),
        is_clipped & (advantages < 0),
        is_clipped & (advantages > 0),
    )


def token_kl(log_p: Tensor, log_q: Tensor, kind: KlKind) -> Tensor:
    """Return the terms of ``echoic.primitives.compute_token_kl`` with a gradient for ``log_p``."""
    found: Tensor = _TokenKl.apply(log_p, log_q, kind)
    return found


class _TokenKl(torch.autograd.Function):
    """The value is the primitive's; only the derivative is written here.

    With d = log q − log p, whose derivative by log p is −1: k1 has 1, k2 has −d, k3 has 1 − exp(d).
    """

    @staticmethod
    def forward(ctx: Any, log_p: Tensor, log_q: Tensor, kind: KlKind) -> Tensor:
        ctx.save_for_backward(log_q - log_p)
        ctx.kind = kind
        # Primitives compute on the CPU; a number for each token is little to move.
        near, far = log_p.detach().cpu(), log_q.detach().cpu()
        return compute_token_kl(near, far, estimator=kind, reduction="none").to(log_p.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (d,) = ctx.saved_tensors
        slopes = {
            "k1": lambda: torch.ones_like(d),
            "k2": lambda: -d,
            "k3": lambda: -torch.expm1(d),
        }
        return gradient * slopes[ctx.kind](), None, None
