"""A DQN with actors and a learner around a table of n-step transitions, in numpy.

Run ``python -m examples.reverb.dqn`` from the root of the project; it takes some seconds. Two actor
threads play `Catch` and write by way of an `NStepTransitionAdder`. The learner reads batches from a
`TrajectoryDataset`, corrects for their priorities, and updates these with the new TD errors. A
`SampleToInsertRatio` keeps both in step: an actor waits in ``add``, the learner in its dataset.

After Mnih et al. (2015), Schaul et al. (2015) and, for how it is put together, Barth-Maron et al.,
"Distributed Distributional Deterministic Policy Gradients" (2018). Threads race, so that two runs
with one seed are alike and not the same. What a run learned is the best of the policies that it
tried on the way, for the last batch may have made one worse that was right before.
"""

from __future__ import annotations

import argparse
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import echoic.reverb as reverb
import numpy as np
from echoic.demo import Adam, Network

from examples.reverb.adders import NStepTransitionAdder
from examples.reverb.environment import Catch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.reverb.adders import Transition
    from examples.reverb.environment import Array

TABLE = "replay"
ACTORS = 2
EPISODES = 500  # of each actor
N_STEP = 3
DISCOUNT = 0.95
BATCH = 32
SAMPLES_PER_INSERT = 8.0
MIN_SIZE = 200
EXPONENT = 0.6
# Of the importance weights.
BETA = 0.5
LEARNING_RATE = 4e-3
# The target network follows by this share of the way with every batch.
FOLLOW = 0.05
LAST_EPSILON = 0.05
# Keeps what was once no surprise from never being looked at again.
LEAST_PRIORITY = 1e-3
# A random policy gets about -0.6, a perfect one 1.
TARGET = 0.6
EVALUATION_EPISODES = 100
# Batches between two trials of the greedy policy, and the episodes of each.
TRIAL_EVERY = 50
TRIAL_EPISODES = 50


@dataclass(frozen=True)
class Outcome:
    """What a run ended with."""

    first_returns: list[float]  # of the first episodes, which are random
    evaluation: list[float]  # of greedy episodes at the end, with the best policy
    updates: int
    info: reverb.reverb_types.TableInfo


class Learner:
    """A network of action values, the one that its targets are from, and a step from a batch.

    Of the policies that were tried, it keeps the best.
    """

    def __init__(self, seed: int) -> None:
        self.network = Network((Catch.ROWS * Catch.COLUMNS, 32, Catch.ACTIONS))
        self.params = self.network.initial(np.random.default_rng([seed, 0]), last_gain=0.1)
        self.updates = 0
        self.best, self._best_mean = self.params, -np.inf
        self._target = self.params.copy()
        self._adam = Adam(self.network.size, LEARNING_RATE)

    def greedy(self, observation: Array) -> int:
        """The action of the highest value."""
        return self._greedy(self.params, observation)

    def _greedy(self, params: Array, observation: Array) -> int:
        return int(self.network.forward(params, observation[None])[-1].argmax())

    def play(self, params: Array, seed: int, episodes: int) -> list[float]:
        """Play greedy episodes, apart from all training; return what each was worth."""
        environment = Catch(seed)
        returns = []
        for _ in range(episodes):
            timestep, total = environment.reset(), 0.0
            while not timestep.last():
                timestep = environment.step(self._greedy(params, timestep.observation))
                total += float(timestep.reward)
            returns.append(total)
        return returns

    def try_policy(self, seed: int) -> None:
        """Keep the policy of now if none before was as good."""
        mean = float(np.mean(self.play(self.params, seed, TRIAL_EPISODES)))
        # Of equals the later one, which has seen more.
        if mean >= self._best_mean:
            self.best, self._best_mean = self.params, mean

    def learn(self, batch: Transition, weight: Array) -> Array:
        """Take one step against the weighted squared errors; return the errors' magnitudes."""
        n = len(batch.action)
        rows = np.arange(n)
        best = self.network.forward(self.params, batch.next_observation)[-1].argmax(axis=1)
        following = self.network.forward(self._target, batch.next_observation)[-1][rows, best]
        outputs = self.network.forward(self.params, batch.observation)
        error = outputs[-1][rows, batch.action] - batch.reward - batch.discount * following
        d_values = np.zeros_like(outputs[-1])
        d_values[rows, batch.action] = weight * error / n
        # Another array each time: an actor that uses the old one meanwhile keeps it as it is.
        params = self.params.copy()
        self._adam.step(params, self.network.backward(params, outputs, d_values))
        self.params = params
        self._target += FOLLOW * (params - self._target)
        self.updates += 1
        return np.abs(error)


