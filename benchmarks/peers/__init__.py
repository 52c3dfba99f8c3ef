"""Other people's systems, each measured in an environment of its own.

A peer never enters Echoic's environment: its packages are pinned here, installed into
``benchmarks/.envs/<name>`` on first use, and run as a child process that executes the
same workload code (`benchmarks.suites`) on the peer's engine.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Peer:
    """Which package to install, and the module that offers its engine as ``ENGINE``.

    ``pythons`` are the versions of Python that it installs on, best first; without any, it gets the
    running interpreter. ``requires`` are what it needs besides itself; a peer that does not say
    which numpy it needs gets the running interpreter's, so that both sides slice and copy alike.
    ``alone`` leaves out what its package asks for and the measured part of it does not need.
    ``kinds`` are those of the workloads that its engine can be asked for. ``heavy`` ones download
    more than half a gigabyte, and are measured only when they are asked for. A ``builtin`` one is
    a part of Python, and runs with the running interpreter.
    """

    name: str
    version: str
    module: str
    kinds: tuple[str, ...]
    requires: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    alone: bool = False
    heavy: bool = False
    builtin: bool = False

    @property
    def requirement(self) -> str:
        """The pinned requirement for the installer."""
        return f"{self.name}=={self.version}"


PEERS = (
    Peer("id-echo", "0.2.1", "benchmarks.peers.id_echo", ("stream", "net")),
    # Its extension is built against this TensorFlow, which knows no numpy 2 and no later Python.
    Peer(
        "dm-reverb",
        "0.14.0",
        "benchmarks.peers.reverb",
        ("tables",),
        requires=("tensorflow==2.14.1", "numpy==1.26.4"),
        pythons=("3.11", "3.10"),
        heavy=True,
    ),
    # It asks for torch, of some gigabytes, which its native module knows nothing of.
    Peer("rlox", "1.2.0", "benchmarks.peers.rlox", ("local",), alone=True),
    Peer("cpprb", "11.0.0", "benchmarks.peers.cpprb", ("local",)),
    # It needs JAX; torch, which the next two need, brings gigabytes of libraries for graphics cards
    # unless the installer is told to take it from where it comes without.
    Peer("flashbax", "0.1.3", "benchmarks.peers.flashbax", ("local",), heavy=True),
    Peer("stable-baselines3", "2.9.2", "benchmarks.peers.sb3", ("local",), heavy=True),
    Peer("torchrl", "0.14.1", "benchmarks.peers.torchrl", ("local",), heavy=True),
    # It names the Pythons that it runs on.
    Peer(
        "tianshou",
        "2.0.1",
        "benchmarks.peers.tianshou",
        ("local",),
        pythons=("3.11", "3.12", "3.13"),
        heavy=True,
    ),
    # Queues for rollouts. That of multiprocessing is what others write without a framework, and one
    # that is an actor what they write on Ray; TransferQueue needs Ray, and torch too.
    Peer(
        "mp.Queue",
        platform.python_version(),
        "benchmarks.peers.mp_queue",
        ("rollouts", "loops"),
        builtin=True,
    ),
    Peer("ray", "2.60.0", "benchmarks.peers.ray_queue", ("rollouts",)),
    Peer(
        "TransferQueue",
        "0.1.11",
        "benchmarks.peers.transfer_queue",
        ("rollouts",),
        requires=("ray==2.60.0", f"numpy=={np.__version__}"),
        heavy=True,
    ),
    Peer("numpy", np.__version__, "benchmarks.peers.numpy_ring", ("local",)),
)
