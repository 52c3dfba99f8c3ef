"""The report of a benchmark, in Markdown and in HTML, with pictures and a viewer of trajectories.

Every number stands with the rows that it is computed of: a table's first columns are the filter of
``rows.jsonl``. Text of environments and models may say anything: it is escaped wherever it goes
into HTML or a table, cut to a length, and the viewer, which needs no server, forbids scripts.
Pictures are drawn without a screen, and need matplotlib.
"""

from __future__ import annotations

import base64
import html
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.evaluation.rows import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from echoic.agents.evaluation.results import BenchmarkResult, Interval, TaskResult

__all__ = ["draw", "write_report", "write_viewer"]

_MOST_TASKS = 24


def draw(result: BenchmarkResult, rows: Sequence[dict[str, Any]], folder: Path) -> dict[str, Path]:
    """Draw what there is to draw; the pictures' files, by what they show."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Path] = {}

    def save(figure: Any, name: str, alt: str) -> None:
        made[alt] = folder / f"{name}.png"
        figure.savefig(made[alt], dpi=110, metadata={"Software": None})

    tasks = list(dict.fromkeys(one.task for one in result.tasks))[:_MOST_TASKS]
    by_task = {task: [one for one in result.tasks if one.task == task] for task in tasks}
    bars = max(len(arms) for arms in by_task.values())
    figure = Figure((4.6 * min(len(tasks), 3), (1.0 + 0.34 * bars) * -(-len(tasks) // 3)))
    figure.set_layout_engine("constrained")
    for place, (task, arms) in enumerate(by_task.items(), 1):
        axes = figure.add_subplot(-(-len(tasks) // 3), min(len(tasks), 3), place)
        _bars(axes, task, arms)
    save(figure, "success", "Success rates with their intervals, and each run as a point")
    if spoken := [one for one in result.tasks if one.tokens_per_second is not None]:
        figure = Figure((6.4, 1.0 + 0.3 * len(spoken)), layout="constrained")
        axes = figure.subplots()
        names = [f"{one.task} · {one.arm}" for one in spoken]
        new = [one.computed_tokens_per_second or 0.0 for one in spoken]
        cached = [
            (one.tokens_per_second or 0.0) - rest for one, rest in zip(spoken, new, strict=True)
        ]
        axes.barh(names, new, label="computed")
        axes.barh(names, cached, left=new, label="from a cache")
        axes.invert_yaxis()
        axes.set_xlabel("tokens per second")
        axes.legend()
        save(figure, "tokens", "Tokens per second, computed and from a cache")
    if curves := _curves(result, rows):
        figure = Figure(
            (4.6 * min(len(curves), 3), 3.2 * -(-len(curves) // 3)), layout="constrained"
        )
        for place, (task, arms_curves) in enumerate(curves.items(), 1):
            axes = figure.add_subplot(-(-len(curves) // 3), min(len(curves), 3), place)
            for index, (arm, runs) in enumerate(arms_curves.items()):
                for number, (steps, values) in enumerate(runs):
                    label = arm if number == 0 else None
                    axes.plot(steps, values, color=f"C{index % 10}", alpha=0.6, label=label)
            axes.axhline(result.config["success_threshold"], color="grey", linewidth=0.8, ls=":")
            axes.set(title=task, xlabel="steps of training", ylabel="success", ylim=(-0.03, 1.03))
            axes.legend(fontsize="small")
        save(figure, "curves", "Success of each run while it was trained")
    return made


def _bars(axes: Any, task: str, arms: list[TaskResult]) -> None:
    places = np.arange(len(arms))
    rates = np.array([one.success_rate for one in arms])
    axes.barh(places, rates, height=0.6, alpha=0.5)
    for place, one in zip(places, arms, strict=True):
        if one.success_interval is not None:
            axes.plot(one.success_interval, [place, place], color="black", linewidth=1.5)
        axes.plot(one.success_rates, [place] * len(one.success_rates), "k.", markersize=3)
    axes.set_yticks(places, [one.arm for one in arms])
    axes.invert_yaxis()
    axes.set(xlim=(-0.02, 1.02), xlabel="success@1", title=task)


def _curves(
    result: BenchmarkResult, rows: Sequence[dict[str, Any]]
) -> dict[str, dict[str, list[tuple[list[float], list[float]]]]]:
    """The curves of trainings, by task and arm."""
    arms = {tuple(one.filter.values()): one for one in result.tasks}
    found: dict[str, dict[str, list[tuple[list[float], list[float]]]]] = {}
    for row in rows:
        if row["kind"] != "training" or not row["curve"]:
            continue
        one = arms.get((row["task"], row["method"], row["backbone"], row["settings"]))
        if one is not None:
            steps = [point["step"] for point in row["curve"]]
            values = [point["success_rate"] for point in row["curve"]]
            found.setdefault(one.task, {}).setdefault(one.arm, []).append((steps, values))
    return found


_MOST_EPISODES = 200
_MOST_TURNS = 200
_MOST_TEXT = 4000
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Trajectories</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .5rem; margin: .3rem 0 }
pre { background: #8881 }
pre.thought { font-style: italic } pre.action { border-left: 3px solid #38c }
summary { cursor: pointer } .won { color: #2a7 } .lost { color: #c43 } small { opacity: .7 }
</style><h1>Trajectories</h1>
"""


