"""`Client.sample`: what it gives, when it samples, and how it unpacks."""

from __future__ import annotations

import types

import numpy as np
import pytest
from reverb_under_test import reverb, sample_info, sample_values, spec


@pytest.fixture
def numbers(make_client, make_table):
    """A client of a FIFO that holds 0, 1 and 2, with priorities 0.0, 1.0 and 2.0."""
    client = make_client(make_table())
    for value in range(3):
        client.insert(value, {"table": float(value)})
    return client


@pytest.fixture
def sequences(make_client, make_table):
    """A client of one item of three steps: {"x": step, "y": [step, step / 2]}."""
    signature = {"x": spec([], np.int64), "y": spec([2], np.float32)}
    client = make_client(make_table(signature=signature), make_table("plain"))
    with client.writer(3) as writer:
        for step in range(3):
            writer.append({"x": step, "y": np.array([step, step / 2], np.float32)})
        writer.create_item("table", 3, 1.5)
        writer.create_item("plain", 3, 1.5)
    return client


# The generator.


def test_sample_is_a_generator(numbers):
    assert isinstance(numbers.sample("table"), types.GeneratorType)


def test_one_sample_unless_said(numbers):
    assert len(list(numbers.sample("table"))) == 1


@pytest.mark.parametrize("count", [1, 2, 7])
def test_as_many_samples_as_asked_for(numbers, count):
    assert len(list(numbers.sample("table", count))) == count
    assert len(list(numbers.sample("table", num_samples=count))) == count


def test_nothing_is_sampled_before_the_first_sample_is_asked_for(make_client):
    table = reverb.Table.queue("queue", 3)
    client = make_client(table)
    client.insert(1, {"queue": 1.0})
    generator = client.sample("queue")
    assert table.info.current_size == 1
    assert table.info.rate_limiter_info.sample_stats.completed == 0
    next(generator)
    assert table.info.current_size == 0


def test_an_unknown_table_is_told_with_the_first_sample(numbers):
    generator = numbers.sample("nowhere")
    with pytest.raises(RuntimeError, match="Priority table nowhere was not found"):
        next(generator)


def test_the_name_of_the_table_must_be_text(numbers):
    with pytest.raises(TypeError):
        next(numbers.sample(3))


def test_no_sample_cannot_be_asked_for(numbers):
    with pytest.raises(ValueError, match=r"max_samples \(0\) must be -1 or >= 1"):
        list(numbers.sample("table", 0))


def test_options_are_named(numbers):
    with pytest.raises(TypeError):
        numbers.sample("table", 1, True)


