"""Checkpoints: where they go, which one is loaded, and what survives."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from reverb_under_test import (
    UPSTREAM,
    drain,
    reverb,
    sample_info,
    sample_values,
    spec,
    submodule,
)

checkpointers = reverb.checkpointers


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "checkpoints")


@pytest.fixture
def serve(make_server, root):
    """Start a server of the given tables in place of the one before it, and give a client."""
    servers = []

    def start(*tables, **settings):
        for server in servers:
            server.stop()
        checkpointer = checkpointers.DefaultCheckpointer(root, **settings)
        servers.append(make_server(*tables, checkpointer=checkpointer))
        return servers[-1].localhost_client()

    return start


def insert(client, *values, **tables):
    for value in values:
        client.insert(value, {name: float(priority) for name, priority in tables.items()})


# Checkpointers.


def test_a_checkpointer_tells_its_arguments(root):
    checkpointer = checkpointers.DefaultCheckpointer(root)
    assert isinstance(checkpointer, checkpointers.CheckpointerBase)
    assert checkpointer.path == root
    assert checkpointer.group == ""
    assert checkpointer.fallback_checkpoint_path is None

    checkpointer = checkpointers.DefaultCheckpointer(root, "group", "other")
    assert (checkpointer.group, checkpointer.fallback_checkpoint_path) == ("group", "other")
    checkpointer = checkpointers.DefaultCheckpointer(
        path=root, group="group", fallback_checkpoint_path="other"
    )
    assert (checkpointer.group, checkpointer.fallback_checkpoint_path) == ("group", "other")


def test_a_checkpointer_needs_a_path():
    with pytest.raises(TypeError):
        checkpointers.DefaultCheckpointer()


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError):
        checkpointers.CheckpointerBase()


def test_a_temporary_checkpointer_has_a_folder_of_its_own():
    first, second = checkpointers.TempDirCheckpointer(), checkpointers.TempDirCheckpointer()
    assert isinstance(first, checkpointers.DefaultCheckpointer)
    assert pathlib.Path(first.path).is_dir()
    assert first.path != second.path
    pathlib.Path(first.path).rmdir()
    pathlib.Path(second.path).rmdir()


@pytest.mark.skipif(UPSTREAM, reason="upstream leaves them all")
def test_a_temporary_folder_without_checkpoints_goes_with_the_process(tmp_path):
    script = """
import pathlib
import echoic.reverb as reverb
for some in 0, 1:
    made = reverb.checkpointers.TempDirCheckpointer()
    table = reverb.Table("t", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 9,
                         reverb.rate_limiters.MinSize(1))
    server = reverb.Server([table], checkpointer=made)
    assert pathlib.Path(made.path).is_dir()
    if some:
        print(server.localhost_client().checkpoint())
    server.stop()
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    written = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    path = pathlib.Path(written.stdout.strip())
    assert path.is_dir()
    assert list(tmp_path.iterdir()) == [path.parent]


@pytest.mark.parametrize("arguments", [{}, {"group": "some"}])
def test_the_default_checkpointer_is_temporary(arguments):
    checkpointer = checkpointers.default_checkpointer(**arguments)
    assert isinstance(checkpointer, checkpointers.TempDirCheckpointer)
    assert checkpointer.group == ""
    pathlib.Path(checkpointer.path).rmdir()


def test_the_module_is_where_upstream_has_it():
    assert checkpointers is submodule("platform.default.checkpointers")
    library = submodule("platform.checkpointers_lib")
    assert library.DefaultCheckpointer is checkpointers.DefaultCheckpointer


# Where they go.


def test_a_checkpoint_is_a_folder_in_the_root(serve, make_table, root):
    client = serve(make_table())
    insert(client, 1, table=1)
    path = client.checkpoint()
    assert isinstance(path, str)
    assert pathlib.Path(path).is_absolute()
    assert pathlib.Path(path).is_dir()
    assert pathlib.Path(path).parent == pathlib.Path(root)


def test_each_checkpoint_has_a_folder_of_its_own(serve, make_table):
    client = serve(make_table())
    assert len({client.checkpoint() for _ in range(3)}) == 3


