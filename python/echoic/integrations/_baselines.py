"""What the buffers of Stable-Baselines3 and of CleanRL have in common.

Both take ``add(obs, next_obs, action, reward, done, infos)``, with a row for each of ``n_envs``
environments, and give named tuples of tensors. The transitions are in a local buffer, or in a table
of any server, with the fields of :meth:`echoic.ReplayBuffer.from_spaces`.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic import Table, buffers
from echoic.errors import ReplayError, SpecError
from echoic.tensors import tensors_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BaselinesBuffer"]

Array = np.ndarray[Any, Any]


class BaselinesBuffer:
    """The methods of both libraries' replay buffers.

    Whoever inherits from it sets ``buffer_size`` (rows of ``n_envs`` transitions), the spaces,
    ``n_envs``, ``device``, ``pos`` and ``full``, and then calls :meth:`_open`.
    """

    buffer_size: int
    n_envs: int
    pos: int
    full: bool
    handle_timeout_termination: bool
    optimize_memory_usage: bool
    observation_space: Any
    action_space: Any
    # The class of the buffer.
    _kind: Any = buffers.ReplayBuffer
    # Whether the library scales actions to -1 and 1 before it adds them.
    _scales_actions = False
    _samples: Callable[..., Any]
    _store: Any

    def _open(self, table: Table | None, seed: int | None, **settings: Any) -> None:
        """Make the buffer that has the transitions, or check the table that has them."""
        obs = _zeros(self.observation_space)
        actions = _zeros(self.action_space)
        if table is None and actions.dtype == np.float64:
            # As both libraries have it, since networks are of float32.
            actions = actions.astype(np.float32)
        self._example = {
            "obs": obs,
            "actions": actions,
            "rewards": np.zeros((), np.float32),
            "terminated": np.zeros((), np.bool_),
            "truncated": np.zeros((), np.bool_),
            "next_obs": obs,
        }
        self._table = table
        self._scale = (
            _scale(self.action_space) if table is not None and self._scales_actions else None
        )
        self._settings = settings
        # Whether the buffer knows which transitions are of one episode.
        self._tracked = bool(settings.get("episodes") or settings.get("n_step", 1) > 1)
        if table is None:
            if seed is None:
                # Drawn from what `set_random_seed` has seeded, so that runs can be repeated.
                seed = int(np.random.randint(2**31))
            self._make(seed)
        else:
            _check(table, self._example)
            self._store = table
        self._bind()

    def _make(self, seed: int) -> None:
        next_obs = "shared" if self.optimize_memory_usage else "stored"
        self._store = self._kind(
            self._example,
            self.buffer_size * self.n_envs,
            seed=seed,
            next_obs=next_obs,
            **self._settings,
        )

    def _bind(self) -> None:
        """Prepare what every call of :meth:`add` uses."""
        self._none: Array = np.zeros(self.n_envs, np.bool_)
        self._put: Callable[..., None] = self._store.extend
        if (
            self._table is None
            and self.n_envs > 1
            and (self._tracked or self.optimize_memory_usage)
        ):
            self._put = functools.partial(self._put, env=np.arange(self.n_envs))
        if self._scale is not None:
            self._put = functools.partial(_put_unscaled, self._put, *self._scale)

    @property
    def device(self) -> torch.device:
        """Where batches are."""
        return self._device

    @device.setter
    def device(self, device: Any) -> None:
        self._device = torch.device(device)
        on_cpu, convert = self._device.type == "cpu", tensors_on(self._device)
        self._tensor: Any = torch.from_numpy if on_cpu else lambda array: convert([array])[0]

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add one transition of each environment.

        Args:
            obs: Observations, a row for each environment.
            next_obs: Observations after the actions; of an ended episode, its last one.
            action: Actions.
            reward: Rewards.
            done: Whether the episodes ended.
            infos: A dict for each environment; ``"TimeLimit.truncated"`` says that an episode was
                cut, so that values of ``next_obs`` count. Not read without
                ``handle_timeout_termination``.

        Raises:
            SpecError: If a value has another shape than its space. Nothing is stored then.
        """
        terminated, truncated = done, self._none
        if self.handle_timeout_termination and (self._tracked or True in done.tolist()):
            terminated, truncated = self._ends(done, infos)
        rows = {
            "obs": obs,
            "actions": action,
            "rewards": reward,
            "terminated": terminated,
            "truncated": truncated,
            "next_obs": next_obs,
        }
        try:
            self._put(rows)
        except SpecError:
            self._put(self._converted(rows, self.n_envs))
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def _ends(self, done: Any, infos: Any) -> tuple[Any, Any]:
        """Return which episodes are at a terminal state, and which were cut."""
        try:
            cut = [info.get("TimeLimit.truncated", False) for info in infos]
        except AttributeError:
            raise SpecError(
                f"`infos`: expected a dict for each environment, got a {type(infos).__name__}: "
                "with infos of Gymnasium's vector environments, set handle_timeout_termination to "
                "False, and give `terminated` as `done`"
            ) from None
        truncated = np.array(cut, np.bool_).reshape(self.n_envs)
        return np.logical_and(done, ~truncated), truncated

    def extend(self, *columns: Any) -> None:
        """Add many transitions: the arguments of :meth:`add`, with an axis of steps before them."""
        for row in zip(*columns, strict=True):
            self.add(*row)

    def _converted(self, rows: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Return rows of the stored shapes and dtypes, as assigning to an array would convert."""
        return {
            name: _convert(name, value, self._example[name], count) for name, value in rows.items()
        }

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions evenly, with replacement.

        Args:
            batch_size: Number of transitions.
            env: A ``VecNormalize``, which normalizes observations and rewards.

        Raises:
            ReplayError: If there are none.
        """
        return self._samples(*self._tensors(self._store.sample(batch_size).data, env))

    def _tensors(self, data: Any, env: Any) -> tuple[Any, ...]:
        """Return the tensors of a batch, in the order of both libraries' named tuples."""
        obs, actions, next_obs = data["obs"], data["actions"], data["next_obs"]
        rewards = data["rewards"]
        if self._scale is not None:
            low, high = self._scale
            actions = (2.0 * ((actions - low) / (high - low)) - 1.0).astype(np.float32)
        if env is not None:
            obs, next_obs = env.normalize_obs(obs), env.normalize_obs(next_obs)
            rewards = self._normalized(rewards, env)
        tensor = self._tensor
        if actions.ndim != 2:
            actions = actions.reshape(len(actions), -1)
        return (
            self._observations(obs),
            tensor(actions),
            self._observations(next_obs),
            tensor(data["terminated"][:, None].astype(np.float32)),
            tensor(rewards[:, None]),
        )

    def _observations(self, obs: Any) -> Any:
        if type(obs) is dict:
            return {key: self._observations(value) for key, value in obs.items()}
        return self._tensor(obs[:, None] if obs.ndim == 1 else obs)

    def _normalized(self, rewards: Array, env: Any) -> Array:
        normalized: Array = env.normalize_reward(rewards)
        return normalized

    def size(self) -> int:
        """Return the number of rows, of ``n_envs`` transitions each."""
        return len(self._store) // self.n_envs

    def reset(self) -> None:
        """Remove all transitions."""
        self._store.clear()
        self.pos, self.full = 0, False

    # What follows is for programs that look into the buffer.

    @property
    def observations(self) -> Any:
        """A copy of the observations, in the shape ``(buffer_size, n_envs, ...)``."""
        return self._copied("obs")

    @property
    def next_observations(self) -> Any:
        """A copy of the next observations, as :attr:`observations`."""
        return self._copied("next_obs")

    @property
    def actions(self) -> Any:
        """A copy of the actions, as :attr:`observations`, each as a vector."""
        actions: Array = self._copied("actions")
        return actions.reshape(self.buffer_size, self.n_envs, -1)

    @property
    def rewards(self) -> Any:
        """A copy of the rewards, in the shape ``(buffer_size, n_envs)``."""
        return self._copied("rewards")

    @property
    def dones(self) -> _Dones:
        """Whether episodes ended, as :attr:`rewards`, as floats.

        Setting any of them ends the running episodes, as Stable-Baselines3 does before it resets
        the environments.
        """
        return _Dones(self)

    @property
    def timeouts(self) -> Any:
        """Whether episodes ended without a terminal state, as :attr:`rewards`, as floats."""
        state = self._state()
        return self._placed(_ended(state) & ~state["rows"]["terminated"], np.float32)

    def _end_episodes(self) -> None:
        if self._tracked:
            for env in range(self.n_envs):
                self._store.end_episode(env)

    def _state(self) -> dict[str, Any]:
        if self._table is not None:
            raise ReplayError(
                f"the transitions are in the table {self._table.name!r}, which is not copied: "
                "sample it, or checkpoint its server"
            )
        state: dict[str, Any] = self._store.state_dict()
        return state

    def _copied(self, field: str) -> Any:
        rows = self._state()["rows"]
        example = self._example[field]
        if isinstance(example, dict):
            return {key: self._observed(rows[f"{field}/{key}"]) for key in example}
        return self._observed(rows[field]) if field.endswith("obs") else self._placed(rows[field])

    def _observed(self, rows: Array) -> Array:
        placed = self._placed(rows)
        return placed[..., None] if placed.ndim == 2 else placed

    def _placed(self, rows: Array, dtype: Any = None) -> Array:
        """Return rows, the oldest first, where the libraries' own buffers have them."""
        steps = len(rows) // self.n_envs
        shape = (self.n_envs, *rows.shape[1:])
        placed = np.zeros((self.buffer_size, *shape), dtype or rows.dtype)
        placed[(self.pos - steps + np.arange(steps)) % self.buffer_size] = rows.reshape(-1, *shape)
        return placed

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and a copy of the contents, for pickle and ``deepcopy``."""
        state = {**self.__dict__, "_contents": self._state()}
        for name in ("_store", "_put", "_tensor"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a buffer with these contents."""
        contents = state["_contents"]
        self.__dict__.update({name: state[name] for name in state.keys() - {"_contents"}})
        self.device = self._device
        self._make(0)
        self._store.load_state_dict(contents)
        self._bind()


class _Dones:
    """What ``buffer.dones`` is: an array that is made when it is read."""

    def __init__(self, buffer: BaselinesBuffer) -> None:
        self._buffer = buffer

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._buffer._placed(_ended(self._buffer._state()), dtype or np.float32)

    def __getitem__(self, index: Any) -> Any:
        return self.__array__()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._buffer._end_episodes()

    def __len__(self) -> int:
        return self._buffer.buffer_size


def _ended(state: Mapping[str, Any]) -> Array:
    """Return after which rows an episode ended."""
    if "ends" in state:
        return np.asarray(state["ends"], np.bool_)
    ended: Array = np.logical_or(state["rows"]["terminated"], state["rows"]["truncated"])
    return ended


def _zeros(space: Any) -> Any:
    """Return a value of a space: an array, or a dict of them."""
    if hasattr(space, "spaces"):
        if not isinstance(space.spaces, dict):
            raise SpecError(f"expected a space of arrays or a Dict of them, got {space}")
        return {key: _zeros(inner) for key, inner in space.spaces.items()}
    if space.shape is None or space.dtype is None:
        raise SpecError(f"expected a space of arrays or a Dict of them, got {space}")
    return np.zeros(space.shape, space.dtype)


def _convert(name: str, value: Any, like: Any, count: int) -> Any:
    """Return ``count`` rows like an example."""
    if isinstance(like, dict):
        if not isinstance(value, dict) or value.keys() != like.keys():
            raise SpecError(f"`{name}`: expected a dict with {sorted(like)}, got {value!r:.80}")
        return {key: _convert(f"{name}/{key}", value[key], like[key], count) for key in like}
    array = np.asarray(value)
    if array.size != count * math.prod(like.shape):
        raise SpecError(
            f"`{name}`: expected {count} rows of shape {like.shape}, one for each environment, "
            f"got shape {array.shape}"
        )
    return array.reshape(count, *like.shape).astype(like.dtype)


def _scale(space: Any) -> tuple[Array, Array] | None:
    """Return the bounds of actions that a library scales to -1 and 1; a table has them unscaled."""
    if not hasattr(space, "low"):
        return None
    if np.all(space.low == -1) and np.all(space.high == 1):
        return None
    return space.low, space.high


def _put_unscaled(
    put: Callable[..., None], low: Array, high: Array, rows: Mapping[str, Any]
) -> None:
    """Put rows with the environment's actions for those between -1 and 1."""
    scaled = np.reshape(rows["actions"], (-1, *low.shape))
    put({**rows, "actions": low + 0.5 * (scaled + 1.0) * (high - low)})


def _check(table: Table, example: Mapping[str, Any]) -> None:
    """Check that a table has the fields of the spaces."""
    wanted: Any = Table(table.name, example, capacity=1).spec
    leaves = table.spec.leaves if table.spec else ()
    found = {leaf.path: (leaf.dtype, leaf.shape) for leaf in leaves}
    for leaf in wanted.leaves:
        if found.get(leaf.path) != (leaf.dtype, leaf.shape):
            raise SpecError(
                f"table {table.name!r}: expected a field `{leaf.path}` of "
                f"{leaf.dtype}{list(leaf.shape)}, got {found.get(leaf.path, 'none')}: make the "
                "table with Table.from_spaces"
            )
