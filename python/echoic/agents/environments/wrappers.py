"""Wrappers that change rewards, actions or vectors, and keep what agents ask an environment for.

They are Gymnasium's wrappers underneath. Success and score stay what the environment says, and so
do its statistics: what is shaped is for learning, not for measuring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "ActionSpaceWrapper",
    "EnvironmentWrapper",
    "RewardShapingWrapper",
    "StatePreprocessingWrapper",
]


class EnvironmentWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment in another; what is not changed is that of the inner one.

    >>> from echoic.agents.environments import Game24Environment
    >>> environment = EnvironmentWrapper(Game24Environment())
    >>> environment.get_action_space_size()
    20
    """

    def __getattr__(self, name: str) -> Any:
        # Gymnasium's wrappers don't pass names on. Its own private ones must stay missing, and the
        # inner environment itself while it is not there yet.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.env, name)


class RewardShapingWrapper(EnvironmentWrapper):
    """Adds ``scale * (discount * potential(after) - potential(before))`` to each reward.

    Shaping of this form changes no optimal policy, and cannot be farmed: around any loop it sums to
    nothing, but for the discount (Ng, Harada and Russell, 1999). The potential of an ended episode
    is 0; that of one cut off is not. It should be 0 where the task is not begun.

    Args:
        environment: What is wrapped.
        potential: How far a task is done, of the observation and ``info``.
        discount: The learner's own.
        scale: What the difference is multiplied by.

    ``info["reward"]`` is the environment's own reward.
    """

    def __init__(
        self,
        environment: Any,
        potential: Callable[[dict[str, Any], dict[str, Any]], float],
        *,
        discount: float = 0.99,
        scale: float = 1.0,
    ) -> None:
        super().__init__(environment)
        if not 0 <= discount <= 1:
            raise ArgumentError(f"discount must be from 0 to 1, not {discount}")
        self._potential = potential
        self._discount = discount
        self._scale = scale
        self._before = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._before = float(self._potential(observation, info))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do a command; its reward is shaped."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        after = 0.0 if terminated else float(self._potential(observation, info))
        shaped = float(reward) + self._scale * (self._discount * after - self._before)
        self._before = after
        return observation, shaped, terminated, truncated, {**info, "reward": float(reward)}


class ActionSpaceWrapper(EnvironmentWrapper):
    """A fixed list of commands, whose indices are the actions.

    Where the environment lists commands, the mask says which of these are among them and do
    something by its own mask; where it lists none, all are. After an end none does anything. Texts
    are passed on as they are.

    >>> from echoic.agents.environments import MiniGridEnvironment
    >>> moves = ("turn left", "turn right", "go forward")
    >>> environment = ActionSpaceWrapper(MiniGridEnvironment(), moves)
    >>> environment.action_space.n, environment.reset(seed=0)[1]["commands"] == moves
    (np.int64(3), True)
    """

    def __init__(self, environment: Any, commands: Sequence[str]) -> None:
        super().__init__(environment)
        self._fixed = tuple(commands)
        if not self._fixed or len(set(self._fixed)) < len(self._fixed):
            raise ArgumentError("commands must be at least one, and all different")
        self.action_space = spaces.Discrete(len(self._fixed))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._listed(info, ended=False)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do the command of an index, or a text."""
        if not isinstance(action, str):
            index = int(action)
            # An index of nothing is passed on as one of nothing: a step that changes nothing.
            action = self._fixed[index] if 0 <= index < len(self._fixed) else ""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return (
            observation,
            reward,
            terminated,
            truncated,
            self._listed(info, ended=bool(terminated)),
        )

    def get_action_space_size(self) -> int:
        """The width of a discrete policy."""
        return len(self._fixed)

    def _listed(self, info: dict[str, Any], *, ended: bool) -> dict[str, Any]:
        # The inner mask may be wider than the list.
        known = dict(zip(info["commands"], info["command_mask"], strict=False))
        free = not known and not ended
        mask = np.array([free or bool(known.get(command)) for command in self._fixed])
        return {**info, "commands": self._fixed, "command_mask": mask}


class StatePreprocessingWrapper(EnvironmentWrapper):
    """Passes the vector of each observation through a function; the text stays.

    Args:
        environment: What is wrapped.
        function: From a vector to a vector.
        dim: Numbers of the new vector.
        low: What none of them is below.
        high: What none of them is above.
    """

    def __init__(
        self,
        environment: Any,
        function: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        dim: int,
        *,
        low: float = -np.inf,
        high: float = np.inf,
    ) -> None:
        inner = environment.observation_space
        space = spaces.Dict({**inner.spaces, "vector": spaces.Box(low, high, (dim,), np.float32)})
        super().__init__(
            gymnasium.wrappers.TransformObservation(environment, self._transform, space)
        )
        # Gymnasium's wrapper knows no names of the inner environment, so they are asked for there.
        self._inner = environment
        self._function = function
        self._dim = dim

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self._inner, name)

    def get_state_dim(self) -> int:
        """Numbers of the vector."""
        return self._dim

    def get_state_representation(self) -> Any:
        """The vector as a tensor, on the device of the settings."""
        import torch

        given = self._inner.get_state_representation()
        made = self._checked(given.cpu().numpy())
        return torch.as_tensor(made, device=given.device)

    def _transform(self, observation: dict[str, Any]) -> dict[str, Any]:
        return {**observation, "vector": self._checked(observation["vector"])}

    def _checked(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        made = np.asarray(self._function(vector), np.float32)
        if made.shape != (self._dim,):
            raise ArgumentError(f"function must give {self._dim} numbers, not shape {made.shape}")
        return made
