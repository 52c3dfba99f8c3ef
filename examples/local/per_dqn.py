"""Prioritized replay on CartPole with a `PrioritizedReplayBuffer` in the same process.

Run ``python -m examples.local.per_dqn`` from the root of the project. It shows what it adds to
`dqn`: rewards of three steps that the buffer sums by itself, batches with ``weights`` and
``keys``, ``update_priorities`` with the new TD errors, and ``beta`` from batch to batch. A new
transition has the largest priority there ever was, so that it is seen soon.

After Schaul et al., "Prioritized Experience Replay" (2015). Left out, to stay readable: several
environments, saving the buffer. The mathematics is in `examples.qlearning`.
"""

from __future__ import annotations

import sys

import numpy as np
from echoic import buffers

from examples.local.command import Result, run
from examples.qlearning import DISCOUNT, QLearner, epsilon
from examples.training import Game, Options, Scores, evaluate

STEPS = 40_000
TARGET = 300.0
BATCH = 64
MIN_SIZE = 1_000
PERIOD = 2
# Rewards of so many steps are summed.
N_STEP = 3
ALPHA = 0.6
# Of the importance weights: from the first to full correction in so many batches.
FIRST_BETA = 0.4
BETA_BATCHES = 10_000
# Keeps what was once no surprise from never being looked at again.
LEAST_PRIORITY = 1e-4
EXAMPLE = {
    "obs": np.zeros(4, np.float32),
    "actions": np.int64(0),
    "rewards": np.float32(0),
    "terminated": False,
    "truncated": False,
    "next_obs": np.zeros(4, np.float32),
}


def train(options: Options) -> Result:
    """Learn until the target is reached or the steps are used up."""
    rng = np.random.default_rng(options.seed)
    learner = QLearner(rng)
    buffer = buffers.PrioritizedReplayBuffer(
        EXAMPLE,
        50_000,
        alpha=ALPHA,
        n_step=N_STEP,
        gamma=DISCOUNT,
        seed=options.seed,
    )
    game = Game(options.seed)
    scores = Scores(options)
    beta = FIRST_BETA
    while not scores.done:
        obs = game.obs
        explores = rng.random() < epsilon(scores.steps)
        action = int(rng.integers(2)) if explores else learner.greedy(learner.params, obs)
        step = game.step(action)
        scores.add(step.reward, step.over)
        buffer.add(
            {
                "obs": obs,
                "actions": action,
                "rewards": step.reward,
                "terminated": step.fell,
                "truncated": step.over and not step.fell,
                "next_obs": step.next_obs,
            }
        )
        if len(buffer) >= MIN_SIZE and scores.steps % PERIOD == 0:
            beta = min(1.0, FIRST_BETA + (1 - FIRST_BETA) * learner.updates / BETA_BATCHES)
            batch = buffer.sample(BATCH, beta=beta)
            errors = learner.learn(
                {
                    "obs": batch["obs"],
                    "action": batch["actions"],
                    "reward": batch["rewards"],
                    "next_obs": batch["next_obs"],
                    "discount": batch["discounts"] * ~batch["terminated"],
                },
                batch.weights,
            )
            buffer.update_priorities(batch.keys, errors + LEAST_PRIORITY)
    game.close()
    evaluation = evaluate(lambda: lambda obs: learner.greedy(learner.params, obs), options.seed)
    said = [
        f"{scores.steps:,d} steps in {scores.seconds:.1f} s, beta {beta:.2f} in the end.",
        f"{learner.updates:,d} batches of {BATCH}.",
        f"Greedy evaluation: mean return {np.mean(evaluation):.1f}.",
    ]
    return Result(scores.mean, scores.reached, scores.returns, said, learner.params)


if __name__ == "__main__":
    sys.exit(run(train, "Learn CartPole from a local prioritized buffer.", STEPS, TARGET))
