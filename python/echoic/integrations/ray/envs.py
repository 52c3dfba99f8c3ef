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
from echoic.collectors._gymnasium_worker import Form

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

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


class VectorSteps:
    """Environments that step together and reset by themselves.

    Args:
        envs: A vector environment with Gymnasium's interface, in the mode ``"SameStep"``.
        policy: Returns actions; ``None`` draws from the action space.
        seeds: One for each environment.
    """

    def __init__(self, envs: Any, policy: Callable[..., Any] | None, seeds: Sequence[int]) -> None:
        self.policy = policy
        self.envs = [envs]
        self.rng = np.random.default_rng(list(seeds))
        self._vector = envs
        # A copy, since an environment may write to the array that it returned.
        self._obs: NDArray[Any] = np.array(envs.reset(seed=list(seeds))[0])
        envs.action_space.seed(int(seeds[0]))
        self._starts = np.ones(envs.num_envs, np.bool_)
        self._returns = np.zeros(envs.num_envs)

    def act(self, weights: Any) -> tuple[Any, dict[str, Any]]:
        """Return the policy's actions for all environments, and its extras."""
        if self.policy is None:
            return np.asarray(self._vector.action_space.sample()), {}
        acted = self.policy(weights, self._obs.copy(), self.rng)
        actions, extras = acted if isinstance(acted, tuple) else (acted, {})
        return np.asarray(actions), {name: np.asarray(values) for name, values in extras.items()}

    def form(self, weights: Any) -> Form:
        """Return the form of a step, from one call of the policy with a generator of its own."""
        rng, self.rng = self.rng, np.random.default_rng(0)
        actions, extras = self.act(weights)
        self.rng = rng
        example = {name: np.zeros_like(values[0]) for name, values in extras.items()}
        return Form(np.zeros_like(self._obs[0]), np.zeros_like(actions[0]), example)

    def roll(self, rollout: dict[str, Any], weights: Any, look: Callable[[], None]) -> None:
        """Fill the rollout's arrays with steps."""
        rollout["episode_returns"].fill(np.nan)
        for step in range(len(rollout["rewards"])):
            look()
            rollout["episode_starts"][step] = self._starts
            rollout["observations"][step] = self._obs
            actions, extras = self.act(weights)
            rollout["actions"][step] = actions
            for name, values in extras.items():
                rollout["extras"][name][step] = values
            obs, rewards, terminated, truncated, infos = self._vector.step(actions)
            rollout["rewards"][step] = rewards
            rollout["terminated"][step] = terminated
            rollout["truncated"][step] = truncated
            ended = np.flatnonzero(terminated | truncated)
            self._returns += rewards
            rollout["episode_returns"][step, ended] = self._returns[ended]
            self._returns[ended] = 0.0
            self._starts = terminated | truncated
            following = rollout["next_observations"][step]
            following[...] = obs
            # If the next episode has begun, the last observation of the old one is in the infos.
            for index in ended:
                following[index] = infos["final_obs"][index]
            self._obs[...] = obs
        rollout["last_observations"][...] = self._obs


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
