"""ARC, under the name of its own module; see :mod:`echoic.agents.environments.puzzles`."""

from echoic.agents.environments.puzzles import ARCConfig, ARCEnvironment

__all__ = ["ARCConfig", "ARCEnvironment"]
