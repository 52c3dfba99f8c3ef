"""Q-learning in numpy, which `dqn` and `per` share: what learns from a batch, wherever it is from.

Mnih et al., "Human-level control through deep reinforcement learning" (2015), with the target of
van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning" (2015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from echoic.demo import Adam, Network

if TYPE_CHECKING:
    from echoic.demo import Array
    from numpy.typing import NDArray

#: An item: names the leaves of a transition, with their shapes and dtypes.
TRANSITION: dict[str, Any] = {
    "obs": np.zeros(4, np.float32),
    "action": np.int32(0),
    "reward": np.float32(0),
    "next_obs": np.zeros(4, np.float32),
    # What `next_obs` counts for: nothing, where the pole fell.
    "discount": np.float32(0),
}
DISCOUNT = 0.99
# Makes returns of about 1, which a new network can reach in a few steps of Adam.
REWARD_SCALE = 0.02
LEARNING_RATE = 1e-3
# The target network follows by this share of the way with every batch.
FOLLOW = 0.01
MAX_GRADIENT = 10.0
# The share of random actions falls from 1 to this in so many steps.
LAST_EPSILON = 0.02
EPSILON_STEPS = 5_000


def epsilon(step: int) -> float:
    """How many actions are random after so many steps."""
    return max(LAST_EPSILON, 1 - step / EPSILON_STEPS)


class QLearner:
    """A network of action values, its target network, and the step from a batch to better ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.network = Network((4, 64, 64, 2))
        self.params = self.network.initial(rng, last_gain=0.1)
        self.updates = 0
        self._target = self.params.copy()
        self._adam = Adam(self.network.size, LEARNING_RATE)

    def greedy(self, params: Array, obs: Array) -> int:
        """The action of the highest value."""
        return int(self.network.forward(params, obs[None])[-1].argmax())

    def learn(self, data: dict[str, NDArray[Any]], weight: Array | float = 1.0) -> Array:
        """Take one step against the squared error; return the TD errors' magnitudes.

        With the parameters θ and those of the target network θ', an item's error is::

            Q(obs, action; θ) - reward - discount * Q(next_obs, argmax Q(next_obs, .; θ); θ')

        and `weight` is what it counts for.
        """
        n = len(data["action"])
        rows = np.arange(n)
        best = self.network.forward(self.params, data["next_obs"])[-1].argmax(axis=1)
        following = self.network.forward(self._target, data["next_obs"])[-1][rows, best]
        outputs = self.network.forward(self.params, data["obs"])
        value = outputs[-1][rows, data["action"]]
        error = value - REWARD_SCALE * data["reward"] - data["discount"] * following

        d_values = np.zeros_like(outputs[-1])
        d_values[rows, data["action"]] = weight * error / n
        gradient = self.network.backward(self.params, outputs, d_values)
        norm = float(np.linalg.norm(gradient))
        if norm > MAX_GRADIENT:
            gradient *= MAX_GRADIENT / norm
        self._adam.step(self.params, gradient)

        self.updates += 1
        self._target += FOLLOW * (self.params - self._target)
        magnitudes: Array = np.abs(error)
        return magnitudes
