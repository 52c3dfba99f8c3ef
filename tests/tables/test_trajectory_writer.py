"""A writer of trajectories: which steps its items have, whom it waits for, and what it refuses."""

from __future__ import annotations

import gc
import signal
import time
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import writer_setup
from echoic import Ragged, Server, Table
from hypothesis import given, settings
from hypothesis import strategies as st
from writer_setup import check_ctrl_c_ends_a_flush, check_windows_while, one, resident

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(60)


class Setup(writer_setup.Setup):
    """A server with one table, and writers for it."""

    def writer(self, keep: int = 100, chunk: int | None = None) -> echoic.TrajectoryWriter:
        return self.client.trajectory_writer(keep, chunk_length=chunk)


def count(writer: echoic.TrajectoryWriter, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        writer.append({"a": step, "b": np.full(2, -step, np.int16)})


# Which steps an item has.


def test_items_of_the_last_steps_need_no_history(setup: Setup) -> None:
    writer = setup.writer(keep=5)
    for number in range(8):
        writer.append({"a": np.float32(number), "b": (np.full(2, number),)})
        if number == 2:
            with pytest.raises(echoic.errors.TrajectoryError, match=r"last 4 steps: .* `a` has 3"):
                writer.create_item("t", 1.0, last=4)
        if number >= 3:
            writer.create_item("t", 1.0, last=4)
            history = writer.history
            writer.create_item("t", 1.0, {"a": history["a"][-4:], "b": (history["b"][0][-4:],)})
        writer.create_item("t", 1.0)
    with pytest.raises(TypeError, match="either a trajectory, or last"):
        writer.create_item("t", 1.0, {"a": writer.history["a"][-1]}, last=1)
    with pytest.raises(ValueError, match="at least 1 step"):
        writer.create_item("t", 1.0, last=0)
    with pytest.raises(echoic.errors.TrajectoryError, match=r"last 6 steps: .* `a` has 5"):
        writer.create_item("t", 1.0, last=6)
    # A column that comes later is in the items from then on.
    writer.end_episode()
    writer.append({"a": np.float32(8), "b": (np.full(2, 8),), "c": 1})
    writer.create_item("t", 1.0)
    writer.end_episode()
    items = setup.items()
    for number in range(3):
        assert items.pop(0) == {"a": number, "b": [[number] * 2]}
    for number in range(3, 8):
        steps = list(range(number - 3, number + 1))
        window = {"a": steps, "b": [[[step] * 2 for step in steps]]}
        assert items.pop(0) == window
        assert items.pop(0) == window
        assert items.pop(0) == {"a": number, "b": [[number] * 2]}
    assert items == [{"a": 8, "b": [[8, 8]], "c": 1}]


def test_an_item_has_the_steps_that_it_names(setup: Setup) -> None:
    writer = setup.writer()
    count(writer, 5)
    a, b = writer.history["a"], writer.history["b"]
    writer.create_item("t", 1.0, {"now": a[-1], "window": b[-3:], "odd": a[[1, 3]]})
    writer.flush()
    assert setup.items() == [{"now": 4, "window": [[-2, -2], [-3, -3], [-4, -4]], "odd": [1, 3]}]


@pytest.mark.parametrize(
    "index",
    [
        slice(None),
        slice(-3, None),
        slice(2, -2),
        slice(-100, 100),
        slice(None, None, 3),
        slice(None, None, -1),
        slice(-2, 1, -2),
        slice(7, 8),
        [0],
        [3, 3, -1, 0],
        list(range(10)),
    ],
)
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_an_index_means_what_it_means_for_an_array(
    setup: Setup, index: Any, chunk: int | None
) -> None:
    writer = setup.writer(10, chunk)
    count(writer, 10)
    steps = writer.history["a"][index]
    expected = np.arange(10)[index]
    assert len(steps) == len(expected)
    assert steps.shape == expected.shape
    assert steps.dtype == np.int64
    np.testing.assert_array_equal(steps.numpy(), expected)
    writer.create_item("t", 1.0, steps)
    writer.flush()
    assert setup.items() == [expected.tolist()]


def test_an_index_out_of_range_is_refused(setup: Setup) -> None:
    writer = setup.writer(4)
    count(writer, 10)
    history = writer.history["a"]
    assert len(history) == 4
    assert history[-4].numpy() == 6
    for index in (4, -5, [0, 4], [-5]):
        with pytest.raises(IndexError, match="of a history of 4"):
            history[index]
    for index in ("obs", 1.5, None, [0.5]):
        with pytest.raises(TypeError):
            history[index]


def test_an_item_without_steps_is_refused(setup: Setup) -> None:
    writer = setup.writer()
    count(writer, 3)
    history = writer.history["a"]
    for nothing in (history[3:], history[[]], {"full": history[:], "empty": history[2:2]}):
        with pytest.raises(echoic.errors.TrajectoryError, match="0 steps"):
            writer.create_item("t", 1.0, nothing)
    for empty in ({}, ()):
        with pytest.raises(echoic.errors.TrajectoryError):
            writer.create_item("t", 1.0, empty)
    writer.flush()
    assert setup.table.stats().inserts == 0


@given(
    chunk=st.sampled_from([None, 1, 2, 5]),
    keep=st.integers(5, 12),
    plan=st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.data()), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_items_are_those_of_a_naive_model(
    chunk: int | None, keep: int, plan: list[tuple[int, bool, Any]]
) -> None:
    setup = Setup(Table.queue("t", capacity=1000))
    with setup.server, setup.writer(keep, chunk) as writer:
        model: list[int] = []
        expected, now = [], 0
        for steps, ends, data in plan:
            count(writer, steps, now)
            model = [*model, *range(now, now + steps)][-keep:]
            now += steps
            start = data.draw(st.integers(-len(model), -1))
            stop = data.draw(st.integers(start + 1, 0)) or None
            step = data.draw(st.integers(1, 3))
            writer.create_item("t", 1.0, writer.history["a"][start:stop:step])
            expected.append(model[start:stop:step])
            if ends:
                writer.end_episode()
                model = []
        writer.flush()
        assert setup.items() == expected


def test_items_share_their_steps(make: Callable[..., Setup]) -> None:
    setup = make(Table("t", capacity=10_000))
    writer = setup.writer(64)
    frame = np.zeros(10_000, np.uint8)
    for step in range(200):
        frame[:] = step
        writer.append(frame)
        if step >= 31:
            writer.create_item("t", 1.0, writer.history[-32:])
    writer.flush()
    table = setup.table.stats()
    assert table.size == 169
    # Each step is there once, although it is in 32 items.
    assert table.memory_bytes < 1.2 * 200 * 10_000 + 100_000
    batch = setup.table.sample(50)
    first = batch.data[:, 0, 0].astype(int)
    np.testing.assert_array_equal(batch.data[:, :, 0], first[:, None] + np.arange(32))
    assert (batch.data == batch.data[:, :, :1]).all()


def test_items_of_different_lengths_make_ragged_batches(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", capacity=10))
    writer = setup.writer()
    for length in (3, 1, 4):
        count(writer, length, 10 * length)
        history = writer.history
        writer.create_item("t", 1.0, {"a": history["a"][:], "last": history["a"][-1]})
        writer.end_episode()
    batch = setup.table.sample(3)
    assert isinstance(batch.data["a"], Ragged)
    assert [item.tolist() for item in batch.data["a"]] == [
        [30, 31, 32],
        [10],
        [40, 41, 42, 43],
    ]
    assert batch.data["last"].tolist() == [32, 10, 43]


# Steps.


def test_a_step_comes_in_parts(setup: Setup) -> None:
    writer = setup.writer()
    for step in range(3):
        writer.append({"obs": step}, partial=True)
        assert writer.episode_steps == step
        assert writer.history["obs"][-1].numpy() == step
        writer.append({"action": 10 * step}, partial=True)
        writer.append({"reward": step / 2})
        assert writer.episode_steps == step + 1
    history = writer.history
    writer.create_item("t", 1.0, {name: history[name][:] for name in history})
    writer.flush()
    assert setup.items() == [{"obs": [0, 1, 2], "action": [0, 10, 20], "reward": [0.0, 0.5, 1.0]}]


def test_a_leaf_is_given_once_in_a_step(setup: Setup) -> None:
    writer = setup.writer()
    writer.append({"obs": 1, "reward": 1.0}, partial=True)
    with pytest.raises(echoic.errors.TrajectoryError, match="`obs` has a value in step 0 already"):
        writer.append({"obs": 2})
    with pytest.raises(echoic.errors.TrajectoryError, match="step 0 is open"):
        writer.append_batch({"obs": np.arange(3)})
    writer.append({"action": 3})
    assert writer.history["obs"][:].numpy().tolist() == [1]


def test_leaves_may_be_missing_in_steps(setup: Setup) -> None:
    writer = setup.writer()
    writer.append({"a": 0})
    writer.append({"a": 1, "rare": 1.5})
    writer.append({"a": 2})
    writer.append({"a": 3, "rare": 3.5})
    writer.append({})
    history = writer.history
    assert history["a"][:].numpy().tolist() == [0, 1, 2, 3]
    assert history["rare"][:].numpy().tolist() == [1.5, 3.5]
    writer.create_item("t", 1.0, {"a": history["a"][-1], "rare": history["rare"][-2:]})
    writer.flush()
    assert setup.items() == [{"a": 3, "rare": [1.5, 3.5]}]


Pair = namedtuple("Pair", ["left", "right"])


def test_steps_are_trees(setup: Setup) -> None:
    writer = setup.writer()
    for step in range(3):
        writer.append({"x": (step, [np.full(2, step)]), "y": Pair(step + 0.5, None), 3: step})
    history = writer.history
    assert isinstance(history["x"], tuple)
    assert type(history["y"]) is Pair
    assert history["y"].right is None
    item = Pair(history["x"][1][0][-2:], (history["y"].left[-1], history[3][0]))
    writer.create_item("t", 1.0, item)
    writer.flush()
    data = setup.table.sample(1).data
    assert type(data).__name__ == "Pair"
    assert data.left.tolist() == [[[1, 1], [2, 2]]]
    assert [leaf.tolist() for leaf in data.right] == [[2.5], [0]]


def test_a_step_may_be_one_array(setup: Setup) -> None:
    writer = setup.writer()
    for step in range(4):
        writer.append(np.float32(step))
    writer.create_item("t", 1.0, writer.history[1:3])
    writer.flush()
    assert setup.items() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"a": 1.5, "b": np.zeros(2, np.int16)}, "`a`.*int64"),
        ({"a": 1, "b": np.zeros(3, np.int16)}, r"`b`.*int16\[2\].*\[3\]"),
        ({"a": 1, "b": np.zeros(2, np.int32)}, "`b`.*int16.*int32"),
        ({"a": 1.5}, "`a`.*int64.*float64"),
        ({"new": 1, "a": np.int8(1)}, "`a`.*int64.*int8"),
        ({"a": object()}, "object"),
        ({"a": "text"}, "text"),
    ],
)
def test_a_step_of_another_kind_is_refused(setup: Setup, step: Any, text: str) -> None:
    writer = setup.writer()
    count(writer, 2)
    with pytest.raises(echoic.errors.SpecError, match=text):
        writer.append(step)
    count(writer, 1, 2)
    assert writer.episode_steps == 3
    # Nothing of the refused step is there: its new leaf may be anything yet.
    writer.append({"new": np.zeros(3)})
    writer.create_item("t", 1.0, writer.history["a"][:])
    writer.flush()
    assert setup.items() == [[0, 1, 2]]


