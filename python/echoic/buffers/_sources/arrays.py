"""Read numpy's files: ``.npz`` archives and folders of mapped arrays; and write such folders.

A folder is made of blocks of rows. It is written under a temporary name and renamed when it is
complete, so a folder that exists is complete. Its ``data.json`` says which file has which array,
and what they were made from.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic._progress import each
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["advise_random", "collect", "map_npy", "read_folder", "read_npz"]

_INDEX = "data.json"
_HEADER = 256
# The length of a member's own header in a zip archive, and the offset of two lengths in it.
_ZIP_HEADER, _ZIP_LENGTHS = 30, 26


def read_npz(path: Path, *, mapped: bool) -> dict[str, Any]:
    """Return the arrays of an archive by name, read or, if it is not compressed, mapped."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            for info in each(members, len(members)):
                name = f"{path.name}: `{info.filename.removesuffix('.npy')}`"
                if not info.filename.endswith(".npy"):
                    continue
                if info.flag_bits & 1:
                    raise SpecError(f"{name} is encrypted; save it without encryption")
                if mapped and info.compress_type != zipfile.ZIP_STORED:
                    text = "is compressed, so it can't be mapped; save it with numpy.savez"
                    raise SpecError(f"{name} {text}")
                with archive.open(info) as member:
                    if mapped:
                        offset = _start(path, info, name)
                        array = _map(path, member, offset, info.file_size, name)
                    else:
                        array = _read(member, info.file_size, name)
                arrays[info.filename.removesuffix(".npy")] = array
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise SpecError(f"{path}: expected an intact .npz archive: {error}") from error
    return arrays


def map_npy(path: Path) -> np.ndarray[Any, Any]:
    """Map the array of a ``.npy`` file."""
    with path.open("rb") as file:
        return _map(path, file, 0, path.stat().st_size, str(path))


def advise_random(tree: Any) -> None:
    """Advise the operating system that mapped arrays will be read in random order."""
    for leaf in _trees.tree_leaves(tree):
        mapping = getattr(leaf, "_mmap", None)
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
            mapping.madvise(mmap.MADV_RANDOM)


def _start(path: Path, info: zipfile.ZipInfo, name: str) -> int:
    """Return the offset in the file of a member that is not compressed."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(_ZIP_HEADER)
    if len(header) != _ZIP_HEADER or header[:4] != b"PK\x03\x04":
        raise SpecError(f"{name} is damaged: it is not where the archive says")
    lengths = header[_ZIP_LENGTHS:]
    start = info.header_offset + _ZIP_HEADER
    start += int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    if info.compress_size != info.file_size or start + info.file_size > path.stat().st_size:
        raise SpecError(f"{name} is damaged: the file ends before it")
    return start


def _header(file: IO[bytes], size: int, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read an array's header: shape, order and dtype; check that ``size`` bytes hold the array."""
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise SpecError(f"{name}: expected version 1 or 2 of the format, got {version}")
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{name}: expected an array: {error}") from error
    if dtype.hasobject:
        raise SpecError(f"{name}: expected numbers, got objects, which are never loaded")
    there = size - file.tell()
    if any(axis < 0 for axis in shape) or math.prod(shape) * dtype.itemsize != there:
        text = f"expected {dtype}{list(shape)}, as it says, got {there} bytes"
        raise SpecError(f"{name}: {text}")
    return shape, fortran, dtype


def _read(file: IO[bytes], size: int, name: str) -> np.ndarray[Any, Any]:
    shape, fortran, dtype = _header(file, size, name)
    array: np.ndarray[Any, Any] = np.empty(math.prod(shape), dtype)
    rest = memoryview(array.view(np.uint8).data) if array.nbytes else memoryview(b"")
    while len(rest):
        count = file.readinto(rest[: 1 << 24])  # type: ignore[attr-defined]
        if not count:
            raise SpecError(f"{name} is damaged: the file ends before it")
        rest = rest[count:]
    # Reading past the end makes zipfile compare the checksum.
    file.read(1)
    return array.reshape(shape, order="F" if fortran else "C")


def _map(path: Path, file: IO[bytes], offset: int, size: int, name: str) -> np.ndarray[Any, Any]:
    shape, fortran, dtype = _header(file, size, name)
    if math.prod(shape) * dtype.itemsize == 0:
        return np.empty(shape, dtype)
    order: Any = "F" if fortran else "C"
    return np.memmap(path, dtype, "r", offset + file.tell(), shape, order)


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
                files[name].write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
                counts[name] += len(rows)
        for name, file in files.items():
            file.seek(0)
            file.write(_npy_header(examples[name], counts[name]))
            file.flush()
            os.fsync(file.fileno())
        arrays = {name: f"{number}.npy" for number, name in enumerate(files)}
        index = json.dumps({"source": source, "arrays": arrays}, indent=1)
        (unfinished / _INDEX).write_text(index, encoding="utf-8")
        try:
            unfinished.rename(folder)
        except OSError:
            # Another process was faster. Whether its folder is of this source is checked later.
            if not (folder / _INDEX).exists():
                raise
            shutil.rmtree(unfinished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        for opened in files.values():
            opened.close()


def _npy_header(example: np.ndarray[Any, Any], rows: int) -> bytes:
    """Return the header of a ``.npy`` file; its length does not depend on the number of rows."""
    fields = {
        "descr": np.lib.format.dtype_to_descr(example.dtype),
        "fortran_order": False,
        "shape": (rows, *example.shape[1:]),
    }
    start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    text = repr(fields).encode("latin1")
    return start + text.ljust(_HEADER - len(start) - 1) + b"\n"
