"""A writer by patterns: which items it makes, when, and what it refuses."""

from __future__ import annotations

import gc
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import writer_setup
from echoic import Ragged, Server, Table, patterns
from hypothesis import given, settings
from hypothesis import strategies as st
from writer_setup import check_ctrl_c_ends_a_flush, check_windows_while, one, resident

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(60)


class Setup(writer_setup.Setup):
    """A server with one table, and writers for it."""

    def writer(
        self, *given: Any, chunk: int | None = None, **rest: Any
    ) -> patterns.StructuredWriter:
        configs = [patterns.Config(pattern, table="t", **rest) for pattern in given]
        return self.client.structured_writer(configs, chunk_length=chunk)


A, B = patterns.column("a"), patterns.column("b")


def count(writer: patterns.StructuredWriter, steps: int, start: int = 0) -> None:
    """Append steps whose `a` is their number and whose `b` is a small vector."""
    for step in range(start, start + steps):
        writer.append({"a": step, "b": np.full(2, -step, np.int16)})


# Which steps an item has.


def test_an_item_has_the_steps_of_its_pattern(setup: Setup) -> None:
    writer = setup.writer({"now": A[-1], "window": B[-3:], "odd": A[-4:-1:2]})
    count(writer, 5)
    writer.flush()
    assert setup.items() == [
        {"now": 3, "window": [[-1, -1], [-2, -2], [-3, -3]], "odd": [0, 2]},
        {"now": 4, "window": [[-2, -2], [-3, -3], [-4, -4]], "odd": [1, 3]},
    ]


TAKES = [
    -1,
    -3,
    slice(-1, None),
    slice(-3, None),
    slice(-3, -1),
    slice(-4, -3),
    slice(-4, None, 2),
    slice(-4, -1, 2),
    slice(-4, None, 9),
]


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_an_index_means_what_it_means_for_a_list_of_the_steps(
    setup: Setup, take: Any, chunk: int | None
) -> None:
    writer = setup.writer(A[take], chunk=chunk)
    count(writer, 9)
    writer.flush()
    reach = -(take.start if isinstance(take, slice) else take)
    episodes = [list(range(steps)) for steps in range(reach, 10)]
    assert setup.items() == [episode[take] for episode in episodes]


@given(
    chunk=st.sampled_from([None, 1, 2, 5]),
    takes=st.lists(st.sampled_from(TAKES), min_size=1, max_size=3),
    modulo=st.integers(1, 4),
    remainder=st.integers(0, 3),
    least=st.integers(0, 5),
    episodes=st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.booleans()), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_items_are_those_of_a_naive_model(
    chunk: int | None,
    takes: list[Any],
    modulo: int,
    remainder: int,
    least: int,
    episodes: list[tuple[int, bool, bool]],
) -> None:
    remainder %= modulo
    conditions = [patterns.step_index() % modulo == remainder, patterns.data("a") >= least]
    setup = Setup()
    with (
        setup.server,
        setup.writer(*(A[take] for take in takes), chunk=chunk, conditions=conditions) as writer,
    ):
        expected: list[Any] = []
        history: list[int] = []
        now = 0
        for steps, clear, batched in episodes:
            values = list(range(now, now + steps))
            if batched:
                writer.append_batch({"a": np.array(values, int)})
            else:
                for value in values:
                    writer.append({"a": value})
            for index, value in enumerate(values):
                history.append(value)
                if index % modulo == remainder and value >= least:
                    for take in takes:
                        first = take.start if isinstance(take, slice) else take
                        if -first <= len(history):
                            expected.append(history[take])
            now += steps
            writer.end_episode(clear)
            history = [] if clear else history
        writer.flush()
        assert setup.items() == expected


def test_patterns_are_trees(setup: Setup) -> None:
    pair = namedtuple("Pair", ["left", "right"])
    x, y = patterns.column("x/1/0"), patterns.column("y/left")
    writer = setup.writer(pair([x[-2:], None], (y[-1], {3: patterns.column("3")[-2]})))
    for step in range(2):
        writer.append({"x": (step, [np.full(2, step)]), "y": pair(step + 0.5, None), 3: step})
    writer.flush()
    data = setup.table.sample(1).data
    assert type(data).__name__ == "Pair"
    assert data.left[0].tolist() == [[[0, 0], [1, 1]]]
    assert data.left[1] is None
    assert data.right[0].tolist() == [1.5]
    assert data.right[1][3].tolist() == [0]


