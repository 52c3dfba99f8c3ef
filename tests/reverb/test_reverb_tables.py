"""`reverb.Table`: its constructor, what it tells about itself, eviction and `replace`."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
from reverb_under_test import (
    drain,
    dtype_of,
    reverb,
    sample_info,
    sample_values,
    spec,
    submodule,
)

Fifo, Lifo = reverb.selectors.Fifo, reverb.selectors.Lifo
MinHeap, MaxHeap = reverb.selectors.MinHeap, reverb.selectors.MaxHeap
Prioritized, Uniform = reverb.selectors.Prioritized, reverb.selectors.Uniform

FIELDS = [
    "name",
    "sampler_options",
    "remover_options",
    "max_size",
    "max_times_sampled",
    "rate_limiter_info",
    "signature",
    "current_size",
    "num_episodes",
    "num_deleted_episodes",
    "num_unique_samples",
    "table_worker_time",
]


# The constructor.


def test_a_table_needs_a_name(make_table):
    with pytest.raises(ValueError, match="name must be nonempty"):
        make_table("")


@pytest.mark.parametrize("size", [0, -1])
def test_a_table_needs_room(make_table, size):
    with pytest.raises(ValueError, match=rf"max_size \({size}\) must be a positive integer"):
        make_table(max_size=size)


def test_the_name_is_checked_before_the_size(make_table):
    with pytest.raises(ValueError, match="name must be nonempty"):
        make_table("", max_size=0)


@pytest.mark.parametrize(
    "wrong", [{"max_size": 1.5}, {"sampler": "fifo"}, {"remover": "fifo"}, {"name": 3}]
)
def test_arguments_of_the_wrong_type_are_refused(make_table, wrong):
    with pytest.raises(TypeError):
        make_table(**wrong)


def test_the_arguments_may_be_positional_in_the_documented_order():
    signature = spec([], np.int64)
    limiter = reverb.rate_limiters.MinSize(2)
    table = reverb.Table("a", Fifo(), Lifo(), 7, limiter, 3, (), signature)

    info = table.info
    assert (info.name, info.max_size, info.max_times_sampled) == ("a", 7, 3)
    assert info.sampler_options.fifo
    assert info.remover_options.lifo
    assert info.rate_limiter_info.min_size_to_sample == 2
    assert dtype_of(info.signature) == np.int64


def test_five_arguments_are_required():
    with pytest.raises(TypeError):
        reverb.Table("a", Fifo(), Lifo(), 7)


def test_items_may_be_sampled_without_limit_unless_said(make_table):
    assert make_table().info.max_times_sampled == 0


@pytest.mark.parametrize("times", [0, -1])
def test_less_than_one_time_means_no_limit(make_client, make_table, times):
    client = make_client(make_table(max_times_sampled=times))
    client.insert(1, {"table": 1.0})
    assert sample_values(client, "table", 5) == [1] * 5


@pytest.mark.parametrize("wrong", [["float"], {"a": 3}, [None]], ids=["text", "number", "none"])
def test_a_signature_of_anything_but_specs_is_refused(make_table, wrong):
    with pytest.raises(ValueError, match="Unsupported signature spec"):
        make_table(signature=wrong)


@pytest.mark.parametrize("empty", [None, (), {}, []])
def test_an_empty_signature_is_none(make_table, empty):
    assert make_table(signature=empty).info.signature is None


def test_a_signature_comes_back_as_it_was_given(make_table):
    signature = {
        "b": spec([1, None], np.float32, "pixels"),
        "a": (spec([], np.int64), [spec([2, 3], np.uint8)]),
    }
    given = make_table(signature=signature).info.signature

    assert isinstance(given, dict)
    assert set(given) == {"a", "b"}
    assert tuple(given["b"].shape) == (1, None)
    assert dtype_of(given["b"]) == np.float32
    assert given["b"].name == "pixels"
    assert isinstance(given["a"], tuple)
    assert tuple(given["a"][0].shape) == ()
    assert given["a"][0].name is None
    assert isinstance(given["a"][1], list)
    assert dtype_of(given["a"][1][0]) == np.uint8


def test_a_signature_may_be_one_spec(make_table):
    signature = make_table(signature=spec([3], np.float16)).info.signature
    assert tuple(signature.shape) == (3,)
    assert dtype_of(signature) == np.float16


@pytest.mark.upstream_differs
def test_a_signature_may_be_of_anything_with_a_shape_and_a_dtype(make_client, make_table):
    signature = {"x": np.zeros((2, 3), np.float32), "y": np.float64(0)}
    client = make_client(make_table(signature=signature))

    client.insert({"x": np.ones((2, 3), np.float32), "y": np.float64(1)}, {"table": 1.0})
    with pytest.raises(ValueError):
        client.insert({"x": np.ones((2, 4), np.float32), "y": np.float64(1)}, {"table": 1.0})


# What a table tells about itself.


def test_the_name_is_a_property_that_cannot_be_set(make_table):
    table = make_table("replay")
    assert table.name == "replay"
    with pytest.raises(AttributeError):
        table.name = "other"


def test_info_is_a_table_info_with_every_field(make_table):
    info = make_table().info
    assert isinstance(info, submodule("reverb_types").TableInfo)
    assert [field.name for field in dataclasses.fields(info)] == FIELDS


def test_info_of_a_new_table(make_table):
    info = make_table("replay", max_size=7, max_times_sampled=3).info
    assert info.name == "replay"
    assert info.max_size == 7
    assert info.max_times_sampled == 3
    assert info.signature is None
    assert info.current_size == 0
    assert info.num_episodes == 0
    assert info.num_deleted_episodes == 0
    assert info.num_unique_samples == 0
    assert info.rate_limiter_info.insert_stats.completed == 0
    assert info.rate_limiter_info.sample_stats.completed == 0


def test_info_is_a_snapshot(make_client, make_table):
    table = make_table()
    before = table.info
    make_client(table).insert(1, {"table": 1.0})
    assert before.current_size == 0
    assert table.info.current_size == 1


def test_the_limiter_of_info(make_table):
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)
    info = make_table(rate_limiter=limiter).info.rate_limiter_info
    assert info.samples_per_insert == 2.0
    assert info.min_size_to_sample == 3
    assert info.min_diff == 2.0
    assert info.max_diff == 10.0


def test_the_limiter_of_info_counts_inserts_and_samples(make_client, make_table):
    table = make_table()
    client = make_client(table)
    for value in range(3):
        client.insert(value, {"table": 1.0})
    for _ in range(2):
        sample_info(client, "table")

    info = table.info.rate_limiter_info
    assert info.insert_stats.completed == 3
    assert info.sample_stats.completed == 2


@pytest.mark.parametrize(
    ("selector", "kind", "deterministic"),
    [
        (Fifo, "fifo", True),
        (Lifo, "lifo", True),
        (Uniform, "uniform", False),
        (MinHeap, "heap", True),
        (MaxHeap, "heap", True),
        (lambda: Prioritized(0.8), "prioritized", False),
    ],
)
def test_the_selectors_of_info(make_table, selector, kind, deterministic):
    sampler = make_table(sampler=selector()).info.sampler_options
    assert sampler.WhichOneof("distribution") == kind
    assert sampler.HasField(kind)
    assert sampler.is_deterministic is deterministic

    remover = make_table(remover=selector()).info.remover_options
    assert remover.WhichOneof("distribution") == kind


def test_the_plain_selectors_of_info_are_true_where_they_are_the_one(make_table):
    options = make_table(sampler=Fifo(), remover=Uniform()).info
    assert options.sampler_options.fifo is True
    assert options.sampler_options.lifo is False
    assert options.sampler_options.uniform is False
    assert options.remover_options.uniform is True
    assert options.remover_options.fifo is False


def test_the_heap_of_info_says_which_end(make_table):
    info = make_table(sampler=MinHeap(), remover=MaxHeap()).info
    assert info.sampler_options.heap.min_heap is True
    assert info.remover_options.heap.min_heap is False


def test_the_exponent_of_info(make_table):
    info = make_table(sampler=Prioritized(0.8)).info
    assert info.sampler_options.prioritized.priority_exponent == 0.8


def test_the_worker_time_of_info(make_table):
    time = make_table().info.table_worker_time
    for state in (
        "running_ms",
        "sampling_ms",
        "inserting_ms",
        "sleeping_ms",
        "waiting_for_sampling_ms",
        "waiting_for_inserts_ms",
    ):
        assert getattr(time, state) >= 0


def test_each_insert_is_an_episode(make_client, make_table):
    table = make_table()
    client = make_client(table)
    for value in range(3):
        client.insert(value, {"table": 1.0})
    assert table.info.num_episodes == 3
    assert table.info.num_deleted_episodes == 0


def test_items_of_one_writer_are_of_one_episode(make_client, make_table):
    table = make_table()
    with make_client(table).writer(5) as writer:
        for value in range(5):
            writer.append(value)
        writer.create_item("table", 2, 1.0)
        writer.create_item("table", 5, 1.0)
    assert table.info.current_size == 2
    assert table.info.num_episodes == 1


def test_an_episode_is_deleted_with_the_last_item_of_it(make_client, make_table):
    table = make_table()
    client = make_client(table)
    with client.writer(2) as writer:
        writer.append(1)
        writer.append(2)
        writer.create_item("table", 1, 1.0)
        writer.create_item("table", 2, 1.0)

    client.mutate_priorities("table", deletes=[sample_info(client, "table").key])
    assert (table.info.num_episodes, table.info.num_deleted_episodes) == (1, 0)
    client.mutate_priorities("table", deletes=[sample_info(client, "table").key])
    assert (table.info.num_episodes, table.info.num_deleted_episodes) == (0, 1)


def test_unique_samples_are_the_items_sampled_at_least_once(make_client, make_table):
    table = make_table(max_times_sampled=2)
    client = make_client(table)
    for value in range(3):
        client.insert(value, {"table": 1.0})

    counts = []
    for _ in range(5):
        sample_info(client, "table")
        counts.append(table.info.num_unique_samples)
    assert counts == [1, 1, 2, 2, 3]


def test_repr_names_every_setting(make_table):
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)
    table = make_table("replay", sampler=Prioritized(0.8), remover=MinHeap(), rate_limiter=limiter)
    assert repr(table) == (
        "Table(sampler=PrioritizedSelector(priority_exponent=0.8), "
        "remover=HeapSelector(sign=1), max_size=100, max_times_sampled=0, name=replay, "
        "rate_limiter=RateLimiter(samples_per_insert=2, min_diff_=2, max_diff=10, "
        "min_size_to_sample=3), signature=nullptr)"
    )


# Queues and stacks.


def test_a_queue_is_a_fifo_of_items_sampled_once():
    queue = reverb.Table.queue("queue", 3)
    assert isinstance(queue, reverb.Table)
    info = queue.info
    assert (info.name, info.max_size, info.max_times_sampled) == ("queue", 3, 1)
    assert info.sampler_options.fifo
    assert info.remover_options.fifo
    limiter = info.rate_limiter_info
    assert limiter.samples_per_insert == 1.0
    assert limiter.min_size_to_sample == 1
    assert (limiter.min_diff, limiter.max_diff) == (0.0, 3.0)


def test_a_stack_is_a_lifo_of_items_sampled_once():
    stack = reverb.Table.stack(name="stack", max_size=3, extensions=(), signature=None)
    info = stack.info
    assert (info.name, info.max_size, info.max_times_sampled) == ("stack", 3, 1)
    assert info.sampler_options.lifo
    assert info.remover_options.lifo
    limiter = info.rate_limiter_info
    assert (limiter.min_diff, limiter.max_diff) == (0.0, 3.0)


@pytest.mark.parametrize("make", [reverb.Table.queue, reverb.Table.stack])
def test_queues_and_stacks_check_their_arguments(make):
    with pytest.raises(ValueError, match="name must be nonempty"):
        make("", 3)
    with pytest.raises(ValueError, match=r"max_size \(0\) must be a positive integer"):
        make("a", 0)


@pytest.mark.parametrize("make", [reverb.Table.queue, reverb.Table.stack])
def test_queues_and_stacks_may_have_a_signature(make_client, make):
    client = make_client(make("a", 3, signature=spec([2], np.float32)))
    client.insert(np.zeros(2, np.float32), {"a": 1.0})
    with pytest.raises(ValueError):
        client.insert(np.zeros(3, np.float32), {"a": 1.0})


def test_a_queue_gives_each_item_once_in_order(make_client):
    client = make_client(reverb.Table.queue("queue", 5))
    for value in range(5):
        client.insert(value, {"queue": 1.0})
    assert sample_values(client, "queue", 5) == [0, 1, 2, 3, 4]
    assert client.server_info()["queue"].current_size == 0


def test_a_stack_gives_each_item_once_newest_first(make_client):
    client = make_client(reverb.Table.stack("stack", 5))
    for value in range(5):
        client.insert(value, {"stack": 1.0})
    assert sample_values(client, "stack", 5) == [4, 3, 2, 1, 0]
    assert client.server_info()["stack"].current_size == 0


@pytest.mark.parametrize("make", [reverb.Table.queue, reverb.Table.stack])
def test_a_full_queue_or_stack_blocks_inserts(make_client, start, make):
    table = make("a", 2)
    client = make_client(table)
    client.insert(0, {"a": 1.0})
    client.insert(1, {"a": 1.0})
    assert not table.can_insert(1)
    insert = start(client.insert, 2, {"a": 1.0})
    assert insert.is_blocked()
    assert table.info.current_size == 2

    sample_info(client, "a")
    insert.result()
    assert table.info.current_size == 2


@pytest.mark.parametrize("make", [reverb.Table.queue, reverb.Table.stack])
def test_an_empty_queue_or_stack_blocks_samples(make_client, start, make):
    client = make_client(make("a", 2))
    sample = start(sample_values, client, "a")
    assert sample.is_blocked()
    client.insert(7, {"a": 1.0})
    assert sample.result() == [7]


# What may happen now.


def test_can_sample_asks_the_limiter(make_client, make_table):
    table = make_table(rate_limiter=reverb.rate_limiters.MinSize(2))
    client = make_client(table)
    assert table.can_sample(1) is False
    client.insert(1, {"table": 1.0})
    assert not table.can_sample(1)
    client.insert(2, {"table": 1.0})
    assert table.can_sample(1) is True
    assert table.can_sample(1000)


def test_can_insert_asks_the_limiter(make_client):
    table = reverb.Table.queue("queue", 3)
    client = make_client(table)
    assert table.can_insert(3) is True
    assert table.can_insert(4) is False
    client.insert(1, {"queue": 1.0})
    assert table.can_insert(2)
    assert not table.can_insert(3)


def test_can_sample_counts_what_a_ratio_has_left(make_client, make_table):
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 1, (0.0, 8.0))
    table = make_table(rate_limiter=limiter)
    client = make_client(table)
    client.insert(1, {"table": 1.0})
    client.insert(2, {"table": 1.0})
    assert table.can_sample(4)
    assert not table.can_sample(5)
    assert table.can_insert(2)
    assert not table.can_insert(3)


def test_a_table_without_a_limit_takes_any_number(make_table):
    table = make_table()
    assert table.can_insert(sys.maxsize >> 33)
    assert not table.can_sample(1)


# Eviction: the new item is inserted first, and may itself be the one that goes.


def fill(client, priorities):
    for value, priority in enumerate(priorities):
        client.insert(value, {"table": priority})


@pytest.mark.parametrize(
    ("remover", "left"),
    [
        (Fifo, [3, 4, 5]),
        (Lifo, [0, 1, 2]),
        (MinHeap, [0, 2, 4]),
        (MaxHeap, [1, 3, 5]),
    ],
)
def test_a_full_table_evicts_after_it_has_inserted(make_client, make_table, remover, left):
    table = make_table(remover=remover(), max_size=3)
    client = make_client(table)
    fill(client, [5.0, 1.0, 9.0, 0.5, 10.0, 3.0])
    assert table.info.current_size == 3
    assert drain(client, "table") == left


def test_a_prioritized_remover_evicts_by_priority(make_client, make_table):
    client = make_client(make_table(remover=Prioritized(1.0), max_size=2))
    fill(client, [0.0, 5.0, 0.0, 7.0])
    assert drain(client, "table") == [0, 2]


def test_a_uniform_remover_keeps_the_table_full(make_client, make_table):
    table = make_table(remover=Uniform(), max_size=3)
    client = make_client(table)
    fill(client, [1.0] * 20)
    assert table.info.current_size == 3
    left = drain(client, "table")
    assert left == sorted(set(left))


def test_an_evicted_item_was_still_inserted(make_client, make_table):
    table = make_table(remover=Lifo(), max_size=1)
    fill(make_client(table), [1.0, 1.0, 1.0])
    assert table.info.current_size == 1
    assert table.info.rate_limiter_info.insert_stats.completed == 3


def test_an_evicted_item_ends_its_episode(make_client, make_table):
    table = make_table(remover=Lifo(), max_size=1)
    fill(make_client(table), [1.0, 1.0, 1.0])
    assert (table.info.num_episodes, table.info.num_deleted_episodes) == (1, 2)


def test_a_priority_update_changes_who_is_evicted(make_client, make_table):
    client = make_client(make_table(remover=MinHeap(), max_size=2))
    fill(client, [1.0, 2.0])
    client.mutate_priorities("table", {sample_info(client, "table").key: 3.0})
    client.insert(2, {"table": 2.5})
    assert drain(client, "table") == [0, 2]


def test_an_item_leaves_after_its_last_sample(make_client, make_table):
    table = make_table(max_times_sampled=2)
    client = make_client(table)
    fill(client, [1.0, 1.0])
    sizes = []
    for _ in range(4):
        info = sample_info(client, "table")
        sizes.append((info.times_sampled, info.table_size, table.info.current_size))
    # The size that a sample tells is that before the sampled item left.
    assert sizes == [(1, 2, 2), (2, 2, 1), (1, 1, 1), (2, 1, 0)]


# Replace.


def configured(**settings):
    return reverb.Table(
        **{
            "name": "replay",
            "sampler": Prioritized(0.5),
            "remover": MinHeap(),
            "max_size": 7,
            "max_times_sampled": 3,
            "rate_limiter": reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 4.0),
            "signature": {"a": spec([], np.int64)},
            **settings,
        }
    )


def test_replace_keeps_every_setting():
    table = configured()
    copy = table.replace()
    assert copy is not table
    assert isinstance(copy, reverb.Table)
    assert repr(copy) == repr(table)
    assert dtype_of(copy.info.signature["a"]) == np.int64


def test_replace_changes_what_is_named():
    info = (
        configured()
        .replace(
            name="other",
            sampler=Fifo(),
            remover=Lifo(),
            max_size=2,
            max_times_sampled=0,
            rate_limiter=reverb.rate_limiters.MinSize(9),
            extensions=(),
            signature=spec([2], np.int32),
        )
        .info
    )
    assert (info.name, info.max_size, info.max_times_sampled) == ("other", 2, 0)
    assert info.sampler_options.fifo
    assert info.remover_options.lifo
    assert info.rate_limiter_info.min_size_to_sample == 9
    assert tuple(info.signature.shape) == (2,)


def test_replace_changes_nothing_else():
    info = configured().replace(max_size=5).info
    assert info.max_size == 5
    assert info.name == "replay"
    assert info.max_times_sampled == 3
    assert info.sampler_options.prioritized.priority_exponent == 0.5
    assert info.remover_options.heap.min_heap
    assert info.rate_limiter_info.samples_per_insert == 2.0
    assert (info.rate_limiter_info.min_diff, info.rate_limiter_info.max_diff) == (2.0, 10.0)


def test_replace_checks_its_arguments():
    with pytest.raises(ValueError, match="name must be nonempty"):
        configured().replace(name="")
    with pytest.raises(ValueError, match=r"max_size \(0\) must be a positive integer"):
        configured().replace(max_size=0)


def test_a_replaced_table_is_empty_and_on_its_own(make_client, make_table):
    table = make_table()
    client = make_client(table)
    client.insert(1, {"table": 1.0})

    copy = table.replace(name="copy")
    assert copy.info.current_size == 0
    assert copy.info.rate_limiter_info.insert_stats.completed == 0
    other = make_client(copy)
    other.insert(1, {"copy": 1.0})
    other.insert(1, {"copy": 1.0})
    assert copy.info.current_size == 2
    assert table.info.current_size == 1


@pytest.mark.parametrize("selector", [Fifo, Lifo, MinHeap, MaxHeap, Uniform])
def test_replace_keeps_every_selector(selector):
    table = configured(sampler=selector(), remover=selector())
    assert repr(table.replace()) == repr(table)


# From messages, as Reverb's program of a server makes them.


def test_tables_are_made_of_messages():
    checkpoints, schema = submodule("cc.checkpointing.checkpoint_pb2"), submodule("cc.schema_pb2")
    limits = {"samples_per_insert": 2.0, "min_size_to_sample": 3, "min_diff": 1.0, "max_diff": 9.0}
    heap = schema.KeyDistributionOptions.Heap(min_heap=True)
    config = submodule("server_executable.reverb_config_pb2").ReverbServerConfig(
        port=0,
        tables=[
            checkpoints.PriorityTableCheckpoint(
                table_name="made",
                max_size=5,
                max_times_sampled=4,
                sampler=schema.KeyDistributionOptions(heap=heap),
                remover=schema.KeyDistributionOptions(lifo=True),
                rate_limiter=checkpoints.RateLimiterCheckpoint(**limits),
            )
        ],
    )
    (table,) = submodule("server_executable.server_from_proto").tables_from_proto(config.tables)
    info = table.info
    assert (info.name, info.max_size, info.max_times_sampled) == ("made", 5, 4)
    assert info.sampler_options.heap.min_heap
    assert info.remover_options.WhichOneof("distribution") == "lifo"
    assert {name: getattr(info.rate_limiter_info, name) for name in limits} == limits
