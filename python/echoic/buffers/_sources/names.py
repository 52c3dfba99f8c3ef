"""Map the column names of several libraries, and compute missing next observations.

Names are those of Echoic, Minari, D4RL and others.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["arrange", "wanted", "with_last", "with_successors"]

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
        if leaf in node:
            raise SpecError(f"`{path}`: `{leaf}` is an array and has arrays below it")
        node[leaf] = arrays[path]
    return tree


def with_last(
    blocks: Iterable[Mapping[str, Any]], needed: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Arrange blocks of rows with one observation for each step, as :func:`with_successors` does.

    One block is held back, since the first row of the next one decides about its last. Nothing is
    changed if there are next observations.
    """
    if "next_obs" in needed:
        yield from map(dict, blocks)
        return
    obs, flags = needed["obs"], [needed.get(name) for name in ("terminated", "truncated")]
    starts = True
    held: tuple[Mapping[str, Any], Any, Any] | None = None
    rows = (block for block in blocks if all(map(len, block.values())))
    for block in itertools.chain(rows, [None]):
        first = None
        if block is not None:
            terminated, truncated = (_flags(block, name, needed) for name in flags)
            first = bool(truncated[0] and not terminated[0])
        if held is not None:
            before, *ends = held
            copies, kept, cut = _successors(*ends, starts=starts, cut=first)
            yield {
                name: _rows(values, copies if _below([name], obs) else kept)
                for name, values in before.items()
                if name != flags[1]
            } | ({} if flags[1] is None else {flags[1]: cut})
            starts = bool(ends[0][-1] or ends[1][-1])
        if block is not None:
            held = (block, terminated, truncated)


def with_successors(columns: dict[str, Any]) -> dict[str, Any]:
    """Leave out steps whose next observation is unknown, given one observation for each step.

    The next observation of a step is the following step's. After a terminated step it does not
    matter, so the step's own stands in. After any other end of an episode it is unknown: that step
    is dropped, and the one before it ends the episode. So there is one observation more than steps
    for each episode.
    """
    if columns.get("next_obs") is not None:
        return columns
    terminated, truncated = (np.asarray(columns[name]) != 0 for name in ("terminated", "truncated"))
    rows = {len(leaf) for leaf in _trees.tree_leaves(columns["obs"]) if np.ndim(leaf) > 0}
    steps = len(terminated)
    if rows != {steps} or steps == 0 or terminated.shape != truncated.shape:
        return columns
    copies, kept, cut = _successors(terminated, truncated, starts=True, cut=None)

    def take(name: str, tree: Any) -> Any:
        rows = copies if name == "obs" else kept
        return _trees.tree_map(lambda leaf: _rows(leaf, rows), tree)

    arranged = {name: take(name, tree) for name, tree in columns.items() if tree is not None}
    return {**arranged, "next_obs": None, "truncated": cut}


def _successors(
    terminated: np.ndarray[Any, Any],
    truncated: np.ndarray[Any, Any],
    *,
    starts: bool,
    cut: bool | None,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the rows of observations and of steps to take, and which steps are truncated.

    Args:
        terminated: Of each row.
        truncated: Of each row.
        starts: Whether the first row starts an episode.
        cut: Whether the row behind the last is truncated and not terminated; ``None`` if there is
            none.
    """
    ends = terminated | truncated
    unknown = truncated & ~terminated
    following = np.append(unknown[1:], bool(cut))
    if cut is None:
        unknown[-1] |= not terminated[-1]
    # A dropped row's observation is the last of its episode, if the episode has other steps.
    alone = unknown & np.append(starts, ends[:-1])
    rows = np.repeat(np.arange(len(ends)), 1 + terminated.astype(np.int64) - alone)
    kept = np.flatnonzero(~unknown)
    return rows, kept, (truncated | (following & ~ends))[kept]


def _rows(values: Any, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return these rows, without a copy if they are all, in order."""
    array: np.ndarray[Any, Any] = np.asanyarray(values)
    all_rows = len(rows) == len(array) and (rows == np.arange(len(rows))).all()
    return array if all_rows else array[rows]


def _flags(
    block: Mapping[str, Any], name: str | None, needed: Mapping[str, str]
) -> np.ndarray[Any, Any]:
    """Return a flag of each row of a block."""
    steps = len(block[needed["rewards"]])
    if name is None:
        return np.zeros(steps, np.bool_)
    values = np.asarray(block[name])
    if values.size != steps:
        text = f"expected one number for each step, got shape {values.shape}"
        raise SpecError(f"`{name}`: {text}")
    flags: np.ndarray[Any, Any] = values.reshape(-1) != 0
    return flags
