"""Write a data set of Minari."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic._progress import each
from echoic.buffers._packages import package

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["write_minari"]

_PENDING_BYTES = 1 << 26


def write_minari(
    dataset_id: str, episodes: Iterable[dict[str, Any]], total: int, **about: Any
) -> Any:
    """Create the data set with this id and return it. ``about`` describes it, as Minari asks."""
    minari = package("minari", "writing a data set of Minari")
    buffers = package("minari.data_collector", "writing a data set of Minari")
    dataset: Any = None
    pending: list[Any] = []
    waiting = 0

    def flush(first: dict[str, Any]) -> None:
        nonlocal dataset
        if dataset is None:
            spaces = {
                f"{name}_space": _space(first[column])
                for name, column in (("observation", "obs"), ("action", "actions"))
                if about.get(f"{name}_space") is None and about.get("env") is None
            }
            # Minari would compress images with a loss.
            options = {**about, **spaces, "jpeg_encoding": False}
            dataset = minari.create_dataset_from_buffers(dataset_id, list(pending), **options)
        else:
            dataset.update_dataset_from_buffer(list(pending))
        pending.clear()

    for episode in each(episodes, total):
        pending.append(
            buffers.EpisodeBuffer(
                observations=episode["obs"],
                actions=episode["actions"],
                rewards=episode["rewards"],
                terminations=episode["terminated"],
                truncations=episode["truncated"],
            )
        )
        waiting += sum(leaf.nbytes for leaf in _trees.tree_leaves(episode))
        if waiting > _PENDING_BYTES:
            flush(episode)
            waiting = 0
    if pending:
        flush(episode)
    return dataset


def _space(tree: Any) -> Any:
    """Return a space that has any values of these dtypes and shapes."""
    from gymnasium import spaces

    if isinstance(tree, dict):
        return spaces.Dict({str(name): _space(values) for name, values in tree.items()})
    if isinstance(tree, tuple):
        return spaces.Tuple([_space(values) for values in tree])
    dtype = tree.dtype.type
    if tree.dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif tree.dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(low, high, tree.shape[1:], dtype)
