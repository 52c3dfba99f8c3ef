"""Draw batches for the ranks of a training, started by Ray Train or otherwise.

No rank needs to know of another, nor its own number: each is a client, and the tables keep their
shares disjoint.

- In a queue, and in any table with ``max_times_sampled=1``, an item is given to one rank and to no
  other. The rank that asks first gets it: shares are disjoint, and as large as what each rank
  takes.
- From other tables each rank draws independently: an item may be in the batches of two ranks, as it
  may be twice in one batch. All batches together are one larger batch of the same distribution, and
  importance weights hold for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic import _trees
from echoic.errors import ArgumentError, ClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.batches import BatchInfo

__all__ = ["TorchBatch", "torch_batches"]


@dataclass(frozen=True)
class TorchBatch:
    """Items as tensors.

    Attributes:
        data: The items, a tree of tensors with an axis of items, in memory of their own.
        keys: Keys of the items.
        weights: Importance weights.
        info: The else items' metadata: priorities, probabilities and so on.
    """

    data: Any
    keys: np.ndarray[Any, np.dtype[np.uint64]]
    weights: np.ndarray[Any, np.dtype[np.float64]]
    info: BatchInfo

    def __getitem__(self, key: Any) -> Any:
        """Return what the data has under a key."""
        return self.data[key]


def torch_batches(
    client: Any,
    table: str,
    batch_size: int,
    *,
    batches: int | None = None,
    device: Any = None,
    beta: float = 1.0,
    timeout: float | None = None,
) -> Iterator[TorchBatch]:
    """Return batches for this rank, as tensors; for the function that a trainer of Ray Train runs.

    Args:
        client: A cluster's client, which is sent to the rank as its name.
        table: The name of the table.
        batch_size: How many items a batch of this rank has.
        batches: How many batches there are. Ranks that wait for each other in each step need the
            same number. ``None`` continues until the table is closed.
        device: Where tensors go; Ray's ``ray.train.torch.get_device()`` is the rank's own.
        beta: The exponent of importance weights; 1 corrects for the priorities fully.
        timeout: Seconds to wait for a batch; ``None`` waits for ever.

    Raises:
        WaitTimeoutError: If a batch was not there in time.

    Examples:
        In a cluster of Ray Train::

            def learn(settings):
                client = settings["client"]
                device = ray.train.torch.get_device()
                for batch in torch_batches(client, "replay", 256, batches=1000, device=device):
                    step(batch.data)

            TorchTrainer(learn, train_loop_config={"client": cluster.client()}, ...).fit()
    """
    for name, count in (("batch_size", batch_size), ("batches", batches)):
        if count is not None and count < 1:
            raise ArgumentError(f"{name} must be at least 1, got {count}")
    return _drawn(client, table, batch_size, batches, device, beta, timeout)


def _drawn(
    client: Any,
    table: str,
    batch_size: int,
    batches: int | None,
    device: Any,
    beta: float,
    timeout: float | None,
) -> Iterator[TorchBatch]:
    made = 0
    while batches is None or made < batches:
        try:
            batch = client.table(table).sample(batch_size, timeout=timeout, beta=beta)
        except ClosedError:
            if batches is not None:
                raise
            return
        # Copied, since torch does not support read-only arrays.
        data = _trees.tree_map(
            lambda leaf: torch.from_numpy(np.array(leaf, order="C")).to(device), batch.data
        )
        made += 1
        yield TorchBatch(data, batch.keys, batch.weights, batch.info)