def test_a_step_is_copied(setup: Setup) -> None:
    writer = setup.writer()
    array = np.arange(3)
    writer.append(array)
    array[:] = -1
    writer.append(array[::-1])
    writer.create_item("t", 1.0, writer.history[:])
    array[:] = -2
    writer.flush()
    assert setup.items() == [[[0, 1, 2], [-1, -1, -1]]]


def test_steps_of_many_forms_take_turns(setup: Setup) -> None:
    writer = setup.writer()
    # More forms than a writer remembers at a time.
    names = [f"x{index}" for index in range(40)]
    for turn in range(3):
        for index, name in enumerate(names):
            writer.append({name: index + turn, "a": turn})
    history = writer.history
    for index, name in enumerate(names):
        if name in history:
            assert history[name][:].numpy()[-1] == index + 2
    for index in (39, 20, 39):
        writer.create_item("t", 1.0, {names[index]: history[names[index]][-1]})
    writer.flush()
    assert setup.items() == [{"x39": 41}, {"x20": 22}, {"x39": 41}]


def test_what_a_leaf_raises_by_itself_passes_and_the_step_is_not_appended(setup: Setup) -> None:
    class Leaf:
        raised = 0

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            self.raised += 1
            raise KeyboardInterrupt

    writer = setup.writer()
    count(writer, 2)
    leaf = Leaf()
    with pytest.raises(KeyboardInterrupt):
        writer.append({"a": leaf, "b": np.zeros(2, np.int16)})
    assert leaf.raised == 1
    assert writer.episode_steps == 2


