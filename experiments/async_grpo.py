"""What a kill costs: asynchronous GRPO with and without a worker and the learner being killed.

Each run is three processes of ``examples.async_grpo``. A row for each update of each run: the mean
reward of its batch and the age of its oldest token. In disturbed runs a worker is killed at a third
of the updates and the learner at half of them, and both are started again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments._seeds import Rows, interval

NAME = "async_grpo"


def run(out: Path, quick: bool) -> None:
    """Run what is not there yet, and print a table of all."""
    rows = Rows(out / f"{NAME}.jsonl", ("seed", "is_killed", "updates", "version"))
    updates, seeds = (20, 1) if quick else (200, 3)
    for seed in range(seeds):
        for is_killed in (False, True):
            key = {"seed": seed, "is_killed": is_killed, "updates": updates}
            if not rows.has(**key, version=updates):
                for row in learn(seed, updates, is_killed=is_killed):
                    rows.add({**key, **row})
    Console().print(summary(rows.of(updates=updates), updates))
    plot(rows.of(updates=updates), out / f"{NAME}.png")


def learn(seed: int, updates: int, *, is_killed: bool) -> list[dict[str, Any]]:
    """One run; its updates, the repeated ones once."""
    with tempfile.TemporaryDirectory(prefix="grpo-") as name:
        folder = Path(name)
        curve = folder / "curve.jsonl"

        def start(role: str, number: int) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "examples.async_grpo", role, name, str(number)]
            return subprocess.Popen(command)

        def wait_for(update: int) -> None:
            while not curve.exists() or curve.read_text().count("\n") < update:
                if any(program.poll() for program in programs):
                    raise RuntimeError("a program of the run failed")
                time.sleep(0.05)

        programs = [start("learn", updates)]
        programs += [start("work", 2 * seed + worker) for worker in (1, 2)]
        try:
            if is_killed:
                for victim, update in ((1, updates // 3), (0, updates // 2)):
                    wait_for(update)
                    programs[victim].kill()
                    programs[victim].wait()
                    word = ("work", 100 + seed) if victim else ("learn", updates)
                    programs[victim] = start(*word)
            wait_for(updates)
            for program in programs:
                if program.wait() != 0:
                    raise RuntimeError(f"a program ended with {program.returncode}")
        finally:
            for program in programs:
                program.kill()
                program.wait()
        found = [json.loads(line) for line in curve.read_text().splitlines()]
    last = {row["version"]: row for row in found}
    names = ("version", "reward", "lag")
    return [{name: row[name] for name in names} for row in last.values()]


def summary(rows: list[dict[str, Any]], updates: int) -> Table:
    """Mean rewards of the last tenth, with intervals over seeds, and the largest age."""
    table = Table("", "seeds", "reward in the end", "largest lag", title="Asynchronous GRPO")
    for is_killed in (False, True):
        own = [row for row in rows if row["is_killed"] == is_killed]
        ends: dict[int, list[float]] = {}
        for row in own:
            if row["version"] > 0.9 * updates:
                ends.setdefault(row["seed"], []).append(row["reward"])
        means = [float(np.mean(rewards)) for rewards in ends.values()]
        low, high = interval(means)
        cells = (f"{np.mean(means):.3f} ({low:.3f} to {high:.3f})", f"{max(r['lag'] for r in own)}")
        table.add_row("killed" if is_killed else "undisturbed", str(len(means)), *cells)
    return table


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the curve of each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for is_killed, color in ((False, "tab:blue"), (True, "tab:orange")):
        label = "a worker and the learner killed" if is_killed else "undisturbed"
        for seed in sorted({row["seed"] for row in rows}):
            own = [r for r in rows if (r["seed"], r["is_killed"]) == (seed, is_killed)]
            rewards = np.array([row["reward"] for row in sorted(own, key=lambda r: r["version"])])
            smooth = np.convolve(rewards, np.ones(5) / 5, "valid")
            axes.plot(range(5, 5 + len(smooth)), smooth, color=color, alpha=0.8, label=label)
            label = None
    axes.set(xlabel="update", ylabel="mean reward of the batch", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
