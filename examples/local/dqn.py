"""DQN on CartPole with a `ReplayBuffer` in the same process: no server, no table, no threads.

Run ``python -m examples.local.dqn`` from the root of the project. It shows the three calls that
most agents need: make a buffer like an example, ``add`` a transition, ``sample`` a batch. All that
is random has a seed, the buffer's draws too, so that a seed repeats the whole run.

Left out, to stay readable: several environments, images (`images`), saving the buffer. The
mathematics is in `examples.qlearning`.
"""

from __future__ import annotations

import sys

import numpy as np
from echoic import buffers

from examples.local.command import Result, run
from examples.qlearning import DISCOUNT, QLearner, epsilon
from examples.training import Game, Options, Scores, evaluate

STEPS = 30_000
TARGET = 195.0
BATCH = 64
MIN_SIZE = 1_000
# A batch for every second step.
PERIOD = 2
EXAMPLE = {
    "obs": np.zeros(4, np.float32),
    "actions": np.int64(0),
    "rewards": np.float32(0),
    "terminated": False,
    "next_obs": np.zeros(4, np.float32),
}


def train(options: Options) -> Result:
    """Learn until the target is reached or the steps are used up."""
    rng = np.random.default_rng(options.seed)
    learner = QLearner(rng)
    buffer = buffers.ReplayBuffer(EXAMPLE, 50_000, seed=options.seed)
    game = Game(options.seed)
    scores = Scores(options)
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
                "next_obs": step.next_obs,
            }
        )
        if len(buffer) >= MIN_SIZE and scores.steps % PERIOD == 0:
            batch = buffer.sample(BATCH)
            learner.learn(
                {
                    "obs": batch["obs"],
                    "action": batch["actions"],
                    "reward": batch["rewards"],
                    "next_obs": batch["next_obs"],
                    # Where the time was up, more was to be expected; where the pole fell, nothing.
                    "discount": DISCOUNT * ~batch["terminated"],
                }
            )
    game.close()
    evaluation = evaluate(lambda: lambda obs: learner.greedy(learner.params, obs), options.seed)
    said = [
        f"{scores.steps:,d} steps in {scores.seconds:.1f} s, {len(buffer):,d} in the buffer.",
        f"{learner.updates:,d} batches of {BATCH}.",
        f"Greedy evaluation: mean return {np.mean(evaluation):.1f}.",
    ]
    return Result(scores.mean, scores.reached, scores.returns, said, learner.params)


if __name__ == "__main__":
    sys.exit(run(train, "Learn CartPole by DQN from a local buffer.", STEPS, TARGET))
