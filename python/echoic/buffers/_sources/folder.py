"""Concatenate blocks of rows: in memory, or in a folder of mapped arrays.

A folder is written under a temporary name and renamed when it is complete, so a folder that exists
is complete. Its ``data.json`` says which file has which array, and what they were made from.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from echoic.buffers._sources.npy import map_npy
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["collect", "read_folder"]

_INDEX = "data.json"
_HEADER = 256


def collect(
    blocks: Callable[[], Iterator[Mapping[str, Any]]],
    cache_dir: str | os.PathLike[str] | None,
    source: str,
) -> dict[str, Any]:
    """Concatenate blocks and return the arrays by name.

    With ``cache_dir`` they are written there, unless they already are, and mapped. ``source`` says
    what they are made from.
    """
    if cache_dir is None:
        return _in_memory(blocks())
    folder = Path(cache_dir)
    if not folder.exists():
        _write(folder, blocks(), source)
    index = _index(folder)
    if index["source"] != source:
        text = f"expected a folder made from {source}, got one made from {index['source']}"
        raise SpecError(f"{folder}: {text}; remove it or name another")
    return read_folder(folder)


def read_folder(folder: Path) -> dict[str, Any]:
    """Map the arrays of a folder, and return them by name; the folder need not be ours."""
    if (folder / _INDEX).exists():
        files = _index(folder)["arrays"]
        return {name: map_npy(folder / file) for name, file in files.items()}
    files = sorted(folder.rglob("*.npy"))
    named = {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
    return {name: map_npy(file) for name, file in named.items()}


def _index(folder: Path) -> dict[str, Any]:
    """Read the index of a folder and check that each file is in the folder itself."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        source, arrays = index["source"], index["arrays"]
        intact = isinstance(source, str) and all(
            isinstance(file, str) and file == f"{number}.npy"
            for number, file in enumerate(arrays.values())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{folder}: expected a folder of arrays with a {_INDEX}") from error
    if not intact:
        raise SpecError(f"{folder / _INDEX}: expected a source and the names of arrays")
    return {"source": source, "arrays": arrays}


def _in_memory(blocks: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    parts: dict[str, list[np.ndarray[Any, Any]]] = {}
    for number, block in enumerate(blocks):
        for name, rows in _checked(block, parts, number, lambda name: parts[name][0]):
            parts.setdefault(name, []).append(rows)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _checked(
    block: Mapping[str, Any],
    known: Mapping[str, Any],
    number: int,
    first: Callable[[str], np.ndarray[Any, Any]],
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the rows of a block after comparing their form with the first block's."""
    if number and set(block) != set(known):
        text = f"expected {sorted(known)}, got {sorted(block)}"
        raise SpecError(f"part {number} of the data has other columns: {text}")
    for name, values in block.items():
        rows = np.asarray(values)
        if rows.dtype.hasobject or rows.ndim == 0:
            raise SpecError(f"`{name}`: expected rows of numbers, got {rows.dtype}")
        if number:
            one = first(name)
            if (one.dtype, one.shape[1:]) != (rows.dtype, rows.shape[1:]):
                expected, got = (f"{a.dtype}{list(a.shape[1:])}" for a in (one, rows))
                raise SpecError(f"`{name}`: expected {expected}, got {got} in part {number}")
        yield name, rows


def _write(folder: Path, blocks: Iterator[Mapping[str, Any]], source: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    files: dict[str, IO[bytes]] = {}
    examples: dict[str, np.ndarray[Any, Any]] = {}
    counts: dict[str, int] = {}
    try:
        for number, block in enumerate(blocks):
            for name, rows in _checked(block, files, number, examples.__getitem__):
                if name not in files:
                    files[name] = (unfinished / f"{len(files)}.npy").open("wb")
                    files[name].write(bytes(_HEADER))
                    examples[name], counts[name] = rows[:0], 0
                files[name].write(np.ascontiguousarray(rows).tobytes())
                counts[name] += len(rows)
        for name, file in files.items():
            file.seek(0)
            file.write(_header(examples[name], counts[name]))
            file.flush()
            os.fsync(file.fileno())
        arrays = {name: f"{number}.npy" for number, name in enumerate(files)}
        index = json.dumps({"source": source, "arrays": arrays}, indent=1)
        (unfinished / _INDEX).write_text(index, encoding="utf-8")
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        for opened in files.values():
            opened.close()


def _header(example: np.ndarray[Any, Any], rows: int) -> bytes:
    """Return the header of a ``.npy`` file; its length does not depend on the number of rows."""
    fields = {
        "descr": np.lib.format.dtype_to_descr(example.dtype),
        "fortran_order": False,
        "shape": (rows, *example.shape[1:]),
    }
    start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    text = repr(fields).encode("latin1")
    return start + text.ljust(_HEADER - len(start) - 1) + b"\n"
