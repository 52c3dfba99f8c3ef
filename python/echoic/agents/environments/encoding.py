"""Text as a vector of fixed length, without a vocabulary and without a model.

Each word and each pair of neighbours adds one to a place that a hash of it says, with a sign that
the hash says too, so that what collides cancels rather than piles up. The vector has length one.
The same text gives the same vector in every process and on every machine.

Worlds say the same things again and again. So the latest encodings of a process are kept, for all
environments together, and so are the sums of the sentences that texts are made of, in other orders
and beside others: a text that is new costs little if its sentences are known. Of each at most
:data:`MOST_KEPT`, of at most :data:`LONGEST_KEPT` and :data:`LONGEST_SENTENCE` characters, and of
vectors of at most :data:`WIDEST_KEPT` numbers: 40 MB at most.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TextEncoder"]

MOST_KEPT = 4096
LONGEST_KEPT = 2048
WIDEST_KEPT = 1024
LONGEST_SENTENCE = 128

# No word goes over a space, so that a text may be cut at any.
_SENTENCES = re.compile(r"(?<=[.!?:\n]) ")
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
        """Encode a text; an empty one is zeros. The vector is the caller's own."""
        if len(text) > LONGEST_KEPT or self.dim > WIDEST_KEPT:
            return _encoded(text, self.dim)
        return _kept(text, self.dim).copy()


class _Hashes(NamedTuple):
    """Of the words of a text and of its pairs, and what a pair with a neighbour is made of."""

    all: NDArray[np.int64]
    first: bytes
    last: int


def _hashes(text: str) -> _Hashes | None:
    """None of a text without words."""
    words = [word.encode("utf-8", "surrogatepass") for word in _WORD.findall(text)[:_MAX_WORDS]]
    if not words:
        return None
    ones = [crc32(word) for word in words]
    pairs = [_pair(one, word) for one, word in zip(ones, words[1:], strict=False)]
    return _Hashes(np.array(ones + pairs, np.int64), words[0], ones[-1])


def _pair(one: int, word: bytes) -> int:
    """A checksum can be gone on with: this is that of the first word, a space, and the second."""
    return crc32(b" " + word, one)


_sentence = lru_cache(MOST_KEPT)(_hashes)


def _encoded(text: str, dim: int) -> NDArray[np.float32]:
    text = text.lower()
    # A longer one may have more words than count.
    parts = _SENTENCES.split(text) if len(text) <= LONGEST_KEPT else [text]
    found = [
        one
        for part in parts
        if (one := (_sentence if len(part) <= LONGEST_SENTENCE else _hashes)(part)) is not None
    ]
    if not found:
        return np.zeros(dim, np.float32)
    seams = [_pair(one.last, two.first) for one, two in itertools.pairwise(found)]
    hashes = np.concatenate([one.all for one in found] + [np.array(seams, np.int64)])
    signs = np.where(hashes & 1, 1.0, -1.0)
    vector = np.bincount((hashes >> 1) % dim, weights=signs, minlength=dim)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)


# Behind a lock of its own: threads may ask at once.
_kept = lru_cache(MOST_KEPT)(_encoded)
