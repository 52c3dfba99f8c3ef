"""What an item carries beside its tokens: bytes, text and arrays, as bytes and back.

The first byte says what the rest is. Arrays are in numpy's file format, which has no code in it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

__all__ = ["Blob", "pack", "unpack"]

Blob: TypeAlias = "bytes | str | np.ndarray"

_BYTES, _TEXT, _ARRAY = b"\x00", b"\x01", b"\x02"


def pack(blobs: Mapping[str, Blob] | None) -> dict[str, bytes] | None:
    """Return the blobs as bytes."""
    if not blobs:
        return None
    return {name: _pack(name, blob) for name, blob in blobs.items()}


def _pack(name: str, blob: Blob) -> bytes:
    if isinstance(blob, (bytes, bytearray, memoryview)):
        return _BYTES + bytes(blob)
    if isinstance(blob, str):
        return _TEXT + blob.encode()
    array = np.asarray(blob)
    if array.dtype.hasobject:
        raise TypeError(
            f"blob {name!r} must be bytes, text or an array of numbers, got {type(blob).__name__}"
        )
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=False)
    return _ARRAY + out.getvalue()


def unpack(blob: bytes) -> Blob:
    """Return what :func:`pack` was given."""
    kind, rest = blob[:1], blob[1:]
    if kind == _BYTES:
        return rest
    if kind == _TEXT:
        return rest.decode()
    if kind == _ARRAY:
        return np.asarray(np.lib.format.read_array(io.BytesIO(rest), allow_pickle=False))
    raise ValueError(f"a blob begins with {kind!r}, which no release of Echoic has written")
