"""The JSON line of one workload.

All ratios are ratios of speed, whatever the unit: 0.8 is 80 % of the other's speed, 5
is five times as fast. A ratio is the median over the rounds, each round's value being
divided by its neighbour's in the same round.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.timing import Rounds, Summary, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.workload import Target, Workload

OURS = "echoic"
BOUND = "bound"
LIMIT = "limit"

Record = dict[str, Any]


def record(workload: Workload, rounds: Rounds, peers: dict[str, Record]) -> Record:
    """Put the measured rounds of ``workload`` into the record that is printed.

    ``peers`` maps each peer that was asked for to what is known of it (its version).
    """
    ours = rounds.values(OURS)
    bound = rounds.values(BOUND)
    above = [own - least for own, least in zip(ours, bound, strict=False)]
    metrics = {name: Summary.of(series).record() for name, series in rounds.extras(OURS).items()}
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
