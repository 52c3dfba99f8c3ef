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

    Raises:
        UnavailableError: it does not install here; the message ends with the reason.
    """
    folder = ENVIRONMENTS / peer.name
    python = folder / "bin" / "python"
    requirements = [peer.requirement, *(peer.requires or [f"numpy=={np.__version__}"])]
    stamp = folder / "installed.txt"
    # An environment that was made with another Python is another one.
    wanted = "\n".join([*(peer.pythons or [sys.version]), *requirements])
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _make(folder, peer)
        alone = ["--no-deps"] if peer.alone else []
        _run([str(python), "-m", "pip", "install", "--quiet", *alone, *requirements])
    except UnavailableError as error:
        raise UnavailableError(f"{peer.requirement} does not install: {error}") from error
    stamp.write_text(wanted)
    return python


def _candidates(peer: Peer) -> list[str]:
    """List the interpreters to try: the running one if it will do, then those on the path."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not peer.pythons or running in peer.pythons:
        return [sys.executable]
    found = [shutil.which(f"python{version}") for version in peer.pythons]
    return [python for python in found if python is not None]


def _make(folder: Path, peer: Peer) -> None:
    """Make an environment with the first interpreter that works."""
    reason = f"no Python that it supports is on the path: {', '.join(peer.pythons)}"
    for python in _candidates(peer):
        try:
            _run([python, "-m", "venv", str(folder)])
        except UnavailableError as error:  # noqa: PERF203 - there are two or three
            reason = str(error)
        else:
            return
    raise UnavailableError(reason)


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
