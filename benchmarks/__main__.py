"""The command line: ``python -m benchmarks {run,check,report}``; each explains itself by --help."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import check, report, runner
from benchmarks.peers import PEERS
from benchmarks.suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Peer

HERE = Path(__file__).resolve().parent
COMMITTED = HERE / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.do(options)
    except KeyboardInterrupt:
        goes_on = "; the same command goes on from here" if options.do is _run else ""
        print(f"stopped{goes_on}", file=sys.stderr)
        return 130
    return status


def _run(options: argparse.Namespace) -> int:
    peers = options.peers
    if peers is None:
        peers = runner.peers_named(["light"])
        heavy = ", ".join(peer.name for peer in PEERS if peer.heavy)
        print(f"not asked for, as they download much: {heavy} (see --peers)", file=sys.stderr)
    asked = runner.Run(
        suites=options.suite or list(SUITES),
        out=options.out or HERE / "runs" / ("quick" if options.quick else "full"),
        quick=options.quick,
        peers=peers,
        only=options.only,
        repeats=options.repeats,
        fresh=options.fresh,
    )
    return runner.run(asked)


def _check(options: argparse.Namespace) -> int:
    return check.run(options.against, margin=options.margin)


def _report(options: argparse.Namespace) -> int:
    for path in report.write(options.results, print):
        print(path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True)

    run = commands.add_parser(
        "run",
        help="measure, and write a report",
        description="Measure workloads beside the machine's limits and beside other systems, each "
        "in an environment of its own that is made when it is first wanted. A run that is stopped "
        "goes on where it was when it is started again. The exit status is 1 when the content "
        "check of a workload failed; the speed never changes it.",
    )
    run.set_defaults(do=_run)
    run.add_argument(
        "--suite", nargs="+", choices=list(SUITES), metavar="SUITE", help=", ".join(SUITES)
    )
    run.add_argument("--quick", action="store_true", help="short runs of little data")
    run.add_argument(
        "--peers",
        type=_peers,
        help="all, none, names with commas between, or light: those that download little (default)",
    )
    run.add_argument("--only", default="", help="workloads whose name contains this")
    run.add_argument("--repeats", type=_count, help="rounds of each workload")
    run.add_argument("--fresh", action="store_true", help="measure also what is there already")
    run.add_argument(
        "--out", type=Path, help="where results go (default: benchmarks/runs/quick or /full)"
    )

    checking = commands.add_parser(
        "check",
        help="compare this tree with a run that was committed",
        description="Measure some workloads whose ratio to their bound hardly changes from "
        "run to run, and compare it with the results of an earlier run. The exit status is 1 when "
        "one is worse by more than the margin.",
    )
    checking.set_defaults(do=_check)
    checking.add_argument(
        "--against", type=Path, default=COMMITTED, help="the earlier run's folder"
    )
    checking.add_argument(
        "--margin", type=float, default=check.MARGIN, help="as a part of 1 (default %(default)s)"
    )

    reporting = commands.add_parser("report", help="write the report of a folder of results anew")
    reporting.set_defaults(do=_report)
    reporting.add_argument("results", type=Path, nargs="?", default=COMMITTED)
    return parser


def _peers(text: str) -> list[Peer]:
    try:
        return runner.peers_named(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count


if __name__ == "__main__":
    sys.exit(main())