def write_viewer(rows: Sequence[dict[str, Any]], root: Path) -> Path | None:
    """Write ``trajectories.html`` from the steps that were kept; None if there are none."""
    source = root / "turns.jsonl"
    if not source.exists():
        return None
    known = {row["id"]: row for row in rows if row["kind"] == "episode"}
    kept: dict[str, list[dict[str, Any]]] = {}
    for told in objects(source):
        if told.get("id") in known and "turns" in told:
            kept[told["id"]] = told["turns"]
    path = root / "trajectories.html"
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(_HEAD)
        for id_ in sorted(kept)[:_MOST_EPISODES]:
            file.writelines(_episode(known[id_], kept[id_]))
        if len(kept) > _MOST_EPISODES:
            file.write(f"<p>… and {len(kept) - _MOST_EPISODES} more, in turns.jsonl.</p>")
    return path


def _episode(row: dict[str, Any], turns: list[dict[str, Any]]) -> Iterator[str]:
    mark = "won" if row["success"] else "lost"
    yield (
        f'<details><summary><span class="{mark}">{"✓" if row["success"] else "✗"}</span>'
        f" {_text(row['id'])} <small>{row['steps']} steps, reward {row['reward']:g},"
        f" {_text(row['ended'])}</small></summary>"
    )
    for number, turn in enumerate(turns[:_MOST_TURNS], 1):
        yield f"<p><small>step {number}, reward {turn['reward']:g}</small></p>"
        for kind in ("observation", "thought", "action"):
            if turn[kind]:
                yield f'<pre class="{kind}">{_text(turn[kind])}</pre>'
    if len(turns) > _MOST_TURNS:
        yield f"<p>… and {len(turns) - _MOST_TURNS} more steps.</p>"
    if row["error"]:
        yield f"<pre>{_text(row['error'])}</pre>"
    yield "</details>\n"


def _text(text: str) -> str:
    more = "" if len(text) <= _MOST_TEXT else f" … and {len(text) - _MOST_TEXT} more characters"
    return html.escape(text[:_MOST_TEXT] + more)


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
        viewer = write_viewer(rows, root)
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
            "task", "reference", "other", "difference", "pairs", "p", "corrected", "least p",
        ],
        [
            [
                one.task, one.reference, one.other, _percent(one.difference, one.interval),
                f"{one.pairs} {one.unit}s", f"{one.p:.4f}", f"{one.p_corrected:.4f}",
                f"{one.least:.4f}",
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
        made = draw(result, rows, root / "plots")
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
