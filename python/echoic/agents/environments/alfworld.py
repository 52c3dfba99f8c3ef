"""ALFWorld, under the name of its own module; see :mod:`echoic.agents.environments.text`."""

from echoic.agents.environments.text import ALFWorldConfig, ALFWorldEnvironment

__all__ = ["ALFWorldConfig", "ALFWorldEnvironment"]