def test_patterns_share_their_steps(make: Callable[..., Setup]) -> None:
    setup = make(Table("t", capacity=10_000))
    frame = patterns.column("")
    writer = setup.writer(frame[-32:], frame[-1])
    for step in range(200):
        writer.append(np.full(10_000, step, np.uint8))
    writer.flush()
    table = setup.table.stats()
    assert table.size == 169 + 200
    # Each step is there once, although it is in 33 items.
    assert table.memory_bytes < 1.2 * 200 * 10_000 + 100_000


def test_patterns_are_applied_in_their_order(setup: Setup) -> None:
    writer = setup.writer({"x": A[-1]}, {"y": A[-2:]}, {"x": A[-2]})
    count(writer, 3)
    writer.flush()
    assert setup.items() == [
        {"x": 0},
        *({"x": 1}, {"y": [0, 1]}, {"x": 0}),
        *({"x": 2}, {"y": [1, 2]}, {"x": 1}),
    ]


# When an item is made.


def applied(
    setup: Setup, *conditions: patterns.Condition, episodes: tuple[int, ...] = (10,)
) -> Any:
    """Steps at which a pattern of the newest step is applied."""
    writer = setup.writer(A[-1], conditions=conditions)
    for steps in episodes:
        for step in range(steps):
            writer.append({"a": step, "b": -step, "f": step / 2, "flag": step % 4 == 3})
        writer.end_episode()
    return setup.items()


@pytest.mark.parametrize(
    ("conditions", "steps"),
    [
        ([], range(10)),
        ([patterns.step_index() < 3], [0, 1, 2]),
        (
            [patterns.step_index() <= 3, patterns.step_index() > 0, patterns.step_index() != 2],
            [1, 3],
        ),
        ([patterns.step_index() == 4], [4]),
        ([patterns.step_index() >= 8.5], [9]),
        ([patterns.step_index() % 3 == 1], [1, 4, 7]),
        ([patterns.step_index() % 3 != 1, patterns.step_index() < 4], [0, 2, 3]),
        ([patterns.steps_since_applied() >= 4], [3, 7]),
        ([patterns.steps_since_applied() >= 3, patterns.step_index() % 2 == 0], [2, 6]),
        ([patterns.data("f") > 3.5], [8, 9]),
        ([patterns.data("f") == 1.5], [3]),
        ([np.float32(3.5) < patterns.data("f")], [8, 9]),
        ([patterns.data("flag") == True], [3, 7]),  # noqa: E712 - not a truth value
        ([patterns.data("b") % 4 == 3], [1, 5, 9]),
        ([patterns.data("absent") != 1], []),
        ([patterns.end_of_episode()], [9]),
        ([patterns.end_of_episode(), patterns.step_index() < 5], []),
    ],
    ids=lambda value: " and ".join(map(str, value)),
)
def test_conditions_say_when(
    setup: Setup, conditions: list[patterns.Condition], steps: Any
) -> None:
    assert applied(setup, *conditions) == list(steps)


def test_step_index_begins_again_with_an_episode_and_steps_since_applied_goes_on(
    make: Callable[..., Setup],
) -> None:
    assert applied(make(), patterns.step_index() == 1, episodes=(3, 1, 2)) == [1, 1]
    assert applied(make(), patterns.steps_since_applied() >= 3, episodes=(2, 2, 5)) == [0, 1, 4]


def test_numbers_beyond_doubles_are_compared_exactly(setup: Setup) -> None:
    large = 2**63
    writer = setup.writer(patterns.column("n")[-1], conditions=[patterns.data("n") == large + 1])
    for number in range(large, large + 4):
        writer.append({"n": np.uint64(number)})
    writer.flush()
    assert setup.items() == [large + 1]


