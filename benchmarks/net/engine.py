"""What the network workloads need of a system that moves samples between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Tree


@dataclass(frozen=True)
class Learner:
    """A server that listens: where, and its calls themselves, for nothing to come between."""

    address: str
    sample: Callable[[], Any]
    close: Callable[[], Any]


@dataclass(frozen=True)
class Sender:
    """A connected client: the calls themselves, for nothing to come between."""

    send: Callable[[Tree], Any]
    send_batch: Callable[[Tree], Any] | None
    flush: Callable[[], Any]
    close: Callable[[], Any]


class NetEngine(Protocol):
    """Opens servers and connects to them."""

    def listen(self, example: Tree, *, door: str, batch_size: int, num_buffers: int) -> Learner:
        """Open a server that listens at a door: ``tcp``, ``unix``, ``tls`` or ``shm``."""
        ...

    def connect(self, address: str, example: Tree) -> Sender:
        """Connect to a server of the same engine."""
        ...
