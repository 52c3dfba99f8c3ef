"""Q-learning from images, with a `MmapReplayBuffer` that keeps most of them in a file.

Run ``python -m examples.local.images`` from the root of the project. A ball falls through a picture
of 12 x 10 pixels, and a paddle at its bottom is to catch it. The buffer is made from an example of
a transition, so that images stay bytes and actions whole numbers. Only the latest transitions are
in memory; the rest is in a file, from which batches come as if there were no difference.

Left out, to stay readable: convolutions, stacks of frames, going on with the file of an earlier run
(``MmapReplayBuffer.open``).
"""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from echoic import buffers
from echoic.demo import Adam, Network

from examples.local.command import Result, run

if TYPE_CHECKING:
    from echoic.demo import Array
    from numpy.typing import NDArray

    from examples.training import Options

ROWS, COLUMNS = 12, 10
STEPS = 40_000
# Of the latest balls, how many are caught. A paddle at random catches about every third.
TARGET = 0.9
BALLS = 200
BATCH = 32
MIN_SIZE = 1_000
PERIOD = 4
IN_MEMORY, IN_ALL = 2_000, 20_000
DISCOUNT = 0.97
LEARNING_RATE = 1e-3
FOLLOW = 0.02
LAST_EPSILON, EPSILON_STEPS = 0.02, 10_000

TRANSITION: dict[str, Any] = {
    "obs": np.zeros((ROWS, COLUMNS), np.uint8),
    "actions": np.int64(0),
    "rewards": np.float32(0),
    "terminated": False,
    "next_obs": np.zeros((ROWS, COLUMNS), np.uint8),
}


class Catch:
    """A ball falls, drifting, and a paddle of three pixels goes left, stays or goes right."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._row = self._column = self._paddle = 0
        self.obs = self._begin()

    def step(self, action: int) -> tuple[float, bool, NDArray[np.uint8]]:
        """Return the reward, whether the ball is down, and the image it led to."""
        self._paddle = int(np.clip(self._paddle + action - 1, 1, COLUMNS - 2))
        self._row += 1
        self._column = int(np.clip(self._column + self._rng.integers(-1, 2), 0, COLUMNS - 1))
        down = self._row == ROWS - 1
        caught = abs(self._column - self._paddle) <= 1
        image = self._image()
        self.obs = self._begin() if down else image
        return (1.0 if caught else -1.0) if down else 0.0, down, image

    def _begin(self) -> NDArray[np.uint8]:
        self._row, self._column = 0, int(self._rng.integers(COLUMNS))
        self._paddle = COLUMNS // 2
        return self._image()

    def _image(self) -> NDArray[np.uint8]:
        image = np.zeros((ROWS, COLUMNS), np.uint8)
        image[self._row, self._column] = 255
        image[-1, self._paddle - 1 : self._paddle + 2] = 128
        return image


class Learner:
    """A network from the pixels to the values of the three actions."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.network = Network((ROWS * COLUMNS, 64, 64, 3))
        self.params = self.network.initial(rng, last_gain=0.1)
        self.updates = 0
        self._target = self.params.copy()
        self._adam = Adam(self.network.size, LEARNING_RATE)

    def values(self, params: Array, images: NDArray[np.uint8]) -> list[Array]:
        """The outputs of all layers: pixels are made floats here and nowhere else."""
        return self.network.forward(params, images.reshape(len(images), -1) / np.float32(255))

    def learn(self, batch: dict[str, NDArray[Any]]) -> None:
        """Take a step against the squared error of double Q-learning."""
        actions = batch["actions"]
        rows = np.arange(len(actions))
        best = self.values(self.params, batch["next_obs"])[-1].argmax(axis=1)
        ahead = self.values(self._target, batch["next_obs"])[-1][rows, best]
        outputs = self.values(self.params, batch["obs"])
        error = outputs[-1][rows, actions] - batch["rewards"]
        error -= DISCOUNT * ~batch["terminated"] * ahead
        d_values = np.zeros_like(outputs[-1])
        d_values[rows, actions] = error / len(rows)
        self._adam.step(self.params, self.network.backward(self.params, outputs, d_values))
        self._target += FOLLOW * (self.params - self._target)
        self.updates += 1


def train(options: Options) -> Result:
    """Learn until enough balls are caught or the steps are used up."""
    rng = np.random.default_rng(options.seed)
    learner = Learner(rng)
    game = Catch(options.seed)
    latest: deque[float] = deque(maxlen=BALLS)
    caught: list[float] = []
    steps, score = 0, 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        buffers.MmapReplayBuffer(
            TRANSITION,
            IN_ALL,
            Path(folder) / "frames.bin",
            hot_capacity=IN_MEMORY,
            seed=options.seed,
        ) as buffer,
    ):
        while steps < options.steps and score < options.target:
            obs = game.obs
            explores = rng.random() < max(LAST_EPSILON, 1 - steps / EPSILON_STEPS)
            action = int(
                rng.integers(3)
                if explores
                else learner.values(learner.params, obs[None])[-1].argmax()
            )
            reward, down, image = game.step(action)
            steps += 1
            buffer.add(
                {
                    "obs": obs,
                    "actions": action,
                    "rewards": reward,
                    "terminated": down,
                    "next_obs": image,
                }
            )
            if down:
                latest.append(reward > 0)
                caught.append(float(reward > 0))
                score = sum(latest) / BALLS
            if len(buffer) >= MIN_SIZE and steps % PERIOD == 0:
                learner.learn(buffer.sample(BATCH).data)
        said = [
            f"{steps:,d} steps, {len(caught):,d} balls.",
            f"{learner.updates:,d} batches of {BATCH}, from {len(buffer):,d} transitions.",
            f"At most {IN_MEMORY:,d} of those were in memory.",
        ]
    return Result(score, score >= options.target, caught, said, learner.params)


if __name__ == "__main__":
    sys.exit(run(train, "Learn to catch a ball from images.", STEPS, TARGET))
