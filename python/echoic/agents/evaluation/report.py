"""The report of a benchmark, in Markdown, with pictures, and a page to read trajectories.

Text of environments and models is escaped, and cut to a length; the page needs no server and
forbids scripts. Pictures are drawn without a screen, and need matplotlib.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from echoic.agents.evaluation.results import BenchmarkResult, Interval, TaskResult

    Row = Mapping[str, Any]

__all__ = ["draw", "write_report", "write_viewer"]

_MOST_TASKS = 24
_MOST_EPISODES = 200
_MOST_TURNS = 200
_MOST_TEXT = 4000
_MOST_LISTED = 200
_NOTES = """\
- Success is the environment's own signal, in an episode that the environment ended. Errors, \
time-outs and episodes that a limit ended are failures.
- Intervals of 95 %: success rates of methods that do not train have Wilson's, over episodes; all \
others are an expanded bootstrap's, over runs for methods that train and else over episodes. Fewer \
than five values, or equal ones, have no interval.
- Tokens and costs are those of acting; the training cost is what a judge's tokens cost, by run.
- Tokens per second are those read or written by the seconds of the episodes; 'new' leaves out \
those from a cache.
- A line's numbers are of the rows of `rows.jsonl` with its task, method, backbone and settings."""
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Trajectories</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .5rem; background: #8881 }
pre.thought { font-style: italic } pre.action { border-left: 3px solid #38c }
.won { color: #2a7 } .lost { color: #c43 } small { opacity: .7 }
</style><h1>Trajectories</h1>
"""


def draw(result: BenchmarkResult, folder: Path) -> dict[str, Path]:
    """Draw the pictures that there is data for; return their files, by description."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Path] = {}

    def save(figure: Any, name: str, alt: str) -> None:
        made[alt] = folder / f"{name}.png"
        figure.savefig(made[alt], dpi=110, metadata={"Software": None})

    def grid(count: int, height: float) -> tuple[Any, list[Any]]:
        columns, lines = min(count, 3), -(-count // 3)
        figure = Figure((4.6 * columns, height * lines), layout="constrained")
        return figure, [figure.add_subplot(lines, columns, i + 1) for i in range(count)]

    tasks = list(dict.fromkeys(one.provenance for one in result.tasks))[:_MOST_TASKS]
    by_task = {task: [one for one in result.tasks if one.provenance == task] for task in tasks}
    figure, places = grid(len(tasks), 1.0 + 0.34 * max(map(len, by_task.values())))
    for axes, (task, arms) in zip(places, by_task.items(), strict=True):
        lines = np.arange(len(arms))
        axes.barh(lines, [one.success_rate for one in arms], height=0.6, alpha=0.5)
        for line, one in zip(lines, arms, strict=True):
            if one.success_interval is not None:
                axes.plot(one.success_interval, [line, line], color="black", linewidth=1.5)
            axes.plot(one.success_rates, [line] * len(one.success_rates), "k.", markersize=3)
        axes.set_yticks(lines, [one.arm for one in arms])
        axes.invert_yaxis()
        axes.set(xlim=(-0.02, 1.02), xlabel="success@1", title=task)
    save(figure, "success", "Success rates with their intervals, and each run as a point")
    curves = {task: [one for one in arms if one.curves] for task, arms in by_task.items()}
    curves = {task: arms for task, arms in curves.items() if arms}
    if curves:
        figure, places = grid(len(curves), 3.2)
        for axes, (task, arms) in zip(places, curves.items(), strict=True):
            for index, one in enumerate(arms):
                for number, curve in enumerate(one.curves):
                    points = zip(*((at["step"], at["success_rate"]) for at in curve), strict=True)
                    label = None if number else one.arm
                    axes.plot(*points, color=f"C{index % 10}", alpha=0.6, label=label)
            axes.axhline(result.config["success_threshold"], color="grey", linewidth=0.8, ls=":")
            axes.set(title=task, xlabel="steps of training", ylabel="success", ylim=(-0.03, 1.03))
            axes.legend(fontsize="small")
        save(figure, "curves", "Success of each run while it was trained")
    return made


def write_viewer(rows: Sequence[Row], root: Path) -> Path | None:
    """Write ``trajectories.html`` from the steps that were kept; return None without any."""
    source = root / "turns.jsonl"
    if not source.exists():
        return None
    known = {row["id"]: row for row in rows if row["kind"] == "episode"}
    kept = {}
    with source.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # cut off by a crash
                one = json.loads(line)
                if one["id"] in known:
                    kept[one["id"]] = one["turns"]
    parts = [_HEAD]
    for id_ in sorted(kept)[:_MOST_EPISODES]:
        parts += _episode(known[id_], kept[id_])
    if len(kept) > _MOST_EPISODES:
        parts.append(f"<p>… and {len(kept) - _MOST_EPISODES} more, in turns.jsonl.</p>")
    return _write(root / "trajectories.html", "".join(parts))


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def _episode(row: Row, turns: list[Row]) -> Iterator[str]:
    kind, mark = ("won", "✓") if row["success"] else ("lost", "✗")
    yield (
        f'<details><summary><span class="{kind}">{mark}</span> {_cut(row["id"])} '
        f"<small>{row['steps']} steps, reward {row['reward']:g}, {_cut(row['ended'])}</small>"
        "</summary>"
    )
    for number, turn in enumerate(turns[:_MOST_TURNS], 1):
        yield f"<p><small>step {number}, reward {turn['reward']:g}</small></p>"
        for kind in ("observation", "thought", "action"):
            if turn[kind]:
                yield f'<pre class="{kind}">{_cut(turn[kind])}</pre>'
    if len(turns) > _MOST_TURNS:
        yield f"<p>… and {len(turns) - _MOST_TURNS} more steps.</p>"
    if row["error"]:
        yield f"<pre>{_cut(row['error'])}</pre>"
    yield "</details>\n"


def _cut(text: str) -> str:
    more = "" if len(text) <= _MOST_TEXT else f" … and {len(text) - _MOST_TEXT} more characters"
    return html.escape(text[:_MOST_TEXT] + more)


def write_report(result: BenchmarkResult, rows: Sequence[Row], root: Path) -> None:
    """Write ``benchmark_report.md``, pictures, and ``trajectories.html``."""
    config = result.config
    counts = (
        f"{len(result.tasks)} arms on tasks, {config['num_seeds']} seeds,"
        f" {config['num_episodes']} episodes each; {len(result.skipped)} cells skipped,"
        f" {len(result.failed)} failed, {len(result.not_applicable)} not applicable,"
        f" {len(result.missing)} not done."
    )
    page = [
        "# Benchmark",
        counts,
        _NOTES,
        *_results(result),
    ]
    if config["generate_plots"] and result.tasks:
        try:
            made = draw(result, root / "plots")
        except ModuleNotFoundError as error:
            page.append(f"There are no pictures: {_cell(str(error.name))} is not installed.")
        else:
            page.append("## Pictures")
            for alt, path in made.items():
                page.append(f"![{alt}]({path.parent.name}/{path.name})")
                result.files[path.stem] = str(path)
    page += _reasons("Skipped", result.skipped)
    page += _reasons("Failed", result.failed)
    page += _reasons("Not applicable", result.not_applicable)
    page += _table("Not done", [{"cell": one} for one in result.missing])
    viewer = write_viewer(rows, root) if config["save_detailed_results"] else None
    if viewer is not None:
        link = f"[The steps of the first episodes of each cell]({viewer.name})"
        page += ["## Trajectories", link]
        result.files["trajectories"] = str(viewer)
    text = "\n\n".join(page) + "\n"
    result.files["report"] = str(_write(root / "benchmark_report.md", text))


def _results(result: BenchmarkResult) -> list[str]:
    def named(one: TaskResult) -> dict[str, str]:
        return {"task": one.provenance, "method": one.method, "backbone": one.backbone}

    results = [
        {
            **named(one),
            "model": one.model,
            "settings": one.settings,
            "seeds": str(len(one.seeds)),
            "episodes": f"{one.episodes:,d}",
            "success@1": _show(one.success_rate, ".1%", one.success_interval),
            "reward": _show(one.avg_reward, ".3f", one.reward_interval),
            "steps": f"{one.avg_steps:.1f}",
            "errors": str(one.errors),
            "time-outs": str(one.timeouts),
        }
        for one in result.tasks
    ]
    columns = ("provenance", "method", "backbone", "model", "settings")
    for other in dict.fromkeys(
        tuple(row[name] for name in columns) for row in result.not_applicable
    ):
        shown = dict(zip(("task", *columns[1:]), other, strict=True))
        rest = dict.fromkeys(("seeds", "episodes", "success@1", "reward", "steps", "errors"), "-")
        results.append({**shown, **rest, "success@1": "not applicable", "time-outs": "-"})
    took = [
        {
            **named(one),
            "tokens/episode": _show(one.tokens, ",.0f"),
            "cached": _cached(one, ".0%", one.cached_share),
            "tokens/s": _show(one.tokens_per_second, ",.0f"),
            "new tokens/s": _cached(one, ",.0f", one.computed_tokens_per_second),
            "steps/s": f"{one.steps_per_second:,.1f}",
            "cost": _show(one.cost, ",.4f", before="$"),
            "cost/success": _show(one.cost_per_success, ",.4f", before="$"),
            "training steps": _show(one.trained_steps, ",d"),
            "training seconds": _show(one.training_seconds, ",.0f"),
            "training cost": _show(one.training_cost, ",.4f", before="$"),
            "steps to threshold": _reached(one.steps_to_threshold),
        }
        for one in result.tasks
    ]
    overall = [
        {
            "arm": arm,
            "tasks": ", ".join(one["tasks"]),
            "runs": str(one["runs"]),
            "IQM of success": _show(one["iqm"], ".1%", one["iqm_interval"]),
            "mean of success": _show(one["mean"], ".1%", one["mean_interval"]),
        }
        for arm, one in result.overall.items()
    ]
    compared = [
        {
            "task": one.provenance,
            "reference": one.reference,
            "other": one.other,
            "difference": _show(one.difference, ".1%", one.interval),
            "pairs": f"{one.pairs} {one.unit}s",
            "p": f"{one.p:.4f}",
            "corrected": f"{one.p_corrected:.4f}",
            "least p": f"{one.least:.4f}",
        }
        for one in result.significance_tests
    ]
    return [
        *_table("On each task", results),
        *_table("What it took", took),
        *_table("Over tasks", overall),
        *_table(
            "Comparisons",
            compared,
            "Differences of success rates, in pairs; p of a permutation test, corrected for all of"
            " them together (Holm). With few pairs, no p can be below the least.",
        ),
    ]


def _table(title: str, rows: Sequence[Mapping[str, str]], text: str = "") -> list[str]:
    """Write a section with a table of rows that have the same columns; none without rows."""
    if not rows:
        return []
    lines = [map(_cell, rows[0]), ["---"] * len(rows[0])]
    lines += [map(_cell, row.values()) for row in rows[:_MOST_LISTED]]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    more = f"… and {len(rows) - _MOST_LISTED} more." if len(rows) > _MOST_LISTED else ""
    return [part for part in (f"## {title}", text, table, more) if part]


def _reasons(title: str, rows: Sequence[Row]) -> list[str]:
    reasons: dict[tuple[str, ...], list[int]] = {}
    columns = ("provenance", "method", "backbone", "reason")
    for row in rows:
        reasons.setdefault(tuple(row[name] for name in columns), []).append(row["seed"])
    listed = [
        {
            **dict(zip(("task", *columns[1:]), key, strict=True)),
            "seeds": f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(seeds[0]),
        }
        for key, seeds in reasons.items()
    ]
    return _table(title, listed)


def _reached(steps: Sequence[float | None]) -> str:
    """Format the median, with seeds that never reach it at the end, and how many do."""
    if not steps:
        return "-"
    known = sorted(step for step in steps if step is not None)
    middle = (len(steps) - 1) // 2
    median = f"{known[middle]:,.0f}" if middle < len(known) else "never"
    return f"{median} ({len(known)} of {len(steps)})"


def _show(value: float | None, form: str, interval: Interval = None, before: str = "") -> str:
    ends = "" if interval is None else f" ({interval[0]:{form}} … {interval[1]:{form}})"
    return "-" if value is None else f"{before}{value:{form}}{ends}"


def _cached(one: TaskResult, form: str, value: float | None) -> str:
    """Format what depends on a cache; some servers do not report it, which is not 0."""
    return "not reported" if value is None and one.tokens is not None else _show(value, form)


def _cell(text: str) -> str:
    """Escape text for a cell or line of Markdown."""
    plain = re.sub(r"\s+", " ", text).replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|\[\]!`*_])", r"\\\1", plain)