@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_a_batch_of_steps_is_that_many_steps(make: Callable[..., Setup], chunk: int | None) -> None:
    steps = {"a": np.arange(10), "b": np.arange(20, dtype=np.float32).reshape(10, 2)}
    results = []
    for batched in (True, False):
        setup = make()
        writer = setup.writer(8, chunk)
        if batched:
            writer.append_batch({name: column[:7] for name, column in steps.items()})
            writer.append_batch({name: column[7:7] for name, column in steps.items()})
            writer.append_batch({name: column[7:] for name, column in steps.items()})
        else:
            for a, b in zip(*steps.values(), strict=True):
                writer.append({"a": a, "b": b})
        history = writer.history
        assert writer.episode_steps == 10
        writer.create_item("t", 1.0, {"a": history["a"][:], "b": history["b"][::3]})
        writer.flush()
        results.append(setup.items())
    assert results[0] == results[1]
    assert results[0][0]["a"] == list(range(2, 10))


def test_a_batch_of_steps_is_checked(setup: Setup) -> None:
    writer = setup.writer()
    with pytest.raises(echoic.errors.SpecError, match="`b`: expected an axis of steps"):
        writer.append_batch({"a": np.arange(3), "b": 1.0})
    with pytest.raises(
        echoic.errors.SpecError, match=r"`b`: expected float64\[3\], got float64\[4\]"
    ):
        writer.append_batch({"a": np.arange(3), "b": np.zeros(4)})
    assert writer.episode_steps == 0


