"""The report of a benchmark: the same in Markdown and in HTML, with pictures and trajectories.

Every number stands with the rows that it is computed of: a table's first column names the filter of
``rows.jsonl``. Text of environments and models is escaped wherever it goes into HTML or a table.
"""

from __future__ import annotations

import base64
import html
import re
from typing import TYPE_CHECKING, Any

from echoic.agents.evaluation import plots, trajectories

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from echoic.agents.evaluation.results import BenchmarkResult, Interval, TaskResult

__all__ = ["write_report"]

_MOST_LISTED = 200
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
td, th { border-bottom: 1px solid #8884; padding: .25rem .6rem; text-align: left }
img { max-width: 100%; background: white } code { font-size: 90% }
"""
_NOTES = """\
Success is the environment's own signal, in an episode that the environment itself ended. Errors, \
time-outs and episodes that a limit ended count as episodes without success. A cell of nothing but \
errors is failed, and in no number.
Intervals are made to hold the true value in about 95 cases of 100. Those of success rates of \
methods that do not train are Wilson's, over episodes; all others are of an expanded bootstrap, \
over runs for methods that train and else over episodes. It has none for fewer than five, or where \
all are equal, and holds less often where nearly all are.
Tokens and costs are those of acting; the training cost is what a judge's words cost, by run.
Tokens per second are those that a model read or wrote by the seconds of the episodes; 'new' \
leaves out what a cache had.
Each line's numbers are of the rows of `rows.jsonl` with its task, method, backbone and settings."""


class _Document:
    """Paragraphs, tables and pictures, to be written as Markdown and as HTML."""

    def __init__(self) -> None:
        self._markdown: list[str] = []
        self._html: list[str] = []

    def title(self, text: str, level: int = 2) -> None:
        self._markdown.append(f"{'#' * level} {_cell(text)}")
        self._html.append(f"<h{level}>{_escaped(text)}</h{level}>")

    def lines(self, texts: Iterable[str], *, ours: bool = False) -> None:
        """A list; Markdown in it means something in a text of ours only."""
        texts, form = list(texts), _plain if ours else _cell
        self._markdown.append("\n".join(f"- {form(text)}" for text in texts))
        items = "".join(f"<li>{_escaped(text)}</li>" for text in texts)
        self._html.append(f"<ul>{items}</ul>")

    def text(self, text: str) -> None:
        self._markdown.append(_cell(text))
        self._html.append(f"<p>{_escaped(text)}</p>")

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        rows = list(rows)
        lines = [header, ["---"] * len(header), *rows]
        self._markdown.append(
            "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
        )
        head = "".join(f"<th>{_escaped(text)}</th>" for text in header)
        body = "".join(
            "<tr>" + "".join(f"<td>{_escaped(text)}</td>" for text in row) + "</tr>" for row in rows
        )
        self._html.append(f"<table><tr>{head}</tr>{body}</table>")

    def picture(self, path: Path, alt: str) -> None:
        self._markdown.append(f"![{_cell(alt)}]({path.parent.name}/{path.name})")
        data = base64.b64encode(path.read_bytes()).decode()
        self._html.append(f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">')

    def link(self, text: str, path: Path) -> None:
        self._markdown.append(f"[{_cell(text)}]({path.name})")
        self._html.append(f'<p><a href="{html.escape(path.name)}">{_escaped(text)}</a></p>')

    def markdown(self) -> str:
        return "\n\n".join(self._markdown) + "\n"

    def html(self) -> str:
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>Benchmark</title>'
            f"<style>{_STYLE}</style>{''.join(self._html)}</html>\n"
        )


def write_report(result: BenchmarkResult, rows: Sequence[dict[str, Any]], root: Path) -> None:
    """Write ``benchmark_report.md`` and ``.html``, pictures, and the viewer of trajectories."""
    config = result.config
    page = _Document()
    page.title("Benchmark", 1)
    page.text(
        f"{len(result.tasks)} arms on tasks, {config['num_seeds']} seeds,"
        f" {config['num_episodes']} episodes each; {len(result.skipped)} cells skipped,"
        f" {len(result.failed)} failed, {len(result.missing)} not done."
    )
    page.lines(_NOTES.splitlines(), ours=True)
    _results(page, result)
    _pictures(page, result, rows, root)
    _reasons(page, "Skipped", result.skipped)
    _reasons(page, "Failed", result.failed)
    if result.missing:
        page.title("Not done")
        page.lines(_first(result.missing))
    if config["save_detailed_results"]:
        viewer = trajectories.write_viewer(rows, root)
        if viewer is not None:
            page.title("Trajectories")
            page.link("What was seen and done in the first episodes of each cell", viewer)
            result.files["trajectories"] = str(viewer)
    for name, text in (("benchmark_report.md", page.markdown()), ("report.html", page.html())):
        (root / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    result.files["report"] = str(root / "benchmark_report.md")
    result.files["html"] = str(root / "report.html")


def _results(page: _Document, result: BenchmarkResult) -> None:
    page.title("On each task")
    page.table(
        [
            "task", "method", "backbone", "model", "settings", "seeds", "episodes",
            "success@1", "reward", "steps", "errors", "time-outs",
        ],
        [
            [
                one.task, one.method, one.backbone, one.model, one.settings, str(len(one.seeds)),
                f"{one.episodes:,d}", _percent(one.success_rate, one.success_interval),
                _number(one.avg_reward, one.reward_interval), f"{one.avg_steps:.1f}",
                str(one.errors), str(one.timeouts),
            ]
            for one in result.tasks
        ],
    )  # fmt: skip
    page.title("What it took")
    page.table(
        [
            "task", "method", "backbone", "tokens/episode", "cached", "tokens/s", "new tokens/s",
            "steps/s", "cost", "cost/success", "training steps", "training time", "training cost",
            "steps to threshold",
        ],
        [
            [
                one.task, one.method, one.backbone, _or_dash(one.tokens, ",.0f"),
                _cached(one, ".0%", one.cached_share), _or_dash(one.tokens_per_second, ",.0f"),
                _cached(one, ",.0f", one.computed_tokens_per_second),
                f"{one.steps_per_second:,.1f}",
                _or_dash(one.cost, ",.4f", "$"), _or_dash(one.cost_per_success, ",.4f", "$"),
                _or_dash(one.trained_steps, ",d"), _or_dash(one.training_seconds, ",.0f", "", " s"),
                _or_dash(one.training_cost, ",.4f", "$"),
                _reached(one.steps_to_threshold),
            ]
            for one in result.tasks
        ],
    )  # fmt: skip
    page.title("Over tasks")
    page.table(
        ["arm", "tasks", "runs", "IQM of success", "mean of success"],
        [
            [
                arm,
                ", ".join(one["tasks"]),
                str(one["runs"]),
                _percent(one["iqm"], one["iqm_interval"]),
                _percent(one["mean"], one["mean_interval"]),
            ]
            for arm, one in result.overall.items()
        ],
    )
    page.title("Comparisons")
    page.text(
        "Differences of success rates, in pairs; p of a permutation test, corrected for all of"
        " them together (Holm). With few pairs, no p can be below the least."
    )
    page.table(
        [
            "task", "reference", "other", "difference", "pairs", "p", "corrected", "Wilcoxon",
            "least p",
        ],
        [
            [
                one.task, one.reference, one.other, _percent(one.difference, one.interval),
                f"{one.pairs} {one.unit}s", f"{one.p:.4f}", f"{one.p_corrected:.4f}",
                f"{one.p_wilcoxon:.4f}", f"{one.least:.4f}",
            ]
            for one in result.significance_tests
        ],
    )  # fmt: skip


def _pictures(
    page: _Document, result: BenchmarkResult, rows: Sequence[dict[str, Any]], root: Path
) -> None:
    if not result.config["generate_plots"] or not result.tasks:
        return
    try:
        made = plots.draw(result, rows, root / "plots")
    except ModuleNotFoundError as error:
        page.text(f"There are no pictures: {error.name} is not installed.")
        return
    page.title("Pictures")
    for alt, path in made.items():
        page.picture(path, alt)
        result.files[path.stem] = str(path)


def _reasons(page: _Document, title: str, rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    page.title(title)
    reasons: dict[tuple[str, str, str, str], list[int]] = {}
    for row in rows:
        key = (row["task"], row["method"], row["backbone"], row["reason"])
        reasons.setdefault(key, []).append(row["seed"])
    page.table(
        ["task", "method", "backbone", "reason", "seeds"],
        [[*key, _ranges(seeds)] for key, seeds in list(reasons.items())[:_MOST_LISTED]],
    )
    if len(reasons) > _MOST_LISTED:
        page.text(f"… and {len(reasons) - _MOST_LISTED} more, in rows.jsonl.")


def _first(names: Sequence[str]) -> list[str]:
    more = [f"… and {len(names) - _MOST_LISTED} more"] if len(names) > _MOST_LISTED else []
    return [*names[:_MOST_LISTED], *more]


def _ranges(seeds: Sequence[int]) -> str:
    return f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(seeds[0])


def _reached(steps: Sequence[float | None]) -> str:
    """The median, with seeds that never reach it at the end, and how many do."""
    if not steps:
        return "-"
    known = sorted(step for step in steps if step is not None)
    middle = (len(steps) - 1) // 2
    median = f"{known[middle]:,.0f}" if middle < len(known) else "never"
    return f"{median} ({len(known)} of {len(steps)})"


def _percent(value: float, interval: Interval) -> str:
    ends = "" if interval is None else f" ({interval[0] * 100:.1f} … {interval[1] * 100:.1f})"
    return f"{value * 100:.1f} %{ends}"


def _number(value: float, interval: Interval) -> str:
    ends = "" if interval is None else f" ({interval[0]:.3f} … {interval[1]:.3f})"
    return f"{value:.3f}{ends}"


def _or_dash(value: float | None, form: str, before: str = "", after: str = "") -> str:
    return "-" if value is None else f"{before}{format(value, form)}{after}"


def _cached(one: TaskResult, form: str, value: float | None) -> str:
    """What depends on a cache, which some servers say nothing of: that is not 0."""
    if value is None and one.tokens is not None:
        return "not told"
    return _or_dash(value, form)


def _cell(text: str) -> str:
    """Text that stays within a cell or line of Markdown, and means nothing there."""
    return re.sub(r"([\\|\[\]!`*_])", r"\\\1", _plain(text))


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("<", "&lt;").replace(">", "&gt;")


def _escaped(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
