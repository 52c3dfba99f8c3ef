"""`reverb.Client`: inserts and what they take, priorities, resets, and what it tells."""

from __future__ import annotations

import collections
import pickle
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from reverb_under_test import (
    NAME,
    PATIENCE,
    drain,
    dtype_of,
    reverb,
    sample_info,
    sample_values,
    spec,
    submodule,
)

UNKNOWN_KEY = 12345


class Pair(NamedTuple):
    second: int
    first: int


def only_step(client, table="table"):
    (step,) = next(client.sample(table))
    return step


def leaves(client, data, table="table"):
    """Insert, and give the leaves as they come back."""
    client.insert(data, {table: 1.0})
    return only_step(client, table).data


@pytest.fixture
def client(make_client):
    """A client of a stack, so that each sample is of what was inserted just before."""
    return make_client(reverb.Table.stack("table", 100))


# The client itself.


def test_a_client_tells_its_address():
    client = reverb.Client("localhost:1234")
    assert client.server_address == "localhost:1234"
    assert repr(client) == "Client, server_address=localhost:1234"
    assert reverb.Client(server_address="localhost:5").server_address == "localhost:5"


def test_the_address_cannot_be_set():
    with pytest.raises(AttributeError):
        reverb.Client("localhost:1234").server_address = "localhost:1"


def test_a_client_needs_an_address():
    with pytest.raises(TypeError):
        reverb.Client()
    with pytest.raises(TypeError):
        reverb.Client(1234)


def test_a_client_starts_before_its_server(make_server, make_table):
    first = make_server(make_table())
    port = first.port
    first.stop()
    client = reverb.Client(f"localhost:{port}")
    make_server(make_table(), port=port)
    client.insert(1, {"table": 1.0})
    assert sample_values(client, "table") == [1]


def test_a_pickled_client_is_a_client_of_the_same_server(make_client, make_table):
    client = make_client(make_table())
    client.insert(1, {"table": 1.0})
    copy = pickle.loads(pickle.dumps(client))
    assert isinstance(copy, reverb.Client)
    assert copy.server_address == client.server_address
    assert sample_values(copy, "table") == [1]


def test_a_client_of_no_server_can_be_pickled():
    client = pickle.loads(pickle.dumps(reverb.Client("localhost:5")))
    assert client.server_address == "localhost:5"


