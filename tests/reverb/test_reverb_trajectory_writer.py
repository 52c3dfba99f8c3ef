"""TrajectoryWriter: what is appended, which items are made of it, and when they arrive."""

from __future__ import annotations

import gc
import random
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from polling import until
from reverb_under_test import UPSTREAM, reverb, spec

Pair = namedtuple("Pair", ["x", "y"])

CLOSED = r"TrajectoryWriter::Close has been called\."


@pytest.fixture
def client(make_client, make_table):
    """Serve a plain table, a second one, one that takes two items only, and one with a type."""
    return make_client(
        make_table(max_size=1000),
        make_table("other"),
        make_table("narrow", rate_limiter=reverb.rate_limiters.Queue(2), max_times_sampled=1),
        make_table(
            "typed",
            signature={"a": spec([2], np.float32), "b": spec([None], np.int64)},
        ),
    )


def size(client: Any, table: str = "table") -> int:
    return client.server_info()[table].current_size


def items(client: Any, table: str = "table") -> list[Any]:
    """Take all items out of a table, and give their data in the order of insertion."""
    found = []
    while size(client, table):
        (sample,) = client.sample(table, emit_timesteps=False)
        found.append(sample.data)
        client.mutate_priorities(table, deletes=[sample.info.key])
    return found


def write(writer: Any, *values: Any) -> None:
    for value in values:
        writer.append(value)


def fill(writer: Any, table: str, number: int, error: Exception) -> None:
    """Create items, and then fail."""
    writer.append([1])
    for _ in range(number):
        writer.create_item(table, 1.0, [writer.history[0][:]])
    raise error


class RandomProgram:
    """Random steps and items, written and at the same time kept in plain Python lists."""

    def __init__(self, client: Any, choose: random.Random) -> None:
        self.choose = choose
        self.keep = choose.randint(1, 7)
        self.names = "abc"[: choose.randint(1, 3)]
        self.model: dict[str, list[Any]] = {name: [] for name in self.names}
        self.counter = 0
        self.writer = client.trajectory_writer(self.keep)
        for name in self.names:
            if choose.random() < 0.5:
                length = choose.choice([None, 1, choose.randint(1, self.keep)])
                self.writer.configure(
                    (name,), num_keep_alive_refs=self.keep, max_chunk_length=length
                )

    def append(self) -> None:
        step = {}
        for name in self.names:
            self.counter += 1
            value = [self.counter, -self.counter] if self.choose.random() < 0.8 else None
            step[name] = value if value is None else np.array(value)
            self.model[name].append(value)
        self.writer.append(step)

    def create_item(self) -> list[Any]:
        """Create an item if any column can be in it, and give what it must be sampled as."""
        chosen = [self.choose_steps(name) for name in self.names if self.usable_steps(name)]
        if not chosen:
            return []
        columns, values = zip(*chosen, strict=True)
        self.writer.create_item("table", 1.0, list(columns))
        return [list(values)]

    def usable_steps(self, name: str) -> int:
        """Say how many of the last steps have the column and are in the buffer."""
        usable = 0
        for value in reversed(self.model[name][-self.keep :]):
            if value is None:
                break
            usable += 1
        return usable

    def choose_steps(self, name: str) -> tuple[Any, Any]:
        first = -self.choose.randint(1, self.usable_steps(name))
        index: Any = first
        if self.choose.random() < 0.7:
            end = self.choose.choice([None, *range(first + 1, 0)])
            # Upstream loses track of a stride within a chunk, and samples other steps.
            index = slice(first, end, 1 if UPSTREAM else self.choose.choice([1, 2, 3]))
        return self.writer.history[name][index], self.model[name][index]

    def end_episode(self) -> None:
        clear = self.choose.random() < 0.7
        self.writer.end_episode(clear_buffers=clear)
        if clear:
            self.model = {name: [] for name in self.names}


class TestMakingAWriter:
    @pytest.mark.parametrize("number", [0, -1])
    def test_it_keeps_at_least_one_reference(self, client, number):
        with pytest.raises(ValueError) as raised:
            client.trajectory_writer(number)
        assert str(raised.value) == f"num_keep_alive_refs ({number}) must be a positive integer"

    def test_its_arguments_have_names(self, client):
        writer = client.trajectory_writer(num_keep_alive_refs=1, validate_items=False)
        assert isinstance(writer, reverb.TrajectoryWriter)

    def test_whether_to_validate_is_given_by_name_only(self, client):
        with pytest.raises(TypeError):
            client.trajectory_writer(1, True)

    def test_a_fresh_writer_has_no_history(self, client):
        writer = client.trajectory_writer(1)
        with pytest.raises(RuntimeError) as raised:
            writer.history
        assert (
            str(raised.value)
            == "history cannot be accessed before `append` is called at least once."
        )
        assert writer.episode_steps == 0