def test_only_the_newest_checkpoint_is_kept(serve, make_table):
    client = serve(make_table())
    paths = [client.checkpoint() for _ in range(3)]
    assert [pathlib.Path(path).exists() for path in paths] == [False, False, True]


def test_a_server_without_a_checkpointer_can_be_checkpointed_too(make_client, make_table):
    client = make_client(make_table())
    insert(client, 1, table=1)
    path = pathlib.Path(client.checkpoint())
    assert path.is_absolute()
    assert path.is_dir()


def test_a_group_is_not_supported(serve, make_table):
    client = serve(make_table(), group="some")
    with pytest.raises(ValueError, match="Setting non-empty group is not supported"):
        client.checkpoint()
    insert(client, 1, table=1)
    assert sample_values(client, "table") == [1]


@pytest.mark.upstream_differs
def test_foreign_files_in_the_root_are_left_alone(serve, make_table, root):
    client = serve(make_table())
    foreign = [pathlib.Path(root) / name for name in ("0", "notes.txt", "zzz")]
    client.checkpoint()
    foreign[0].mkdir()
    (foreign[0] / "inner").write_text("kept")
    for path in foreign[1:]:
        path.write_text("kept")

    insert(client, 1, table=1)
    for _ in range(3):
        client.checkpoint()
    assert all(path.exists() for path in foreign)
    assert (foreign[0] / "inner").read_text() == "kept"
    client = serve(make_table())
    assert sample_values(client, "table") == [1]


# Which one is loaded.


def test_without_a_checkpoint_a_server_starts_empty(serve, make_table):
    assert serve(make_table()).server_info()["table"].current_size == 0


def test_a_new_server_has_what_the_old_one_had(serve, make_table):
    client = serve(make_table())
    insert(client, 0, 1, 2, table=1)
    client.checkpoint()
    client = serve(make_table())
    assert drain(client, "table") == [0, 1, 2]


def test_what_came_after_the_checkpoint_is_lost(serve, make_table):
    client = serve(make_table())
    insert(client, 0, table=1)
    client.checkpoint()
    insert(client, 1, table=1)
    assert drain(serve(make_table()), "table") == [0]


def test_the_newest_checkpoint_is_loaded(serve, make_table):
    client = serve(make_table())
    for value in range(3):
        insert(client, value, table=1)
        client.checkpoint()
    assert drain(serve(make_table()), "table") == [0, 1, 2]


def test_checkpoints_go_on_over_restarts(serve, make_table):
    for value in range(4):
        client = serve(make_table())
        insert(client, value, table=1)
        client.checkpoint()
    assert drain(serve(make_table()), "table") == [0, 1, 2, 3]


def test_what_is_no_checkpoint_is_not_loaded(serve, make_table, root):
    client = serve(make_table())
    insert(client, 1, table=1)
    client.checkpoint()
    (pathlib.Path(root) / "zzz").mkdir()
    assert drain(serve(make_table()), "table") == [1]


def test_a_root_without_a_checkpoint_falls_back(serve, make_server, make_table, tmp_path):
    client = serve(make_table())
    insert(client, 1, 2, table=1)
    path = client.checkpoint()

    checkpointer = checkpointers.DefaultCheckpointer(
        str(tmp_path / "elsewhere"), fallback_checkpoint_path=path
    )
    client = make_server(make_table(), checkpointer=checkpointer).localhost_client()
    assert client.server_info()["table"].current_size == 2
    insert(client, 3, table=1)
    assert pathlib.Path(client.checkpoint()).parent == tmp_path / "elsewhere"
    assert pathlib.Path(path).is_dir()


def test_a_root_with_a_checkpoint_does_not_fall_back(serve, make_server, make_table, tmp_path):
    client = serve(make_table())
    insert(client, 1, 2, table=1)
    path = client.checkpoint()

    elsewhere = checkpointers.DefaultCheckpointer(
        str(tmp_path / "elsewhere"), fallback_checkpoint_path=path
    )
    server = make_server(make_table(), checkpointer=elsewhere)
    client = server.localhost_client()
    insert(client, 3, table=1)
    client.checkpoint()
    server.stop()
    client = make_server(make_table(), checkpointer=elsewhere).localhost_client()
    assert drain(client, "table") == [1, 2, 3]


