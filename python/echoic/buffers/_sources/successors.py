"""Data sets that do not say what the last step of an episode led to."""

from __future__ import annotations

from typing import Any

import numpy as np

from echoic import _trees

__all__ = ["with_successors"]


def with_successors(columns: dict[str, Any]) -> dict[str, Any]:
    """Find the next observations, where each step has just one observation.

    The next observation is that of the next step. That of a step which was terminated does not
    matter, and is its own. Of a step that ends an episode in another way it is not known: the step
    is left out, and the one before it ends the episode.
    """
    if columns.get("next_obs") is not None:
        return columns
    terminated, truncated = (np.asarray(columns[name]) != 0 for name in ("terminated", "truncated"))
    rows = {len(leaf) for leaf in _trees.tree_leaves(columns["obs"]) if np.ndim(leaf) > 0}
    steps = len(terminated)
    if rows != {steps} or steps == 0 or terminated.shape != truncated.shape:
        return columns
    unknown = truncated & ~terminated
    unknown[-1] |= not terminated[-1]
    kept = np.flatnonzero(~unknown)
    # The step before one that is left out ends the episode, if it is of the same episode.
    cut = np.zeros(steps, np.bool_)
    cut[:-1] = (truncated & ~terminated)[1:] & ~(terminated | truncated)[:-1]
    following = np.where(terminated, np.arange(steps), np.arange(steps) + 1)[kept]

    def keep(tree: Any) -> Any:
        return _trees.tree_map(lambda leaf: np.asarray(leaf)[kept], tree)

    arranged = {name: keep(tree) for name, tree in columns.items() if tree is not None}
    arranged["next_obs"] = _trees.tree_map(lambda leaf: np.asarray(leaf)[following], columns["obs"])
    arranged["truncated"] = (truncated | cut)[kept]
    return arranged
