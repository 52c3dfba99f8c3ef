"""Map the column names of several libraries, and compute missing next observations.

Names are those of Echoic, Minari, D4RL and others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["arrange", "wanted", "with_successors"]

_KNOWN = {
    "obs": ("obs", "observations", "observation"),
    "next_obs": ("next_obs", "next_observations", "next_observation"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminated": ("terminated", "terminations", "terminals"),
    "truncated": ("truncated", "truncations", "timeouts"),
}


def wanted(
    there: Sequence[str], names: Mapping[str, str] | None, extras: Sequence[str], source: str
) -> dict[str, str]:
    """Return which of the available names are needed, and for which column.

    A name may stand for one array, or for a tree: arrays named after it, a slash and a part.
    """
    unknown = set(names or ()) - set(_KNOWN)
    if unknown:
        raise SpecError(f"names: expected some of {', '.join(_KNOWN)}, got {sorted(unknown)}")
    needed = {}
    for column, known in _KNOWN.items():
        candidates = (names[column],) if names and column in names else known
        found = [name for name in candidates if _below(there, name)]
        if found:
            needed[column] = found[0]
        elif column not in {"next_obs", "truncated"} or (names and column in names):
            expected = " or ".join(f"`{name}`" for name in candidates)
            raise SpecError(f"{source}: expected {expected}, got {_listed(there)}")
    for name in extras:
        if not _below(there, name):
            raise SpecError(f"{source}: expected the extra `{name}`, got {_listed(there)}")
        needed[name] = name
    return needed


def arrange(
    arrays: Mapping[str, Any],
    names: Mapping[str, str] | None,
    extras: Sequence[str],
    source: str,
) -> dict[str, Any]:
    """Return the arguments of a data set, given arrays by name."""
    needed = wanted(list(arrays), names, extras, source)
    columns = {column: _tree(arrays, name) for column, name in needed.items()}
    more = {name: columns.pop(name) for name in extras}
    rewards = len(columns["rewards"])
    columns.setdefault("truncated", np.zeros(rewards, np.bool_))
    columns.setdefault("next_obs", None)
    return {**columns, "extras": more} if more else columns


def _below(there: Sequence[str], name: str) -> list[str]:
    return [other for other in there if other == name or other.startswith(f"{name}/")]


def _listed(there: Sequence[str]) -> str:
    listed = ", ".join(f"`{name[:40]}`" for name in there[:12]) or "nothing"
    return listed if len(there) <= 12 else f"{listed} and {len(there) - 12} more"


def _tree(arrays: Mapping[str, Any], name: str) -> Any:
    """Return the array of a name, or a dict of those below it."""
    if name in arrays:
        return arrays[name]
    tree: dict[str, Any] = {}
    for path in _below(list(arrays), name):
        *nodes, leaf = path[len(name) + 1 :].split("/")
        node = tree
        for part in nodes:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise SpecError(f"`{path}`: `{part}` is an array and has arrays below it")
        node[leaf] = arrays[path]
    return tree


def with_successors(columns: dict[str, Any]) -> dict[str, Any]:
    """Compute next observations, given one observation for each step.

    The next observation of a step is the following step's. After a terminated step it does not
    matter, so the step's own stands in. After any other end of an episode it is unknown: that step
    is dropped, and the one before it ends the episode.
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
    # The step before a dropped one ends the episode, if it belongs to the same episode.
    cut = np.zeros(steps, np.bool_)
    cut[:-1] = (truncated & ~terminated)[1:] & ~(terminated | truncated)[:-1]
    following = np.where(terminated, np.arange(steps), np.arange(steps) + 1)[kept]

    def keep(tree: Any) -> Any:
        return _trees.tree_map(lambda leaf: np.asarray(leaf)[kept], tree)

    arranged = {name: keep(tree) for name, tree in columns.items() if tree is not None}
    arranged["next_obs"] = _trees.tree_map(lambda leaf: np.asarray(leaf)[following], columns["obs"])
    arranged["truncated"] = (truncated | cut)[kept]
    return arranged
