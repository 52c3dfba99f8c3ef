"""The report of a folder of results: tables of ratios in ``report.md``, and plots beside it.

Everything in it comes from the lines of the folder, so it can be written anew at any time. One
table has all workloads of a suite, one what the processes used, and one the curves over
connections, the last two where the records have such numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.lines import read
from benchmarks.suites import SUITES

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
        from benchmarks import plots
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


Record = dict[str, Any]

_CURVE = "samples_per_s_"
_USED = {
    "server_cpu_s_per_million": "CPU s per million, server",
    "client_cpu_s_per_million": "client",
    "server_peak_mib": "peak MiB, server",
    "client_peak_mib": "client",
}


def tables(records: Sequence[Record]) -> Iterator[str]:
    """Give the lines of the tables."""
    if not any(record["bound"] for record in records):
        yield from _alone(records)
        return
    peers = sorted({peer for record in records for peer in record["ratio_to_peer"]})
    # Runs of earlier versions have none.
    limits = any(record.get("limit") for record in records)
    head = ["workload", "Echoic", "bound", "speed / bound"]
    yield from _table(
        [*head, *(["speed / limit"] if limits else []), *(f"speed / {peer}" for peer in peers)],
        (
            [
                f"`{record['workload']}`",
                _value(record["median"], record["unit"]),
                _value((record["bound"] or {}).get("median"), record["unit"]),
                _number(record["ratio_to_bound"]),
                *([_number(record.get("ratio_to_limit"))] if limits else []),
                *(_number(record["ratio_to_peer"].get(peer)) for peer in peers),
            ]
            for record in records
        ),
    )
    used = [record for record in records if "server_peak_mib" in record["metrics"]]
    if used:
        yield ""
        yield from _table(
            ["workload", "system", *_USED.values()],
            (
                [f"`{record['workload']}`", system, *(_metric(metrics, name) for name in _USED)]
                for record in used
                for system, metrics in _systems(record)
            ),
        )
    curves = [record for record in records if "connections" in record["parameters"]]
    if curves:
        counts = curves[0]["parameters"]["connections"]
        yield ""
        yield from _table(
            ["samples/s in total over so many connections", "system", *map(str, counts)],
            (
                [
                    f"`{record['workload']}`",
                    system,
                    *(_metric(metrics, f"{_CURVE}{count}") for count in counts),
                ]
                for record in curves
                for system, metrics in _systems(record)
            ),
        )


def _alone(records: Sequence[Record]) -> Iterator[str]:
    """Show what stands beside nothing: numbers with their quartiles."""
    yield from _table(
        ["probe", "what", "median", "half of the rounds"],
        (
            [
                f"`{record['workload']}`",
                record["what"],
                _value(record["median"], record["unit"]),
                f"{_number(record['spread']['q1'])} to {_number(record['spread']['q3'])}",
            ]
            for record in records
        ),
    )


def _systems(record: Record) -> Iterator[tuple[str, Record]]:
    yield "Echoic", record["metrics"]
    for name, peer in record["peers"].items():
        if "metrics" in peer:
            yield name, peer["metrics"]


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _metric(metrics: Record, name: str) -> str:
    return _number(metrics[name]["median"]) if name in metrics else "-"


def _value(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{_number(value)} {unit}"


def _number(value: float | None) -> str:
    """Write three digits, and millions and thousands as such."""
    if value is None:
        return "-"
    for size, name in ((1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e3 if name == ' k' else size):.3g}{name}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