def test_a_pickled_client_works_in_another_process(make_client):
    client = make_client(
        reverb.Table.queue("there", 3, signature={"x": spec([], np.int64)}),
        reverb.Table.queue("back", 3),
    )
    client.insert({"x": 20}, {"there": 1.0})
    source = f"""
import pickle
import sys
import {NAME} as reverb
client = pickle.loads(bytes.fromhex(sys.argv[1]))
(step,) = next(client.sample("there", unpack_as_table_signature=True))
client.insert(int(step.data["x"]) + 1, {{"back": 1.0}})
try:
    next(client.sample("nowhere"))
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", source, pickle.dumps(client).hex()],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Priority table nowhere was not found" in done.stdout
    assert sample_values(client, "back") == [21]


# Insert.


def test_insert_returns_nothing_and_the_item_is_there(make_client, make_table):
    table = make_table()
    client = make_client(table)
    assert client.insert(data=1, priorities={"table": 1.0}) is None
    assert table.info.current_size == 1


def test_insert_needs_a_table(client):
    with pytest.raises(ValueError, match="priorities must contain at least one item"):
        client.insert(1, {})


def test_insert_into_an_unknown_table(client):
    with pytest.raises(ValueError, match="Unable to find signatures for table 'other'"):
        client.insert(1, {"other": 1.0})
    assert client.server_info()["table"].current_size == 0


def test_insert_into_several_tables(make_client, make_table):
    tables = [make_table(name) for name in ("a", "b", "c")]
    client = make_client(*tables)
    client.insert(7, {"a": 1.0, "b": 2.0})
    assert [table.info.current_size for table in tables] == [1, 1, 0]
    assert sample_values(client, "a") == sample_values(client, "b") == [7]
    assert sample_info(client, "a").priority == 1.0
    assert sample_info(client, "b").priority == 2.0


def test_the_items_of_one_insert_have_keys_of_their_own(make_client, make_table):
    client = make_client(make_table("a"), make_table("b"))
    client.insert(7, {"a": 1.0, "b": 2.0})
    assert sample_info(client, "a").key != sample_info(client, "b").key


def test_a_delete_in_one_table_leaves_the_other(make_client, make_table):
    client = make_client(make_table("a"), make_table("b"))
    client.insert(7, {"a": 1.0, "b": 2.0})
    assert drain(client, "a") == [7]
    assert sample_values(client, "b") == [7]


def test_every_item_has_a_key_of_its_own(make_client, make_table):
    client = make_client(make_table(sampler=reverb.selectors.Lifo()))
    keys = set()
    for value in range(20):
        client.insert(value, {"table": 1.0})
        keys.add(sample_info(client, "table").key)
    assert len(keys) == 20


@pytest.mark.parametrize("priority", [0.5, 2, np.float32(0.25), np.float64(3), np.int64(4), True])
def test_priorities_of_any_number(client, priority):
    client.insert(1, {"table": priority})
    assert sample_info(client, "table").priority == float(priority)


@pytest.mark.parametrize("priority", ["high", None, [1.0]])
def test_a_priority_must_be_a_number(client, priority):
    with pytest.raises(TypeError):
        client.insert(1, {"table": priority})


def test_the_name_of_a_table_must_be_text(client):
    with pytest.raises(TypeError):
        client.insert(1, {3: 1.0})


def test_a_priority_of_zero_is_allowed(client):
    client.insert(1, {"table": 0.0})
    assert sample_info(client, "table").priority == 0.0


def test_nan_is_no_priority(client):
    with pytest.raises(ValueError, match=r"(?i)\bnan\b"):
        client.insert(1, {"table": float("nan")})
    client.insert(2, {"table": 1.0})
    assert sample_values(client, "table") == [2]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, np.int64),
        (2.5, np.float64),
        (True, np.bool_),
        (1j, np.complex128),
        (np.bool_(True), np.bool_),
        (np.int8(-3), np.int8),
        (np.int16(-3), np.int16),
        (np.int32(-3), np.int32),
        (np.int64(2**60), np.int64),
        (np.uint8(3), np.uint8),
        (np.uint16(3), np.uint16),
        (np.uint32(7), np.uint32),
        (np.uint64(2**63), np.uint64),
        (np.float16(1.5), np.float16),
        (np.float32(2), np.float32),
        (np.float64(2), np.float64),
        (np.complex64(1j), np.complex64),
    ],
    ids=lambda value: f"{type(value).__name__}" if not isinstance(value, type) else "",
)
def test_a_number_comes_back_as_an_array_of_its_type(client, value, dtype):
    (leaf,) = leaves(client, value)
    assert isinstance(leaf, np.ndarray)
    assert leaf.shape == ()
    assert leaf.dtype == dtype
    assert leaf == value


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.arange(10, dtype=np.int32)[::-2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3)),
        np.array([]),
        np.zeros((2, 0, 3), np.uint8),
        np.ones((1, 1, 1, 1), np.float16),
        np.array([True, False]),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}",
)
def test_an_array_comes_back_as_it_was(client, value):
    (leaf,) = leaves(client, value)
    assert leaf.dtype == value.dtype
    assert leaf.shape == value.shape
    np.testing.assert_array_equal(leaf, value)


@pytest.mark.parametrize("value", ["hej", b"hej"])
def test_text_comes_back_as_bytes(client, value):
    (leaf,) = leaves(client, value)
    assert leaf.shape == ()
    assert leaf.dtype == np.object_
    assert leaf == b"hej"


@pytest.mark.parametrize("kind", [str, bytes, object])
def test_arrays_of_text_come_back_as_arrays_of_bytes(client, kind):
    words = ["a", "", "bcd", "bj\N{LATIN SMALL LETTER O WITH DIAERESIS}rn"]
    value = np.array([word.encode() for word in words] if kind is bytes else words, dtype=kind)
    (leaf,) = leaves(client, value)
    assert leaf.shape == (4,)
    assert leaf.dtype == np.object_
    assert list(leaf) == [word.encode() for word in words]


@pytest.mark.parametrize(
    "value",
    [None, object(), np.datetime64("2020-01-01"), np.zeros(2, dtype=[("a", int)]), 2**70],
    ids=["none", "object", "date", "record", "huge"],
)
def test_what_is_no_array_is_refused(client, value):
    with pytest.raises(TypeError):
        client.insert({"x": value}, {"table": 1.0})
    client.insert({"x": 1}, {"table": 1.0})
    assert sample_values(client, "table") == [1]


def test_lists_are_nests_and_no_arrays(client):
    first, second = leaves(client, [1, 2.5])
    assert first.dtype == np.int64
    assert second.dtype == np.float64
    assert (first, second) == (1, 2.5)


def test_dicts_are_flattened_by_their_sorted_keys(client):
    data = leaves(client, {"z": 1, "a": {"q": 2, "b": 3}, "m": (4, [5])})
    assert [int(leaf) for leaf in data] == [3, 2, 4, 5, 1]


def test_ordered_dicts_are_flattened_by_their_sorted_keys_too(client):
    data = leaves(client, collections.OrderedDict([("z", 1), ("a", 2)]))
    assert [int(leaf) for leaf in data] == [2, 1]


def test_named_tuples_are_flattened_in_the_order_of_their_fields(client):
    data = leaves(client, Pair(second=1, first=2))
    assert [int(leaf) for leaf in data] == [1, 2]


def test_a_sample_is_no_view_of_what_was_inserted(client):
    value = np.zeros(3)
    client.insert(value, {"table": 1.0})
    value[:] = 1
    np.testing.assert_array_equal(only_step(client).data[0], np.zeros(3))


def test_threads_may_share_a_client(make_client, make_table, start):
    client = make_client(make_table(max_size=1000))

    def insert_and_sample(first):
        for value in range(first, first + 25):
            client.insert(value, {"table": 1.0})
            sample_info(client, "table")

    for running in [start(insert_and_sample, 25 * index) for index in range(4)]:
        running.result()
    assert sorted(drain(client, "table")) == list(range(100))


def test_a_large_item(client):
    value = np.arange(3_000_000, dtype=np.int32)
    (leaf,) = leaves(client, value)
    np.testing.assert_array_equal(leaf, value)


# Signatures.


@pytest.fixture
def typed(make_client, make_table):
    signature = {"pixels": spec([2, None], np.float32, "name"), "reward": spec([], np.int32)}
    return make_client(make_table(signature=signature), make_table("free"))


def frame(columns=5, dtype=np.float32):
    return np.zeros((2, columns), dtype)


def test_data_of_the_signature_is_taken(typed):
    for columns in (0, 1, 5):
        typed.insert({"pixels": frame(columns), "reward": np.int32(1)}, {"table": 1.0})
    assert typed.server_info()["table"].current_size == 3


@pytest.mark.parametrize(
    "data",
    [
        {"pixels": frame(dtype=np.float64), "reward": np.int32(1)},
        {"pixels": frame(), "reward": 1},
        {"pixels": np.zeros((3, 5), np.float32), "reward": np.int32(1)},
        {"pixels": np.zeros(2, np.float32), "reward": np.int32(1)},
        {"pixels": np.zeros((2, 5, 1), np.float32), "reward": np.int32(1)},
        {"pixels": frame(), "reward": np.zeros(1, np.int32)},
        {"pixels": frame()},
        {"pixels": frame(), "reward": np.int32(1), "z": 0},
    ],
    ids=[
        "float64",
        "int64",
        "length",
        "fewer-dimensions",
        "more-dimensions",
        "no-scalar",
        "leaf-missing",
        "leaf-too-many",
    ],
)
def test_data_of_another_signature_is_refused(typed, data):
    with pytest.raises(ValueError, match="Unable to CreateItem in table 'table' because Append"):
        typed.insert(data, {"table": 1.0})
    assert typed.server_info()["table"].current_size == 0

    # The client is as good as before.
    typed.insert({"pixels": frame(), "reward": np.int32(1)}, {"table": 1.0})
    assert typed.server_info()["table"].current_size == 1


def test_the_error_names_the_leaf_and_both_signatures(typed):
    with pytest.raises(ValueError, match="flattened index 1") as error:
        typed.insert({"pixels": frame(), "reward": 1}, {"table": 1.0})
    assert "signature" in str(error.value)
    assert "int64" in str(error.value)
    assert "int32" in str(error.value)


def test_only_the_leaves_and_their_order_count_against_a_signature(typed):
    typed.insert((frame(), np.int32(1)), {"table": 1.0})
    step = next(typed.sample("table", unpack_as_table_signature=True))[0]
    assert set(step.data) == {"pixels", "reward"}


def test_a_table_without_a_signature_takes_anything(typed):
    for data in (1, "text", {"a": frame()}, [1.0, 2]):
        typed.insert(data, {"free": 1.0})
    assert typed.server_info()["free"].current_size == 4


# Priorities.


@pytest.fixture
def ranked(make_client, make_table):
    """A client of three items: 0, 1, 2, of rising priority."""
    client = make_client(make_table(sampler=reverb.selectors.MaxHeap()), make_table("other"))
    for value in range(3):
        client.insert(value, {"table": float(value)})
    return client


def test_an_update_changes_the_priority_and_the_order(ranked):
    key = sample_info(ranked, "table").key
    assert ranked.mutate_priorities("table", updates={key: 0.5}) is None
    assert drain(ranked, "table") == [1, 2, 0]


def test_the_sample_tells_the_updated_priority(ranked):
    key = sample_info(ranked, "table").key
    ranked.mutate_priorities("table", {key: 7.0})
    assert sample_info(ranked, "table").priority == 7.0


def test_an_update_keeps_the_count_of_samples(ranked):
    key = sample_info(ranked, "table").key
    ranked.mutate_priorities("table", {key: 7.0})
    assert sample_info(ranked, "table").times_sampled == 2


def test_many_updates_at_once(ranked):
    keys = {}
    for _ in range(3):
        step = only_step(ranked)
        keys[int(step.data[0])] = step.info.key
        ranked.mutate_priorities("table", {step.info.key: -0.0})
    ranked.mutate_priorities("table", updates={keys[0]: 3.0, keys[1]: 1.0, keys[2]: 2.0})
    assert drain(ranked, "table") == [0, 2, 1]


def test_deletes_remove_the_items(ranked):
    key = sample_info(ranked, "table").key
    ranked.mutate_priorities("table", deletes=[key])
    assert ranked.server_info()["table"].current_size == 2
    assert drain(ranked, "table") == [1, 0]


def test_updates_and_deletes_may_go_together(ranked):
    first = sample_info(ranked, "table").key
    ranked.mutate_priorities("table", {first: -0.0})
    second = sample_info(ranked, "table").key
    ranked.mutate_priorities("table", {first: 9.0}, [second])
    assert drain(ranked, "table") == [2, 0]


def test_an_item_both_updated_and_deleted_is_gone(ranked):
    key = sample_info(ranked, "table").key
    ranked.mutate_priorities("table", updates={key: 9.0}, deletes=[key])
    assert drain(ranked, "table") == [1, 0]


def test_unknown_keys_are_ignored(ranked):
    ranked.mutate_priorities("table", updates={UNKNOWN_KEY: 9.0}, deletes=[UNKNOWN_KEY + 1])
    assert drain(ranked, "table") == [2, 1, 0]


def test_unknown_keys_do_not_hide_the_others(ranked):
    key = sample_info(ranked, "table").key
    ranked.mutate_priorities("table", {UNKNOWN_KEY: 9.0, key: 0.5}, [UNKNOWN_KEY + 1])
    assert drain(ranked, "table") == [1, 2, 0]


def test_the_key_of_one_table_is_unknown_to_another(ranked):
    ranked.insert(5, {"other": 1.0})
    ranked.mutate_priorities("table", deletes=[sample_info(ranked, "other").key])
    assert ranked.server_info()["table"].current_size == 3


@pytest.mark.parametrize("arguments", [(), ({}, []), (None, None)])
def test_nothing_to_change_is_no_error(ranked, arguments):
    ranked.mutate_priorities("table", *arguments)
    assert drain(ranked, "table") == [2, 1, 0]


@pytest.mark.parametrize("arguments", [(), ({UNKNOWN_KEY: 1.0},), (None, [UNKNOWN_KEY])])
def test_priorities_of_an_unknown_table(ranked, arguments):
    with pytest.raises(RuntimeError, match="Priority table nowhere was not found"):
        ranked.mutate_priorities("nowhere", *arguments)


def test_keys_and_priorities_may_be_numpy_numbers(ranked):
    key = sample_info(ranked, "table").key
    ranked.mutate_priorities("table", updates={np.uint64(key): np.float32(0.5)})
    assert drain(ranked, "table") == [1, 2, 0]


def test_deletes_may_be_a_tuple_or_an_array(ranked):
    ranked.mutate_priorities("table", deletes=(sample_info(ranked, "table").key,))
    keys = np.array([sample_info(ranked, "table").key], np.uint64)
    ranked.mutate_priorities("table", deletes=keys)
    assert drain(ranked, "table") == [0]


@pytest.mark.parametrize(
    "arguments",
    [({-1: 1.0},), ({1.5: 1.0},), ({1: "high"},), (None, [-1]), (None, 5), (None, ["key"])],
)
def test_keys_and_priorities_of_the_wrong_type_are_refused(ranked, arguments):
    with pytest.raises(TypeError):
        ranked.mutate_priorities("table", *arguments)
    assert drain(ranked, "table") == [2, 1, 0]


# Resets.


def test_a_reset_empties_the_table(ranked):
    assert ranked.reset("table") is None
    info = ranked.server_info()["table"]
    assert info.current_size == 0
    assert info.num_episodes == 0
    assert info.num_deleted_episodes == 0
    assert info.num_unique_samples == 0


def test_a_reset_leaves_other_tables(ranked):
    ranked.insert(5, {"other": 1.0})
    ranked.reset("table")
    assert sample_values(ranked, "other") == [5]


def test_a_table_works_after_a_reset(ranked):
    ranked.reset("table")
    ranked.insert(7, {"table": 1.0})
    assert drain(ranked, "table") == [7]


def test_a_reset_of_an_unknown_table(ranked):
    with pytest.raises(RuntimeError, match="Priority table nowhere was not found"):
        ranked.reset("nowhere")


def test_a_reset_resets_the_limiter(make_client, make_table):
    limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 1, (0.0, 2.0))
    table = make_table(rate_limiter=limiter)
    client = make_client(table)
    client.insert(0, {"table": 1.0})
    client.insert(1, {"table": 1.0})
    sample_info(client, "table")
    assert not table.can_insert(2)

    client.reset("table")
    assert table.can_insert(2)
    assert not table.can_sample(1)
    counts = table.info.rate_limiter_info
    assert counts.insert_stats.completed == 0
    assert counts.sample_stats.completed == 0


def test_a_reset_lets_a_blocked_insert_go(make_client, start):
    table = reverb.Table.queue("queue", 1)
    client = make_client(table)
    client.insert(0, {"queue": 1.0})
    insert = start(client.insert, 1, {"queue": 1.0})
    assert insert.is_blocked()
    client.reset("queue")
    insert.result()
    assert sample_values(client, "queue") == [1]


# What the server tells.


def test_server_info_is_by_table(make_client, make_table):
    tables = [make_table("a", max_size=7), reverb.Table.queue("b", 3)]
    client = make_client(*tables)
    client.insert(1, {"a": 1.0})
    infos = client.server_info()
    assert isinstance(infos, dict)
    assert set(infos) == {"a", "b"}
    assert all(isinstance(info, submodule("reverb_types").TableInfo) for info in infos.values())
    assert infos["a"].name == "a"
    assert infos["a"].max_size == 7
    assert infos["a"].current_size == 1
    assert infos["b"].max_times_sampled == 1
    assert infos["b"].sampler_options.fifo


def test_server_info_says_what_the_table_says(make_client, make_table):
    table = make_table(signature={"x": spec([None], np.int32, "n")})
    client = make_client(table)
    client.insert({"x": np.zeros(3, np.int32)}, {"table": 1.0})
    sample_info(client, "table")

    ours, theirs = table.info, client.server_info()["table"]
    for field in (
        "name",
        "max_size",
        "max_times_sampled",
        "current_size",
        "num_episodes",
        "num_deleted_episodes",
        "num_unique_samples",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert theirs.rate_limiter_info.insert_stats.completed == 1
    assert theirs.rate_limiter_info.sample_stats.completed == 1
    assert tuple(theirs.signature["x"].shape) == (None,)
    assert dtype_of(theirs.signature["x"]) == np.int32
    assert theirs.signature["x"].name == "n"
    kind = submodule("reverb_types").TableInfo
    assert kind.from_serialized_proto(table.internal_table.info()) == ours


@pytest.mark.parametrize("timeout", [None, 0, 1, 30])
def test_server_info_within_a_timeout(make_client, make_table, timeout):
    assert set(make_client(make_table()).server_info(timeout)) == {"table"}
    assert set(make_client(make_table()).server_info(timeout=timeout)) == {"table"}


def test_server_info_of_no_server_ends_with_the_timeout():
    with pytest.raises(
        reverb.DeadlineExceededError,
        match="ServerInfo call did not complete within provided timeout of 1s",
    ):
        reverb.Client("localhost:1").server_info(timeout=1)


def test_server_info_waits_for_a_server_without_a_timeout(make_server, make_table, start):
    server = make_server(make_table())
    port = server.port
    server.stop()
    info = start(reverb.Client(f"localhost:{port}").server_info)
    assert info.is_blocked()
    make_server(make_table(), port=port)
    assert set(info.result()) == {"table"}


def test_server_info_waits_for_a_server_within_its_timeout(make_server, make_table, start):
    server = make_server(make_table())
    port = server.port
    server.stop()
    info = start(reverb.Client(f"localhost:{port}").server_info, 60)
    assert info.is_blocked()
    make_server(make_table(), port=port)
    assert set(info.result()) == {"table"}


def test_a_checkpoint_of_no_server_is_an_error():
    with pytest.raises(RuntimeError):
        reverb.Client("localhost:1").checkpoint()


# Errors, and the records that samples are.


def test_the_errors_are_of_one_family():
    errors = submodule("errors")
    assert reverb.ReverbError is errors.ReverbError
    assert reverb.DeadlineExceededError is errors.DeadlineExceededError
    assert issubclass(reverb.ReverbError, Exception)
    assert issubclass(reverb.DeadlineExceededError, reverb.ReverbError)
    assert str(reverb.DeadlineExceededError("late")) == "late"


def test_sample_info_is_a_named_tuple():
    replay_sample = submodule("replay_sample")
    assert reverb.SampleInfo is replay_sample.SampleInfo
    info = reverb.SampleInfo(1, 0.5, 2, 0.25, 3)
    assert isinstance(info, tuple)
    assert info._fields == ("key", "probability", "table_size", "priority", "times_sampled")
    assert len(info) == submodule("pybind").Sampler.NUM_INFO_TENSORS
    assert (info.key, info.probability, info.table_size) == (1, 0.5, 2)
    assert (info.priority, info.times_sampled) == (0.25, 3)
    assert info._replace(key=4).key == 4
    with pytest.raises(TypeError):
        reverb.SampleInfo(1)


@pytest.mark.upstream_differs
def test_programs_of_older_versions_leave_times_sampled_out():
    assert reverb.SampleInfo(1, 0.5, 2, 0.25) == (1, 0.5, 2, 0.25, 0)


def test_sample_info_of_zeros():
    zeros = reverb.SampleInfo.zeros()
    assert zeros == (0, 0.0, 0, 0.0, 0)
    assert [type(field) for field in zeros] == [int, float, int, float, int]


def test_replay_sample_is_a_named_tuple():
    assert reverb.ReplaySample is submodule("replay_sample").ReplaySample
    sample = reverb.ReplaySample(info=reverb.SampleInfo.zeros(), data=[1])
    assert sample._fields == ("info", "data")
    info, data = sample
    assert info == reverb.SampleInfo.zeros()
    assert data == [1]


# Names.


@pytest.mark.parametrize(
    "name",
    [
        "Client",
        "DeadlineExceededError",
        "PatternDataset",
        "ReplaySample",
        "ReverbError",
        "SampleInfo",
        "Server",
        "Table",
        "TimestepDataset",
        "TrajectoryColumn",
        "TrajectoryDataset",
        "TrajectoryWriter",
        "Writer",
        "checkpointers",
        "client",
        "errors",
        "item_selectors",
        "pattern_dataset",
        "platform",
        "rate_limiters",
        "replay_sample",
        "reverb_types",
        "selectors",
        "server",
        "structured",
        "structured_writer",
        "timestep_dataset",
        "trajectory_dataset",
        "trajectory_writer",
    ],
)
def test_a_plain_import_gives_every_public_name(name):
    assert hasattr(reverb, name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("client", "Client"),
        ("client", "Writer"),
        ("server", "Server"),
        ("server", "Table"),
        ("errors", "ReverbError"),
        ("replay_sample", "ReplaySample"),
        ("pattern_dataset", "PatternDataset"),
        ("timestep_dataset", "TimestepDataset"),
        ("trajectory_dataset", "TrajectoryDataset"),
        ("trajectory_writer", "TrajectoryColumn"),
        ("trajectory_writer", "TrajectoryWriter"),
    ],
)
def test_a_public_name_is_that_of_its_module(module, name):
    assert getattr(reverb, name) is getattr(submodule(module), name)


def test_selectors_and_limiters_are_modules_of_their_own():
    assert reverb.selectors is submodule("item_selectors")
    assert reverb.rate_limiters is submodule("rate_limiters")
    assert reverb.structured is submodule("structured_writer")


@pytest.mark.parametrize("name", ["Fifo", "Lifo", "Prioritized", "Uniform"])
def test_the_types_of_selectors_have_names(name):
    assert getattr(submodule("reverb_types"), name) is getattr(reverb.selectors, name)


def test_both_heaps_are_of_one_type():
    heap = submodule("reverb_types").Heap
    assert isinstance(reverb.selectors.MinHeap(), heap)
    assert isinstance(reverb.selectors.MaxHeap(), heap)
    assert repr(heap(True)) == repr(reverb.selectors.MinHeap())
    assert repr(heap(min_heap=False)) == repr(reverb.selectors.MaxHeap())


def test_a_table_extension_is_an_abstract_class():
    with pytest.raises(TypeError):
        submodule("server").TableExtensionBase()


@pytest.mark.upstream_differs
@pytest.mark.parametrize("dtype", [">i4", ">f8", "<u2"])
def test_arrays_of_either_byte_order_keep_their_values(client, dtype):
    values = np.array([1, 2, 300], dtype)
    client.insert(values, {"table": 1.0})
    with client.trajectory_writer(1) as writer:
        writer.append([values])
        writer.create_item("table", 1.0, [writer.history[0][:]])
    for sample in client.sample("table", 2, emit_timesteps=False):
        assert sample.data[0].tolist() == [[1, 2, 300]]
        assert sample.data[0].dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("texts", [("a", "bcd"), (b"a", b"bcd"), ("", "e" * 32)])
def test_a_column_takes_texts_of_several_lengths(client, texts):
    with client.trajectory_writer(2) as writer:
        for text in texts:
            writer.append([text])
        writer.create_item("table", 1.0, [writer.history[0][:]])
    [sample] = client.sample("table", 1, emit_timesteps=False)
    expected = [text if isinstance(text, bytes) else text.encode() for text in texts]
    assert sample.data[0].tolist() == expected
