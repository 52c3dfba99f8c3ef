"""A maze that needs a memory, learned with a plan of what was seen and without.

Run ``python examples/latent_planning_demo.py``, from any folder. It takes less than a
minute, shows both learners while they learn, and draws their curves and their plans into a picture.

Both have the same networks, as many parameters and as many episodes. The plan of one is made of all
states of the episode, that of the other of the current one. The second picture has the plans of the
first at the junction, where nothing that is seen tells the cue: each point is a plan that was acted
on, by its two main components, in the colour of the cue.

The maze, the learner and their settings are in `examples.tmaze`. Left out, to stay readable:
several seeds, which `python -m experiments plans_tmaze` has.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.live import Live
from rich.table import Table

if not __package__:  # it is run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import tmaze

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# What each arm sees of the past: everything, and nothing.
ARMS = {"with a plan": None, "without": 0}
BARS = " ▁▂▃▄▅▆▇█"


@dataclass
class Outcome:
    """What the demo found."""

    # Of each arm: the share of right turns in every iteration, and of the likeliest actions after.
    curves: dict[str, list[float]] = field(default_factory=dict)
    success: dict[str, float] = field(default_factory=dict)
    # How often a linear classifier reads the cue from a plan.
    probe: float = 0.0
    # Plans of the junction, and the cues behind them.
    plans: NDArray[np.float64] | None = None
    cues: NDArray[np.int64] | None = None
    seconds: float = 0.0


def run(seed: int, iterations: int, show: Callable[[Outcome], None]) -> Outcome:
    """Learn with a plan until the maze is solved, and without one for as long."""
    began = time.perf_counter()
    found = Outcome()
    for arm, history in ARMS.items():
        curve = found.curves.setdefault(arm, [])

        def watch(_: int, right: float, curve: list[float] = curve) -> None:
            curve.append(right)
            show(found)

        trained = tmaze.train(
            seed,
            history=history,
            iterations=iterations if history is None else len(found.curves["with a plan"]),
            until=0.97 if history is None else 1.1,
            watch=watch,
        )
        found.success[arm] = tmaze.evaluate(trained, seed=seed + 1, history=history)
        if history is None:
            found.probe = tmaze.probe(trained, seed=seed + 2)
            maze = tmaze.TMaze(400, seed + 3)
            walked = tmaze.walk(maze, trained.planner, trained.learner)
            found.plans, found.cues = walked["latent_plans"][-1].double().numpy(), maze.cue
        show(found)
    found.seconds = time.perf_counter() - began
    return found


def table(found: Outcome) -> Table:
    """The state of both arms, to be shown while they learn."""
    made = Table(title="T-maze: right turns at the junction")
    for title in ("", "episodes", "each iteration", "likeliest actions"):
        made.add_column(title)
    for arm, curve in found.curves.items():
        bars = "".join(BARS[round(8 * right)] for right in curve[-50:])
        after = f"{found.success[arm]:.1%}" if arm in found.success else "…"
        made.add_row(arm, str(64 * len(curve)), bars, after)
    return made


def draw(found: Outcome, path: Path) -> None:
    """Draw the curves and the plans into a PNG."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    curves, plans = figure.subplots(1, 2, width_ratios=(3, 2))
    for arm, color in zip(ARMS, ("tab:blue", "tab:orange"), strict=True):
        curve = np.asarray(found.curves[arm])
        smooth = [curve[max(0, i - 4) : i + 1].mean() for i in range(len(curve))]
        episodes = 64 * np.arange(1, len(curve) + 1)
        curves.plot(episodes, curve, ".", color=color, alpha=0.3)
        curves.plot(episodes, smooth, color=color, label=arm)
    curves.axhline(0.5, color="0.6", linestyle="--", label="a guess")
    curves.set(xlabel="episodes", ylabel="right turns", ylim=(0, 1.05), title="Learning")
    curves.legend(loc="lower right")
    if found.plans is not None and found.cues is not None:
        centred = found.plans - found.plans.mean(axis=0)
        main = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
        for side, name in enumerate(("left", "right")):
            plans.plot(*main[found.cues == side].T, ".", alpha=0.4, label=f"cue was {name}")
        plans.set(title=f"Plans: cue read from {found.probe:.0%}")
        plans.legend()
    for axes in (curves, plans):
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit status says whether the plan made the difference."""
    parser = argparse.ArgumentParser(
        description="Learn a maze with a plan and without.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random")
    parser.add_argument("--iterations", type=int, default=60, help="at most, of 64 episodes each")
    parser.add_argument("--plot", type=Path, default=Path("latent_planning.png"), help="picture")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console()
    with Live(console=console, refresh_per_second=8) as live:
        found = run(asked.seed, asked.iterations, lambda outcome: live.update(table(outcome)))
    draw(found, asked.plot)
    console.print(
        f"\nA linear classifier reads the cue from {found.probe:.1%} of the plans. "
        f"{found.seconds:.0f} s; the picture is {asked.plot}."
    )
    solved = found.success["with a plan"] >= 0.95 and found.success["without"] <= 0.6
    return 0 if solved else 1


if __name__ == "__main__":
    raise SystemExit(main())
