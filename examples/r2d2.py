"""R2D2 in small: a recurrent network that learns from overlapping sequences, by their priority.

Run ``python -m examples.r2d2`` from the root of the project. The game is CartPole without its two
velocities, so that one observation says too little, and the network has to remember: without its
recurrence it stays at a mean return of about 60. It shows a `TrajectoryWriter`: every step is
appended once, with the recurrent state before it, and an item names `LENGTH` of them; items overlap
by half and share the bytes. The first `BURN_IN` steps of a sequence only warm up the state.
Priorities mix the largest and the mean TD error of a sequence.

After Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning"
(2019). Left out, to stay readable: many actors, value rescaling, n-step targets, duelling networks,
and an LSTM: a plain tanh recurrence is enough to see how fast a pole moves. The actor and the
learner take turns, as in `dqn`, so that a seed repeats the whole run.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
from echoic import limiters, selectors
from echoic.demo import Adam

from examples.training import Game, Options, Outcome, Scores, evaluate, run

if TYPE_CHECKING:
    from echoic.demo import Array
    from numpy.typing import NDArray

STEPS = 40_000
TARGET = 195.0
# Of the observation: the positions of cart and pole, in units in which both are about 1.
SEEN = [0, 2]
UNITS = np.array([1.0, 0.1], np.float32)

LENGTH = 20
BURN_IN = 4
PERIOD = 10
BATCH = 16
# Each sequence, on average: here four batches for each, one for 2.5 steps.
SAMPLES_PER_INSERT = 64.0
MIN_SIZE = 100
EXPONENT = 0.9
BETA = 0.6
# The share of the largest TD error in the priority; η in the paper.
LARGEST_SHARE = 0.9
LEAST_PRIORITY = 1e-4

HIDDEN = 64
DISCOUNT = 0.99
# Makes returns of about 1, which a new network can reach in a few steps of Adam.
REWARD_SCALE = 0.02
LEARNING_RATE = 1e-3
FOLLOW = 0.01
MAX_GRADIENT = 1.0
LAST_EPSILON = 0.05
EPSILON_STEPS = 5_000

#: What the network is given for a step: the positions, and which action led to them.
INPUTS = len(SEEN) + 2
ACTIONS = 2


class RecurrentQ:
    """A tanh recurrence and a linear layer of action values, in one flat vector of parameters.

    Its equations::

        state(t) = tanh(input(t) W + state(t-1) U + b)
        values(t) = state(t) V + c
    """

    shapes = ((INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, ACTIONS), (ACTIONS,))

    def __init__(self) -> None:
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        ends = np.cumsum(sizes).tolist()
        self.size = ends[-1]
        self._layout = [
            (slice(end - size, end), shape)
            for end, size, shape in zip(ends, sizes, self.shapes, strict=True)
        ]

    def initial(self, rng: np.random.Generator) -> Array:
        """Random parameters; an orthogonal recurrence, which neither forgets nor explodes."""
        params = np.zeros(self.size, np.float32)
        w, u, _, v, _ = self.parts(params)
        w[...] = rng.normal(size=w.shape) / np.sqrt(INPUTS)
        u[...] = np.linalg.qr(rng.normal(size=u.shape))[0] * 0.9
        v[...] = rng.normal(size=v.shape) * 0.1 / np.sqrt(HIDDEN)
        return params

    def parts(self, params: Array) -> list[Array]:
        """Views of `params`: W, U, b, V and c."""
        return [params[where].reshape(shape) for where, shape in self._layout]

    def states(self, params: Array, inputs: Array, state: Array) -> Array:
        """The states `(time, n, HIDDEN)` after each of the inputs `(time, n, INPUTS)`."""
        w, u, b, _, _ = self.parts(params)
        driven = inputs @ w + b
        for t in range(len(driven)):
            driven[t] += state @ u
            state = np.tanh(driven[t], out=driven[t])
        return driven

    def values(self, params: Array, states: Array) -> Array:
        """The action values in each state."""
        _, _, _, v, c = self.parts(params)
        return states @ v + c

    def backward(
        self, params: Array, inputs: Array, before: Array, states: Array, d_values: Array
    ) -> Array:
        """The gradient through all of the time; the state `before` it is taken as given."""
        _, u, _, v, _ = self.parts(params)
        gradient = np.zeros_like(params)
        d_w, d_u, d_b, d_v, d_c = self.parts(gradient)
        d_v += np.tensordot(states, d_values, ((0, 1), (0, 1)))
        d_c += d_values.sum((0, 1))
        d_states = d_values @ v.T
        slope = 1 - states**2
        later = np.zeros_like(before)
        for t in reversed(range(len(states))):
            # By the sum inside tanh, from here on.
            d_states[t] += later
            d_states[t] *= slope[t]
            later = d_states[t] @ u.T
        previous = np.concatenate([before[None], states[:-1]])
        d_w += np.tensordot(inputs, d_states, ((0, 1), (0, 1)))
        d_u += np.tensordot(previous, d_states, ((0, 1), (0, 1)))
        d_b += d_states.sum((0, 1))
        return gradient


class Memory:
    """The recurrent state of one episode, as the network's owner acts in it."""

    def __init__(self, network: RecurrentQ, params: Array) -> None:
        self._network, self._params = network, params
        self.before = np.zeros(HIDDEN, np.float32)
        self.state = self.before
        self.inputs = np.zeros(INPUTS, np.float32)
        self._last: int | None = None

    def greedy(self, obs: Array) -> int:
        """Take in an observation; the action of the highest value."""
        self.inputs = np.zeros(INPUTS, np.float32)
        self.inputs[: len(SEEN)] = obs[SEEN] / UNITS
        if self._last is not None:
            self.inputs[len(SEEN) + self._last] = 1
        self.before = self.state
        self.state = self._network.states(self._params, self.inputs[None, None], self.before)[0, 0]
        return self.did(int(self._network.values(self._params, self.state).argmax()))

    def did(self, action: int) -> int:
        """Note the action that is taken, where it is not the greedy one."""
        self._last = action
        return action