def test_a_pattern_is_applied_at_the_first_part_of_a_step_that_has_all(setup: Setup) -> None:
    writer = setup.writer(
        {"obs": patterns.column("obs")[-2:], "action": patterns.column("action")[-2]}
    )
    for step in range(3):
        writer.append({"action": 10 * step}, partial=True)
        before = writer.pending + setup.table.stats().size
        writer.append({"obs": step}, partial=True)
        assert writer.pending + setup.table.stats().size == before + (step > 0)
        writer.append({"reward": 0.5})
    writer.flush()
    assert setup.items() == [{"obs": [0, 1], "action": 0}, {"obs": [1, 2], "action": 10}]


def test_steps_that_lack_a_column_make_no_item(setup: Setup) -> None:
    writer = setup.writer({"a": A[-1], "rare": patterns.column("rare")[-1]})
    for step in range(6):
        writer.append({"a": step, "rare": -step} if step % 2 else {"a": step})
    writer.flush()
    assert setup.items() == [{"a": step, "rare": -step} for step in (1, 3, 5)]


def test_columns_that_no_step_had_are_named(setup: Setup) -> None:
    writer = setup.writer(
        {"a": A[-1], "x": patterns.column("obz")[-1]}, conditions=[patterns.data("r") > 0]
    )
    assert writer.missing_columns == ["a", "obz", "r"]
    count(writer, 3)
    assert writer.missing_columns == ["obz", "r"]
    writer.append({"obz": 1, "r": 1})
    assert writer.missing_columns == []


def test_episodes_of_different_lengths_make_ragged_batches(make: Callable[..., Setup]) -> None:
    # A pattern has one length, so that the tables' items differ by pattern.
    setup = make(Table.queue("t", capacity=10))
    configs = [
        patterns.Config(
            {"a": A[-length:]},
            table="t",
            conditions=[patterns.end_of_episode(), patterns.step_index() == length - 1],
        )
        for length in (1, 2, 3, 4)
    ]
    writer = setup.client.structured_writer(configs)
    for length in (3, 1, 4):
        count(writer, length, 10 * length)
        writer.end_episode()
    batch = setup.table.sample(3)
    assert isinstance(batch.data["a"], Ragged)
    assert [item.tolist() for item in batch.data["a"]] == [
        [30, 31, 32],
        [10],
        [40, 41, 42, 43],
    ]


@pytest.mark.parametrize("clear", [True, False])
def test_items_reach_over_the_end_of_an_episode_unless_it_is_cleared(
    setup: Setup, clear: bool
) -> None:
    writer = setup.writer(A[-3:])
    count(writer, 2)
    writer.end_episode(clear)
    assert writer.episode_steps == 0
    count(writer, 3, 2)
    writer.flush()
    over = [] if clear else [[0, 1, 2], [1, 2, 3]]
    assert setup.items() == [*over, [2, 3, 4]]


def test_an_episode_that_ends_twice_makes_its_items_once(setup: Setup) -> None:
    writer = setup.writer(A[-1], conditions=[patterns.end_of_episode()])
    writer.end_episode()
    count(writer, 2)
    writer.end_episode(clear=False)
    writer.end_episode(clear=False)
    assert setup.items() == [1]


def test_the_end_of_an_episode_completes_an_open_step(setup: Setup) -> None:
    writer = setup.writer(A[-2:], conditions=[patterns.end_of_episode()])
    writer.append({"a": 1})
    writer.append({"a": 2}, partial=True)
    writer.end_episode()
    assert setup.items() == [[1, 2]]


# Steps.


@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_a_batch_of_steps_is_that_many_steps(make: Callable[..., Setup], chunk: int | None) -> None:
    steps = {"a": np.arange(10), "b": np.arange(20, dtype=np.float32).reshape(10, 2)}
    pattern = {"a": A[-2:], "b": B[-1]}
    results = []
    for batched in (True, False):
        setup = make()
        writer = setup.writer(pattern, chunk=chunk, conditions=[patterns.step_index() % 3 == 2])
        if batched:
            writer.append_batch({name: column[:7] for name, column in steps.items()})
            writer.append_batch({name: column[7:7] for name, column in steps.items()})
            writer.append_batch({name: column[7:] for name, column in steps.items()})
        else:
            for a, b in zip(*steps.values(), strict=True):
                writer.append({"a": a, "b": b})
        writer.end_episode()
        results.append(setup.items())
    assert results[0] == results[1]
    assert [item["a"] for item in results[0]] == [[1, 2], [4, 5], [7, 8]]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"a": 1.5, "b": np.zeros(2, np.int16)}, "`a`.*int64"),
        ({"a": 1, "b": np.zeros(3, np.int16)}, r"`b`.*int16\[2\].*\[3\]"),
        ({"new": 1, "a": np.int8(1)}, "`a`.*int64.*int8"),
    ],
)
def test_a_step_of_another_kind_is_refused(setup: Setup, step: Any, text: str) -> None:
    writer = setup.writer(A[-3:])
    count(writer, 2)
    with pytest.raises(echoic.errors.SpecError, match=text):
        writer.append(step)
    count(writer, 1, 2)
    writer.append({"new": np.zeros(3)})
    writer.flush()
    assert setup.items() == [[0, 1, 2]]


