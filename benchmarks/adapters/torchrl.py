"""torchrl's replay buffer of TensorDicts, with transitions of eight leaves.

The bare calls have TensorDicts on one side too, made in the cheapest way that torch has: a view of
each array, and no check. One case is that alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torchrl.data
from echoic import PrioritizedReplayBuffer, ReplayBuffer
from echoic.integrations.torchrl import TensorDictReplayBuffer
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from benchmarks.adapters import Case

if TYPE_CHECKING:
    from collections.abc import Callable

CAPACITY = 100_000
ADDED = 64
DRAWN = 256


def cases() -> list[Case]:
    """Return the calls to be timed."""
    # It reports every storage that it makes.
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    data = _transitions(ADDED)
    arrays = _arrays(data)
    example = _arrays(data[0])
    bare = ReplayBuffer(example, CAPACITY)
    ours = TensorDictReplayBuffer(CAPACITY, batch_size=DRAWN)
    own = torchrl.data.TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=DRAWN)
    owns_data = data.clone()
    by_priority = PrioritizedReplayBuffer(example, CAPACITY, alpha=0.6)
    ours_by_priority = TensorDictReplayBuffer(CAPACITY, alpha=0.6, beta=0.4, batch_size=DRAWN)
    own_by_priority = torchrl.data.TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(CAPACITY), batch_size=DRAWN
    )
    for _ in range(10_000 // ADDED):
        bare.extend(arrays)
        ours.extend(data)
        own.extend(owns_data)
        by_priority.extend(arrays)
        ours_by_priority.extend(data)
        own_by_priority.extend(owns_data)
    batch = bare.sample(DRAWN).data
    sides: list[tuple[str, list[Callable[[], Any]]]] = [
        (
            f"extend({ADDED}), from arrays",
            [lambda: bare.extend(arrays), lambda: ours.extend(data), lambda: own.extend(owns_data)],
        ),
        (
            f"extend({ADDED}), from tensors",
            [
                lambda: bare.extend(_arrays(data)),
                lambda: ours.extend(data),
                lambda: own.extend(owns_data),
            ],
        ),
        (
            f"sample({DRAWN}), arrays",
            [lambda: bare.sample(DRAWN), ours.sample, own.sample],
        ),
        (
            f"sample({DRAWN}), tensors",
            [lambda: _tensordict(bare.sample(DRAWN).data, DRAWN), ours.sample, own.sample],
        ),
        (
            "a TensorDict of a batch alone",
            [lambda: _tensordict(batch, DRAWN)] * 2 + [lambda: TensorDict(batch, [DRAWN])],
        ),
        (
            f"prioritized({DRAWN}), tensors",
            [
                lambda: _weighted(by_priority.sample(DRAWN, beta=0.4)),
                ours_by_priority.sample,
                own_by_priority.sample,
            ],
        ),
    ]
    return [Case(name, *calls) for name, calls in sides]


def _transitions(n: int) -> TensorDict:
    """Return transitions of CartPole, as a collector has them."""
    flags = torch.zeros(n, 1, dtype=torch.bool)
    ends = {"done": flags, "terminated": flags.clone(), "truncated": flags.clone()}
    after = {"observation": torch.randn(n, 4), "reward": torch.ones(n, 1), **ends}
    before = {"observation": torch.randn(n, 4), "action": torch.zeros(n, dtype=torch.int64)}
    return TensorDict({**before, "done": flags.clone(), "next": after}, [n])


def _arrays(tree: Any) -> dict[str, Any]:
    return {
        key: value.numpy() if isinstance(value, torch.Tensor) else _arrays(value)
        for key, value in tree.items()
    }


def _weighted(batch: Any) -> TensorDict:
    more = {"index": batch.keys, "priority_weight": batch.weights}
    return _tensordict({**batch.data, **more}, len(batch))


def _tensordict(tree: dict[str, Any], n: int) -> TensorDict:
    def tensors(tree: dict[str, Any]) -> dict[str, Any]:
        return {
            key: torch.from_numpy(value) if isinstance(value, np.ndarray) else tensors(value)
            for key, value in tree.items()
        }

    return TensorDict._new_unsafe(tensors(tree), torch.Size([n]))