def test_a_finished_generator_stays_finished(numbers):
    generator = numbers.sample("table")
    next(generator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(generator)


def test_a_generator_may_be_left_early(numbers):
    generator = numbers.sample("table", 100)
    next(generator)
    generator.close()
    assert sample_values(numbers, "table") == [0]


def test_an_empty_table_blocks(make_client, make_table, start):
    client = make_client(make_table())
    sample = start(sample_values, client, "table")
    assert sample.is_blocked()
    client.insert(7, {"table": 1.0})
    assert sample.result() == [7]


def test_a_queue_blocks_past_its_last_item(make_client, start):
    client = make_client(reverb.Table.queue("queue", 5))
    for value in range(3):
        client.insert(value, {"queue": 1.0})
    generator = client.sample("queue", 4)
    assert [int(next(generator)[0].data[0]) for _ in range(3)] == [0, 1, 2]
    last = start(next, generator)
    assert last.is_blocked()
    client.insert(3, {"queue": 1.0})
    assert int(last.result()[0].data[0]) == 3


def test_a_blocked_sample_lets_others_through(make_client, make_table, start):
    client = make_client(make_table("empty"), make_table("full"))
    sample = start(sample_values, client, "empty")
    assert sample.is_blocked(0.05)
    client.insert(7, {"full": 1.0})
    assert sample_values(client, "full") == [7]
    assert set(client.server_info()) == {"empty", "full"}
    client.insert(8, {"empty": 1.0})
    assert sample.result() == [8]


def test_blocked_samples_each_get_an_item(make_client, start):
    client = make_client(reverb.Table.queue("queue", 10))
    samples = [start(sample_values, client, "queue") for _ in range(4)]
    for value in range(4):
        client.insert(value, {"queue": 1.0})
    assert sorted(sample.result()[0] for sample in samples) == [0, 1, 2, 3]


# What a sample tells.


def test_an_insert_is_a_list_of_one_step(numbers):
    sample = next(numbers.sample("table"))
    assert isinstance(sample, list)
    (step,) = sample
    assert isinstance(step, reverb.ReplaySample)
    assert isinstance(step.info, reverb.SampleInfo)
    assert isinstance(step.data, list)


def test_the_fields_are_python_numbers(numbers):
    info = sample_info(numbers, "table")
    assert [type(field) for field in info] == [int, float, int, float, int]


def test_the_first_sample_counts_as_one(numbers):
    assert [sample_info(numbers, "table").times_sampled for _ in range(3)] == [1, 2, 3]
    counts = [steps[0].info.times_sampled for steps in numbers.sample("table", 3)]
    assert counts == [4, 5, 6]


def test_a_sample_tells_its_item(make_client, make_table):
    client = make_client(make_table(sampler=reverb.selectors.Lifo()))
    client.insert(0, {"table": 0.25})
    first = sample_info(client, "table")
    client.insert(1, {"table": 0.75})
    second = sample_info(client, "table")

    assert (first.priority, first.table_size, first.times_sampled) == (0.25, 1, 1)
    assert (second.priority, second.table_size, second.times_sampled) == (0.75, 2, 1)
    assert first.probability == second.probability == 1.0
    assert first.key != second.key
    assert 0 <= first.key < 2**64


def test_the_key_stays(numbers):
    assert sample_info(numbers, "table").key == sample_info(numbers, "table").key


def test_the_probability_of_a_uniform_sample(make_client, make_table):
    client = make_client(make_table(sampler=reverb.selectors.Uniform()))
    for value in range(4):
        client.insert(value, {"table": float(value)})
    assert [s[0].info.probability for s in client.sample("table", 5)] == [0.25] * 5


def test_the_probability_of_a_prioritized_sample(make_client, make_table):
    client = make_client(make_table(sampler=reverb.selectors.Prioritized(1.0)))
    client.insert(0, {"table": 1.0})
    client.insert(1, {"table": 3.0})
    for (step,) in client.sample("table", 50):
        assert step.info.probability == pytest.approx([0.25, 0.75][int(step.data[0])])


# Timesteps.


def test_a_sequence_is_a_list_of_its_steps(sequences):
    steps = next(sequences.sample("table"))
    assert len(steps) == 3
    for index, step in enumerate(steps):
        assert isinstance(step, reverb.ReplaySample)
        x, y = step.data
        assert isinstance(x, np.ndarray)
        assert (x.shape, x.dtype) == ((), np.int64)
        assert (y.shape, y.dtype) == ((2,), np.float32)
        assert x == index
        np.testing.assert_array_equal(y, np.array([index, index / 2], np.float32))


def test_the_steps_of_a_sequence_share_their_info(sequences):
    steps = next(sequences.sample("table"))
    assert len({step.info for step in steps}) == 1
    assert steps[0].info.times_sampled == 1
    assert steps[0].info.priority == 1.5


def test_a_sequence_may_be_had_whole(sequences):
    sample = next(sequences.sample("table", emit_timesteps=False))
    assert isinstance(sample, reverb.ReplaySample)
    assert isinstance(sample.info, reverb.SampleInfo)
    assert isinstance(sample.data, list)
    x, y = sample.data
    np.testing.assert_array_equal(x, [0, 1, 2])
    np.testing.assert_array_equal(y, np.array([[0, 0], [1, 0.5], [2, 1]], np.float32))
    assert (x.dtype, y.dtype) == (np.int64, np.float32)


def test_an_insert_had_whole_has_a_leading_dimension_of_one(numbers):
    sample = next(numbers.sample("table", emit_timesteps=False))
    assert sample.data[0].shape == (1,)


def test_text_of_steps(make_client, make_table):
    client = make_client(make_table())
    with client.writer(2) as writer:
        writer.append("a")
        writer.append("bc")
        writer.create_item("table", 2, 1.0)
    steps = next(client.sample("table"))
    assert [step.data[0].shape for step in steps] == [(), ()]
    assert [step.data[0].item() for step in steps] == [b"a", b"bc"]
    (column,) = next(client.sample("table", emit_timesteps=False)).data
    assert column.dtype == np.object_
    assert list(column) == [b"a", b"bc"]


def test_samples_may_be_written_to(sequences):
    step = next(sequences.sample("table"))[0]
    step.data[1][:] = 7
    whole = next(sequences.sample("table", emit_timesteps=False))
    np.testing.assert_array_equal(whole.data[1][0], [0, 0])
    whole.data[0][:] = 9
    np.testing.assert_array_equal(
        next(sequences.sample("table", emit_timesteps=False)).data[0], [0, 1, 2]
    )


@pytest.fixture
def trajectories(make_client, make_table):
    """Give a client with one item, of the columns that a function makes of a history."""

    def make(columns, **settings):
        client = make_client(make_table(**settings))
        with client.trajectory_writer(3) as writer:
            for step in range(3):
                writer.append({"x": step, "y": float(step)})
            writer.create_item("table", 1.0, columns(writer.history))
        return client

    return make


def test_columns_of_unequal_length_are_no_timesteps(trajectories):
    client = trajectories(lambda history: {"x": history["x"][:], "y": history["y"][-1:]})
    with pytest.raises(ValueError, match="Can't split non timestep trajectory into timesteps"):
        next(client.sample("table"))


def test_columns_of_unequal_length_may_be_had_whole(trajectories):
    client = trajectories(lambda history: {"x": history["x"][:], "y": history["y"][-1:]})
    x, y = next(client.sample("table", emit_timesteps=False)).data
    np.testing.assert_array_equal(x, [0, 1, 2])
    np.testing.assert_array_equal(y, [2.0])


def test_a_single_step_without_time_is_no_timestep(trajectories):
    client = trajectories(lambda history: {"x": history["x"][-1], "y": history["y"][-1]})
    with pytest.raises((TypeError, ValueError)):
        next(client.sample("table"))
    x, y = next(client.sample("table", emit_timesteps=False)).data
    assert x.shape == y.shape == ()
    assert (x, y) == (2, 2.0)


def test_columns_of_equal_length_are_timesteps(trajectories):
    client = trajectories(lambda history: {"y": history["y"][-2:], "x": history["x"][:2]})
    steps = next(client.sample("table"))
    assert [(int(s.data[0]), float(s.data[1])) for s in steps] == [(0, 1.0), (1, 2.0)]


# Signatures.


def test_timesteps_unpacked_as_the_signature(sequences):
    steps = next(sequences.sample("table", unpack_as_table_signature=True))
    assert [set(step.data) for step in steps] == [{"x", "y"}] * 3
    assert [int(step.data["x"]) for step in steps] == [0, 1, 2]
    assert steps[2].data["y"].shape == (2,)


def test_a_whole_sequence_unpacked_as_the_signature(sequences):
    sample = next(sequences.sample("table", emit_timesteps=False, unpack_as_table_signature=True))
    assert set(sample.data) == {"x", "y"}
    np.testing.assert_array_equal(sample.data["x"], [0, 1, 2])
    assert sample.data["y"].shape == (3, 2)


def test_without_a_signature_data_stays_flat(sequences):
    steps = next(sequences.sample("plain", unpack_as_table_signature=True))
    assert len(steps) == 3
    assert isinstance(steps[0].data, list)
    whole = next(sequences.sample("plain", emit_timesteps=False, unpack_as_table_signature=True))
    assert isinstance(whole.data, list)


def test_a_nested_signature(make_client, make_table):
    signature = {
        "z": spec([], np.float64),
        "a": (spec([2], np.int64), {"q": spec([], np.int64), "b": [spec([], np.bool_)]}),
    }
    client = make_client(make_table(signature=signature))
    client.insert({"z": 0.5, "a": (np.array([1, 2]), {"q": 3, "b": [True]})}, {"table": 1.0})
    (step,) = next(client.sample("table", unpack_as_table_signature=True))

    assert float(step.data["z"]) == 0.5
    first, second = step.data["a"]
    assert isinstance(step.data["a"], tuple)
    np.testing.assert_array_equal(first, [1, 2])
    assert int(second["q"]) == 3
    assert isinstance(second["b"], list)
    assert bool(second["b"][0]) is True


def test_a_signature_of_one_leaf(make_client, make_table):
    client = make_client(make_table(signature=spec([2], np.int64)))
    client.insert(np.array([1, 2]), {"table": 1.0})
    (step,) = next(client.sample("table", unpack_as_table_signature=True))
    assert isinstance(step.data, np.ndarray)
    np.testing.assert_array_equal(step.data, [1, 2])


def test_unpacking_of_an_unknown_table(sequences):
    with pytest.raises(ValueError, match='Could not find table "nowhere"') as error:
        next(sequences.sample("nowhere", unpack_as_table_signature=True))
    assert "The following tables exists:" in str(error.value)
    assert "plain" in str(error.value)
