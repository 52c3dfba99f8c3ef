"""TorchRL as an engine of one process, which has buffers of TensorDicts."""

from __future__ import annotations

import importlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.local.engine import ALPHA, BETA, Engine, Plan
from benchmarks.local.items import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree


class TorchRl(Engine):
    """The peer."""

    name = "torchrl"

    def store(self, plan: Plan) -> Buffer:
        """Make a buffer of tensors in memory."""
        if plan.hot:
            raise self.missing(f"buffer of this kind: {plan}")
        return Buffer(plan)


class Buffer:
    """A replay buffer."""

    indices = "index"
    actions = "actions"

    def __init__(self, plan: Plan) -> None:
        """Make one; its storage is allocated with the first transition."""
        data = importlib.import_module("torchrl.data")
        # It tells of every buffer that it makes.
        logging.getLogger("torchrl").setLevel(logging.WARNING)
        self._torch = importlib.import_module("torch")
        self._tree = importlib.import_module("tensordict").TensorDict
        self._prioritized = plan.prioritized
        self._length = plan.length
        storage = data.LazyTensorStorage(plan.capacity)
        # Its buffers that add indices to the data take twice as long.
        if plan.prioritized:
            self._buffer = data.PrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage)
        elif plan.length > 1:
            sampler = data.SliceSampler(slice_len=plan.length, end_key="terminated")
            self._buffer = data.ReplayBuffer(storage=storage, sampler=sampler)
        else:
            self._buffer = data.ReplayBuffer(storage=storage)

    def push(self, *transition: Any) -> None:
        """Add one."""
        tensors = dict(zip(NAMES, map(self._torch.as_tensor, transition), strict=True))
        self._buffer.add(self._tree(tensors, []))

    def extend(self, columns: Tree) -> None:
        """Add many."""
        tensors = {name: self._torch.from_numpy(columns[name]) for name in NAMES}
        self._buffer.extend(self._tree(tensors, [len(columns["rewards"])]))

    def draws(self, size: int) -> Callable[[], Any]:
        """Draw by torch's generator."""
        if not self._prioritized:
            # It counts the steps of its slices.
            return partial(self._buffer.sample, size * self._length)
        sample = partial(self._buffer.sample, size, return_info=True)

        def draw() -> Tree:
            data, info = sample()
            return {**info, "data": data, "actions": data["actions"]}

        return draw

    def columns(self, drawn: Any) -> Tree:
        """Return what was drawn as arrays."""
        data = drawn["data"] if self._prioritized else drawn
        columns = {name: data[name].numpy() for name in NAMES}
        if self._prioritized:
            columns["weights"] = drawn["priority_weight"].numpy()
        return columns

    def update(self, indices: Any, priorities: Array) -> None:
        """Update in one call."""
        self._buffer.update_priority(
            indices, self._torch.as_tensor(priorities, dtype=self._torch.float32)
        )

    def __len__(self) -> int:
        """How many transitions are stored."""
        return len(self._buffer)

    def close(self) -> None:
        """Forget the buffer."""
        self._buffer = None


ENGINE = TorchRl()
