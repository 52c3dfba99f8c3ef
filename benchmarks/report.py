"""The report of a folder of results: tables of ratios in ``report.md``, and plots beside it.

Everything in it comes from the lines of the folder, so it can be written anew at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.lines import read
from benchmarks.suites import SUITES
from benchmarks.table import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.lines import Record

_HOW = """\
Ratios are of speed, whatever the unit: 0.8 is 80 % of the other's, 5 five times as fast. They are
medians over rounds in which all take turns. A *bound* is the same bytes or calls in Python's hands
without any system around them, a *limit* the same in a program in Rust. The files `*.jsonl` beside
this one have spreads, parameters, versions and what each bound is.
"""


def write(folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Write the report of a folder; return the files that were written, none without results.

    ``say`` is told what could not be drawn.
    """
    results = {suite: read(folder / f"{suite}.jsonl") for suite in SUITES}
    results = {suite: records for suite, records in results.items() if records}
    if not results:
        return []
    try:
        # Here, since all but the plots works without matplotlib.
        from benchmarks import plots  # noqa: PLC0415
    except ImportError as error:
        say(f"no plots: {error}")
        drawn: dict[str, list[Path]] = {}
    else:
        drawn = {suite: plots.draw(suite, records, folder) for suite, records in results.items()}
    path = folder / "report.md"
    path.write_text("\n".join(_lines(results, drawn)) + "\n")
    return [path, *(plot for plots_ in drawn.values() for plot in plots_)]


def _lines(results: dict[str, list[Record]], drawn: dict[str, list[Path]]) -> Iterator[str]:
    yield "# Results of the benchmarks"
    yield ""
    yield from _HOW.splitlines()
    for suite, records in results.items():
        yield ""
        yield f"## {SUITES[suite].what}"
        yield ""
        yield f"{_where(records)} `python -m benchmarks run --suite {suite}{_quick(records)}`"
        yield ""
        yield from tables(records)
        for plot in drawn.get(suite, []):
            yield ""
            yield f"![{SUITES[suite].what}: {plot.stem}]({plot.name})"
        missing = _missing(records)
        if missing:
            yield ""
            yield from missing
        missed = _missed(records)
        if missed:
            yield ""
            yield from missed


def _where(records: Sequence[Record]) -> str:
    """Say when and on what the records were measured; there may be several answers to each."""
    days = sorted({record["machine"]["date"][:10] for record in records})
    machines = {
        f"{record['machine']['cores']} cores of {record['machine']['cpu']}, "
        f"{record['machine']['memory_gib']} GiB"
        for record in records
    }
    versions = {
        f"{record['versions']['python']}, numpy {record['versions']['numpy']}" for record in records
    }
    rounds = sorted({record["repeats"] for record in records})
    period = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    counts = " or ".join(map(str, rounds))
    return (
        f"{period}, {'; '.join(sorted(machines))}, {'; '.join(sorted(versions))}, {counts} rounds."
    )


def _quick(records: Sequence[Record]) -> str:
    return " --quick" if all(record["quick"] for record in records) else ""


def _missing(records: Sequence[Record]) -> list[str]:
    """Say which others there is no number of, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for record in records:
        others = {"bound": record["bound"] or {}, "limit": record.get("limit") or {}}
        for name, other in {**others, **record["peers"]}.items():
            if "unavailable" in other:
                # Each says in its own words what it has not.
                lacks = " has no " in other["unavailable"]
                reason = "it has nothing for it" if lacks else other["unavailable"]
                reasons.setdefault((name, reason), []).append(record["workload"])
    return [
        f"- No number of {name} for {', '.join(f'`{each}`' for each in workloads)}: {reason}."
        for (name, reason), workloads in reasons.items()
    ]


def _missed(records: Sequence[Record]) -> list[str]:
    """List the targets that were missed; in a quick run they say nothing."""
    return [
        f"- `{record['workload']}` misses a target: {target['metric']} is {target['value']}, "
        + " and ".join(
            f"{words} {target[key]} was wanted"
            for key, words in (("at_least", "at least"), ("at_most", "at most"))
            if key in target
        )
        for record in records
        if not record["quick"]
        for target in record["targets"]
        if not target["met"]
    ]
