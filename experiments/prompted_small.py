"""What a model of 135 million parameters reaches when it is prompted: SmolLM2, ReAct and ToT.

Game24 with all steps listed, and the 24 functions of CRUXEval's format that this package ships,
whose output is to be said. A row for each episode: success, tokens, and seconds, those of the
process beside those on the wall. The tasks of all arms are the same, and go side by side, so that
a run that is stopped has as many of each. ``chance`` draws one of the listed steps; where an answer
is a text there is none.

A game has room for one step that makes no sense, and an output is said once. Trees are small, two
thoughts and two levels of which one state is kept: each takes most of a minute of a core.
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
from echoic.agents.episodes import Decision, run_episode
from echoic.agents.evaluation.results import wilson_interval

from experiments._seeds import Rows, show, spread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME = "prompted_small"
# Tasks of each kind: all together about a quarter of an hour of one core.
TASKS = 8
# Functions of CRUXEval's format in the package.
FUNCTIONS = 24
METHODS: dict[str, dict[str, Any]] = {
    "react": {"max_tokens": 64, "retries": 0},
    "tot": {"max_tokens": 32, "breadth": 2, "depth": 2, "beam": 1},
}
CHANCE = "chance"
CHANCE_EPISODES = 2000


class Chance:
    """Draws one of the listed commands."""

    def begin(self, instructions: str, seed: int) -> None:
        """An episode begins."""
        del instructions
        self._rng = np.random.default_rng(seed)

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Draw."""
        del observation
        return Decision(int(self._rng.choice(np.nonzero(info["command_mask"])[0])))


def environment_of(task: str, number: int) -> Any:
    """The environment of one task."""
    if task == "game24":
        # There are at most 30 steps: all are listed.
        return make_environment(task, action_space_size=36, max_steps=4)
    rows = (number % FUNCTIONS, number % FUNCTIONS + 1)
    return make_environment(task, rows=rows, max_steps=1)


async def play(task: str, number: int, method: str, backbone: Any) -> dict[str, Any]:
    """Play one episode; its row."""
    own = time.process_time()
    made = method_of(method, Cell(task, backbone=backbone, settings=METHODS[method]))
    policy = made.policy()
    environment = environment_of(task, number)
    episode = await run_episode(environment, policy, number, timeout=1e6)
    environment.close()
    if episode.error is not None:
        raise RuntimeError(episode.error)
    return {
        "task": task,
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


async def _chance() -> dict[str, Any]:
    environment, policy = environment_of("game24", 0), Chance()
    episodes = [await run_episode(environment, policy, number) for number in range(CHANCE_EPISODES)]
    wins = sum(one.success for one in episodes)
    return {
        "task": "game24",
        "method": CHANCE,
        "number": 0,
        "episodes": CHANCE_EPISODES,
        "successes": wins,
    }


async def _play_all(rows: Rows, tasks: int) -> None:
    if not rows.has(task="game24", method=CHANCE, number=0):
        rows.add(await _chance())
    plan = [
        (task, number, method)
        for number in range(tasks)
        for task in ("game24", "cruxeval")
        for method in METHODS
    ]
    plan = [
        (task, number, method)
        for task, number, method in plan
        if not rows.has(task=task, method=method, number=number)
    ]
    if not plan:
        return
    async with LocalBackbone.smollm2("cpu") as backbone:
        for task, number, method in plan:
            rows.add(await play(task, number, method, backbone))


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
    rest = dict.fromkeys(("tokens", "cached", "seconds", "unread"), "-")
    lines = [
        {
            "task": row["task"],
            "method": CHANCE,
            "episodes": str(row["episodes"]),
            "success": _share(row["successes"], row["episodes"]),
            **rest,
        }
        for row in rows.of(method=CHANCE)
    ]
    for task in ("game24", "cruxeval"):
        for method in METHODS:
            if found := rows.of(task=task, method=method):
                read, cached = (
                    sum(row[name] for row in found) for name in ("tokens_in", "tokens_cached")
                )
                tokens = [row["tokens_in"] + row["tokens_out"] for row in found]
                line = {
                    "task": task,
                    "method": method,
                    "episodes": str(len(found)),
                    "success": _share(sum(row["success"] for row in found), len(found)),
                    "tokens": spread(tokens, ",.1f"),
                    "cached": f"{cached / read:.0%}",
                    "seconds": spread([row["seconds"] for row in found], ",.1f"),
                    "unread": f"{np.mean([row['unread'] for row in found]):.1f}",
                }
                lines.append(line)
    return lines


def _share(wins: int, of: int) -> str:
    low, high = wilson_interval(wins, of)
    return f"{wins} of {of} ({low:.1%} to {high:.1%})"
