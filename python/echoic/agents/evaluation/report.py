"""The report of a benchmark: tables in Markdown, and a picture of the success rates.

Text of environments and models is escaped. The picture needs matplotlib, and no screen.
"""

from __future__ import annotations

import importlib.util
import math
import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from echoic.agents.evaluation.results import BenchmarkResult

__all__ = ["write_report"]

_MOST_LINES = 200
_NOTES = """\
- Success is the environment's own signal, in an episode that the environment ended. Errors, \
time-outs and episodes that a limit ended are failures.
- Intervals of 95 % are Wilson's, over episodes, for methods that do not train; all others are an \
expanded bootstrap's, over runs or pairs. Fewer than five, or equal ones, have no interval.
- Tokens and costs (US dollars) are those of acting; '-' is what is not known, or not there.
- Tokens per second are those read or written by the seconds of the episodes; 'computed' leaves \
out those from a cache.
- Comparisons are of success rates, in pairs; p of a permutation test, corrected for all of them \
together (Holm). With few pairs, no p can be below the least.
- A line's numbers are of the rows of `rows.jsonl` with its task, method, backbone and settings."""
# The fields that are columns of each table.
_RESULTS = (
    *("provenance", "method", "backbone", "model", "settings", "runs", "episodes"),
    *("success_rate", "avg_reward", "errors", "timeouts"),
)
_TOOK = (
    *("provenance", "method", "backbone", "tokens", "tokens_per_second"),
    *("computed_tokens_per_second", "cost", "cost_per_success", "trained_steps", "to_threshold"),
)
_OVERALL = ("arm", "tasks", "runs", "iqm", "mean")
_COMPARED = (
    *("provenance", "reference", "other", "difference", "pairs", "unit", "p", "p_corrected"),
    "least_p",
)
_REASONS = ("status", "provenance", "method", "backbone", "reason")
# The fields that are shares, each with that of its interval.
_SHARES = {
    "success_rate": "success_interval",
    "iqm": "iqm_interval",
    "mean": "",
    "difference": "interval",
}


def write_report(result: BenchmarkResult, root: Path) -> None:
    """Write ``benchmark_report.md`` and a picture."""
    config, pictures = result.config, []
    if config["generate_plots"] and result.tasks:
        if importlib.util.find_spec("matplotlib") is None:
            pictures = ["There is no picture: matplotlib is not installed."]
        else:
            result.files["success"] = str(_draw(result, root / "plots"))
            alt = "Success rates with their intervals, and each run as a point"
            pictures = [f"![{alt}](plots/success.png)"]
    arms = [
        {**vars(one), "runs": len(one.seeds), "to_threshold": _reached(one.steps_to_threshold)}
        for one in result.tasks
    ]
    overall = [
        {"arm": arm, **one, "tasks": ", ".join(one["tasks"])} for arm, one in result.overall.items()
    ]
    reasons = Counter(
        tuple(row[name] for name in _REASONS)
        for row in (*result.skipped, *result.failed, *result.not_applicable)
    )
    without = [{**dict(zip(_REASONS, key, strict=True)), "cells": n} for key, n in reasons.items()]
    page = [
        "# Benchmark",
        f"{config['num_seeds']} seeds, {config['num_episodes']} episodes each.",
        _NOTES,
        *_table("On each task", _RESULTS, arms),
        *_table("What it took", _TOOK, arms),
        *_table("Success over tasks", _OVERALL, overall),
        *_table("Comparisons", _COMPARED, map(vars, result.significance_tests)),
        *pictures,
        *_table("Without a result", (*_REASONS, "cells"), without),
    ]
    path = root / "benchmark_report.md"
    path.write_text("\n\n".join(page) + "\n", encoding="utf-8", errors="backslashreplace")
    result.files["report"] = str(path)


def _draw(result: BenchmarkResult, folder: Path) -> Path:
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    arms = result.tasks[:_MOST_LINES]
    figure = Figure((8.0, 1.0 + 0.3 * len(arms)), layout="constrained")
    axes = figure.add_subplot()
    for line, one in enumerate(arms):
        axes.barh(line, one.success_rate, height=0.6, color="C0", alpha=0.5)
        axes.plot(one.success_interval or (), [line, line] if one.success_interval else (), "k-")
        axes.plot(one.success_rates, [line] * len(one.success_rates), "k.", markersize=3)
    axes.set_yticks(range(len(arms)), [f"{one.provenance}: {one.arm}" for one in arms])
    axes.invert_yaxis()
    axes.set(xlim=(-0.02, 1.02), xlabel="success@1")
    figure.savefig(folder / "success.png", dpi=110, metadata={"Software": None})
    return folder / "success.png"


def _table(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write a section with a table; none without rows."""
    lines = [[_show(row, name) for name in columns] for row in rows]
    if not lines:
        return []
    lines = [[name.replace("_", " ") for name in columns], ["---"] * len(columns), *lines]
    return [f"## {title}", "\n".join("| " + " | ".join(line) + " |" for line in lines)]


def _show(row: Mapping[str, Any], name: str) -> str:
    value, ends = row[name], row.get(_SHARES.get(name, ""))
    if isinstance(value, str):
        plain = re.sub(r"\s+", " ", value).replace("<", "&lt;").replace(">", "&gt;")
        return re.sub(r"([\\|\[\]!`*_])", r"\\\1", plain)
    if value is None:
        return "-"
    form = ".1%" if name in _SHARES else ",.0f" if abs(value) >= 1000 else ".4g"
    return f"{value:{form}}" + ("" if ends is None else f" ({ends[0]:{form}} … {ends[1]:{form}})")


def _reached(steps: Sequence[float | None]) -> str:
    """Format the median, with seeds that never reach it at the end, and how many do."""
    if not steps:
        return "-"
    median = statistics.median_low(math.inf if step is None else step for step in steps)
    text = "never" if median == math.inf else f"{median:,.0f}"
    return f"{text} ({sum(step is not None for step in steps)} of {len(steps)})"
