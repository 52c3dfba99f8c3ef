"""PPO on CartPole with rollouts of a `CandleCollector`, which plays on a thread without Python.

Run ``python -m examples.local.ppo`` from the root of the project. It shows the loop of an on-policy
learner: ``recv`` a rollout with its advantages, take some steps of the optimiser, ``sync_weights``.
The collector goes on while the learner computes, so a rollout may come from weights that are one or
two updates old; the log-probabilities that come with it are of those, as the loss needs.

Left out, to stay readable: a schedule of the learning rate, stopping epochs early. The loss and its
gradient are in `echoic.demo`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
from echoic import collectors
from echoic.demo import ACTOR, CRITIC, LEARNING_RATE, MAX_GRADIENT, Adam, ppo_loss, split

from examples.local.command import Result, run
from examples.training import Options, evaluate

if TYPE_CHECKING:
    from echoic.demo import Array

STEPS = 400_000
TARGET = 300.0
# The score is the mean return of so many episodes, the latest ones.
EPISODES = 40
ENVS = 16
ROLLOUT = 64
# Of the networks' layers, as in the demo.
HIDDEN = 64
EPOCHS, MINIBATCH = 4, 64


def to_native(params: Array) -> Array:
    """Lay out parameters as the collector does: the actor's layers and then the critic's.

    Of each layer there is the matrix, with a row for each output, and then the biases.
    """
    return np.concatenate(
        [part for weight, bias in layers(params) for part in (weight.T.ravel(), bias)]
    )


def to_ours(flat: Array) -> Array:
    """Undo `to_native`."""
    params = np.empty(len(flat), np.float32)
    start = 0
    for weight, bias in layers(params):
        rows, columns = weight.shape
        middle = start + rows * columns
        weight[...] = flat[start:middle].reshape(columns, rows).T
        bias[...] = flat[middle : middle + columns]
        start = middle + columns
    return params


def layers(params: Array) -> list[tuple[Array, Array]]:
    """Views of the weights and biases of the actor's layers, and then of the critic's."""
    actor, critic = split(params)
    return [*ACTOR.layers(actor), *CRITIC.layers(critic)]


def train(options: Options) -> Result:
    """Learn until the target is reached or the steps are used up."""
    rng = np.random.default_rng(options.seed)
    adam = Adam(ACTOR.size + CRITIC.size, LEARNING_RATE)
    returns: list[float] = []
    mean, steps, updates = 0.0, 0, 0
    with collectors.CandleCollector(
        env_id="CartPole-v1",
        n_envs=ENVS,
        obs_dim=4,
        n_actions=2,
        n_steps=ROLLOUT,
        hidden=HIDDEN,
        seed=options.seed,
    ) as collector:
        # Both sides begin with the collector's own random weights.
        params = to_ours(collector.get_weights())
        while mean < options.target and steps < options.steps:
            batch = collector.recv()
            steps += ENVS * ROLLOUT
            # Of the episodes that ended in this rollout, wherever they began.
            returns += batch["episode_returns"].tolist()
            mean = sum(returns[-EPISODES:]) / EPISODES
            data = transitions(batch)
            for _ in range(EPOCHS):
                order = rng.permutation(ENVS * ROLLOUT)
                for start in range(0, len(order), MINIBATCH):
                    part = order[start : start + MINIBATCH]
                    _, gradient = ppo_loss(params, {name: x[part] for name, x in data.items()})
                    gradient *= min(1.0, MAX_GRADIENT / float(np.linalg.norm(gradient)))
                    adam.step(params, gradient)
            updates += 1
            collector.sync_weights(to_native(params))
    actor = split(params)[0]
    evaluation = evaluate(
        lambda: lambda obs: int(ACTOR.forward(actor, obs[None])[-1].argmax()), options.seed
    )
    said = [
        f"{steps:,d} steps in {updates} rollouts of {ENVS} environments.",
        f"Greedy evaluation: mean return {np.mean(evaluation):.1f}.",
    ]
    return Result(mean, mean >= options.target, returns, said, params)


def transitions(batch: dict[str, Array]) -> dict[str, Array]:
    """Forget the order of a rollout's steps, and scale its advantages."""
    advantage = batch["advantages"].reshape(-1)
    return {
        "obs": batch["observations"].reshape(-1, 4),
        "actions": batch["actions"].reshape(-1).astype(np.int64),
        "log_probs": batch["log_probs"].reshape(-1),
        "advantages": (advantage - advantage.mean()) / (advantage.std() + 1e-8),
        "targets": batch["returns"].reshape(-1),
    }


if __name__ == "__main__":
    sys.exit(run(train, "Learn CartPole by PPO with a native collector.", STEPS, TARGET))
