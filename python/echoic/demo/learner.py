"""The learner: trains the actor and the critic on batches of rollouts.

It reads a batch where Echoic wrote it. The arrays are views of the store's memory, and
their slots are not used again before the learner lets go of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from echoic.demo import ppo
from echoic.demo.policy import Actor, ActorCritic, Array
from echoic.demo.worker import ENVIRONMENT

if TYPE_CHECKING:
    from echoic.demo.weights import Weights


class Lesson(NamedTuple):
    """What one batch held."""

    steps: int
    returns: list[float]  # of the episodes that ended in it
    lag: list[int]  # of each rollout: versions published since its own


class Learner:
    """Owns the parameters that change; publishes a version after every batch."""

    def __init__(
        self,
        model: ActorCritic,
        params: Array,
        weights: Weights,
        settings: ppo.Settings,
        rng: np.random.Generator,
    ) -> None:
        self._model = model
        self._params = params
        self._weights = weights
        self._settings = settings
        self._rng = rng
        self._adam = ppo.Adam(model.size, settings.learning_rate)

    def learn(self, batch: dict[str, Any]) -> Lesson:
        """Train on a batch, leaves `(rollouts, ...)`, and publish the result."""
        step = batch["step"]
        lag = self._weights.latest().number - batch["version"]
        data = self._transitions(step)
        n = len(data.action)
        for _ in range(self._settings.epochs):
            order = self._rng.permutation(n)
            for start in range(0, n, self._settings.minibatch):
                part = data[order[start : start + self._settings.minibatch]]
                self._improve(part)
        self._weights.publish(self._params)
        returns = step["episode_return"]
        return Lesson(n, returns[~np.isnan(returns)].tolist(), lag.tolist())

    def _transitions(self, step: dict[str, Any]) -> ppo.Transitions:
        value = self._model.value(self._params, step["obs"])
        next_value = self._model.value(self._params, step["next_obs"])
        advantage = ppo.advantages(step, value, next_value, self._settings)
        normalised = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return ppo.Transitions(
            obs=step["obs"].reshape(-1, step["obs"].shape[-1]),
            action=step["action"].reshape(-1),
            log_prob=step["log_prob"].reshape(-1),
            advantage=normalised.reshape(-1),
            value_target=(advantage + value).reshape(-1),
        )

    def _improve(self, data: ppo.Transitions) -> None:
        _, gradient = ppo.loss_and_gradient(self._model, self._params, data, self._settings)
        norm = float(np.linalg.norm(gradient))
        if norm > self._settings.max_gradient:
            gradient *= self._settings.max_gradient / norm
        self._adam.step(self._params, gradient)


def evaluate(model: ActorCritic, params: Array, episodes: int, seed: int) -> list[float]:
    """The returns of whole episodes played greedily, apart from all training."""
    env = gymnasium.make(ENVIRONMENT)
    actor = Actor(model, params)
    returns = []
    obs, _ = env.reset(seed=seed)
    for _ in range(episodes):
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(actor.greedy(obs))
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
        obs, _ = env.reset()
    env.close()
    return returns
