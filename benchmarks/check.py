"""Whether the current tree is slower than an earlier run says: ``python -m benchmarks check``.

Only workloads that are marked as steady take part, and only their ratios to a bound that was
measured in turns with them: what a busy hour does to both cancels. It is no part of pass or fail of
anything; whoever sees a regression measures again.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import runner
from benchmarks.lines import read
from benchmarks.progress import Progress
from benchmarks.suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MARGIN = 0.25
_ROUNDS = 3


@dataclass(frozen=True)
class Comparison:
    """The ratio to the bound of a workload, then and now."""

    workload: str
    before: float
    now: float

    @property
    def change(self) -> float:
        """How much faster it is now, beside its bound: 0.1 is a tenth, -0.5 half as fast."""
        return self.now / self.before - 1

    def is_regression(self, margin: float) -> bool:
        """Whether it is slower by more than the margin."""
        return self.change < -margin


def run(against: Path, *, margin: float) -> int:
    """Measure the steady workloads, compare, and print a table; 1 where one is slower."""
    before = _ratios(against)
    if not before:
        print(f"no results of steady workloads in {against}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        asked = runner.Run(list(SUITES), Path(folder), names=before.keys(), repeats=_ROUNDS)
        status = runner.measure(asked, progress)
        now = _ratios(Path(folder))
    compared = compare(before, now)
    print("\n".join(table(compared, margin)))
    gone = before.keys() - now.keys()
    if gone:
        print(f"not measured: {', '.join(sorted(gone))}", file=sys.stderr)
    regressions = [each for each in compared if each.is_regression(margin)]
    return 1 if regressions or gone or status else 0


def steady() -> dict[str, list[str]]:
    """Name the workloads that take part, by suite."""
    return {
        suite: [each.name for each in about.workloads(False) if each.steady]
        for suite, about in SUITES.items()
    }


def compare(before: Mapping[str, float], now: Mapping[str, float]) -> list[Comparison]:
    """Pair what is in both."""
    return [Comparison(name, before[name], now[name]) for name in before if name in now]


def table(compared: Sequence[Comparison], margin: float) -> Iterator[str]:
    """Give the lines of the table, the worst change first."""
    yield f"| workload | speed / bound before | now | change, regressions beyond {margin:.0%} |"
    yield "|---|---|---|---|"
    for each in sorted(compared, key=lambda each: each.change):
        mark = " **regression**" if each.is_regression(margin) else ""
        change = f"{each.change:+.0%}{mark}"
        yield f"| `{each.workload}` | {each.before:.3g} | {each.now:.3g} | {change} |"


def _ratios(folder: Path) -> dict[str, float]:
    """Return the ratios of the steady workloads that a folder has, if not measured quickly."""
    return {
        record["workload"]: record["ratio_to_bound"]
        for suite, names in steady().items()
        for record in read(folder / f"{suite}.jsonl")
        if record["workload"] in names and record["ratio_to_bound"] and not record["quick"]
    }
