"""Iterate over the steps of items."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.reverb import _nest, replay_sample
from echoic.reverb._sampled_dataset import SampledDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TimestepDataset"]


class TimestepDataset(SampledDataset):
    """Iterate over the steps of items, in order; the end of an item is not marked.

    The arguments are those of :class:`TrajectoryDataset`, except that dtypes and shapes are those
    of one step. ``max_samples`` counts items.
    """

    def _elements(self) -> Iterator[replay_sample.ReplaySample]:
        for items in self._fetches(self._most):
            for at, numbers in enumerate(zip(*self._infos(items), strict=True)):
                info = replay_sample.SampleInfo(*numbers)
                leaves = items.leaves(at)
                lengths = {len(leaf) if leaf.ndim else None for leaf in leaves}
                if len(lengths) != 1 or None in lengths:
                    shapes = [leaf.shape for leaf in leaves]
                    raise ValueError(
                        "Can't split non timestep trajectory into timesteps: the columns of an "
                        f"item of table '{self._table}' have shapes {shapes}."
                    )
                self._fits(leaves, 1)
                for step in range(len(leaves[0])):
                    data = _nest.unflatten_as(self._data, [leaf[step] for leaf in leaves])
                    yield replay_sample.ReplaySample(info, data)