def test_a_leaf_is_given_once_in_a_step(setup: Setup) -> None:
    writer = setup.writer(A[-1])
    writer.append({"a": 1}, partial=True)
    with pytest.raises(echoic.errors.TrajectoryError, match="`a` has a value in step 0 already"):
        writer.append({"a": 2})
    with pytest.raises(echoic.errors.TrajectoryError, match="step 0 is open"):
        writer.append_batch({"a": np.arange(3)})
    writer.end_episode()
    assert setup.items() == [1]


# Malformed patterns.


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (0, r"column\('a'\)\[0\]: an index is negative"),
        (3, "an index is negative"),
        (slice(None), "needs a start"),
        (slice(None, -1), "needs a start"),
        (slice(0, None), "start and stop are negative"),
        (slice(-3, 0), "start and stop are negative"),
        (slice(-3, 2), "start and stop are negative"),
        (slice(-1, -3), r"column\('a'\)\[-1:-3\]: the slice is empty"),
        (slice(-2, -2), "the slice is empty"),
        (slice(-3, None, 0), r"column\('a'\)\[-3:None:0\]|step of at least 1"),
        (slice(-1, -5, -1), "step of at least 1"),
    ],
)
def test_steps_that_are_none_are_refused(index: Any, text: str) -> None:
    with pytest.raises(echoic.errors.TrajectoryError, match=text):
        A[index]


def test_steps_too_far_back_are_refused(setup: Setup) -> None:
    with pytest.raises(echoic.errors.TrajectoryError, match="pattern `x`"):
        setup.writer({"x": A[-(2**40) :]})
    with pytest.raises(OverflowError):
        setup.writer({"x": A[-(2**80)]})


@pytest.mark.parametrize("index", ["x", 1.5, None, [-1, -2]])
def test_steps_are_named_by_an_index_or_a_slice(index: Any) -> None:
    with pytest.raises(TypeError, match="an index or a slice"):
        A[index]


@pytest.mark.parametrize("leaf", [A, 1.0, np.zeros(2), "a"])
def test_leaves_that_are_no_steps_are_refused(setup: Setup, leaf: Any) -> None:
    with pytest.raises(
        echoic.errors.TrajectoryError, match="leaf `x/y` of a pattern: expected steps"
    ):
        setup.writer({"a": A[-1], "x": {"y": leaf}})


def test_a_pattern_has_leaves_and_a_writer_has_patterns(setup: Setup) -> None:
    for empty in ({}, (), None):
        with pytest.raises(echoic.errors.TrajectoryError, match="no leaves"):
            setup.writer(empty)
    with pytest.raises(echoic.errors.TrajectoryError, match="without configs"):
        setup.writer()


@pytest.mark.parametrize(
    "conditions",
    [
        [patterns.step_index() < 0],
        [patterns.step_index() == 1.5],
        [patterns.step_index() > 2, patterns.step_index() < 3],
        [patterns.step_index() == 3, patterns.step_index() == 4],
        [patterns.step_index() % 2 == 2],
        [patterns.step_index() % 3 > 2],
        [patterns.steps_since_applied() == 0],
        [patterns.steps_since_applied() < 1],
        [patterns.data("r") > 1, patterns.end_of_episode(), patterns.data("r") < 0.5],
        [patterns.data("r") % 4 < 0],
        [patterns.data("r") >= float("nan")],  # noqa: PLW0177 - what it is about
    ],
    ids=lambda value: " and ".join(map(str, value)),
)
def test_conditions_that_never_hold_are_refused(conditions: list[patterns.Condition]) -> None:
    with pytest.raises(echoic.errors.TrajectoryError, match="no step has"):
        patterns.Config(A[-1], table="t", conditions=conditions)


