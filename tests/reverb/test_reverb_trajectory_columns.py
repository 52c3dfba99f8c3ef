"""TrajectoryColumn: a choice of appended steps, which items are made of."""

from __future__ import annotations

import numpy as np
import pytest
from reverb_under_test import reverb

EXPIRED = "Cannot convert TrajectoryColumn with expired data references to numpy array."


@pytest.fixture
def client(make_client, make_table):
    return make_client(make_table())


@pytest.fixture
def writer(client):
    """Give a writer of four steps in which everything has another shape and dtype."""
    writer = client.trajectory_writer(4)
    for step in range(4):
        writer.append(
            {
                "scalar": step,
                "vector": np.full(2, step, np.float32),
                "flag": step % 2 == 0,
            }
        )
    return writer


@pytest.fixture
def column(writer):
    return writer.history["scalar"][:]


class TestConstructor:
    def test_a_column_can_be_made_of_the_references_of_another(self, column):
        made = reverb.TrajectoryColumn(list(column)[1:])
        assert made.numpy().tolist() == [1, 2, 3]
        assert made.is_squeezed is False

    def test_references_of_several_columns_can_be_joined(self, writer):
        history = writer.history["scalar"]
        made = reverb.TrajectoryColumn([*history[-1:], *history[:2]])
        assert made.numpy().tolist() == [3, 0, 1]

    def test_a_column_of_one_reference_can_be_squeezed(self, column):
        made = reverb.TrajectoryColumn(list(column)[2:3], squeeze=True)
        assert made.is_squeezed is True
        assert made.shape == ()
        assert made.numpy() == 2

    @pytest.mark.parametrize("number", [0, 2, 4])
    def test_only_one_reference_can_be_squeezed(self, column, number):
        with pytest.raises(ValueError) as raised:
            reverb.TrajectoryColumn(list(column)[:number], squeeze=True)
        assert str(raised.value) == (
            f"Columns must contain exactly one data reference when squeeze set, got {number}"
        )

    def test_no_reference_may_be_none(self, column):
        with pytest.raises(ValueError) as raised:
            reverb.TrajectoryColumn([None])
        assert str(raised.value) == (
            "TrajectoryColumns cannot contain any None data references: "
            "TrajectoryColumn at path None got [None]."
        )
        with pytest.raises(ValueError) as raised:
            reverb.TrajectoryColumn([next(iter(column)), None], path=("a", 1))
        assert str(raised.value).startswith(
            "TrajectoryColumns cannot contain any None data references: "
            "TrajectoryColumn at path ('a', 1) got ["
        )

    def test_options_are_given_by_name(self, column):
        with pytest.raises(TypeError):
            reverb.TrajectoryColumn(list(column)[:1], True)

    def test_a_column_may_be_empty(self):
        made = reverb.TrajectoryColumn([])
        assert len(made) == 0
        assert list(made) == []
        with pytest.raises(IndexError):
            made.shape
        with pytest.raises(IndexError):
            made.dtype
        with pytest.raises(ValueError, match="need at least one array to stack"):
            made.numpy()

    def test_items_can_be_made_of_it(self, client, writer):
        refs = list(writer.history["vector"][:])
        columns = [
            reverb.TrajectoryColumn(refs[1:3]),
            reverb.TrajectoryColumn(refs[:1], squeeze=True),
        ]
        writer.create_item("table", 1.0, columns)
        writer.flush()
        (sample,) = client.sample("table", emit_timesteps=False)
        assert [leaf.tolist() for leaf in sample.data] == [[[1, 1], [2, 2]], [0, 0]]

    def test_an_item_needs_one_dtype_in_a_column(self, writer):
        mixed = [*writer.history["scalar"][-1:], *writer.history["flag"][-1:]]
        with pytest.raises(ValueError) as raised:
            writer.create_item("table", 1.0, [reverb.TrajectoryColumn(mixed)])
        assert str(raised.value) == (
            "Error in column 0: Column references tensors with different dtypes: "
            "int64 (index 0) != bool (index 1)."
        )

    def test_an_item_needs_one_shape_in_a_column(self, client):
        writer = client.trajectory_writer(2)
        writer.append([1, np.zeros(2, np.int64)])
        mixed = [*writer.history[0][:], *writer.history[1][:]]
        with pytest.raises(ValueError) as raised:
            writer.create_item("table", 1.0, [reverb.TrajectoryColumn(mixed)])
        assert str(raised.value) == (
            "Error in column 0: Column references tensors with incompatible shapes: "
            "[] (index 0) not compatible with [2] (index 1)."
        )


class TestIndices:
    @pytest.mark.parametrize("index", [0, 3, -1, -4])
    def test_an_int_gives_a_squeezed_column(self, column, index):
        one = column[index]
        assert isinstance(one, reverb.TrajectoryColumn)
        assert one.is_squeezed
        assert len(one) == 1
        assert one.numpy() == list(range(4))[index]

    @pytest.mark.parametrize(
        "index", [slice(1, 3), slice(None), slice(None, None, 2), slice(None, None, -1)]
    )
    def test_a_slice_gives_a_column(self, column, index):
        some = column[index]
        assert isinstance(some, reverb.TrajectoryColumn)
        assert not some.is_squeezed
        assert some.numpy().tolist() == list(range(4))[index]

    @pytest.mark.parametrize("index", [[0, 3], [2], [-1, 0, 0]])
    def test_a_list_gives_a_column(self, column, index):
        some = column[index]
        assert not some.is_squeezed
        assert some.numpy().tolist() == [list(range(4))[at] for at in index]

    @pytest.mark.parametrize("index", [slice(10, 20), []])
    def test_nothing_is_an_empty_column(self, column, index):
        assert len(column[index]) == 0

    @pytest.mark.parametrize("index", [4, -5, [0, 4]])
    def test_an_index_that_is_not_there_is_an_index_error(self, column, index):
        with pytest.raises(IndexError):
            column[index]

    @pytest.mark.parametrize("index", [(0,), 1.0, "x", None])
    def test_other_indices_are_type_errors(self, column, index):
        with pytest.raises(TypeError) as raised:
            column[index]
        assert str(raised.value) == (
            f"TrajectoryColumn indices must be integers or slices, not {type(index)}"
        )

    def test_a_squeezed_column_has_one_step(self, column):
        one = column[1]
        assert len(one) == 1
        assert one[0].numpy() == 1
        assert one[:].numpy().tolist() == [1]

    def test_iterating_gives_the_references(self, column):
        assert len(list(column)) == len(column) == 4
        assert reverb.TrajectoryColumn(list(column)).numpy().tolist() == [0, 1, 2, 3]


