"""The tables of docs/scaling.md: made from the committed costs, and put where the page has a mark.

A table stands between ``<!-- model: NAME -->`` and ``<!-- end of NAME -->``. What is between is
written anew by ``python -m benchmarks.scaling_model tables``, and a test asks that nothing changes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.scaling_model import fleet, parts
from benchmarks.scaling_model.costs import COMMITTED, Costs, about
from benchmarks.scaling_model.setups import is_within
from benchmarks.scaling_model.simulation import Flow, herd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
_MARKED = re.compile(r"<!-- model: (\S+) -->\n.*?<!-- end of \1 -->", re.DOTALL)
_CROWDS = (1000, 10_000)
_AWAY = 2.0
# For how long a flow is looked at: some ten thousand items.
_FLOW = 0.5


def written(text: str, path: Path = COMMITTED) -> str:
    """Return a page with all its tables as they follow from the costs in ``path``."""
    costs, known = Costs.read(path), about(path)

    def anew(marked: re.Match[str]) -> str:
        name = marked[1]
        word, _, workload = name.partition(":")
        if workload:
            table = _shards(costs, next(one for one in fleet.WORKLOADS if one.name == workload))
        else:
            table = _TABLES[word](costs, known)
        return f"<!-- model: {name} -->\n{table}\n<!-- end of {name} -->"

    return _MARKED.sub(anew, text)


def _parts(costs: Costs, known: dict[str, Any]) -> str:
    def cells(threads: dict[str, Any], names: Sequence[str]) -> Iterable[str]:
        for name in names:
            line = threads.get(name)
            both = (line.at(parts.SMALL), line.at(parts.LARGE)) if line else (0.0, 0.0)
            yield " / ".join(_number(seconds * 1e6) for seconds in both)

    names = ("call", "io_thread", "event_loop", "take")
    rows = [
        ["a sample of the stream, TCP", *cells(costs.stream["tcp"], names)],
        ["a sample of the stream, shared memory", *cells(costs.stream["shm"], names)],
        ["an item inserted, TCP", *cells(costs.insert, names)],
        ["an item sampled, TCP", *cells(costs.sampled, names)],
        [
            "a batch sampled, beside its items",
            *(_number(costs.request.get(name, 0.0) * 1e6) for name in names),
        ],
    ]
    machine = known["machine"]
    head = ["µs on a processor", "calling thread", "I/O thread", "event loop", "consumer"]
    return (
        _table(head, rows) + f"\n\nMeasured on {machine['cores']} cores of a {machine['cpu']}, "
        f"{machine['date'][:10]}; of {parts.SMALL} / {parts.LARGE:,} bytes."
    )


def _others(costs: Costs, _: dict[str, Any]) -> str:
    rows = [
        ["a connection that comes: the server's", f"{_number(costs.connect['server'] * 1e6)} µs"],
        ["… the client's", f"{_number(costs.connect['client'] * 1e6)} µs"],
        ["connections of a client of tables", _number(costs.connect["of_a_client"])],
        [
            "an idle connection of a stream that was used",
            f"{_number(costs.idle['stream'] / 1024)} KiB",
        ],
        [
            "an idle connection of tables that was used",
            f"{_number(costs.idle['table'] / 1024)} KiB",
        ],
        [
            "a client of a stream",
            f"{_number(costs.idle['stream_client'] / 1024)} KiB of its process",
        ],
        ["a client of tables", f"{_number(costs.idle['table_client'] / 1024)} KiB of its process"],
        ["an idle connection, a second", f"{_number(costs.beat * 1e6)} µs of an event loop"],
        [
            "a GB of weights to one subscriber: the server's",
            f"{_number(costs.weights['server'] * 1e9)} s",
        ],
        ["… the subscriber's", f"{_number(costs.weights['client'] * 1e9)} s"],
        [
            "a GB of a checkpoint",
            f"{_number(costs.checkpoint['processor'] * 1e9)} s on a processor",
        ],
        ["bytes on the wire beside a sample's", _number(costs.wire["stream"])],
        ["bytes on the wire beside an inserted item's", _number(costs.wire["insert"])],
    ]
    return _table(["what", "costs"], rows)


def _checks(_: Costs, known: dict[str, Any]) -> str:
    rows = []
    for one in known["checks"]:
        ratio = one["measured"] / one["predicted"]
        mark = "" if is_within(ratio) else "**"
        rows.append(
            [
                one["what"],
                _number(one["predicted"]),
                _number(one["measured"]),
                f"{mark}{ratio:.2f}{mark}",
                f"{one['processors_left']:.2f}",
            ]
        )
    head = ["setup", "predicted, a second", "measured", "measured / predicted", "processors left"]
    return _table(head, rows)


def _shards(costs: Costs, workload: fleet.Workload) -> str:
    machines = fleet.Machines()
    rows = []
    for workers in fleet.WORKERS:
        cells = []
        for shards in fleet.SHARDS:
            name, most = fleet.worst(fleet.shard(costs, machines, workload, workers, shards))
            cells.append(f"{_emphasis(most)} {name}")
        least = fleet.enough(costs, machines, workload, workers)
        rows.append([f"{workers:,}", *cells, _or_none(least)])
    head = ["workers", *(f"{_count(shards, 'shard')}" for shards in fleet.SHARDS), "enough"]
    return _table(head, rows)


def _learner(costs: Costs, _: dict[str, Any]) -> str:
    rows = []
    for workload in fleet.WORKLOADS:
        cells = []
        for workers in fleet.WORKERS:
            busy = fleet.learner(costs, fleet.Machines(), workload, workers)
            name, most = fleet.worst(busy)
            cells.append(f"{_emphasis(most)} {name.removeprefix('learner' + chr(39) + 's ')}")
        rows.append([workload.name, *cells])
    return _table(["workload", *(f"{workers:,} workers" for workers in fleet.WORKERS)], rows)


def _connections(costs: Costs, _: dict[str, Any]) -> str:
    machines = fleet.Machines()
    rows = []
    for workers in fleet.WORKERS:
        for shards in fleet.SHARDS:
            cells = [f"{workers:,}", str(shards)]
            for affine in (False, True):
                standing = fleet.connections(costs, workers, shards, affine=affine)
                memory = standing * costs.idle["table"] / (1 << 20)
                seconds = fleet.connect_seconds(costs, machines, standing)
                mark = "**" if standing > machines.connections else ""
                cells.append(
                    f"{mark}{standing:,.0f}{mark}: {_number(memory)} MiB, {_number(seconds)} s"
                )
            rows.append(cells)
    head = ["workers", "shards", "each worker at all shards", "each worker at one"]
    return _table(head, rows)


def _weights(_: Costs, __: dict[str, Any]) -> str:
    machines = fleet.Machines()
    rows = []
    for workload in fleet.WORKLOADS:
        for workers in fleet.WORKERS:
            hosts = fleet.hosts(workload, workers)
            direct = fleet.direct_seconds(machines, workload.weights, hosts)
            fan, depth, tree = fleet.relay(machines, workload.weights, hosts)
            every = workload.weights_every
            rows.append(
                [
                    workload.name,
                    f"{workers:,}",
                    f"{hosts:,}",
                    f"{_late(direct, every)} s",
                    f"{_late(tree, every)} s, {depth} deep with {fan} each",
                ]
            )
    head = ["workload", "workers", "machines", "learner to all", "a tree of relays"]
    return _table(head, rows)


def _herd(costs: Costs, _: dict[str, Any]) -> str:
    loops = fleet.Machines().event_loops
    rows = []
    for workers in _CROWDS:
        for words, options in (
            ("as it is", {}),
            ("all pauses alike", {"jitter": False}),
            ("all pauses alike, 1,024 in the queue", {"jitter": False, "backlog": 1024}),
        ):
            crowd = herd(
                workers, connect=costs.connect["server"], loops=loops, away=_AWAY, **options
            )
            rows.append(
                [
                    f"{workers:,}",
                    words,
                    *(f"{_number(crowd.percentile(part))} s" for part in (0.5, 0.99)),
                    f"{_number(crowd.times[-1])} s",
                    f"{crowd.most_at_once:,}",
                    f"{crowd.dropped:,}",
                ]
            )
    head = ["connections", "clients", "half", "99 %", "all", "most in 10 ms", "turned away"]
    return _table(head, rows)


def _queues(costs: Costs, _: dict[str, Any]) -> str:
    service = costs.insert["event_loop"].at(fleet.WORKLOADS[1].nbytes)
    workers, rows = 10_000, []
    for busy in (0.5, 0.8, 0.95):
        rate = busy / service
        flow = Flow(workers, rate=rate / workers, service=service)
        rows.append(_queue(f"an event loop, {busy:.0%} busy", rate, flow.run(_FLOW)))
    rate = 0.5 / service
    # Each worker makes one item at a time, and there is a learner that is half as fast as they are.
    flow = Flow(
        workers, rate=rate / workers, service=service, learner=rate / 2, window=1, ahead=100
    )
    rows.append(_queue("the same, 50% busy, and a slow learner", rate, flow.run(_FLOW)))
    head = ["server", "items a second", "half within", "99 % within", "stored", "workers held"]
    return _table(head, rows)


def _queue(words: str, rate: float, seen: Any) -> list[str]:
    return [
        words,
        f"{_number(rate)}",
        *(f"{_number(seen.percentile(part) * 1e6)} µs" for part in (0.5, 0.99)),
        f"{seen.stored:,}",
        f"{seen.held:.0%}",
    ]


_TABLES: dict[str, Callable[[Costs, dict[str, Any]], str]] = {
    "parts": _parts,
    "others": _others,
    "checks": _checks,
    "learner": _learner,
    "connections": _connections,
    "weights": _weights,
    "herd": _herd,
    "queues": _queues,
}
NAMES = tuple(_TABLES)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.2g}" if value < 10 else f"{value:.3g}"


def _emphasis(busy: float) -> str:
    return f"**{_number(busy)}**" if busy > 1 else _number(busy)


def _late(seconds: float, every: float) -> str:
    return f"**{_number(seconds)}**" if seconds > every else _number(seconds)


def _or_none(shards: int | None) -> str:
    return f"more than {fleet.MOST_SHARDS}" if shards is None else str(shards)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
