"""Environments for agents: text in, text out, and a vector beside it; all speak Gymnasium.

Each is a file of its own, and brings its own packages: a name is imported when it is first asked
for.
"""

from __future__ import annotations

from echoic.agents._lazy import lazily

_MODULES = {
    "alfworld": ("ALFWorldConfig", "ALFWorldEnvironment"),
    "arc": ("ARCConfig", "ARCEnvironment"),
    "base": ("EchoRLEnvironment", "EnvironmentConfig", "EnvironmentState", "Outcome"),
    "cruxeval": ("CRUXEvalConfig", "CRUXEvalEnvironment"),
    "encoding": ("TextEncoder",),
    "game24": ("Game24Config", "Game24Environment"),
    "minigrid": ("MiniGridConfig", "MiniGridEnvironment"),
    "reasoning_gym": ("ReasoningGymConfig", "ReasoningGymEnvironment"),
    "processes": (
        "EnvironmentProcess",
        "EnvironmentProcessError",
        "EnvironmentProcesses",
        "Ready",
    ),
    "registry": ("environment_names", "make_environment", "register_environment"),
    "rooms": ("RoomsConfig", "RoomsEnvironment"),
    "textworld": ("TextWorldConfig", "TextWorldEnvironment"),
    "webshop": ("WebShopConfig", "WebShopEnvironment"),
    "wrappers": (
        "ActionSpaceWrapper",
        "EnvironmentWrapper",
        "RewardShapingWrapper",
        "StatePreprocessingWrapper",
    ),
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
