"""TrajectoryDataset, TimestepDataset and PatternDataset: samples and steps as streams."""

from __future__ import annotations

import importlib
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from reverb_under_test import TENSORFLOW, UPSTREAM, dtype_of, reverb, spec, submodule

structured = reverb.structured

Pair = namedtuple("Pair", ["x", "y"])

SAMPLED = [reverb.TrajectoryDataset, reverb.TimestepDataset]

INFO_DTYPES = [np.uint64, np.float64, np.int64, np.float64, np.int32]

# What is wrong with the data is an error of TensorFlow where that is.
WRONG_DATA: tuple[type[Exception], ...] = (ValueError, RuntimeError)
if TENSORFLOW:
    tf = importlib.import_module("tensorflow")
    WRONG_DATA = (*WRONG_DATA, tf.errors.OpError)


def read(dataset: Any) -> list[Any]:
    """Give all elements with numpy leaves."""
    if UPSTREAM:
        # TensorFlow's rewriting of the pipeline may never end on a machine of few cores.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_optimization.inject_prefetch = False
        dataset = dataset.with_options(options)
    return list(dataset.as_numpy_iterator())


def described(leaf: Any) -> tuple[Any, Any]:
    return tuple(leaf.shape), dtype_of(leaf)


@pytest.fixture
def client(make_client, make_table):
    return make_client(
        reverb.Table.queue(
            "queue",
            100,
            signature={"b": [spec([], np.int64)], "a": spec([None, 2], np.float32)},
        ),
        reverb.Table.queue("untyped", 10),
        reverb.Table.queue("steps", 100, signature={"a": spec([], np.int64)}),
        make_table(
            "late",
            rate_limiter=reverb.rate_limiters.MinSize(3),
            signature=spec([2], np.int64),
        ),
    )


def write(client: Any, number: int) -> None:
    """Insert so many pairs of steps into the queue."""
    with client.trajectory_writer(2) as writer:
        for step in range(number + 1):
            writer.append({"a": np.full(2, step, np.float32), "b": np.int64(step)})
            if step:
                history = writer.history
                writer.create_item(
                    "queue", float(step), {"a": history["a"][-2:], "b": [history["b"][-1]]}
                )


def write_one(client: Any, value: int) -> None:
    with client.trajectory_writer(1) as writer:
        writer.append([np.full(2, value)])
        writer.create_item("late", 1.0, [writer.history[0][-1]])


def sampled(client: Any, table: str = "queue", kind: Any = None, **settings: Any) -> Any:
    arguments = {"max_in_flight_samples_per_worker": 10, **settings}
    return (kind or reverb.TrajectoryDataset).from_table_signature(
        server_address=client.server_address, table=table, **arguments
    )


