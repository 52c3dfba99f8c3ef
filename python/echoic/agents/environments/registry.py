"""Environments by name: those of this package, and a user's own.

>>> from echoic.agents.environments import environment_names
>>> "minigrid" in environment_names()
True
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["environment_names", "make_environment", "register_environment"]

# Where ours are: a module, its settings, its environment. Imported when asked for, because each
# brings packages of its own.
_OURS = {
    "alfworld": ("alfworld", "ALFWorldConfig", "ALFWorldEnvironment"),
    "arc": ("arc", "ARCConfig", "ARCEnvironment"),
    "cruxeval": ("cruxeval", "CRUXEvalConfig", "CRUXEvalEnvironment"),
    "game24": ("game24", "Game24Config", "Game24Environment"),
    "minigrid": ("minigrid", "MiniGridConfig", "MiniGridEnvironment"),
    "reasoning_gym": ("reasoning_gym", "ReasoningGymConfig", "ReasoningGymEnvironment"),
    "rooms": ("rooms", "RoomsConfig", "RoomsEnvironment"),
    "webshop": ("webshop", "WebShopConfig", "WebShopEnvironment"),
}
_USERS: dict[str, Callable[..., Any]] = {}


def register_environment(name: str, make: Callable[..., Any]) -> None:
    """Give a name to an environment; ``make`` gets the settings by name.

    It must return an :class:`~echoic.agents.environments.EchoRLEnvironment`, or something that
    acts as one. A name can be given again: the newest counts.
    """
    if not name or not callable(make):
        raise ArgumentError("an environment needs a name and a function that makes it")
    _USERS[name] = make


def environment_names() -> tuple[str, ...]:
    """All names, in alphabetical order."""
    return tuple(sorted({*_OURS, *_USERS}))


def make_environment(name: str, **settings: Any) -> Any:
    """Make the environment of a name, with these settings."""
    if name in _USERS:
        return _USERS[name](**settings)
    if name not in _OURS:
        known = ", ".join(environment_names())
        raise ArgumentError(f"there is no environment {name!r}; there are {known}")
    module_name, config_name, class_name = _OURS[name]
    module = importlib.import_module(f"echoic.agents.environments.{module_name}")
    config = getattr(module, config_name)
    known_settings = {one.name for one in dataclasses.fields(config)}
    if unknown := sorted(set(settings) - known_settings):
        known = ", ".join(sorted(known_settings))
        raise ArgumentError(f"{config_name} has no setting {unknown[0]!r}; it has {known}")
    return getattr(module, class_name)(config(**settings))