# Which steps can be named.


def test_a_step_that_left_the_window_is_gone(setup: Setup) -> None:
    writer = setup.writer(3, 1)
    count(writer, 1)
    old = writer.history["a"][-1]
    count(writer, 2, 1)
    assert old.numpy() == 0
    count(writer, 3, 3)
    with pytest.raises(echoic.errors.TrajectoryError, match="`a`: step 0 is gone, only the last 3"):
        writer.create_item("t", 1.0, old)
    with pytest.raises(echoic.errors.TrajectoryError, match="gone"):
        old.numpy()
    writer.flush()
    assert setup.items() == []


def test_columns_have_windows_of_their_own(setup: Setup) -> None:
    writer = setup.writer(2)
    writer.configure("a", 5)
    count(writer, 9)
    assert [len(writer.history[name]) for name in "ab"] == [5, 2]
    with pytest.raises(ValueError, match="at least 1 step"):
        writer.configure("a", 0)
    with pytest.raises(ValueError, match="from 1 to that many"):
        writer.configure("a", 5, 6)
    with pytest.raises(ValueError, match="at least 1 step"):
        setup.writer(0)


def test_the_end_of_an_episode_clears_the_history(setup: Setup) -> None:
    writer = setup.writer()
    count(writer, 3)
    kept = writer.history["a"][-2:]
    writer.create_item("t", 1.0, kept)
    writer.end_episode()
    assert writer.episode_steps == 0
    assert len(writer.history["a"]) == 0
    with pytest.raises(echoic.errors.TrajectoryError, match="gone"):
        writer.create_item("t", 1.0, kept)
    count(writer, 1, 7)
    writer.create_item("t", 1.0, writer.history["a"][:])
    writer.flush()
    assert setup.items() == [[1, 2], [7]]


