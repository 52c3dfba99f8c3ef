"""Record the steps of Gymnasium environments into a table.

- :class:`RecordToTable` wraps an environment, :class:`VectorRecordToTable` a vector environment.

Each step that an environment makes becomes one transition with the fields of
:meth:`echoic.Table.from_spaces`. The step with which a vector environment begins an episode is
none, and ``next_obs`` of an episode's last step is where it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

from echoic.errors import ArgumentError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RecordToTable", "VectorRecordToTable"]


class RecordToTable(gymnasium.Wrapper):
    """Add each step of an environment to a table, and change nothing else.

    Observations and actions are copied, with the dtypes of their spaces: environments and programs
    may use their arrays again. A step waits while the table accepts nothing.

    Args:
        env: The environment.
        table: Where transitions go, with the fields of :meth:`echoic.Table.from_spaces`: a table of
            this process, of a connection, of several servers, or a local buffer.

    Raises:
        SpecError: If a space has values that are not arrays or numbers. A step raises it if the
            table has other fields.

    Examples:
        >>> import gymnasium
        >>> from echoic import Table
        >>> from echoic.integrations.gymnasium import RecordToTable
        >>> env = gymnasium.make("CartPole-v1")
        >>> table = Table.from_spaces(env.observation_space, env.action_space, capacity=1000)
        >>> env = RecordToTable(env, table)
        >>> observation, info = env.reset(seed=1)
        >>> terminated = False
        >>> while not terminated:
        ...     observation, reward, terminated, truncated, info = env.step(1)
        >>> len(table), table.sample(2)["next_obs"].shape
        (9, (2, 4))
        >>> env.close()
    """

    def __init__(self, env: Any, table: Any) -> None:
        super().__init__(env)
        self._table = table
        self._joins = _joins(table)
        self._keep_obs = _copier(env.observation_space)
        self._keep_action = _copier(env.action_space)
        self._obs: Any = None
        # Whether an episode is under way. If it is not, a step is that of an `Autoreset` wrapper.
        self._begun = False

    @property
    def spec(self) -> Any:
        """The environment's own, since recording is no part of what ``gymnasium.make`` makes."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; nothing is added."""
        obs, info = self.env.reset(seed=seed, options=options)
        if self._begun and self._joins:
            self._table.end_episode()
        self._obs, self._begun = self._keep_obs(obs), True
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make a step, and add it.

        Raises:
            SpecError: If it does not fit the table's fields.
            ClosedError: If the table or its connection is closed.
            DisconnectedError: If the server was away for longer than the connection's
                ``reconnect``.
        """
        kept_action = self._keep_action(action)
        result = self.env.step(action)
        obs, reward, terminated, truncated, _ = result
        before, self._obs = self._obs, self._keep_obs(obs)
        is_step, self._begun = self._begun, not (terminated or truncated)
        if is_step:
            self._table.add(
                {
                    "obs": before,
                    "actions": kept_action,
                    "rewards": float(reward),
                    "terminated": bool(terminated),
                    "truncated": bool(truncated),
                    "next_obs": self._obs,
                }
            )
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the environment, and wait until all steps are in the table."""
        try:
            super().close()
        finally:
            _deliver(self._table)


