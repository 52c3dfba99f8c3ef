"""What the replay examples share and what has nothing to do with replay: options, scores, the game.

`dqn`, `per` and `r2d2` are read first; this says how they are run and judged.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import gymnasium
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.demo import Array
    from echoic.table_stats import TableStats

#: The score is the mean return of so many training episodes, the latest ones.
EPISODES = 20
EVALUATION_EPISODES = 20
# Random actions get about 22.
QUICK_TARGET = 60.0
# How often there is something new to read.
REPORT_EVERY = 2.0


@dataclass(frozen=True)
class Options:
    """What the command line can set."""

    steps: int
    target: float
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a run ended with."""

    scores: Scores
    reached: bool
    updates: int  # batches learned from
    table: TableStats  # at the end
    evaluation: list[float]  # returns of greedy episodes


class Step(NamedTuple):
    """What the game answers to an action."""

    reward: float
    next_obs: Array  # where the step led
    fell: bool  # nothing is to be expected from there on
    over: bool  # the pole fell, or the time was up


class Game:
    """CartPole, which restarts by itself."""

    def __init__(self, seed: int) -> None:
        self._env = gymnasium.make("CartPole-v1")
        self.obs: Array = self._env.reset(seed=seed)[0]

    def step(self, action: int) -> Step:
        """Take an action; `obs` is of another episode then, when this one is over."""
        next_obs, reward, fell, out_of_time, _ = self._env.step(action)
        over = fell or out_of_time
        self.obs = self._env.reset()[0] if over else next_obs
        return Step(float(reward), next_obs, fell, over)

    def close(self) -> None:
        """End the game."""
        self._env.close()


class Scores:
    """Counts steps and returns, and says from time to time how it goes."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._say = sayer()
        self._start = self._now = self._said = time.monotonic()
        self._latest: deque[float] = deque(maxlen=EPISODES)
        self._return = 0.0
        self.returns: list[float] = []
        self.steps = 0

    def add(self, reward: float, over: bool) -> None:
        """Count a step."""
        self.steps += 1
        self._return += reward
        if over:
            self.returns.append(self._return)
            self._latest.append(self._return)
            self._return = 0.0
        self._now = time.monotonic()
        if self._now - self._said >= REPORT_EVERY:
            self._said = self._now
            self._say(
                f"{self.seconds:6.1f} s  {self.steps:7,d} steps  {len(self.returns):5,d} episodes"
                f"  mean return {self.mean:6.1f} of {self._options.target:g}"
            )

    @property
    def seconds(self) -> float:
        """From the start to the latest step."""
        return self._now - self._start

    @property
    def mean(self) -> float:
        """Over the latest `EPISODES` episodes; 0 before the first one ends."""
        return sum(self._latest) / max(1, len(self._latest))

    @property
    def reached(self) -> bool:
        """Whether the score is there: fewer than `EPISODES` episodes do not count."""
        return len(self._latest) == EPISODES and self.mean >= self._options.target

    @property
    def done(self) -> bool:
        """Whether the target is reached or the steps are used up."""
        return self.reached or self.steps >= self._options.steps


def sayer() -> Callable[[str], None]:
    """Return what prints a line: in colours, where rich is installed."""
    with contextlib.suppress(ImportError):
        from rich.console import Console

        return functools.partial(Console().print, soft_wrap=True)
    return print


def evaluate(policy: Callable[[], Callable[[Array], int]], seed: int) -> list[float]:
    """Play whole episodes, apart from all training; `policy()` is what acts in one of them."""
    game = Game(seed)
    returns = []
    for _ in range(EVALUATION_EPISODES):
        act, total, over = policy(), 0.0, False
        while not over:
            reward, _, _, over = game.step(act(game.obs))
            total += reward
        returns.append(total)
    game.close()
    return returns


def run(train: Callable[[Options], Outcome], summary: str, steps: int, target: float) -> int:
    """Run an example from the command line; the exit status says whether it reached its target."""
    parser = argparse.ArgumentParser(
        description=f"{summary} Exits with 1 when the mean return of the last {EPISODES} training "
        "episodes does not reach the target.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the networks and the games")
    parser.add_argument("--steps", type=int, default=steps, help="to play at most")
    parser.add_argument("--target", type=float, default=target, help="mean return to stop at")
    parser.add_argument(
        "--quick", action="store_true", help=f"be content with a mean return of {QUICK_TARGET:g}"
    )
    found = parser.parse_args()
    target = QUICK_TARGET if found.quick else found.target
    outcome = train(Options(found.steps, target, found.seed))
    scores, table = outcome.scores, outcome.table
    say = sayer()
    say(
        f"{'Reached' if outcome.reached else 'Missed'} the target of {target:g}: a mean return "
        f"of {scores.mean:.1f} after {scores.steps:,d} steps and {scores.seconds:.1f} s."
    )
    inserts, samples = table.inserts, table.samples
    say(
        f"The table {table.name!r} took {inserts:,d} items and gave {samples:,d}, "
        f"{samples / max(1, inserts):.2f} for each, in {outcome.updates:,d} batches."
    )
    say(
        f"Greedy evaluation, {len(outcome.evaluation)} episodes of its own: "
        f"mean return {np.mean(outcome.evaluation):.1f}."
    )
    return 0 if outcome.reached else 1
