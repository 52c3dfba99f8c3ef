"""Step many copies of a native environment, as a vector environment of Gymnasium.

This module imports Gymnasium if it is installed; ``echoic.collectors`` imports this module when
``VectorEnv`` is first used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from echoic.collectors.classic import ClassicControl

try:
    import gymnasium
except ModuleNotFoundError:
    gymnasium = None
else:
    # Vector environments of versions before 1.1 have another interface.
    gymnasium = gymnasium if hasattr(gymnasium.vector, "AutoresetMode") else None

__all__ = ["VectorEnv"]

_Base: Any = object if gymnasium is None else gymnasium.vector.VectorEnv


class VectorEnv(ClassicControl, _Base):  # type: ignore[misc]
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

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        *,
        autoreset_mode: Any = "NextStep",
        max_episode_steps: int | None = None,
    ) -> None:
        super().__init__(
            env_id, num_envs, autoreset_mode=autoreset_mode, max_episode_steps=max_episode_steps
        )
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

    def close(self, **_: Any) -> None:
        """Close the environments; later calls raise :class:`ClosedError`."""
        super().close()
