"""Implicit Q-learning on CartPole from a data set alone, with an `OfflineDataset`.

Run ``python -m examples.local.offline`` from the root of the project. A clumsy pole balancer, half
of whose actions are random, makes a data set first. Nothing is played after that: batches come from
the buffer, which normalises observations, and the policy that is learned holds the pole far longer
than the one that made the data. A clone of the data's behaviour, judged beside it, does not.

After Kostrikov et al., "Offline Reinforcement Learning with Implicit Q-Learning" (2021). Left out,
to stay readable: data sets from files (``OfflineDataset.from_minari`` and its relatives),
trajectories for sequence models.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from echoic import buffers
from echoic.demo import Adam, Network

from examples.local.command import Result, run
from examples.training import Game, Options, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.demo import Array
    from numpy.typing import NDArray

# Batches that are learned from.
STEPS = 2_500
TARGET = 180.0
TRANSITIONS = 10_000
RANDOM = 0.5
BATCH = 64
DISCOUNT = 0.99
# Makes returns of about 1.
REWARD_SCALE = 0.02
LEARNING_RATE = 1e-3
FOLLOW = 0.01
# A value is that of actions as good as the best 20 % of the data's.
EXPECTILE = 0.8
# What an advantage counts for, and at most, when actions are imitated.
TEMPERATURE = 100.0
LARGEST_WEIGHT = 100.0


def make_dataset(seed: int) -> buffers.OfflineDataset:
    """Let a clumsy balancer play, and keep what it did as flat arrays."""
    rng = np.random.default_rng([seed, 1])
    game = Game(seed)
    rows: list[tuple[Any, ...]] = []
    while len(rows) < TRANSITIONS:
        obs = game.obs
        _, _, angle, turn = obs
        balancing = int(angle + turn > 0)
        action = int(rng.integers(2)) if rng.random() < RANDOM else balancing
        step = game.step(action)
        rows.append(
            (obs, step.next_obs, action, step.reward, step.fell, step.over and not step.fell)
        )
    game.close()
    obs, next_obs, actions, rewards, fell, cut = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    return buffers.OfflineDataset(
        obs.ravel(),
        next_obs.ravel(),
        actions,
        rewards.astype(np.float32),
        fell,
        cut,
        normalize=True,
        seed=seed,
    )


class Net:
    """A network with its optimiser."""

    def __init__(self, outputs: int, rng: np.random.Generator) -> None:
        self.network = Network((4, 64, 64, outputs))
        self.params = self.network.initial(rng, last_gain=0.1)
        self._adam = Adam(self.network.size, LEARNING_RATE)

    def __call__(self, obs: Array) -> Array:
        """The outputs for some observations."""
        return self.network.forward(self.params, obs)[-1]

    def learn(self, obs: Array, slope: Callable[[Array], Array]) -> None:
        """Take a step against `slope`, the derivative of the mean loss by the outputs."""
        outputs = self.network.forward(self.params, obs)
        gradient = slope(outputs[-1]) / len(obs)
        self._adam.step(self.params, self.network.backward(self.params, outputs, gradient))


class Learner:
    """The value of states, the value of actions, and the policy that prefers what is better."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.value, self.action_value, self.policy = Net(1, rng), Net(2, rng), Net(2, rng)
        self._target = self.action_value.params.copy()

    def learn(self, batch: dict[str, NDArray[Any]]) -> None:
        """Learn from a batch; no action is ever asked about that the data has not."""
        obs, actions = batch["obs"], batch["actions"]
        rows = np.arange(len(actions))
        network = self.action_value.network
        known = network.forward(self._target, obs)[-1][rows, actions]
        ahead = self.value(batch["next_obs"])[:, 0]
        due = REWARD_SCALE * batch["rewards"] + DISCOUNT * ~batch["terminated"] * ahead
        advantage = known - self.value(obs)[:, 0]

        # An expectile: what is too low counts for more than what is too high.
        tilt = np.where(advantage > 0, EXPECTILE, 1 - EXPECTILE)
        self.value.learn(obs, lambda _: -(tilt * advantage)[:, None])

        def slope(values: Array) -> Array:
            d_values = np.zeros_like(values)
            d_values[rows, actions] = values[rows, actions] - due
            return d_values

        self.action_value.learn(obs, slope)
        self._target += FOLLOW * (self.action_value.params - self._target)
        weight = np.minimum(np.exp(TEMPERATURE * advantage), LARGEST_WEIGHT)
        self.policy.learn(obs, imitation(actions, weight))


def imitation(actions: NDArray[Any], weight: Array | float) -> Callable[[Array], Array]:
    """The derivative of the weighted negative log-likelihood of actions by the policy's logits."""

    def slope(logits: Array) -> Array:
        probs: Array = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        probs[np.arange(len(actions)), actions] -= 1
        probs *= np.asarray(weight).reshape(-1, 1)
        return probs

    return slope


def train(options: Options) -> Result:
    """Learn from the data, and see how well that plays."""
    rng = np.random.default_rng(options.seed)
    data = make_dataset(options.seed)
    learner, clone = Learner(rng), Net(2, rng)
    for _ in range(options.steps):
        batch = data.sample(BATCH)
        learner.learn(batch)
        clone.learn(batch["obs"], imitation(batch["actions"], 1.0))

    def played(policy: Net) -> float:
        def act() -> Callable[[Array], int]:
            # A copy of the policy as it learned to act: it may be unsure, and then it is at random.
            chance = np.random.default_rng(options.seed)

            def choose(obs: Array) -> int:
                logits = policy(data.normalize_obs(obs[None]))[0]
                return int(chance.random() > 1 / (1 + np.exp(logits[1] - logits[0])))

            return choose

        return float(np.mean(evaluate(act, options.seed)))

    stats = data.stats()
    score, cloned = played(learner.policy), played(clone)
    said = [
        f"{stats.size:,d} transitions of {data.num_episodes:,d} episodes.",
        f"Their mean return: {stats.mean_return:.1f}.",
        f"{options.steps:,d} batches of {BATCH}.",
        f"A clone of the data's behaviour: mean return {cloned:.1f}.",
    ]
    history = [stats.mean_return, cloned, score]
    return Result(score, score >= options.target, history, said, learner.policy.params)


if __name__ == "__main__":
    sys.exit(run(train, "Learn CartPole from a data set.", STEPS, TARGET))
