"""Read numpy's files: ``.npz``, and arrays that are mapped from a file."""

from __future__ import annotations

import math
import mmap
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic._progress import each
from echoic.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["advise_random", "map_npy", "read_npz"]

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
