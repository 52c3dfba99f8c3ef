"""The sessions of collectors and environments, whose every step is compared with the equations."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.content import ContentError
from benchmarks.local import cartpole
from benchmarks.local.calls import GAMMA, LAMBDA
from benchmarks.timing import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.local.engine import Engine
    from benchmarks.payload import Array, Tree
    from benchmarks.timing import Measure

_FIRST_RATE = 10.0
# More rollouts than any collector has ready while nobody takes them.
_READY = 5
# Environments step in float32 or float64, observations are float32.
_TOLERANCE = 1e-4


@contextlib.contextmanager
def rollouts(
    engine: Engine, *, envs: int, steps: int, hidden: int, seconds: float
) -> Iterator[Measure]:
    """Take rollouts of a collector: steps per second."""
    shape = (steps, envs)
    rate = _FIRST_RATE
    with contextlib.closing(engine.collector(envs=envs, steps=steps, hidden=hidden)) as collector:
        recv = collector.recv

        def measure() -> Measurement:
            nonlocal rate
            # Those were made while something else was measured.
            for _ in range(_READY):
                recv()
            count = max(1, round(rate * seconds))
            start = time.perf_counter_ns()
            for _ in itertools.repeat(None, count):
                batch = recv()
            rate = count / (time.perf_counter_ns() - start) * 1e9
            _check(collector.columns(batch), shape)
            return Measurement(rate * steps * envs)

        yield measure


@contextlib.contextmanager
def steps(engine: Engine, *, envs: int, seconds: float) -> Iterator[Measure]:
    """Step environments with actions that were drawn ahead: steps per second."""
    generator = np.random.default_rng(20)
    actions = itertools.cycle(generator.integers(0, 2, (997, envs)))
    rate = _FIRST_RATE
    with contextlib.closing(engine.environments(envs)) as environments:
        obs = environments.reset()
        step = environments.step

        def measure() -> Measurement:
            nonlocal rate, obs
            count = max(1, round(rate * seconds))
            start = time.perf_counter_ns()
            for action in itertools.islice(actions, count):
                result = step(action)
            rate = count / (time.perf_counter_ns() - start) * 1e9
            obs, _ = environments.outcome(result)
            ended = 0
            for action in itertools.islice(actions, 100):
                before = obs
                obs, over = environments.outcome(step(action))
                _check_steps(before, action, obs, over)
                ended += int(over.sum())
            # Random actions hold a pole for about 22 steps.
            if not envs < ended < 10 * envs:
                raise ContentError(f"{ended} episodes of {envs} poles ended in 100 steps")
            return Measurement(rate * envs)

        yield measure


def _check(columns: Tree, shape: tuple[int, int]) -> None:
    """Check a rollout: dynamics, probabilities and advantages."""
    obs, actions, dones = (columns[name] for name in ("observations", "actions", "dones"))
    if obs.shape != (*shape, 4):
        raise ContentError(f"observations: expected {(*shape, 4)}, got {obs.shape}")
    for name in ("actions", "rewards", "dones", "log_probs", "values", "advantages", "returns"):
        if columns[name].shape != shape:
            raise ContentError(f"{name}: expected {shape}, got {columns[name].shape}")
    for t in range(shape[0] - 1):
        _check_steps(obs[t], actions[t], obs[t + 1], dones[t].astype(bool))
    if not 0 < actions.mean() < 1 or not (columns["log_probs"] <= 0).all():
        raise ContentError("probabilities above 1, or no choice of actions")
    values, advantages = columns["values"].astype(np.float64), columns["advantages"]
    following = (1 - dones[:-1]) * (values[1:] + LAMBDA * advantages[1:])
    due = columns["rewards"][:-1] - values[:-1] + GAMMA * following
    _near("advantages", advantages[:-1], due)
    _near("returns", columns["returns"], advantages + values)


def _check_steps(before: Array, action: Array, after: Array, over: Array) -> None:
    due = cartpole.advance(before.astype(np.float64), action)
    goes_on = ~over
    _near("observations", after[goes_on], due[goes_on])
    if np.abs(after[over]).max(initial=0) > 0.05 + _TOLERANCE:
        raise ContentError("an episode that does not begin where it should")


def _near(name: str, got: Array, due: Array) -> None:
    worst = np.abs(got - due).max(initial=0) / max(1.0, np.abs(due).max(initial=0))
    if not worst <= _TOLERANCE:
        raise ContentError(f"{name}: off by {worst:.3g}")
