"""The suite of rollouts measures a naive queue, and refuses one that is wrong in any way.

The queue is a list in this process; no test here looks at a speed.
"""

from __future__ import annotations

import queue
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks.content import ContentError
from benchmarks.peers import PEERS
from benchmarks.peers.mp_queue import ENGINE
from benchmarks.rollouts import sessions
from benchmarks.rollouts.engine import Host, Plan
from benchmarks.rollouts.groups import COLUMNS, SERIALS, Groups, Tally
from benchmarks.rollouts.loops import EchoicRuns
from benchmarks.rollouts.ours import EchoicRollouts
from benchmarks.rollouts.suite import TRANSPORTS, workloads
from benchmarks.subscriber import Subscriber
from benchmarks.suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Callable

PLAN = Plan("local", items=2, tokens=4, batch_groups=4)


class Naive:
    """A queue of groups, which is engine, producer and learner in one; ``fault`` spoils it."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.waiting: queue.Queue[dict[str, Any]] = queue.Queue()
        self.closed = 0

    def serve(self, _plan: Plan) -> Host:
        return Host("", self.close)

    def produce(self, _address: str, _plan: Plan) -> Naive:
        return self

    learn = produce

    def put(self, columns: Any, rewards: Any) -> None:
        group = {name: column.copy() for name, column in columns.items()}
        self.waiting.put({**group, "reward": rewards})

    def flush(self) -> None:
        pass

    def take(self) -> dict[str, Any]:
        groups = [self.waiting.get(timeout=10) for _ in range(PLAN.batch_groups)]
        if self.fault == "the same group twice":
            groups[1] = groups[0]
        batch = {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
        if self.fault == "a flipped bit":
            batch["mask"][-1, 2] ^= 1
        if self.fault == "a short batch":
            batch = {name: column[:-1] for name, column in batch.items()}
        if self.fault == "mixed groups":
            batch["reward"][1] += 1
        return batch

    def done(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


def test_naive_queue_is_measured_with_its_numbers() -> None:
    engine = Naive()
    with sessions.delivered(engine, plan=replace(PLAN, producers=2), seconds=0.02) as measure:
        for _ in range(3):
            found = measure()
            assert found.value > 0
            assert found.extras["learner_cpu_us_per_group"] > 0
    # Two producers, the learner, and the queue.
    assert engine.closed == 4


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("the same group twice", "groups were sent, others"),
        ("a flipped bit", "column mask is not what was sent"),
        ("a short batch", "expected 8 items, got 7"),
        ("mixed groups", "a group is not whole"),
    ],
)
def test_faulty_queue_gives_no_number(fault: str, message: str) -> None:
    with (
        pytest.raises(ContentError, match=message),
        sessions.delivered(Naive(fault), plan=PLAN, seconds=0.02) as measure,
    ):
        measure()


class TestTally:
    """A batch of four groups of two items."""

    @pytest.fixture
    def groups(self) -> Groups:
        return Groups(2, 4)

    def batch(self, groups: Groups, serials: list[int]) -> dict[str, Any]:
        entries = [{**groups.entry(serial), "reward": groups.rewards(serial)} for serial in serials]
        return {name: np.concatenate([each[name] for each in entries]) for name in entries[0]}

    def test_any_order_of_groups_and_of_items_is_right(self, groups: Groups) -> None:
        tally, serials = Tally(groups), [70, SERIALS + 3, 0, 61]
        batch = self.batch(groups, serials)
        swapped = {name: column[[1, 0, 2, 3, 4, 5, 6, 7]] for name, column in batch.items()}
        tally.check(swapped, 4)
        tally.finish(np.array(serials))

    def test_another_order_of_tokens_is_seen_without_looking_at_all(self, groups: Groups) -> None:
        batch = self.batch(groups, [1, 2, 3, 4])
        batch["ids"][5] = np.roll(batch["ids"][5], 1)
        batch["ids"][5, 0] = batch["ids"][5, 1]
        with pytest.raises(ContentError, match="last token"):
            Tally(groups).count(batch, 4)

    def test_a_missing_group_is_seen_in_the_end(self, groups: Groups) -> None:
        tally = Tally(groups)
        tally.count(self.batch(groups, [1, 2, 3, 4]), 4)
        with pytest.raises(ContentError, match="5 groups were sent"):
            tally.finish(np.arange(5))

    def test_a_group_has_the_bytes_of_its_columns(self, groups: Groups) -> None:
        assert groups.nbytes == 2 * 4 * (4 + 4 + 1)
        assert {name: column.dtype for name, column in groups.columns.items()} == COLUMNS


def test_decisions_are_refused_where_groups_come_in_another_order() -> None:
    engine: Any = EchoicRollouts()
    opened: Callable[..., Any] = engine.crowd

    def disordered(plan: Plan, live: int) -> Any:
        crowd = opened(plan, live)
        deliver = crowd.deliver
        crowd.deliver = lambda: deliver()[::-1]
        return crowd

    engine.crowd = disordered
    with (
        pytest.raises(ContentError, match="groups in their order"),
        sessions.decisions(engine, plan=PLAN, live=64, rounds=2) as measure,
    ):
        measure()


def test_decisions_keep_as_many_groups_there() -> None:
    with sessions.decisions(EchoicRollouts(), plan=PLAN, live=64, rounds=20) as measure:
        found = measure()
    assert found.extras.keys() == {"sample_us", "reserve_us", "complete_us"}
    assert found.value == max(found.extras["sample_us"], found.extras["reserve_us"])


def test_every_transport_is_measured_and_the_goals_are_told() -> None:
    by_name = {workload.name: workload for workload in workloads(False)}
    assert {f"groups_{transport}" for transport in TRANSPORTS} <= by_name.keys()
    goals = {
        name: [(target.metric, target.at_least, target.at_most) for target in workload.targets]
        for name, workload in by_name.items()
        if workload.targets
    }
    assert goals == {
        "groups_shm": [("value", 10_000, None)],
        "groups_two_producers_shm": [("value", 10_000, None)],
        "groups_tcp": [("value", 2_000, None)],
        "waited_shm": [("waited_calls_per_s", 15_000, None)],
        "loop_shm": [("value", 25_000, None)],
        "loop_tcp": [("value", 15_000, None)],
        "async_shm": [("value", 25_000, None)],
        "async_tcp": [("value", 15_000, None)],
        "agents_shm": [("ratio_to_bound", 1, None)],
        "decisions": [("value", None, 5)],
    }
    (weights,) = (each for each in SUITES["weights"].workloads(False) if each.targets)
    assert (weights.name, weights.targets[0].at_least) == ("weights_shm", 0.5)


def test_queues_are_asked_for_rollouts_and_one_for_loops_too() -> None:
    kinds = {peer.name: peer.kinds for peer in PEERS if "rollouts" in peer.kinds}
    on_ray = {"ray": ("rollouts",), "TransferQueue": ("rollouts",)}
    assert kinds == {"mp.Queue": ("rollouts", "loops"), **on_ray}


def test_a_queue_of_multiprocessing_brings_every_group_to_a_process_that_did_not_inherit_it() -> (
    None
):
    plan = replace(PLAN, transport="shm", producers=2)
    with sessions.delivered(ENGINE, plan=plan, seconds=0.02) as measure:
        assert measure().extras.keys() >= {"learner_cpu_us_per_group", "producers_cpu_us_per_group"}


@pytest.mark.nightly
@pytest.mark.parametrize("calls", ["loop", "async", "agents", "threads", "waited"])
def test_every_way_of_calls_brings_every_group(calls: Any) -> None:
    plan = replace(PLAN, transport="shm", producers=2, calls=calls)
    engine: Any = EchoicRollouts() if calls == "waited" else EchoicRuns()
    with sessions.delivered(engine, plan=plan, seconds=0.02) as measure:
        for _ in range(2):
            assert measure().value > 0


def test_subscriber_refuses_weights_that_are_not_of_the_version() -> None:
    class Subscription:
        def __init__(self, value: float, count: int) -> None:
            self.version = 3
            self.tree = {"layer": np.full(count, value, np.float32)}

        def wait(self, **_: Any) -> Subscription:
            return self

    assert Subscriber(1, Subscription(3, 1 << 18)).wait(3) > 0
    for wrong in (Subscription(2, 1 << 18), Subscription(3, 1 << 17)):
        with pytest.raises(ContentError, match="expected version 3"):
            Subscriber(1, wrong).wait(3)
