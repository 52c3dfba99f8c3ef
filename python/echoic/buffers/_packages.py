"""Import packages that only some data sets need, when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["package"]


def package(module: str, doing: str, install: str = "'echoic[data]'") -> Any:
    """Return a module; if it is not installed, say what for it is needed and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        text = f"{doing} needs the module {module.partition('.')[0]}: pip install {install}"
        raise ModuleNotFoundError(text) from error