class VectorRecordToTable(VectorWrapper):
    """Add each step of each environment of a vector to a table, and change nothing else.

    As :class:`RecordToTable`, with one call for all environments. In a buffer each has its own
    episodes.

    Args:
        env: The vector environment. Its ``metadata["autoreset_mode"]`` must be true.
        table: As for :class:`RecordToTable`.

    Raises:
        SpecError: If a space has values that are not arrays or numbers.
        ArgumentError: If the environment does not say when its episodes begin.

    Examples:
        >>> import gymnasium
        >>> from echoic import ReplayBuffer
        >>> from echoic.integrations.gymnasium import VectorRecordToTable
        >>> envs = gymnasium.make_vec("CartPole-v1", num_envs=4)
        >>> buffer = ReplayBuffer.from_spaces(
        ...     envs.single_observation_space, envs.single_action_space, 1000
        ... )
        >>> envs = VectorRecordToTable(envs, buffer)
        >>> observations, infos = envs.reset(seed=1)
        >>> _ = envs.step(envs.action_space.sample())
        >>> len(buffer)
        4
        >>> envs.close()
    """

    def __init__(self, env: Any, table: Any) -> None:
        super().__init__(env)
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ArgumentError(
                "expected an AutoresetMode in env.metadata['autoreset_mode'], which says when "
                f"episodes begin, got {mode!r}; set it to how {env} behaves"
            )
        self._mode = mode
        self._table = table
        self._joins = _joins(table)
        self._keep_obs = _copier(env.single_observation_space)
        self._keep_action = _copier(env.single_action_space)
        self._obs: Any = None
        self._begun = np.zeros(env.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin episodes, of all environments or those of ``options["reset_mask"]``."""
        # Read first, since environments take it out of the options.
        mask = (options or {}).get("reset_mask", np.True_)
        obs, infos = self.env.reset(seed=seed, options=options)
        for number in np.flatnonzero(self._begun & mask).tolist() if self._joins else ():
            self._table.end_episode(number)
        self._obs = self._keep_obs(obs)
        self._begun |= mask
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Make a step of all environments, and add those that are one.

        Raises:
            As :meth:`RecordToTable.step`, and ``ArgumentError`` if an environment that resets in
            the same step does not return the last observation.
        """
        kept_actions = self._keep_action(actions)
        result = self.env.step(actions)
        obs, rewards, terminated, truncated, infos = result
        before, self._obs = self._obs, self._keep_obs(obs)
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        ended = terminated | truncated
        is_step, next_obs = self._begun, self._obs
        if self._mode == AutoresetMode.SAME_STEP:
            self._begun = np.ones_like(ended)
            if ended.any():
                next_obs = self._keep_obs(obs)
                for number in np.flatnonzero(ended).tolist():
                    _put(next_obs, number, self._last(infos, number))
        else:
            # A step of an environment whose episode is over is the one that resets it.
            resets = self._mode == AutoresetMode.NEXT_STEP
            self._begun = ~ended if resets else is_step & ~ended
        rows = {
            "obs": before,
            "actions": kept_actions,
            "rewards": np.asarray(rewards, np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "next_obs": next_obs,
        }
        if is_step.all():
            self._extend(rows, slice(None))
        elif is_step.any():
            self._extend(_rows(rows, is_step), is_step)
        return result  # type: ignore[no-any-return]

    def _extend(self, rows: dict[str, Any], is_step: Any) -> None:
        if self._joins:
            self._table.extend(rows, env=np.arange(self.num_envs)[is_step])
        else:
            self._table.extend(rows)

    def _last(self, infos: dict[str, Any], number: int) -> Any:
        """Return the last observation of an episode that ended in this step."""
        last = infos.get("final_obs", {})
        if not len(last) or last[number] is None:
            raise ArgumentError(
                f"expected the last observation of environment {number} in infos['final_obs'], "
                f"since {self.env} begins the next episode in the same step; it is not there"
            )
        return last[number]

    def close(self, **settings: Any) -> None:
        """Close the environments, and wait until all steps are in the table."""
        try:
            super().close(**settings)
        finally:
            _deliver(self._table)


def _copier(space: Any) -> Callable[[Any], Any]:
    """Return a function that copies values of a space, or batches of them, in its dtypes."""
    if isinstance(space, gymnasium.spaces.Dict):
        parts = {name: _copier(part) for name, part in space.items()}
        return lambda value: {name: keep(value[name]) for name, keep in parts.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        keepers = [_copier(part) for part in space]
        return lambda value: tuple(keep(part) for keep, part in zip(keepers, value, strict=True))
    dtype = space.dtype
    if dtype is None or dtype.kind not in "biuf":
        raise SpecError(f"expected spaces of arrays or numbers, got {space}")

    def keep(value: Any) -> Any:
        if type(value) is np.ndarray and value.dtype == dtype:
            return value.copy()
        array = np.asarray(value)
        # What does not fit is left for the table, which says what it expected.
        return array.astype(dtype) if np.can_cast(array.dtype, dtype, "same_kind") else array

    return keep


def _rows(tree: Any, mask: Any) -> Any:
    """Return the rows of a batch that a mask has."""
    if isinstance(tree, dict):
        return {name: _rows(part, mask) for name, part in tree.items()}
    return tuple(_rows(part, mask) for part in tree) if isinstance(tree, tuple) else tree[mask]


def _put(batch: Any, number: int, value: Any) -> None:
    """Replace a row of a batch."""
    if isinstance(batch, np.ndarray):
        batch[number] = value
        return
    for name in batch if isinstance(batch, dict) else range(len(batch)):
        _put(batch[name], number, value[name])


def _joins(table: Any) -> bool:
    """Return whether this is a buffer that joins the steps of an episode."""
    return getattr(table, "num_episodes", None) is not None


def _deliver(table: Any) -> None:
    """Wait until what was added is in the table; buffers have no such wait."""
    if hasattr(table, "flush"):
        table.flush()
