"""The command line: ``python -m benchmarks {stream,net,tables,local} [--quick] [--no-peers]``.

Results go to standard output (or FILE), one JSON object a line; progress and a short
reading of each result go to standard error. The exit status is 1 when the content check
of a workload failed; the speed never changes it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from benchmarks import report
from benchmarks.content import ContentError
from benchmarks.engine import ENGINE, Engine
from benchmarks.local.ours import ENGINE as LOCAL
from benchmarks.machine import machine, versions
from benchmarks.peers import PEERS
from benchmarks.peers.process import EngineProcess, PeerProcess
from benchmarks.progress import Progress
from benchmarks.suites import SUITES
from benchmarks.tables.ours import ENGINE as TABLES
from benchmarks.timing import OpenSubject, interleave

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workloads the arguments ask for and return the exit status."""
    options = _options(arguments)
    with contextlib.ExitStack() as stack:
        out: TextIO = sys.stdout
        if options.out is not None:
            out = stack.enter_context(options.out.open("w"))
        return run(
            options.suite,
            out,
            quick=options.quick,
            peers=options.peers,
            repeats=options.repeats,
            only=options.only,
        )


def run(  # noqa: PLR0913 - the options of the command line
    suite: str,
    out: TextIO,
    *,
    quick: bool,
    peers: bool,
    repeats: int,
    only: str,
    engine: Engine | None = None,
) -> int:
    """Measure every workload of a suite whose name contains ``only``, on Echoic by default."""
    if engine is None:
        engine = {"tables": TABLES, "local": LOCAL}.get(suite, ENGINE)
    workloads = [w for w in SUITES[suite](quick) if only in w.name]
    failed = False
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(len(workloads) * (repeats + 1)))
        processes: dict[str, PeerProcess] = {}
        if peers:
            for peer in (peer for peer in PEERS if suite in peer.suites):
                progress.say(f"{peer.name}: preparing its environment")
                processes[peer.name] = PeerProcess(peer, suite=suite, quick=quick)
        ours = EngineProcess(type(engine).__module__, suite=suite, quick=quick)
        for workload in workloads:
            progress.begin(workload.name)
            subjects: dict[str, OpenSubject] = {
                report.BOUND: partial(workload.bound, engine),
                # What talks to other processes has a process of its own, as the peer's has.
                report.OURS: partial(ours.session, workload.name)
                if suite != "stream"
                else partial(workload.session, engine),
            }
            for name, process in processes.items():
                subjects[name] = partial(process.session, workload.name)
            try:
                rounds = interleave(subjects, repeats, after_round=progress.advance)
            except ContentError as error:
                progress.say(f"{workload.name}: WRONG CONTENT, no number: {error}")
                failed = True
                continue
            if report.OURS in rounds.unavailable:
                progress.say(f"{workload.name}: {rounds.unavailable[report.OURS]}")
                continue
            about: dict[str, dict[str, Any]] = {
                name: {"version": process.peer.version} for name, process in processes.items()
            }
            line = report.record(workload, rounds, about)
            line["quick"] = quick
            line["machine"] = machine()
            line["versions"] = versions()
            print(json.dumps(line), file=out, flush=True)
            progress.say(report.headline(line))
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "suite", nargs="?", choices=list(SUITES), default="stream", help="what to measure"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny runs: to see that it works, not how fast",
    )
    parser.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure peers beside Echoic, each in an environment of its own",
    )
    parser.add_argument("--out", type=Path, help="write the results there")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--repeats", type=int, help="rounds (default 9, quick 3)")
    options = parser.parse_args(arguments)
    if options.repeats is None:
        options.repeats = 3 if options.quick else 9
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
