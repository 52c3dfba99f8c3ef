"""The run: every workload of some suites, each beside its bounds and its peers, in turns.

A workload whose line is there already, of the same build and on the same machine, is not measured
again: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import report
from benchmarks.child import ChildError
from benchmarks.content import ContentError
from benchmarks.lines import BOUND, ECHOIC, LIMIT, Lines, headline, record
from benchmarks.machine import machine, versions
from benchmarks.peers import PEERS
from benchmarks.peers.environment import is_wanting
from benchmarks.peers.process import EngineProcess, PeerProcess
from benchmarks.progress import Progress
from benchmarks.suites import QUICK_ROUNDS, SUITES
from benchmarks.timing import OpenSubject, interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from benchmarks.lines import Record
    from benchmarks.peers import Peer
    from benchmarks.workload import Workload

# The modules with Echoic's engine for each kind of workload.
OURS = {
    "stream": "benchmarks.engine",
    "net": "benchmarks.engine",
    "tables": "benchmarks.tables.ours",
    "local": "benchmarks.local.ours",
    "durability": "benchmarks.engine",
    "limits": "benchmarks.engine",
    "rollouts": "benchmarks.rollouts.ours",
    "loops": "benchmarks.rollouts.loops",
    "weights": "benchmarks.engine",
    "model": "benchmarks.engine",
}
# All others have a process of their own, as a peer has.
_IN_THIS_PROCESS = {"stream", "limits", "model"}


@dataclass(frozen=True)
class Run:
    """What is asked for: workloads whose name contains ``only``, of ``names`` if there are any.

    ``repeats`` is how many rounds, if not as many as the suite says. ``engines`` may be given by
    kind, in place of Echoic's. Unless ``apart``, no session has a process of its own, whose start
    takes longer than a quick workload does. Unless ``warm_up``, the first round counts too.
    """

    suites: Sequence[str]
    out: Path
    quick: bool = False
    peers: Sequence[Peer] = ()
    only: str = ""
    names: Collection[str] = ()
    repeats: int | None = None
    fresh: bool = False
    engines: Mapping[str, Any] = field(default_factory=dict)
    apart: bool = True
    warm_up: bool = True

    def rounds(self, suite: str) -> int:
        """In how many rounds the workloads of a suite are measured."""
        return self.repeats or (QUICK_ROUNDS if self.quick else SUITES[suite].rounds)

    def selects(self, workload: Workload) -> bool:
        """Whether a workload is asked for."""
        return self.only in workload.name and (not self.names or workload.name in self.names)

    def peers_of(self, workload: Workload) -> list[Peer]:
        """Which peers are measured beside a workload."""
        return [peer for peer in self.peers if workload.peers and workload.kind in peer.kinds]


def run(asked: Run) -> int:
    """Measure what is not there yet, write a report of it all, and return the exit status."""
    started = time.monotonic()
    with Progress() as progress:
        status = measure(asked, progress)
        for path in report.write(asked.out, progress.say):
            progress.say(f"written: {path}")
        progress.say(f"{(time.monotonic() - started) / 60:.1f} minutes in all")
    return status


def measure(asked: Run, progress: Progress) -> int:
    """Measure what is not there yet, each into its line; 1 where content was wrong."""
    todo: list[tuple[str, Workload, Lines]] = []
    there = 0
    for suite in asked.suites:
        workloads = SUITES[suite].workloads(asked.quick)
        lines = Lines(asked.out / f"{suite}.jsonl", [each.name for each in workloads])
        for workload in filter(asked.selects, workloads):
            if not asked.fresh and _is_there(asked, lines, suite, workload):
                there += 1
            else:
                todo.append((suite, workload, lines))
    if there:
        progress.say(f"{there} workloads are there already; --fresh measures them anew")
    progress.expect(sum(asked.rounds(suite) + asked.warm_up for suite, _, _ in todo))
    status = 0
    for suite, workload, lines in todo:
        progress.begin(f"{suite}: {workload.name}")
        try:
            line = measured(asked, suite, workload, progress)
        except ContentError as error:
            progress.say(f"{workload.name}: WRONG CONTENT, no number: {error}")
            status = 1
            continue
        except ChildError as error:
            # Its process has told more; the others are measured nevertheless.
            progress.say(f"{workload.name}: FAILED, no number: {error}")
            status = 1
            continue
        if line is not None:
            lines.put(line)
            progress.say(headline(line))
    return status


def measured(asked: Run, suite: str, workload: Workload, progress: Progress) -> Record | None:
    """Measure a workload, and return its line; None where it can't be measured here."""
    engine = asked.engines.get(workload.kind)
    if engine is None:
        engine = importlib.import_module(OURS[workload.kind]).ENGINE
    ours: Callable[[], Any] = partial(workload.session, engine)
    if asked.apart and workload.kind not in _IN_THIS_PROCESS:
        process = EngineProcess(type(engine).__module__, suite=suite, quick=asked.quick)
        ours = partial(process.session, workload.name)
    subjects: dict[str, OpenSubject] = {}
    if workload.bound is not None:
        subjects[BOUND] = partial(workload.bound, engine)
    if workload.limit is not None:
        subjects[LIMIT] = partial(workload.limit, engine)
    subjects[ECHOIC] = ours
    about: dict[str, Record] = {}
    for peer in asked.peers_of(workload):
        if is_wanting(peer):
            progress.say(f"{peer.name}: preparing its environment")
        process = PeerProcess(peer, suite=suite, quick=asked.quick)
        subjects[peer.name] = partial(process.session, workload.name)
        about[peer.name] = {"version": peer.version}
    rounds = interleave(
        subjects, asked.rounds(suite), after_round=progress.advance, warm_up=asked.warm_up
    )
    if ECHOIC in rounds.unavailable:
        progress.say(f"{workload.name}: {rounds.unavailable[ECHOIC]}")
        return None
    for name in {BOUND, LIMIT} & rounds.unavailable.keys():
        progress.say(f"{workload.name}: no {name}: {rounds.unavailable[name]}")
    line = record(workload, rounds, about)
    return {**line, "quick": asked.quick, "machine": machine(), "versions": versions()}


def _is_there(asked: Run, lines: Lines, suite: str, workload: Workload) -> bool:
    peers = [peer.name for peer in asked.peers_of(workload)]
    return lines.has(workload, quick=asked.quick, rounds=asked.rounds(suite), peers=peers)


def peers_named(words: Sequence[str]) -> list[Peer]:
    """Return the peers that are asked for: by name, ``light``, ``all`` or ``none``.

    Raises:
        ValueError: there is no such peer.
    """
    chosen: list[Peer] = []
    for word in words:
        found = [
            peer
            for peer in PEERS
            if word in (peer.name, "all") or (word == "light" and not peer.heavy)
        ]
        if not found and word != "none":
            names = ", ".join(peer.name for peer in PEERS)
            raise ValueError(f"no peer {word!r}: all, light, none, or some of {names}")
        chosen += [peer for peer in found if peer not in chosen]
    return chosen