class Learner:
    """The network, its target network, and the step from a batch of sequences to better ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.network = RecurrentQ()
        self.params = self.network.initial(rng)
        self.updates = 0
        self._target = self.params.copy()
        self._adam = Adam(self.network.size, LEARNING_RATE)

    def learn(self, data: dict[str, Any], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take one step; return the new priorities of the sequences.

        The leaves of `data` are `(n, LENGTH, ...)`, but for the state before the first step.
        """
        net, params = self.network, self.params
        inputs = data["inputs"].swapaxes(0, 1)
        warm, trained = inputs[:BURN_IN], inputs[BURN_IN:]
        before = net.states(params, warm, data["state"])[-1]
        states = net.states(params, trained, before)
        values = net.values(params, states)
        target_states = net.states(self._target, inputs, data["state"])[BURN_IN:]
        target_values = net.values(self._target, target_states)

        # The last step of a sequence has nothing after it to learn from.
        action, reward, discount, real = (
            data[name].swapaxes(0, 1)[BURN_IN:-1]
            for name in ("action", "reward", "discount", "real")
        )
        best = values[1:].argmax(axis=2)[..., None]
        following = np.take_along_axis(target_values[1:], best, 2)[..., 0]
        value = np.take_along_axis(values[:-1], action[..., None], 2)[..., 0]
        error = real * (value - REWARD_SCALE * reward - discount * following)

        d_values = np.zeros_like(values)
        d_chosen = weight * error / real.sum()
        np.put_along_axis(d_values[:-1], action[..., None], d_chosen[..., None], 2)
        gradient = net.backward(params, trained, before, states, d_values)
        norm = float(np.linalg.norm(gradient))
        if norm > MAX_GRADIENT:
            gradient *= MAX_GRADIENT / norm
        self._adam.step(params, gradient)
        self.updates += 1
        self._target += FOLLOW * (params - self._target)

        size = np.abs(error)
        mean = size.sum(axis=0) / np.maximum(1, real.sum(axis=0))
        priorities: NDArray[np.float64] = (
            LARGEST_SHARE * size.max(axis=0) + (1 - LARGEST_SHARE) * mean + LEAST_PRIORITY
        )
        return priorities