class TestAppending:
    def test_append_returns_nothing_and_counts_the_step(self, client):
        writer = client.trajectory_writer(3)
        assert writer.append({"a": 1}) is None
        writer.append({"a": 2})
        assert writer.episode_steps == 2
        assert len(writer.history["a"]) == 2

    def test_the_history_is_nested_as_the_data(self, client):
        writer = client.trajectory_writer(3)
        writer.append(Pair(1, [2, (3.0, {"z": 4})]))
        history = writer.history
        assert type(history) is Pair
        assert type(history.y) is list
        assert type(history.y[1]) is tuple
        assert history.x[0].numpy() == 1
        assert history.y[0][0].numpy() == 2
        assert history.y[1][0][0].numpy() == 3.0
        assert history.y[1][1]["z"][0].numpy() == 4

    def test_a_single_leaf_is_a_structure(self, client):
        writer = client.trajectory_writer(3)
        write(writer, 3, 4)
        assert writer.history[:].numpy().tolist() == [3, 4]

    def test_the_order_of_keys_does_not_matter(self, client):
        writer = client.trajectory_writer(3)
        write(writer, {"b": 1, "a": 2}, {"a": 4, "b": 3})
        assert writer.history["a"][:].numpy().tolist() == [2, 4]
        assert writer.history["b"][:].numpy().tolist() == [1, 3]

    def test_a_column_may_be_left_out_of_a_step(self, client):
        writer = client.trajectory_writer(4)
        write(writer, {"a": 1, "b": 10}, {"a": 2}, {"a": 3, "b": None}, {"a": 4, "b": 40})
        assert writer.history["a"][:].numpy().tolist() == [1, 2, 3, 4]
        assert len(writer.history["b"]) == 4
        assert writer.history["b"][0].numpy() == 10
        assert writer.history["b"][3].numpy() == 40
        for missing in (1, 2):
            with pytest.raises(ValueError, match="cannot contain any None data references"):
                writer.history["b"][missing]

    def test_a_column_that_comes_later_has_none_before(self, client):
        writer = client.trajectory_writer(4)
        write(writer, {"a": 1}, {"a": 2, "c": {"d": 20.5}})
        assert len(writer.history["c"]["d"]) == 2
        assert writer.history["c"]["d"][1].numpy() == 20.5
        with pytest.raises(ValueError) as raised:
            writer.history["c"]["d"][0]
        assert str(raised.value) == (
            "TrajectoryColumns cannot contain any None data references: "
            "TrajectoryColumn at path ('c', 'd', 0) got [None]."
        )

    def test_a_leaf_may_be_none_first(self, client):
        writer = client.trajectory_writer(4)
        write(writer, {"a": None, "b": 1}, {"a": 2.5, "b": 2})
        assert writer.history["a"][-1].numpy() == 2.5
        with pytest.raises(ValueError):
            writer.history["a"][0]

    def test_a_step_without_data_is_a_step(self, client):
        writer = client.trajectory_writer(4)
        write(writer, {"a": 1}, {}, {"a": 3})
        assert writer.episode_steps == 3
        assert len(writer.history["a"]) == 3
        with pytest.raises(ValueError):
            writer.history["a"][1]
        assert writer.history["a"][2].numpy() == 3

    def test_lists_may_grow_and_shrink(self, client):
        writer = client.trajectory_writer(4)
        write(writer, [1, 2], [1, 2, 3], [4])
        assert [len(column) for column in writer.history] == [3, 3, 3]
        assert writer.history[0][:].numpy().tolist() == [1, 1, 4]
        assert writer.history[2][1].numpy() == 3

    @pytest.mark.parametrize(
        ("value", "dtype", "shape"),
        [
            (1, np.int64, ()),
            (2.0, np.float64, ()),
            (True, np.bool_, ()),
            (np.uint8(3), np.uint8, ()),
            (np.float16(1), np.float16, ()),
            (np.array([1, 2], np.int16), np.int16, (2,)),
            (np.zeros((0, 2), np.float32), np.float32, (0, 2)),
            (np.complex64(1 + 2j), np.complex64, ()),
        ],
    )
    def test_a_column_keeps_dtype_and_shape(self, client, value, dtype, shape):
        writer = client.trajectory_writer(2)
        writer.append([value])
        column = writer.history[0]
        assert column[0].dtype == dtype
        assert column[0].shape == shape
        assert column[:].shape == (1, *shape)
        writer.create_item("table", 1.0, [column[0], column[:]])
        writer.flush()
        ((squeezed, whole),) = items(client)
        assert isinstance(squeezed, np.ndarray)
        assert (squeezed.dtype, squeezed.shape) == (dtype, shape)
        assert (whole.dtype, whole.shape) == (dtype, (1, *shape))
        np.testing.assert_array_equal(squeezed, value)

    @pytest.mark.parametrize("value", ["text", b"text"])
    def test_text_comes_back_as_bytes(self, client, value):
        writer = client.trajectory_writer(2)
        writer.append([value])
        writer.create_item("table", 1.0, [writer.history[0][0]])
        writer.flush()
        ((got,),) = items(client)
        assert got.dtype == np.object_
        assert got.item() == b"text"

    @pytest.mark.parametrize("value", [object(), np.datetime64("2020-01-01")])
    def test_what_is_no_array_is_a_type_error(self, client, value):
        writer = client.trajectory_writer(2)
        with pytest.raises(TypeError):
            writer.append({"a": value})

    def test_append_copies(self, client):
        writer = client.trajectory_writer(2)
        value = np.zeros(2)
        writer.append([value])
        value[:] = 5
        assert writer.history[0][0].numpy().tolist() == [0, 0]

    def test_a_changed_dtype_names_the_path(self, client):
        writer = client.trajectory_writer(2)
        writer.append({"a": np.float32(1), "b": [1]})
        with pytest.raises(ValueError) as raised:
            writer.append({"a": np.float64(1), "b": [1]})
        assert str(raised.value) == (
            "Tensor of wrong dtype provided for column ('a',). Got double but expected float."
        )
        with pytest.raises(ValueError) as raised:
            writer.append({"b": [np.int32(1)]})
        assert str(raised.value) == (
            "Tensor of wrong dtype provided for column ('b', 0). Got int32 but expected int64."
        )

    def test_a_changed_shape_names_the_path(self, client):
        writer = client.trajectory_writer(2)
        writer.append({"a": np.zeros(3), "b": [1]})
        with pytest.raises(ValueError) as raised:
            writer.append({"a": np.zeros((1, 3)), "b": [1]})
        assert str(raised.value) == (
            "Tensor of incompatible shape provided for column ('a',). "
            "Got [1,3] which is incompatible with [3]."
        )
        with pytest.raises(ValueError) as raised:
            writer.append({"b": [np.zeros(3, np.int64)]})
        assert str(raised.value) == (
            "Tensor of incompatible shape provided for column ('b', 0). "
            "Got [3] which is incompatible with []."
        )

    def test_a_refused_step_is_no_step(self, client):
        writer = client.trajectory_writer(2)
        writer.append({"a": 1})
        with pytest.raises(ValueError):
            writer.append({"a": 1.5})
        assert writer.episode_steps == 1
        assert len(writer.history["a"]) == 1


