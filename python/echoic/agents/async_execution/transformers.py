"""Causal language models of the transformers library, on our pages.

The library lets others compute attention: a function, registered by name, gets the queries, keys
and values of a layer. Ours hands them to the tick's batch, which knows the pages. All else is the
library's own code and the model's own weights, so any decoder works whose attention is the usual
one and goes through that registry: Llama (SmolLM2 is one), Qwen2, Qwen3 and Mistral without sliding
windows are tested. Models with sliding windows, soft-capped logits or sinks in attention, and those
that keep something else than keys and values, are refused with a message that says so.

A wrapped model computes as before when others call it: without a batch of ours, attention is the
library's ``sdpa``.

Importing this module imports transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from echoic.agents.async_execution.model import CausalModel, KVShape, PagedBatch, check_weights
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["TransformersModel"]

_NAME = "echoic_paged"


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **arguments: Any,
) -> tuple[Any, Any]:
    """Attention of a layer: [1, heads, T, head_dim] of queries, likewise keys and values."""
    batch: PagedBatch | None = arguments.pop("echoic_batch", None)
    if batch is None:
        seen: tuple[Any, Any] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **arguments
        )
        return seen
    for name in ("softcap", "s_aux", "sliding_window"):
        if arguments.get(name) is not None:
            raise ArgumentError(f"{name} in attention is not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    result = batch.attend(
        module.layer_idx,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale,
    )
    return result[None], None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)


class TransformersModel(CausalModel):
    """A causal language model of transformers that an engine can run.

    The model is used as it is, not copied, and is told to compute attention our way.

    Args:
        model: Of a class ``...ForCausalLM``, where it is and in its dtype.

    Raises:
        ArgumentError: Its attention is of a kind that pages of keys and values do not serve.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        name = type(model).__name__
        if not getattr(model, "_supports_attention_backend", False):
            raise ArgumentError(f"{name} does not let others compute its attention")
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ArgumentError(f"{name} has layers of {sorted(kinds)}; only full_attention works")
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            raise ArgumentError(
                f"{name} looks back {config.sliding_window} tokens only; sliding windows do not "
                "work here"
            )
        heads = config.num_attention_heads
        self.model = model.eval()
        model.set_attn_implementation(_NAME)
        self.device = model.device
        self.vocab_size = int(config.vocab_size)
        self.max_length = int(getattr(config, "max_position_embeddings", 1 << 30))
        self.shape = KVShape(
            layers=int(config.num_hidden_layers),
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            dtype=model.dtype,
        )
        # Prepared masks are taken as they are, which spares making one of [T, T]; ours is in
        # the batch.
        self._no_mask = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=self.device)

    def forward_paged(self, batch: PagedBatch) -> Any:
        """Logits after the last token of each span."""
        if self.model.training:
            raise ArgumentError("the model is in training mode, in which dropout is drawn")
        return self.model(
            input_ids=batch.tokens[None],
            position_ids=batch.positions[None],
            attention_mask=self._no_mask,
            use_cache=False,
            logits_to_keep=batch.ends,
            echoic_batch=batch,
        ).logits[0]

    def load_weights(self, weights: Mapping[str, Any] | Callable[[Any], None]) -> None:
        """Take new weights between two ticks."""
        check_weights(self.model, weights)
