"""A virtual environment per peer, made on first use and kept.

The folder ignores itself for git, so nothing outside has to know about it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.timing import UnavailableError

if TYPE_CHECKING:
    from benchmarks.peers import Peer

ENVIRONMENTS = Path(__file__).resolve().parent.parent / ".envs"
INSTALL_TIMEOUT = 600.0


def interpreter(peer: Peer) -> Path:
    """Return the Python that has ``peer`` installed, installing it if need be.

    It gets the numpy of the running interpreter: both sides slice and copy alike.

    Raises:
        UnavailableError: it does not install here; the message ends with the reason.
    """
    folder = ENVIRONMENTS / peer.name
    python = folder / "bin" / "python"
    requirements = [peer.requirement, f"numpy=={np.__version__}"]
    stamp = folder / "installed.txt"
    wanted = "\n".join([sys.version, *requirements])
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", *requirements])
    except UnavailableError as error:
        raise UnavailableError(f"{peer.requirement} does not install: {error}") from error
    stamp.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(lines[-1] if lines else f"exit status {done.returncode}")