@pytest.mark.parametrize("kind", SAMPLED)
class TestConstructors:
    def make(self, kind: Any, client: Any, **settings: Any) -> Any:
        leaf = spec([], np.int64)
        arguments = {
            "server_address": client.server_address,
            "table": "queue",
            "dtypes": leaf.dtype,
            "shapes": leaf.shape,
            "max_in_flight_samples_per_worker": 1,
            **settings,
        }
        return kind(**arguments)

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("max_in_flight_samples_per_worker", 0, "must be a positive integer"),
            ("max_in_flight_samples_per_worker", -1, "must be a positive integer"),
            ("num_workers_per_iterator", 0, "must be a positive integer or -1"),
            ("num_workers_per_iterator", -2, "must be a positive integer or -1"),
            ("max_samples_per_stream", 0, "must be a positive integer or -1"),
            ("max_samples_per_stream", -2, "must be a positive integer or -1"),
            ("rate_limiter_timeout_ms", -2, "must be an integer >= -1"),
            ("max_samples", 0, "must be a positive integer or -1"),
            ("max_samples", -2, "must be a positive integer or -1"),
        ],
    )
    def test_numbers_are_checked(self, client, kind, name, value, text):
        with pytest.raises(ValueError) as raised:
            self.make(kind, client, **{name: value})
        assert str(raised.value) == f"{name} ({value}) {text}"
        signature_arguments = {name: value, "kind": kind}
        with pytest.raises(ValueError) as raised:
            sampled(client, **signature_arguments)
        assert str(raised.value) == f"{name} ({value}) {text}"

    def test_numbers_may_be_left_to_the_dataset(self, client, kind):
        self.make(
            kind,
            client,
            num_workers_per_iterator=-1,
            max_samples_per_stream=-1,
            rate_limiter_timeout_ms=-1,
            max_samples=-1,
        )
        self.make(kind, client, rate_limiter_timeout_ms=0)

    def test_the_first_five_arguments_are_needed(self, client, kind):
        with pytest.raises(TypeError):
            kind(client.server_address, "queue")

    def test_arguments_may_be_positional(self, client, kind):
        leaf = spec([3], np.float32)
        made = kind(client.server_address, "queue", leaf.dtype, leaf.shape, 1, 1, 1, 50, 2)
        assert described(made.element_spec.data) == ((3,), np.float32)

    def test_dtypes_and_shapes_have_one_structure(self, client, kind):
        leaf = spec([], np.int64)
        with pytest.raises(ValueError, match="nested structure"):
            _ = self.make(
                kind, client, dtypes={"a": leaf.dtype}, shapes={"b": leaf.shape}
            ).element_spec
        with pytest.raises(ValueError, match="nested structure"):
            self.make(kind, client, dtypes=[leaf.dtype] * 2, shapes=[leaf.shape])

    def test_the_element_spec_is_a_sample_with_tuples_for_lists(self, client, kind):
        leaf, other = spec([None, 2], np.int64), spec([], np.float32)
        made = self.make(
            kind,
            client,
            dtypes={"a": [leaf.dtype, {"b": other.dtype}]},
            shapes={"a": [leaf.shape, {"b": other.shape}]},
        )
        element = made.element_spec
        assert isinstance(element, reverb.ReplaySample)
        assert isinstance(element.info, reverb.SampleInfo)
        assert [described(field) for field in element.info] == [
            ((), dtype) for dtype in INFO_DTYPES
        ]
        assert isinstance(element.data["a"], tuple)
        assert described(element.data["a"][0]) == ((None, 2), np.int64)
        assert described(element.data["a"][1]["b"]) == ((), np.float32)

    def test_the_signature_of_a_table_can_be_used(self, client, kind):
        element = sampled(client, kind=kind).element_spec
        assert isinstance(element, reverb.ReplaySample)
        assert described(element.data["a"]) == ((None, 2), np.float32)
        assert isinstance(element.data["b"], tuple)
        assert described(element.data["b"][0]) == ((), np.int64)

    def test_an_unknown_table_has_no_signature(self, client, kind):
        with pytest.raises(ValueError) as raised:
            sampled(client, "nowhere", kind)
        assert str(raised.value) == (
            f"Server at {client.server_address} does not contain any table named nowhere. "
            "Found: late, queue, steps, untyped."
        )

    def test_a_table_may_have_no_signature(self, client, kind):
        with pytest.raises(ValueError) as raised:
            sampled(client, "untyped", kind)
        assert str(raised.value) == (
            f"Table untyped at {client.server_address} does not have a signature."
        )

    def test_asking_for_the_signature_can_time_out(self, kind):
        with pytest.raises(reverb.DeadlineExceededError) as raised:
            kind.from_table_signature("localhost:1", "queue", 1, get_signature_timeout_secs=1)
        assert str(raised.value) == "ServerInfo call did not complete within provided timeout of 1s"


