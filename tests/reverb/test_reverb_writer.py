"""`Client.writer`: steps go in, and items reference the last of them."""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import pytest
from polling import until
from reverb_under_test import reverb, sample_info, spec

BUFFERED = "Argument `num_timesteps` is larger than number of buffered timesteps"


@pytest.fixture
def table(make_table):
    return make_table()


@pytest.fixture
def client(make_client, table, make_table):
    typed = make_table("typed", signature=spec([2], np.float32))
    return make_client(table, make_table("other"), typed)


def sequence(client, table="table"):
    """The values of the steps of one item."""
    return [int(step.data[0]) for step in next(client.sample(table))]


def sequences(client, table="table"):
    """Empty a table, and give the values of the steps of each item."""
    items = []
    while client.server_info()[table].current_size:
        steps = next(client.sample(table))
        items.append([int(step.data[0]) for step in steps])
        client.mutate_priorities(table, deletes=[steps[0].info.key])
    return items


# The arguments.


@pytest.mark.parametrize("length", [0, -1])
def test_a_writer_needs_a_length(client, length):
    message = rf"max_sequence_length \({length}\) must be a positive integer"
    with pytest.raises(ValueError, match=message):
        client.writer(length)


@pytest.mark.parametrize("chunk", [0, -1, 4])
def test_a_chunk_is_at_most_as_long_as_a_sequence(client, chunk):
    message = (
        rf"chunk_length \({chunk}\) must be a positive integer le to max_sequence_length \(3\)"
    )
    with pytest.raises(ValueError, match=message):
        client.writer(3, chunk_length=chunk)


@pytest.mark.parametrize("items", [0, -1])
def test_some_item_must_be_allowed_in_flight(client, items):
    message = rf"max_in_flight_items \({items}\) must be a positive integer"
    with pytest.raises(ValueError, match=message):
        client.writer(3, max_in_flight_items=items)


def test_the_arguments_may_be_positional_or_named(client):
    with client.writer(3, True, 2, 7) as writer:
        assert isinstance(writer, reverb.Writer)
    named = {
        "max_sequence_length": 3,
        "delta_encoded": True,
        "chunk_length": 2,
        "max_in_flight_items": None,
    }
    with client.writer(**named) as writer:
        assert isinstance(writer, reverb.Writer)


def test_repr_says_whether_the_writer_is_closed(client):
    writer = client.writer(3)
    assert repr(writer).startswith("Writer(")
    assert repr(writer).endswith("closed: False")
    writer.close()
    assert repr(writer).endswith("closed: True")


def test_repr_names_the_arguments(client):
    with client.writer(30) as writer:
        for text in ("chunk_length=10", "max_timesteps=30", "max_in_flight_items=25"):
            assert text in repr(writer)
    with client.writer(3, True, 2, 7) as writer:
        for text in ("chunk_length=2", "max_timesteps=3", "max_in_flight_items=7"):
            assert text in repr(writer)


# Steps and items.


def test_every_call_returns_nothing(client):
    writer = client.writer(3)
    assert writer.append(1) is None
    assert writer.append_sequence([np.arange(3)]) is None
    assert writer.create_item("table", 1, 1.0) is None
    assert writer.flush() is None
    assert writer.close() is None


def test_steps_alone_are_no_items(client, table):
    with client.writer(2) as writer:
        for step in range(10):
            writer.append(step)
        writer.flush()
        assert table.info.current_size == 0
    assert table.info.current_size == 0
    assert table.info.num_episodes == 0


def test_an_item_is_of_the_last_steps(client):
    with client.writer(3) as writer:
        for step in range(5):
            writer.append(step)
        writer.create_item("table", num_timesteps=2, priority=0.5)
    assert sequence(client) == [3, 4]
    assert sample_info(client, "table").priority == 0.5


def test_items_may_overlap(client):
    with client.writer(3) as writer:
        for step in range(6):
            writer.append(step)
            if step >= 2:
                writer.create_item(table="table", num_timesteps=3, priority=float(step))
    assert sequences(client) == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


