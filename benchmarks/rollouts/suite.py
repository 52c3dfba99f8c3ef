"""The workloads of the suite of rollouts."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.limits import suite as limits
from benchmarks.net import probes as net_probes
from benchmarks.rollouts import probes, sessions
from benchmarks.rollouts.engine import Plan, Transport
from benchmarks.rollouts.groups import Groups
from benchmarks.workload import Session, Target, Workload, any_engine

if TYPE_CHECKING:
    from benchmarks.rollouts.engine import RolloutEngine

TRANSPORTS: tuple[Transport, ...] = ("local", "shm", "unix", "tcp")
_WHERE = {
    "local": "from a thread to a learner in the process that has the table",
    "shm": "from a process to a learner's, over shared memory",
    "unix": "from a process to a learner's, over a Unix socket",
    "tcp": "from a process to a learner's, over TCP",
}
# Groups a second.
_TARGETS = {"shm": 10_000, "tcp": 2_000}
# Of these, peers have a way of their own, which is the same for both.
_BESIDE_PEERS = ("shm", "tcp")


def workloads(quick: bool) -> list[Workload]:
    """List all workloads; ``quick`` ones do little work and say little."""
    seconds = 0.1 if quick else 2.0
    plans = [Plan(transport, batch_groups=16 if quick else 64) for transport in TRANSPORTS]
    many = Plan("shm", producers=2, batch_groups=plans[0].batch_groups)
    return [
        *(_delivered(f"groups_{plan.transport}", plan, seconds) for plan in plans),
        _delivered("groups_two_producers_shm", many, seconds),
        _decisions(2_000 if quick else 100_000, 20 if quick else 1_000),
    ]


def _delivered(name: str, plan: Plan, seconds: float) -> Workload:
    nbytes = Groups(plan.items, plan.tokens).nbytes
    target = _TARGETS.get(plan.transport)
    who = "" if plan.producers == 1 else f", {plan.producers} producers"
    return Workload(
        name=name,
        kind="rollouts",
        what=f"groups of {plan.items} × {plan.tokens} tokens, {nbytes} bytes, handed over one by "
        f"one {_WHERE[plan.transport]}{who}: reserved, complete, delivered in batches of "
        f"{plan.batch_groups} under a bound on their lag, and acknowledged",
        unit="groups/s",
        better="higher",
        session=partial(sessions.delivered, plan=plan, seconds=seconds),
        **_bound(plan, nbytes, seconds),
        **_limit(plan, nbytes, seconds),
        parameters={**asdict(plan), "group_bytes": nbytes, "seconds": seconds},
        targets=() if target is None else (Target("value", at_least=target),),
        peers=plan.transport in _BESIDE_PEERS and plan.producers == 1,
        steady=plan.transport in _BESIDE_PEERS and plan.producers == 1,
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