class TestPartialSteps:
    def test_a_step_is_counted_when_it_is_closed(self, client):
        writer = client.trajectory_writer(3)
        writer.append({"a": 1}, partial_step=True)
        assert writer.episode_steps == 0
        assert len(writer.history["a"]) == 1
        writer.append({"b": 2})
        assert writer.episode_steps == 1
        assert writer.history["a"][:].numpy().tolist() == [1]
        assert writer.history["b"][:].numpy().tolist() == [2]

    def test_a_step_may_have_several_parts(self, client):
        writer = client.trajectory_writer(3)
        writer.append({"a": 1}, partial_step=True)
        writer.append({"b": 2}, partial_step=True)
        writer.append({"c": 3}, partial_step=False)
        writer.append({"a": 4, "b": 5, "c": 6})
        assert writer.episode_steps == 2
        assert [writer.history[key][:].numpy().tolist() for key in "abc"] == [
            [1, 4],
            [2, 5],
            [3, 6],
        ]

    def test_a_step_may_be_closed_without_data(self, client):
        writer = client.trajectory_writer(3)
        writer.append({"a": 1}, partial_step=True)
        writer.append({})
        writer.append({"a": 2})
        assert writer.episode_steps == 2
        assert writer.history["a"][:].numpy().tolist() == [1, 2]

    def test_a_part_that_is_not_there_yet_is_none(self, client):
        writer = client.trajectory_writer(3)
        writer.append({"a": 1, "b": None}, partial_step=True)
        assert len(writer.history["b"]) == 1
        with pytest.raises(ValueError):
            writer.history["b"][-1]

    def test_a_field_that_is_given_twice_is_refused(self, client):
        writer = client.trajectory_writer(3)
        writer.append({"a": 1, "b": {"c": None}}, partial_step=True)
        with pytest.raises(ValueError) as raised:
            writer.append({"a": 2, "b": {"c": 3}})
        assert str(raised.value) == (
            "Field ('a',) has already been set in the active step by previous (partial) append "
            "call and thus must be omitted or set to None but got: 2"
        )
        writer.append({"a": None, "b": {"c": 3}})
        assert writer.episode_steps == 1
        assert writer.history["b"]["c"][:].numpy().tolist() == [3]

    def test_an_item_may_be_made_of_an_open_step(self, client):
        writer = client.trajectory_writer(3)
        write(writer, {"a": 1, "b": 10})
        writer.append({"a": 2}, partial_step=True)
        writer.create_item("table", 1.0, [writer.history["a"][-2:], writer.history["b"][[0]]])
        writer.flush()
        ((a, b),) = items(client)
        assert (a.tolist(), b.tolist()) == ([1, 2], [10])
        writer.append({"b": 20})
        assert writer.history["b"][:].numpy().tolist() == [10, 20]


