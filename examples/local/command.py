"""What the examples of this folder share: how they are run and what they end with."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from examples.training import Options, sayer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Result:
    """What a run ended with."""

    # What is judged: a mean over the latest episodes, or over those of an evaluation.
    score: float
    reached: bool
    # Scores from the first to the last, of whatever the example learns from or is judged by.
    history: list[float]
    # What a person should read.
    said: list[str]
    # The parameters in the end, so that two runs can be compared.
    params: NDArray[Any]


def run(train: Callable[[Options], Result], summary: str, steps: int, target: float) -> int:
    """Run an example from the command line; the exit status says whether it reached its target."""
    parser = argparse.ArgumentParser(
        description=f"{summary} Exits with 1 when the score does not reach the target.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random")
    parser.add_argument("--steps", type=int, default=steps, help="to take at most")
    parser.add_argument("--target", type=float, default=target, help="score to stop at")
    found = parser.parse_args()
    result = train(Options(found.steps, found.target, found.seed))
    say = sayer()
    for line in result.said:
        say(line)
    say(
        f"{'Reached' if result.reached else 'Missed'} the target of {found.target:g}: "
        f"{result.score:.3g}."
    )
    return 0 if result.reached else 1
