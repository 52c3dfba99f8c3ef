"""The policy and the value function: two small networks in one vector of parameters.

All parameters lie in one flat float vector. An optimiser then is a few vector
operations, a version to publish is one copy, and a test can nudge each number.
Gradients are written by hand; `tests/test_demo.py` holds them against differences.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import random

Array = NDArray[np.floating[Any]]


class Network:
    """A multi-layer perceptron with tanh between its layers, and none after the last.

    It owns no numbers: `params` is always the caller's flat vector of `size` numbers.
    """

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.shapes = list(itertools.pairwise(widths))
        self.size = sum(rows * columns + columns for rows, columns in self.shapes)

    def initial(self, rng: np.random.Generator, last_gain: float) -> Array:
        """Random parameters: orthogonal weights, zero biases.

        A small `last_gain` makes the first outputs nearly equal for all inputs.
        """
        params = np.zeros(self.size, np.float32)
        layers = self.layers(params)
        for index, (weight, _) in enumerate(layers):
            gain = last_gain if index == len(layers) - 1 else math.sqrt(2)
            rows, columns = weight.shape
            normal = rng.normal(size=(max(rows, columns), min(rows, columns)))
            q, r = np.linalg.qr(normal)
            q *= np.sign(np.diag(r))
            weight[...] = gain * (q if rows >= columns else q.T)
        return params

    def layers(self, params: Array) -> list[tuple[Array, Array]]:
        """Views of `params` as (weight, bias) of each layer."""
        found = []
        start = 0
        for rows, columns in self.shapes:
            middle, end = start + rows * columns, start + (rows + 1) * columns
            found.append((params[start:middle].reshape(rows, columns), params[middle:end]))
            start = end
        return found

    def forward(self, params: Array, inputs: Array) -> list[Array]:
        """The inputs `(n, widths[0])`, then the outputs of every layer."""
        outputs = [inputs]
        layers = self.layers(params)
        for index, (weight, bias) in enumerate(layers):
            x = outputs[-1] @ weight
            x += bias
            outputs.append(x if index == len(layers) - 1 else np.tanh(x, out=x))
        return outputs

    def backward(self, params: Array, outputs: list[Array], d_last: Array) -> Array:
        """The gradient for `params`, given the one for the last of `outputs`."""
        gradient = np.empty_like(params)
        pairs = list(zip(self.layers(params), self.layers(gradient), strict=True))
        d_output = d_last
        for index in reversed(range(len(pairs))):
            (weight, _), (d_weight, d_bias) = pairs[index]
            np.matmul(outputs[index].T, d_output, out=d_weight)
            np.sum(d_output, axis=0, out=d_bias)
            if index > 0:
                # The derivative of tanh, from its own output.
                d_output = (d_output @ weight.T) * (1 - outputs[index] ** 2)
        return gradient


class ActorCritic:
    """An actor (observation to action logits) beside a critic (observation to value)."""

    def __init__(self, observation: int, actions: int, hidden: int = 64) -> None:
        self.actor = Network((observation, hidden, hidden, actions))
        self.critic = Network((observation, hidden, hidden, 1))
        self.size = self.actor.size + self.critic.size

    def initial(self, rng: np.random.Generator) -> Array:
        """Random parameters of both networks; the first policy is nearly uniform."""
        return np.concatenate([self.actor.initial(rng, 0.01), self.critic.initial(rng, 1.0)])

    def split(self, params: Array) -> tuple[Array, Array]:
        """Views of the parameters of the actor and of the critic."""
        return params[: self.actor.size], params[self.actor.size :]

    def value(self, params: Array, obs: Array) -> Array:
        """The expected discounted return after `obs`; any leading axes."""
        flat = obs.reshape(-1, obs.shape[-1])
        outputs = self.critic.forward(self.split(params)[1], flat)
        return outputs[-1].reshape(obs.shape[:-1])


class Actor:
    """Chooses actions, one observation at a time, with fixed parameters.

    It works in Python numbers after the last layer: for two logits they are several
    times faster than numpy calls, and this is where a worker spends its time.
    """

    def __init__(self, model: ActorCritic, params: Array) -> None:
        self._layers = model.actor.layers(model.split(params)[0])

    def logits(self, obs: Array) -> list[float]:
        """The unnormalised log-probabilities of the actions."""
        *hidden, (last_weight, last_bias) = self._layers
        x = obs
        for weight, bias in hidden:
            x = np.tanh(x @ weight + bias)
        logits: list[float] = (x @ last_weight + last_bias).tolist()
        return logits

    def sample(self, obs: Array, rng: random.Random) -> tuple[int, float]:
        """A random action and its log-probability."""
        logits = self.logits(obs)
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits]
        action = rng.choices(range(len(weights)), weights)[0]
        return action, math.log(weights[action] / sum(weights))

    def greedy(self, obs: Array) -> int:
        """The most probable action."""
        logits = self.logits(obs)
        return logits.index(max(logits))
