"""Iterate over whole items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.reverb import _nest
from echoic.reverb._dataset import stack
from echoic.reverb._sampled_dataset import SampledDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.reverb._engine.sampler import Items

__all__ = ["TrajectoryDataset"]


class TrajectoryDataset(SampledDataset):
    """Iterate over items of a table, each a :class:`ReplaySample`.

    It is a ``tf.data.Dataset`` where TensorFlow is installed, and else an iterable of numpy arrays.
    :meth:`batch` fetches whole batches, which is faster than items one by one.

    Args:
        server_address: As of :class:`Client`.
        table: The table's name.
        dtypes: A nest like the items, of dtypes.
        shapes: A nest like the items, of shapes, in which an axis may be ``None``.
        max_in_flight_samples_per_worker: How many items to fetch at once if they are taken one by
            one.
        num_workers_per_iterator: Unused: one fetch has as many items as are needed.
        max_samples_per_stream: Unused.
        rate_limiter_timeout_ms: The dataset ends if no item could be sampled for this long; -1
            means never.
        max_samples: How many items there are; -1 means no limit.

    Raises:
        ValueError: If there is not a shape for each dtype, or a number is out of range.

    Examples:
        >>> import numpy as np
        >>> import echoic.reverb as reverb
        >>> signature = {"obs": reverb.TensorSpec((2,), np.float32)}
        >>> table = reverb.Table.queue("q", max_size=10, signature=signature)
        >>> server = reverb.Server(tables=[table])
        >>> with server.localhost_client().trajectory_writer(2) as writer:
        ...     for step in range(4):
        ...         writer.append({"obs": np.float32(step)})
        ...         if step % 2:
        ...             writer.create_item("q", 1.0, {"obs": writer.history["obs"][-2:]})
        >>> dataset = reverb.TrajectoryDataset.from_table_signature(
        ...     f"localhost:{server.port}", "q", max_in_flight_samples_per_worker=2
        ... )
        >>> next(iter(dataset.batch(2))).data["obs"].tolist()
        [[0.0, 1.0], [2.0, 3.0]]
        >>> server.stop()
    """

    def _groups(self, items: Items) -> Iterator[list[np.ndarray[Any, Any]]]:
        columns = items.columns
        if columns is not None:
            self._fits(columns, 1)
            yield [*self._infos(items), *columns]
            return
        for at, leaves in enumerate(map(items.leaves, range(len(items)))):
            self._fits(leaves, 0)
            yield [
                *(numbers[at : at + 1] for numbers in self._infos(items)),
                *(leaf[None] for leaf in leaves),
            ]

    def _batches(self, batch_size: int, drop_remainder: bool) -> Iterator[Any]:
        for batch in self._whole(batch_size, drop_remainder):
            yield _nest.unflatten_as(self._spec, batch)

    def _flat_batches(self, batch_size: Any, drop_remainder: Any) -> Any:
        fixed = isinstance(batch_size, int) and isinstance(drop_remainder, bool)
        return self._flat(batch_size, drop_remainder) if fixed else None

    def _whole(self, count: int, drop_remainder: bool, poll: float | None = None) -> Iterator[Any]:
        parts: list[list[np.ndarray[Any, Any]]] = []
        missing = count
        for items in self._fetches(count, poll):
            if items is None:
                yield None
                continue
            columns = items.columns
            if columns is None:
                columns = stack([items.leaves(at) for at in range(len(items))])
            self._fits(columns, 1)
            parts.append([*self._infos(items), *columns])
            missing -= len(items)
            if missing == 0:
                yield _joined(parts)
                parts, missing = [], count
        if parts and not drop_remainder:
            yield _joined(parts)


def _joined(parts: list[list[np.ndarray[Any, Any]]]) -> list[np.ndarray[Any, Any]]:
    if len(parts) == 1:
        return parts[0]
    return [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
