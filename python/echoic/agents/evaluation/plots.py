"""Pictures of a benchmark, drawn without a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from echoic.agents.evaluation.results import BenchmarkResult, TaskResult

__all__ = ["draw"]

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
