"""EchoRL's names on ``echoic.agents``: ``import echoic.echo_rl as echo_rl``.

``python -m echoic.echo_rl PROGRAM`` runs a program that imports ``echo_rl`` and is not changed.
EchoRL's modules, such as ``echo_rl.core.bandwidth``, are here under the same paths. Each has the
names of one module of ``echoic.agents``, which is imported when a name is first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from echoic import _dropin

if TYPE_CHECKING:
    from echoic.agents import *

# By EchoRL's path: the module of `echoic.agents` that has its names. A parent stands before its
# children; the empty path is this module.
_MODULES = {
    "": "",
    "core": "",
    "core.async_execution": "llm",
    "core.bandwidth": "bandwidth",
    "core.latent_planning": "plans",
    "core.ppo_learner": "training",
    "core.prioritized_replay": "replay",
    "environments": "environments",
    "environments.alfworld": "environments",
    "environments.arc": "environments",
    "environments.cruxeval": "environments",
    "environments.game24": "environments",
    "environments.minigrid": "environments",
    "environments.webshop": "environments",
    "evaluation": "evaluation",
    "evaluation.benchmark": "evaluation",
    "kernels": "kernels",
    "training": "training",
    "training.trainer": "training",
    "utils": "monitoring",
    "utils.monitoring": "monitoring",
}


def install() -> None:
    """Make ``import echo_rl``, and of its submodules, import this module in this process.

    Call it before anything imports ``echo_rl``. ``python -m echoic.echo_rl PROGRAM`` does so for a
    program.

    Raises:
        ImportError: If another ``echo_rl`` was imported before.
    """
    _dropin.install("echo_rl")


def _fill(module: ModuleType, ours: str) -> None:
    """Give a module the names of ours, found at each use."""

    def get(name: str) -> Any:
        # Python asks every module for names like `__file__`; these must import nothing.
        if not name.startswith("__") or name == "__all__":
            found = importlib.import_module(ours)
            if name in ("__all__", *found.__all__):
                return getattr(found, name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name)

    def names() -> list[str]:
        return sorted({*vars(module), *importlib.import_module(ours).__all__})

    module.__path__ = []  # a package, whose submodules are all made here
    vars(module).update(__getattr__=get, __dir__=names)


def _make() -> None:
    for path, ours in _MODULES.items():
        source = f"echoic.agents.{ours}".rstrip(".")
        name = f"{__name__}.{path}".rstrip(".")
        if path:
            sys.modules[name] = ModuleType(name, f"EchoRL's names, from ``{source}``.")
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, sys.modules[name])
        _fill(sys.modules[name], source)


if __name__ == "__main__":
    _dropin.run_program("echo_rl")
else:
    _make()
