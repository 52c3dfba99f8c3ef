"""The workloads of the suite of rollouts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.limits import suite as limits
from benchmarks.net import probes as net_probes
from benchmarks.rollouts import probes, sessions
from benchmarks.rollouts.engine import Plan, Transport
from benchmarks.rollouts.groups import Groups
from benchmarks.rollouts.loops import AGENTS
from benchmarks.workload import Kind, Session, Target, Workload, any_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.rollouts.engine import RolloutEngine

TRANSPORTS: tuple[Transport, ...] = ("local", "shm", "unix", "tcp")
_WHERE = {
    "local": "from a thread to a learner in the process that has the table",
    "shm": "from a process to a learner's, over shared memory",
    "unix": "from a process to a learner's, over a Unix socket",
    "tcp": "from a process to a learner's, over TCP",
}


@dataclass(frozen=True)
class _Case:
    """What is measured, and whether beside the peers, whose way is the same for all transports.

    ``targets`` has the least that a metric is to be. A quick run has the ``quick`` ones.
    """

    name: str
    plan: Plan
    peers: bool = False
    steady: bool = False
    quick: bool = False
    kind: Kind = "rollouts"
    targets: Mapping[str, float] = field(default_factory=dict)


# Long answers; in batches of fewer groups, as they are as large.
_LONG = Plan("shm", producers=4, tokens=8192, batch_groups=16)
_FOUR = Plan("shm", producers=4)
# Many agents wait for groups of a learner that wants few ahead.
_FEW = Plan("shm", batch_groups=16, max_lag=1)
_CASES = (
    _Case("groups_local", Plan("local"), quick=True),
    _Case(
        "groups_shm", Plan("shm"), peers=True, steady=True, quick=True, targets={"value": 10_000}
    ),
    _Case("groups_unix", Plan("unix"), quick=True),
    _Case("groups_tcp", Plan("tcp"), steady=True, quick=True, targets={"value": 2_000}),
    _Case("groups_two_producers_shm", Plan("shm", producers=2), targets={"value": 10_000}),
    _Case("groups_two_producers_tcp", Plan("tcp", producers=2)),
    _Case("groups_four_producers_shm", _FOUR, peers=True),
    _Case("groups_four_producers_unix", replace(_FOUR, transport="unix")),
    _Case("groups_four_producers_tcp", replace(_FOUR, transport="tcp")),
    _Case("long_groups_shm", _LONG, peers=True),
    _Case("long_groups_tcp", replace(_LONG, transport="tcp")),
    _Case("waited_shm", replace(_FOUR, calls="waited"), targets={"waited_calls_per_s": 15_000}),
    *(
        _Case(
            f"{calls}_{transport}",
            Plan(transport, producers=4, calls=calls),
            peers=calls == "loop",
            quick=calls == "loop" and transport == "shm",
            kind="loops",
            targets={"value": least},
        )
        for calls in ("loop", "async")
        for transport, least in (("shm", 25_000), ("tcp", 15_000))
    ),
)
_HOW = {
    "ahead": "",
    "waited": ", each with two calls that are waited for",
    "loop": ", by `for group in worker.groups(...)` of echoic.rl",
    "async": ", by `async for group in worker.groups(...)` of echoic.rl",
}


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones do little work and say little."""
    seconds = 0.1 if quick else 1.0
    return [
        *(
            _delivered(_quick(case) if quick else case, seconds)
            for case in _CASES
            if case.quick or not quick
        ),
        _agents(seconds),
        _decisions(2_000 if quick else 100_000, 20 if quick else 1_000),
    ]


