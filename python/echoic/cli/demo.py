"""`echoic demo`: learn CartPole, with a live view."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from echoic.cli.console import INTERRUPTED, fail

__all__ = ["demo"]

NEEDS = ("gymnasium", "matplotlib")
THREADS = "OPENBLAS_NUM_THREADS"


def demo(
    *,
    seed: Annotated[int, typer.Option(help="Seed of the networks and the games.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Steps to learn from at most.")] = 300_000,
    target: Annotated[float, typer.Option(help="Mean return to stop at.")] = 400.0,
    out: Annotated[Path, typer.Option(help="Folder for the plot and the numbers.")] = Path(
        "demo-output"
    ),
) -> None:
    """Learn CartPole with worker processes that send through Echoic, with a live view and a plot.

    The status is 0 when the mean return of the last 100 training episodes reaches the target, which
    takes less than two minutes, and else 1.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"the demo needs {' and '.join(missing)}. Get it with: pip install 'echoic[demo]'")
    if THREADS not in os.environ:
        # Start the process again: the networks are so small that threads inside a matrix product
        # only slow down the workers, and numpy's library reads this when it is first imported.
        command = [sys.executable, "-m", "echoic", *sys.argv[1:]]
        os.execve(sys.executable, command, {THREADS: "1", **os.environ})
    from echoic.demo import Options, report, train

    try:
        progress, learner = train(Options(seed, workers, steps, target, out))
    except KeyboardInterrupt:
        fail("interrupted; all workers have stopped", INTERRUPTED)
    report(progress, learner.evaluate(20, seed))
    raise typer.Exit(0 if progress.reached else 1)
