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
INSTALL_TIMEOUT = 1800.0
_STAMP = "installed.txt"
# Why those that do not install did not: whoever asks again is told so at once.
_failed: dict[Peer, str] = {}


def interpreter(peer: Peer) -> Path:
    """Return the Python that has ``peer`` installed, installing it if need be.

    Raises:
        UnavailableError: it does not install here; the message ends with the reason.
    """
    if peer.builtin:
        return Path(sys.executable)
    folder = ENVIRONMENTS / peer.name
    python = folder / "bin" / "python"
    if is_made(peer):
        return python
    if peer in _failed:
        raise UnavailableError(_failed[peer])
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _make(folder, peer)
        alone = ["--no-deps"] if peer.alone else []
        _run([*_install(python), "--quiet", *alone, *_requirements(peer)])
    except UnavailableError as error:
        _failed[peer] = f"{peer.requirement} does not install: {error}"
        raise UnavailableError(_failed[peer]) from error
    (folder / _STAMP).write_text(_wanted(peer))
    return python


def is_made(peer: Peer) -> bool:
    """Whether the environment is there, with just what is wanted."""
    if peer.builtin:
        return True
    folder = ENVIRONMENTS / peer.name
    python, stamp = folder / "bin" / "python", folder / _STAMP
    return python.exists() and stamp.exists() and stamp.read_text() == _wanted(peer)


def is_wanting(peer: Peer) -> bool:
    """Whether the environment would have to be made, which was not tried in vain before."""
    return peer not in _failed and not is_made(peer)


def _requirements(peer: Peer) -> list[str]:
    return [peer.requirement, *(peer.requires or [f"numpy=={np.__version__}"])]


def _wanted(peer: Peer) -> str:
    # An environment that was made with another Python is another one.
    return "\n".join([*(peer.pythons or [sys.version]), *_requirements(peer)])


def _install(python: Path) -> list[str]:
    """Begin a command of pip, or of uv where that is: large environments then share their files."""
    uv = shutil.which("uv")
    if uv is None:
        return [str(python), "-m", "pip", "install"]
    # As pip does: where Python may not write them, each process would compile all that it imports,
    # and processes of Ray give up on those that are not there in time.
    return [uv, "pip", "install", "--compile-bytecode", "--python", str(python)]


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
        except UnavailableError as error:
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
        # What went wrong comes last, which takes uv some lines to say.
        reason = " ".join(line.strip() for line in lines[-3:])
        raise UnavailableError(reason or f"exit status {done.returncode}")
