"""Specs: what they can be asked, and that a program gets back the kind of spec that it gave."""

from __future__ import annotations

import importlib
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reverb_under_test import UPSTREAM, reverb, spec

structured = reverb.structured


class SpecOfTensorFlow:
    """Stands for `tf.TensorSpec`, which equals nothing of another class."""

    def __init__(self, shape: Any, dtype: Any, name: str | None = None) -> None:
        self.shape = None if shape is None else tuple(shape)
        self.dtype = SimpleNamespace(as_numpy_dtype=np.dtype(dtype).type)
        self.name = name

    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.dtype.as_numpy_dtype, self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecOfTensorFlow) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]


class BoundedTensorSpec(SpecOfTensorFlow):
    """TensorFlow's spec of values with bounds."""

    def __init__(self, shape, dtype, minimum, maximum, name=None):
        super().__init__(shape, dtype, name)
        self.minimum, self.maximum = np.array(minimum, dtype), np.array(maximum, dtype)

    def __eq__(self, other):
        bounds = (self.minimum.tolist(), self.maximum.tolist())
        return super().__eq__(other) and bounds == (other.minimum.tolist(), other.maximum.tolist())

    __hash__ = None


@pytest.fixture
def tf_spec(monkeypatch):
    """Make a spec as a program does that has imported TensorFlow."""
    if UPSTREAM:
        return importlib.import_module("tensorflow").TensorSpec
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(TensorSpec=SpecOfTensorFlow))
    return SpecOfTensorFlow


@pytest.mark.parametrize(
    ("other", "compatible"),
    [
        (spec([3, 2], np.float32), True),
        (spec([None, None], np.float32, "of-another-name"), True),
        (spec(None, np.float32), True),
        (spec([3, 2], np.float64), False),
        (spec([3, 3], np.float32), False),
        (spec([2], np.float32), False),
        (np.zeros((7, 2), np.float32), True),
        (np.zeros((7, 2)), False),
        (np.float32(1), False),
    ],
)
def test_compatible_specs_and_values(other, compatible):
    assert spec([None, 2], np.float32, "name").is_compatible_with(other) is compatible


def test_a_spec_of_any_shape_is_compatible_with_all_of_its_dtype():
    assert spec(None, np.int32).is_compatible_with(np.zeros((2, 3), np.int32))
    assert not spec(None, np.int32).is_compatible_with(np.zeros((2, 3), np.int64))


@pytest.mark.parametrize(
    ("first", "others", "common"),
    [
        (spec([2, 3], np.int32), [], spec([2, 3], np.int32)),
        (spec([2, 3], np.int32), [spec([4, 3], np.int32)], spec([None, 3], np.int32)),
        (spec([2, None], np.int32), [spec([2, 3], np.int32)] * 2, spec([2, None], np.int32)),
        (spec([2], np.int32), [spec([2, 3], np.int32)], spec(None, np.int32)),
        (spec([2], np.int32), [spec(None, np.int32)], spec(None, np.int32)),
        (spec([2], np.int32), [spec([2], np.int64)], None),
        (spec([2], np.int32, "a"), [spec([2], np.int32, "a")], spec([2], np.int32, "a")),
        (spec([2], np.int32, "a"), [spec([2], np.int32, "b")], spec([2], np.int32)),
    ],
)
def test_the_most_specific_common_supertype(first, others, common):
    assert first.most_specific_common_supertype(others) == common


def test_a_shape_has_a_rank():
    assert [spec(shape, np.int32).shape.rank for shape in ([], [3], [None, 2])] == [0, 1, 2]
    copy = pickle.loads(pickle.dumps(spec([None, 2], np.int32)))
    assert copy.shape.rank == 2


def test_a_program_of_tensorflow_gets_its_specs_back(make_client, make_table, tf_spec, monkeypatch):
    signature = {"x": tf_spec([None, 2], np.float32, "name"), "y": [tf_spec([None], np.int64)]}
    table = make_table(signature=signature)
    client = make_client(table, table.replace("copy"))
    assert table.info.signature == signature
    assert {name: info.signature for name, info in client.server_info().items()} == {
        "table": signature,
        "copy": signature,
    }
    client.insert({"x": np.zeros(2, np.float32), "y": [np.int64(3)]}, {"table": 1.0})
    if not UPSTREAM:
        # It has nothing for datasets.
        monkeypatch.delitem(sys.modules, "tensorflow")
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "table", 1)
    assert next(dataset.as_numpy_iterator()).data["x"].tolist() == [[0, 0]]


@pytest.mark.parametrize(("least", "most"), [(0, 3), ([-1.5, 0], [np.inf, 2])])
def test_bounds_of_specs_come_back(make_client, make_table, tf_spec, least, most):
    bounded = sys.modules[tf_spec.__module__].BoundedTensorSpec
    signature = {"x": bounded([2], np.float32, least, most, "name"), "y": tf_spec([], np.int64)}
    table = make_table(signature=signature)
    for found in (table.info, make_client(table).server_info()["table"]):
        assert type(found.signature["x"]) is bounded
        assert type(found.signature["y"]) is tf_spec
        assert found.signature == signature


def test_an_inferred_signature_is_of_the_specs_of_the_steps(tf_spec):
    steps = {"x": tf_spec([2], np.float32)}
    pattern = structured.pattern_from_transform(steps, lambda step: {"y": step["x"][-3:]})
    config = structured.create_config(pattern, "table")
    assert structured.infer_signature([config], steps) == {"y": tf_spec([3, 2], np.float32, "y")}


@pytest.mark.skipif(UPSTREAM, reason="there every program has TensorFlow")
def test_a_program_without_tensorflow_gets_specs_of_ours(make_table, tf_spec, monkeypatch):
    table = make_table(signature=tf_spec([2], np.float32))
    monkeypatch.delitem(sys.modules, "tensorflow")
    assert table.info.signature == reverb.TensorSpec([2], np.float32)
    assert isinstance(table.info.signature, reverb.TensorSpec)
