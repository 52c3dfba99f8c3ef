"""Results as the tables of the documentation: ``python -m benchmarks.table FILE``.

It prints one table of all workloads, one of what the processes used, and one of the curve over
connections, the last two where the file has such numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
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
    peers = sorted({peer for record in records for peer in record["ratio_to_peer"]})
    yield from _table(
        ["workload", "Echoic", "bound", "speed / bound", *(f"speed / {peer}" for peer in peers)],
        (
            [
                f"`{record['workload']}`",
                _value(record["median"], record["unit"]),
                _value(record["bound"]["median"], record["unit"]),
                _number(record["ratio_to_bound"]),
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


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    print("\n".join(tables([json.loads(line) for line in lines])))