class TestHistory:
    @pytest.fixture
    def history(self, client):
        """Append six steps that all stay in the buffer."""
        self.writer = client.trajectory_writer(10)
        write(self.writer, *({"a": step} for step in range(6)))
        return self.writer.history["a"]

    @pytest.mark.parametrize("index", [0, 3, 5, -1, -6])
    def test_an_int_gives_one_squeezed_value(self, history, index):
        column = history[index]
        assert isinstance(column, reverb.TrajectoryColumn)
        assert column.is_squeezed
        assert column.shape == ()
        assert column.numpy() == range(6)[index]

    @pytest.mark.parametrize(
        "index",
        [
            slice(None),
            slice(-1, None),
            slice(-4, -1),
            slice(-6, None),
            slice(0, None),
            slice(2, None),
            slice(1, 4),
            slice(1, -1),
            slice(None, -2),
            slice(None, 3),
            slice(None, None, 2),
            slice(-5, None, 3),
            slice(None, None, -1),
        ],
    )
    def test_a_slice_gives_what_it_gives_of_a_list(self, history, index):
        column = history[index]
        assert not column.is_squeezed
        assert column.numpy().tolist() == list(range(6))[index]

    @pytest.mark.parametrize("index", [[0], [-1], [0, -1], [5, 0, 2], [1, 1, 1]])
    def test_a_list_gives_each_of_its_indices(self, history, index):
        column = history[index]
        assert not column.is_squeezed
        assert column.numpy().tolist() == [list(range(6))[at] for at in index]

    def test_an_empty_list_gives_an_empty_column(self, history):
        assert len(history[[]]) == 0

    @pytest.mark.parametrize("index", [(0,), 1.0, "x", None])
    def test_other_indices_are_type_errors(self, history, index):
        with pytest.raises(TypeError) as raised:
            history[index]
        assert str(raised.value).endswith(f"indices must be integers or slices, not {type(index)}")

    def test_an_index_beyond_the_last_step_is_an_index_error(self, history):
        with pytest.raises(IndexError, match="list index out of range"):
            history[7]

    @pytest.mark.parametrize("index", [-7, [-7], slice(-7, None), [0, -8]])
    def test_steps_before_the_first_are_none(self, history, index):
        with pytest.raises(ValueError) as raised:
            history[index]
        assert str(raised.value).startswith(
            "TrajectoryColumns cannot contain any None data references: "
            f"TrajectoryColumn at path ('a', {index}) got ["
        )

    def test_a_history_is_live(self, history):
        self.writer.append({"a": 6})
        assert len(history) == 7
        assert history[-1].numpy() == 6

    def test_steps_out_of_the_buffer_are_none_but_count(self, client):
        writer = client.trajectory_writer(2)
        write(writer, *([step] for step in range(5)))
        column = writer.history[0]
        assert len(column) == 5
        assert writer.episode_steps == 5
        assert column[-2:].numpy().tolist() == [3, 4]
        assert column[3:].numpy().tolist() == [3, 4]
        assert column[3].numpy() == 3
        assert column[[3, -1]].numpy().tolist() == [3, 4]
        for index in (2, 0, -3, slice(None), slice(2, None), slice(-3, None), [2], [0, -1]):
            with pytest.raises(ValueError, match="cannot contain any None data references"):
                column[index]

    def test_indices_start_again_with_an_episode(self, client):
        writer = client.trajectory_writer(4)
        write(writer, [0], [1], [2])
        writer.end_episode()
        assert writer.episode_steps == 0
        assert len(writer.history[0]) == 0
        write(writer, [10], [11])
        assert writer.episode_steps == 2
        assert len(writer.history[0]) == 2
        assert writer.history[0][0].numpy() == 10
        assert writer.history[0][:].numpy().tolist() == [10, 11]
        with pytest.raises(ValueError):
            writer.history[0][-3]

    def test_a_kept_buffer_goes_on_over_episodes(self, client):
        writer = client.trajectory_writer(4)
        write(writer, [0], [1], [2])
        writer.end_episode(clear_buffers=False)
        assert writer.episode_steps == 0
        assert len(writer.history[0]) == 3
        writer.append([3])
        assert writer.episode_steps == 1
        assert writer.history[0][0].numpy() == 0
        assert writer.history[0][:].numpy().tolist() == [0, 1, 2, 3]
        writer.create_item("table", 1.0, [writer.history[0][1:]])
        writer.flush()
        assert items(client)[0][0].tolist() == [1, 2, 3]

    def test_the_structure_stays_when_an_episode_ends(self, client):
        writer = client.trajectory_writer(4)
        writer.append({"a": 1, "b": 1.5})
        writer.end_episode()
        assert set(writer.history) == {"a", "b"}
        with pytest.raises(ValueError, match="wrong dtype"):
            writer.append({"a": 1.5})


class TestConfigure:
    @pytest.mark.parametrize("number", [0, -2])
    def test_a_column_keeps_at_least_one_reference(self, client, number):
        writer = client.trajectory_writer(2)
        with pytest.raises(ValueError) as raised:
            writer.configure(("a",), num_keep_alive_refs=number, max_chunk_length=1)
        assert str(raised.value) == f"num_keep_alive_refs ({number}) must be a positive integer"

    @pytest.mark.parametrize("length", [0, -1, 3])
    def test_a_chunk_is_not_longer_than_the_buffer(self, client, length):
        writer = client.trajectory_writer(2)
        with pytest.raises(ValueError) as raised:
            writer.configure(("a",), num_keep_alive_refs=2, max_chunk_length=length)
        assert str(raised.value) == (
            f"max_chunk_length ({length}) must be None or a positive integer <= "
            "num_keep_alive_refs (2)"
        )

    def test_both_settings_have_to_be_named(self, client):
        writer = client.trajectory_writer(2)
        with pytest.raises(TypeError):
            writer.configure(("a",), num_keep_alive_refs=2)
        with pytest.raises(TypeError):
            writer.configure(("a",), 2, 2)

    @pytest.mark.parametrize("chunk_length", [None, 1, 2])
    @pytest.mark.parametrize("column_exists", [True, False])
    def test_items_are_the_same_however_they_are_chunked(self, client, chunk_length, column_exists):
        writer = client.trajectory_writer(4)
        if column_exists:
            writer.append({"a": [0], "b": 0})
        for path in (("a", 0), ("b",)):
            writer.configure(path, num_keep_alive_refs=4, max_chunk_length=chunk_length)
        if not column_exists:
            writer.append({"a": [0], "b": 0})
        write(writer, *({"a": [step], "b": step} for step in range(1, 5)))
        writer.create_item("table", 1.0, [writer.history["a"][0][-3:], writer.history["b"][-4:-1]])
        writer.flush()
        ((a, b),) = items(client)
        assert (a.tolist(), b.tolist()) == ([2, 3, 4], [1, 2, 3])

    def test_a_column_may_keep_fewer_references(self, client):
        writer = client.trajectory_writer(3)
        writer.configure(("a",), num_keep_alive_refs=1, max_chunk_length=1)
        write(writer, *({"a": step, "b": step} for step in range(3)))
        assert writer.history["a"][-1:].numpy().tolist() == [2]
        assert writer.history["b"][-3:].numpy().tolist() == [0, 1, 2]

    def test_a_column_that_never_comes_may_be_configured(self, client):
        writer = client.trajectory_writer(3)
        writer.configure(("nowhere", 3), num_keep_alive_refs=1, max_chunk_length=None)
        writer.append({"a": 1})
        assert writer.history["a"][-1].numpy() == 1


