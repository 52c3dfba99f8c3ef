"""Choose which item of a table is sampled, and which is removed when it is full.

Any selector can do either. Each is a small value; the native core does the work.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

__all__ = [
    "Epoch",
    "Fifo",
    "HotCold",
    "Lifo",
    "MaxHeap",
    "MinHeap",
    "Prioritized",
    "Selector",
    "Uniform",
]


@dataclass(frozen=True)
class Selector:
    """Base of all selectors."""

    def _settings(self) -> tuple[str, list[float]]:
        """Return the name and the numbers that the native core expects."""
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(self).__name__)
        return name.lstrip("_"), [float(value) for value in astuple(self)]


@dataclass(frozen=True)
class Uniform(Selector):
    """Select every item with the same probability."""


@dataclass(frozen=True)
class Prioritized(Selector):
    """Select an item of priority p with probability pᵉ/Σpᵉ.

    With exponent 0 all items are equally likely, except those of priority 0, which are never drawn
    while there are others.

    Args:
        exponent: The exponent e, at least 0.
    """

    exponent: float = 1.0


@dataclass(frozen=True)
class Fifo(Selector):
    """Select the oldest item."""


@dataclass(frozen=True)
class Lifo(Selector):
    """Select the newest item."""


@dataclass(frozen=True)
class MinHeap(Selector):
    """Select the item of lowest priority; of equal ones, the one updated longest ago."""


@dataclass(frozen=True)
class MaxHeap(Selector):
    """Select the item of highest priority; of equal ones, the one updated longest ago."""


@dataclass(frozen=True)
class Epoch(Selector):
    """Select each item once, in random order, before any is drawn again.

    Items that are inserted during an epoch take part in the rest of it.
    """


@dataclass(frozen=True)
class HotCold(Selector):
    """Draw a share of each batch from recently made items, and the rest from the others.

    An item is hot while the learner's version, set with ``publish_version``, is at most
    ``age_threshold`` ahead of the item's. Hot and cold items are each drawn as by
    :class:`Prioritized`.

    Args:
        age_threshold: In versions of the learner.
        hot_fraction: The share of hot items, from 0 to 1.
        exponent: As of :class:`Prioritized`, at least 0.
    """

    age_threshold: int
    hot_fraction: float = 0.7
    exponent: float = 1.0
