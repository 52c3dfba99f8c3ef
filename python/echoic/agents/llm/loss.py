"""The inputs and outputs of a token model, and the parts of its loss.

An item has a row, filled up on the right, which a causal model does not attend to. Functions of the
loss take a value for each learned token and return one. How much each counts is decided once for a
whole batch (:func:`token_weights`), so that the losses of micro-batches add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from echoic.agents.devices import put
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from echoic.agents.llm.batch import TokenBatch

    Array = np.ndarray[Any, Any]

__all__ = ["importance_ratio", "token_kl", "token_weights"]

# Runs a function again for its gradient. Nothing in evaluation mode is random, so no generator has
# to be put back.
_twice = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Items that go through the model together."""

    #: Token numbers, (items, places).
    ids: Tensor
    #: Where the outputs are that expect the learned tokens, (learned,).
    rows: Tensor
    columns: Tensor
    #: Which tokens those are, (learned,).
    targets: Tensor
    #: Where they are in the flat batch, in rising order, (learned,).
    index: Tensor


def lay_out(batch: TokenBatch, items: Array, device: torch.device) -> MicroBatch:
    """Lay out ``items`` (rising numbers), or one token that nothing is learned from without any."""
    lengths = batch.lengths[items]
    row = np.repeat(np.arange(len(items)), lengths)
    column = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    flat = column + np.repeat(batch.offsets[:-1][items], lengths)
    ids = np.zeros((max(1, len(items)), lengths.max(initial=1)), np.int64)
    targets = ids[row, column] = batch.tokens[flat]
    # A token is predicted at the one before it.
    of_tokens = {"rows": row, "columns": column - 1, "targets": targets, "index": flat}
    learned = {
        name: put(one[batch.mask[flat]], np.int64, device) for name, one in of_tokens.items()
    }
    return MicroBatch(put(ids, np.int64, device), **learned)


