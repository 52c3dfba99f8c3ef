"""The picture at the end: how the return grew, how fast steps flowed, how old they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from echoic.demo.progress import EPISODES, Progress

if TYPE_CHECKING:
    from pathlib import Path


def save_plot(progress: Progress, target: float, path: Path) -> None:
    """Draw `progress` into a PNG at `path`; its folder is made where missing."""
    ticks = progress.ticks
    steps = [tick.steps for tick in ticks]
    seconds = [tick.seconds for tick in ticks]

    # A figure without pyplot needs no display and leaves no global state.
    figure = Figure(figsize=(9, 8), layout="constrained")
    learning, throughput, lag = figure.subplots(3, height_ratios=(2, 1, 1))
    figure.suptitle("CartPole-v1, learned through Echoic")

    # Only the batch in which an episode ended is known: its dots stand at that batch.
    ended = np.diff([0, *(tick.episodes for tick in ticks)])
    learning.plot(
        np.repeat(steps, ended),
        progress.returns,
        ".",
        color="tab:blue",
        alpha=0.25,
        label="an episode",
    )
    learning.plot(
        steps,
        [tick.mean_return for tick in ticks],
        color="tab:blue",
        label=f"mean of the last {EPISODES}",
    )
    learning.axhline(target, color="tab:green", linestyle="--", label="target")
    learning.set(xlabel="steps learned from", ylabel="return", ylim=(0, 510))
    learning.xaxis.set_major_formatter("{x:,.0f}")
    learning.legend(loc="lower right")

    throughput.plot(seconds, [progress.rate(moment) for moment in seconds], color="tab:orange")
    throughput.set(xlabel="seconds", ylabel="steps/s, over 1 s")
    throughput.yaxis.set_major_formatter("{x:,.0f}")
    throughput.set_ylim(bottom=0)

    lag.plot(seconds, [tick.lag_max for tick in ticks], color="0.75", label="largest")
    lag.plot(seconds, [tick.lag_mean for tick in ticks], color="tab:red", label="mean")
    lag.set(xlabel="seconds", ylabel="versions behind")
    lag.set_ylim(bottom=0)
    lag.legend(loc="lower right")

    for axes in (learning, throughput, lag):
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
