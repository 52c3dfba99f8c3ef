"""What a model of 135 million parameters reaches when it is prompted: SmolLM2, ReAct and ToT.

The output of functions in CRUXEval's format, which this package ships, is to be said, once. A row
for each episode: success, tokens, and seconds, those of the process beside those on the wall. The
tasks of both arms are the same, and go side by side, so that a run that is stopped has as many of
each. Trees are small, two thoughts and two levels of which one state is kept.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from echoic.agents.backbones import LocalBackbone, backbone_status
from echoic.agents.baselines import Cell, method_of
from echoic.agents.environments import make_environment
from echoic.agents.episodes import run_episode
from echoic.agents.evaluation.results import wilson_interval

from experiments._seeds import Rows, show, spread

if TYPE_CHECKING:
    from pathlib import Path

NAME = "prompted_small"
TASK = "cruxeval"
TASKS = 8
# Functions of CRUXEval's format in the package.
FUNCTIONS = 24
METHODS: dict[str, dict[str, Any]] = {
    "react": {"max_tokens": 64, "retries": 0},
    "tot": {"max_tokens": 32, "breadth": 2, "depth": 2, "beam": 1},
}


async def play(number: int, method: str, backbone: Any) -> dict[str, Any]:
    """Play one episode; its row."""
    own = time.process_time()
    made = method_of(method, Cell(TASK, backbone=backbone, settings=METHODS[method]))
    policy = made.policy()
    rows = (number % FUNCTIONS, number % FUNCTIONS + 1)
    environment = make_environment(TASK, rows=rows, max_steps=1)
    episode = await run_episode(environment, policy, number, timeout=1e6)
    environment.close()
    if episode.error is not None:
        raise RuntimeError(episode.error)
    return {
        "task": TASK,
        "method": method,
        "number": number,
        "success": episode.success and episode.ended == "terminated",
        "steps": episode.steps,
        "ended": episode.ended,
        # Answers that named no command, or judgements that were none.
        "unread": policy.invalid if method == "react" else policy.unread,
        "tokens_in": episode.usage.tokens_in,
        "tokens_cached": episode.usage.tokens_cached,
        "tokens_out": episode.usage.tokens_out,
        "seconds": round(time.process_time() - own, 2),
        "wall": round(episode.seconds, 2),
    }


async def _play_all(rows: Rows, tasks: int) -> None:
    plan = [
        (number, method)
        for number in range(tasks)
        for method in METHODS
        if not rows.has(task=TASK, method=method, number=number)
    ]
    if not plan:
        return
    async with LocalBackbone.smollm2("cpu") as backbone:
        for number, method in plan:
            rows.add(await play(number, method, backbone))


def run(out: Path, quick: bool) -> None:
    """Play what is missing, and print a table."""
    if (status := backbone_status("smollm2")) != "ready":
        print(f"{NAME} is left out: {status}")
        return
    torch.set_num_threads(1)
    rows = Rows(out / f"{NAME}.jsonl", ("task", "method", "number"))
    asyncio.run(_play_all(rows, 1 if quick else TASKS))
    show("SmolLM2-135M, prompted", summary(rows))


def summary(rows: Rows) -> list[dict[str, str]]:
    """A line for each arm."""
    lines = []
    for method in METHODS:
        if found := rows.of(task=TASK, method=method):
            read, cached = (
                sum(row[name] for row in found) for name in ("tokens_in", "tokens_cached")
            )
            wins = sum(row["success"] for row in found)
            low, high = wilson_interval(wins, len(found))
            line = {
                "task": TASK,
                "method": method,
                "episodes": str(len(found)),
                "success": f"{wins} of {len(found)} ({low:.1%} to {high:.1%})",
                "tokens": spread([row["tokens_in"] + row["tokens_out"] for row in found], ",.1f"),
                "cached": f"{cached / read:.0%}",
                "seconds": spread([row["seconds"] for row in found], ",.1f"),
                "unread": f"{np.mean([row['unread'] for row in found]):.1f}",
            }
            lines.append(line)
    return lines