class TestReferences:
    def test_a_reference_is_one_value(self, writer):
        ref = list(writer.history["vector"][:])[2]
        assert tuple(ref.shape) == (2,)
        assert ref.dtype == np.float32
        assert ref.numpy().tolist() == [2, 2]
        assert ref.expired is False

    def test_a_reference_expires_when_it_leaves_the_buffer(self, client):
        writer = client.trajectory_writer(1)
        writer.append([1])
        (ref,) = writer.history[0][:]
        writer.append([2])
        assert ref.expired is True
        # Ours says so with the error of its own writers.
        with pytest.raises((RuntimeError, ValueError)):
            ref.numpy()


class TestProperties:
    def test_the_shape_has_the_steps_first(self, writer):
        history = writer.history
        assert history["vector"][:].shape == (4, 2)
        assert history["vector"][1:3].shape == (2, 2)
        assert history["vector"][0].shape == (2,)
        assert history["scalar"][:].shape == (4,)
        assert history["scalar"][-1].shape == ()
        assert isinstance(history["vector"][0].shape, tuple)
        assert isinstance(history["vector"][:].shape, tuple)

    def test_the_dtype_is_a_numpy_dtype(self, writer):
        for name, dtype in (("scalar", np.int64), ("vector", np.float32), ("flag", np.bool_)):
            for index in (0, slice(None)):
                got = writer.history[name][index].dtype
                assert isinstance(got, np.dtype)
                assert got == dtype

    def test_numpy_stacks_the_steps(self, writer):
        got = writer.history["vector"][1:].numpy()
        assert isinstance(got, np.ndarray)
        assert got.dtype == np.float32
        assert got.tolist() == [[1, 1], [2, 2], [3, 3]]

    def test_numpy_of_a_squeezed_column_has_no_steps(self, writer):
        got = writer.history["vector"][1].numpy()
        assert isinstance(got, np.ndarray)
        assert got.tolist() == [1, 1]
        assert writer.history["scalar"][1].numpy().shape == ()

    def test_numpy_gives_a_copy(self, writer):
        writer.history["vector"][1].numpy()[:] = 9
        writer.history["vector"][:].numpy()[:] = 9
        assert writer.history["vector"][1].numpy().tolist() == [1, 1]

    @pytest.mark.parametrize("chunk_length", [None, 1, 4])
    def test_values_can_be_read_before_and_after_they_are_sent(self, client, chunk_length):
        writer = client.trajectory_writer(4)
        writer.configure((0,), num_keep_alive_refs=4, max_chunk_length=chunk_length)
        for step in range(4):
            writer.append([np.full(3, step)])
        column = writer.history[0][:]
        before = column.numpy()
        writer.create_item("table", 1.0, [column])
        writer.flush()
        np.testing.assert_array_equal(column.numpy(), before)
        assert before[:, 0].tolist() == [0, 1, 2, 3]


class TestExpiry:
    @pytest.fixture
    def old(self, client):
        """Give a column of which the first of two steps is out of the buffer."""
        self.writer = client.trajectory_writer(2)
        self.writer.append([0])
        self.writer.append([1])
        old = self.writer.history[0][:]
        self.writer.append([2])
        return old

    def test_values_that_are_gone_cannot_be_read(self, old):
        with pytest.raises(RuntimeError) as raised:
            old.numpy()
        assert str(raised.value) == EXPIRED
        with pytest.raises(RuntimeError, match="expired WeakCellRef"):
            old.shape
        with pytest.raises(RuntimeError, match="expired WeakCellRef"):
            old.dtype

    def test_a_column_keeps_its_length(self, old):
        assert len(old) == 2
        assert [ref.expired for ref in old] == [True, False]

    def test_what_remains_can_be_chosen(self, old):
        assert old[1:].numpy().tolist() == [1]
        assert old[-1].numpy() == 1
        with pytest.raises(RuntimeError) as raised:
            old[0].numpy()
        assert str(raised.value) == EXPIRED

    def test_a_cleared_episode_expires_all(self, client):
        writer = client.trajectory_writer(3)
        writer.append([0])
        column = writer.history[0][:]
        writer.end_episode()
        assert [ref.expired for ref in column] == [True]
        with pytest.raises(RuntimeError) as raised:
            column.numpy()
        assert str(raised.value) == EXPIRED

    def test_an_item_keeps_its_own_references(self, client):
        writer = client.trajectory_writer(1)
        writer.append([0])
        writer.create_item("table", 1.0, [writer.history[0][:]])
        writer.append([1])
        writer.flush()
        (sample,) = client.sample("table", emit_timesteps=False)
        assert sample.data[0].tolist() == [0]
