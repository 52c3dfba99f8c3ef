"""The command line: ``python -m examples.grpo`` runs one job, and shows how it learns.

It needs torch (2.4 or newer), safetensors and rich, and takes about a minute on two cores. With
``--kill-worker`` and ``--restart`` it is disturbed on the way. The table at the end says how
old what was learned from was, and that every group is accounted for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.grpo.run import TRANSPORTS, Result, run
from examples.grpo.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

GOOD = 0.9
BARS = "▁▂▃▄▅▆▇█"


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.grpo",
        description="Learn to turn digits round by asynchronous GRPO.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--versions", type=int, default=Settings.versions, help="updates to make")
    parser.add_argument("--max-lag", type=int, default=Settings.max_lag, help="versions, at most")
    parser.add_argument(
        "--transport", choices=TRANSPORTS, default="shm", help="none: threads of one process"
    )
    parser.add_argument("--kill-worker", action="store_true", help="at a quarter of the way")
    parser.add_argument(
        "--restart",
        action="store_true",
        help="kill the learner half-way, and go on from its checkpoint",
    )
    parser.add_argument("--plot", type=Path, help="draw the curve into this PNG (needs matplotlib)")
    return parser.parse_args(arguments)


def sparkline(scores: Sequence[float]) -> str:
    """Return scores from 0 to 1 as a line of bars."""
    return "".join(BARS[min(int(score * len(BARS)), len(BARS) - 1)] for score in scores)


def summary(result: Result) -> Table:
    """Return the numbers of a run."""
    points = result.points
    counts = points[-1].counts
    table = Table("", "", title="The run", title_justify="left", show_header=False)
    lag = sum(point.lag for point in points) / len(points)
    mixed = sum(point.mixed for point in points) / len(points)
    clipped = sum(point.clipped for point in points) / len(points)
    rows = {
        "score of greedy answers": f"{result.score:.3f}",
        "versions": f"{points[-1].version} in {points[-1].time - points[0].time:.0f} s",
        "lag of the oldest token": f"mean {lag:.2f}, at most {max(p.max_lag for p in points)}",
        "answers of several versions": f"{mixed:.1%}",
        "tokens beyond the clip": f"{clipped:.1%}",
        "groups that were reserved": str(counts["submitted"]),
        "  complete": str(counts["accepted"]),
        "  not wanted: all answers alike, or too old": str(counts["filtered"]),
        "  given up, or too old before that": str(counts["rejected"]),
        "groups that another worker went on with": str(counts["resumed"]),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def save_plot(result: Result, path: Path) -> None:
    """Draw the curve, the lags, and what happened."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    learning, age = figure.subplots(2, height_ratios=(2, 1), sharex=True)
    versions = [point.version for point in result.points]
    looked_at = [point for point in result.points if point.score is not None]
    learning.plot(versions, [p.reward for p in result.points], color="0.75", label="batches")
    learning.plot([p.version for p in looked_at], [p.score for p in looked_at], label="evaluation")
    learning.set(ylabel="reward", ylim=(0, 1.02))
    learning.legend(loc="lower right")
    age.plot(versions, [p.max_lag for p in result.points], color="0.75", label="largest")
    age.plot(versions, [p.lag for p in result.points], color="tab:red", label="mean")
    age.set(xlabel="version", ylabel="versions behind", ylim=(0, None))
    age.legend(loc="lower right")
    for axes in (learning, age):
        axes.grid(alpha=0.3)
        for event in result.events:
            axes.axvline(event.version, color="tab:orange", linestyle="--")
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and say whether the policy has learned."""
    found = options(arguments)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with (
        tempfile.TemporaryDirectory(prefix="grpo-") as folder,
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
    ):
        settings = Settings(
            Path(folder) / "run", found.seed, versions=found.versions, max_lag=found.max_lag
        )
        bar = progress.add_task("learning", total=found.versions, now="")
        printed = 0

        def show(result: Result) -> None:
            nonlocal printed
            for event in result.events[printed:]:
                progress.console.print(f"version {event.version}: {event.what}")
            printed = len(result.events)
            scores = [point.score for point in result.points if point.score is not None]
            if result.points:
                now = f"{scores[-1]:.3f} {sparkline(scores)}" if scores else ""
                progress.update(bar, completed=result.points[-1].version, now=now)

        result = run(
            settings,
            found.transport,
            kill_worker=found.kill_worker,
            restart=found.restart,
            show=show,
        )
        show(result)
    console.print(summary(result))
    if found.plot:
        save_plot(result, found.plot)
    return 0 if result.score >= GOOD else 1


if __name__ == "__main__":
    sys.exit(main())
