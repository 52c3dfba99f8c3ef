"""The results of a suite in a file of JSON lines, one for each workload.

A file is written anew, as a whole, whenever a workload is done, so that a run can be stopped at any
time. What is there already is told apart by what it was measured on.

All ratios are ratios of speed, whatever the unit: 0.8 is 80 % of the other's speed, 5
is five times as fast. A ratio is the median over the rounds, each round's value being
divided by its neighbour's in the same round.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.machine import machine, versions
from benchmarks.timing import Rounds, Summary, rounded

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from benchmarks.workload import Target, Workload

ECHOIC = "echoic"
BOUND = "bound"
LIMIT = "limit"

Record = dict[str, Any]


def record(workload: Workload, rounds: Rounds, peers: dict[str, Record]) -> Record:
    """Put the measured rounds of ``workload`` into the record that is printed.

    ``peers`` maps each peer that was asked for to what is known of it (its version).
    """
    ours = rounds.values(ECHOIC)
    bound = rounds.values(BOUND)
    above = [own - least for own, least in zip(ours, bound, strict=False)]
    metrics = {name: Summary.of(series).record() for name, series in rounds.extras(ECHOIC).items()}
    if above and workload.better == "lower":
        metrics["above_bound"] = Summary.of(above).record()
    line: Record = {
        "workload": workload.name,
        "what": workload.what,
        "unit": workload.unit,
        "better": workload.better,
        **Summary.of(ours).record(),
        "repeats": len(ours),
        "content_checked": True,
        "metrics": metrics,
        "bound": {"name": workload.bound_name, **_other(rounds, BOUND)} if workload.bound else None,
        "ratio_to_bound": _speed_ratio(workload, ours, bound),
        "limit": {"name": workload.limit_name, **_other(rounds, LIMIT)} if workload.limit else None,
        "ratio_to_limit": _speed_ratio(workload, ours, rounds.values(LIMIT)),
        "peers": {name: {**about, **_other(rounds, name)} for name, about in peers.items()},
        "ratio_to_peer": {
            name: _speed_ratio(workload, ours, rounds.values(name)) for name in peers
        },
        "parameters": workload.parameters,
    }
    line["targets"] = [
        _target(target, line)
        for target in workload.targets
        if target.peer is None or target.peer in peers
    ]
    return line


def headline(line: Record) -> str:
    """Say in one line for a person what a record says."""
    parts = [f"{line['workload']}: {line['median']:.4g} {line['unit']}"]
    parts += [
        f"{ratio:.2f} x the {other} ({line[other]['median']:.4g})"
        for other in (BOUND, LIMIT)
        if (ratio := line[f"ratio_to_{other}"]) is not None
    ]
    parts += [
        f"{name} -" if ratio is None else f"{ratio:.1f} x {name}"
        for name, ratio in line["ratio_to_peer"].items()
    ]
    missed = [target["metric"] for target in line["targets"] if not target["met"]]
    if missed:
        parts.append("misses " + " and ".join(missed))
    return ", ".join(parts)


def _other(rounds: Rounds, subject: str) -> Record:
    if subject in rounds.unavailable:
        return {"median": None, "unavailable": rounds.unavailable[subject]}
    extras = {name: Summary.of(series).record() for name, series in rounds.extras(subject).items()}
    return {**Summary.of(rounds.values(subject)).record(), "metrics": extras}


def _speed_ratio(
    workload: Workload, ours: Sequence[float], others: Sequence[float]
) -> float | None:
    if not others:
        return None
    if workload.better == "higher":
        ratios = [own / other for own, other in zip(ours, others, strict=True)]
    else:
        ratios = [other / own for own, other in zip(ours, others, strict=True)]
    return rounded(statistics.median(ratios))


def _target(target: Target, line: Record) -> Record:
    if target.metric == "value":
        value = line["median"]
    elif target.metric == "ratio_to_bound":
        value = line["ratio_to_bound"]
    elif target.peer is not None:
        value = line["ratio_to_peer"][target.peer]
    else:
        value = line["metrics"].get(target.metric, {}).get("median")
    met = value is not None
    if met and target.at_least is not None:
        met = value >= target.at_least
    if met and target.at_most is not None:
        met = value <= target.at_most
    limits = {"at_least": target.at_least, "at_most": target.at_most}
    return {
        "metric": target.metric,
        **{name: limit for name, limit in limits.items() if limit is not None},
        "value": value,
        "met": met,
    }


class Lines:
    """The lines of one file, in the order of its suite's workloads."""

    def __init__(self, path: Path, order: Sequence[str]) -> None:
        """Read what is there, if anything is."""
        self._path = path
        self._order = order
        self.records = {record["workload"]: record for record in read(path)}

    def put(self, record: Record) -> None:
        """Write the line of a workload, in place of one that it may have."""
        self.records[record["workload"]] = record
        known = [self.records[name] for name in self._order if name in self.records]
        # Of a workload that is no more.
        others = [record for name, record in self.records.items() if name not in self._order]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(record) + "\n" for record in [*known, *others]))
        partial.replace(self._path)

    def has(self, workload: Workload, *, quick: bool, rounds: int, peers: Collection[str]) -> bool:
        """Whether this very measurement is there: of this build, on this machine, with these."""
        record = self.records.get(workload.name)
        if record is None:
            return False
        here = machine()
        return (
            record["quick"] == quick
            and record["repeats"] == rounds
            and record["versions"] == versions()
            and all(record["machine"][key] == here[key] for key in ("cpu", "cores"))
            and record["what"] == workload.what
            # As they are when they have been in a file.
            and record["parameters"] == json.loads(json.dumps(workload.parameters))
            and record["peers"].keys() >= set(peers)
            # What could not be installed then may be installed now.
            and not any(
                "does not install" in record["peers"][peer].get("unavailable", "") for peer in peers
            )
        )


def read(path: Path) -> list[Record]:
    """Return the records of a file; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
