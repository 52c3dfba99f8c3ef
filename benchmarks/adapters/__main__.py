"""Time each library's calls through its adapter; run as ``python -m benchmarks.adapters``."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import time
import timeit
from collections.abc import Iterator

from benchmarks import adapters
from benchmarks.machine import machine, versions
from benchmarks.timing import rounded

SIDES = ("bare", "adapter", "own")


def main() -> None:
    """Print a table, or a JSON line for each call."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("libraries", nargs="*", help="modules of benchmarks/adapters; default: all")
    parser.add_argument("--rounds", type=int, default=30, help="the best of so many counts")
    parser.add_argument("--seconds", type=float, default=0.02, help="of each side in a round")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args()
    if not options.json:
        print(f"{'library':18} {'call':28} {'bare µs':>9} {'adapter µs':>10} {'own µs':>9}", end="")
        print(f" {'adapter/bare':>12} {'own/adapter':>11}")
    about = {"machine": machine(), "versions": versions()} if options.json else {}
    for library, case in found(options.libraries):
        best = measure(case, options.rounds, options.seconds)
        cost, gain = best["adapter"] / best["bare"], best["own"] / best["adapter"]
        if options.json:
            micros = {side: rounded(best[side]) for side in SIDES}
            print(json.dumps({"library": library, "call": case.name, "micros": micros, **about}))
        else:
            micros = f"{best['bare']:9.2f} {best['adapter']:10.2f} {best['own']:9.2f}"
            print(f"{library:18} {case.name:28} {micros} {cost:12.2f} {gain:11.2f}", flush=True)


def found(libraries: list[str]) -> Iterator[tuple[str, adapters.Case]]:
    """Yield the cases of these libraries, or of all that are installed."""
    for name in libraries or [module.name for module in pkgutil.iter_modules(adapters.__path__)]:
        if name.startswith("_"):
            continue
        try:
            module = importlib.import_module(f"benchmarks.adapters.{name}")
        except ImportError as error:
            if libraries:
                raise
            print(f"{name:18} not measured: {error}")
            continue
        for case in module.cases():
            yield name, case


def measure(case: adapters.Case, rounds: int, seconds: float) -> dict[str, float]:
    """Return the best time of each side in µs; the sides take turns, since machines get slower.

    It is the thread's own time, so that other programs on the machine count less.
    """
    timers = {side: timeit.Timer(getattr(case, side), timer=time.thread_time) for side in SIDES}
    counts = {}
    for side, timer in timers.items():
        timer.timeit(20)
        counts[side] = max(1, round(seconds / (timer.timeit(20) / 20)))
    best = dict.fromkeys(SIDES, float("inf"))
    for _ in range(rounds):
        for side, timer in timers.items():
            best[side] = min(best[side], timer.timeit(counts[side]) / counts[side] * 1e6)
    return best


if __name__ == "__main__":
    main()
