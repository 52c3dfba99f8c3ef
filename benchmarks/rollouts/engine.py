"""What the workloads need of a system that brings groups of rollouts to a learner.

A [`Plan`] says what is to be opened; its words travel to other processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.payload import Array
    from benchmarks.rollouts.groups import Groups

# Calls whose answers a producer does not await, where the system lets it.
AHEAD = 16
# How long a learner waits for a batch before it gives up.
PATIENCE = 30.0

Transport = Literal["local", "shm", "unix", "tcp"]
# How Echoic's producers bring a group: with one call that does not wait for its answer; with two
# that do; in the loop of `echoic.rl` that its guide begins with, or the same of asyncio; or as many
# agents, which are tasks or threads. Others have one way each.
Calls = Literal["ahead", "waited", "loop", "async", "agents", "threads"]


@dataclass(frozen=True)
class Plan:
    """Groups of ``items`` × ``tokens``, handed over one by one, and batches of them.

    ``max_lag`` is how many versions ahead producers may be of the learner, who publishes one after
    each batch; systems that know no versions may bound how many groups wait, or nothing.
    """

    transport: Transport
    producers: int = 1
    items: int = 8
    tokens: int = 512
    batch_groups: int = 64
    max_lag: int = 8
    calls: Calls = "ahead"

    @property
    def room(self) -> int:
        """How many groups may be there: what the learner uses up before they are too old."""
        return (self.max_lag + 1) * self.batch_groups


class Producer(Protocol):
    """What makes groups; or a `Sender`."""

    def put(self, columns: Mapping[str, Array], rewards: Array, /) -> None:
        """Reserve a group, if the system has that, and hand it over, a row for each item."""
        ...

    def flush(self) -> None:
        """Wait until all groups are where the learner may have them."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


@runtime_checkable
class Sender(Protocol):
    """What makes groups in a loop of its own."""

    def send(self, groups: Groups, first: int, count: int, /) -> None:
        """Reserve so many groups and hand them over, from a serial number on, and wait for all."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class Learner(Protocol):
    """Who takes batches."""

    def take(self) -> Mapping[str, Array]:
        """Wait for a batch of whole groups: its columns and ``reward``, item after item.

        Raises:
            TimeoutError: There was none for as long as [`PATIENCE`].
        """
        ...

    def done(self) -> None:
        """Say that the batch is used up, and publish the version that was made of it."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


@dataclass(frozen=True)
class Host:
    """A table or queue that is open, and where others find it."""

    address: str
    close: Callable[[], Any]


class RolloutEngine(Protocol):
    """Opens tables or queues, and connects to them."""

    def serve(self, plan: Plan) -> Host:
        """Open one in this process, or, if the system has processes of its own, in those."""
        ...

    def produce(self, address: str, plan: Plan) -> Producer | Sender:
        """Connect as a producer."""
        ...

    def learn(self, address: str, plan: Plan) -> Learner:
        """Connect as the learner."""
        ...