def test_items_of_several_lengths_and_tables(client):
    with client.writer(4) as writer:
        for step in range(4):
            writer.append(step)
        writer.create_item("table", 1, 1.0)
        writer.create_item("table", 4, 1.0)
        writer.create_item("other", 2, 1.0)
    assert sequences(client) == [[3], [0, 1, 2, 3]]
    assert sequences(client, "other") == [[2, 3]]


@pytest.mark.parametrize("chunk", [None, 1, 2, 3, 5, 7])
@pytest.mark.parametrize("delta", [False, True])
def test_the_chunk_length_is_not_seen_by_the_reader(client, chunk, delta):
    with client.writer(7, delta_encoded=delta, chunk_length=chunk) as writer:
        for step in range(17):
            writer.append(step)
            if step >= 6:
                writer.create_item("table", 7, 1.0)
            if step % 4 == 3:
                writer.create_item("other", 3, 1.0)
    assert sequences(client) == [list(range(last - 6, last + 1)) for last in range(6, 17)]
    assert sequences(client, "other") == [[1, 2, 3], [5, 6, 7], [9, 10, 11], [13, 14, 15]]


@pytest.mark.parametrize("chunk", [1, 4, 10])
def test_delta_encoding_changes_no_value(client, chunk):
    steps = [
        {
            "uint8": np.array([250 + step, 10 - step], np.int64).astype(np.uint8),
            "int64": np.array([-(2**62), 2**62]) * (-1) ** step,
            "float32": np.float32(step) / 3,
            "float64": np.array([np.inf, np.nan, -0.0, 1e-300 * step]),
            "bool": step % 3 == 0,
            "text": f"step {step}",
        }
        for step in range(10)
    ]
    with client.writer(10, delta_encoded=True, chunk_length=chunk) as writer:
        for step in steps:
            writer.append(step)
        writer.create_item("table", 10, 1.0)

    for step, sampled in zip(steps, next(client.sample("table")), strict=True):
        values = dict(zip(sorted(step), sampled.data, strict=True))
        assert values["text"].item() == step["text"].encode()
        for name in ("uint8", "int64", "float32", "float64", "bool"):
            assert values[name].dtype == np.asarray(step[name]).dtype
            np.testing.assert_array_equal(values[name], step[name])


def test_nested_steps_are_flattened(client):
    with client.writer(1) as writer:
        writer.append({"z": 1, "a": (2, [3])})
        writer.create_item("table", 1, 1.0)
    (step,) = next(client.sample("table"))
    assert [int(leaf) for leaf in step.data] == [2, 3, 1]


def test_the_nest_may_change_while_its_leaves_stay(client):
    with client.writer(2) as writer:
        writer.append({"a": 1})
        writer.append([2])
        writer.create_item("table", 2, 1.0)
    assert sequence(client) == [1, 2]


def test_a_step_is_a_copy_of_what_was_appended(client):
    step = np.zeros(3)
    with client.writer(2) as writer:
        writer.append(step)
        step[:] = 1
        writer.append(step)
        step[:] = 2
        writer.create_item("table", 2, 1.0)
    (data,) = next(client.sample("table", emit_timesteps=False)).data
    np.testing.assert_array_equal(data, [[0, 0, 0], [1, 1, 1]])


def test_a_writer_of_single_steps_may_change_their_shape(client):
    with client.writer(1) as writer:
        for length in (2, 5, 0):
            writer.append(np.zeros(length))
            writer.create_item("table", 1, 1.0)
    shapes = []
    while client.server_info()["table"].current_size:
        (step,) = next(client.sample("table"))
        shapes.append(step.data[0].shape)
        client.mutate_priorities("table", deletes=[step.info.key])
    assert shapes == [(2,), (5,), (0,)]


def test_many_items_with_few_in_flight(client, table):
    with client.writer(2, max_in_flight_items=1) as writer:
        for step in range(50):
            writer.append(step)
            writer.create_item("table", 1, 1.0)
    assert table.info.current_size == 50


def test_writers_side_by_side(client, table, holds):
    first, second = client.writer(2), client.writer(2)
    for step in range(2):
        first.append(step)
        second.append(10 + step)
    first.create_item("table", 2, 1.0)
    first.close()
    assert holds(table, 1)
    second.create_item("table", 2, 1.0)
    second.close()
    assert holds(table, 2)
    assert sequences(client) == [[0, 1], [10, 11]]


# Sequences of steps.


