"""The inputs of a token model, and the parts of its loss: ratios, weights, divergences.

*Padded*: a row for each item, filled up on the right, which a causal model does not attend to; any
causal model can read it. *Packed*: all items in one row without gaps, each with positions from 0
on; only models that keep such items apart can (:func:`keeps_apart` tests that).

Functions of the loss take a value for each learned token and return one. How much each counts is
decided once for a whole batch (:func:`token_weights`), so that the losses of micro-batches add up
to that of the batch. What needs no gradient comes from ``echoic.primitives``.

Invariants of a :class:`MicroBatch`:

1. ``index`` names learned tokens of the flat batch in rising order, and ``targets`` are those.
2. The output at ``(rows[i], columns[i])`` is what the model expects after all that precedes token
   ``index[i]`` in its item, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from echoic.primitives import compute_token_kl

if TYPE_CHECKING:
    from torch import Tensor

    from echoic.agents.llm.batch import TokenBatch

    Array = np.ndarray[Any, Any]

__all__ = [
    "Aggregation",
    "KlKind",
    "MicroBatch",
    "RatioLevel",
    "TokenScores",
    "importance_ratio",
    "keeps_apart",
    "lay_out",
    "score",
    "token_kl",
    "token_weights",
]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Items that go through the model together."""

    #: Token numbers, (rows, places).
    ids: Tensor
    #: The place of each token in its item, for packed items.
    positions: Tensor | None
    #: Where the output for each learned token is.
    rows: Tensor
    columns: Tensor
    #: Which tokens those are, (learned,).
    targets: Tensor
    #: Where they are in the flat batch, (learned,).
    index: Tensor
    #: The item of each, counted from 0 in this micro-batch, (learned,).
    items: Tensor
    #: How many items there are.
    size: int


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Log-probabilities and entropies at the learned tokens of a micro-batch, (learned,)."""

    logprobs: Tensor
    entropy: Tensor


def lay_out(
    batch: TokenBatch, mask: Array, items: Array, *, packed: bool, device: torch.device
) -> MicroBatch:
    """Lay out ``items`` (rising numbers) for a model; ``mask`` marks the learned tokens."""
    lengths = batch.lengths[items]
    ends = np.cumsum(lengths)
    local = np.repeat(np.arange(len(items)), lengths)
    position = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
    flat = position + np.repeat(batch.offsets[:-1][items], lengths)
    if packed:
        row, column, shape = np.zeros_like(local), np.arange(len(local)), (1, len(local))
    else:
        row, column, shape = local, position, (len(items), int(lengths.max(initial=1)))
    ids = np.zeros(shape, np.int64)
    ids[row, column] = batch.tokens[flat]
    learned = mask[flat]

    def give(array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)

    return MicroBatch(
        ids=give(ids),
        positions=give(position[None]) if packed else None,
        rows=give(row[learned]),
        # A token is predicted at the one before it.
        columns=give(column[learned] - 1),
        targets=give(batch.tokens[flat][learned]),
        index=give(flat[learned]),
        items=give(local[learned]),
        size=len(items),
    )


def score(policy: Any, part: MicroBatch, temperature: float, *, with_entropy: bool) -> TokenScores:
    """Return the log-probabilities of a micro-batch's learned tokens, and the entropies there.

    Entropies carry a gradient if ``with_entropy``. All is in float32 at least, whatever the
    model's dtype: ratios of probabilities lose their meaning in 8 bits.
    """
    # Only the outputs that are learned from are kept: prompts are often longer than answers.
    logits = _outputs(policy, part.ids, part.positions)[part.rows, part.columns]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    norm = logits.logsumexp(-1)
    logprobs = logits.gather(-1, part.targets[:, None])[:, 0] - norm
    with torch.set_grad_enabled(with_entropy and torch.is_grad_enabled()):
        # A token that can't be drawn adds nothing, where 0 · ∞ would be no number.
        reachable = logits.masked_fill(logits == -torch.inf, 0)
        entropy = norm - (logits.softmax(-1) * reachable).sum(-1)
    return TokenScores(logprobs, entropy)


def keeps_apart(policy: Any, device: torch.device) -> bool:
    """Whether a model that reads two packed items sees only its own in each of them."""
    first, second = [1, 0, 1], [0, 1]
    row = torch.tensor([first + second], device=device)
    positions = torch.tensor([[0, 1, 2, 0, 1]], device=device)
    try:
        with torch.no_grad():
            together = _outputs(policy, row, positions)[0, 3:].float()
            alone = _outputs(policy, row[:, 3:], positions[:, 3:])[0].float()
    except TypeError:
        return False  # It takes no positions.
    # Twice the same numbers by another order of sums; a model that looks back is far off.
    return bool((together - alone).abs().max() <= 1e-2 * alone.abs().max().clamp_min(1e-3))


def _outputs(policy: Any, ids: Tensor, positions: Tensor | None) -> Tensor:
    """Return logits (rows, places, vocabulary) of a transformers model or any module."""
    arguments: dict[str, Any] = {}
    if positions is not None:
        arguments["position_ids"] = positions
    if hasattr(getattr(policy, "config", None), "use_cache"):
        # A cache of keys and values is of no use here, and as large as the activations.
        arguments["use_cache"] = False
    found = policy(ids, **arguments)
    return getattr(found, "logits", found)


RatioLevel = Literal["token", "sequence", "sequence_mean"]
Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]
KlKind = Literal["k1", "k2", "k3"]

# exp(20) is 5e8: such a token teaches nothing, and must not become an infinity.
_LARGEST_LOG_RATIO = 20.0


def token_weights(
    batch: TokenBatch, mask: Array, aggregation: Aggregation, fixed_length: int | None
) -> Array:
    """Return the weight of each token of ``mask`` in the loss, (tokens,); 0 elsewhere.

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
    each of its tokens. Ratios are bounded to exp(±20).

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
            sums = sums / torch.bincount(items, minlength=size).clamp_min(1)
        log_ratio = sums[items]
    return log_ratio.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()


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
        slope = {"k1": torch.ones_like, "k2": torch.neg, "k3": lambda d: -torch.expm1(d)}[ctx.kind]
        return gradient * slope(d), None, None