def test_a_fallback_that_is_not_there_is_no_error(serve, make_table, tmp_path):
    client = serve(make_table(), fallback_checkpoint_path=str(tmp_path / "nowhere"))
    assert client.server_info()["table"].current_size == 0


# Which tables.


def test_several_tables(serve, make_table):
    def tables():
        return [make_table("a"), make_table("b"), reverb.Table.queue("c", 5)]

    client = serve(*tables())
    insert(client, 0, 1, a=1, b=2)
    insert(client, 5, c=1)
    client.checkpoint()
    client = serve(*reversed(tables()))
    assert sample_info(client, "a").priority == 1.0
    assert sample_info(client, "b").priority == 2.0
    assert drain(client, "a") == [0, 1]
    # The tables share the data, but not the life of their items.
    assert drain(client, "b") == [0, 1]
    assert sample_values(client, "c") == [5]


def test_a_table_of_the_checkpoint_that_the_server_lacks(serve, make_table):
    client = serve(make_table("a"), make_table("b"))
    client.checkpoint()
    message = "Trying to load table 'b' but table was not found in provided list of tables"
    with pytest.raises(ValueError, match=message):
        serve(make_table("a"))


def test_a_table_that_the_checkpoint_lacks_starts_empty(serve, make_table):
    client = serve(make_table("a"))
    insert(client, 1, a=1)
    client.checkpoint()
    client = serve(make_table("a"), make_table("b"))
    infos = client.server_info()
    assert (infos["a"].current_size, infos["b"].current_size) == (1, 0)
    insert(client, 2, b=1)
    assert sample_values(client, "b") == [2]


@pytest.mark.upstream_differs
def test_a_table_of_other_settings_than_the_checkpoint_is_refused(serve, make_table):
    client = serve(make_table(sampler=reverb.selectors.MaxHeap(), max_size=7))
    insert(client, 1, table=1)
    client.checkpoint()
    with pytest.raises(ValueError, match="its sampler is fifo, the checkpoint's was max_heap"):
        serve(make_table(max_size=7))
    assert sample_values(
        serve(make_table(sampler=reverb.selectors.MaxHeap(), max_size=7)), "table"
    ) == [1]


# What survives.


def restart(serve, make_table, values, **settings):
    """Fill a table with `values`, each of its own priority, and load it in another server."""
    client = serve(make_table(**settings))
    for value in values:
        insert(client, value, table=value)
    client.checkpoint()
    return serve(make_table(**settings))


@pytest.mark.parametrize(
    ("selector", "order"),
    [
        (reverb.selectors.Fifo, [1, 3, 0, 2]),
        (reverb.selectors.Lifo, [2, 0, 3, 1]),
        (reverb.selectors.MinHeap, [0, 1, 2, 3]),
        (reverb.selectors.MaxHeap, [3, 2, 1, 0]),
    ],
)
def test_the_order_of_the_sampler_survives(serve, make_table, selector, order):
    client = restart(serve, make_table, [1, 3, 0, 2], sampler=selector())
    assert drain(client, "table") == order


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        (reverb.selectors.Fifo, [0, 2, 9]),
        (reverb.selectors.Lifo, [1, 0, 2]),
        (reverb.selectors.MinHeap, [1, 2, 9]),
        (reverb.selectors.MaxHeap, [1, 0, 2]),
    ],
)
def test_the_order_of_the_remover_survives(serve, make_table, selector, left):
    client = restart(serve, make_table, [1, 0, 2], remover=selector(), max_size=3)
    insert(client, 9, table=9)
    assert drain(client, "table") == left


def test_the_probabilities_of_a_prioritized_table_survive(serve, make_table):
    sampler = reverb.selectors.Prioritized(2.0)
    client = restart(serve, make_table, [1, 2, 3], sampler=sampler)
    for (step,) in client.sample("table", 50):
        value = int(step.data[0])
        assert step.info.priority == value
        assert step.info.probability == pytest.approx(value**2 / 14)