def test_a_sequence_is_appended_step_by_step(client):
    with client.writer(2) as writer:
        writer.append_sequence([np.array([[1, 2, 3], [4, 5, 6]])])
        writer.create_item("table", 1, 1.0)
        writer.create_item("table", 2, 1.0)
    (last,) = next(client.sample("table"))
    np.testing.assert_array_equal(last.data[0], [4, 5, 6])
    client.mutate_priorities("table", deletes=[last.info.key])
    steps = next(client.sample("table"))
    np.testing.assert_array_equal([step.data[0] for step in steps], [[1, 2, 3], [4, 5, 6]])


def test_a_nested_sequence_longer_than_the_buffer(client):
    with client.writer(3) as writer:
        writer.append_sequence({"a": np.arange(8), "b": np.arange(16.0).reshape(8, 2)})
        writer.create_item("table", 3, 1.0)
    a, b = next(client.sample("table", emit_timesteps=False)).data
    np.testing.assert_array_equal(a, [5, 6, 7])
    np.testing.assert_array_equal(b, [[10, 11], [12, 13], [14, 15]])


def test_sequences_and_steps_may_be_mixed(client):
    with client.writer(5) as writer:
        writer.append([0])
        writer.append_sequence([np.arange(1, 4)])
        writer.append([4])
        writer.create_item("table", 5, 1.0)
    assert sequence(client) == [0, 1, 2, 3, 4]


def test_a_sequence_of_no_steps_adds_none(client):
    with client.writer(3) as writer:
        writer.append_sequence([np.zeros((0, 2))])
        with pytest.raises(ValueError, match=BUFFERED):
            writer.create_item("table", 1, 1.0)


@pytest.mark.parametrize("empty", [[], {}, ()])
def test_a_sequence_of_nothing_is_refused(client, empty):
    with (
        client.writer(3) as writer,
        pytest.raises(ValueError, match="AppendSequence called with empty data"),
    ):
        writer.append_sequence(empty)


def test_a_sequence_of_scalars_is_refused(client):
    message = "AppendSequence called with scalar tensor at index 1"
    with client.writer(3) as writer, pytest.raises(ValueError, match=message):
        writer.append_sequence([np.zeros(3), np.float64(3)])


def test_a_sequence_of_unequal_lengths_is_refused(client):
    message = "AppendSequence called with tensors of non equal batch dimension"
    with client.writer(3) as writer, pytest.raises(ValueError, match=message):
        writer.append_sequence([np.zeros(3), np.zeros(2)])


# What is refused.


@pytest.mark.parametrize("steps", [0, -1])
def test_an_item_has_a_step(client, steps):
    with client.writer(3) as writer:
        writer.append(1)
        with pytest.raises(ValueError, match="must be a positive integer"):
            writer.create_item("table", steps, 1.0)


def test_an_item_is_of_steps_that_are_there(client):
    with client.writer(3) as writer:
        with pytest.raises(ValueError, match=BUFFERED):
            writer.create_item("table", 1, 1.0)
        writer.append(1)
        with pytest.raises(ValueError, match=BUFFERED):
            writer.create_item("table", 2, 1.0)
        writer.create_item("table", 1, 1.0)
    assert sequences(client) == [[1]]


@pytest.mark.parametrize("chunk", [1, 3])
def test_an_item_is_no_longer_than_the_buffer(client, chunk):
    with client.writer(3, chunk_length=chunk) as writer:
        for step in range(12):
            writer.append(step)
        with pytest.raises(ValueError):
            writer.create_item("table", 4, 1.0)
        writer.create_item("table", 3, 1.0)
    assert sequences(client) == [[9, 10, 11]]


def test_a_length_that_is_buffered_but_too_long_has_its_own_error(client):
    with client.writer(3) as writer:
        for step in range(5):
            writer.append(step)
        with pytest.raises(ValueError, match="`num_timesteps` must be <= `max_timesteps`"):
            writer.create_item("table", 4, 1.0)


def test_an_item_of_an_unknown_table(client):
    with client.writer(3) as writer:
        writer.append(1)
        with pytest.raises(ValueError, match="Unable to find signatures for table 'nowhere'"):
            writer.create_item("nowhere", 1, 1.0)
        writer.create_item("table", 1, 1.0)
    assert sequences(client) == [[1]]


