"""Import this package as ``reverb``, for programs and libraries that can't be changed."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["install"]


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find ``reverb`` and its submodules in ``echoic.reverb``."""

    def __init__(self) -> None:
        self._specs: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != "reverb":
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        name = f"echoic.{spec.name}"
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ModuleNotFoundError(
                f"echoic.reverb has nothing for {spec.name!r}", name=spec.name
            ) from None
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module was run under its own name, and keeps that spec.
        name = module.__name__.removeprefix("echoic.")
        module.__spec__ = self._specs.pop(name, module.__spec__)


def install() -> None:
    """Make ``import reverb``, and of its submodules, import this package in this process.

    Call it before anything imports ``reverb``. ``python -m echoic.reverb PROGRAM`` does so for a
    program.

    Raises:
        ImportError: If another ``reverb`` was imported before.

    Examples:
        >>> import echoic.reverb
        >>> echoic.reverb.install()
        >>> import reverb
        >>> from reverb import rate_limiters
        >>> reverb is echoic.reverb, rate_limiters is echoic.reverb.rate_limiters
        (True, True)
    """
    known = sys.modules.get("reverb")
    if known is not None and known is not sys.modules.get("echoic.reverb"):
        where = getattr(known, "__file__", None)
        raise ImportError(f"another reverb was imported before, from {where}", name="reverb")
    if not any(isinstance(finder, _Alias) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Alias())
