"""The example of asynchronous GRPO learns, and uses every group once, whatever is killed."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from forks import Fork, Forks

UPDATES = 30


@pytest.mark.timeout(300)
def test_whatever_is_killed_each_group_is_learned_from_once(forks: Forks, folder: Path) -> None:
    pytest.importorskip("torch")
    import echoic.rl

    from examples import async_grpo

    curve = folder / "curve.jsonl"
    # Imported once, for all programs.
    forks.start("examples.async_grpo:policy").communicate()

    def start(role: str, number: int) -> Fork:
        source = "import pathlib, examples.async_grpo as one\none.{}(pathlib.Path({!r}), {})"
        return forks.run(source.format(role, str(folder), number))

    def wait_for(update: int) -> None:
        while not curve.exists() or curve.read_text().count("\n") < update:
            assert learner.poll() is None, learner.communicate()
            time.sleep(0.05)

    learner = start("learn", UPDATES)
    worker, killed = start("work", 1), start("work", 2)
    wait_for(UPDATES // 3)
    killed.kill()
    killed.communicate()
    other = start("work", 3)
    wait_for(UPDATES // 2)
    learner.kill()
    learner.communicate()
    learner = start("learn", UPDATES)
    for one in (learner, worker, other):
        said = one.communicate(timeout=120)
        assert one.returncode == 0, said

    rows = [json.loads(line) for line in curve.read_text().splitlines()]
    # An update that was not saved is repeated.
    last = {row["version"]: row for row in rows}
    assert list(last) == list(range(1, UPDATES + 1))
    assert len(rows) <= UPDATES + 1
    groups = [group for row in last.values() for group in row["groups"]]
    assert len(set(groups)) == len(groups) == 16 * UPDATES
    assert max(row["lag"] for row in rows) <= 2
    rewards = [row["reward"] for row in last.values()]
    assert np.mean(rewards[-5:]) > 1.5 * np.mean(rewards[:5])
    columns, fields = async_grpo.COLUMNS, async_grpo.FIELDS
    table = {"group": 8, "batch": 16, "max_lag": 2}
    with echoic.rl.Run(columns, fields, dir=folder / "rollouts", **table) as run:
        assert run.stats().acked == 16 * UPDATES
