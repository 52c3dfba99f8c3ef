"""Histograms as people read them: how many there are in each bucket."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bucket", "buckets", "filled"]

# Longer ones are rounded to two digits.
LONGEST_BOUND = 6


@dataclass(frozen=True)
class Bucket:
    """A bucket.

    Attributes:
        label: Which values are in it.
        count: How many there are.
    """

    label: str
    count: float


def buckets(cumulative: dict[str, float]) -> list[Bucket]:
    """Split counts that include those of all lower buckets.

    Args:
        cumulative: How many values are at most so high, by that bound; the last is ``"+Inf"``.
    """
    found = []
    below, lowest = 0.0, ""
    for bound, count in sorted(cumulative.items(), key=lambda pair: float(pair[0])):
        rest = f"above {_short(lowest)}" if lowest else "any"
        label = rest if bound == "+Inf" else f"up to {_short(bound)}"
        found.append(Bucket(label, max(count - below, 0.0)))
        below, lowest = count, bound
    return found


def _short(bound: str) -> str:
    """A bound in as few characters as a reader needs, such as `6.1e-05`."""
    return bound if len(bound) <= LONGEST_BOUND else f"{float(bound):.2g}"


def filled(found: list[Bucket]) -> list[Bucket]:
    """Leave out the empty ones at both ends."""
    places = [index for index, bucket in enumerate(found) if bucket.count]
    return found[places[0] : places[-1] + 1] if places else []