class TestTrajectories:
    @pytest.mark.parametrize("length", [None, 1])
    def test_what_a_client_inserts_fits_the_signature_of_its_table(self, make_client, length):
        client = make_client(
            reverb.Table.queue("items", 10, signature={"a": spec([length, 2], np.int64)})
        )
        client.insert({"a": np.array([1, 2])}, {"items": 1.0})
        dataset = sampled(client, "items", max_samples=1)
        assert [sample.data["a"].tolist() for sample in read(dataset)] == [[[1, 2]]]

    def test_samples_are_structured_and_numpy(self, client):
        write(client, 1)
        (sample,) = read(sampled(client, max_samples=1))
        assert isinstance(sample, reverb.ReplaySample)
        assert isinstance(sample.info, reverb.SampleInfo)
        assert [field.dtype for field in sample.info] == INFO_DTYPES
        assert [np.shape(field) for field in sample.info] == [()] * 5
        assert set(sample.data) == {"a", "b"}
        assert isinstance(sample.data["b"], tuple)
        assert (sample.data["a"].dtype, sample.data["a"].tolist()) == (np.float32, [[0, 0], [1, 1]])
        assert (sample.data["b"][0].dtype, sample.data["b"][0]) == (np.int64, 1)

    def test_the_info_is_of_the_item(self, client):
        write(client, 3)
        infos = [sample.info for sample in read(sampled(client, max_samples=3))]
        assert [info.priority for info in infos] == [1.0, 2.0, 3.0]
        assert [info.times_sampled for info in infos] == [1, 1, 1]
        assert [info.probability for info in infos] == [1.0, 1.0, 1.0]
        assert len({int(info.key) for info in infos}) == 3

    def test_a_timeout_of_the_limiter_ends_the_dataset(self, client):
        write(client, 5)
        samples = read(sampled(client, rate_limiter_timeout_ms=100))
        assert [sample.data["b"][0] for sample in samples] == [1, 2, 3, 4, 5]
        assert read(sampled(client, rate_limiter_timeout_ms=50)) == []

    def test_an_empty_table_can_be_asked_without_waiting(self, client):
        assert read(sampled(client, "late", rate_limiter_timeout_ms=0)) == []

    def test_max_samples_takes_no_more_out_of_a_queue(self, client):
        write(client, 4)
        samples = read(sampled(client, max_samples=3))
        assert [sample.data["b"][0] for sample in samples] == [1, 2, 3]
        assert client.server_info()["queue"].current_size == 1

    @pytest.mark.parametrize(
        "settings",
        [
            {"max_in_flight_samples_per_worker": 1},
            {"max_in_flight_samples_per_worker": 50},
            {"num_workers_per_iterator": 1, "max_samples_per_stream": 2},
            {"num_workers_per_iterator": 3, "max_samples_per_stream": 2},
        ],
    )
    def test_the_number_of_samples_is_exact_however_they_are_fetched(self, client, settings):
        for value in range(3):
            write_one(client, value)
        assert len(read(sampled(client, "late", max_samples=7, **settings))) == 7

    def test_a_dataset_waits_for_the_limiter(self, client, start):
        dataset = sampled(client, "late", max_samples=1)
        reading = start(read, dataset)
        assert reading.is_blocked()
        for value in range(3):
            write_one(client, value)
        assert [sample.data.tolist() for sample in reading.result()] == [[0, 0]]

    def test_a_dataset_can_be_read_again(self, client):
        for value in range(3):
            write_one(client, value)
        dataset = sampled(client, "late", max_samples=2)
        assert [len(read(dataset)) for _ in range(2)] == [2, 2]

    def test_iterating_gives_samples(self, client):
        write(client, 1)
        for sample in sampled(client, max_samples=1):
            assert isinstance(sample, reverb.ReplaySample)
            assert np.asarray(sample.data["a"]).tolist() == [[0, 0], [1, 1]]
            assert int(sample.info.times_sampled) == 1

    def test_the_constructor_gives_the_same_samples(self, client):
        write(client, 2)
        a, b = spec([2, None], np.float32), spec([], np.int64)
        dataset = reverb.TrajectoryDataset(
            client.server_address,
            "queue",
            {"a": a.dtype, "b": [b.dtype]},
            {"a": a.shape, "b": [b.shape]},
            10,
            max_samples=2,
        )
        assert [sample.data["a"].tolist() for sample in read(dataset)] == [
            [[0, 0], [1, 1]],
            [[1, 1], [2, 2]],
        ]

    @pytest.mark.parametrize(
        ("shape", "dtype"), [([2, 2], np.float64), ([3, 2], np.float32), ([2], np.float32)]
    )
    def test_data_of_another_type_is_an_error(self, client, shape, dtype):
        write(client, 2)
        a, b = spec(shape, dtype), spec([], np.int64)
        dataset = reverb.TrajectoryDataset(
            client.server_address,
            "queue",
            {"a": a.dtype, "b": b.dtype},
            {"a": a.shape, "b": b.shape},
            1,
            rate_limiter_timeout_ms=5000,
            max_samples=1,
        )
        with pytest.raises(WRONG_DATA):
            read(dataset)

    def test_another_number_of_columns_is_an_error(self, client):
        write(client, 2)
        a = spec([2, 2], np.float32)
        dataset = reverb.TrajectoryDataset(
            client.server_address, "queue", {"a": a.dtype}, {"a": a.shape}, 1, max_samples=1
        )
        with pytest.raises(WRONG_DATA):
            read(dataset)

    def test_an_unknown_table_is_an_error_when_it_is_read(self, client):
        leaf = spec([], np.int64)
        dataset = reverb.TrajectoryDataset(
            client.server_address, "nowhere", leaf.dtype, leaf.shape, 1, max_samples=1
        )
        with pytest.raises(WRONG_DATA):
            read(dataset)


