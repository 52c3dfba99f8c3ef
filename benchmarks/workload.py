"""What all suites share: a workload, what it is measured against, and its targets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from benchmarks import probes
from benchmarks.timing import Measure

if TYPE_CHECKING:
    from benchmarks.engine import Engine, Stream
    from benchmarks.payload import Pool

Check = Callable[[Any, int], None]
# The argument is an engine. Each suite asks its own interface of it.
Session = Callable[[Any], AbstractContextManager[Measure]]

COPY_NAME = "numpy copy of the same bytes round a ring of the same size"


@dataclass(frozen=True)
class Ring:
    """The size of a stream's memory."""

    batch_size: int
    num_buffers: int = 4

    def open(self, engine: Engine, pool: Pool) -> Stream:
        """Open a stream of this size for the samples of ``pool``."""
        return engine.open(pool.example, **asdict(self))


@dataclass(frozen=True)
class Target:
    """A limit the project set itself: printed beside the result, never asserted.

    ``metric`` is ``value``, ``ratio_to_bound``, ``ratio_to_`` and the name of a peer, or one of the
    metrics.
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def peer(self) -> str | None:
        """The peer that the target is about, if any: without the peer there is no target."""
        about = self.metric.removeprefix("ratio_to_")
        return None if about in (self.metric, "bound") else about


Kind = Literal[
    "stream",
    "net",
    "tables",
    "local",
    "durability",
    "limits",
    "rollouts",
    "loops",
    "weights",
    "model",
]


@dataclass(frozen=True)
class Workload:
    """One thing to measure, with what it is measured against.

    `kind` says which interface of an engine the session asks for; peers that have no such engine,
    and all where `peers` is false, are not measured beside it. `better` says which way the value
    improves, so that ratios can always mean speed. `bound` is what the machine does in Python's
    hands, `limit` what it does in those of a program in Rust. `steady` marks what is compared with
    earlier runs (see `benchmarks.check`): large workloads that are made of the same copies or
    system calls as their bound, so that what the machine does to one it does to the other.
    """

    name: str
    kind: Kind
    what: str
    unit: str
    better: Literal["lower", "higher"]
    session: Session
    bound_name: str = ""
    bound: Session | None = None
    limit_name: str = ""
    limit: Session | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    peers: bool = True
    steady: bool = False


def copies(pool: Pool, ring: Ring, *, slots_per_batch: int, batches: int) -> Session:
    """Make the bound of a stream: plain copies round a ring of the same size."""
    return any_engine(
        partial(
            probes.plain_copies,
            pool,
            slots_per_batch=slots_per_batch,
            num_buffers=ring.num_buffers,
            batches=batches,
        )
    )


def any_engine(probe: Callable[[], AbstractContextManager[Measure]]) -> Session:
    """Make a session of a probe that is the same whatever engine it stands beside."""
    return lambda _engine: probe()