def test_the_history_may_go_on_over_the_end_of_an_episode(setup: Setup) -> None:
    writer = setup.writer()
    count(writer, 3)
    writer.end_episode(clear=False)
    assert writer.episode_steps == 0
    count(writer, 2, 3)
    writer.create_item("t", 1.0, writer.history["a"][-4:])
    writer.flush()
    assert setup.items() == [[1, 2, 3, 4]]


def test_the_end_of_an_episode_completes_an_open_step(setup: Setup) -> None:
    writer = setup.writer()
    writer.append({"a": 1}, partial=True)
    writer.end_episode(clear=False)
    writer.append({"a": 2})
    writer.create_item("t", 1.0, writer.history["a"][:])
    writer.flush()
    assert setup.items() == [[1, 2]]


def test_steps_of_another_writer_are_refused(setup: Setup) -> None:
    writer, other = setup.writer(), setup.writer()
    count(writer, 2)
    count(other, 2)
    with pytest.raises(echoic.errors.TrajectoryError, match=r"`b`.*another writer"):
        writer.create_item("t", 1.0, {"a": writer.history["a"][:], "b": other.history["b"][:]})


@pytest.mark.parametrize("leaf", [1.0, np.zeros(3), "text", object()])
def test_leaves_that_are_no_steps_are_refused(setup: Setup, leaf: Any) -> None:
    writer = setup.writer()
    count(writer, 2)
    for trajectory in ({"a": writer.history["a"][:], "x": leaf}, leaf, writer.history):
        with pytest.raises(
            echoic.errors.TrajectoryError, match="expected steps of the writer's history"
        ):
            writer.create_item("t", 1.0, trajectory)


# Tables.


@pytest.mark.parametrize("priority", [-1.0, -1e-9, float("nan"), float("inf"), -float("inf")])
def test_a_priority_that_is_none_is_refused(setup: Setup, priority: float) -> None:
    writer = setup.writer()
    count(writer, 2)
    with pytest.raises(echoic.errors.PriorityError):
        writer.create_item("t", priority, writer.history["a"][:])
    writer.create_item("t", 0.0, writer.history["a"][:])
    writer.flush()
    assert setup.table.stats().inserts == 1


def test_an_unknown_table_is_named_with_those_that_are_known(setup: Setup) -> None:
    writer = setup.writer()
    count(writer, 1)
    with pytest.raises(echoic.errors.TableNotFoundError, match=r'no table "other".*"t"'):
        writer.create_item("other", 1.0, writer.history["a"][:])


SPEC = {"a": np.zeros(3, np.int64), "b": np.zeros(2, np.int16)}


