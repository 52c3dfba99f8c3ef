"""The sessions of the suite, on the learner's side.

A session runs in a process of its own, which is the learner's. The server runs in another, unless
the engine says that it is the learner's (``by_learner``), and each producer in one more; if the
transport is ``local``, the table is in the learner's process and the producers are threads of it.

# What is timed

A repeat runs from before the first producer is told to begin until the learner has the last batch
in hand and has said so. How many groups it has follows from the rate of the one before. On the
clock, the ends of every item are looked at, and now and then a whole batch; off it, that each group
came once.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.child import ChildError
from benchmarks.content import ContentError
from benchmarks.rollouts.groups import SERIALS, Groups, Tally
from benchmarks.rollouts.processes import producing, send, serving
from benchmarks.timing import Measurement
from benchmarks.usage import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.payload import Array
    from benchmarks.rollouts.engine import Learner, Plan, Producer, RolloutEngine, Sender
    from benchmarks.timing import Measure

    # Tells producers to send so many, from a number on. What it gives waits for them, and tells the
    # processor time that they have used.
    _Begin = Callable[[int, int], Callable[[], float]]

# Groups of a second are first taken to be so many; the warm-up corrects it.
_FIRST_RATE = 200.0
_WHOLE_EVERY = 16


@contextlib.contextmanager
def delivered(engine: RolloutEngine, *, plan: Plan, seconds: float) -> Iterator[Measure]:
    """Groups that are reserved, completed, delivered and acknowledged in a second."""
    groups = Groups(plan.items, plan.tokens)
    tally = Tally(groups)
    rate, sent = _FIRST_RATE, 0
    opened = _in_process if plan.transport == "local" else _over_a_transport
    with opened(engine, plan, groups) as (learner, begin, cpu):

        def measure() -> Measurement:
            nonlocal rate, sent
            # Each producer sends as many, and together they fill batches.
            step = plan.batch_groups * plan.producers
            batches = max(1, round(rate * seconds / step)) * plan.producers
            each = batches * plan.batch_groups // plan.producers
            before = cpu(), cpu_seconds()
            start = time.perf_counter_ns()
            end = begin(sent, each)
            try:
                for number in range(batches):
                    batch = learner.take()
                    if number % _WHOLE_EVERY == 0:
                        tally.check(batch, plan.batch_groups)
                    else:
                        tally.count(batch, plan.batch_groups)
                    del batch
                    learner.done()
            except TimeoutError as error:
                # A producer that has failed has the reason.
                end()
                raise ChildError(f"nothing came from the producers: {error}") from error
            elapsed = time.perf_counter_ns() - start
            produced = end()
            after = cpu(), cpu_seconds()
            first = np.arange(plan.producers)[:, None] * SERIALS + sent
            tally.finish((first + np.arange(each)).ravel())
            sent += each
            count = batches * plan.batch_groups
            rate = count / elapsed * 1e9
            used = {
                "server_cpu_us_per_group": after[0] - before[0],
                "learner_cpu_us_per_group": after[1] - before[1],
                "producers_cpu_us_per_group": produced,
            }
            shown = {name: value / count * 1e6 for name, value in used.items() if value > 0}
            if plan.calls == "waited":
                shown["waited_calls_per_s"] = 2 * rate
            return Measurement(rate, {**shown, "gb_per_s": rate * groups.nbytes / 1e9})

        yield measure


@contextlib.contextmanager
def _over_a_transport(
    engine: RolloutEngine, plan: Plan, _groups: Groups
) -> Iterator[tuple[Learner, _Begin, Callable[[], float]]]:
    with contextlib.ExitStack() as stack:
        if getattr(engine, "by_learner", False):
            server, address = None, stack.enter_context(closing(engine.serve(plan))).address
        else:
            server, address = serving(engine, plan)
            stack.enter_context(server)
        producers = [
            stack.enter_context(producing(engine, address, plan)) for _ in range(plan.producers)
        ]
        learner = stack.enter_context(closing(engine.learn(address, plan)))

        def begin(first: int, count: int) -> Callable[[], float]:
            for number, producer in enumerate(producers):
                producer.tell({"do": "send", "first": number * SERIALS + first, "count": count})
            return lambda: sum(producer.hear()["cpu"] for producer in producers)

        def cpu() -> float:
            used: float = 0.0 if server is None else server.ask({"do": "usage"})["cpu"]
            return used

        yield learner, begin, cpu


@contextlib.contextmanager
def _in_process(
    engine: RolloutEngine, plan: Plan, groups: Groups
) -> Iterator[tuple[Learner, _Begin, Callable[[], float]]]:
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(closing(engine.serve(plan)))
        producers: list[Producer | Sender] = [
            stack.enter_context(closing(engine.produce(host.address, plan)))
            for _ in range(plan.producers)
        ]
        learner = stack.enter_context(closing(engine.learn(host.address, plan)))
        threads = stack.enter_context(ThreadPoolExecutor(plan.producers))

        def begin(first: int, count: int) -> Callable[[], float]:
            running = [
                threads.submit(send, producer, groups, number * SERIALS + first, count)
                for number, producer in enumerate(producers)
            ]
            # What they use is the process's.
            return lambda: sum(0.0 for one in running if one.result() is None)

        yield learner, begin, lambda: 0.0


@contextlib.contextmanager
def decisions(engine: Any, *, plan: Plan, live: int, rounds: int) -> Iterator[Measure]:
    """Reserve and deliver with so many groups there: µs a group, of the slower of the two.

    The table is in this process, and a round is a batch: it is delivered and acknowledged, and as
    many groups are reserved and completed. So what is told is what a caller in Python waits for,
    arrays and reservations included.
    """
    size = plan.batch_groups
    with closing(engine.crowd(plan, live)) as crowd:
        crowd.fill(live)

        def measure() -> Measurement:
            times: dict[str, list[float]] = {name: [] for name in ("sample", "reserve", "complete")}
            for _ in range(rounds):
                start = time.perf_counter_ns()
                ids = crowd.deliver()
                delivered = time.perf_counter_ns()
                _check_order(ids, size)
                crowd.acknowledge()
                between = time.perf_counter_ns()
                crowd.reserve(size)
                reserved = time.perf_counter_ns()
                crowd.complete()
                completed = time.perf_counter_ns()
                times["sample"].append(delivered - start)
                times["reserve"].append(reserved - between)
                times["complete"].append(completed - reserved)
            if crowd.live() != live:
                raise ContentError(f"expected {live} groups to be there, got {crowd.live()}")
            medians = {name: statistics.median(all_) / size / 1e3 for name, all_ in times.items()}
            extras = {f"{name}_us": value for name, value in medians.items()}
            return Measurement(max(medians["sample"], medians["reserve"]), extras)

        yield measure


def _check_order(ids: Array, size: int) -> None:
    """Compare a batch with the oldest groups that there are, in their order."""
    if len(ids) != size or (np.diff(ids.astype(np.int64)) <= 0).any():
        raise ContentError(f"expected {size} groups in their order, got {ids}")
