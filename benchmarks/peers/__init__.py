"""Other people's systems, each measured in an environment of its own.

A peer never enters Echoic's environment: its packages are pinned here, installed into
``benchmarks/.envs/<name>`` on first use, and run as a child process that executes the
same workload code (`benchmarks.suites`) on the peer's engine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """Which package to install, and the module that offers its engine as ``ENGINE``."""

    name: str
    version: str
    module: str

    @property
    def requirement(self) -> str:
        """The pinned requirement for the installer."""
        return f"{self.name}=={self.version}"


PEERS = (Peer("id-echo", "0.2.1", "benchmarks.peers.id_echo"),)
