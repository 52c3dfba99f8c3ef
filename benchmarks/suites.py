"""The suites by name: what a command line or a child process can ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import stream
from benchmarks.local import suite as local
from benchmarks.net import suite as net
from benchmarks.tables import suite as tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.workload import Workload

SUITES: dict[str, Callable[[bool], list[Workload]]] = {
    "stream": stream.workloads,
    "net": net.workloads,
    "tables": tables.workloads,
    "local": local.workloads,
}
