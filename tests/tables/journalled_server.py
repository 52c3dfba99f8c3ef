"""Servers whose tables have journals, made one after the other to be killed.

A line on the input, durability and whether to make checkpoints, makes a process that is a server.
What its tables have when it is made goes to a file; then it says its process id and its address.
The program itself only forks, so that a server need not import anything first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import echoic
import numpy as np

STEP = {"obs": np.zeros(4, np.float32), "at": np.int64(0)}


def serve(root: Path, durability: str, with_checkpoints: bool) -> None:
    """Be a server until killed."""
    tables = [
        echoic.Table("rows", STEP, capacity=100_000, durability=durability, seed=1),
        echoic.Table("windows", capacity=100_000, durability=durability, seed=2),
    ]
    # The newest checkpoint is always loaded; whether more are made is for the round.
    every = 0.05 if with_checkpoints else None
    checkpointer = echoic.Checkpointer(root / "checkpoints", every=every)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", echoic.errors.JournalWarning)
        server = echoic.Server(
            *tables,
            listen="tcp://127.0.0.1:0",
            journal=root / "journals",
            checkpointer=checkpointer,
        )
    content = {}
    for table in tables:
        items = table.items()
        content[f"{table.name}.key"] = items.keys
        content[f"{table.name}.priority"] = items.info.priorities
        if len(items.keys):
            data = table.get(items.keys).data
            content[f"{table.name}.at"] = data["at"]
            content[f"{table.name}.obs"] = data["obs"]
    np.savez(root / "content.npz", **content)
    server.start()
    # In one piece: the parent writes to the same pipe.
    os.write(1, f"{os.getpid()} {server.address}\n".encode())
    time.sleep(60)


def main() -> None:
    """Fork a server for each line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    root = Path(sys.argv[1])
    for line in sys.stdin:
        durability, with_checkpoints = json.loads(line)
        if os.fork() == 0:
            try:
                serve(root, durability, with_checkpoints)
            except BaseException as error:  # said, since nobody sees it raised
                os.write(1, f"failed {error!r}\n".encode())
            os._exit(1)


if __name__ == "__main__":
    main()
