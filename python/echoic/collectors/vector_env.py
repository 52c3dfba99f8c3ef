"""Many copies of a native environment, as Gymnasium's vector environments are.

This module imports Gymnasium, if it is there; ``echoic.collectors`` imports this module when
``VectorEnv`` is asked for.
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
    # Vector environments of versions before 1.1 are of another form.
    gymnasium = gymnasium if hasattr(gymnasium.vector, "AutoresetMode") else None

__all__ = ["VectorEnv"]

_Base: Any = object if gymnasium is None else gymnasium.vector.VectorEnv


class VectorEnv(ClassicControl, _Base):  # type: ignore[misc]
    """Classic control tasks that step together in native code.

    A ``gymnasium.vector.VectorEnv`` that can stand where ``gymnasium.make_vec`` was called: the
    same dynamics, limits, rewards, modes and infos, at millions of steps per second. Without
    Gymnasium (1.1 or later) it has no spaces and is no class of Gymnasium's, and does the same.

    Two things differ. First states are drawn from the same ranges by another generator
    (xoshiro256++ seeded with SplitMix64, one draw of 53 bits for each number), so a seed gives
    other starts than Gymnasium's; it gives these on every machine and in every release. And a state
    that is drawn is all that is random, so an environment's episodes depend on its seed and its
    actions alone, and not on its neighbours.

    Args:
        env_id: ``"CartPole-v1"``, ``"Pendulum-v1"``, ``"MountainCar-v0"`` or ``"Acrobot-v1"``.
        num_envs: How many there are.
        autoreset_mode: When an episode that follows another begins: ``"NextStep"`` in a step of its
            own, ``"SameStep"`` at once, ``"Disabled"`` when ``reset`` is called; or a
            ``gymnasium.vector.AutoresetMode``.
        max_episode_steps: After how many steps episodes are truncated, in place of the 500, 200,
            200 and 500 of the four.

    Raises:
        SpecError: There is no such environment or mode, or a number is out of its range.

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
        """Refuse to go on."""
        super().close()