class TestCreatingItems:
    @pytest.mark.parametrize("kind", ["value", "history", "none", "refs"])
    def test_leaves_have_to_be_columns(self, client, kind):
        writer = client.trajectory_writer(2)
        writer.append([1])
        leaf = {
            "value": 1,
            "history": writer.history[0],
            "none": None,
            "refs": object(),
        }[kind]
        with pytest.raises(TypeError) as raised:
            writer.create_item("table", 1.0, {"a": writer.history[0][:], "b": leaf})
        assert str(raised.value).startswith(
            "All leaves of `trajectory` must be `TrajectoryColumn` but got {'a': "
        )

    def test_an_item_has_at_least_one_column(self, client):
        writer = client.trajectory_writer(2)
        writer.append([1])
        for trajectory in ({}, [], [writer.history[0][[]]]):
            with pytest.raises(ValueError, match=r"^trajectory must not be empty\.$"):
                writer.create_item("table", 1.0, trajectory)

    @pytest.mark.upstream_differs
    def test_one_empty_column_among_others_is_refused(self, client):
        writer = client.trajectory_writer(2)
        writer.append([1])
        with pytest.raises(ValueError):
            writer.create_item("table", 1.0, [writer.history[0][:], writer.history[0][[]]])

    def test_references_that_were_pushed_out_are_refused(self, client):
        writer = client.trajectory_writer(2)
        writer.append([0])
        old = writer.history[0][:]
        write(writer, [1], [2])
        with pytest.raises(ValueError) as raised:
            writer.create_item("table", 1.0, [old])
        assert str(raised.value) == "Error in column 0: Column contains expired CellRef."
        with pytest.raises(ValueError) as raised:
            writer.create_item("table", 1.0, [writer.history[0][-1:], old])
        assert str(raised.value) == "Error in column 1: Column contains expired CellRef."

    def test_references_expire_with_a_cleared_episode(self, client):
        writer = client.trajectory_writer(2)
        writer.append([0])
        column = writer.history[0][:]
        writer.end_episode()
        with pytest.raises(ValueError, match="expired"):
            writer.create_item("table", 1.0, [column])

    def test_references_outlive_an_episode_whose_buffers_stay(self, client):
        writer = client.trajectory_writer(2)
        writer.append([0])
        column = writer.history[0][:]
        writer.end_episode(clear_buffers=False)
        writer.create_item("table", 1.0, [column])
        writer.flush()
        assert items(client)[0][0].tolist() == [0]

    def test_an_unknown_table_is_refused(self, client):
        writer = client.trajectory_writer(2)
        writer.append([0])
        with pytest.raises(ValueError) as raised:
            writer.create_item("nowhere", 1.0, [writer.history[0][:]])
        assert str(raised.value) == (
            "Unable to create item in table 'nowhere' since the table could not be found."
        )
        writer.create_item("table", 1.0, [writer.history[0][:]])
        writer.flush()
        assert size(client) == 1

    def test_without_validation_an_unknown_table_fails_the_flush(self, client):
        writer = client.trajectory_writer(2, validate_items=False)
        writer.append([0])
        writer.create_item("nowhere", 1.0, [writer.history[0][:]])
        with pytest.raises(RuntimeError, match="Priority table nowhere was not found"):
            writer.flush(timeout_ms=20_000)

    def test_a_writer_that_failed_stays_failed(self, client):
        writer = client.trajectory_writer(2, validate_items=False)
        writer.append([0])
        column = writer.history[0][:]
        writer.create_item("nowhere", 1.0, [column])
        with pytest.raises(RuntimeError):
            writer.flush(timeout_ms=20_000)
        for call in (
            lambda: writer.append([1]),
            lambda: writer.create_item("table", 1.0, [column]),
            writer.flush,
            writer.end_episode,
        ):
            with pytest.raises(RuntimeError, match="Priority table nowhere was not found"):
                call()
        writer.close()

    @pytest.mark.parametrize("priority", ["1", None])
    def test_a_priority_is_a_number(self, client, priority):
        writer = client.trajectory_writer(2)
        writer.append([0])
        with pytest.raises(TypeError):
            writer.create_item("table", priority, [writer.history[0][:]])

    @pytest.mark.parametrize("priority", [0, 0.5, 3, np.float32(1.5), np.int64(2)])
    def test_a_priority_is_what_a_sample_says(self, client, priority):
        writer = client.trajectory_writer(2)
        writer.append([0])
        writer.create_item(table="table", priority=priority, trajectory={"x": writer.history[0][:]})
        writer.flush()
        (sample,) = client.sample("table", emit_timesteps=False)
        assert sample.info.priority == priority
        assert type(sample.info.priority) is float

    @pytest.mark.parametrize(
        "priority", [pytest.param(-1.0, marks=pytest.mark.upstream_differs), float("nan")]
    )
    def test_a_priority_that_no_table_can_hold_is_refused(self, client, priority):
        writer = client.trajectory_writer(2)
        writer.append([0])
        with pytest.raises(ValueError, match=r"(?i)priority"):
            writer.create_item("table", priority, [writer.history[0][:]])
        writer.create_item("table", 1.0, [writer.history[0][:]])
        writer.flush()
        assert size(client) == 1

    def test_a_table_is_a_name(self, client):
        writer = client.trajectory_writer(2)
        writer.append([0])
        with pytest.raises(TypeError):
            writer.create_item(3, 1.0, [writer.history[0][:]])

    def test_one_step_may_go_to_several_tables(self, client):
        writer = client.trajectory_writer(2)
        write(writer, [1], [2])
        writer.create_item("table", 3.0, [writer.history[0][:]])
        writer.create_item("other", 4.0, [writer.history[0][-1:]])
        writer.flush()
        assert items(client)[0][0].tolist() == [1, 2]
        assert items(client, "other")[0][0].tolist() == [2]

    def test_the_leaves_of_an_item_are_flat_in_the_order_of_keys(self, client):
        writer = client.trajectory_writer(2)
        write(writer, {"a": 1, "b": 10, "c": 100}, {"a": 2, "b": 20, "c": 200})
        history = writer.history
        writer.create_item(
            "table",
            1.0,
            {
                "z": history["a"][-1],
                "m": (history["b"][:], [history["c"][-1:]]),
                "k": history["a"][0],
            },
        )
        writer.flush()
        (data,) = items(client)
        assert isinstance(data, list)
        assert [leaf.tolist() for leaf in data] == [1, [10, 20], [200], 2]

    def test_a_single_column_is_a_trajectory(self, client):
        writer = client.trajectory_writer(2)
        writer.append([5])
        writer.create_item("table", 1.0, writer.history[0][-1])
        writer.flush()
        assert [leaf.tolist() for leaf in items(client)[0]] == [5]

    def test_columns_of_an_item_may_have_different_lengths(self, client):
        writer = client.trajectory_writer(4)
        write(writer, *({"a": step} for step in range(4)))
        column = writer.history["a"]
        writer.create_item("table", 1.0, [column[:], column[-1], column[[0, -1]], column[::2]])
        writer.flush()
        assert [leaf.tolist() for leaf in items(client)[0]] == [
            [0, 1, 2, 3],
            3,
            [0, 3],
            [0, 2],
        ]

    @pytest.mark.upstream_differs
    def test_a_column_may_repeat_steps_in_any_order(self, client):
        """Upstream takes such an item, and cannot sample it."""
        writer = client.trajectory_writer(4)
        write(writer, *([step] for step in range(4)))
        writer.create_item("table", 1.0, [writer.history[0][[-1, 0, 0, 2, 2, 1]]])
        writer.flush()
        assert items(client)[0][0].tolist() == [3, 0, 0, 2, 2, 1]

    def test_items_of_different_shapes_fit_in_one_table(self, client):
        for value in (1, 2.5, np.zeros((2, 3))):
            writer = client.trajectory_writer(1)
            writer.append({"a": value})
            writer.create_item("table", 1.0, {"a": writer.history["a"][:]})
            writer.flush()
        assert [data[0].shape for data in items(client)] == [(1,), (1,), (1, 2, 3)]

    def test_creating_never_blocks(self, client):
        writer = client.trajectory_writer(1)
        writer.append([1])
        for _ in range(20):
            writer.create_item("narrow", 1.0, [writer.history[0][:]])
        assert size(client, "narrow") <= 2
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(timeout_ms=50)
        writer.close()

    @pytest.mark.parametrize("kept", [1, 10, 151])
    def test_items_arrive_without_a_flush(self, client, kept):
        """The first ones do at once, and later ones while at most ten others follow."""
        writer = client.trajectory_writer(kept)
        for step in range(1000):
            writer.append({"a": step, "b": np.array([step])})
            length = min(kept, step + 1)
            a, b = writer.history["a"], writer.history["b"]
            writer.create_item("table", 1.0, {"a": a[-1], "b": b[-length:]})
            if step < 5 or step % 111 == 0:
                arrived = step + 1 if step < 5 else step - 9
                until(lambda arrived=arrived: size(client) >= arrived)
        writer.close()


