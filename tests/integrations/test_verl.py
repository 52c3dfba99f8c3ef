"""verl's V1 trainer on our backend of TransferQueue: ``make frameworks`` runs this."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]

PROGRAM = Path(__file__).with_name("verl_run.py")
STEPS = 9


def descendants(process: int) -> list[int]:
    """Return a process and all that it has started, also what Ray has started for it."""
    found = [process]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def run(folder: Path, stop: str = "") -> dict[str, int]:
    """Run the trainer, and kill everything where it stops; returns what it has recovered."""
    (folder / "recovered").unlink(missing_ok=True)
    (folder / "stopped").unlink(missing_ok=True)
    command = [sys.executable, str(PROGRAM), str(folder), "--steps", str(STEPS), "--stop", stop]
    with (folder / "log").open("a") as log:
        trainer = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while stop and not (folder / "stopped").exists() and trainer.poll() is None:
                time.sleep(0.1)
            if not stop:
                trainer.wait()
        finally:
            # All at once: trainer, rollouts, controller, storage and Ray itself.
            for one in descendants(trainer.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            trainer.wait()
    assert (folder / "stopped").exists() == bool(stop), (folder / "log").read_text()[-5000:]
    recovered: dict[str, int] = json.loads((folder / "recovered").read_text())
    return recovered


def test_no_prompt_is_lost_or_trained_twice_when_everything_is_killed(tmp_path: Path) -> None:
    """Checkpoints are made of steps 3, 6 and 9; each step trains on 4 prompts of 2 answers."""
    pytest.importorskip("verl")
    nothing = {"prompts": 0, "finished": 0, "skipped": 0, "ahead": 0}
    assert run(tmp_path, "update:2") == nothing
    # Nothing was saved yet: the trainer begins anew, and so does its dataset.
    first = len((tmp_path / "generated").read_text().split())
    assert run(tmp_path, "update:5") == nothing
    # Steps 4 and 5 have trained on 8 prompts that are not in the checkpoint of step 3. A batch is
    # asked for in each step, and two before the first.
    recovered = [run(tmp_path, "save:6")]
    assert recovered[0]["prompts"] == 4 * (5 + 2 - 3)
    assert recovered[0]["finished"] >= 4 * 2
    assert recovered[0]["skipped"] == 4 * 2
    # While step 6 was being saved the checkpoint of step 3 was still the newest.
    recovered.append(run(tmp_path, "sample:8"))
    assert recovered[1]["prompts"] == 4 * (6 + 2 - 3)
    recovered.append(run(tmp_path))
    assert recovered[2]["prompts"] == 4 * (8 + 2 - 6)
    result = json.loads((tmp_path / "result").read_text())
    trained, left = result["trained"], result["left"]
    assert max(Counter(trained).values()) == 1
    assert (len(trained), len(left)) == (4 * STEPS, 4 * 2)
    assert set(trained) | set(left) == set(result["order"][: 4 * (STEPS + 2)])
    # Only what had no answers at a crash was answered again.
    unfinished = sum(one["prompts"] - one["finished"] for one in recovered)
    answers = len((tmp_path / "generated").read_text().split()) - first
    assert answers <= 2 * (4 * (STEPS + 2) + unfinished)
    # The reward is the share of sevens.
    assert result["seven"] > 1 / 16
