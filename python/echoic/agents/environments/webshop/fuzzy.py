"""How alike two texts are as sets of words, by the measure that WebShop's reward uses.

This is ``token_set_ratio`` of thefuzz 0.22 (with its default processing), to the same whole number,
without the package. Words that both have are set aside; what is left is compared by insertions and
deletions.
"""

from __future__ import annotations

import re

__all__ = ["token_set_ratio"]

_NO_WORD = re.compile(r"[\W_]")
# The rest of Latin-1 is dropped, as upstream does, and what lies beyond it is kept.
_DROPPED = dict.fromkeys(range(128, 256))


def token_set_ratio(one: object, other: object) -> int:
    """From 0 to 100; 100 if the words of one are all among the other's.

    >>> token_set_ratio("dark blue", "blue"), token_set_ratio("usb c", "usb-c cable")
    (100, 100)
    >>> token_set_ratio("wireless", "wired"), token_set_ratio("", "")
    (62, 0)
    """
    a, b = _words(one), _words(other)
    if not a or not b:
        return 0
    both = a & b
    only_a, only_b = " ".join(sorted(a - b)), " ".join(sorted(b - a))
    if both and not (only_a and only_b):
        return 100
    shared = len(" ".join(both))
    gap = bool(shared)
    long_a, long_b = shared + gap + len(only_a), shared + gap + len(only_b)
    changes = len(only_a) + len(only_b) - 2 * _common(only_a, only_b)
    ratios = [_ratio(changes, long_a + long_b)]
    if shared:
        ratios.append(_ratio(gap + len(only_a), shared + long_a))
        ratios.append(_ratio(gap + len(only_b), shared + long_b))
    return round(max(ratios))


def _words(text: object) -> set[str]:
    return set(_NO_WORD.sub(" ", str(text).translate(_DROPPED)).lower().split())


def _ratio(changes: int, length: int) -> float:
    return 100.0 - 100.0 * changes / length if length else 100.0


def _common(a: str, b: str) -> int:
    """Length of the longest common subsequence: a row of the table is the bits of one integer."""
    places: dict[str, int] = {}
    for i, letter in enumerate(a):
        places[letter] = places.get(letter, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for letter in b:
        match = row & places.get(letter, 0)
        row = (row + match | row - match) & everything
    return len(a) - row.bit_count()