def score(
    policy: Any,
    part: MicroBatch,
    temperature: float,
    chunk: int | None = None,
    value_head: Any = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return log-probabilities, entropies (without a gradient) and values, (learned,).

    All is in float32 at least: ratios of probabilities lose their meaning in 8 bits. Logits are
    computed at the learned tokens alone, and with ``chunk`` for this many of them at a time, and
    again for the gradient.
    """
    head = output_layer(policy)
    scored: list[tuple[Tensor, Tensor]] = []
    values: list[Tensor] = []

    def scores(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return _of_logits(head.forward(hidden), targets, temperature)

    def instead(_head: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        """Take the hidden states before the output layer, and give it what it has to compute."""
        hidden = inputs[0][part.rows, part.columns]
        if value_head is not None:
            # At length 1, so that the size of a step does not depend on the model.
            values.append(value_head(nn.functional.normalize(hidden.float(), dim=-1))[:, 0])
        if chunk is None:
            return (hidden[None],)
        scores_of = partial(_twice, scores) if len(hidden) > chunk else scores
        for some, targets in zip(hidden.split(chunk), part.targets.split(chunk), strict=True):
            scored.append(scores_of(some, targets))
        return (hidden[None, :0],)

    if head is None:
        logits = _outputs(policy, part.ids)[part.rows, part.columns]
    else:
        with head.register_forward_pre_hook(instead):
            logits = _outputs(policy, part.ids)[0]
    if not scored:
        scored.append(_of_logits(logits, part.targets, temperature))
    logprobs, entropy = (torch.cat(of) for of in zip(*scored, strict=True))
    return logprobs, entropy, values[0] if values else None


def _of_logits(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    norm = logits.logsumexp(-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - norm
    with torch.no_grad():
        # A token that can't be drawn adds nothing, where 0 · ∞ would be no number.
        reachable = logits.masked_fill(logits == -torch.inf, 0)
        entropy = norm - (logits.softmax(-1) * reachable).sum(-1)
    return logprobs, entropy


def output_layer(policy: Any) -> Any:
    """Return the layer that makes logits of hidden states, or None: not every module names one."""
    find = getattr(policy, "get_output_embeddings", None)
    return None if find is None else find()


def make_value_head(policy: Any, device: torch.device) -> nn.Linear:
    """Return a layer that makes values of hidden states, all 0 at first."""
    head = output_layer(policy)
    if head is None:
        raise ArgumentError(
            "values are learned from the inputs of the model's output layer: the policy needs "
            "get_output_embeddings(), as models of transformers have it"
        )
    layer = nn.Linear(head.weight.shape[-1], 1, device=device)
    for one in layer.parameters():
        nn.init.zeros_(one)
    return layer


def recompute(layers: list[Any]) -> None:
    """Let layers keep their inputs only, and run again for the gradient.

    A model's own gradient checkpointing needs its training mode, which has dropout.
    """
    if not layers:
        raise ArgumentError(
            "checkpointing needs a model of transformers, or one that has the names of its layers' "
            "classes in _no_split_modules"
        )
    for layer in layers:
        layer.forward = partial(_twice, layer.forward)


def decoder_layers(policy: Any) -> list[Any]:
    """Return the layers that a model of transformers is a stack of."""
    names = getattr(policy, "_no_split_modules", None) or ()
    return [one for one in policy.modules() if type(one).__name__ in names]


def can_split(policy: Any, device: torch.device) -> bool:
    """Whether a model's logits are its output layer's: not if it caps or scales them."""
    head = output_layer(policy)
    seen: list[Tensor] = []
    if head is not None:
        keep = head.register_forward_hook(lambda _head, _inputs, output: seen.append(output))
        with keep, torch.no_grad():
            logits = _outputs(policy, torch.tensor([[0, 1, 0]], device=device))
    return len(seen) == 1 and torch.equal(seen[0].float(), logits.float())


def _outputs(policy: Any, ids: Tensor) -> Tensor:
    """Return logits (rows, places, vocabulary) of a transformers model or any module."""
    # A cache of keys and values is of no use here, and as large as the activations.
    has_cache = hasattr(getattr(policy, "config", None), "use_cache")
    found = policy(ids, use_cache=False) if has_cache else policy(ids)
    return getattr(found, "logits", found)


RatioLevel = Literal["token", "sequence", "sequence_mean"]
Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]


def token_weights(
    batch: TokenBatch,
    aggregation: Aggregation,
    fixed_length: int | None,
    sum_over_ranks: Callable[[float], list[float]],
) -> Array:
    """Return the weight of each drawn token in the loss, (tokens,); 0 elsewhere.

    With N items and n_i drawn tokens in item i, of all ranks::

        token_mean      1 / sum of n_i          every token counts alike (DAPO)
        sequence_mean   1 / (N' · n_i)          every item counts alike (GRPO); N' items have tokens
        fixed_length    1 / (N · fixed_length)  no item's length matters (Dr. GRPO)
    """
    counts, mask = batch.drawn, batch.mask
    weights = np.zeros(len(batch.tokens), np.float32)
    share: Any = 1
    if aggregation == "token_mean":
        total = counts.sum()
    elif aggregation == "sequence_mean":
        total, share = (counts > 0).sum(), 1 / counts[batch.items[mask]]
    else:
        total, share = len(batch), 1 / (fixed_length or 1)
    weights[mask] = share / max(1.0, *sum_over_ranks(float(total)))
    return weights


def importance_ratio(log_ratio: Tensor, items: Tensor, size: int, level: RatioLevel) -> Tensor:
    """Return how much likelier a token, or the whole of its item, is than it was, (tokens,).

    ``log_ratio`` has differences of log-probabilities, ``items`` the item of each token, of
    ``size`` items. With ``"sequence"`` the product over an item is the ratio of each of its tokens,
    with ``"sequence_mean"`` the geometric mean (GSPO). Ratios are bounded to exp(±20).
    """
    if level != "token":
        sums = log_ratio.new_zeros(size).index_add(0, items, log_ratio)
        if level == "sequence_mean":
            sums = sums / torch.bincount(items, minlength=size).clamp_min(1)
        log_ratio = sums[items]
    # exp(20) is 5e8: such a token teaches nothing, and must not become an infinity.
    return log_ratio.clamp(-20, 20).exp()


def token_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return terms of the divergence, by the estimator k3: never negative, and of less variance."""
    d = log_q - log_p
    return torch.expm1(d) - d
