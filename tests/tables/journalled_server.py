"""A server whose tables have journals, which is made to be killed.

What its tables have when it is made goes to a file; then it says its address.
"""

# ruff: noqa: T201 - what it says is read by the test

from __future__ import annotations

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
    print(server.address, flush=True)
    time.sleep(60)


def main() -> None:
    """Be a server."""
    root, durability, checkpoints = sys.argv[1:]
    serve(Path(root), durability, checkpoints == "with")
