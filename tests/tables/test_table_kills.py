"""Clients of tables that are killed at any moment: all items are whole, and the others go on."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import Table

if TYPE_CHECKING:
    from pathlib import Path

STEP = {"number": np.int64(0), "filling": np.zeros(700, np.uint8)}

# Inserts, writes, samples and updates for ever. Whatever is torn shows: a filling is the number's
# last byte, and the steps of a window follow one another.
CLIENT = """
import sys
import numpy as np
import echoic

client = echoic.connect(sys.argv[1])
number = int(sys.argv[2]) * 1_000_000
writer = client.trajectory_writer(num_keep_alive_refs=3, chunk_length=2)
print("ready", flush=True)
while True:
    number += 1
    step = {"number": np.int64(number), "filling": np.full(700, number & 255, np.uint8)}
    client.insert(step, {"rows": 1.0})
    writer.append(step)
    if number % 5 > 2 and number % 64 > 2:
        windows = {name: column[-3:] for name, column in writer.history.items()}
        writer.create_item("windows", 1.0, windows)
    if number % 16 == 0:
        # Enough bytes for a place in the arena where there is one.
        batch = client.sample("rows", 128)
        client.update_priorities("rows", batch.info.key, np.ones(128), wait=False)
    if number % 64 == 0:
        writer.end_episode()
"""


def kill(client: subprocess.Popen[str]) -> None:
    client.kill()
    client.communicate()


def check_steps(data: Any) -> None:
    numbers = data["number"]
    assert (data["filling"] == (numbers & 255)[..., None]).all()
    if numbers.ndim > 1:
        assert (np.diff(numbers, axis=1) == 1).all()


@pytest.mark.parametrize("door", ["tcp", "unix", "shm"])
def test_a_killed_client_leaves_whole_items_and_disturbs_nobody(door: str, tmp_path: Path) -> None:
    transport: Any = {
        "tcp": lambda: echoic.TcpTransport(port=0),
        "unix": lambda: echoic.UnixTransport(tmp_path / "door"),
        "shm": lambda: echoic.ShmTransport(f"kills-{tmp_path.name}"),
    }[door]()
    moments = random.Random(7)
    rows = Table("rows", STEP, max_size=1000, sampler=echoic.selectors.Prioritized(), seed=1)
    windows = Table("windows", max_size=300, seed=2)
    with echoic.Server(tables=[rows, windows], transport=transport) as server:
        rows.insert(STEP)
        running: list[subprocess.Popen[str]] = []
        try:
            for number in range(6):
                command = [sys.executable, "-c", CLIENT, server.addresses[0], str(number)]
                client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                assert client.stdout is not None
                running.append(client)
                assert client.stdout.readline() == "ready\n"
                # Two are at work when one of them is killed.
                if len(running) > 1:
                    time.sleep(moments.uniform(0, 0.15))
                    kill(running.pop(0))
                    check_steps(rows.get(rows.items().key).data)
                    if len(windows):
                        check_steps(windows.get(windows.items().key).data)
            before = rows.info["inserts"]
            deadline = time.monotonic() + 20
            while rows.info["inserts"] < before + 100 or len(windows) < 100:
                assert time.monotonic() < deadline, "the client that is left has stopped"
                time.sleep(0.01)
        finally:
            for client in running:
                kill(client)
        # The dead have left; a new one is served as the first was.
        deadline = time.monotonic() + 20
        while server.connections():
            assert time.monotonic() < deadline, "connections of the dead are kept"
            time.sleep(0.01)
        with echoic.connect(server.addresses[0]) as client:
            check_steps(client.sample("rows", 200).data)
            check_steps(client.sample("windows", 100).data)
