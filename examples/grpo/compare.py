"""Whether disturbances change what is learned: ``python -m examples.grpo.compare``.

Runs with and without a killed worker and a restart, with as many seeds each, and a permutation test
on how good the policies are in the end: if the disturbances did nothing, it would not matter which
runs are called disturbed, so the difference of the means is compared with that of all other ways
to call them. The same for the area under the curves, which sees a run that learns later.

A large p-value does not prove that there is no difference, so it also says how large a difference
these runs would have shown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from examples.grpo.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.grpo.run import Result

LEVEL = 0.05
# Above this many ways to call the runs, so many are drawn.
MOST_WAYS = 20_000


def permutation_test(a: Sequence[float], b: Sequence[float], seed: int = 0) -> float:
    """Return how likely means as far apart as these are, if runs are assigned at random."""
    values = np.array([*a, *b], np.float64)
    values = values - values.mean()
    size = len(a)
    observed = abs(np.mean(values[:size]) - np.mean(values[size:]))
    if comb(len(values), size) <= MOST_WAYS:
        chosen = np.array(list(combinations(range(len(values)), size)))
    else:
        rng = np.random.default_rng(seed)
        drawn = [rng.permutation(len(values))[:size] for _ in range(MOST_WAYS - 1)]
        # The way that it was is one of them, so that p is never zero.
        chosen = np.array([range(size), *drawn])
    sums = values[chosen].sum(1)
    others = len(values) - size
    differences = np.abs(sums / size - (values.sum() - sums) / others)
    return float(np.mean(differences >= observed - 1e-12))


def detectable(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the difference of means that such a test finds in four of five cases, about."""
    spread = np.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b))
    # Quantiles of the normal distribution: of 1 - LEVEL / 2, and of 0.8.
    return float((1.96 + 0.84) * spread)


def area(result: Result) -> float:
    """Return the mean score over the whole run."""
    return float(np.mean([point.score for point in result.points if point.score is not None]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, and say what the test says."""
    from examples.grpo.run import TRANSPORTS, run

    parser = argparse.ArgumentParser(
        prog="python -m examples.grpo.compare",
        description="Compare runs with and without a killed worker and a restart.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=8, help="runs of each kind, at least 4")
    parser.add_argument("--versions", type=int, default=Settings.versions, help="updates to make")
    parser.add_argument("--transport", choices=TRANSPORTS, default="shm")
    found = parser.parse_args(arguments)
    console = Console()
    kinds: dict[str, list[Result]] = {"undisturbed": [], "disturbed": []}
    with tempfile.TemporaryDirectory(prefix="grpo-") as folder:
        # In turns, so that whatever else the machine does meets both.
        for seed in range(found.seeds):
            for kind, results in kinds.items():
                # Different seeds: these are two samples, not pairs.
                own = 2 * seed + (kind == "disturbed")
                settings = Settings(Path(folder) / str(own), own, versions=found.versions)
                is_disturbed = kind == "disturbed"
                results.append(
                    run(settings, found.transport, kill_worker=is_disturbed, restart=is_disturbed)
                )
                console.print(f"{kind}, seed {own}: {results[-1].score:.3f}")
    table = Table("", "undisturbed", "disturbed", "p", "would show", title="Means ± deviations")
    is_same = True
    for name, of in {"score in the end": lambda r: r.score, "over the run": area}.items():
        a, b = ([of(result) for result in results] for results in kinds.values())
        p = permutation_test(a, b)
        is_same = is_same and p >= LEVEL
        cells = [f"{np.mean(x):.3f} ± {np.std(x, ddof=1):.3f}" for x in (a, b)]
        table.add_row(name, *cells, f"{p:.3f}", f"{detectable(a, b):.3f}")
    console.print(table)
    console.print(
        "No difference found: p is the chance of means this far apart if there is none, and a "
        "difference as large as in the last column would have been found in four of five cases."
        if is_same
        else "The disturbed runs differ."
    )
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
