"""Proximal policy optimisation in numpy: advantages, the loss with its gradient, Adam.

Schulman et al., "Proximal Policy Optimization Algorithms" (2017), and "High-Dimensional
Continuous Control Using Generalized Advantage Estimation" (2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from echoic.demo.policy import ActorCritic, Array


@dataclass(frozen=True)
class Settings:
    """What can be tuned. The defaults suit CartPole."""

    learning_rate: float = 1e-3
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    entropy_bonus: float = 0.01
    value_weight: float = 0.5
    max_gradient: float = 0.5
    epochs: int = 6
    minibatch: int = 256


@dataclass(frozen=True)
class Transitions:
    """What the loss looks at: `n` steps, their order lost."""

    obs: Array  # (n, observation)
    action: NDArray[np.integer[Any]]  # (n,)
    log_prob: Array  # (n,), under the policy that acted
    advantage: Array  # (n,)
    value_target: Array  # (n,)

    def __getitem__(self, index: NDArray[np.integer[Any]]) -> Transitions:
        """Pick some of the steps."""
        return Transitions(
            self.obs[index],
            self.action[index],
            self.log_prob[index],
            self.advantage[index],
            self.value_target[index],
        )


def advantages(
    step: dict[str, NDArray[Any]], value: Array, next_value: Array, settings: Settings
) -> Array:
    """Estimate advantages, generalised over λ; all arrays are `(rollouts, time)`.

    `step` has `reward`, `terminated` and `truncated`; `value` is that of the observation acted
    on, `next_value` that of where the step led::

        error(t) = reward(t) + discount * next_value(t) [not terminated at t] - value(t)
        advantage(t) = error(t) + discount * λ * advantage(t+1) [no episode ended at t]

    The setting `trace` is λ. An episode cut by its time limit still expects `next_value` and only
    breaks the recursion. So does the last step of a rollout.
    """
    goes_on = ~step["terminated"]
    delta = step["reward"] + settings.discount * next_value * goes_on - value
    carry = settings.discount * settings.trace * (goes_on & ~step["truncated"])
    estimate: Array = np.empty_like(value)
    following = np.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        following = delta[:, t] + carry[:, t] * following
        estimate[:, t] = following
    return estimate


def loss_and_gradient(
    model: ActorCritic, params: Array, data: Transitions, settings: Settings
) -> tuple[float, Array]:
    """Evaluate the loss of `params` over `data`, and its gradient.

    With the ratio r of the action's probability now to that when it was taken, the advantage A,
    and the entropy H of the policy, the loss is the mean of::

        -min(r A, clip(r, 1 - ε, 1 + ε) A) - bonus * H + weight * (value - target)² / 2
    """
    n = len(data.action)
    rows = np.arange(n)
    actor, critic = model.split(params)

    actor_outputs = model.actor.forward(actor, data.obs)
    logits = actor_outputs[-1] - actor_outputs[-1].max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    probs = np.exp(log_probs)
    entropy = -(probs * log_probs).sum(axis=1)
    ratio = np.exp(log_probs[rows, data.action] - data.log_prob)
    plain = ratio * data.advantage
    clipped = np.clip(ratio, 1 - settings.clip, 1 + settings.clip) * data.advantage

    # The derivative of -min(plain, clipped) by the log-probability of the action. Where the
    # clipped one is smaller, it is constant.
    d_chosen = np.where(plain <= clipped, -plain, 0)
    # A logit raises the log-probability of its own action, and lowers that of all
    # actions by its probability.
    d_logits = -probs * d_chosen[:, None]
    d_logits[rows, data.action] += d_chosen
    # dH/dlogit = -p (log p + H).
    d_logits += settings.entropy_bonus * probs * (log_probs + entropy[:, None])

    critic_outputs = model.critic.forward(critic, data.obs)
    error = critic_outputs[-1][:, 0] - data.value_target
    d_value = settings.value_weight * error[:, None]

    loss = (
        -np.minimum(plain, clipped)
        - settings.entropy_bonus * entropy
        + settings.value_weight * 0.5 * error**2
    ).mean()
    gradient = np.concatenate(
        [
            model.actor.backward(actor, actor_outputs, d_logits / n),
            model.critic.backward(critic, critic_outputs, d_value / n),
        ]
    )
    return float(loss), gradient


class Adam:
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014)."""

    def __init__(self, size: int, learning_rate: float) -> None:
        self._rate = learning_rate
        self._mean = np.zeros(size, np.float32)
        self._square = np.zeros(size, np.float32)
        self._steps = 0

    def step(self, params: Array, gradient: Array) -> None:
        """Move `params` in place, against `gradient`."""
        self._steps += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient * gradient - self._square)
        mean = self._mean / (1 - 0.9**self._steps)
        square = self._square / (1 - 0.999**self._steps)
        params -= self._rate * mean / (np.sqrt(square) + 1e-5)
