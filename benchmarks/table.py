"""Results as tables in Markdown.

One has all workloads of a suite, one what the processes used, and one the curves over connections,
the last two where the records have such numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
