"""Datasets of TensorFlow, and TFClient: `make tensorflow` runs these where TensorFlow is."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pytest
from reverb_under_test import NAME, PATIENCE, TENSORFLOW, reverb

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not TENSORFLOW, reason="no TensorFlow: make tensorflow has it"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tf: Any = importlib.import_module("tensorflow") if TENSORFLOW else None


@pytest.fixture
def client(make_client, make_table):
    return make_client(
        make_table("table", sampler=reverb.selectors.Fifo()),
        make_table("uniform", sampler=reverb.selectors.Uniform()),
        reverb.Table.queue("queue", 100),
        reverb.Table.queue("texts", 100),
    )


def write(client: Any, table: str, number: int) -> None:
    """Insert items of a pair of steps, numbered throughout."""
    with client.trajectory_writer(2) as writer:
        for step in range(number + 1):
            writer.append({"a": np.float32(step), "b": np.full(2, step)})
            if step:
                a, b = writer.history["a"], writer.history["b"]
                writer.create_item(table, float(step), {"a": a[-2:], "b": b[-1]})


def pairs(client: Any, table: str, **settings: Any) -> Any:
    arguments = {"max_in_flight_samples_per_worker": 4, **settings}
    return reverb.TrajectoryDataset(
        server_address=client.server_address,
        table=table,
        dtypes={"b": tf.int64, "a": tf.float32},
        shapes={"b": tf.TensorShape([2]), "a": tf.TensorShape([None])},
        **arguments,
    )


def numbers(dataset: Any) -> list[int]:
    return [int(number) for number in dataset.map(lambda sample: sample.data["b"][0])]


def test_elements_are_samples_of_tensors(client):
    write(client, "queue", 3)
    dataset = pairs(client, "queue", max_samples=3)
    assert isinstance(dataset, tf.data.Dataset)
    assert isinstance(dataset, reverb.TrajectoryDataset)
    assert dataset.element_spec.data["a"] == tf.TensorSpec([None], tf.float32)
    samples = list(dataset)
    assert [sample.data["a"].numpy().tolist() for sample in samples] == [[0, 1], [1, 2], [2, 3]]
    for at, sample in enumerate(samples):
        assert [field.dtype for field in sample.info] == [
            tf.uint64,
            tf.float64,
            tf.int64,
            tf.float64,
            tf.int32,
        ]
        assert float(sample.info.priority) == at + 1
        assert isinstance(sample, reverb.ReplaySample)


COMBINED = {
    "interleave": lambda make: tf.data.Dataset.range(3).interleave(
        lambda _: make(), cycle_length=3, num_parallel_calls=2, deterministic=False
    ),
    "flat_map": lambda make: tf.data.Dataset.range(3).flat_map(lambda _: make()),
    "zip": lambda make: tf.data.Dataset.zip((make(), make(), make())).flat_map(
        lambda *all_of: joined([tf.data.Dataset.from_tensors(sample) for sample in all_of])
    ),
    "sample_from_datasets": lambda make: tf.data.Dataset.sample_from_datasets([make()] * 3),
    "concatenate": lambda make: make().concatenate(make()).concatenate(make()),
    "repeat": lambda make: make().repeat(3),
    "shuffle": lambda make: make().repeat(3).shuffle(5),
    "batch": lambda make: make().repeat(3).batch(2).unbatch(),
    "batch at once": lambda make: make().batch(2).unbatch().repeat(3),
    "prefetch": lambda make: make().repeat().prefetch(tf.data.AUTOTUNE).take(18),
    "options": lambda make: make().repeat(3).with_options(unordered()),
    "function": lambda make: make().repeat(3).map(tf.function(lambda x: x), num_parallel_calls=2),
    "v1": lambda make: tf.compat.v1.data.Dataset.range(3).flat_map(lambda _: make()),
}


def joined(parts: list[Any]) -> Any:
    first, *rest = parts
    for part in rest:
        first = first.concatenate(part)
    return first


def unordered() -> Any:
    options = tf.data.Options()
    options.deterministic = False
    options.autotune.enabled = False
    return options


@pytest.mark.parametrize("name", COMBINED)
@pytest.mark.parametrize("in_flight", [1, 4])
def test_they_combine_like_others(client, name, in_flight):
    write(client, "table", 3)
    one_by_one = {"max_samples": 6, "max_in_flight_samples_per_worker": in_flight}
    dataset = COMBINED[name](lambda: pairs(client, "table", **one_by_one))
    # A table in order yields its first item, until that is removed.
    assert numbers(dataset) == 18 * [1]
    sampled = client.server_info()["table"].rate_limiter_info.sample_stats.completed
    assert sampled == 18 or (name == "prefetch" and sampled > 18)


def test_batches_come_whole(client):
    write(client, "queue", 10)
    dataset = pairs(client, "queue", max_samples=10, max_in_flight_samples_per_worker=1)
    whole = dataset.batch(4, drop_remainder=True)
    assert whole.element_spec.data["b"].shape == (4, 2)
    assert dataset.batch(tf.constant(4, tf.int64)).element_spec.data["b"].shape == (None, 2)
    batches = list(dataset.batch(4).as_numpy_iterator())
    assert [batch.data["b"][:, 0].tolist() for batch in batches] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10],
    ]
    assert batches[2].info.key.shape == (2,)
    assert client.server_info()["queue"].current_size == 0


def test_items_may_differ_in_length(client):
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"a": np.float32(step), "b": np.full(2, step)})
            a, b = writer.history["a"], writer.history["b"]
            writer.create_item("queue", 1.0, {"a": a[:], "b": b[-1]})
            writer.create_item("table", 1.0, {"a": a[:], "b": b[-1]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="different shapes"):
        list(pairs(client, "queue", max_samples=3).take(2).batch(2))
    dataset = pairs(client, "uniform", max_samples=3, rate_limiter_timeout_ms=10)
    assert list(dataset) == []
    dataset = pairs(client, "table", max_samples=2).map(lambda sample: sample.data["a"])
    assert [one.numpy().tolist() for one in dataset.padded_batch(2)] == [[[0], [0]]]


def test_texts_are_strings(client):
    client.insert(["a", np.array(["bc", "d"])], {"texts": 1.0})
    leaf = {"dtypes": (tf.string, tf.string), "shapes": ((), (2,))}
    dataset = reverb.TimestepDataset(
        client.server_address, "texts", **leaf, max_in_flight_samples_per_worker=1
    )
    one, two = next(iter(dataset)).data
    assert (one.dtype, one.numpy(), two.numpy().tolist()) == (tf.string, b"a", [b"bc", b"d"])


def test_steps_of_items(client):
    with client.trajectory_writer(3) as writer:
        for step in range(5):
            writer.append({"a": np.float64(step)})
            for length in {2: [3], 4: [1, 2]}.get(step, []):
                history = writer.history["a"]
                writer.create_item("queue", length, {"a": history[-length:]})
    dataset = reverb.TimestepDataset(
        client.server_address, "queue", {"a": tf.float64}, {"a": ()}, 5, max_samples=3
    )
    steps = [(float(s.data["a"]), float(s.info.priority)) for s in dataset]
    assert steps == [(0, 3), (1, 3), (2, 3), (4, 1), (3, 2), (4, 2)]


def test_addresses_may_be_tensors_of_a_graph(client):
    write(client, "queue", 3)

    @tf.function
    def total(address: Any, table: Any) -> Any:
        dataset = reverb.TrajectoryDataset(
            address, table, {"b": tf.int64, "a": tf.float32}, {"b": [2], "a": [2]}, 4, max_samples=3
        )
        return dataset.reduce(tf.constant(0, tf.int64), lambda sum_, s: sum_ + s.data["b"][0])

    assert int(total(tf.constant(client.server_address), tf.constant("queue"))) == 6


def test_what_is_wrong_is_an_error_of_tensorflow(client):
    write(client, "queue", 3)
    leaf = {"max_in_flight_samples_per_worker": 1, "dtypes": [tf.float32, tf.int32]}
    for shapes, text in (
        ([[2], [2]], r"Tensor has \(dtype, shape\): \(int64, \[2\]\)"),
        ([[3], [2]], r"\(float, \[3\]\)"),
    ):
        dataset = reverb.TrajectoryDataset(client.server_address, "queue", shapes=shapes, **leaf)
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            next(iter(dataset))
    with pytest.raises(tf.errors.OpError, match="Priority table nowhere was not found"):
        next(iter(pairs(client, "nowhere")))


def test_it_waits_for_items_and_for_the_server(make_server, make_table, client):
    waiting = iter(pairs(client, "uniform").batch(3).prefetch(2))
    write(client, "uniform", 3)
    assert next(waiting).data["b"].shape == (3, 2)
    server = make_server(make_table())
    address = f"localhost:{server.port}"
    server.stop()
    dataset = reverb.TrajectoryDataset(address, "table", [tf.float32], [[2]], 4)
    with pytest.raises(tf.errors.OpError, match="was stopped"):
        next(iter(dataset))
    away = iter(
        reverb.TrajectoryDataset("localhost:1", "table", [tf.float32], [[2]], 4).prefetch(1)
    )
    begun = time.monotonic()
    del away
    assert time.monotonic() - begun < PATIENCE


STEP = {"at": None, "last": None}


def windows(length: int, *conditions: Any) -> Any:
    made = reverb.structured.pattern_from_transform(STEP, lambda step: {"x": step["at"][-length:]})
    return reverb.structured.create_config(made, "table", conditions)


def episodes(*lengths: int) -> Any:
    first = 0
    every = []
    for length in lengths:
        last = [at == length - 1 for at in range(length)]
        steps = {"at": np.arange(first, first + length), "last": np.array(last)}
        every.append(tf.data.Dataset.from_tensor_slices(steps))
        first += length
    return every


@pytest.mark.parametrize("configs", [[2], [2, 3]])
def test_patterns_of_steps(configs):
    made = [windows(length) for length in configs]

    def items(steps: Any) -> Any:
        return reverb.PatternDataset(steps, made, True, lambda step: step["last"])

    one, other = episodes(3, 4)
    want = [[0, 1], [1, 2], [0, 1, 2], [3, 4], [4, 5], [3, 4, 5], [5, 6], [4, 5, 6]]
    want = [one for one in want if len(one) in configs]
    dataset = items(one.concatenate(other))
    assert isinstance(dataset, tf.data.Dataset)
    assert dataset.element_spec["x"].shape.as_list() == ([2] if configs == [2] else [None])
    assert [item["x"].tolist() for item in dataset.as_numpy_iterator()] == want
    # Each episode may be a dataset of its own, in a graph.
    nested = tf.data.Dataset.range(2).map(
        lambda at: tf.data.Dataset.zip(
            {name: tf.data.Dataset.range(3 + at).map(part) for name, part in parts_of(at).items()}
        )
    )
    ends = [item["x"].tolist() for item in nested.flat_map(items).as_numpy_iterator()]
    assert ends == want
    with pytest.raises(ValueError, match="Invalid `is_end_of_episode`"):
        reverb.PatternDataset(one, made, True, lambda step: step["at"])


def parts_of(at: Any) -> dict[str, Any]:
    return {"at": lambda step: step + 3 * at, "last": lambda step: step == 2 + at}


def test_a_client_in_functions_and_eager(client):
    calls = reverb.TFClient(client.server_address)
    data = [tf.constant([1, 2, 3], tf.int8), tf.constant("text")]
    tables, priorities = tf.constant(["table", "uniform"]), tf.constant([1.0, 2.0], tf.float64)
    for function in (lambda f: f, tf.function):
        client.reset("table")
        # A function can't return the operation that a graph has for it.
        function(lambda: [calls.insert(data, tables, priorities), None][1])()
        sample = function(lambda: calls.sample("table", {"b": tf.string, "a": tf.int8}))()
        assert sample.data["a"].numpy().tolist() == [1, 2, 3]
        assert sample.data["b"].numpy() == b"text"
        assert (int(sample.info.table_size), float(sample.info.priority)) == (1, 1.0)
        update = function(lambda *change: [calls.update_priorities("table", *change), None][1])
        key = sample.info.key[None]
        update(key, tf.constant([5.0], tf.float64))
        assert float(calls.sample("table", [tf.int8, tf.string]).info.priority) == 5.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="do not match in shape"):
            update(key, tf.constant([], tf.float64))
        with pytest.raises(tf.errors.InvalidArgumentError, match="actual string vs"):
            function(lambda: calls.sample("table", [tf.int8, tf.int8]))()
    with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
        calls.sample("nowhere", [tf.int8])
    with pytest.raises(ValueError, match="tables must be a string tensor of rank 1"):
        calls.insert(data, tf.constant("table"), priorities)


START = f"""
import faulthandler, os, signal, sys, threading, time
faulthandler.dump_traceback_later({PATIENCE * 4}, exit=True)
import {NAME} as reverb
server = reverb.Server([reverb.Table.queue(name, 100) for name in ("one", "two", "three")])
client = server.localhost_client()
for table in ("one", "two", "three"):
    client.insert([1.0], {{table: 1.0}})
