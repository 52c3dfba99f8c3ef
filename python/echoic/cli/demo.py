"""`echoic demo`: a policy that is learned while one looks."""

import importlib.util
import os
import sys

import typer

from echoic.cli.console import fail

__all__ = ["demo"]

NEEDS = ("gymnasium", "matplotlib")


def demo(context: typer.Context) -> None:
    """Learn CartPole with worker processes that send through Echoic, with a live view and a plot.

    Its own options are those that --help lists. The status is 0 when it has learned enough, which
    takes less than two minutes.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"the demo needs {' and '.join(missing)}. Get it with: pip install 'echoic[demo]'")
    # Anew: the networks are so small that threads inside a matrix product only get in the way of
    # the workers, and numpy's library reads this when it is first imported.
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", "echoic.demo", *context.args]
    os.execve(sys.executable, command, environment)  # noqa: S606 - this very program