class TestSignatures:
    """Items are compared with the table's signature before they are sent."""

    START = "Unable to create item in table 'typed' since the provided trajectory is inconsistent "

    @pytest.fixture
    def writer(self, client):
        writer = client.trajectory_writer(3)
        write(writer, *({"a": np.float32(step), "b": np.int64(step)} for step in range(3)))
        return writer

    def test_an_item_that_fits_is_inserted(self, client, writer):
        history = writer.history
        for length in (1, 2, 3):
            writer.create_item("typed", 1.0, {"a": history["a"][-2:], "b": history["b"][-length:]})
        writer.flush()
        assert size(client, "typed") == 3

    def test_only_the_order_of_the_leaves_counts(self, client, writer):
        writer.create_item("typed", 1.0, [writer.history["a"][-2:], writer.history["b"][:]])
        writer.flush()
        assert size(client, "typed") == 1

    def test_the_number_of_columns_has_to_fit(self, writer):
        with pytest.raises(ValueError) as raised:
            writer.create_item("typed", 1.0, [writer.history["a"][-2:]])
        assert str(raised.value).startswith(
            self.START + "with the table signature. The trajectory has 1 columns but the table "
            "signature has 2 columns.\n\nThe table signature is:\n\t0: Tensor<name: "
        )

    @pytest.mark.parametrize(
        ("a", "index", "got"),
        [
            ("b", slice(-2, None), "int64 [2]"),
            ("a", slice(-1, None), "float [1]"),
            ("a", slice(None), "float [3]"),
            ("a", -1, "float []"),
        ],
    )
    def test_the_error_names_column_and_both_types(self, writer, a, index, got):
        with pytest.raises(ValueError) as raised:
            writer.create_item(
                "typed", 1.0, {"a": writer.history[a][index], "b": writer.history["b"][:]}
            )
        assert str(raised.value).startswith(
            self.START + "with the table signature. The table expects column 0 to be a "
            f"float [2] tensor but got a {got} tensor.\n\nThe table signature is:\n\t"
        )

    def test_the_second_column_is_checked_too(self, writer):
        with pytest.raises(ValueError, match=r"expects column 1 to be a int64 \[\?\] tensor"):
            writer.create_item(
                "typed", 1.0, {"a": writer.history["a"][-2:], "b": writer.history["b"][-1]}
            )

    def test_a_writer_goes_on_after_a_refused_item(self, client, writer):
        with pytest.raises(ValueError):
            writer.create_item("typed", 1.0, [writer.history["a"][-2:]])
        writer.create_item("typed", 1.0, [writer.history["a"][-2:], writer.history["b"][:]])
        writer.append({"a": np.float32(9), "b": np.int64(9)})
        writer.flush()
        assert size(client, "typed") == 1


