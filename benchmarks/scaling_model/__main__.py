"""The command line: ``python -m benchmarks.scaling_model {measure,tables,idle}``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import machine, versions
from benchmarks.scaling_model import parts, setups, tables
from benchmarks.scaling_model.costs import COMMITTED

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for and return the exit status."""
    options = _parser().parse_args(arguments)
    status: int = options.do(options)
    return status


def _measure(options: argparse.Namespace) -> int:
    costs = parts.measured(quick=options.quick)
    seconds = 0.3 if options.quick else 1.0
    checks = []
    for setup in setups.setups():
        one = setups.check(setup, costs, seconds, rounds=1 if options.quick else 5)
        checks.append(one)
        ratio = one["measured"] / one["predicted"]
        off = "" if setups.is_within(ratio) else f"  more than {setups.MARGIN:.0%} off"
        print(
            f"{setup.name:32} {one['measured']:14,.0f} {ratio:6.2f} of predicted{off}", flush=True
        )
    costs.write(options.out, machine=machine(), versions=versions(), checks=checks)
    print(options.out)
    return 0 if all(setups.is_within(one["measured"] / one["predicted"]) for one in checks) else 1


def _tables(options: argparse.Namespace) -> int:
    text = options.page.read_text()
    anew = tables.written(text, options.costs)
    if options.check:
        return int(anew != text)
    options.page.write_text(anew)
    return 0


def _idle(options: argparse.Namespace) -> int:
    for kind in ("stream", "table"):
        known = parts.idling(kind, options.connections, seconds=1.0)
        print(
            f"{kind}: {known.standing} idle connections, each of which has "
            f"{known.resident / 1024:.1f} KiB of the server after it was used, and "
            f"{known.fresh / 1024:.1f} KiB before; a client has {known.client / 1024:.1f} KiB"
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling_model", description=__doc__)
    commands = parser.add_subparsers(required=True)
    measure = commands.add_parser(
        "measure",
        help="measure the parts, and setups made of them beside what is predicted for them",
        description="The exit status is 1 when a prediction is more than a quarter off.",
    )
    measure.set_defaults(do=_measure)
    measure.add_argument("--quick", action="store_true", help="shorter, with more noise")
    measure.add_argument("--out", type=Path, default=COMMITTED, help="default: %(default)s")
    page = commands.add_parser("tables", help="write the documentation's tables anew")
    page.set_defaults(do=_tables)
    page.add_argument("--check", action="store_true", help="only say whether they would change")
    page.add_argument("--page", type=Path, default=tables.PAGE)
    page.add_argument("--costs", type=Path, default=COMMITTED)
    idle = commands.add_parser("idle", help="measure the memory of idle connections")
    idle.set_defaults(do=_idle)
    idle.add_argument("--connections", type=int, default=2000)
    return parser


if __name__ == "__main__":
    sys.exit(main())
