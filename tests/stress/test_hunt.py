"""A few seconds of the hunt and of the soak, and whether its watchdog sees what it is for."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tiers
from hunt_watch import Sight, Watch

PATIENCE = 60.0


@pytest.mark.timeout(300)
def test_random_combinations_hang_nowhere_and_lose_nothing() -> None:
    program = Path(__file__).with_name("hunt.py")
    # Four of the twelve each day, and all in the nightly tier.
    seed, count = tiers.size((1 + 4 * (tiers.part % 3), 4), (1, 12))
    command = [sys.executable, str(program), "--seed", str(seed), "--count", str(count)]
    hunted = subprocess.run(command, capture_output=True, text=True, check=False, timeout=290)
    assert hunted.returncode == 0, hunted.stdout + hunted.stderr
    assert f"{count} combinations" in hunted.stdout


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_rollouts_under_kills_lose_nothing_and_the_server_does_not_grow() -> None:
    program = Path(__file__).with_name("soak.py")
    command = [sys.executable, str(program), "--seconds", str(tiers.size(10, 120)), "--seed", "3"]
    soaked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=590)
    assert soaked.returncode == 0, soaked.stdout + soaked.stderr
    assert "the server used at most" in soaked.stdout


def test_only_a_call_whose_condition_holds_counts_as_hung(tmp_path: Path) -> None:
    watch = Watch(lambda: Sight({"room": True, "items": False}, {}), tmp_path)
    over = threading.Event()

    def wait(name: str, condition: str) -> None:
        with watch.call(name, condition):
            over.wait(PATIENCE)

    calls = [("insert", "room"), ("sample", "items")]
    threads = [threading.Thread(target=wait, args=call) for call in calls]
    watch.start()
    for thread in threads:
        thread.start()
    found = watch.found.wait(PATIENCE)
    over.set()
    watch.stop()
    for thread in threads:
        thread.join(PATIENCE)
    assert found
    assert watch.hang is not None
    assert watch.hang.startswith("insert ")
