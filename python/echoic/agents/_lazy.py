"""Names of a package that are imported from its modules when first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["lazily"]


def lazily(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package whose modules hold these names."""
    homes = {name: module for module, names in modules.items() for name in names}
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(f"{package}.{homes[name]}")
        value = getattr(home, name)
        setattr(importlib.import_module(package), name, value)
        return value

    def known() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *names})

    return names, get, known
