"""Encode the blobs of an item as bytes, and decode them.

The first byte says whether bytes, text or an array follow. Arrays are in numpy's file format,
without pickle.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

__all__ = ["Blob", "pack", "pack_items", "unpack"]

Blob: TypeAlias = "bytes | str | np.ndarray"

_BYTES, _TEXT, _ARRAY = b"\x00", b"\x01", b"\x02"


def pack(blobs: Mapping[str, Blob] | None) -> dict[str, bytes] | None:
    """Encode blobs by name."""
    if not blobs:
        return None
    return {name: _pack(name, blob) for name, blob in blobs.items()}


def pack_items(
    items: Iterable[Mapping[str, Blob] | None] | None,
) -> list[dict[str, bytes] | None] | None:
    """Encode the blobs of several items; an object that several of them have is encoded once."""
    if items is None:
        return None
    items = list(items)
    # By identity: `items` keeps the objects.
    packed: dict[int, bytes] = {}
    encoded: list[dict[str, bytes] | None] = []
    for blobs in items:
        of_item = {}
        for name, blob in (blobs or {}).items():
            if (done := packed.get(id(blob))) is None:
                done = packed[id(blob)] = _pack(name, blob)
            of_item[name] = done
        encoded.append(of_item or None)
    return encoded


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
    """Decode a blob of :func:`pack`."""
    kind, rest = blob[:1], blob[1:]
    if kind == _BYTES:
        return rest
    if kind == _TEXT:
        return rest.decode()
    if kind == _ARRAY:
        return np.asarray(np.lib.format.read_array(io.BytesIO(rest), allow_pickle=False))
    raise ValueError(f"a blob must begin with the byte 0, 1 or 2, got {kind!r}")
