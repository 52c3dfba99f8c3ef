"""Prioritized replay on CartPole: what surprised the learner most is sampled most.

Run ``python -m examples.per`` from the root of the project. It shows what it adds to `dqn`: a
prioritized table, importance weights that come with each batch, ``update_priorities`` with the new
TD errors, and items of several steps. The actor is a thread of its own here. Nothing says when
to play: its ``add`` waits while the limiter says that the learner is behind, and ``sample``
waits while the actor is. When the actor is done, the server is closed, which ends the learner.

After Schaul et al., "Prioritized Experience Replay" (2015). Left out, to stay readable: several
actors, and saving the policy. Threads race, so that two runs with one seed are alike and not the
same.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
from echoic import limiters, selectors
from echoic.weights import WeightStore

from examples.qlearning import DISCOUNT, TRANSITION, QLearner, epsilon
from examples.training import Game, Options, Outcome, Scores, Step, evaluate, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.demo import Array

STEPS = 60_000
TARGET = 400.0
BATCH = 64
SAMPLES_PER_INSERT = 32.0
MIN_SIZE = 1_000
# Rewards of so many steps go into one item.
N_STEP = 3
# Of the priorities, to be sampled; alpha in the paper.
EXPONENT = 0.6
# Of the importance weights. From the first to full correction in so many batches.
FIRST_BETA = 0.4
BETA_BATCHES = 15_000
# Keeps what was once no surprise from never being looked at again.
LEAST_PRIORITY = 1e-4


def make_table(seed: int) -> echoic.Table:
    """Make the replay buffer."""
    return echoic.Table(
        "replay",
        TRANSITION,
        sampler=selectors.Prioritized(EXPONENT),
        remover=selectors.Fifo(),
        limiter=limiters.SampleToInsertRatio(
            SAMPLES_PER_INSERT, min_size=MIN_SIZE, error_buffer=2 * BATCH
        ),
        capacity=50_000,
        seed=seed,
    )


class NSteps:
    """Turns steps into items that reach `N_STEP` steps ahead, or to the end of the episode."""

    def __init__(self) -> None:
        self._steps: deque[tuple[Array, int, float]] = deque()

    def add(self, obs: Array, action: int, step: Step) -> Iterator[dict[str, Any]]:
        """Take a step; give the items that it completes."""
        self._steps.append((obs, action, step.reward))
        while self._steps and (step.over or len(self._steps) == N_STEP):
            first, chosen, _ = self._steps[0]
            yield {
                "obs": first,
                "action": chosen,
                "reward": sum(DISCOUNT**i * each for i, (_, _, each) in enumerate(self._steps)),
                "next_obs": step.next_obs,
                "discount": 0.0 if step.fell else DISCOUNT ** len(self._steps),
            }
            self._steps.popleft()


class Surprise:
    """The largest TD error so far, which is what a new item counts for: it is to be seen soon."""

    def __init__(self) -> None:
        self.largest = LEAST_PRIORITY


def play(
    table: echoic.Table,
    learner: QLearner,
    weights: WeightStore,
    scores: Scores,
    surprise: Surprise,
    seed: int,
) -> None:
    """Be the actor, until the target is reached or the steps are used up."""
    rng = np.random.default_rng([seed, 1])
    game = Game(seed)
    steps = NSteps()
    newest = weights.subscribe()
    while not scores.done:
        obs = game.obs
        explores = rng.random() < epsilon(scores.steps)
        published = newest.latest()
        if explores or published is None:
            action = int(rng.integers(2))
        else:
            action = learner.greedy(published.tree, obs)
        step = game.step(action)
        scores.add(step.reward, step.over)
        for item in steps.add(obs, action, step):
            table.add(item, surprise.largest)
    game.close()


def train(options: Options) -> Outcome:
    """Learn until the target is reached or the steps are used up."""
    learner = QLearner(np.random.default_rng(options.seed))
    weights = WeightStore()
    scores, surprise = Scores(options), Surprise()
    # The server is closed first: an actor that waits in `add` ends with an error then.
    with ThreadPoolExecutor(1) as pool, echoic.Server(make_table(options.seed)) as server:
        table = echoic.connect(server).table("replay")
        playing = pool.submit(play, table, learner, weights, scores, surprise, options.seed)
        # Also when the actor fails: no thread may wait for steps that will not come.
        playing.add_done_callback(lambda _: server.close())
        with contextlib.suppress(echoic.errors.ClosedError):
            while True:
                beta = FIRST_BETA + (1 - FIRST_BETA) * min(1.0, learner.updates / BETA_BATCHES)
                batch = table.sample(BATCH, beta=beta)
                error = learner.learn(batch.data, batch.weights)
                table.update_priorities(batch.keys, error + LEAST_PRIORITY)
                surprise.largest = max(surprise.largest, float(error.max()))
                weights.publish(learner.params, learner.updates)
        numbers = table.stats()
    playing.result()  # Raises what the actor failed with.
    evaluation = evaluate(lambda: lambda obs: learner.greedy(learner.params, obs), options.seed)
    return Outcome(scores, scores.reached, learner.updates, numbers, evaluation)


if __name__ == "__main__":
    sys.exit(run(train, "Learn CartPole by prioritized replay.", STEPS, TARGET))
