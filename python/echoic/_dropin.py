"""Import a drop-in under its original's name, for programs and libraries that can't be changed."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["install", "run_program"]


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find a module and its submodules in the drop-in ``echoic.NAME``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != self.name:
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
                f"echoic.{self.name} has nothing for {spec.name!r}", name=spec.name
            ) from None
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module was run under its own name, and keeps that spec.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def install(name: str) -> None:
    """Make ``import NAME``, and of its submodules, import ``echoic.NAME`` in this process.

    Raises:
        ImportError: If another module of this name was imported before.
    """
    known = sys.modules.get(name)
    if known is not None and known is not sys.modules.get(f"echoic.{name}"):
        where = getattr(known, "__file__", None)
        raise ImportError(f"another {name} was imported before, from {where}", name=name)
    if not any(isinstance(finder, _Alias) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Alias(name))


class _Installed:
    """Installs a drop-in in the process that unpickles it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return install, (self._name,)


def _install_in_children(name: str) -> None:
    """Install it in processes that multiprocessing spawns, before they import the program."""
    from multiprocessing import spawn

    prepare = spawn.get_preparation_data

    def prepare_with_name(process: str) -> dict[str, Any]:
        # Unknown keys have no effect but that they are unpickled.
        return {**prepare(process), "echoic": _Installed(name)}

    vars(spawn).update(get_preparation_data=prepare_with_name)


def run_program(name: str) -> None:
    """Run the program or module of the command line, with ``NAME`` imported from ``echoic.NAME``.

    So do processes that it starts with multiprocessing. ``python -m echoic.NAME`` calls this.
    """
    arguments = sys.argv[1:]
    if not arguments or arguments == ["-m"] or arguments[0] in ("-h", "--help"):
        sys.exit(f"usage: python -m echoic.{name} (PROGRAM | -m MODULE) [ARGUMENTS]")
    install(name)
    _install_in_children(name)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    if not getattr(sys.flags, "safe_path", False):
        # It imports what is beside it, as with `python PROGRAM`.
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
