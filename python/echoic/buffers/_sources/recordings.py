"""Read recordings of episodes: data sets of the Minari package, and HDF5 files.

HDF5 files are those of Minari's recorder, with a group for each episode, and of D4RL, flat.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic._progress import each
from echoic.buffers._sources.arrays import collect
from echoic.errors import SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["blocks_of", "read_hdf5", "read_minari"]

_FLAT_ROWS = 4096
# A group may contain itself.
_DEPTH = 16
# What is read of each episode.
_COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations")


def blocks_of(
    episodes: Iterable[tuple[str, dict[str, Any]]], extras: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield a block of rows for each episode, given as its name and columns.

    ``observations`` have one row more than there are steps. If neither flag is set at its last
    step, the episode was truncated there. ``extras`` are more columns, with a row for each step.
    """
    for name, columns in episodes:
        flags = [np.asarray(columns[key], np.bool_) for key in ("terminations", "truncations")]
        rewards = np.asarray(columns["rewards"])
        steps = len(rewards)
        if steps == 0:
            continue
        terminated, truncated = flags[0], flags[1].copy()
        for key, values in (("terminations", terminated), ("truncations", truncated)):
            if values.shape != (steps,):
                raise SpecError(f"{name}: `{key}`: expected {steps} rows, got {values.shape}")
        truncated[-1] |= not terminated[-1]
        ends = np.flatnonzero(terminated | truncated)
        starts = np.concatenate([[0], ends[:-1] + 1])
        # A flag before the end splits the episode: the next one begins with the observation that
        # the first one ended with.
        rows = np.concatenate([np.arange(a, b + 2) for a, b in zip(starts, ends, strict=True)])
        block = {"rewards": rewards, "terminations": terminated, "truncations": truncated}
        for key in ("observations", "actions", *extras):
            count = steps + (key == "observations")
            paths, leaves, _ = _trees.tree_flatten_with_path(columns[key])
            for path, leaf in zip(paths, leaves, strict=True):
                array = np.asarray(leaf)
                where = "/".join([key, *map(str, path)])
                if array.ndim == 0 or len(array) != count:
                    got = array.shape
                    raise SpecError(f"{name}: `{where}`: expected {count} rows, got shape {got}")
                block[where] = array[rows] if key == "observations" else array
        yield block


def read_minari(dataset: Any, cache_dir: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return the arrays of a data set, or of the local one with this name."""
    if isinstance(dataset, str):
        import minari

        dataset = minari.load_dataset(dataset)

    def episodes() -> Iterator[tuple[str, dict[str, Any]]]:
        total = getattr(dataset, "total_episodes", None)
        for number, episode in enumerate(each(dataset.iterate_episodes(), total)):
            yield f"episode {number}", {key: getattr(episode, key) for key in _COLUMNS}

    name = getattr(getattr(dataset, "spec", None), "dataset_id", type(dataset).__name__)
    source = f"Minari's {name} of {getattr(dataset, 'total_steps', '?')} steps"
    # Parts of a data set have its name, and often as many steps as each other.
    if (chosen := getattr(dataset, "episode_indices", None)) is not None:
        source += f", episodes {zlib.crc32(np.asarray(chosen, np.int64).tobytes()):08x}"
    return collect(lambda: blocks_of(episodes()), cache_dir, source)


def read_hdf5(path: Path, cache_dir: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return the arrays of a recording."""
    if path.is_dir():
        places = [path / "data" / "main_data.hdf5", path / "main_data.hdf5"]
        found = [place for place in places if place.exists()]
        if not found:
            raise SpecError(f"{path}: expected a file main_data.hdf5 in it, or in its data folder")
        path = found[0]
    import h5py

    size = path.stat()
    source = f"{path.name} of {size.st_size} bytes, changed at {size.st_mtime_ns}"
    try:
        with h5py.File(path, "r") as file:
            names = [name for name in file if name.startswith("episode_")]
            if names:
                names.sort(key=_number)
                return collect(lambda: blocks_of(_episodes(file, names)), cache_dir, source)
            return collect(lambda: _flat(file), cache_dir, source)
    except OSError as error:
        raise SpecError(f"{path}: expected an intact HDF5 file: {error}") from error


def _number(name: str) -> int:
    number = name.removeprefix("episode_")
    if not number.isdecimal():
        raise SpecError(f"`{name[:40]}`: expected a number behind `episode_`")
    return int(number)


def _episodes(file: Any, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in each(names, len(names)):
        yield name, {key: _read(file, f"{name}/{key}") for key in _COLUMNS}


def _flat(file: Any) -> Iterator[dict[str, Any]]:
    """Yield the arrays at the top, in blocks of rows; others, as D4RL's ``infos``, are skipped."""
    arrays = {name: _array(file, name) for name in file if _is_array(file, name)}
    arrays = {name: array for name, array in arrays.items() if array.ndim > 0}
    counts = {name: len(array) for name, array in arrays.items()}
    rows = max(counts.values(), default=0)
    if not arrays or set(counts.values()) != {rows}:
        raise SpecError(f"expected arrays with as many rows each, got {counts}")
    for first in each(range(0, rows, _FLAT_ROWS), -(-rows // _FLAT_ROWS)):
        yield {name: array[first : first + _FLAT_ROWS] for name, array in arrays.items()}


def _is_array(file: Any, name: str) -> bool:
    import h5py

    return _kind(file, name) is h5py.Dataset


def _kind(file: Any, path: str) -> Any:
    """Return the class of what a path names, ``None`` if nothing. Links are not followed."""
    import h5py

    parts = path.split("/")
    if len(parts) > _DEPTH:
        raise SpecError(
            f"`{'/'.join(parts[:4])}/…`: expected at most {_DEPTH} groups in each other"
        )
    for end in range(1, len(parts) + 1):
        part = "/".join(parts[:end])
        link = file.get(part, getlink=True)
        if link is not None and not isinstance(link, h5py.HardLink):
            raise SpecError(f"`{part}`: a link to another file or place is not followed")
    return file.get(path, getclass=True)


def _read(file: Any, path: str) -> Any:
    """Read an array, or the arrays of a group as a dict."""
    import h5py

    if _kind(file, path) is h5py.Group:
        return {name: _read(file, f"{path}/{name}") for name in file[path]}
    return _array(file, path)[()]


def _array(file: Any, path: str) -> Any:
    """Return an array after checking that it is in this file."""
    import h5py

    if _kind(file, path) is None:
        raise SpecError(f"`{path}`: expected an array, but the file has none of this name")
    array = file[path]
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise SpecError(f"`{path}`: expected an array in this file")
    if array.dtype.hasobject:
        raise SpecError(f"`{path}`: expected numbers, got {array.dtype}")
    return array