def _quick(case: _Case) -> _Case:
    return replace(case, plan=replace(case.plan, batch_groups=case.plan.batch_groups // 4))


def _what(plan: Plan, how: str) -> str:
    nbytes = Groups.nbytes_of(plan.items, plan.tokens)
    who = "" if plan.producers == 1 else f", {plan.producers} producers"
    return (
        f"groups of {plan.items} × {plan.tokens} tokens, {nbytes} bytes, handed over one by "
        f"one {_WHERE[plan.transport]}{who}{how}: reserved, complete, delivered in batches of "
        f"{plan.batch_groups} under a bound on their lag, and acknowledged"
    )


def _delivered(case: _Case, seconds: float) -> Workload:
    plan = case.plan
    nbytes = Groups.nbytes_of(plan.items, plan.tokens)
    return Workload(
        name=case.name,
        kind=case.kind,
        what=_what(plan, _HOW[plan.calls]),
        unit="groups/s",
        better="higher",
        session=partial(sessions.delivered, plan=plan, seconds=seconds),
        **_bound(plan, nbytes, seconds),
        **_limit(plan, nbytes, seconds),
        parameters={**asdict(plan), "group_bytes": nbytes, "seconds": seconds},
        targets=tuple(Target(metric, at_least=least) for metric, least in case.targets.items()),
        peers=case.peers,
        steady=case.steady,
    )


def _agents(seconds: float) -> Workload:
    """Compare agents that are tasks of one loop with agents that are threads."""
    plan = replace(_FEW, calls="agents")
    threads = replace(_FEW, calls="threads")
    how = f", by {AGENTS} tasks of one loop that wait for a group each"
    return Workload(
        name="agents_shm",
        kind="loops",
        what=_what(plan, how),
        unit="groups/s",
        better="higher",
        session=partial(sessions.delivered, plan=plan, seconds=seconds),
        bound_name=f"{AGENTS} threads that call `reserve` and `add_items` of the table",
        bound=partial(sessions.delivered, plan=threads, seconds=seconds),
        parameters={**asdict(plan), "agents": AGENTS, "seconds": seconds},
        targets=(Target("ratio_to_bound", at_least=1),),
        peers=False,
    )


def _bound(plan: Plan, nbytes: int, seconds: float) -> dict[str, Any]:
    """The same bytes over a bare socket, or copied as often as shared memory needs."""
    if plan.transport in {"tcp", "unix"}:
        stream = partial(
            net_probes.bare_stream,
            plan.transport,
            ring_bytes=plan.batch_groups * nbytes,
            total_bytes=int(seconds * 5e8),
        )
        words = "TCP" if plan.transport == "tcp" else "a Unix socket"
        return {
            "bound_name": f"a bare loop of 256 KiB sends and receives over {words}, in two "
            "processes",
            "bound": any_engine(partial(net_probes.converted, stream, lambda rate: rate / nbytes)),
        }
    copies: Session = any_engine(
        partial(probes.copies, plan.items, plan.tokens, batch=plan.batch_groups, seconds=seconds)
    )
    return {
        "bound_name": "numpy copies of each group into a batch, in one thread",
        "bound": copies,
    }


def _limit(plan: Plan, nbytes: int, seconds: float) -> limits.Fields:
    if plan.transport == "local":
        return limits.copies(
            nbytes,
            sources=61,
            targets=plan.batch_groups,
            seconds=seconds / 3,
            convert=lambda rate: rate * 1e9 / nbytes,
        )
    return limits.transport(
        plan.transport,
        ring_bytes=plan.batch_groups * nbytes,
        seconds=seconds / 3,
        convert=lambda rate: rate * 1e9 / nbytes,
    )


def _decisions(live: int, rounds: int) -> Workload:
    plan = Plan("local", items=1, tokens=4, batch_groups=32)

    def session(engine: RolloutEngine) -> Any:
        return sessions.decisions(engine, plan=plan, live=live, rounds=rounds)

    return Workload(
        name="decisions",
        kind="rollouts",
        what=f"a group is reserved, or delivered in a batch of {plan.batch_groups}, with {live} "
        "groups there, in process: the slower of the two, a caller's time",
        unit="us",
        better="lower",
        session=session,
        bound_name="one numpy gather of as many rows, a batch at a time",
        bound=any_engine(
            partial(probes.gather_groups, live=live, batch=plan.batch_groups, rounds=rounds)
        ),
        parameters={**asdict(plan), "live": live, "rounds": rounds},
        targets=(Target("value", at_most=5),),
        peers=False,
    )
