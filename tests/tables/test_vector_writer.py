"""A writer of many environments: the items of as many writers that are fed one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import writer_setup
from echoic import Table, VectorWriter, patterns
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(60)

NUM_ENVS = 3


class Setup(writer_setup.Setup):
    """A server with one table, and writers for it."""

    def writer(self, keep: int = 10, **options: Any) -> VectorWriter:
        return self.client.vector_writer(NUM_ENVS, keep, **options)


def rows(step: int) -> np.ndarray[Any, Any]:
    """Values of a step: 100 for each environment, and the step."""
    return np.arange(NUM_ENVS) * 100 + step


def test_an_item_has_the_steps_of_one_environment(setup: Setup) -> None:
    writer = setup.writer()
    for step in range(4):
        writer.append_batch({"obs": np.stack([rows(step)] * 2, 1), "a": rows(step)})
    obs, a = writer.history["obs"], writer.history["a"]
    made = writer.create_items(
        "t", [1.0, 2.0, 3.0], {"now": a[-1], "pair": obs[-2:], "odd": a[-4::2]}
    )
    assert made.dtype == bool
    assert made.tolist() == [True] * 3
    writer.flush()
    priorities = setup.table.items().info.priorities.tolist()
    assert priorities == [1.0, 2.0, 3.0]
    assert setup.items() == [
        {"now": e + 3, "pair": [[e + 2] * 2, [e + 3] * 2], "odd": [e, e + 2]} for e in (0, 100, 200)
    ]


class Twins:
    """A writer of many environments, and a writer for each of them."""

    def __init__(self, keep: int, chunk: int | None) -> None:
        self.one, self.many = Setup(), Setup()
        client = self.one.client
        self.singles = [client.trajectory_writer(keep, chunk_length=chunk) for _ in range(NUM_ENVS)]
        self.vector = self.many.writer(keep, chunk_length=chunk)

    def append(self, number: int, mask: Any, chosen: Any, **options: Any) -> None:
        values = {"a": rows(number), "b": -rows(number)}
        self.vector.append_batch(values, envs=mask, **options)
        for env in chosen:
            self.singles[env].append({k: value[env] for k, value in values.items()}, **options)

    def parts(self, number: int, mask: Any, chosen: Any) -> None:
        values = rows(number)
        self.vector.append_batch({"a": values}, envs=mask, partial=True)
        self.vector.append_batch({"b": values}, envs=mask)
        for env in chosen:
            self.singles[env].append({"a": values[env]}, partial=True)
            self.singles[env].append({"b": values[env]})

    def create(self, mask: Any, chosen: Any, index: slice) -> None:
        if not self.vector.history:
            return
        made = self.vector.create_items("t", 1.0, self.vector.history["a"][index], envs=mask)
        expected = np.zeros(NUM_ENVS, bool)
        for env in chosen:
            history = self.singles[env].history
            expected[env] = "a" in history and len(history["a"]) >= -index.start
            if expected[env]:
                self.singles[env].create_item("t", 1.0, history["a"][index])
        np.testing.assert_array_equal(made, expected)

    def end(self, mask: Any, chosen: Any) -> None:
        self.vector.end_episode(mask)
        for env in chosen:
            self.singles[env].end_episode()

    def check(self) -> None:
        for writer in (self.vector, *self.singles):
            writer.flush()
        # Items of one environment keep their order; which environment comes first is open.
        got, expected = (
            [[item for item in items if item[0] // 100 == env] for env in range(NUM_ENVS)]
            for items in (self.many.items(), self.one.items())
        )
        assert got == expected


PLAN = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "parts", "create", "create", "end"]),
        st.none() | st.lists(st.booleans(), min_size=NUM_ENVS, max_size=NUM_ENVS),
        st.integers(1, 4),
        st.integers(1, 4),
    ),
    max_size=25,
)


@given(plan=PLAN, keep=st.integers(2, 6), chunk=st.sampled_from([None, 1, 2]))
@settings(max_examples=80, deadline=None)
def test_it_does_what_a_writer_for_each_environment_does(
    plan: Any, keep: int, chunk: int | None
) -> None:
    twins = Twins(keep, chunk)
    with twins.one.server, twins.many.server:
        for number, (call, mask, back, length) in enumerate(plan):
            chosen = range(NUM_ENVS) if mask is None else np.flatnonzero(mask)
            if call == "create":
                stop = min(length - back, 0) or None
                twins.create(mask, chosen, slice(-back, stop))
            elif call == "end":
                twins.end(mask, chosen)
            elif call == "parts":
                twins.parts(number, mask, chosen)
            else:
                twins.append(number, mask, chosen)
        twins.check()


def test_it_works_over_every_transport(serve: Callable[..., echoic.Connection]) -> None:
    client = serve(Table.queue("t", capacity=1000), Table.queue("u", capacity=1000))
    envs, steps = 64, 30
    with client.vector_writer(envs, 4) as writer:
        for step in range(steps):
            obs = np.arange(envs)[:, None] * 1000 + np.full(8, step)
            writer.append_batch(
                {"obs": obs.astype(np.float32), "reward": np.full(envs, float(step))}
            )
            history = writer.history
            if step % 2:
                pair = {"obs": history["obs"][-2:], "reward": history["reward"][-1]}
                writer.create_items("t", 1.0, pair, envs=step % envs)
                writer.create_items("u", 1.0, pair, envs=[0, -1])
            writer.end_episode(np.arange(envs) == step // 2)
    client.flush()
    data = client.table("t").sample(15, timeout=10).data
    odd = np.arange(1, steps, 2)
    first = odd[:, None] * 1000 + np.stack([odd - 1, odd], 1)
    np.testing.assert_array_equal(data["obs"], first[:, :, None].repeat(8, 2))
    np.testing.assert_array_equal(data["reward"], odd)
    # The first environment began anew after the first step.
    assert client.table("u").stats().size == 2 * 15 - 1


def test_environments_that_are_left_out_make_no_step(setup: Setup) -> None:
    writer = setup.writer()
    for step, envs in enumerate([None, [True, False, True], [0, 0, -1], 1, [], np.zeros(3, bool)]):
        writer.append_batch({"a": rows(step)}, envs=envs)
    assert writer.episode_steps.tolist() == [3, 2, 3]
    made = writer.create_items("t", 1.0, writer.history["a"][-3:])
    assert made.tolist() == [True, False, True]
    writer.flush()
    assert setup.items() == [[0, 1, 2], [200, 201, 202]]


def test_an_episode_ends_in_the_environments_that_are_marked(setup: Setup) -> None:
    writer = setup.writer()
    writer.append_batch(rows(0))
    writer.end_episode(np.array([False, True, False]))
    writer.append_batch(rows(1))
    assert writer.episode_steps.tolist() == [2, 1, 2]
    assert writer.create_items("t", 1.0, writer.history[-2:]).tolist() == [True, False, True]
    writer.end_episode(clear=False)
    writer.append_batch(rows(2))
    assert writer.create_items("t", 1.0, writer.history[-2:]).tolist() == [True, True, True]
    assert setup.table.stats().size == 2, "an end hands items over"
    writer.flush()
    assert setup.items() == [[0, 1], [200, 201], [1, 2], [101, 102], [201, 202]]


def test_a_step_comes_in_parts(setup: Setup) -> None:
    writer = setup.writer()
    writer.append_batch({"obs": rows(0)}, partial=True)
    writer.append_batch({"action": rows(10)}, envs=[0, 1])
    with pytest.raises(echoic.errors.TrajectoryError, match="`obs` has a value in step 0"):
        writer.append_batch({"obs": rows(1)}, partial=True)
    # None has a value of the call that was refused.
    assert writer.episode_steps.tolist() == [1, 1, 0]
    writer.append_batch({"obs": rows(1)}, envs=[0, 1], partial=True)
    pair = {"obs": writer.history["obs"][-1], "action": writer.history["action"][-1]}
    assert writer.create_items("t", 1.0, pair).tolist() == [True, True, False]
    writer.flush()
    assert setup.items() == [{"obs": 1, "action": 10}, {"obs": 101, "action": 110}]


def test_priorities_are_one_or_one_for_each_environment(setup: Setup) -> None:
    writer = setup.writer()
    writer.append_batch(rows(0))
    now = writer.history[-1]
    for priority in (2, 2.0, np.float32(2), np.array(2.0), [2.0], np.full(3, 2, np.int32)):
        writer.create_items("t", priority, now)
    writer.create_items("t", [1.0, np.nan, 3.0], now, envs=[0, 2])
    writer.flush()
    assert setup.table.items().info.priorities.tolist() == [2.0] * 18 + [1.0, 3.0]
    for bad in (-1.0, [1.0, np.inf, 1.0], np.nan):
        with pytest.raises(echoic.errors.PriorityError):
            writer.create_items("t", bad, now)
    with pytest.raises(ValueError, match="expected 3 priorities, one for each environment, got 2"):
        writer.create_items("t", [1.0, 1.0], now)
    writer.flush()
    assert setup.table.stats().size == 20


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ({"a": np.zeros(2)}, r"`a`: expected float64\[3\], got float64\[2\]"),
        ({"a": np.zeros((3, 2))}, r"`a`: expected float64\[3\], got float64\[3, 2\]"),
        ({"a": np.zeros(3, np.float32)}, "`a`"),
        ({"a": np.float64(1)}, r"`a`: expected float64\[3\], got the float64"),
        ({"new": np.float64(1)}, "`new`: expected an axis of steps, got a scalar"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, "`b`"),
    ],
)
def test_steps_that_are_not_one_for_each_environment_are_refused(
    setup: Setup, steps: Any, text: str
) -> None:
    writer = setup.writer()
    writer.append_batch({"a": np.zeros(3)})
    with pytest.raises(echoic.errors.SpecError, match=text):
        writer.append_batch(steps)
    assert writer.episode_steps.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("envs", "error"),
    [
        ([True, False], ValueError),
        (np.ones((3, 1), bool), ValueError),
        ([0.5], ValueError),
        ("no", ValueError),
        ([3], IndexError),
        (-4, IndexError),
    ],
)
def test_environments_that_are_none_are_refused(
    setup: Setup, envs: Any, error: type[Exception]
) -> None:
    writer = setup.writer()
    writer.append_batch(rows(0))
    for call in (
        lambda: writer.append_batch(rows(1), envs=envs),
        lambda: writer.create_items("t", 1.0, writer.history[-1], envs=envs),
        lambda: writer.end_episode(envs),
    ):
        with pytest.raises(error):
            call()
    assert writer.episode_steps.tolist() == [1, 1, 1]


def test_what_makes_no_items_is_refused(setup: Setup) -> None:
    writer = setup.writer()
    with pytest.raises(echoic.errors.TrajectoryError, match='no column "a"'):
        writer.create_items("t", 1.0, patterns.column("a")[-1])
    writer.append_batch({"a": rows(0)})
    for trajectory in ({}, {"a": 1.0}, {"a": writer.history["a"]}):
        with pytest.raises(echoic.errors.TrajectoryError):
            writer.create_items("t", 1.0, trajectory)
    with pytest.raises(echoic.errors.TrajectoryError, match="an index is negative"):
        writer.history["a"][0]
    with pytest.raises(echoic.errors.TableNotFoundError, match=r'no table "other".*"t"'):
        writer.create_items("other", 1.0, writer.history["a"][-1])
    with pytest.raises(ValueError, match="got 0"):
        setup.client.vector_writer(0)


def test_items_that_are_not_like_the_spec_are_refused() -> None:
    setup = Setup(Table("t", {"a": np.zeros(2, np.int64)}, capacity=10))
    with setup.server, setup.writer() as writer:
        for step in range(2):
            writer.append_batch({"a": rows(step), "b": rows(step)})
        a, b = writer.history["a"], writer.history["b"]
        text = r"for table \"t\": expected the leaf `a: int64\[2\]`, got `a: int64\[1\]`"
        with pytest.raises(echoic.errors.SpecError, match=text):
            writer.create_items("t", 1.0, {"a": a[-1:]})
        writer.create_items("t", 1.0, {"a": b[-2:]})
        writer.flush()
        assert min(setup.table.sample(50).data["a"][:, 0].tolist()) in (0, 100, 200)
        assert setup.table.stats().inserts == NUM_ENVS


def test_appends_wait_when_many_items_do(background: Any) -> None:
    setup = Setup(Table.queue("t", capacity=1))
    writer = setup.writer(chunk_length=1)
    with setup.server:
        writer.append_batch(rows(0))
        now = writer.history[-1]
        made = 0
        while writer.pending < 1100:
            made += writer.create_items("t", 1.0, now).sum()
        with pytest.raises(echoic.errors.WaitTimeoutError):
            writer.append_batch(rows(1), timeout=0.01)
        assert writer.episode_steps.tolist() == [2, 2, 2]
        with pytest.raises(echoic.errors.WaitTimeoutError):
            writer.end_episode(timeout=0.01)
        flushed = background.start(writer.flush)
        taken = [setup.table.sample(1).data[0] for _ in range(made)]
        assert taken == [0, 100, 200] * (made // 3)
        flushed()


def test_a_closed_writer_takes_nothing(setup: Setup) -> None:
    with setup.writer() as writer:
        writer.append_batch(rows(0))
    for call in (
        lambda: writer.append_batch(rows(1)),
        lambda: writer.create_items("t", 1.0, writer.history[-1]),
        writer.end_episode,
    ):
        with pytest.raises(echoic.errors.ClosedError):
            call()


def test_columns_have_settings_of_their_own(setup: Setup) -> None:
    writer = setup.writer(2)
    writer.configure("long", 5, encoding="auto")
    for step in range(6):
        writer.append_batch({"long": rows(step), "short": rows(step)})
    history = writer.history
    assert writer.create_items("t", 1.0, history["long"][-5:]).all()
    assert not writer.create_items("t", 1.0, history["short"][-3:]).any()
