"""Environments for agents: text in, text out, and a vector beside it; all speak Gymnasium.

Each is a file of its own, and brings its own packages: a name is imported when it is first asked
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.environments.alfworld import (
        ALFWorldConfig,
        ALFWorldEnvironment,
    )
    from echoic.agents.environments.arc import (
        ARCConfig,
        ARCEnvironment,
    )
    from echoic.agents.environments.base import (
        EchoRLEnvironment,
        EnvironmentConfig,
        EnvironmentState,
        Outcome,
    )
    from echoic.agents.environments.cruxeval import (
        CRUXEvalConfig,
        CRUXEvalEnvironment,
    )
    from echoic.agents.environments.encoding import (
        TextEncoder,
    )
    from echoic.agents.environments.game24 import (
        Game24Config,
        Game24Environment,
    )
    from echoic.agents.environments.minigrid import (
        MiniGridConfig,
        MiniGridEnvironment,
    )
    from echoic.agents.environments.processes import (
        EnvironmentProcess,
        EnvironmentProcessError,
        EnvironmentProcesses,
        Ready,
    )
    from echoic.agents.environments.reasoning_gym import (
        ReasoningGymConfig,
        ReasoningGymEnvironment,
    )
    from echoic.agents.environments.registry import (
        environment_names,
        make_environment,
        register_environment,
    )
    from echoic.agents.environments.rooms import (
        RoomsConfig,
        RoomsEnvironment,
    )
    from echoic.agents.environments.textworld import (
        TextWorldConfig,
        TextWorldEnvironment,
    )
    from echoic.agents.environments.webshop import (
        WebShopConfig,
        WebShopEnvironment,
    )
    from echoic.agents.environments.wrappers import (
        ActionSpaceWrapper,
        EnvironmentWrapper,
        RewardShapingWrapper,
        StatePreprocessingWrapper,
    )

__all__ = [
    "ALFWorldConfig",
    "ALFWorldEnvironment",
    "ARCConfig",
    "ARCEnvironment",
    "ActionSpaceWrapper",
    "CRUXEvalConfig",
    "CRUXEvalEnvironment",
    "EchoRLEnvironment",
    "EnvironmentConfig",
    "EnvironmentProcess",
    "EnvironmentProcessError",
    "EnvironmentProcesses",
    "EnvironmentState",
    "EnvironmentWrapper",
    "Game24Config",
    "Game24Environment",
    "MiniGridConfig",
    "MiniGridEnvironment",
    "Outcome",
    "Ready",
    "ReasoningGymConfig",
    "ReasoningGymEnvironment",
    "RewardShapingWrapper",
    "RoomsConfig",
    "RoomsEnvironment",
    "StatePreprocessingWrapper",
    "TextEncoder",
    "TextWorldConfig",
    "TextWorldEnvironment",
    "WebShopConfig",
    "WebShopEnvironment",
    "environment_names",
    "make_environment",
    "register_environment",
]

_MODULES = {
    "alfworld": (
        "ALFWorldConfig",
        "ALFWorldEnvironment",
    ),
    "arc": (
        "ARCConfig",
        "ARCEnvironment",
    ),
    "base": (
        "EchoRLEnvironment",
        "EnvironmentConfig",
        "EnvironmentState",
        "Outcome",
    ),
    "cruxeval": (
        "CRUXEvalConfig",
        "CRUXEvalEnvironment",
    ),
    "encoding": ("TextEncoder",),
    "game24": (
        "Game24Config",
        "Game24Environment",
    ),
    "minigrid": (
        "MiniGridConfig",
        "MiniGridEnvironment",
    ),
    "processes": (
        "EnvironmentProcess",
        "EnvironmentProcessError",
        "EnvironmentProcesses",
        "Ready",
    ),
    "reasoning_gym": (
        "ReasoningGymConfig",
        "ReasoningGymEnvironment",
    ),
    "registry": (
        "environment_names",
        "make_environment",
        "register_environment",
    ),
    "rooms": (
        "RoomsConfig",
        "RoomsEnvironment",
    ),
    "textworld": (
        "TextWorldConfig",
        "TextWorldEnvironment",
    ),
    "webshop": (
        "WebShopConfig",
        "WebShopEnvironment",
    ),
    "wrappers": (
        "ActionSpaceWrapper",
        "EnvironmentWrapper",
        "RewardShapingWrapper",
        "StatePreprocessingWrapper",
    ),
}
_, __getattr__, __dir__ = lazily(__name__, _MODULES)