class Actor:
    """Plays, and writes what it plays as sequences."""

    def __init__(self, writer: echoic.TrajectoryWriter, learner: Learner, seed: int) -> None:
        self._writer = writer
        self._learner = learner
        self._rng = np.random.default_rng([seed, 1])
        self.game = Game(seed)
        self._memory = Memory(learner.network, learner.params)

    def step(self, epsilon: float, priority: float) -> tuple[float, bool]:
        """Play a step; reward, and whether the episode is over."""
        memory = self._memory
        action = memory.greedy(self.game.obs)
        if self._rng.random() < epsilon:
            action = memory.did(int(self._rng.integers(ACTIONS)))
        step = self.game.step(action)
        self._append(memory, action, step.reward, 0.0 if step.fell else DISCOUNT, real=1.0)
        self._make_item_when_due(priority)
        if step.over:
            # Where the episode led has a value too, when it was only cut short. Then zeros, until
            # the last steps fill a sequence.
            memory.greedy(step.next_obs)
            self._append(memory, 0, 0.0, 0.0, real=0.0)
            self._make_item_when_due(priority)
            while self._writer.episode_steps < LENGTH or self._writer.episode_steps % PERIOD:
                self._append(memory, 0, 0.0, 0.0, real=0.0)
                self._make_item_when_due(priority)
            self._writer.end_episode()
            self._memory = Memory(self._learner.network, self._learner.params)
        return step.reward, step.over

    def _append(
        self, memory: Memory, action: int, reward: float, discount: float, *, real: float
    ) -> None:
        self._writer.append(
            {
                "inputs": memory.inputs,
                "state": memory.before,
                "action": np.int64(action),
                "reward": np.float32(reward),
                "discount": np.float32(discount),
                "real": np.float32(real),
            }
        )

    def _make_item_when_due(self, priority: float) -> None:
        steps = self._writer.episode_steps
        if steps < LENGTH or steps % PERIOD:
            return
        history = self._writer.history
        trajectory = {name: column[-LENGTH:] for name, column in history.items()}
        # Only the state before the first step is asked for: one step, without an axis of time.
        trajectory["state"] = history["state"][-LENGTH]
        self._writer.create_item("sequences", priority, trajectory)


def make_table(seed: int) -> echoic.Table:
    """Make the replay buffer; without a spec, so that sequences that overlap share their steps."""
    return echoic.Table(
        "sequences",
        sampler=selectors.Prioritized(EXPONENT),
        remover=selectors.Fifo(),
        # The end of an episode makes up to two items, each of which counts as many samples. There
        # must be room for them: the actor and the learner take turns, so no other call makes some.
        limiter=limiters.SampleToInsertRatio(
            SAMPLES_PER_INSERT, min_size=MIN_SIZE, error_buffer=8 * BATCH
        ),
        capacity=5_000,
        seed=seed,
    )


def train(options: Options) -> Outcome:
    """Learn until the target is reached or the steps are used up."""
    learner = Learner(np.random.default_rng(options.seed))
    scores = Scores(options)
    largest = LEAST_PRIORITY
    with echoic.Server(make_table(options.seed)) as server:
        client = echoic.connect(server)
        table = client.table("sequences")
        with client.trajectory_writer(num_keep_alive_refs=LENGTH) as writer:
            actor = Actor(writer, learner, options.seed)
            while not scores.done:
                epsilon = max(LAST_EPSILON, 1 - scores.steps / EPSILON_STEPS)
                scores.add(*actor.step(epsilon, largest))
                if writer.pending:
                    writer.flush()
                while table.can_sample(BATCH):
                    batch = table.sample(BATCH, beta=BETA)
                    priorities = learner.learn(batch.data, batch.weights)
                    table.update_priorities(batch.keys, priorities)
                    largest = max(largest, float(priorities.max()))
            actor.game.close()
        numbers = table.stats()
    evaluation = evaluate(lambda: Memory(learner.network, learner.params).greedy, options.seed)
    return Outcome(scores, scores.reached, learner.updates, numbers, evaluation)


if __name__ == "__main__":
    sys.exit(run(train, "Learn CartPole without velocities from sequences.", STEPS, TARGET))
