"""Read episodes of RLDS: of any iterable, or of a folder that TensorFlow Datasets wrote.

A step has ``observation``, ``action``, ``reward``, ``is_first``, ``is_last``, ``is_terminal``. The
last step of an episode has only an observation: its action and reward mean nothing. The episode is
terminated there if ``is_terminal`` is set, and truncated otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic._progress import each
from echoic.buffers._packages import package
from echoic.buffers._sources.arrays import collect
from echoic.buffers._sources.recordings import blocks_of
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["read_rlds"]

_STEPS = 4096


def read_rlds(
    source: Any, cache_dir: str | os.PathLike[str] | None, extras: Sequence[str]
) -> dict[str, Any]:
    """Return the arrays of the episodes."""
    name, folder = type(source).__name__, None
    if isinstance(source, (str, os.PathLike)):
        folder = Path(source)
        source, name = _builder(folder)

    def episodes() -> Iterator[tuple[str, dict[str, Any]]]:
        total = len(source) if hasattr(source, "__len__") else None
        try:
            for number, episode in enumerate(each(source, total)):
                yield f"episode {number}", _columns(episode, extras, f"episode {number}")
        except Exception as error:  # each kind of file and each decoder can fail in its own way
            if folder is None or isinstance(error, SpecError):
                raise
            raise SpecError(f"{folder}: expected intact records: {error}") from error

    source_of = f"RLDS episodes of {name}: {', '.join(extras)}"
    return collect(lambda: blocks_of(episodes(), extras), cache_dir, source_of)


def _builder(folder: Path) -> tuple[Iterable[Any], str]:
    """Return the episodes of a folder that TensorFlow Datasets wrote, and what they are."""
    if not (folder / "dataset_info.json").is_file():
        text = "expected a folder with a dataset_info.json, as TensorFlow Datasets writes"
        raise SpecError(f"{folder}: {text}; it is named after the version, such as 1.0.0")
    tfds = package("tensorflow_datasets", f"reading {folder}", "tensorflow-datasets")
    try:
        builder = tfds.builder_from_directory(folder)
        splits = list(builder.info.splits)
    except Exception as error:  # each part of a damaged folder can fail in its own way
        text = "expected what TensorFlow Datasets writes"
        raise SpecError(f"{folder}: {text}: {error}") from error
    if not splits:
        raise SpecError(f"{folder}: expected a split with episodes, got none")
    split = "train" if "train" in splits else splits[0]
    name = f"{builder.info.full_name}, {split}, {builder.info.splits[split].num_examples} episodes"
    try:
        # Random access needs no TensorFlow.
        return builder.as_data_source(split), name
    except NotImplementedError:
        pass
    files = f"reading {builder.info.file_format.value} files of {folder}"
    package("tensorflow", files, "'echoic[tensorflow]'")
    return builder.as_dataset(split), name


def _columns(episode: Any, extras: Sequence[str], name: str) -> dict[str, Any]:
    """Return the columns of an episode as those of a recording."""
    steps = episode.get("steps") if isinstance(episode, Mapping) else None
    if steps is None:
        got = sorted(episode) if isinstance(episode, Mapping) else type(episode).__name__
        raise SpecError(f"{name}: expected a dict with `steps`, got {got}")
    if not isinstance(steps, Mapping):
        steps = _stacked(steps, name)
    wanted = ("observation", "action", "reward", "is_terminal", *extras)
    missing = [key for key in ("observation", "action", *extras) if key not in steps]
    if steps and missing:
        raise SpecError(f"{name}: expected `{missing[0]}` in its steps, got {sorted(steps)}")
    if not steps:
        return {"rewards": (), "terminations": (), "truncations": ()}
    columns = {key: _numbers(steps[key], f"{name}: `{key}`") for key in wanted if key in steps}
    counts = {len(leaf) for leaf in _trees.tree_leaves(columns)}
    if len(counts) != 1:
        raise SpecError(f"{name}: expected as many rows of each, got {sorted(counts)}")
    (rows,) = counts
    last = max(rows - 1, 0)
    flags = np.zeros((2, last), np.bool_)
    if last:
        terminal = "is_terminal" in columns and bool(np.asarray(columns["is_terminal"])[-1])
        flags[0 if terminal else 1, -1] = True

    def cut(tree: Any) -> Any:
        return _trees.tree_map(lambda leaf: leaf[:last], tree)

    return {
        "observations": columns["observation"],
        "actions": cut(columns["action"]),
        "rewards": columns["reward"][:last] if "reward" in columns else np.zeros(last, np.float32),
        "terminations": flags[0],
        "truncations": flags[1],
        **{key: cut(columns[key]) for key in extras},
    }


def _stacked(steps: Any, name: str) -> dict[str, Any]:
    """Return steps that came one by one as a dict of arrays."""
    if hasattr(steps, "as_numpy_iterator"):
        # TensorFlow takes a millisecond for each step that it hands over.
        parts = list(steps.batch(_STEPS).as_numpy_iterator())
        return _trees.tree_map(lambda *leaves: np.concatenate(leaves), *parts) if parts else {}
    rows = list(steps)
    if not rows:
        return {}
    if not all(isinstance(row, Mapping) and row.keys() == rows[0].keys() for row in rows):
        raise SpecError(f"{name}: expected steps that are dicts with the same fields")
    try:
        stacked = _trees.tree_map(lambda *leaves: np.stack(leaves), *map(dict, rows))
    except ValueError as error:
        raise SpecError(f"{name}: expected steps of one form: {error}") from error
    return dict(stacked)


def _numbers(tree: Any, name: str) -> Any:
    """Return a tree of arrays without the leaves that are text."""
    if isinstance(tree, Mapping):
        items = {key: _numbers(value, name) for key, value in tree.items()}
        return {key: value for key, value in items.items() if value is not None}
    if isinstance(tree, (tuple, list)):
        return tuple(_numbers(value, name) for value in tree)
    array = np.asarray(tree)
    if array.dtype.kind in "OSU":
        return None
    if array.ndim == 0:
        raise SpecError(f"{name}: expected a row for each step, got a number")
    return array