@pytest.mark.parametrize("arguments", [("table", 1, "high"), (3, 1, 1.0), ("table", 1.5, 1.0)])
def test_arguments_of_the_wrong_type_are_refused(client, arguments):
    with client.writer(3) as writer:
        writer.append(1)
        with pytest.raises(TypeError):
            writer.create_item(*arguments)


def test_nan_is_no_priority(client):
    with client.writer(3) as writer:
        writer.append(1)
        with pytest.raises(ValueError, match=r"(?i)\bnan\b"):
            writer.create_item("table", 1, float("nan"))
        writer.create_item("table", 1, 1.0)
    assert sequences(client) == [[1]]


def test_what_is_no_array_cannot_be_appended(client):
    with client.writer(3) as writer:
        for step in (None, object(), {"a": 1, "b": None}):
            with pytest.raises(TypeError):
                writer.append(step)
        writer.append(1)
        writer.create_item("table", 1, 1.0)
    assert sequences(client) == [[1]]


def test_the_number_of_leaves_stays(client):
    with client.writer(3) as writer:
        writer.append([1, 2])
        message = (
            r"Number of tensors per timestep was inconsistent\. "
            r"Previously it was 2, but is now 3\."
        )
        with pytest.raises(ValueError, match=message):
            writer.append([1, 2, 3])
        writer.append([3, 4])
        writer.create_item("table", 2, 1.0)
    assert sequences(client) == [[1, 3]]


@pytest.mark.parametrize("other", [1.5, np.int32(1), np.zeros(2, np.int64)])
def test_steps_of_one_item_are_alike(client, table, other):
    writer = client.writer(3)
    writer.append(1)
    with pytest.raises(ValueError):
        # It is told when the steps are joined, which is at the latest when the item is sent.
        append_and_flush(writer, other)
    with pytest.raises(ValueError):
        append_and_flush(writer, other)
    assert table.info.current_size == 0


def append_and_flush(writer, step):
    writer.append(step)
    writer.create_item("table", 2, 1.0)
    writer.flush()


@pytest.mark.parametrize(
    "step",
    [np.zeros(3, np.float32), np.zeros(2), np.float32(0), [np.zeros(2, np.float32)] * 2],
    ids=["shape", "type", "scalar", "leaves"],
)
def test_an_item_is_of_the_signature_of_its_table(client, step):
    with client.writer(3) as writer:
        writer.append(step)
        with pytest.raises(ValueError, match="Unable to CreateItem in table 'typed'"):
            writer.create_item("typed", 1, 1.0)
        writer.create_item("other", 1, 1.0)
    infos = client.server_info()
    assert infos["typed"].current_size == 0
    assert infos["other"].current_size == 1


def test_only_the_steps_of_the_item_count_against_a_signature(client):
    with client.writer(2, chunk_length=1) as writer:
        writer.append(np.zeros(3, np.float32))
        writer.append(np.zeros(2, np.float32))
        with pytest.raises(ValueError, match="timestep offset 1"):
            writer.create_item("typed", 2, 1.0)
        writer.create_item("typed", 1, 1.0)
    assert client.server_info()["typed"].current_size == 1


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [([None, 2], {1, 2, 3}), ([3, 2], {3}), ([2], {1, 2, 3}), ([None], {1, 2, 3}), ([3, 3], set())],
)
def test_a_signature_may_be_of_steps_or_of_items(make_client, make_table, shape, lengths):
    client = make_client(make_table(signature=spec(shape, np.float32)))
    taken = set()
    with client.writer(3) as writer:
        for length in (1, 2, 3):
            writer.append(np.zeros(2, np.float32))
            with contextlib.suppress(ValueError):
                writer.create_item("table", length, 1.0)
                taken.add(length)
    assert taken == lengths
    assert client.server_info()["table"].current_size == len(lengths)


# When items are there, and the end.


def test_after_a_flush_every_item_is_there(client, table, holds):
    with client.writer(10) as writer:
        for step in range(3):
            writer.append(step)
            writer.create_item("table", 1, 1.0)
        writer.flush()
        assert holds(table, 3)
        writer.flush()
        writer.append(3)
        writer.create_item("table", 1, 1.0)
        writer.flush()
        assert holds(table, 4)


