"""TransferQueue as a queue of groups, over its storage units in processes of Ray.

A group is put by one call, eight rows of tensors; some calls are under way at the same time, as its
client lets threads have it. Its sampler for GRPO gives whole groups, and its controller is asked
again and again, as its own loader does, but without a second's sleep in between. It bounds nothing
and knows no versions; the learner clears what it has used.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.peers.ray_queue import join_ray, start_ray
from benchmarks.rollouts.engine import PATIENCE, Host, Learner, Plan, Producer
from benchmarks.rollouts.groups import COLUMNS, FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.payload import Array

_PARTITION = "train"
_TASK = "learn"
_FIELDS = [*COLUMNS, *FIELDS]
# Groups that are put at the same time: more were not faster.
_AT_ONCE = 8
_PAUSE = 0.001


# Each wait for a batch is worth a warning to it; its processes have this from here.
os.environ["TQ_LOGGING_LEVEL"] = "ERROR"


class TransferQueue:
    """The peer."""

    name = "TransferQueue"

    def serve(self, plan: Plan) -> Host:
        """Start Ray, its controller, and two storage units, which is its default."""
        ray, address = start_ray()
        queue = _queue()
        settings = {
            "controller": {
                "sampler": queue.GRPOGroupNSampler(n_samples_per_prompt=plan.items),
                "polling_mode": True,
            }
        }
        create = importlib.import_module("omegaconf").OmegaConf.create
        queue.init(create(settings, flags={"allow_objects": True}))

        def close() -> None:
            queue.close()
            ray.shutdown()

        return Host(address, close)

    def produce(self, address: str, plan: Plan) -> Producer:
        """Join, with a client of its own."""
        return Sender(join_ray(address), plan)

    def learn(self, address: str, plan: Plan) -> Learner:
        """Join, with a client of its own."""
        return Taker(join_ray(address), plan)


class Sender:
    """A producer."""

    def __init__(self, ray: Any, plan: Plan) -> None:
        """Make the client."""
        self._ray, self._items = ray, plan.items
        self._client = _client()
        self._torch = importlib.import_module("torch")
        self._dict = importlib.import_module("tensordict").TensorDict
        self._threads = ThreadPoolExecutor(_AT_ONCE)
        self._ahead: deque[Future[Any]] = deque()

    def put(self, columns: Mapping[str, Array], rewards: Array) -> None:
        """Put the rows of the group in one call."""
        tensor = self._torch.from_numpy
        data = {name: tensor(column) for name, column in columns.items()}
        data["reward"] = tensor(rewards)[:, None]
        rows = self._dict(data, batch_size=self._items)
        self._ahead.append(
            self._threads.submit(self._client.put, data=rows, partition_id=_PARTITION)
        )
        if len(self._ahead) > _AT_ONCE:
            self._ahead.popleft().result()

    def flush(self) -> None:
        """Wait until all are put."""
        while self._ahead:
            self._ahead.popleft().result()

    def close(self) -> None:
        """Leave."""
        self._threads.shutdown()
        # That of its module would end the controller too.
        self._client.close()
        self._ray.shutdown()


class Taker:
    """The learner."""

    def __init__(self, ray: Any, plan: Plan) -> None:
        """Make the client."""
        self._ray, self._rows = ray, plan.batch_groups * plan.items
        self._client = _client()
        self._meta: Any = None

    def take(self) -> Mapping[str, Array]:
        """Ask until there is a batch, and get its rows."""
        end = time.monotonic() + PATIENCE
        while True:
            self._meta = self._client.get_meta(
                data_fields=_FIELDS,
                batch_size=self._rows,
                partition_id=_PARTITION,
                task_name=_TASK,
            )
            if self._meta.size:
                break
            if time.monotonic() > end:
                raise TimeoutError(f"no batch within {PATIENCE:.0f} s")
            time.sleep(_PAUSE)
        data = self._client.get_data(self._meta)
        return {name: _items(data[name]) for name in _FIELDS}

    def done(self) -> None:
        """Clear the rows."""
        self._client.clear_samples(self._meta)

    def close(self) -> None:
        """Leave."""
        self._client.close()
        self._ray.shutdown()


def _items(tensor: Any) -> Array:
    """Return the items of a column, one after the other, without a copy.

    It packs whatever has an axis as a nested tensor, of which torch makes no numpy array.
    """
    items: Array = (tensor.values() if tensor.is_nested else tensor).numpy()
    return items


def _queue() -> Any:
    """Import it, and keep it quiet."""
    queue = importlib.import_module("transfer_queue")
    logging.disable(logging.WARNING)
    return queue


def _client() -> Any:
    """Make a client of the controller that there is."""
    queue = _queue()
    queue.init()
    return queue.get_client()


ENGINE = TransferQueue()
