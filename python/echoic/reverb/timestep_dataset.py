"""Iterate over the steps of items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic.reverb.trajectory_dataset import SampledDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["TimestepDataset"]


class TimestepDataset(SampledDataset):
    """Iterate over the steps of items, in order; the end of an item is not marked.

    The arguments are those of :class:`TrajectoryDataset`, except that dtypes and shapes are those
    of one step. ``max_samples`` counts items.
    """

    def _group(
        self, infos: Sequence[np.ndarray[Any, Any]], leaves: Sequence[np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        lengths = {leaf.shape[1:2] for leaf in leaves}
        if len(lengths) != 1 or () in lengths:
            raise ValueError(
                "Can't split non timestep trajectory into timesteps: the columns of an item of "
                f"table '{self._table}' have shapes {[leaf.shape[1:] for leaf in leaves]}."
            )
        self._fits(leaves, 2)
        ((length,),) = lengths
        steps = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves)
        return [*(numbers.repeat(length) for numbers in infos), *steps]
