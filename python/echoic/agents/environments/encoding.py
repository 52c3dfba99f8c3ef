"""Text as a vector of fixed length, without a vocabulary and without a model.

Each word and each pair of neighbours adds one to a place that a hash of it says, with a sign that
the hash says too, so that what collides cancels rather than piles up. The vector has length one.
The same text gives the same vector in every process and on every machine.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TextEncoder"]

_WORD = re.compile(r"[a-z]+|\d|[^\sa-z\d]")
# Longer texts are cut, so that a step's cost has a bound.
_MAX_WORDS = 4096


class TextEncoder:
    """Encodes texts as vectors of ``dim`` numbers.

    >>> encoder = TextEncoder(64)
    >>> one, other = encoder("take the key"), encoder("take the lamp")
    >>> one.shape, float(one @ one) > float(one @ other) > 0
    ((64,), True)
    """

    def __init__(self, dim: int) -> None:
        if dim < 1:
            raise ArgumentError(f"dim must be at least 1, not {dim}")
        self.dim = dim

    def __call__(self, text: str) -> NDArray[np.float32]:
        """Encode a text; an empty one is zeros."""
        words = _WORD.findall(text.lower())[:_MAX_WORDS]
        features = words + [f"{a} {b}" for a, b in itertools.pairwise(words)]
        hashes = np.array(
            [crc32(one.encode("utf-8", "surrogatepass")) for one in features], np.int64
        )
        signs = np.where(hashes & 1, 1.0, -1.0)
        vector = np.bincount((hashes >> 1) % self.dim, weights=signs, minlength=self.dim)
        length = float(np.linalg.norm(vector))
        return (vector / length if length else vector).astype(np.float32)
