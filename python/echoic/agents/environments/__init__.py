"""Environments for agents: text in, text out, and a vector beside it; all speak Gymnasium.

Each is a file of its own, and brings its own packages: a name is imported when it is first asked
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.environments.base import *
    from echoic.agents.environments.code import *
    from echoic.agents.environments.minigrid import *
    from echoic.agents.environments.processes import *
    from echoic.agents.environments.puzzles import *
    from echoic.agents.environments.text import *
    from echoic.agents.environments.web import *

_MODULES = {
    "base": (
        "EchoRLEnvironment EnvironmentConfig EnvironmentState Outcome TextEncoder "
        "environment_names make_environment register_environment"
    ),
    "code": "CRUXEvalConfig CRUXEvalEnvironment",
    "minigrid": "MiniGridConfig MiniGridEnvironment",
    "processes": "EnvironmentProcess EnvironmentProcessError",
    "puzzles": "ARCConfig ARCEnvironment Game24Config Game24Environment",
    "text": "ALFWorldConfig ALFWorldEnvironment RoomsConfig RoomsEnvironment",
    "web": "WebShopConfig WebShopEnvironment",
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