def test_a_flush_does_not_end_the_episode(client, table):
    with client.writer(10) as writer:
        for step in range(3):
            writer.append(step)
            writer.create_item("table", 1, 1.0)
            writer.flush()
    assert table.info.current_size == 3
    assert table.info.num_episodes == 1


def test_a_flush_of_nothing(client, table):
    with client.writer(10) as writer:
        writer.flush()
        writer.append(1)
        writer.flush()
    assert table.info.current_size == 0


def test_items_may_span_a_flush(client):
    with client.writer(4, chunk_length=2) as writer:
        for step in range(2):
            writer.append(step)
        writer.create_item("table", 2, 1.0)
        writer.flush()
        for step in range(2, 4):
            writer.append(step)
        writer.create_item("table", 4, 1.0)
    assert sequences(client) == [[0, 1], [0, 1, 2, 3]]


def test_a_flush_waits_for_the_limiter(make_client, start):
    client = make_client(reverb.Table.queue("queue", 1))
    client.insert(0, {"queue": 1.0})
    writer = client.writer(1)
    writer.append(1)
    writer.create_item("queue", 1, 1.0)
    flush = start(writer.flush)
    assert flush.is_blocked()
    assert sequence(client, "queue") == [0]
    flush.result()
    assert sequence(client, "queue") == [1]
    writer.close()


def test_closing_sends_what_is_pending(client, table, holds):
    writer = client.writer(10)
    writer.append(1)
    writer.create_item("table", 1, 1.0)
    writer.close()
    assert holds(table, 1)


@pytest.mark.parametrize("retry", [True, False])
def test_closing_with_or_without_retries(client, table, holds, retry):
    writer = client.writer(10)
    writer.append(1)
    writer.create_item("table", 1, 1.0)
    writer.close(retry_on_unavailable=retry)
    assert holds(table, 1)


def test_a_writer_is_closed_once(client):
    writer = client.writer(3)
    writer.close()
    with pytest.raises(ValueError, match=r"close\(\) has already been called on Writer"):
        writer.close()


def test_a_closed_writer_cannot_be_entered(client):
    writer = client.writer(3)
    writer.close()
    with pytest.raises(ValueError, match="Cannot reuse already closed Writer"), writer:
        pass


def test_a_closed_writer_takes_nothing(client):
    writer = client.writer(3)
    writer.append(1)
    writer.close()
    with pytest.raises(RuntimeError, match="Calling method Append after Close has been called"):
        writer.append(1)
    with pytest.raises(RuntimeError, match="Calling method Append after Close has been called"):
        writer.append_sequence([np.arange(3)])
    with pytest.raises(RuntimeError, match="Calling method CreateItem after Close has been called"):
        writer.create_item("table", 1, 1.0)
    with pytest.raises(RuntimeError, match="Calling method Flush after Close has been called"):
        writer.flush()


def test_leaving_the_block_sends_what_is_pending_and_closes(client, table, holds):
    with client.writer(10) as writer:
        writer.append(1)
        writer.create_item("table", 1, 1.0)
    assert holds(table, 1)
    with pytest.raises(ValueError, match=r"close\(\) has already been called on Writer"):
        writer.close()


def test_a_writer_is_not_closed_in_its_own_block(client):
    def close_twice():
        with client.writer(3) as writer:
            writer.close()

    with pytest.raises(RuntimeError, match="Calling method Flush after Close has been called"):
        close_twice()


def test_an_exception_in_the_block_passes_and_items_are_kept(client, table, holds):
    def interrupted():
        with client.writer(10) as writer:
            writer.append(1)
            writer.create_item("table", 1, 1.0)
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert holds(table, 1)


def test_a_writer_that_nobody_holds_is_closed(client, table):
    writer = client.writer(10)
    writer.append(1)
    writer.create_item("table", 1, 1.0)
    del writer
    gc.collect()
    until(lambda: table.info.current_size == 1)


def test_items_outlive_their_writer(client):
    with client.writer(3) as writer:
        for step in range(3):
            writer.append(step)
        writer.create_item("table", 3, 1.0)
    del writer
    gc.collect()
    assert sequence(client) == [0, 1, 2]
