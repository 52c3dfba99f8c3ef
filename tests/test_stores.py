"""One learner runs on every store: only the line that makes the store differs."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STATES = 5
DISCOUNT = 0.9
EXAMPLE = {
    "obs": np.int64(0),
    "action": np.int64(0),
    "reward": np.float64(0),
    "next_obs": np.int64(0),
    "terminated": np.bool_(False),
}
# What moving right is worth: the reward is one, at the end of the chain.
VALUES = DISCOUNT ** np.arange(STATES - 2, -1, -1)


def learn(store: Any, steps: int = 600) -> np.ndarray:
    """Learn the values of a chain of states, whose right end ends an episode with a reward."""
    rng = np.random.default_rng(0)
    values = np.zeros((STATES, 2))
    state = 0
    for step in range(steps):
        action = int(rng.integers(2))
        after = min(state + 1, STATES - 1) if action else max(state - 1, 0)
        end = after == STATES - 1
        store.add(
            {
                "obs": np.int64(state),
                "action": np.int64(action),
                "reward": np.float64(end),
                "next_obs": np.int64(after),
                "terminated": np.bool_(end),
            }
        )
        state = 0 if end else after
        if step < 32:
            continue
        batch = store.sample(64, beta=0.5)
        best = values[batch["next_obs"]].max(axis=1)
        target = batch["reward"] + DISCOUNT * best * ~batch["terminated"]
        error = target - values[batch["obs"], batch["action"]]
        np.add.at(values, (batch["obs"], batch["action"]), 0.1 * batch.weights * error)
        store.update_priorities(batch.keys, np.abs(error) + 0.01)
    return values


def make_table() -> echoic.Table:
    return echoic.Table(
        "replay", EXAMPLE, capacity=1000, sampler=echoic.selectors.Prioritized(0.6), seed=1
    )


@contextlib.contextmanager
def served(*addresses: str) -> Iterator[Any]:
    """Give a table that is served at each address, as one, and what flushes it."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(echoic.Server(make_table(), listen=one)) for one in addresses
        ]
        where: Any = [server.address for server in servers]
        client = stack.enter_context(echoic.connect(where if len(where) > 1 else where[0]))
        yield client.table("replay"), client.flush


def local(store: Any) -> Any:
    """Give a store of this process, which has nothing to flush."""
    return contextlib.nullcontext((store, lambda: None))


STORES: dict[str, Callable[[], Any]] = {
    "buffer": lambda: local(echoic.PrioritizedReplayBuffer(EXAMPLE, 1000, alpha=0.6, seed=1)),
    "table": lambda: local(make_table()),
    "tcp": lambda: served("tcp://127.0.0.1:0"),
    "shm": lambda: served(f"shm://stores-{os.getpid()}"),
    "shards": lambda: served("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
}


@pytest.mark.parametrize("place", STORES)
def test_the_same_learner_learns_the_same(place: str) -> None:
    with STORES[place]() as (store, flush):
        values = learn(store)
        flush()
        assert len(store) == 600
        store.clear()
        assert len(store) == 0
    np.testing.assert_allclose(values[:-1, 1], VALUES, atol=0.05)
    assert (values[:-1, 1] > values[:-1, 0]).all()