@given(
    term=st.sampled_from(
        [patterns.step_index(), patterns.step_index() % 3, patterns.steps_since_applied() % 4]
    ),
    tests=st.lists(
        st.tuples(st.sampled_from(["<", "<=", "==", ">=", ">"]), st.integers(-1, 5)),
        min_size=1,
        max_size=3,
    ),
)
@settings(max_examples=200, deadline=None)
def test_conditions_are_refused_just_when_no_number_meets_them(
    term: patterns.Term, tests: list[tuple[str, int]]
) -> None:
    conditions = [term._compare(test, value) for test, value in tests]
    modulo = conditions[0].modulo
    numbers = range(modulo or 20)
    possible = any(
        all(eval(f"{number} {test} {value}") for test, value in tests) for number in numbers
    )
    if possible:
        patterns.Config(A[-1], table="t", conditions=conditions)
    else:
        with pytest.raises(echoic.errors.TrajectoryError):
            patterns.Config(A[-1], table="t", conditions=conditions)


def test_a_condition_is_no_truth_value() -> None:
    with pytest.raises(TypeError, match="a list, all of which"):
        0 < patterns.step_index() < 3  # noqa: B015 - raises
    with pytest.raises(TypeError, match="has no truth value"):
        patterns.end_of_episode() and patterns.step_index() > 3
    with pytest.raises(TypeError, match="a list of conditions"):
        patterns.Config(A[-1], table="t", conditions=patterns.end_of_episode())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a condition, got True"):
        patterns.Config(A[-1], table="t", conditions=[True])  # type: ignore[list-item]
    for divisor in (0, -2, 2**32):
        with pytest.raises(echoic.errors.TrajectoryError, match="remainder"):
            patterns.step_index() % divisor


# Priorities.


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (2.5, [2.5, 2.5]),
        (patterns.Max("td"), [1.0, 4.0]),
        (patterns.Max("td", absolute=True), [3.0, 4.0]),
        (patterns.Mean("td", absolute=True), [2.0, 8 / 3]),
        (patterns.Last("td", absolute=True), [1.0, 4.0]),
        (
            patterns.Mixed("td", eta=0.25, absolute=True),
            [0.25 * 3 + 0.75 * 2, 0.25 * 4 + 0.75 * 8 / 3],
        ),
    ],
    ids=str,
)
def test_priorities_are_computed(setup: Setup, priority: Any, expected: list[float]) -> None:
    writer = setup.writer({"td": patterns.column("x")[-3:], "a": A[-1]}, priority=priority)
    for step, x in enumerate([-2.0, -3.0, 1.0, 4.0]):
        writer.append({"a": step, "x": np.float32(x)})
    writer.flush()
    np.testing.assert_allclose(setup.table.sample(2).info.priorities, expected)


def test_a_computed_priority_that_is_none_costs_one_item(setup: Setup) -> None:
    configs = [
        patterns.Config({"x": patterns.column("x")[-1]}, table="t", priority=patterns.Last("x")),
        patterns.Config({"y": patterns.column("x")[-1]}, table="t"),
    ]
    writer = setup.client.structured_writer(configs)
    writer.append({"x": 1.0})
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(echoic.errors.PriorityError, match="finite and at least 0"):
            writer.append({"x": wrong})
    writer.append({"x": 2.0})
    assert writer.episode_steps == 5
    with pytest.raises(echoic.errors.PriorityError):
        writer.append_batch({"x": np.array([3.0, -1.0, 4.0])})
    assert writer.episode_steps == 8
    writer.end_episode()
    items = setup.items()
    assert [item["x"] for item in items if "x" in item] == [1.0, 2.0, 3.0, 4.0]
    assert len([item for item in items if "y" in item]) == 8


def test_an_episode_ends_although_its_priority_is_none(setup: Setup) -> None:
    writer = setup.writer(
        {"x": patterns.column("x")[-1]},
        priority=patterns.Last("x"),
        conditions=[patterns.end_of_episode()],
    )
    writer.append({"x": -1.0})
    with pytest.raises(echoic.errors.PriorityError):
        writer.end_episode()
    writer.append({"x": 1.0})
    writer.end_episode()
    assert setup.items() == [{"x": 1.0}]


