"""Step environments in a worker, and make items of their rollouts.

- :class:`VectorSteps`: environments that step together, such as the native ones. Those that step
  one after the other are in ``echoic.collectors``; both fill the same arrays.
- :func:`transitions` and :func:`segments`: the items that a rollout becomes.
- :func:`agent_environment`: an environment of ``echoic.agents`` with numeric observations.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from echoic import _trees
from echoic.collectors._gymnasium_worker import Envs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["VectorSteps", "agent_environment", "segments", "transitions"]


def transitions(rollout: dict[str, Any]) -> dict[str, Any]:
    """Make an item of each step: an observation, an action, and the result.

    The fields are ``observations``, ``actions``, ``rewards``, ``next_observations``,
    ``terminated``, ``truncated``, and the policy's extras.
    """
    names = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    picked = {name: rollout[name] for name in names} | rollout["extras"]
    rows: dict[str, Any] = _trees.tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), picked)
    return rows


def segments(rollout: dict[str, Any]) -> dict[str, Any]:
    """Make an item of each environment: its steps, in order.

    The fields are those of :func:`transitions` with an axis of steps, and ``episode_starts``; but
    ``last_observations``, without that axis, in place of ``next_observations``.
    """
    names = ("observations", "actions", "rewards", "terminated", "truncated", "episode_starts")
    picked = {name: rollout[name] for name in names} | rollout["extras"]
    turned: dict[str, Any] = _trees.tree_map(
        lambda leaf: np.ascontiguousarray(leaf.swapaxes(0, 1)), picked
    )
    return {**turned, "last_observations": rollout["last_observations"]}


class VectorSteps(Envs):
    """Environments that step together and reset by themselves.

    Args:
        vector: A vector environment with Gymnasium's interface, in the mode ``"SameStep"``.
        policy: Returns actions; ``None`` draws from the action space.
        seeds: One for each environment.
    """

    def __init__(
        self, vector: Any, policy: Callable[..., Any] | None, seeds: Sequence[int]
    ) -> None:
        self.policy = policy
        self.envs = [vector]
        self.rng = np.random.default_rng(list(seeds))
        # A copy, since an environment may write to the array that it returned.
        self.obs = [np.array(vector.reset(seed=list(seeds))[0])]
        self.tree, self.plain = _trees.tree_structure(0), True
        vector.action_space.seed(int(seeds[0]))
        self.starts = np.ones(vector.num_envs, np.bool_)
        self.returns = np.zeros(vector.num_envs)

    def _drawn(self) -> Any:
        return np.asarray(self.envs[0].action_space.sample())

    def _step(self, rollout: dict[str, Any], step: int, actions: Any) -> list[tuple[int, Any]]:
        obs, rewards, terminated, truncated, infos = self.envs[0].step(actions)
        rollout["rewards"][step] = rewards
        rollout["terminated"][step] = terminated
        rollout["truncated"][step] = truncated
        self.starts = terminated | truncated
        ended = np.flatnonzero(self.starts)
        self.returns += rewards
        rollout["episode_returns"][step, ended] = self.returns[ended]
        self.returns[ended] = 0.0
        self.obs[0][...] = obs
        # The next episode has begun; the last observation of the old one is in the infos.
        for index in ended:
            self.obs[0][index] = infos["final_obs"][index]
        return [(int(index), obs[index]) for index in ended]


class _Numbers(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Show an environment of agents as numbers, with commands as their indices."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(**options)
        return self._shown(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Execute the command of this index."""
        observation, reward, terminated, truncated, info = self.env.step(int(action))
        return self._shown(observation, info), reward, terminated, truncated, info

    @staticmethod
    def _shown(observation: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
        mask = np.asarray(info["command_mask"], np.bool_)
        return {"vector": observation["vector"], "mask": mask}


def agent_environment(
    name: str, *, imports: Sequence[str] = (), **settings: Any
) -> Callable[[], Any]:
    """Return a function that makes an environment of ``echoic.agents`` for :class:`Collectors`.

    Observations are ``{"vector": ..., "mask": ...}``: the state as numbers, and which commands have
    an effect now; an action is a command's index.

    Args:
        name: The name that the environment is registered under.
        imports: Modules to import first, which register it.
        **settings: Settings of the environment.
    """
    return functools.partial(_make_agent_environment, name, tuple(imports), settings)


def _make_agent_environment(name: str, imports: Sequence[str], settings: dict[str, Any]) -> Any:
    from echoic.agents.environments import make_environment

    for module in imports:
        importlib.import_module(module)
    return _Numbers(make_environment(name, **{"action_format": "discrete", **settings}))
