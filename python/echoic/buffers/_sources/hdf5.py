"""Read HDF5 files: of Minari's recorder, with a group for each episode, and of D4RL, flat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echoic._progress import each
from echoic.buffers._sources.episodes import blocks_of
from echoic.buffers._sources.folder import collect
from echoic.errors import SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["read_hdf5"]

_FLAT_ROWS = 4096


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
        keys = ("observations", "actions", "rewards", "terminations", "truncations")
        yield name, {key: _read(file, f"{name}/{key}") for key in keys}


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

    return file.get(name, getclass=True) is h5py.Dataset


def _read(file: Any, path: str) -> Any:
    """Read an array, or the arrays of a group as a dict."""
    import h5py

    if file.get(path, getclass=True) is h5py.Group:
        return {name: _read(file, f"{path}/{name}") for name in file[path]}
    return _array(file, path)[()]


def _array(file: Any, path: str) -> Any:
    """Return an array after checking that it is in this file: links are not followed."""
    import h5py

    if file.get(path) is None:
        raise SpecError(f"`{path}`: expected an array, but the file has none of this name")
    for end in range(1, path.count("/") + 2):
        part = "/".join(path.split("/")[:end])
        if isinstance(file.get(part, getlink=True), h5py.ExternalLink):
            raise SpecError(f"`{part}`: a link to another file is not followed")
    array = file[path]
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise SpecError(f"`{path}`: expected an array in this file")
    if array.dtype.hasobject:
        raise SpecError(f"`{path}`: expected numbers, got {array.dtype}")
    return array
