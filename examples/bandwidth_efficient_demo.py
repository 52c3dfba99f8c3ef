"""One workload served in four orders, by what each earns for the attention that it reads.

Run ``python examples/bandwidth_efficient_demo.py``, from any folder; the plot goes to
``demo-output/bandwidth.png``, or where ``--out`` says. Requests of several conversations come to
one server that reads so many pairs of tokens per second. A cache, a real one that forgets what was
not used for longest, says how much of a request's beginning it has; nothing here is computed from
how much it should have. Time is simulated, so the numbers are the same everywhere.

What it shows: by bandwidth, tokens are rarely read again, so all requests wait less. Without an
aging bound, dear requests wait for as long as better ones come.
"""

from __future__ import annotations

import argparse
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from echoic.agents.bandwidth import (
    BandwidthAwareScheduler,
    BandwidthConfig,
    BandwidthEfficiencyTracker,
    BandwidthMetrics,
)
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

# Pairs of tokens that the server reads in a second.
SPEED = 200_000.0
# Conversations whose tokens the cache holds.
CACHED = 6
BOUND = 5.0
# Conversations at any time, and how long one gets before another takes its place.
OPEN = 20
LONGEST = 300


@dataclass
class Request:
    """A turn of a conversation: everything said before it, and something more."""

    since: float
    conversation: int
    tokens: int
    reward: float


@dataclass
class Outcome:
    """What came of an order."""

    metrics: BandwidthMetrics
    times: list[float] = field(default_factory=list)
    earned: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


class Cache:
    """How many tokens of each conversation are kept; the least recently used is dropped."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, int] = OrderedDict()

    def has(self, request: Request) -> int:
        """How many of its tokens are here. The last has to be run in any case."""
        return min(self._kept.get(request.conversation, 0), request.tokens - 1)

    def keep(self, request: Request) -> None:
        """Hold what was read, and forget what there is no room for."""
        longest = max(self._kept.get(request.conversation, 0), request.tokens)
        self._kept[request.conversation] = longest
        self._kept.move_to_end(request.conversation)
        while len(self._kept) > CACHED:
            self._kept.popitem(last=False)


def workload(count: int, seed: int) -> list[Request]:
    """Turns of twenty conversations; every fortieth is a long one that promises little."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(40, LONGEST, OPEN)
    names = list(range(OPEN))
    requests, now = [], 0.0
    for number in range(count):
        now += float(rng.exponential(0.06))
        if number % 40 == 0:
            requests.append(Request(now, -number - 1, 500, 0.05))
            continue
        place = int(rng.integers(OPEN))
        lengths[place] += rng.integers(5, 15)
        if lengths[place] > LONGEST:
            names[place], lengths[place] = OPEN + number, 40
        reward = float(rng.gamma(2.0, 0.5))
        requests.append(Request(now, names[place], int(lengths[place]), reward))
    return requests


def serve(requests: list[Request], config: BandwidthConfig | None) -> Outcome:
    """Serve everything, by priority or, without a config, in the order of arrival."""
    cache, tracker = Cache(), BandwidthEfficiencyTracker()
    scheduler = BandwidthAwareScheduler(config)
    outcome = Outcome(tracker.snapshot())
    coming, queue = list(reversed(requests)), list[Request]()
    now = total = 0.0
    while coming or queue:
        if not queue:
            now = max(now, coming[-1].since)
        while coming and coming[-1].since <= now:
            queue.append(coming.pop())
        first = 0
        if config is not None:
            order = scheduler.order(
                [request.reward for request in queue],
                [request.tokens for request in queue],
                [now - request.since for request in queue],
                [cache.has(request) for request in queue],
            )
            first = int(order[0])
        request = queue.pop(first)
        outcome.waits.append(now - request.since)
        cost = tracker.record_rollout_step(request.reward, request.tokens, cache.has(request))
        cache.keep(request)
        now += cost / SPEED
        total += request.reward
        outcome.times.append(now)
        outcome.earned.append(total)
    outcome.metrics = tracker.snapshot()
    return outcome


def compare(count: int, seed: int = 0) -> dict[str, Outcome]:
    """Serve one workload in each order."""
    requests = workload(count, seed)
    configs = {
        "order of arrival": None,
        "reward by wait": BandwidthConfig(enable_bandwidth_scheduling=False, aging_bound=math.inf),
        "by bandwidth": BandwidthConfig(aging_bound=math.inf),
        f"by bandwidth, {BOUND:g} s bound": BandwidthConfig(aging_bound=BOUND),
    }
    return {name: serve(requests, config) for name, config in configs.items()}


def show(outcomes: dict[str, Outcome], console: Console) -> None:
    """Print a line for each."""
    table = Table(
        "order", "η_bw", "reuse", "pairs read", "median wait", "longest wait", "done after"
    )
    for name, outcome in outcomes.items():
        metrics = outcome.metrics
        table.add_row(
            name,
            f"{metrics.eta_bw:.2e}",
            f"{metrics.kv_reuse_rate:.0%}",
            f"{metrics.total_effective_rollout_cost / 1e6:.2f} M",
            f"{np.median(outcome.waits):.2f} s",
            f"{max(outcome.waits):.1f} s",
            f"{outcome.times[-1]:.1f} s",
        )
    console.print(table)


def plot(outcomes: dict[str, Outcome], path: Path) -> None:
    """Write what was earned by when, and how long requests waited."""
    figure = Figure(figsize=(11, 4.5))
    earned, waits = figure.subplots(1, 2)
    for name, outcome in outcomes.items():
        earned.plot(outcome.times, outcome.earned, label=name)
        share = np.arange(1, len(outcome.waits) + 1) / len(outcome.waits)
        waits.plot(np.sort(outcome.waits), share, label=name)
    earned.set(xlabel="seconds", ylabel="reward so far", title="What was earned by when")
    waits.set(xlabel="seconds waited", ylabel="share of requests", title="How long they waited")
    earned.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Compare, print and plot."""
    parser = argparse.ArgumentParser(description="One workload served in four orders.")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("demo-output/bandwidth.png"))
    options = parser.parse_args(arguments)
    outcomes = compare(options.requests, options.seed)
    console = Console()
    show(outcomes, console)
    plot(outcomes, options.out)
    console.print(f"plot: {options.out}")


if __name__ == "__main__":
    main()
