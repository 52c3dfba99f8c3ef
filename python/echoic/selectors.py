"""Who is sampled from a table, and who goes when it is full.

Any selector can be either. Each is a small value; the work is done in the native core.
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
        """Return what the native core knows this by."""
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(self).__name__)
        return name.lstrip("_"), [float(value) for value in astuple(self)]


@dataclass(frozen=True)
class Uniform(Selector):
    """Every item is equally likely."""


@dataclass(frozen=True)
class Prioritized(Selector):
    """An item of priority p is drawn with probability pᵉ/Σpᵉ.

    With exponent 0 all are equally likely but those of priority 0, which are never drawn as long as
    any other is there.

    Args:
        exponent: At least 0.
    """

    exponent: float = 1.0


@dataclass(frozen=True)
class Fifo(Selector):
    """The oldest item."""


@dataclass(frozen=True)
class Lifo(Selector):
    """The newest item."""


@dataclass(frozen=True)
class MinHeap(Selector):
    """The item of the lowest priority; of several, the one that was updated longest ago."""


@dataclass(frozen=True)
class MaxHeap(Selector):
    """The item of the highest priority; of several, the one that was updated longest ago."""


@dataclass(frozen=True)
class Epoch(Selector):
    """Each item once, in random order, before any is drawn again.

    What is inserted in the middle of an epoch takes part in the rest of it.
    """


@dataclass(frozen=True)
class HotCold(Selector):
    """A share of each batch from the items made lately, the rest from the others.

    An item is hot while the learner's version, set with ``publish_version``, is at most
    ``age_threshold`` ahead of its own. Within hot and cold items are drawn as by
    :class:`Prioritized`.

    Args:
        age_threshold: In versions.
        hot_fraction: From 0 to 1.
        exponent: At least 0.
    """

    age_threshold: int
    hot_fraction: float = 0.7
    exponent: float = 1.0