class TestPipelines:
    def test_batches(self, client):
        write(client, 5)
        batches = read(sampled(client, max_samples=5).batch(2))
        assert [batch.data["b"][0].tolist() for batch in batches] == [[1, 2], [3, 4], [5]]
        first, last = batches[0], batches[-1]
        assert isinstance(first, reverb.ReplaySample)
        assert isinstance(first.data["b"], tuple)
        assert first.data["a"].shape == (2, 2, 2)
        assert last.data["a"].shape == (1, 2, 2)
        assert [(field.dtype, field.shape) for field in first.info] == [
            (dtype, (2,)) for dtype in INFO_DTYPES
        ]
        assert first.info.priority.tolist() == [1.0, 2.0]

    def test_batches_without_the_remainder(self, client):
        write(client, 5)
        batches = read(sampled(client, max_samples=5).batch(2, drop_remainder=True))
        assert [batch.data["b"][0].tolist() for batch in batches] == [[1, 2], [3, 4]]

    @pytest.mark.parametrize(("drop", "length"), [(False, None), (True, 3)])
    def test_the_element_spec_of_batches(self, client, drop, length):
        element = sampled(client).batch(3, drop_remainder=drop).element_spec
        assert described(element.data["a"]) == ((length, None, 2), np.float32)
        assert described(element.info.key) == ((length,), np.uint64)

    def test_take_and_skip(self, client):
        write(client, 6)
        samples = read(sampled(client, max_samples=6).skip(1).take(3))
        assert [sample.data["b"][0] for sample in samples] == [2, 3, 4]

    def test_map_gets_a_sample(self, client):
        write(client, 3)
        mapped = sampled(client, max_samples=3).map(lambda sample: sample.data["b"][0] * 10)
        assert read(mapped) == [10, 20, 30]

    def test_map_after_batch(self, client):
        write(client, 4)
        mapped = sampled(client, max_samples=4).batch(2).map(lambda sample: sample.data)
        assert [batch["b"][0].tolist() for batch in read(mapped)] == [[1, 2], [3, 4]]

    def test_prefetch_changes_nothing(self, client):
        write(client, 4)
        samples = read(sampled(client, max_samples=4).prefetch(2))
        assert [sample.data["b"][0] for sample in samples] == [1, 2, 3, 4]


class TestTimesteps:
    def write(self, client: Any, *lengths: int) -> None:
        # A table of steps cannot compare whole trajectories with its signature.
        with client.trajectory_writer(10, validate_items=False) as writer:
            for step in range(10):
                writer.append({"a": step})
            for length in lengths:
                writer.create_item("steps", float(length), {"a": writer.history["a"][-length:]})

    def test_steps_of_items_come_one_after_the_other(self, client):
        self.write(client, 3, 1, 2)
        dataset = sampled(client, "steps", reverb.TimestepDataset, rate_limiter_timeout_ms=100)
        steps = read(dataset)
        assert [step.data["a"] for step in steps] == [7, 8, 9, 9, 8, 9]
        assert [step.info.priority for step in steps] == [3, 3, 3, 1, 2, 2]
        keys = [int(step.info.key) for step in steps]
        assert len(set(keys)) == 3
        assert keys[0] == keys[1] == keys[2]
        assert [field.dtype for field in steps[0].info] == INFO_DTYPES

    def test_steps_can_be_batched(self, client):
        self.write(client, 2, 2)
        dataset = sampled(client, "steps", reverb.TimestepDataset, max_samples=2)
        assert [batch.data["a"].tolist() for batch in read(dataset.batch(2))] == [[8, 9], [8, 9]]

    def test_max_samples_counts_items(self, client):
        self.write(client, 3, 2)
        steps = read(sampled(client, "steps", reverb.TimestepDataset, max_samples=1))
        assert [step.data["a"] for step in steps] == [7, 8, 9]
        assert client.server_info()["steps"].current_size == 1

    def test_steps_of_another_type_are_an_error(self, client):
        self.write(client, 2)
        leaf = spec([], np.float32)
        dataset = reverb.TimestepDataset(
            client.server_address, "steps", {"a": leaf.dtype}, {"a": leaf.shape}, 1, max_samples=1
        )
        with pytest.raises(WRONG_DATA):
            read(dataset)


