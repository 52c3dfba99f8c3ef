"""Causal language models of the transformers library, with keys and values in pages.

The library looks up attention functions by name. The one here passes the queries, keys and values
of a layer to the tick's batch, which knows the pages; without a batch it is the library's ``sdpa``.
All else is the library's own code, so any decoder works whose attention is the usual one and uses
that registry: Llama (SmolLM2 is one), Qwen2, Qwen3 and Mistral without sliding windows are tested.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from echoic.agents.llm.model import CausalModel, PagedBatch
from echoic.errors import ArgumentError

__all__ = ["TransformersModel"]

_NAME = "echoic_paged"


def _attention(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **arguments: Any
) -> tuple[Any, Any]:
    """Compute attention of a layer, from queries, keys and values [1, heads, T, head_dim]."""
    batch: PagedBatch | None = arguments.pop("echoic_batch", None)
    if batch is None:
        return tuple(
            sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **arguments)
        )
    for name in ("softcap", "s_aux", "sliding_window"):
        if arguments.get(name) is not None:
            raise ArgumentError(f"{name} in attention is not supported")
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return batch.attend(module.layer_idx, query, key, value, scale)[None], None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)


class TransformersModel(CausalModel):
    """A causal language model of transformers that an engine can run.

    ``model``, of a class ``...ForCausalLM``, is not copied; its attention is replaced.

    Raises:
        ArgumentError: If its attention has sliding windows, soft-capped logits or sinks.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        name = type(model).__name__
        if not getattr(model, "_supports_attention_backend", False):
            raise ArgumentError(f"{name} does not support other attention implementations")
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        slides = getattr(config, "use_sliding_window", True)
        window = getattr(config, "sliding_window", None) if slides else None
        if kinds != {"full_attention"} or window:
            raise ArgumentError(
                f"{name} has layers of {sorted(kinds)} and a sliding window of {window} tokens; "
                "only full_attention works"
            )
        heads = config.num_attention_heads
        self.model = model.eval()
        model.set_attn_implementation(_NAME)
        self.device = model.device
        self.vocab_size = int(config.vocab_size)
        self.max_length = int(getattr(config, "max_position_embeddings", 1 << 30))
        self.width = int(model.get_input_embeddings().weight.shape[1])
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        self.shape, self.dtype = (2 * config.num_hidden_layers, kv_heads, head_dim), model.dtype
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
