"""Runs studies and keeps their rows: ``python -m experiments [NAME …] [--quick] [--out FOLDER]``.

A study is a module of this package with ``run(out, quick)``. It appends a row to ``out/NAME.jsonl``
as soon as it has one, and does not compute again what is already there: a run may be stopped, and
gone on with. Rows of quick runs go to a folder of their own, apart from the real ones.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    """All studies: the modules here that do not begin with an underscore."""
    found = (module.name for module in pkgutil.iter_modules([str(HERE)]))
    return sorted(name for name in found if not name.startswith("_"))


def main(arguments: list[str] | None = None) -> None:
    """Run the studies that are named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names())}")
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours")
    parser.add_argument("--steps", type=int, help="train so long, where a study trains methods")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="only these, where it has some")
    parser.add_argument("--out", type=Path, help="where rows go (experiments/results)")
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.names) - set(names()))
    if unknown:
        parser.error(f"there is no study {unknown[0]!r}; there are {', '.join(names())}")
    out = asked.out or HERE / ("quick" if asked.quick else "results")
    out.mkdir(parents=True, exist_ok=True)
    chosen = {"steps": asked.steps, "tasks": asked.tasks}
    given = {option: value for option, value in chosen.items() if value is not None}
    for name in asked.names or names():
        print(f"==> {name}", flush=True)
        run = importlib.import_module(f"experiments.{name}").run
        unknown = sorted(set(given) - set(inspect.signature(run).parameters))
        if unknown:
            parser.error(f"the study {name!r} has no {unknown[0]} to choose")
        run(out, asked.quick, **given)


if __name__ == "__main__":
    main()