class TestFlushing:
    def test_after_a_flush_all_items_are_in_the_table(self, client):
        writer = client.trajectory_writer(1)
        for step in range(10):
            writer.append([step])
            writer.create_item("table", 1.0, [writer.history[0][-1:]])
        assert writer.flush() is None
        assert size(client) == 10
        assert [data[0].tolist() for data in items(client)] == [[step] for step in range(10)]

    def test_a_flush_with_nothing_to_do_returns(self, client):
        writer = client.trajectory_writer(1)
        writer.flush()
        writer.append([1])
        writer.flush()
        writer.flush(timeout_ms=20_000)

    def test_a_flush_leaves_the_history(self, client):
        writer = client.trajectory_writer(3)
        write(writer, [0], [1])
        writer.create_item("table", 1.0, [writer.history[0][-1:]])
        writer.flush()
        assert writer.episode_steps == 2
        writer.append([2])
        writer.create_item("table", 1.0, [writer.history[0][:]])
        writer.flush()
        assert items(client)[1][0].tolist() == [0, 1, 2]

    def test_a_negative_number_of_items_is_refused(self, client):
        writer = client.trajectory_writer(1)
        with pytest.raises(ValueError) as raised:
            writer.flush(block_until_num_items=-1)
        assert str(raised.value) == "block_until_num_items must be >= 0, got -1"

    def test_a_flush_waits_for_no_more_than_asked(self, client):
        writer = client.trajectory_writer(1)
        writer.append([1])
        for _ in range(5):
            writer.create_item("narrow", 1.0, [writer.history[0][:]])
        writer.flush(block_until_num_items=3)
        assert size(client, "narrow") == 2
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(2, timeout_ms=50)
        writer.close()

    def test_a_flush_blocks_until_the_table_has_room(self, client, start):
        writer = client.trajectory_writer(1)
        writer.append([1])
        for _ in range(3):
            writer.create_item("narrow", 1.0, [writer.history[0][:]])
        flush = start(writer.flush)
        assert flush.is_blocked()
        list(client.sample("narrow"))
        flush.result()
        assert size(client, "narrow") == 2

    def test_a_timeout_says_how_long_it_was(self, client):
        writer = client.trajectory_writer(1)
        writer.append([1])
        for _ in range(3):
            writer.create_item("narrow", 1.0, [writer.history[0][:]])
        with pytest.raises(reverb.DeadlineExceededError) as raised:
            writer.flush(timeout_ms=50)
        assert str(raised.value) == (
            "Flush call did not complete within provided timeout of 0:00:00.050000"
        )
        assert isinstance(raised.value, reverb.ReverbError)
        writer.close()

    def test_items_arrive_after_a_timeout_too(self, client):
        writer = client.trajectory_writer(1)
        for step in range(4):
            writer.append([step])
            writer.create_item("narrow", 1.0, [writer.history[0][-1:]])
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(timeout_ms=50)
        samples = client.sample("narrow", num_samples=4, emit_timesteps=False)
        assert [sample.data[0].tolist() for sample in samples] == [[0], [1], [2], [3]]
        writer.flush(timeout_ms=20_000)


class TestEpisodes:
    def test_the_end_of_an_episode_flushes(self, client):
        writer = client.trajectory_writer(2)
        writer.append([1])
        writer.create_item("table", 1.0, [writer.history[0][:]])
        assert writer.end_episode() is None
        assert size(client) == 1

    @pytest.mark.parametrize("clear", [True, False])
    def test_the_end_of_an_episode_can_time_out(self, client, clear):
        writer = client.trajectory_writer(2)
        for step in range(4):
            writer.append([step])
            writer.create_item("narrow", 1.0, [writer.history[0][-1:]])
        with pytest.raises(reverb.DeadlineExceededError) as raised:
            writer.end_episode(clear_buffers=clear, timeout_ms=50)
        assert str(raised.value) == (
            "End episode call did not complete within provided timeout of 0:00:00.050000"
        )
        samples = client.sample("narrow", num_samples=4, emit_timesteps=False)
        assert [sample.data[0].tolist() for sample in samples] == [[0], [1], [2], [3]]
        writer.end_episode(timeout_ms=20_000)
        assert writer.episode_steps == 0

    def test_a_table_counts_episodes(self, client):
        writer = client.trajectory_writer(2)
        for _ in range(3):
            write(writer, [1], [2])
            writer.create_item("table", 1.0, [writer.history[0][:]])
            writer.create_item("table", 1.0, [writer.history[0][:]])
            writer.end_episode()
        assert client.server_info()["table"].num_episodes == 3

    def test_an_empty_episode_may_end(self, client):
        writer = client.trajectory_writer(2)
        writer.end_episode()
        writer.end_episode()
        writer.append([1])
        assert writer.episode_steps == 1


