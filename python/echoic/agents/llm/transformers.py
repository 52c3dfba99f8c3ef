"""Causal language models of the transformers library, with keys and values in pages.

The library looks up attention functions by name. The one here passes the queries, keys and values
of a layer to the tick's batch, which knows the pages. All else is the library's own code, so any
decoder works whose attention is the usual one and uses that registry: Llama (SmolLM2 is one),
Qwen2, Qwen3 and Mistral without sliding windows are tested. Models with sliding windows,
soft-capped logits or sinks in attention, and those that keep something else than keys and values,
raise an ``ArgumentError``.

Without a batch of the engine, attention of a wrapped model is the library's ``sdpa``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from echoic.agents.llm.model import CausalModel, KVShape
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from echoic.agents.llm.model import PagedBatch

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
    """Compute attention of a layer, from queries, keys and values [1, heads, T, head_dim]."""
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

    ``model``, of a class ``...ForCausalLM``, is not copied; its attention is replaced. Attention
    that does not work with pages of keys and values is an ``ArgumentError``.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        name = type(model).__name__
        if not getattr(model, "_supports_attention_backend", False):
            raise ArgumentError(f"{name} does not support other attention implementations")
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ArgumentError(f"{name} has layers of {sorted(kinds)}; only full_attention works")
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            raise ArgumentError(
                f"{name} has a sliding window of {config.sliding_window} tokens, which is not "
                "supported"
            )
        heads = config.num_attention_heads
        self.model = model.eval()
        model.set_attn_implementation(_NAME)
        self.device = model.device
        self.vocab_size = int(config.vocab_size)
        self.max_length = int(getattr(config, "max_position_embeddings", 1 << 30))
        self.width = int(model.get_input_embeddings().weight.shape[1])
        self.shape = KVShape(
            layers=int(config.num_hidden_layers),
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            dtype=model.dtype,
        )
        # A prepared mask keeps the library from making one of [T, T]; the batch has its own.
        self._no_mask = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=self.device)

    def forward_paged(self, batch: PagedBatch) -> Any:
        """Return logits after the last token of each span."""
        if self.model.training:
            raise ArgumentError("the model is in training mode, in which dropout is active")
        embedded = self.model.get_input_embeddings()(batch.tokens)
        return self.model(
            inputs_embeds=batch.embed(embedded)[None],
            position_ids=batch.positions[None],
            attention_mask=self._no_mask,
            use_cache=False,
            logits_to_keep=batch.ends,
            echoic_batch=batch,
        ).logits[0]