def test_priorities_that_can_not_be_are_refused(setup: Setup) -> None:
    for priority in (-1.0, float("nan"), float("inf")):
        with pytest.raises(echoic.errors.PriorityError):
            setup.writer(A[-1], priority=priority)
    with pytest.raises(ValueError, match=r"from 0 to 1, got 1\.5"):
        setup.writer({"a": A[-1]}, priority=patterns.Mixed("a", eta=1.5))
    with pytest.raises(echoic.errors.TrajectoryError, match="of leaf `td`; the pattern has a, x/0"):
        setup.writer({"x": [B[-1]], "a": A[-1]}, priority=patterns.Max("td"))
    with pytest.raises((TypeError, ValueError)):
        setup.writer(A[-1], priority="high")


@pytest.mark.parametrize("what", ["condition", "priority"])
def test_numbers_are_taken_of_columns_of_numbers(setup: Setup, what: str) -> None:
    if what == "condition":
        writer = setup.writer(A[-1], conditions=[patterns.data("b") > 1])
    else:
        writer = setup.writer({"b": B[-1]}, priority=patterns.Max("b"))
    with pytest.raises(echoic.errors.SpecError, match=r"`b` has int16\[2\] steps"):
        count(writer, 1)
    assert writer.episode_steps == 0
    writer.append({"a": 1, "b": np.float32(2)})
    writer.flush()
    assert len(setup.items()) == 1


# Tables.

SPEC = {"a": np.zeros(3, np.int64), "b": np.zeros(2, np.int16)}


def test_an_unknown_table_is_named_with_those_that_are_known(setup: Setup) -> None:
    with pytest.raises(echoic.errors.TableNotFoundError, match=r'no table "other".*"t"'):
        setup.client.structured_writer([patterns.Config(A[-1], table="other")])


def test_a_table_with_a_spec_gets_rows(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", SPEC, capacity=10))
    writer = setup.writer({"a": A[-3:], "b": B[-2]}, chunk=2)
    count(writer, 5)
    writer.flush()
    assert setup.items() == [
        {"a": [step - 2, step - 1, step], "b": [1 - step] * 2} for step in (2, 3, 4)
    ]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ({"a": A[-2:], "b": B[-1]}, r"`a: int64\[3\]`, got one of 2 steps"),
        ({"a": A[-3::2], "b": B[-1]}, r"`a: int64\[3\]`, got one of 2 steps"),
        ({"a": A[-3:], "b": B[-1:]}, r"`b: int16\[2\]`, got one of 1 steps"),
        ({"a": A[-3:], "c": B[-1]}, r"`b: int16\[2\]`, got one of the path `c`"),
        ({"a": A[-3:]}, "2 leaves, got 1"),
    ],
)
def test_a_pattern_that_is_not_like_the_spec_is_refused(
    make: Callable[..., Setup], pattern: Any, text: str
) -> None:
    setup = make(Table.queue("t", SPEC, capacity=10))
    with pytest.raises(echoic.errors.SpecError, match=f'for table "t": expected.*{text}'):
        setup.writer(pattern)