def numbered(*lengths: int) -> Any:
    """Give steps that are numbered throughout, of episodes of such lengths."""
    last = [at == length - 1 for length in lengths for at in range(length)]
    if UPSTREAM:
        return tf.data.Dataset.from_tensor_slices(
            {"at": np.arange(len(last)), "last": np.array(last)}
        )
    return [{"at": np.int64(at), "last": np.bool_(end)} for at, end in enumerate(last)]


STEP = {"at": None, "last": None}


def pattern(transform: Any, *conditions: Any, table: str = "table") -> Any:
    return structured.create_config(
        structured.pattern_from_transform(STEP, transform), table, conditions
    )


def patterns(*configs: Any, lengths: Any = (3, 3), respect: bool = True, end: Any = None) -> Any:
    return reverb.PatternDataset(
        input_dataset=numbered(*lengths),
        configs=list(configs),
        respect_episode_boundaries=respect,
        is_end_of_episode=end or (lambda step: step["last"]),
    )


def pairs(step: Any) -> Any:
    return {"x": step["at"][-2:]}


def windows(dataset: Any) -> list[Any]:
    return [element["x"].tolist() for element in read(dataset)]


class TestPatterns:
    def test_trajectories_stay_within_episodes(self):
        assert windows(patterns(pattern(pairs))) == [[0, 1], [1, 2], [3, 4], [4, 5]]

    def test_trajectories_may_cross_episodes(self):
        assert windows(patterns(pattern(pairs), respect=False)) == [
            [0, 1],
            [1, 2],
            [2, 3],
            [3, 4],
            [4, 5],
        ]

    def test_elements_are_nested_as_the_pattern(self):
        dataset = patterns(
            pattern(lambda step: {"x": step["at"][-1], "y": (step["at"][-3:-1], step["last"][-1])})
        )
        elements = read(dataset)
        assert [element["x"] for element in elements] == [2, 5]
        assert [element["y"][0].tolist() for element in elements] == [[0, 1], [3, 4]]
        assert [bool(element["y"][1]) for element in elements] == [True, True]
        assert elements[0]["y"][0].dtype == np.int64
        assert elements[0]["y"][1].dtype == np.bool_

    def test_a_single_leaf_is_a_trajectory(self):
        dataset = patterns(pattern(lambda step: step["at"][-3:]))
        assert [element.tolist() for element in read(dataset)] == [[0, 1, 2], [3, 4, 5]]

    def test_the_element_spec_is_the_inferred_signature(self):
        element = patterns(
            pattern(lambda step: Pair(step["at"][-2:], step["last"][-1]))
        ).element_spec
        assert element._fields == ("x", "y")
        assert described(element.x) == ((2,), np.int64)
        assert described(element.y) == ((), np.bool_)

    def test_several_configs_are_applied_in_their_order(self):
        dataset = patterns(pattern(pairs), pattern(lambda step: {"x": step["at"][-3:]}))
        assert described(dataset.element_spec["x"]) == ((None,), np.int64)
        assert windows(dataset) == [[0, 1], [1, 2], [0, 1, 2], [3, 4], [4, 5], [3, 4, 5]]

    def test_a_stride_that_divides_evenly(self):
        dataset = patterns(pattern(lambda step: {"x": step["at"][-4::2]}), lengths=(6,))
        assert windows(dataset) == [[0, 2], [1, 3], [2, 4]]

    @pytest.mark.upstream_differs
    def test_a_stride_that_leaves_a_remainder(self):
        dataset = patterns(pattern(lambda step: {"x": step["at"][-3::2]}), lengths=(4,))
        assert described(dataset.element_spec["x"]) == ((2,), np.int64)
        assert windows(dataset) == [[0, 2], [1, 3]]

    @pytest.mark.parametrize("respect", [True, False])
    def test_conditions_on_the_end_of_an_episode(self, respect):
        chosen = pattern(pairs, structured.Condition.is_end_episode())
        assert windows(patterns(chosen, respect=respect)) == [[1, 2], [4, 5]]

    def test_an_episode_that_does_not_end_has_no_end(self):
        chosen = pattern(pairs, structured.Condition.is_end_episode())
        assert windows(patterns(chosen, end=lambda step: step["at"] == 2)) == [[1, 2]]

    @pytest.mark.parametrize("respect", [True, False])
    def test_conditions_on_the_index(self, respect):
        chosen = pattern(pairs, structured.Condition.step_index() == 1)
        assert windows(patterns(chosen, respect=respect)) == [[0, 1], [3, 4]]

    def test_conditions_on_the_steps_since(self):
        chosen = pattern(pairs, structured.Condition.steps_since_applied() >= 2)
        assert windows(patterns(chosen, lengths=(5, 4))) == [[0, 1], [2, 3], [5, 6], [7, 8]]

    def test_conditions_on_data(self):
        chosen = pattern(pairs, structured.Condition.data(STEP)["last"] == 1)
        assert windows(patterns(chosen)) == [[1, 2], [4, 5]]

    def test_the_end_may_be_a_constant(self):
        assert windows(patterns(pattern(pairs), end=lambda _: False))[2] == [2, 3]
        assert windows(patterns(pattern(pairs), end=lambda _: True)) == []

    def test_the_end_is_yes_or_no(self):
        with pytest.raises(ValueError, match="Invalid `is_end_of_episode`"):
            read(patterns(pattern(pairs), end=lambda step: step["at"]))

    def test_there_is_at_least_one_config(self):
        with pytest.raises(ValueError, match=r"At least one config must be provided\."):
            patterns()

    def test_configs_have_one_table(self):
        with pytest.raises(ValueError, match="All configs must target the same table"):
            patterns(pattern(pairs), pattern(pairs, table="other"))

    def test_configs_have_one_structure(self):
        with pytest.raises(ValueError, match="exactly the same pattern_structure"):
            patterns(pattern(pairs), pattern(lambda step: {"y": step["at"][-2:]}))

    @pytest.mark.upstream_differs
    def test_a_config_that_makes_no_sense_is_refused(self):
        """Upstream ends the process."""
        with pytest.raises(ValueError, match="must be < 0"):
            read(patterns(pattern(lambda step: {"x": step["at"][1:]})))

    def test_it_can_be_read_again(self):
        dataset = patterns(pattern(pairs))
        assert windows(dataset) == windows(dataset)

    def test_pipelines(self):
        batches = read(patterns(pattern(pairs)).batch(3))
        assert [batch["x"].tolist() for batch in batches] == [[[0, 1], [1, 2], [3, 4]], [[4, 5]]]
        assert windows(patterns(pattern(pairs)).skip(1).take(2)) == [[1, 2], [3, 4]]
        assert read(patterns(pattern(pairs)).map(lambda element: element["x"][0])) == [0, 1, 3, 4]

    def test_with_info_gives_samples_of_nothing(self):
        dataset = submodule("pattern_dataset").pattern_dataset_with_info(
            input_dataset=numbered(3),
            configs=[pattern(pairs)],
            respect_episode_boundaries=True,
            is_end_of_episode=lambda step: step["last"],
        )
        samples = read(dataset)
        assert [sample.data["x"].tolist() for sample in samples] == [[0, 1], [1, 2]]
        for sample in samples:
            assert isinstance(sample, reverb.ReplaySample)
            assert isinstance(sample.info, reverb.SampleInfo)
            assert tuple(sample.info) == (0, 0.0, 0, 0.0, 0)
        assert described(dataset.element_spec.data["x"]) == ((2,), np.int64)


@pytest.mark.upstream_differs
class TestWithoutTensorFlow:
    """What upstream leaves to tf.data."""

    def test_the_steps_may_come_from_any_iterable(self):
        class Steps:
            element_spec = {  # noqa: RUF012 - read only
                "at": spec([], np.int64),
                "last": spec([], np.bool_),
            }

            def __iter__(self):
                for at in range(4):
                    yield {"at": np.int64(at), "last": np.bool_(at == 1)}

        dataset = reverb.PatternDataset(Steps(), [pattern(pairs)], True, lambda step: step["last"])
        assert windows(dataset) == [[0, 1], [2, 3]]

    @pytest.mark.skipif(TENSORFLOW, reason="there is TensorFlow")
    def test_leaves_are_numpy_without_asking(self, client):
        write(client, 1)
        (sample,) = sampled(client, max_samples=1)
        assert isinstance(sample.data["a"], np.ndarray)
