"""How some items of a batch lie before a model, and which of its outputs are learned from.

*Padded*: a row for each item, filled up on the right, where a causal model does not look; any
causal model can read it. *Packed*: all items in one row without gaps, each with positions from 0
on; only models that keep such items apart can (:func:`keeps_apart` tells).

Invariants:

1. ``index`` names learned tokens of the flat batch in rising order, and ``targets`` are those.
2. The output at ``(rows[i], columns[i])`` is what the model expects after all that precedes token
   ``index[i]`` in its item, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from echoic.agents.learners.token_batch import TokenBatch

    Array = np.ndarray[Any, Any]

__all__ = ["MicroBatch", "TokenScores", "keeps_apart", "lay_out", "score"]


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
    """What a model says of the learned tokens of a micro-batch, (learned,) each."""

    logprobs: Tensor
    entropy: Tensor


def lay_out(
    batch: TokenBatch, mask: Array, items: Array, *, packed: bool, device: torch.device
) -> MicroBatch:
    """Put ``items`` (rising numbers) before a model; ``mask`` says which tokens are learned."""
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
        # What follows a token is said at the one before it.
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
    """Logits (rows, places, vocabulary), of a transformers model or any module of ours."""
    arguments: dict[str, Any] = {}
    if positions is not None:
        arguments["position_ids"] = positions
    if hasattr(getattr(policy, "config", None), "use_cache"):
        # A cache of keys and values is of no use here, and as large as the activations.
        arguments["use_cache"] = False
    found = policy(ids, **arguments)
    return getattr(found, "logits", found)
