"""Counters out of what a server tells Prometheus."""

from __future__ import annotations

__all__ = ["total"]


def total(page: str, name: str) -> float | None:
    r"""The sum of a counter over its labels, or None if the page has none of this name.

    Lines that can't be read are left out: the page is not ours.

    >>> page = 'hits_total{source="device"} 3\nhits_total{source="host"} 4.0\nhits_created 9'
    >>> total(page, "hits_total")
    7.0
    """
    found: float | None = None
    for line in page.splitlines():
        rest = line.strip().removeprefix(name)
        if line.startswith("#") or rest == line.strip() or not rest.startswith(("{", " ")):
            continue
        # A label's value may contain anything; the number follows the last brace.
        words = rest.rpartition("}")[2].split()
        try:
            number = float(words[0])
        except (IndexError, ValueError):
            continue
        found = number if found is None else found + number
    return found
