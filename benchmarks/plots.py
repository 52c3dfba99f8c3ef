"""Plots of a suite's results.

Of every suite one of its ratios; of workloads that come in sizes, one of how their cost grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

# Without a screen.
mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import EngFormatter, LogFormatter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.lines import Record

_COLOURS = {
    "echoic": "#c2410c",
    "bound": "#1f2937",
    "limit": "#6b7280",
    "id-echo": "#2563eb",
    "dm-reverb": "#16a34a",
    "rlox": "#9333ea",
    "cpprb": "#0891b2",
    "numpy": "#ca8a04",
    "flashbax": "#db2777",
    "stable-baselines3": "#4d7c0f",
    "torchrl": "#dc2626",
    "tianshou": "#0f766e",
    "mp.Queue": "#65a30d",
    "ray": "#0284c7",
    "TransferQueue": "#7c3aed",
}
_MARKERS = {"bound": "|", "limit": "d"}


def draw(suite: str, records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw what there is to draw, and return the files."""
    drawn = []
    ratios = [record for record in records if record["ratio_to_bound"] is not None]
    sized = [record for record in records if "by_size" in record["parameters"]]
    if sized:
        drawn.append(_sizes(sized, folder / f"{suite}-sizes.png"))
    elif ratios:
        drawn.append(_ratios(ratios, folder / f"{suite}.png"))
    curves = [record for record in records if "connections" in record["parameters"]]
    if curves:
        drawn.append(_connections(curves, folder / f"{suite}-connections.png"))
    return drawn


def _ratios(records: Sequence[Record], path: Path) -> Path:
    """Draw how many times the speed of each other system Echoic has, on a scale of powers."""
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.32 * len(records)), layout="constrained")
    for row, record in enumerate(records):
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color="#f3f4f6", zorder=0)
        for name, ratio in _ratios_of(record).items():
            axes.plot(
                ratio,
                row,
                _MARKERS.get(name, "o"),
                color=_COLOURS.get(name),
                markersize=11 if name == "bound" else 6,
                markeredgewidth=2.5 if name == "bound" else 1,
                label=name,
            )
    axes.axvline(1, color=_COLOURS["echoic"], linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(records)), [record["workload"] for record in records], fontsize=8)
    axes.set_ylim(len(records) - 0.5, -0.5)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("Echoic is so many times as fast (left of the line: slower)")
    axes.grid(axis="x", color="#e5e7eb", linewidth=0.6)
    _legend(axes)
    return _saved(figure, path)


def _ratios_of(record: Record) -> dict[str, float]:
    ratios = {
        "bound": record["ratio_to_bound"],
        "limit": record.get("ratio_to_limit"),
        **record["ratio_to_peer"],
    }
    return {name: ratio for name, ratio in ratios.items() if ratio}


def _sizes(records: Sequence[Record], path: Path) -> Path:
    """Draw how the cost of each operation grows with the number of items."""
    operations = list(dict.fromkeys(record["parameters"]["by_size"] for record in records))
    columns = min(3, len(operations))
    rows = -(-len(operations) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(3.4 * columns, 2.8 * rows), layout="constrained", squeeze=False
    )
    for axes, operation in zip(grid.flat, operations, strict=False):
        series: dict[str, list[tuple[float, float]]] = {}
        of_it = [record for record in records if record["parameters"]["by_size"] == operation]
        for record in of_it:
            others = {"bound": record["bound"], "limit": record.get("limit"), **record["peers"]}
            medians = {"echoic": record["median"]}
            medians |= {name: (other or {}).get("median") for name, other in others.items()}
            for name, median in medians.items():
                if median is not None:
                    series.setdefault(name, []).append((record["parameters"]["size"], median))
        for name, points in series.items():
            axes.plot(
                *zip(*points, strict=True),
                marker="o",
                markersize=4,
                linestyle="--" if name in _MARKERS else "-",
                color=_COLOURS.get(name),
                label=name,
            )
        axes.set(xscale="log", yscale="log", title=operation, xlabel="items")
        axes.set_ylabel(of_it[0]["unit"])
        axes.title.set_fontsize(9)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
        axes.grid(color="#e5e7eb", linewidth=0.6)
    for axes in grid.flat[len(operations) :]:
        axes.set_visible(False)
    _legend(grid.flat[0])
    return _saved(figure, path)


def _connections(records: Sequence[Record], path: Path) -> Path:
    """Draw the totals over more and more connections."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for record, style in zip(records, ("-", "--", ":"), strict=False):
        counts = record["parameters"]["connections"]
        peers = {name: peer.get("metrics", {}) for name, peer in record["peers"].items()}
        for name, metrics in {"echoic": record["metrics"], **peers}.items():
            points = [metrics.get(f"samples_per_s_{count}", {}).get("median") for count in counts]
            if None not in points:
                axes.plot(
                    counts,
                    points,
                    style,
                    marker="o",
                    markersize=4,
                    color=_COLOURS.get(name),
                    label=f"{name}, {record['workload']}",
                )
    axes.set(xscale="log", yscale="log", xlabel="connections", ylabel="samples/s in total")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.grid(color="#e5e7eb", linewidth=0.6)
    _legend(axes)
    return _saved(figure, path)


def _legend(axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), fontsize=7, framealpha=0.9)


def _saved(figure: Any, path: Path) -> Path:
    # Without a date or versions in it, the same results make the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path
