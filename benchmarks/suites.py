"""The suites by name: what a command line or a child process can ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import durability, memory, scaling, stream, weights
from benchmarks.limits import suite as limits
from benchmarks.local import suite as local
from benchmarks.net import suite as net
from benchmarks.rollouts import suite as rollouts
from benchmarks.scaling_model import setups
from benchmarks.tables import suite as tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.workload import Workload


@dataclass(frozen=True)
class Suite:
    """Workloads that belong together, and in how many rounds a run that is not quick takes them."""

    what: str
    workloads: Callable[[bool], list[Workload]]
    rounds: int


# In the order of a run: what takes long comes last.
SUITES: dict[str, Suite] = {
    "limits": Suite("What the machine can do", limits.workloads, 9),
    "stream": Suite("The stream in one process", stream.workloads, 9),
    "net": Suite("The stream over every transport", net.workloads, 5),
    "local": Suite("Local buffers, primitives and collectors", local.workloads, 9),
    "durability": Suite("Checkpoints and journals", durability.workloads, 5),
    "memory": Suite("Memory for an item", memory.workloads, 3),
    "scaling": Suite("Costs by the number of items", scaling.workloads, 5),
    "tables": Suite("Tables", tables.workloads, 5),
    "rollouts": Suite("Rollouts", rollouts.workloads, 5),
    "weights": Suite("Weights", weights.workloads, 5),
    "model": Suite("The model of scaling", setups.workloads, 5),
}
QUICK_ROUNDS = 3