def test_keys_and_updated_priorities_survive(serve, make_table):
    client = serve(make_table(sampler=reverb.selectors.MaxHeap()))
    insert(client, 0, 1, table=1)
    key = sample_info(client, "table").key
    client.mutate_priorities("table", {key: 7.0})
    client.checkpoint()

    client = serve(make_table(sampler=reverb.selectors.MaxHeap()))
    info = sample_info(client, "table")
    assert (info.key, info.priority) == (key, 7.0)
    client.mutate_priorities("table", {key: 0.5})
    assert sample_values(client, "table") == [1]
    client.mutate_priorities("table", deletes=[key])
    assert drain(client, "table") == [1]


def test_new_keys_do_not_repeat_loaded_ones(serve, make_table):
    client = restart(serve, make_table, range(10))
    insert(client, *range(10), table=1)
    keys = set()
    for _ in range(20):
        info = sample_info(client, "table")
        keys.add(info.key)
        client.mutate_priorities("table", deletes=[info.key])
    assert len(keys) == 20


def test_the_count_of_samples_survives(serve, make_table):
    client = serve(make_table(max_times_sampled=3))
    insert(client, 1, table=1)
    sample_info(client, "table")
    client.checkpoint()
    client = serve(make_table(max_times_sampled=3))
    assert [sample_info(client, "table").times_sampled for _ in range(2)] == [2, 3]
    assert client.server_info()["table"].current_size == 0


def test_the_counts_of_info_survive(serve, make_table):
    client = serve(make_table(max_size=3))
    insert(client, 0, 1, 2, 3, 4, table=1)
    for _ in range(2):
        sample_info(client, "table")
    client.checkpoint()
    info = serve(make_table(max_size=3)).server_info()["table"]
    assert info.current_size == 3
    assert info.num_unique_samples == 1
    assert info.rate_limiter_info.insert_stats.completed == 5
    assert info.rate_limiter_info.sample_stats.completed == 2


def test_the_counts_of_episodes_survive(serve, make_table):
    client = serve(make_table(max_size=3))
    insert(client, 0, 1, table=1)
    with client.writer(2) as writer:
        for step in range(2):
            writer.append(step)
            writer.create_item("table", step + 1, 1.0)
    client.checkpoint()
    client = serve(make_table(max_size=3))
    info = client.server_info()["table"]
    assert (info.num_episodes, info.num_deleted_episodes) == (2, 1)
    insert(client, 0, 1, table=1)
    info = client.server_info()["table"]
    assert (info.num_episodes, info.num_deleted_episodes) == (3, 2)


def test_a_full_queue_stays_full(serve, start):
    client = serve(reverb.Table.queue("queue", 3))
    insert(client, 0, 1, 2, queue=1)
    assert sample_values(client, "queue") == [0]
    insert(client, 3, queue=1)
    client.checkpoint()

    client = serve(reverb.Table.queue("queue", 3))
    waiting = start(client.insert, 4, {"queue": 1.0})
    assert waiting.is_blocked()
    assert sample_values(client, "queue", 3) == [1, 2, 3]
    waiting.result()
    assert sample_values(client, "queue") == [4]


def test_the_counts_of_a_ratio_survive(serve, make_table, start):
    def table():
        limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 1, (0.0, 20.0))
        return make_table(rate_limiter=limiter)

    client = serve(table())
    insert(client, 0, 1, table=1)
    for _ in range(3):
        sample_info(client, "table")
    client.checkpoint()

    client = serve(table())
    sample_info(client, "table")
    waiting = start(sample_info, client, "table")
    assert waiting.is_blocked()
    insert(client, 2, table=1)
    waiting.result()


def test_a_minimum_size_is_met_by_loaded_items(serve, make_table, start):
    def table():
        return make_table(rate_limiter=reverb.rate_limiters.MinSize(3))

    client = serve(table())
    insert(client, 0, 1, table=1)
    client.checkpoint()
    client = serve(table())
    waiting = start(sample_info, client, "table")
    assert waiting.is_blocked()
    insert(client, 2, table=1)
    assert waiting.result().table_size == 3


