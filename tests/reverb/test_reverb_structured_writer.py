"""StructuredWriter: patterns, configurations, and the items that come of the steps."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from polling import until
from reverb_under_test import UPSTREAM, dtype_of, reverb, spec, submodule

structured = reverb.structured

Pair = namedtuple("Pair", ["x", "y"])

STEP = {"a": None, "b": None}


if UPSTREAM:
    # Leaves TensorFlow out of the collections after each test, which would take most of the time.
    gc.freeze()


@pytest.fixture
def client(make_client, make_table):
    yield make_client(
        reverb.Table.queue("table", 1000),
        reverb.Table.queue("other", 1000),
        make_table("narrow", rate_limiter=reverb.rate_limiters.Queue(2), max_times_sampled=1),
    )
    if UPSTREAM:
        # Its writers flush when they are collected, and wait for ever if the server is gone then.
        gc.collect()


def config(transform: Any, table: str = "table", conditions: Any = (), priority: Any = None) -> Any:
    pattern = structured.pattern_from_transform(STEP, transform)
    return structured.create_config(pattern, table, conditions, priority)


def samples(client: Any, table: str = "table") -> list[Any]:
    """Take all items out of a queue."""
    number = client.server_info()[table].current_size
    if not number:
        return []
    return list(client.sample(table, num_samples=number, emit_timesteps=False))


def items(client: Any, table: str = "table") -> list[Any]:
    return [[leaf.tolist() for leaf in sample.data] for sample in samples(client, table)]


def write(writer: Any, number: int, first: int = 0) -> None:
    for step in range(first, first + number):
        writer.append({"a": step, "b": step * 10})


class TestPatterns:
    def test_a_reference_step_is_nested_as_the_step(self):
        step = structured.create_reference_step({"b": [None, (None,)], "a": Pair(None, 1)})
        assert type(step["a"]) is Pair
        assert type(step["b"]) is list
        nodes = [step["a"].x[-1], step["a"].y[-1], step["b"][0][-1], step["b"][1][0][-1]]
        assert [node.flat_source_index for node in nodes] == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("index", "fields"),
        [
            (-1, {"stop": -1}),
            (-3, {"stop": -3}),
            (slice(-2, None), {"start": -2}),
            (slice(-3, -1), {"start": -3, "stop": -1}),
            (slice(-4, None, 2), {"start": -4, "step": 2}),
            (slice(-4, -1, 3), {"start": -4, "stop": -1, "step": 3}),
            (slice(None, -2), {"stop": -2}),
            (0, {"stop": 0}),
            (slice(None), {}),
        ],
    )
    def test_an_index_makes_a_node(self, index, fields):
        node = structured.create_reference_step(STEP)["b"][index]
        assert node.flat_source_index == 1
        for name in ("start", "stop", "step"):
            assert node.HasField(name) == (name in fields)
            assert getattr(node, name) == fields.get(name, 0)
        assert node == submodule("cc.patterns_pb2").PatternNode(flat_source_index=1, **fields)

    @pytest.mark.parametrize("key", ["x", None, 1.0, [1], (1, 2), np.int64(-1)])
    def test_other_keys_are_refused(self, key):
        step = structured.create_reference_step(STEP)
        with pytest.raises(ValueError) as raised:
            step["a"][key]
        assert str(raised.value) == f"Key must be int or slice by got {key} (type {type(key)})."

    def test_a_transform_gets_the_reference_step(self):
        pattern = structured.pattern_from_transform(
            step_structure={"x": None, "y": {"z": None}},
            transform=lambda step: {"k": (step["y"]["z"][-2:], [step["x"][-1]])},
        )
        assert type(pattern["k"]) is tuple
        assert pattern["k"][0].flat_source_index == 1
        assert pattern["k"][1][0].flat_source_index == 0


class TestConfigs:
    def test_a_config_has_what_it_is_made_of(self):
        pattern = structured.pattern_from_transform(
            STEP, lambda step: {"z": step["a"][-1], "k": step["b"][-2:]}
        )
        condition = structured.Condition.step_index() >= 1
        made = structured.create_config(
            pattern=pattern,
            table="table",
            conditions=(condition,),
            priority=structured.constant_priority_fn(2.5),
        )
        assert isinstance(made, structured.Config)
        assert list(made.flat) == [pattern["k"], pattern["z"]]
        assert made.table == "table"
        assert list(made.conditions) == [condition]
        assert made.priority.constant_fn.value == 2.5

    def test_the_priority_is_one_if_none_is_given(self):
        made = config(lambda step: step["a"][-1])
        assert made.priority == structured.constant_priority_fn(1.0)
        assert made == config(lambda step: step["a"][-1], priority=None)

    def test_configs_are_compared_by_content(self):
        assert config(lambda step: step["a"][-1]) == config(lambda step: step["a"][-1])
        assert config(lambda step: step["a"][-1]) != config(lambda step: step["a"][-2])
        assert config(lambda step: step["a"][-1]) != config(lambda step: step["a"][-1], "other")

    def test_a_config_can_be_copied_and_sent(self):
        made = config(
            lambda step: {"x": step["a"][-3::2]}, conditions=[structured.Condition.is_end_episode()]
        )
        assert copy.deepcopy(made) == made
        assert pickle.loads(pickle.dumps(made)) == made

    @pytest.mark.parametrize(
        "transform",
        [
            lambda step: {"z": step["a"][-1], "k": (step["b"][-2:], [step["a"][-3:-1]])},
            lambda step: step["a"][-2:],
            lambda step: [step["a"][-1], (step["b"][-1],)],
            lambda step: Pair(step["a"][-1], {"y": step["b"][-1]}),
        ],
    )
    def test_unpacking_gives_the_pattern_back(self, transform):
        pattern = structured.pattern_from_transform(STEP, transform)
        unpacked = structured.unpack_pattern(structured.create_config(pattern, "table"))
        assert unpacked == pattern

    def test_an_unpacked_named_tuple_has_its_fields(self):
        unpacked = structured.unpack_pattern(
            config(lambda step: Pair(step["a"][-1], step["b"][-2]))
        )
        assert unpacked._fields == ("x", "y")
        assert (unpacked.x.stop, unpacked.y.stop) == (-1, -2)

    def test_without_a_structure_the_pattern_is_flat(self):
        made = config(lambda step: {"x": (step["b"][-1], step["a"][-2:])})
        made.ClearField("pattern_structure")
        assert list(structured.unpack_pattern(made)) == list(made.flat)

    def test_priorities(self):
        constant = structured.constant_priority_fn(0.5)
        assert constant.constant_fn.value == 0.5
        error = structured.td_error(0.9, {"x": None, "y": [None, None]}, lambda step: step["y"][1])
        assert error.td_error.max_priority_weight == 0.9
        assert error.td_error.flat_source_index == 2

    def test_a_td_error_is_one_leaf(self):
        with pytest.raises(TypeError):
            structured.td_error(0.9, {"x": {"y": None}}, lambda step: step["x"])
        with pytest.raises(KeyError):
            structured.td_error(0.9, {"x": None}, lambda step: step["nowhere"])

    def test_the_classes_have_their_names(self):
        module = submodule("structured_writer")
        assert module is structured
        patterns = submodule("cc.patterns_pb2")
        assert module.Config is patterns.StructuredWriterConfig
        assert module.ConditionProto is patterns.Condition


class TestValidation:
    @pytest.mark.parametrize("configs", [[], (), None])
    def test_there_is_at_least_one_config(self, client, configs):
        with pytest.raises(ValueError) as raised:
            client.structured_writer(configs)
        assert str(raised.value) == "At least one config must be provided."

    def test_configs_are_a_sequence(self, client):
        with pytest.raises(TypeError):
            client.structured_writer(config(lambda step: step["a"][-1]))

    @pytest.mark.parametrize(
        ("index", "text"),
        [
            (slice(None), "At least one of `start` and `stop` must be specified."),
            (slice(0, None), "`start` must be < 0 but got 0."),
            (slice(1, None), "`start` must be < 0 but got 1."),
            (slice(0, 2), "`start` must be < 0 but got 0."),
            (0, "`stop` must be < 0 when `start` isn't set but got 0."),
            (1, "`stop` must be <= 0 but got 1."),
            (slice(-2, 1), "`stop` must be <= 0 but got 1."),
            (slice(-1, -2), "`stop` (-2) must be > `start` (-1) when both are specified."),
            (slice(-2, -2), "`stop` (-2) must be > `start` (-2) when both are specified."),
            (slice(None, -2, 2), "`step` must only be set when `start` is set."),
            (slice(-2, None, 0), "`step` must be > 0 but got 0."),
            (slice(-2, None, -1), "`step` must be > 0 but got -1."),
        ],
    )
    def test_a_node_that_makes_no_sense_is_refused(self, client, index, text):
        with pytest.raises(ValueError) as raised:
            client.structured_writer([config(lambda step: {"x": step["a"][index]})])
        assert str(raised.value) == f"Invalid configuration at position 0: {text}"

    def test_every_node_is_checked(self, client):
        with pytest.raises(ValueError, match="`start` must be < 0 but got 3"):
            client.structured_writer([config(lambda step: [step["a"][-1], step["b"][3:]])])

    def test_a_source_that_makes_no_sense_is_refused(self, client):
        made = config(lambda step: step["a"][-1])
        made.flat[0].flat_source_index = -1
        with pytest.raises(ValueError) as raised:
            client.structured_writer([made])
        assert str(raised.value) == (
            "Invalid configuration at position 0: `flat_source_index` must be >= 0 but got -1."
        )

    def test_an_item_has_at_least_one_leaf(self, client):
        with pytest.raises(ValueError) as raised:
            client.structured_writer([config(lambda _: {})])
        assert str(raised.value) == (
            "Invalid configuration at position 0: `flat` must not be empty."
        )

    def test_a_table_has_a_name(self, client):
        with pytest.raises(ValueError) as raised:
            client.structured_writer([config(lambda step: step["a"][-1], "")])
        assert str(raised.value) == (
            "Invalid configuration at position 0: `table` must not be empty."
        )

    def test_an_error_names_the_position(self, client):
        good = config(lambda step: step["a"][-1])
        with pytest.raises(ValueError) as raised:
            client.structured_writer([good, good, config(lambda step: step["a"][-1], "")])
        assert str(raised.value) == (
            "Invalid configuration at position 2: `table` must not be empty."
        )

    def test_making_a_writer_leaves_the_config_alone(self, client):
        made = config(lambda step: step["a"][-3:])
        client.structured_writer([made])
        assert made == config(lambda step: step["a"][-3:])

    @pytest.mark.upstream_differs
    @pytest.mark.parametrize("priority", [-1.0, float("nan")])
    def test_a_priority_that_no_table_can_hold_is_refused(self, client, priority):
        chosen = config(
            lambda step: step["a"][-1], priority=structured.constant_priority_fn(priority)
        )

        def use() -> None:
            writer = client.structured_writer([chosen])
            write(writer, 1)
            writer.flush()

        with pytest.raises(ValueError, match=r"(?i)priority"):
            use()
        assert client.server_info()["table"].current_size == 0


class TestItems:
    @pytest.mark.parametrize(
        ("index", "expected"),
        [
            (-1, [0, 1, 2, 3, 4]),
            (-3, [0, 1, 2]),
            (slice(-1, None), [[0], [1], [2], [3], [4]]),
            (slice(-2, None), [[0, 1], [1, 2], [2, 3], [3, 4]]),
            (slice(-2, 0), [[0, 1], [1, 2], [2, 3], [3, 4]]),
            (slice(-3, -1), [[0, 1], [1, 2], [2, 3]]),
            (slice(-3, -2), [[0], [1], [2]]),
            (slice(-4, None, 2), [[0, 2], [1, 3]]),
            (slice(-3, None, 2), [[0, 2], [1, 3], [2, 4]]),
            (slice(-4, -1, 2), [[0, 2], [1, 3]]),
            (slice(-2, None, 5), [[0], [1], [2], [3]]),
            (slice(None, -2), [0, 1, 2, 3]),
        ],
    )
    def test_a_pattern_is_applied_at_every_step_that_has_enough_before(
        self, client, index, expected
    ):
        writer = client.structured_writer([config(lambda step: step["a"][index])])
        write(writer, 5)
        writer.end_episode()
        assert items(client) == [[value] for value in expected]

    def test_items_arrive_without_a_flush(self, client):
        """The first ones do at once, and later ones while at most ten others follow."""
        writer = client.structured_writer([config(lambda step: step["a"][-2:])])
        for step in range(900):
            write(writer, 1, first=step)
            if step < 5 or step % 111 == 0:
                arrived = step if step < 5 else step - 10
                until(lambda arrived=arrived: client.server_info()["table"].current_size >= arrived)

    def test_columns_may_differ_in_length(self, client):
        writer = client.structured_writer(
            [config(lambda step: {"x": step["a"][-1], "y": step["b"][-3:], "z": step["b"][-2]})]
        )
        write(writer, 4)
        writer.flush()
        assert items(client) == [[2, [0, 10, 20], 10], [3, [10, 20, 30], 20]]

    def test_leaves_are_in_the_order_of_the_pattern_s_keys(self, client):
        writer = client.structured_writer(
            [config(lambda step: {"z": step["a"][-1], "k": (step["b"][-1], step["b"][-1:])})]
        )
        write(writer, 1, first=1)
        writer.flush()
        assert items(client) == [[10, [10], 1]]

    def test_several_configs_are_applied_in_their_order(self, client):
        writer = client.structured_writer(
            [config(lambda step: step["a"][-2:]), config(lambda step: step["b"][-1:])]
        )
        write(writer, 3)
        writer.flush()
        assert items(client) == [[[0]], [[0, 1]], [[10]], [[1, 2]], [[20]]]

    def test_configs_may_have_different_tables(self, client):
        writer = client.structured_writer(
            [config(lambda step: step["a"][-2:]), config(lambda step: step["b"][-1], "other")]
        )
        write(writer, 3)
        writer.flush()
        assert items(client) == [[[0, 1]], [[1, 2]]]
        assert items(client, "other") == [[0], [10], [20]]

    def test_items_do_not_reach_over_the_end_of_an_episode(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-2:])])
        write(writer, 3)
        writer.end_episode()
        write(writer, 2, first=3)
        writer.end_episode()
        assert items(client) == [[[0, 1]], [[1, 2]], [[3, 4]]]

    def test_items_reach_over_if_the_buffers_stay(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-2:])])
        write(writer, 2)
        writer.end_episode(clear_buffers=False)
        write(writer, 2, first=2)
        writer.flush()
        assert items(client) == [[[0, 1]], [[1, 2]], [[2, 3]]]

    def test_data_of_any_kind(self, client):
        step = {"x": None, "y": [None, None]}
        chosen = structured.create_config(
            structured.pattern_from_transform(
                step, lambda ref: [ref["x"][-2:], ref["y"][0][-2:], ref["y"][1][-1]]
            ),
            "table",
        )
        writer = client.structured_writer([chosen])
        for number in range(2):
            writer.append(
                {
                    "x": np.full((2, 3), number, np.float32),
                    "y": [np.uint8(number), number == 1],
                }
            )
        writer.flush()
        (sample,) = samples(client)
        x, small, flag = sample.data
        assert (x.dtype, x.shape) == (np.float32, (2, 2, 3))
        assert (small.dtype, small.tolist()) == (np.uint8, [0, 1])
        assert (flag.dtype, flag.tolist()) == (np.bool_, True)
        assert sample.info.priority == 1.0

    def test_the_table_s_signature_gives_the_structure_back(self, make_client):
        chosen = config(lambda step: {"x": step["a"][-2:], "y": {"z": step["b"][-1]}})
        signature = structured.infer_signature(
            [chosen], {"a": spec([], np.int64), "b": spec([], np.int64)}
        )
        client = make_client(reverb.Table.queue("table", 10, signature=signature))
        writer = client.structured_writer([chosen])
        write(writer, 2)
        writer.flush()
        (sample,) = client.sample("table", emit_timesteps=False, unpack_as_table_signature=True)
        assert sample.data["x"].tolist() == [0, 1]
        assert sample.data["y"]["z"].tolist() == 10


class TestAppending:
    @pytest.fixture
    def writer(self, client):
        return client.structured_writer([config(lambda step: step["a"][-1])])

    def test_append_returns_nothing(self, writer):
        assert writer.append({"a": 1, "b": 2}) is None

    def test_steps_have_the_same_number_of_leaves(self, writer):
        writer.append({"a": 1, "b": 2})
        with pytest.raises(ValueError) as raised:
            writer.append({"a": 1})
        assert str(raised.value) == ("Flattened data has an unexpected length, got 1 but wanted 2.")
        with pytest.raises(ValueError) as raised:
            writer.append({"a": 1, "b": 2, "c": [3]})
        assert str(raised.value) == ("Flattened data has an unexpected length, got 3 but wanted 2.")

    def test_a_changed_dtype_names_column_and_path(self, client):
        writer = client.structured_writer([config(lambda step: [step["a"][-1], step["b"][-1]])])
        writer.append({"a": 1, "b": np.float32(2)})
        with pytest.raises(ValueError) as raised:
            writer.append({"a": 1, "b": 2.0})
        assert str(raised.value) == (
            "Tensor of wrong dtype provided for column 1 (path=('b',)). "
            "Got double but expected float."
        )

    def test_a_changed_shape_names_column_and_path(self, client):
        step = {"a": {"x": None}}
        chosen = structured.create_config(
            structured.pattern_from_transform(step, lambda ref: ref["a"]["x"][-1]), "table"
        )
        writer = client.structured_writer([chosen])
        writer.append({"a": {"x": np.zeros(2)}})
        with pytest.raises(ValueError) as raised:
            writer.append({"a": {"x": np.zeros(3)}})
        assert str(raised.value) == (
            "Tensor of incompatible shape provided for column 0 (path=('a', 'x')). "
            "Got [3] which is incompatible with [2]."
        )

    def test_a_column_that_no_config_uses_may_change(self, client, writer):
        for number, unused in enumerate((1, "text", np.zeros(3), None)):
            writer.append({"a": number, "b": unused})
        writer.flush()
        assert items(client) == [[0], [1], [2], [3]]

    def test_what_is_no_array_is_a_type_error(self, writer):
        with pytest.raises(TypeError):
            writer.append({"a": object(), "b": 2})

    def test_a_step_without_a_needed_leaf_gives_no_item(self, client):
        writer = client.structured_writer(
            [config(lambda step: {"x": step["a"][-2:], "y": step["b"][-1]})]
        )
        for number in range(6):
            writer.append({"a": None if number == 2 else number, "b": number})
        writer.flush()
        assert items(client) == [[[0, 1], 1], [[3, 4], 4], [[4, 5], 5]]

    def test_a_step_may_be_empty(self, client, writer):
        writer.append({"a": 1, "b": 1})
        writer.append({"a": None, "b": None})
        writer.append({"a": 3, "b": 3})
        writer.flush()
        assert items(client) == [[1], [3]]

    def test_a_leaf_may_be_none_first(self, client, writer):
        writer.append({"a": None, "b": 1})
        writer.append({"a": 2, "b": 1})
        writer.flush()
        assert items(client) == [[2]]

    def test_a_source_that_the_steps_do_not_have_gives_no_item(self, client):
        made = config(lambda step: step["a"][-1])
        made.flat[0].flat_source_index = 7
        writer = client.structured_writer([made])
        write(writer, 3)
        writer.flush()
        assert items(client) == []


class TestPartialSteps:
    def test_an_item_is_made_once_its_leaves_are_there(self, client):
        writer = client.structured_writer(
            [config(lambda step: {"x": step["a"][-1], "y": step["b"][-1]})]
        )
        writer.append({"a": 1, "b": None}, partial_step=True)
        writer.flush()
        assert items(client) == []
        writer.append({"a": None, "b": 2})
        writer.flush()
        assert items(client) == [[1, 2]]

    def test_an_item_may_be_made_of_an_open_step_and_only_once(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-1])])
        writer.append({"a": 1, "b": None}, partial_step=True)
        writer.flush()
        assert items(client) == [[1]]
        writer.append({"a": None, "b": 2}, partial_step=True)
        writer.append({"a": None, "b": None})
        writer.flush()
        assert items(client) == []

    def test_whether_a_step_is_open(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-1])])
        assert writer.step_is_open is False
        writer.append({"a": 1, "b": None}, partial_step=True)
        assert writer.step_is_open is True
        writer.append({"a": None, "b": None}, partial_step=True)
        assert writer.step_is_open is True
        writer.append({"a": None, "b": 2})
        assert writer.step_is_open is False

    def test_a_leaf_that_is_given_twice_is_refused(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-1])])
        writer.append({"a": 1, "b": None}, partial_step=True)
        with pytest.raises(RuntimeError) as raised:
            writer.append({"a": 2, "b": None}, partial_step=True)
        assert str(raised.value).startswith(
            "A value for column 0 was provided by multiple Append/AppendPartial calls "
            "in the same step."
        )
        assert writer.step_is_open is True

    def test_parts_count_as_one_step(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-2:])])
        for number in range(3):
            writer.append({"a": None, "b": number}, partial_step=True)
            writer.append({"a": number, "b": None})
        writer.flush()
        assert items(client) == [[[0, 1]], [[1, 2]]]

    def test_an_episode_may_end_in_an_open_step(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-2:])])
        write(writer, 1)
        writer.append({"a": 1, "b": None}, partial_step=True)
        writer.end_episode()
        assert writer.step_is_open is False
        write(writer, 2, first=5)
        writer.flush()
        assert items(client) == [[[0, 1]], [[5, 6]]]


class TestPriorities:
    def priorities(self, client: Any, priority: Any, values: Any, index: Any = slice(-3, None)):
        chosen = config(lambda step: {"x": step["b"][index]}, priority=priority)
        writer = client.structured_writer([chosen])
        for number, value in enumerate(values):
            writer.append({"a": number, "b": value})
        writer.end_episode()
        return [sample.info.priority for sample in samples(client)]

    @pytest.mark.parametrize("value", [0.0, 2.5, 100])
    def test_a_constant(self, client, value):
        priority = structured.constant_priority_fn(value)
        assert self.priorities(client, priority, range(4)) == [value, value]

    @pytest.mark.parametrize(
        ("weight", "expected"), [(0.0, [8 / 3, 7 / 3]), (0.25, [3.25, 3.0]), (1.0, [5.0, 5.0])]
    )
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
    def test_a_td_error_mixes_the_largest_and_the_mean(self, client, weight, expected, dtype):
        priority = structured.td_error(weight, STEP, lambda step: step["b"])
        values = np.array([1, -5, 2, 0], dtype)
        assert self.priorities(client, priority, values) == pytest.approx(expected)

    def test_of_a_single_value(self, client):
        priority = structured.td_error(0.5, STEP, lambda step: step["b"])
        assert self.priorities(client, priority, [1.0, -5.0], -1) == [1.0, 5.0]

    def test_arrays_of_one_value_are_scalars(self, client):
        priority = structured.td_error(0.5, STEP, lambda step: step["b"])
        values = [np.array([1.0]), np.array([-3.0])]
        assert self.priorities(client, priority, values, slice(-2, None)) == [2.5]

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            ([np.zeros(2), np.zeros(2)], "TD Error expects a scalar tensor"),
            (np.zeros(2, np.float16), "TD Error expects a double/float/int tensor"),
            ([True, False], "TD Error expects a double/float/int tensor"),
        ],
    )
    def test_other_values_are_refused(self, client, values, text):
        priority = structured.td_error(0.5, STEP, lambda step: step["b"])
        with pytest.raises(ValueError, match=text):
            self.priorities(client, priority, values, -1)

    def test_it_has_to_be_a_number(self, client):
        priority = structured.td_error(0.5, STEP, lambda step: step["b"])
        with pytest.raises(ValueError, match="`priority` must not be nan"):
            self.priorities(client, priority, [1.0, float("nan")], slice(-2, None))

    def test_each_config_has_its_own(self, client):
        configs = [
            config(lambda step: step["a"][-1:], priority=structured.constant_priority_fn(3.0)),
            config(
                lambda step: step["b"][-1:],
                priority=structured.td_error(0.5, STEP, lambda step: step["b"]),
            ),
        ]
        writer = client.structured_writer(configs)
        write(writer, 2)
        writer.flush()
        assert [sample.info.priority for sample in samples(client)] == [3.0, 0.0, 3.0, 10.0]


class TestWaiting:
    def test_a_negative_number_of_items_is_refused(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-1])])
        with pytest.raises(ValueError) as raised:
            writer.flush(-1)
        assert str(raised.value) == "block_until_num_items must be >= 0, got -1"

    def test_nothing_to_flush(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-1])])
        assert writer.flush() is None
        assert writer.end_episode() is None
        assert writer.flush(block_until_num_items=3, timeout_ms=20_000) is None

    def test_appending_never_blocks_and_flushing_does(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-1], "narrow")])
        write(writer, 5)
        with pytest.raises(reverb.DeadlineExceededError) as raised:
            writer.flush(timeout_ms=50)
        assert str(raised.value) == (
            "Flush call did not complete within provided timeout of 0:00:00.050000"
        )
        with pytest.raises(reverb.DeadlineExceededError) as raised:
            writer.end_episode(timeout_ms=50)
        assert str(raised.value) == (
            "End episode call did not complete within provided timeout of 0:00:00.050000"
        )
        writer.flush(block_until_num_items=3, timeout_ms=20_000)
        sampled = client.sample("narrow", num_samples=5, emit_timesteps=False)
        assert [sample.data[0].tolist() for sample in sampled] == [0, 1, 2, 3, 4]
        writer.flush(timeout_ms=20_000)

    def test_an_unknown_table_fails_the_flush_and_all_after_it(self, client):
        writer = client.structured_writer([config(lambda step: step["a"][-1], "nowhere")])
        write(writer, 1)
        for call in (
            lambda: writer.flush(timeout_ms=20_000),
            lambda: write(writer, 1),
            writer.end_episode,
        ):
            with pytest.raises(RuntimeError, match="Priority table nowhere was not found"):
                call()


class TestInferSignature:
    STEP = {  # noqa: RUF012 - read only
        "a": spec([], np.float32, "own name"),
        "b": {"c": spec([3], np.int64), "d": spec([None, 2], np.bool_)},
        "e": spec([4], np.int64),
    }

    def config(self, transform: Any, table: str = "table") -> Any:
        return structured.create_config(
            structured.pattern_from_transform(self.STEP, transform), table
        )

    def infer(self, *transforms: Any) -> Any:
        return structured.infer_signature([self.config(each) for each in transforms], self.STEP)

    def leaf(self, *transforms: Any) -> Any:
        inferred = self.infer(*transforms)
        return (tuple(inferred.shape), dtype_of(inferred))

    @pytest.mark.parametrize(
        ("transform", "shape", "dtype"),
        [
            (lambda step: step["a"][-1], (), np.float32),
            (lambda step: step["a"][-1:], (1,), np.float32),
            (lambda step: step["a"][-3:], (3,), np.float32),
            (lambda step: step["a"][-3:-1], (2,), np.float32),
            (lambda step: step["a"][-4::2], (2,), np.float32),
            (lambda step: step["a"][-7:-1:3], (2,), np.float32),
            (lambda step: step["b"]["c"][-1], (3,), np.int64),
            (lambda step: step["b"]["c"][-2:], (2, 3), np.int64),
            (lambda step: step["b"]["d"][-5], (None, 2), np.bool_),
            (lambda step: step["b"]["d"][-5:], (5, None, 2), np.bool_),
        ],
    )
    def test_shape_and_dtype(self, transform, shape, dtype):
        assert self.leaf(transform) == (shape, dtype)

    @pytest.mark.upstream_differs
    def test_the_length_of_a_stride_is_rounded_up(self):
        """Upstream rounds down, and then refuses the items that it makes."""
        assert self.leaf(lambda step: step["a"][-3::2]) == ((2,), np.float32)
        assert self.leaf(lambda step: step["a"][-5:-1:3]) == ((2,), np.float32)
        assert self.leaf(lambda step: step["a"][-2::5]) == ((1,), np.float32)

    def test_it_is_nested_as_the_pattern_and_names_the_leaves(self):
        inferred = self.infer(lambda step: {"y": (step["b"]["c"][-1], [step["a"][-2:]])})
        assert type(inferred["y"]) is tuple
        assert type(inferred["y"][1]) is list
        assert inferred["y"][0].name == "y/0"
        assert inferred["y"][1][0].name == "y/1/0"
        assert self.infer(lambda step: step["a"][-1]).name == ""

    def test_lengths_that_differ_are_unknown(self):
        assert self.leaf(lambda step: step["b"]["c"][-2:], lambda step: step["b"]["c"][-3:]) == (
            (None, 3),
            np.int64,
        )
        assert self.leaf(lambda step: step["a"][-2:], lambda step: step["a"][-3:-1]) == (
            (2,),
            np.float32,
        )

    def test_first_dimensions_that_differ_are_unknown(self):
        assert self.leaf(lambda step: step["b"]["c"][-1], lambda step: step["e"][-1]) == (
            (None,),
            np.int64,
        )

    def test_a_table_can_be_made_of_it(self, make_client):
        chosen = self.config(lambda step: {"x": step["a"][-2:], "y": step["b"]["c"][-1]})
        signature = structured.infer_signature([chosen], self.STEP)
        client = make_client(reverb.Table.queue("table", 10, signature=signature))
        writer = client.structured_writer([chosen])
        for number in range(3):
            writer.append(
                {
                    "a": np.float32(number),
                    "b": {"c": np.full(3, number), "d": None},
                    "e": None,
                }
            )
        writer.flush()
        assert items(client) == [[[0, 1], [1, 1, 1]], [[1, 2], [2, 2, 2]]]

    def test_arrays_describe_a_step_too(self):
        inferred = structured.infer_signature(
            [config(lambda step: step["b"][-2:])],
            {"a": np.zeros((), np.int64), "b": np.zeros(3, np.float32)},
        )
        assert tuple(inferred.shape) == (2, 3)
        assert dtype_of(inferred) == np.float32

    def test_there_is_at_least_one_config(self):
        with pytest.raises(ValueError) as raised:
            structured.infer_signature([], self.STEP)
        assert str(raised.value) == "At least one config must be provided."

    def test_the_structures_are_the_same(self):
        with pytest.raises(ValueError) as raised:
            self.infer(lambda step: {"x": step["a"][-1]}, lambda step: {"y": step["a"][-1]})
        assert str(raised.value) == "All configs must have exactly the same pattern_structure."

    def test_the_tables_are_the_same(self):
        configs = [self.config(lambda step: step["a"][-1], table) for table in ("q", "b", "a")]
        with pytest.raises(ValueError) as raised:
            structured.infer_signature(configs, self.STEP)
        assert str(raised.value) == (
            "All configs must target the same table but provided configs included a, b, q."
        )

    def test_the_dtypes_are_the_same(self):
        with pytest.raises(ValueError) as raised:
            self.infer(lambda step: {"x": step["a"][-2:]}, lambda step: {"x": step["b"]["c"][-2:]})
        assert str(raised.value).startswith(
            "Configs produce trajectories with multiple dtypes at ('x',). Got ["
        )

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (lambda step: {"x": step["a"][-2:]}, lambda step: {"x": step["a"][-2]}),
            (lambda step: {"x": step["b"]["c"][-2:]}, lambda step: {"x": step["e"][-2:]}),
            (lambda step: {"x": step["b"]["c"][-2:]}, lambda step: {"x": step["e"][-2]}),
        ],
    )
    def test_the_shapes_fit(self, first, second):
        with pytest.raises(ValueError) as raised:
            self.infer(first, second)
        assert str(raised.value).startswith(
            "Configs produce trajectories with incompatible shapes at ('x',). Got ["
        )

    def test_a_source_that_the_step_does_not_have_is_an_index_error(self):
        made = self.config(lambda step: step["a"][-1])
        made.flat[0].flat_source_index = 9
        with pytest.raises(IndexError):
            structured.infer_signature([made], self.STEP)