assert next(client.sample("one"))[0].data == [1.0] and "tensorflow" not in sys.modules
import tensorflow as tf

def dataset(table, in_flight=4):
    return reverb.TrajectoryDataset(client.server_address, table, [tf.float64], [[1]], in_flight)

def interrupted(wait):
    # Until the wait has surely begun: a signal before it would do as well.
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert time.monotonic() - begun < {PATIENCE}
"""

ENDS = """
for make in (
    lambda: dataset("one"),
    lambda: dataset("one", 1),
    lambda: dataset("one").batch(2),
    lambda: dataset("one").repeat().batch(2).prefetch(2),
    lambda: tf.data.Dataset.range(2).interleave(lambda _: dataset("one"), num_parallel_calls=2),
):
    waiting = iter(make())
    interrupted(lambda: next(waiting))
    del waiting
background = iter(dataset("two").batch(1).prefetch(2))
next(background)
stopped = iter(dataset("three").prefetch(2))
next(stopped)
threading.Timer(0.5, server.stop).start()
try:
    next(stopped)
except tf.errors.OpError as error:
    print("stopped", flush=True)
server = reverb.Server([reverb.Table.queue("one", 100)])
client = server.localhost_client()
in_thread = iter(dataset("one"))
threading.Thread(target=lambda: next(in_thread), daemon=True).start()
in_background = iter(dataset("one").batch(1).prefetch(2))
time.sleep(1.0)
print("end", flush=True)
"""

GRAPH = """
tf = tf.compat.v1
tf.disable_eager_execution()
calls = reverb.TFClient(client.server_address)
for make in (tf.data.make_one_shot_iterator, tf.data.make_initializable_iterator):
    table = tf.constant("one")
    iterator = make(dataset(table).map(lambda sample: sample.data[0] * 2))
    element = iterator.get_next()
    insert = calls.insert([tf.constant(1.0, tf.float64)], tf.constant(["one"]),
                          tf.constant([1.0], tf.float64))
    with tf.Session() as session:
        if make is tf.data.make_initializable_iterator:
            session.run(iterator.initializer)
        assert session.run(insert) is None
        assert session.run(element).tolist() == [2.0]
        interrupted(lambda: session.run(element))
        interrupted(lambda: session.run(calls.sample("three", [tf.float64])) and
                    session.run(calls.sample("three", [tf.float64])))
        client.insert([1.0], {"three": 1.0})
print("end", flush=True)
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [(ENDS, 5 * ["interrupted"] + ["stopped", "end"]), (GRAPH, 4 * ["interrupted"] + ["end"])],
    ids=["eager", "graph"],
)
def test_a_dataset_that_waits_keeps_no_program_from_ending(program, printed):
    """By Ctrl-C, `del`, `stop`, and the end of the program."""
    ran = subprocess.run(
        [sys.executable, "-c", START + program],
        capture_output=True,
        text=True,
        timeout=8 * PATIENCE,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.split() == printed
