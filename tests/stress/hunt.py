"""Hunts for hangs and lost items, in random combinations of what tables, streams and rollouts do.

`python tests/stress/hunt.py --seconds 600` plays one combination after the other, several side by
side, and prints a line for each: its seed, what came of it, and what was combined. A seed alone
says what is combined; how threads take turns is up to the machine. `--seed S --count 1` plays a
combination once more.

Combinations are short processes of their own: one that hangs shows where its threads are, and is
killed with all it has started. `hunt_plan` says what is combined, `hunt_play` and `hunt_rollouts`
what is checked.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from hunt_plan import Plan, make_plan
from hunt_play import play

# Longer than any combination takes, also on a machine that does much else.
LIMIT = 120.0


@dataclass
class Running:
    """A combination in a process of its own."""

    plan: Plan
    pid: int
    output: int
    folder: Path
    begun: float
    text: bytes = b""


def start(plan: Plan) -> Running:
    """Play a combination in a new process, which is the head of a group."""
    folder = Path(tempfile.mkdtemp(prefix="echoic-hunt-"))
    ours, theirs = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(ours)
        os.dup2(theirs, 1)
        os.dup2(theirs, 2)
        # Sockets of `shm://` addresses go with the folder.
        os.environ["XDG_RUNTIME_DIR"] = str(folder)
        status = 1
        try:
            status = play(plan, folder)
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(theirs)
    return Running(plan, pid, ours, folder, time.monotonic())


def finish(one: Running) -> bool:
    """Clean up after a combination that has ended or is too late; whether all was well."""
    late = time.monotonic() - one.begun > LIMIT
    if late:
        os.kill(one.pid, signal.SIGABRT)  # with faulthandler, says where its threads are
        time.sleep(1)
    else:
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    # Its process is still in the table, so the group is no other's.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(one.pid, signal.SIGKILL)
    _, status = os.waitpid(one.pid, 0)
    os.set_blocking(one.output, False)
    with contextlib.suppress(BlockingIOError):
        while part := os.read(one.output, 1 << 16):
            one.text += part
    os.close(one.output)
    text = one.text.decode(errors="replace").rstrip()
    good = os.waitstatus_to_exitcode(status) == 0
    if late:
        text += f"\nseed {one.plan.seed} FAILED: it did not end in {LIMIT} s\n  {one.plan}"
    elif not good and "FAILED" not in text:
        text += f"\nseed {one.plan.seed} FAILED: its process died\n  {one.plan}"
    print(text, flush=True)
    shutil.rmtree(one.folder, ignore_errors=True)
    return good


def hunt(
    first: int, count: int | None, seconds: float | None, jobs: int, again: int = 1
) -> list[int]:
    """Play combinations, each so often, and return the seeds of those that failed."""
    print(f"hunting from seed {first}", flush=True)
    begun, played = time.monotonic(), 0
    running: list[Running] = []
    failed: list[int] = []
    tried: collections.Counter[str] = collections.Counter()
    try:
        while True:
            over = seconds is not None and time.monotonic() - begun > seconds
            over |= count is not None and played >= count * again
            if over and not running:
                break
            if not over and len(running) < jobs:
                plan = make_plan(first + played // again)
                running.append(start(plan))
                tried.update(covered(plan))
                played += 1
                continue
            readable, _, _ = select.select([one.output for one in running], [], [], 1.0)
            for one in list(running):
                part = os.read(one.output, 1 << 16) if one.output in readable else None
                if part:
                    one.text += part
                elif part is not None or time.monotonic() - one.begun > LIMIT:
                    running.remove(one)
                    if not finish(one):
                        failed.append(one.plan.seed)
    finally:
        for one in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
            shutil.rmtree(one.folder, ignore_errors=True)
    for name, times in sorted(tried.items()):
        print(f"  {times:6} {name}")
    took = time.monotonic() - begun
    last = first + (played - 1) // again
    print(
        f"seeds {first} to {last}: {played} combinations in {took:.0f} s, "
        f"{len(failed)} failed {failed}"
    )
    return failed


def covered(plan: Plan) -> set[str]:
    """Name what a combination covers."""
    names = {f"{plan.target} {plan.reach}", *plan.events, *plan.inserters, *plan.samplers}
    if plan.target == "table":
        names |= {plan.kind, plan.sampler, f"limiter {plan.limiter}"}
        names |= {f"durability {plan.durability}", f"checkpoints {plan.checkpoints}"}
    return names


def main() -> None:
    """Hunt as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6) * 1000)
    parser.add_argument("--count", type=int, help="how many combinations")
    parser.add_argument("--seconds", type=float, help="for how long to begin new ones")
    parser.add_argument("--again", type=int, default=1, help="how often each of them")
    parser.add_argument("--jobs", type=int, default=2, help="how many side by side")
    asked = parser.parse_args()
    seconds = 60.0 if asked.seconds is None and asked.count is None else asked.seconds
    sys.exit(bool(hunt(asked.seed, asked.count, seconds, asked.jobs, asked.again)))


if __name__ == "__main__":
    main()
