"""Step many copies of a native environment, as a vector environment of Gymnasium.

This module imports Gymnasium if it is installed; ``echoic.collectors`` imports this module when
``VectorEnv`` is first used.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _native
from echoic.errors import ClosedError, SpecError

try:
    import gymnasium
except ModuleNotFoundError:
    gymnasium = None
else:
    # Vector environments of versions before 1.1 have another interface.
    gymnasium = gymnasium if hasattr(gymnasium.vector, "AutoresetMode") else None

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["VectorEnv"]

_Base: Any = object if gymnasium is None else gymnasium.vector.VectorEnv


class VectorEnv(_Base):  # type: ignore[misc]
    """Classic control tasks that step together in native code.

    A ``gymnasium.vector.VectorEnv`` that replaces ``gymnasium.make_vec``: the same dynamics,
    limits, rewards, modes and infos, at millions of steps per second. Without Gymnasium (1.1 or
    later) it has no spaces and is not a subclass.

    Two things differ. Initial states are drawn from the same ranges by another generator
    (xoshiro256++ seeded with SplitMix64, one draw of 53 bits for each number), so a seed gives
    other states than in Gymnasium, but the same on every machine and in every release. And only
    initial states are random, so an environment's episodes depend on its own seed and actions
    alone, not on other environments.

    Args:
        env_id: ``"CartPole-v1"``, ``"Pendulum-v1"``, ``"MountainCar-v0"`` or ``"Acrobot-v1"``.
        num_envs: Number of environments. Default: 1.
        autoreset_mode: When the next episode starts: ``"NextStep"`` in a step of its own, the
            default, ``"SameStep"`` at once, ``"Disabled"`` when ``reset`` is called; or a
            ``gymnasium.vector.AutoresetMode``.
        max_episode_steps: Number of steps after which episodes are truncated. ``None``: 500, 200,
            200 and 500 for the four environments.

    Raises:
        SpecError: If there is no such environment or mode, or a number is out of range.

    Examples:
        >>> import numpy as np
        >>> from echoic.collectors import VectorEnv
        >>> envs = VectorEnv("CartPole-v1", 3, autoreset_mode="SameStep")
        >>> observations, infos = envs.reset(seed=7)
        >>> right = np.ones(3, np.int64)
        >>> for _ in range(30):
        ...     observations, rewards, terminated, truncated, infos = envs.step(right)
        ...     if terminated.any():
        ...         break
        >>> observations.shape, rewards.tolist(), bool(truncated.any())
        ((3, 4), [1.0, 1.0, 1.0], False)
        >>> bool(abs(infos["final_obs"][terminated.argmax()][2]) > 0.2)  # the pole had fallen
        True
        >>> envs.close()
    """

    closed: bool = False

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        *,
        autoreset_mode: Any = "NextStep",
        max_episode_steps: int | None = None,
    ) -> None:
        # Gymnasium's modes are an enum with these values.
        mode = str(getattr(autoreset_mode, "value", autoreset_mode))
        for name, count in (("num_envs", num_envs), ("max_episode_steps", max_episode_steps)):
            if count is not None and not 0 < count < 2**32:
                raise SpecError(f"{name} must be from 1 to 2**32 - 1, got {count}")
        self._native = _native.Environments(env_id, num_envs, mode, max_episode_steps)
        self._discrete = self._native.discrete
        self._seeded = False
        self._text = f"{env_id!r}, num_envs={num_envs}, autoreset_mode={mode!r}"
        self.env_id = env_id
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps or self._native.limit
        self.metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": mode}
        if gymnasium is None:
            return
        spaces, vector = gymnasium.spaces, gymnasium.vector
        self.metadata["autoreset_mode"] = vector.AutoresetMode(self.metadata["autoreset_mode"])
        low, high = (np.array(bound, np.float32) for bound in self._native.bounds)
        self.single_observation_space = spaces.Box(low, high, dtype=np.float32)
        if self._native.continuous is None:
            self.single_action_space = spaces.Discrete(self._native.discrete)
        else:
            width, least, most = self._native.continuous
            self.single_action_space = spaces.Box(least, most, (width,), np.float32)
        batched = vector.utils.batch_space
        self.observation_space = batched(self.single_observation_space, num_envs)
        self.action_space = batched(self.single_action_space, num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Start episodes in all environments, or in some.

        Args:
            seed: Environment ``i`` draws from the stream of ``seed + i``, or of element ``i``.
                ``None`` continues the streams; a stream without a seed gets a random one.
            options: ``"reset_mask"`` is true for the environments to reset. ``"low"`` and
                ``"high"`` are the bounds of initial states, and Pendulum's are ``"x_init"`` and
                ``"y_init"``, all as in Gymnasium. ``"state"`` has rows of states to start from, in
                place of random ones. Other keys are ignored, as in Gymnasium.

        Returns:
            All observations, and an empty dict.

        Raises:
            SpecError: If an option has a wrong type, shape or range.
        """
        self._check_open()
        options = options or {}
        # Everything is checked before anything is changed.
        mask = self._mask(options)
        states, start = self._states(options), self._bounds(options)
        self._seed(seed, mask)
        return self._native.reset(mask, start, states), {}

    def step(
        self, actions: npt.ArrayLike
    ) -> tuple[
        npt.NDArray[np.float32],
        npt.NDArray[np.float64],
        npt.NDArray[np.bool_],
        npt.NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Step all environments.

        Args:
            actions: Integers (num_envs,), or numbers (num_envs, n) for a ``Box``. In the mode
                ``NextStep`` the actions of environments that start an episode are ignored, but must
                be given.

        Returns:
            Observations, rewards, terminated, truncated and infos. In the mode ``SameStep`` infos
            has ``final_obs`` and ``final_info`` of the episodes that ended, with their masks
            ``_final_obs`` and ``_final_info``.

        Raises:
            SpecError: If an action is not in the action space. No environment is stepped.
            ClosedError: If an environment's episode is over, or the environments were closed.
        """
        self._check_open()
        given = np.asarray(actions)
        if self._discrete is None:
            if given.shape != (self.num_envs, 1) or given.dtype.kind not in "fiu":
                raise self._refused(given, "real numbers", (self.num_envs, 1))
            given = given.ravel()
            if given.dtype != np.float32:
                with np.errstate(over="ignore"):
                    # Numbers too large for float32 are beyond the bounds.
                    given = given.astype(np.float32)
        else:
            if given.shape != (self.num_envs,) or given.dtype.kind not in "iu":
                raise self._refused(given, "integers", (self.num_envs,))
            given = given.astype(np.int64, copy=False)
        observations, rewards, terminated, truncated, finals = self._native.step(given)
        infos = {} if finals is None else self._final_infos(terminated | truncated, finals)
        return observations, rewards, terminated, truncated, infos

    @property
    def state(self) -> npt.NDArray[np.float64]:
        """A copy of the states, with a row for each environment, as ``reset`` takes them."""
        return self._native.states()

    def close(self, **_: Any) -> None:
        """Close the environments; later calls raise :class:`ClosedError`."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the environments are closed")

    def _seed(self, seed: int | Sequence[int | None] | None, mask: list[bool] | None) -> None:
        if seed is None:
            seeds: Sequence[int | None] = [None] * self.num_envs
        elif isinstance(seed, (int, np.integer)):
            seeds = range(int(seed), int(seed) + self.num_envs)
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise SpecError(f"seed: expected {self.num_envs} seeds, got {len(seeds)}")
        for one in seeds:
            if one is not None and not 0 <= one < 2**64:
                raise SpecError(f"seed: expected a number from 0 to 2**64 - 1, got {one}")
        if not self._seeded:
            seeds = [secrets.randbits(64) if one is None else one for one in seeds]
        elif mask is not None:
            # Environments that continue an episode keep their stream.
            seeds = [one if begins else None for one, begins in zip(seeds, mask, strict=True)]
        self._native.seed([None if one is None else int(one) for one in seeds])
        self._seeded = True

    def _mask(self, options: Mapping[str, Any]) -> list[bool] | None:
        mask = options.get("reset_mask")
        if mask is None:
            return None
        array = np.asarray(mask)
        if array.shape != (self.num_envs,) or array.dtype != np.bool_ or not array.any():
            raise SpecError(
                f"options['reset_mask']: expected bools of shape ({self.num_envs},), one of them "
                f"true, got {array.dtype} of shape {array.shape}"
            )
        flags: list[bool] = array.tolist()
        return flags

    def _states(self, options: Mapping[str, Any]) -> list[float] | None:
        states = options.get("state")
        if states is None:
            return None
        array = np.asarray(states, np.float64)
        expected = (self.num_envs, len(self._native.start))
        if array.shape != expected:
            raise SpecError(f"options['state']: expected shape {expected}, got {array.shape}")
        if not np.isfinite(array).all():
            raise SpecError("options['state']: expected finite numbers")
        numbers: list[float] = array.ravel().tolist()
        return numbers

    def _bounds(self, options: Mapping[str, Any]) -> list[tuple[float, float]] | None:
        """Return the ranges of initial states that the options set."""
        start = self._native.start
        if self._discrete is None:
            names = ("x_init", "y_init")
            if not any(name in options for name in names):
                return None
            highs = [
                _number(options, name, high) for name, (_, high) in zip(names, start, strict=True)
            ]
            return [(-abs(high), abs(high)) for high in highs]
        if "low" not in options and "high" not in options:
            return None
        low, high = (
            _number(options, name, start[0][at]) for at, name in enumerate(("low", "high"))
        )
        if low > high:
            raise SpecError(f"options: expected low <= high, got low={low} and high={high}")
        # Constant elements stay constant.
        return [(low, high) if own[0] < own[1] else own for own in start]

    def _final_infos(
        self, ended: npt.NDArray[np.bool_], finals: npt.NDArray[np.float32]
    ) -> dict[str, Any]:
        observations = np.full(self.num_envs, None, object)
        for row, env in enumerate(np.flatnonzero(ended)):
            observations[env] = finals[row]
        return {
            "final_obs": observations,
            "_final_obs": ended,
            "final_info": {},
            "_final_info": ended.copy(),
        }

    def _refused(self, given: npt.NDArray[Any], what: str, shape: tuple[int, ...]) -> SpecError:
        got = f"{given.dtype} of shape {given.shape}"
        return SpecError(f"actions: expected {what} of shape {shape}, got {got}")

    def __repr__(self) -> str:
        return f"VectorEnv({self._text})"


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SpecError(f"options[{name!r}]: expected a finite number, got {value!r}")
    return number
