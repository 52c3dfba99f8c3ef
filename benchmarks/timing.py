"""Repeated measurements of several subjects, taken in turn, and their spread.

A *subject* is whatever can be measured: Echoic, a physical bound, a peer. Each gives a
[`Measure`] function that runs its work once and returns a [`Measurement`]. The repeats
of all subjects are interleaved (A B C, A B C, ...), so that a slow minute of the
machine falls on all of them, and ratios are taken between neighbours of one round.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """What one repeat of one subject gave: the headline value and its companions."""

    value: float
    extras: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[], Measurement]
OpenSubject = Callable[[], AbstractContextManager[Measure]]


class UnavailableError(Exception):
    """A subject cannot be measured here, for the reason in the message.

    The others are still measured, and the reason is printed in place of a number.
    """


@dataclass(frozen=True)
class Summary:
    """The median of a series with its spread."""

    median: float
    q1: float
    q3: float
    min: float
    max: float

    @classmethod
    def of(cls, series: Sequence[float]) -> Summary:
        """Summarize ``series``; quartiles are interpolated between sorted values."""
        if len(series) == 1:
            return cls(*([series[0]] * 5))
        q1, median, q3 = statistics.quantiles(series, n=4, method="inclusive")
        return cls(median=median, q1=q1, q3=q3, min=min(series), max=max(series))

    def spread(self) -> dict[str, float]:
        """Return the spread as a flat record; ``iqr`` is ``q3 - q1``."""
        return {
            "iqr": rounded(self.q3 - self.q1),
            "q1": rounded(self.q1),
            "q3": rounded(self.q3),
            "min": rounded(self.min),
            "max": rounded(self.max),
        }

    def record(self) -> dict[str, Any]:
        """Return ``median`` and ``spread`` as they stand in a JSON line."""
        return {"median": rounded(self.median), "spread": self.spread()}


@dataclass
class Rounds:
    """All measurements of one workload: a series per subject, one entry per round."""

    series: dict[str, list[Measurement]]
    unavailable: dict[str, str]

    def values(self, subject: str) -> list[float]:
        """Return the headline values of ``subject``, empty when it was unavailable."""
        return [measurement.value for measurement in self.series.get(subject, [])]

    def extras(self, subject: str) -> dict[str, list[float]]:
        """Return the companions of the headline value, a series for each name."""
        columns: dict[str, list[float]] = {}
        for measurement in self.series.get(subject, []):
            for name, value in measurement.extras.items():
                columns.setdefault(name, []).append(value)
        return columns


def interleave(
    subjects: Mapping[str, OpenSubject],
    repeats: int,
    after_round: Callable[[], None] = lambda: None,
    *,
    warm_up: bool = True,
) -> Rounds:
    """Measure every subject ``repeats`` times in turn, after one round to warm up.

    The cyclic garbage collector is off meanwhile, as in ``timeit``: a collection that
    happens to fall on one subject would say nothing about it.
    """
    series: dict[str, list[Measurement]] = {}
    unavailable: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(garbage_collector_off())
        measures: dict[str, Measure] = {}
        for name, open_subject in subjects.items():
            try:
                measures[name] = stack.enter_context(open_subject())
            except UnavailableError as reason:
                unavailable[name] = str(reason)
        for repeat in range(-int(warm_up), repeats):
            for name, measure in list(measures.items()):
                try:
                    measurement = measure()
                except UnavailableError as reason:
                    unavailable[name] = str(reason)
                    del measures[name]
                    series.pop(name, None)
                    continue
                if repeat >= 0:
                    series.setdefault(name, []).append(measurement)
            after_round()
    return Rounds(series, unavailable)


def rounded(value: float) -> float:
    """Keep five significant digits: more would pretend a precision nobody has."""
    return float(f"{value:.5g}")


@contextlib.contextmanager
def garbage_collector_off() -> Iterator[None]:
    """Keep the cyclic garbage collector off for a while."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
