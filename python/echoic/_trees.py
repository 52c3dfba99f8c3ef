"""Import optree when a tree is first walked: that takes longer than importing all of Echoic."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import optree

    return getattr(optree, name)
