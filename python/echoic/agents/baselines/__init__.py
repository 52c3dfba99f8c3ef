"""Methods to compare with: prompted ones and trained ones."""

from __future__ import annotations

from echoic.agents.baselines.base import (
    Cell,
    Method,
    maker_of,
    method_names,
    method_of,
    register_method,
)

__all__ = ["Cell", "Method", "maker_of", "method_names", "method_of", "register_method"]