def test_data_of_every_kind_survives(serve, make_table):
    data = {
        "bool": np.array([True, False]),
        "bytes": b"a\0b",
        "complex": np.complex64(1 + 2j),
        "empty": np.zeros((0, 3)),
        "float16": np.float16(1.5),
        "image": np.arange(48, dtype=np.uint8).reshape(4, 4, 3),
        "int": -(2**62),
        "text": np.array(["a", "bc"]),
    }
    client = serve(make_table())
    client.insert(data, {"table": 1.0})
    client.checkpoint()
    client = serve(make_table())
    (step,) = next(client.sample("table"))
    for (name, value), leaf in zip(sorted(data.items()), step.data, strict=True):
        if name == "bytes":
            assert leaf.item() == b"a\0b"
        elif name == "text":
            assert list(leaf) == [b"a", b"bc"]
        else:
            assert leaf.dtype == np.asarray(value).dtype
            assert leaf.shape == np.shape(value)
            np.testing.assert_array_equal(leaf, value)


@pytest.mark.parametrize("delta", [False, True])
def test_overlapping_sequences_survive(serve, make_table, delta):
    client = serve(make_table("a"), make_table("b"))
    with client.writer(4, delta_encoded=delta, chunk_length=3) as writer:
        for step in range(10):
            writer.append(step)
            if step >= 3:
                writer.create_item("a", 4, 1.0)
            if step % 2:
                writer.create_item("b", 2, 1.0)
    client.checkpoint()

    client = serve(make_table("a"), make_table("b"))
    for last in range(3, 10):
        steps = next(client.sample("a"))
        assert [int(step.data[0]) for step in steps] == list(range(last - 3, last + 1))
        client.mutate_priorities("a", deletes=[steps[0].info.key])
    for last in range(1, 10, 2):
        steps = next(client.sample("b"))
        assert [int(step.data[0]) for step in steps] == [last - 1, last]
        client.mutate_priorities("b", deletes=[steps[0].info.key])


def test_columns_of_a_trajectory_survive(serve, make_table):
    client = serve(make_table())
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"x": step, "y": float(step)})
        history = writer.history
        writer.create_item("table", 1.0, {"x": history["x"][:], "y": history["y"][-1]})
    client.checkpoint()
    client = serve(make_table())
    x, y = next(client.sample("table", emit_timesteps=False)).data
    np.testing.assert_array_equal(x, [0, 1, 2])
    assert y.shape == ()
    assert y == 2.0


def test_a_loaded_signature_still_holds(serve, make_table):
    def table():
        return make_table(signature={"x": spec([2], np.float32)})

    client = serve(table())
    client.insert({"x": np.ones(2, np.float32)}, {"table": 1.0})
    client.checkpoint()
    client = serve(table())
    (step,) = next(client.sample("table", unpack_as_table_signature=True))
    np.testing.assert_array_equal(step.data["x"], [1, 1])
    with pytest.raises(ValueError):
        client.insert({"x": np.ones(3, np.float32)}, {"table": 1.0})


def test_a_checkpoint_does_not_wait_for_blocked_calls(serve, start):
    client = serve(reverb.Table.queue("full", 1), reverb.Table.queue("empty", 1))
    insert(client, 0, full=1)
    inserts = start(client.insert, 1, {"full": 1.0})
    samples = start(sample_values, client, "empty")
    assert inserts.is_blocked()
    assert samples.is_blocked()
    client.checkpoint()
    insert(client, 5, empty=1)
    assert samples.result() == [5]
    assert sample_values(client, "full") == [0]
    inserts.result()

    client = serve(reverb.Table.queue("full", 1), reverb.Table.queue("empty", 1))
    assert sample_values(client, "full") == [0]
    assert client.server_info()["empty"].current_size == 0


def test_a_server_works_on_after_a_checkpoint(serve, make_table):
    client = serve(make_table())
    insert(client, 0, table=1)
    client.checkpoint()
    insert(client, 1, table=1)
    assert drain(client, "table") == [0, 1]