def test_a_table_with_a_spec_gets_rows(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", SPEC, capacity=10))
    writer = setup.writer(5, 2)
    count(writer, 5)
    history = writer.history
    writer.create_item("t", 1.0, {"a": history["a"][-3:], "b": history["b"][-1]})
    writer.create_item("t", 1.0, {"a": history["a"][[4, 0, 4]], "b": history["b"][0]})
    writer.flush()
    assert setup.items() == [{"a": [2, 3, 4], "b": [-4, -4]}, {"a": [4, 0, 4], "b": [0, 0]}]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (lambda a, b: {"a": a[-2:], "b": b[-1]}, r"`a: int64\[3\]`, got `a: int64\[2\]`"),
        (lambda a, b: {"a": a[-3:], "b": b[-1:]}, r"`b: int16\[2\]`, got `b: int16\[1, 2\]`"),
        (lambda a, b: {"a": a[-3:], "b": a[-2:]}, r"`b: int16\[2\]`, got `b: int64\[2\]`"),
        (lambda a, b: {"a": a[-3:], "c": b[-1]}, "got `c"),
        (lambda a, b: {"a": a[-3:]}, "2 leaves, got 1"),
    ],
)
def test_an_item_that_is_not_like_the_spec_is_refused(
    make: Callable[..., Setup], item: Callable[..., Any], text: str
) -> None:
    setup = make(Table.queue("t", SPEC, capacity=10))
    writer = setup.writer()
    count(writer, 5)
    history = writer.history
    with pytest.raises(echoic.errors.SpecError, match=text):
        writer.create_item("t", 1.0, item(history["a"], history["b"]))
    writer.create_item("t", 1.0, {"a": history["a"][-3:], "b": history["b"][-1]})
    writer.flush()
    assert setup.table.stats().inserts == 1


def test_items_go_to_several_tables() -> None:
    tables = [Table.queue("one", capacity=10), Table.queue("two", SPEC, capacity=10)]
    with Server(*tables) as server, echoic.connect(server).trajectory_writer(5) as writer:
        count(writer, 5)
        item = {"a": writer.history["a"][-3:], "b": writer.history["b"][-1]}
        for name in ("two", "one", "two"):
            writer.create_item(name, 1.0, item)
        writer.flush()
        assert [table.stats().size for table in tables] == [1, 2]
        assert one(tables[0].sample(1).data) == one(tables[1].sample(1).data)


