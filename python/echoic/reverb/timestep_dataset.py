"""Iterate over the steps of items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic.reverb.trajectory_dataset import SampledDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from echoic.reverb._engine.sampler import Items

__all__ = ["TimestepDataset"]


class TimestepDataset(SampledDataset):
    """Iterate over the steps of items, in order; the end of an item is not marked.

    The arguments are those of :class:`TrajectoryDataset`, except that dtypes and shapes are those
    of one step. ``max_samples`` counts items.
    """

    def _groups(self, items: Items) -> Iterator[list[np.ndarray[Any, Any]]]:
        columns = items.columns
        parts = [items.leaves(at) for at in range(len(items))] if columns is None else [columns]
        axes = 0 if columns is None else 1
        at = 0
        for leaves in parts:
            count = len(leaves[0]) if axes else 1
            lengths = {leaf.shape[axes] if leaf.ndim > axes else None for leaf in leaves}
            if len(lengths) != 1 or None in lengths:
                shapes = [leaf.shape[axes:] for leaf in leaves]
                raise ValueError(
                    "Can't split non timestep trajectory into timesteps: the columns of an "
                    f"item of table '{self._table}' have shapes {shapes}."
                )
            self._fits(leaves, axes + 1)
            (length,) = lengths
            infos = (numbers[at : at + count].repeat(length) for numbers in self._infos(items))
            yield [*infos, *(leaf.reshape(-1, *leaf.shape[axes + 1 :]) for leaf in leaves)]
            at += count
