"""DQN on CartPole, with a table where Reverb had one: uniform samples of single transitions.

Run ``python -m examples.dqn`` from the root of the project. It shows a table with a spec, which
stores transitions side by side; a `SampleToInsertRatio` limiter, which says how much is learned for
each step that is played; and the three calls that most agents need: ``add``, ``can_sample`` and
``sample``. The actor and the learner take turns, as the limiter has it, so that a seed repeats the
whole run. `per` has them in threads.

Left out, to stay readable: several actors, frames and convolutions, saving the policy. The
mathematics is in `qlearning`, the command line in `training`.
"""

from __future__ import annotations

import sys

import echoic
import numpy as np
from echoic import limiters, selectors

from examples.qlearning import DISCOUNT, TRANSITION, QLearner, epsilon
from examples.training import Game, Options, Outcome, Scores, evaluate, run

STEPS = 30_000
TARGET = 195.0
BATCH = 64
# Each transition is learned from so often on average: here a batch for every second step.
SAMPLES_PER_INSERT = 32.0
MIN_SIZE = 1_000


def make_table(seed: int) -> echoic.Table:
    """Make the replay buffer."""
    return echoic.Table(
        "replay",
        TRANSITION,
        sampler=selectors.Uniform(),
        remover=selectors.Fifo(),
        # The actor may be this far ahead of the learner, or behind, in samples. Less than a batch
        # would not let anybody move.
        limiter=limiters.SampleToInsertRatio(
            SAMPLES_PER_INSERT, min_size=MIN_SIZE, error_buffer=2 * BATCH
        ),
        capacity=50_000,
        seed=seed,
    )


def train(options: Options) -> Outcome:
    """Learn until the target is reached or the steps are used up."""
    rng = np.random.default_rng(options.seed)
    learner = QLearner(rng)
    game = Game(options.seed)
    scores = Scores(options)
    with echoic.Server(make_table(options.seed)) as server:
        table = echoic.connect(server).table("replay")
        while not scores.done:
            obs = game.obs
            explores = rng.random() < epsilon(scores.steps)
            action = int(rng.integers(2)) if explores else learner.greedy(learner.params, obs)
            step = game.step(action)
            scores.add(step.reward, step.over)
            transition = {
                "obs": obs,
                "action": action,
                "reward": step.reward,
                "next_obs": step.next_obs,
                "discount": 0.0 if step.fell else DISCOUNT,
            }
            table.add(transition)
            while table.can_sample(BATCH):
                learner.learn(table.sample(BATCH).data)
        numbers = table.stats()
    game.close()
    evaluation = evaluate(lambda: lambda obs: learner.greedy(learner.params, obs), options.seed)
    return Outcome(scores, scores.reached, learner.updates, numbers, evaluation)


if __name__ == "__main__":
    sys.exit(run(train, "Learn CartPole by DQN from a replay table.", STEPS, TARGET))
