"""A plan solves what needs a memory, does not lose what it remembers, and is what solves it.

Runs of `examples.tmaze` with the default weight of the divergence.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from examples import tmaze

# Others solve it too, but take longer; `experiments` has more of them.
SEEDS = (4,)


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


@pytest.fixture(scope="module", params=SEEDS)
def solved(request: pytest.FixtureRequest) -> tuple[int, tmaze.Run]:
    """A seed, and a run that stopped when it had solved the maze, or after 60 iterations."""
    torch.set_num_threads(1)
    return request.param, tmaze.train(request.param, iterations=60, until=0.95)


def test_a_plan_solves_the_maze(solved: tuple[int, tmaze.Run]) -> None:
    seed, run = solved
    assert run.planner.config.kl_weight == 0.1
    assert tmaze.evaluate(run, seed=100 + seed) >= 0.95


def test_a_plan_that_was_acted_on_says_what_the_cue_was(solved: tuple[int, tmaze.Run]) -> None:
    seed, run = solved
    assert tmaze.probe(run, seed=200 + seed) >= 0.95


# Another whole training: that the junction tells nothing of the cue is tested above.
@pytest.mark.nightly
def test_no_memory_solves_nothing(solved: tuple[int, tmaze.Run]) -> None:
    seed, run = solved
    # As many parameters, episodes and updates, but plans that are made of the current state alone.
    without = tmaze.train(seed, history=0, iterations=len(run.success))
    assert tmaze.evaluate(without, seed=100 + seed, history=0) <= 0.60


def test_a_run_repeats_itself() -> None:
    first, second = (tmaze.train(3, iterations=2) for _ in range(2))
    assert first.success == second.success
    assert first.metrics == second.metrics