class TestClosing:
    def test_a_with_block_flushes(self, client):
        with client.trajectory_writer(2) as writer:
            writer.append([1])
            writer.create_item("table", 1.0, [writer.history[0][:]])
        assert size(client) == 1

    def test_a_writer_can_be_used_after_its_with_block(self, client):
        with client.trajectory_writer(2) as writer:
            writer.append([1])
        writer.append([2])
        writer.create_item("table", 1.0, [writer.history[0][:]])
        writer.flush()
        assert items(client)[0][0].tolist() == [1, 2]

    def test_a_with_block_gives_the_writer_itself(self, client):
        writer = client.trajectory_writer(2)
        with writer as entered:
            assert entered is writer

    def test_a_with_block_that_fails_otherwise_flushes_too(self, client):
        with pytest.raises(KeyError, match="boom"), client.trajectory_writer(2) as writer:
            fill(writer, "table", 1, KeyError("boom"))
        assert size(client) == 1

    @pytest.mark.parametrize("error", [reverb.ReverbError, reverb.DeadlineExceededError])
    def test_a_with_block_does_not_flush_after_an_error_of_reverb(self, client, error):
        """A flush would wait for room in the table for ever."""
        with pytest.raises(error), client.trajectory_writer(2) as writer:
            fill(writer, "narrow", 4, error("boom"))

    def test_a_closed_writer_refuses_work(self, client):
        writer = client.trajectory_writer(2)
        writer.append([1])
        column = writer.history[0][:]
        assert writer.close() is None
        for call in (
            lambda: writer.append([1]),
            lambda: writer.append([1], partial_step=True),
            lambda: writer.create_item("table", 1.0, [column]),
            writer.flush,
            lambda: writer.flush(timeout_ms=50),
            writer.end_episode,
        ):
            with pytest.raises(RuntimeError, match=CLOSED):
                call()

    def test_a_writer_may_be_closed_twice(self, client):
        writer = client.trajectory_writer(2)
        writer.close()
        writer.close()

    def test_the_history_outlives_a_close(self, client):
        writer = client.trajectory_writer(2)
        writer.append([1])
        writer.close()
        assert writer.episode_steps == 1
        assert writer.history[0][0].numpy() == 1

    def test_closing_does_not_wait_for_a_full_table(self, client):
        writer = client.trajectory_writer(2)
        writer.append([1])
        for _ in range(4):
            writer.create_item("narrow", 1.0, [writer.history[0][:]])
        writer.close()

    def test_forgetting_a_writer_does_not_wait_for_a_full_table(self, client):
        writer = client.trajectory_writer(2)
        writer.append([1])
        for _ in range(4):
            writer.create_item("narrow", 1.0, [writer.history[0][:]])
        del writer
        gc.collect()
        assert size(client, "narrow") <= 2

    def test_a_blocked_flush_ends_when_another_thread_closes(self, client, start):
        writer = client.trajectory_writer(2)
        writer.append([1])
        for _ in range(4):
            writer.create_item("narrow", 1.0, [writer.history[0][:]])
        flush = start(writer.flush)
        assert flush.is_blocked()
        writer.close()
        with pytest.raises(RuntimeError, match=CLOSED):
            flush.result()

    def test_a_writer_without_a_server_waits_for_one(self, client, make_server, make_table):
        server = make_server(make_table("gone"))
        writer = server.localhost_client().trajectory_writer(1)
        writer.append([1])
        server.stop()
        writer.create_item("gone", 1.0, [writer.history[0][:]])
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(timeout_ms=100)
        writer.close()


class TestOverlappingItems:
    def test_steps_are_shared_between_items(self, client):
        writer = client.trajectory_writer(3)
        for step in range(6):
            writer.append([np.full(100, step)])
            if step >= 2:
                writer.create_item("table", 1.0, [writer.history[0][-3:]])
        writer.flush()
        assert [data[0][:, 0].tolist() for data in items(client)] == [
            [0, 1, 2],
            [1, 2, 3],
            [2, 3, 4],
            [3, 4, 5],
        ]

    def test_an_item_outlives_those_it_shares_steps_with(self, client):
        writer = client.trajectory_writer(3)
        for step in range(4):
            writer.append([step])
            if step >= 2:
                writer.create_item("table", 1.0, [writer.history[0][-3:]])
        writer.flush()
        (first,) = client.sample("table", emit_timesteps=False)
        client.mutate_priorities("table", deletes=[first.info.key])
        assert items(client)[0][0].tolist() == [1, 2, 3]

    @pytest.mark.parametrize("seed", range(8))
    def test_samples_are_what_a_model_of_lists_says(self, client, seed):
        choose = random.Random(seed)
        program = RandomProgram(client, choose)
        expected = []
        for _ in range(60):
            program.append()
            expected += program.create_item()
            if choose.random() < 0.1:
                program.writer.flush()
            if choose.random() < 0.1:
                program.end_episode()
        program.writer.flush()
        assert [[leaf.tolist() for leaf in data] for data in items(client)] == expected

    def test_two_writers_do_not_disturb_each_other(self, client):
        writers = [client.trajectory_writer(2) for _ in range(2)]
        for step in range(4):
            for number, writer in enumerate(writers):
                writer.append([10 * number + step])
                writer.create_item(("table", "other")[number], 1.0, [writer.history[0][-1:]])
        for writer in writers:
            writer.flush()
        assert [data[0].tolist() for data in items(client)] == [[0], [1], [2], [3]]
        assert [data[0].tolist() for data in items(client, "other")] == [[10], [11], [12], [13]]
