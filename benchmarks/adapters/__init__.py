"""Calls on both sides of an adapter: our buffer, the adapter over it, and the library's own buffer.

A module of this folder is named after its library, imports it, and has ``cases()``, which returns
a `Case` for each call to be timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One call of three buffers, each with the same work to do.

    Attributes:
        name: The call, such as ``"add, 8 environments"``.
        bare: The call of our own buffer, with values in the form that it takes.
        adapter: The call of the adapter, as a user's program makes it.
        own: The same call of the library's own buffer.
    """

    name: str
    bare: Callable[[], object]
    adapter: Callable[[], object]
    own: Callable[[], object]