def test_steps_that_do_not_make_rows_of_the_spec_are_refused(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", SPEC, capacity=10))
    writer = setup.writer({"a": A[-3:], "b": B[-1]})
    with pytest.raises(echoic.errors.SpecError, match=r"`b: int16\[2\]`, got `b: int32\[2\]`"):
        writer.append({"a": 1, "b": np.zeros(2, np.int32)})
    writer.append({"a": 0}, partial=True)
    with pytest.raises(echoic.errors.SpecError, match=r"`b: int16\[2\]`, got `b: int16\[\]`"):
        writer.append({"b": np.int16(3)})
    assert writer.episode_steps == 0
    writer.append({"b": np.zeros(2, np.int16)})
    count(writer, 2, 1)
    writer.flush()
    assert setup.items() == [{"a": [0, 1, 2], "b": [-2, -2]}]


def test_items_go_to_several_tables() -> None:
    tables = [Table.queue("one", capacity=10), Table.queue("two", SPEC, capacity=10)]
    pattern = {"a": A[-3:], "b": B[-1]}
    configs = [
        patterns.Config(pattern, table="two"),
        patterns.Config(pattern, table="one", conditions=[patterns.step_index() == 4]),
    ]
    with (
        Server(*tables) as server,
        echoic.connect(server).structured_writer(configs) as writer,
    ):
        count(writer, 5)
        writer.flush()
        assert [table.stats().size for table in tables] == [1, 3]
        assert one(tables[0].sample(1).data) == {"a": [2, 3, 4], "b": [-4, -4]}


def test_a_full_queue_keeps_items_waiting(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", capacity=2))
    writer = setup.writer(A[-1])
    count(writer, 5)
    writer.flush(block_until_num_items=3, timeout=0)
    with pytest.raises(echoic.errors.WaitTimeoutError):
        writer.flush(block_until_num_items=2, timeout=0.02)
    assert writer.pending == 3
    with pytest.raises(echoic.errors.WaitTimeoutError):
        writer.end_episode(timeout=0)
    assert writer.episode_steps == 0
    with pytest.raises(ValueError, match="timeout"):
        writer.end_episode(timeout=-1)
    assert setup.items() == [0, 1]
    writer.flush(block_until_num_items=1, timeout=10)
    assert setup.items() == [2, 3]
    writer.flush(timeout=10)
    assert setup.items() == [4]


def test_appends_wait_when_a_thousand_items_do(make: Callable[..., Setup], background: Any) -> None:
    setup = make(Table.queue("t", capacity=1))
    writer = setup.writer(A[-1], chunk=1)
    with pytest.raises(echoic.errors.WaitTimeoutError):  # noqa: PT012 - one of these steps waits
        for step in range(3000):
            writer.append({"a": step}, timeout=0.01)
    steps = writer.episode_steps
    assert 1000 <= steps < 1100
    waiting = background.start_and_let_block(writer.append, {"a": steps})
    # It lets go when half of them are in the table; the rest waits for the flush.
    flushed = background.start_and_let_block(lambda: (waiting(), writer.flush()))
    got = [one(setup.table.sample(1, timeout=10).data) for _ in range(steps + 1)]
    flushed()
    assert got == list(range(steps + 1))


def test_a_closed_writer_takes_nothing(setup: Setup) -> None:
    with setup.writer(A[-1]) as writer:
        count(writer, 2)
    assert setup.items() == [0, 1]
    for call in (
        lambda: writer.append({"a": 1}),
        lambda: writer.append_batch({"a": np.zeros(2, int)}),
        writer.end_episode,
    ):
        with pytest.raises(echoic.errors.ClosedError, match="the writer is closed"):
            call()


# Threads, signals, memory.


def test_one_thread_writes_while_another_samples(
    make: Callable[..., Setup], background: Any
) -> None:
    setup = make(Table("t", capacity=50, seed=1))

    def write() -> None:
        with setup.writer(
            {"step": patterns.column("step")[-4:], "obs": patterns.column("obs")[-1]}
        ) as writer:
            for step in range(4000):
                writer.append({"step": step, "obs": np.full(8, step)})
                if step % 100 == 0:
                    writer.flush()

    check_windows_while(write, setup, background)


def test_ctrl_c_ends_a_flush_that_waits(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", capacity=1))
    writer = setup.writer(A[-1])
    count(writer, 3)
    check_ctrl_c_ends_a_flush(writer, setup)


def test_what_no_pattern_reaches_is_not_kept() -> None:
    table = Table("t", capacity=100)
    with Server(table) as server:
        config = patterns.Config(
            {"a": A[-50:]}, table="t", conditions=[patterns.steps_since_applied() >= 1000]
        )
        writer = echoic.connect(server).structured_writer([config])
        steps = {"a": np.zeros((1000, 8)), "unused": np.zeros((1000, 8))}

        def append(batches: int) -> int:
            for _ in range(batches):
                writer.append_batch(steps)
            writer.flush()
            gc.collect()
            return resident()

        # The first items fill the table and let the allocator settle.
        before = append(200)
        after = append(800)
        assert table.stats().inserts == 1000
        # The steps have 128 bytes each: all of them would be 102 MB.
        assert after - before < 10e6
        assert table.stats().memory_bytes < 10e6