def test_a_full_queue_keeps_items_waiting(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", capacity=2))
    writer = setup.writer()
    for step in range(5):
        writer.append(step)
        writer.create_item("t", 1.0, writer.history[-1])
    writer.flush(block_until_num_items=3, timeout=0)
    assert writer.pending == 3
    started = time.monotonic()
    with pytest.raises(echoic.errors.WaitTimeoutError) as raised:
        writer.flush(block_until_num_items=2, timeout=0.05)
    assert 0.05 <= time.monotonic() - started < 5
    assert raised.value.reason == "RATIO"
    assert writer.pending == 3
    with pytest.raises(ValueError, match="timeout"):
        writer.flush(timeout=-1)
    assert setup.items() == [0, 1]
    writer.flush(block_until_num_items=1, timeout=10)
    assert setup.items() == [2, 3]
    writer.flush(timeout=10)
    assert setup.items() == [4]


def test_a_flush_waits_until_somebody_samples(make: Callable[..., Setup], background: Any) -> None:
    setup = make(Table.queue("t", capacity=1))
    writer = setup.writer()
    for step in range(20):
        writer.append(step)
        writer.create_item("t", 1.0, writer.history[-1])
    flushed = background.start_and_let_block(writer.flush)
    got = [one(setup.table.sample(1, timeout=10).data) for _ in range(20)]
    flushed()
    assert got == list(range(20))
    assert writer.pending == 0


def test_appends_wait_when_a_thousand_items_do(make: Callable[..., Setup], background: Any) -> None:
    setup = make(Table.queue("t", capacity=1))
    writer = setup.writer(chunk=1)
    with pytest.raises(echoic.errors.WaitTimeoutError):  # noqa: PT012 - one of these steps waits
        for step in range(3000):
            writer.append(step, timeout=0.01)
            writer.create_item("t", 1.0, writer.history[-1])
    refused = writer.episode_steps - 1
    assert 1000 <= refused < 1100
    assert writer.pending <= 1100

    waiting = background.start_and_let_block(writer.append, refused + 1)
    # It lets go when half of them are in the table; the rest waits for the flush.
    flushed = background.start_and_let_block(lambda: (waiting(), writer.flush()))
    got = [one(setup.table.sample(1, timeout=10).data) for _ in range(refused)]
    flushed()
    assert got == list(range(refused))


def test_a_closed_table_ends_a_flush(make: Callable[..., Setup], background: Any) -> None:
    setup = make(Table.queue("t", capacity=1))
    writer = setup.writer()
    for step in range(3):
        writer.append(step)
        writer.create_item("t", 1.0, writer.history[-1])
    flushed = background.start_and_let_block(writer.flush)
    setup.server.close()
    with pytest.raises(echoic.errors.ClosedError):
        flushed()


def test_a_closed_writer_takes_nothing(setup: Setup) -> None:
    with setup.writer() as writer:
        count(writer, 2)
        writer.create_item("t", 1.0, writer.history["a"][:])
    assert setup.items() == [[0, 1]]
    for call in (
        lambda: writer.append({"a": 1, "b": np.zeros(2, np.int16)}),
        lambda: writer.append_batch({"x": np.zeros(2)}),
        lambda: writer.configure("a", 3),
        lambda: writer.create_item("t", 1.0, writer.history["a"][:]),
        writer.end_episode,
    ):
        with pytest.raises(echoic.errors.ClosedError, match="the writer is closed"):
            call()


def test_an_exception_in_a_with_block_keeps_what_was_not_flushed(setup: Setup) -> None:
    def interrupted() -> None:
        with setup.writer() as writer:
            count(writer, 2)
            writer.create_item("t", 1.0, writer.history["a"][:])
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert setup.items() == []


# Threads, signals, memory.


def test_one_thread_writes_while_another_samples(
    make: Callable[..., Setup], background: Any
) -> None:
    setup = make(Table("t", capacity=50, seed=1))

    def write() -> None:
        with setup.writer(16) as writer:
            for step in range(4000):
                writer.append({"step": step, "obs": np.full(8, step)})
                if step >= 3:
                    history = writer.history
                    item = {"step": history["step"][-4:], "obs": history["obs"][-1]}
                    writer.create_item("t", 1.0, item)
                if step % 100 == 0:
                    writer.flush()

    check_windows_while(write, setup, background)


def test_ctrl_c_ends_a_flush_that_waits(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", capacity=1))
    writer = setup.writer()
    for step in range(3):
        writer.append(step)
        writer.create_item("t", 1.0, writer.history[-1])
    check_ctrl_c_ends_a_flush(writer, setup)
    writer.flush(block_until_num_items=1, timeout=10)
    assert setup.items() == [1]


def test_a_handler_of_signals_may_use_the_writer_that_waits(make: Callable[..., Setup]) -> None:
    setup = make(Table.queue("t", capacity=1))
    writer = setup.writer()
    for step in range(3):
        writer.append(step)
        writer.create_item("t", 1.0, writer.history[-1])
    seen = []

    def handler(*_: object) -> None:
        writer.append(3)
        seen.append((writer.pending, setup.items()))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        writer.flush(block_until_num_items=1, timeout=10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [(2, [0])]
    assert setup.items() == [1]


def test_the_window_is_all_that_stays() -> None:
    table = Table("t", capacity=100)
    with Server(table) as server:
        writer = echoic.connect(server).trajectory_writer(100)
        steps = {"a": np.zeros((1000, 8)), "b": np.zeros(1000, np.int64)}

        def append(batches: int) -> int:
            for _ in range(batches):
                writer.append_batch(steps)
                writer.create_item("t", 1.0, writer.history["a"][-50:])
            writer.flush()
            gc.collect()
            return resident()

        # The first items fill the table and let the allocator settle.
        before = append(200)
        after = append(800)
        # The steps have 72 bytes each: all of them would be 57 MB.
        assert after - before < 10e6
        assert table.stats().memory_bytes < 10e6
