"""Search in a shop: BM25, in numpy.

Words are lower-cased, words of grammar dropped, and plurals made singular. Scores are Lucene's
(k1 = 0.9 and b = 0.4, as upstream's engine has them). It stems by Porter, and we by plurals only,
so ranks differ from published ones in detail. Items of equal scores come in the catalogue's order.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["BM25", "words_of"]

_WORD = re.compile(r"[^\W_]+")
_MAX_QUERY = 256
_GRAMMAR = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
_DROPPED = frozenset(_GRAMMAR.split())


def words_of(text: str) -> list[str]:
    """The words that count.

    >>> words_of("The boxes for 2 Batteries and a glass")
    ['box', '2', 'battery', 'glass']
    """
    return [_singular(word) for word in _WORD.findall(text.lower()) if word not in _DROPPED]


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word[:-1]


class BM25:
    """An index of texts.

    >>> BM25(["red lamp", "blue lamp", "blue chair"]).search("blue lamps", 2)
    [1, 0]
    """

    def __init__(self, texts: Sequence[str], k1: float = 0.9, b: float = 0.4) -> None:
        if not texts:
            raise ArgumentError("an index needs texts")
        counts = [Counter(words_of(text)) for text in texts]
        lengths = np.array([sum(one.values()) for one in counts], float)
        norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1.0))
        places: dict[str, tuple[list[int], list[int]]] = {}
        for i, one in enumerate(counts):
            for word, count in one.items():
                where, often = places.setdefault(word, ([], []))
                where.append(i)
                often.append(count)
        self._size = len(texts)
        self._index: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        for word, (where, often) in places.items():
            found, tf = np.array(where, np.int64), np.array(often, float)
            idf = np.log1p((self._size - len(where) + 0.5) / (len(where) + 0.5))
            self._index[word] = (found, idf * tf / (tf + norm[found]))

    def search(self, query: str, most: int) -> list[int]:
        """Numbers of the texts that fit best, the best first; only such that fit at all."""
        scores = np.zeros(self._size)
        for word in words_of(query)[:_MAX_QUERY]:
            if word in self._index:
                found, parts = self._index[word]
                scores[found] += parts
        order = np.argsort(-scores, kind="stable")[:most]
        return [int(i) for i in order if scores[i] > 0]
