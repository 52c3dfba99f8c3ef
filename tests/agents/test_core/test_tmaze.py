"""A plan solves what needs a memory, does not lose what it remembers, and is what solves it.

Runs of `examples.tmaze` with the default weight of the divergence.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from examples import tmaze

SEEDS = (0, 1, 2)


@pytest.fixture(autouse=True)
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_nothing_at_the_junction_tells_the_cue() -> None:
    maze = tmaze.TMaze(200, seed=0)
    seen = [maze.reset()]
    actions = np.zeros(200, int)
    rewards = []
    done = False
    while not done:
        states, reward, done = maze.step(actions)
        seen.append(states)
        rewards.append(reward)
    assert len(rewards) == tmaze.CORRIDOR + 2
    assert (seen[0][:, :2].argmax(1) == maze.cue).all()
    for states in seen[1:]:
        assert (states == states[0]).all()
    assert not np.any(rewards[:-1])
    assert (rewards[-1] == (maze.cue == 0)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_solves_the_maze_and_none_does_not(seed: int) -> None:
    with_plan = tmaze.train(seed, iterations=40, until=0.95)
    assert with_plan.planner.config.kl_weight == 0.1
    assert tmaze.evaluate(with_plan, seed=100 + seed) >= 0.95
    # As many parameters, episodes and updates, but plans that are made of the current state alone.
    without = tmaze.train(seed, history=0, iterations=len(with_plan.success))
    assert tmaze.evaluate(without, seed=100 + seed, history=0) <= 0.60
    # Plans acted on, noise and all, still say what the cue was.
    assert tmaze.probe(with_plan, seed=200 + seed) >= 0.95


def test_a_run_repeats_itself() -> None:
    first, second = (tmaze.train(3, iterations=3) for _ in range(2))
    assert first.success == second.success
    assert first.metrics == second.metrics