def make_table() -> reverb.Table:
    """Make the replay buffer."""
    return reverb.Table(
        name=TABLE,
        sampler=reverb.selectors.Prioritized(EXPONENT),
        remover=reverb.selectors.Fifo(),
        max_size=10_000,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=SAMPLES_PER_INSERT,
            min_size_to_sample=MIN_SIZE,
            # Room for what all are in the middle of: batches here, items on their way there.
            error_buffer=20.0 * BATCH,
        ),
        signature=NStepTransitionAdder.signature(Catch.SPEC),
    )


def act(
    client: reverb.Client, learner: Learner, seed: list[int], stop: threading.Event
) -> list[float]:
    """Play episodes, ever less at random; return what each was worth."""
    rng = np.random.default_rng(seed)
    environment = Catch(int(rng.integers(1 << 30)))
    returns = []
    # What is new has a priority of 1, as large as a TD error gets: it is to be seen soon.
    with NStepTransitionAdder(client, N_STEP, DISCOUNT, {TABLE: None}) as adder:
        for episode in range(EPISODES):
            if stop.is_set():
                break
            epsilon = max(LAST_EPSILON, 1 - 2 * episode / EPISODES)
            timestep = environment.reset()
            adder.add_first(timestep)
            total = 0.0
            while not timestep.last():
                if rng.random() < epsilon:
                    action = int(rng.integers(Catch.ACTIONS))
                else:
                    action = learner.greedy(timestep.observation)
                timestep = environment.step(action)
                adder.add(np.int32(action), timestep)
                total += float(timestep.reward)
            returns.append(total)
    return returns


def batches(client: reverb.Client) -> Iterator[reverb.ReplaySample]:
    """Sample until nothing comes for a while."""
    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address=client.server_address,
        table=TABLE,
        max_in_flight_samples_per_worker=2 * BATCH,
        num_workers_per_iterator=1,
        rate_limiter_timeout_ms=200,
    )
    return dataset.batch(BATCH).as_numpy_iterator()


def learn(client: reverb.Client, learner: Learner, sample: reverb.ReplaySample) -> None:
    """Take a step from a batch, and say how surprising its items are now."""
    weight = (sample.info.table_size * sample.info.probability) ** -BETA
    errors = learner.learn(sample.data, (weight / weight.max()).astype(np.float32))
    priorities = np.minimum(errors, 1.0) + LEAST_PRIORITY
    client.mutate_priorities(
        TABLE, updates=dict(zip(sample.info.key.tolist(), priorities.tolist(), strict=True))
    )


def train(seed: int) -> Outcome:
    """Learn while the actors play."""
    learner = Learner(seed)
    server = reverb.Server([make_table()])
    client = reverb.Client(f"localhost:{server.port}")
    stop = threading.Event()
    with ThreadPoolExecutor(ACTORS) as pool:
        actors = [pool.submit(act, client, learner, [seed, 1, i], stop) for i in range(ACTORS)]
        try:
            while not all(actor.done() for actor in actors):
                # Ends when the actors are done, or at the start, or when the machine is slow.
                for sample in batches(client):
                    learn(client, learner, sample)
                    if learner.updates % TRIAL_EVERY == 0:
                        learner.try_policy(seed + 1)
        finally:
            stop.set()
            # After an error, an actor may wait for samples to be taken before it can see that.
            while not all(actor.done() for actor in actors):
                for _ in batches(client):
                    pass
    info = client.server_info()[TABLE]
    server.stop()
    played = [actor.result() for actor in actors]
    learner.try_policy(seed + 1)
    return Outcome(
        first_returns=[total for returns in played for total in returns[: EPISODES // 10]],
        evaluation=learner.play(learner.best, seed, EVALUATION_EPISODES),
        updates=learner.updates,
        info=info,
    )


def main() -> int:
    """Run from the command line; the exit status says whether it learned."""
    parser = argparse.ArgumentParser(description="Learn Catch with actors, a table and a learner.")
    parser.add_argument("--seed", type=int, default=0, help="of the network and the games")
    outcome = train(parser.parse_args().seed)
    limiter = outcome.info.rate_limiter_info
    inserts, samples = limiter.insert_stats.completed, limiter.sample_stats.completed
    print(f"{inserts} transitions, {samples} samples of them in {outcome.updates} batches")
    print(f"mean return at first: {np.mean(outcome.first_returns):.2f}")
    mean = np.mean(outcome.evaluation)
    print(f"mean return, greedy: {mean:.2f} ({'at least' if mean >= TARGET else 'below'} {TARGET})")
    return 0 if mean >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
