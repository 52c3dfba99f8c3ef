"""Pictures of leaves that look like some, as PNG."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Pixels = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["frames", "png"]

# What is lower or narrower is a vector or a small matrix rather than a picture.
_SMALLEST = 8
# What is larger is shown with every second pixel, every third, …
_LARGEST = 512
# PNG's names for kinds of pixels, by their channels.
_KINDS = {1: 0, 3: 2, 4: 6}
_OPAQUE = 255


def frames(leaf: np.ndarray[Any, Any]) -> Pixels | None:
    """Return a leaf as pictures one after the other, ``(N, H, W, channels)``, if it looks like any.

    Those are of uint8. The last axis is one of channels if it is 1, 3 or 4 long and the two before
    it are not short: ``(…, H, W, C)``, otherwise ``(…, H, W)``. Four channels of which the last is
    not all opaque are four grey pictures, as frames are stacked.
    """
    if leaf.dtype != np.uint8 or leaf.size == 0:
        return None
    shape = leaf.shape
    if len(shape) > 2 and shape[-1] in _KINDS and min(shape[-3:-1]) >= _SMALLEST:  # noqa: PLR2004 - height, width and channels
        channels = shape[-1]
        if channels != 4 or (leaf[..., 3] == _OPAQUE).all():  # noqa: PLR2004 - with opacity
            return leaf.reshape(-1, *shape[-3:])
        grey: Pixels = np.moveaxis(leaf, -1, -3)
        return grey.reshape(-1, *shape[-3:-1], 1)
    if len(shape) >= 2 and min(shape[-2:]) >= _SMALLEST:  # noqa: PLR2004 - height and width
        return leaf.reshape(-1, *shape[-2:], 1)
    return None


def png(picture: Pixels) -> bytes:
    """Encode a picture ``(H, W, channels)``, of which 1, 3 and 4 channels are known."""
    step = -(-max(picture.shape[:2]) // _LARGEST)
    picture = picture[::step, ::step]
    height, width, channels = picture.shape
    # Each row begins with how it is filtered: not at all.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = picture.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _KINDS[channels], 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 1)
    chunks = (_chunk(b"IHDR", head), _chunk(b"IDAT", body), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
