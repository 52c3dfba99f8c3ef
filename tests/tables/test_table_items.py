"""Items of every form go into a table and come out as they were."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import echoic
import numpy as np
import pytest
from echoic import selectors
from echoic.errors import SpecError

pytestmark = pytest.mark.timeout(60)

MakeTable = Callable[..., echoic.Table]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Step:
    obs: Any
    reward: Any


FORMS = {
    "leaf": lambda n: np.full(3, n, np.float32),
    "number": lambda n: n,
    "dict": lambda n: {"obs": np.full((2, 2), n, np.uint8), "reward": float(n)},
    "unsorted dict": lambda n: {"b": n, "a": -n, "c": np.full(3, n, np.int8)},
    "tuple": lambda n: (n, -n),
    "list": lambda n: [n, [float(n)]],
    "namedtuple": lambda n: Pair(n, np.full(2, n, np.float16)),
    "dataclass": lambda n: Step(np.full(5, n), n % 2 == 0),
    "none": lambda n: {"a": n, "b": None, "c": ()},
    "nested": lambda n: {"x": (Pair(n, {"y": [n, None]}), Step(-n, b"ab"))},
    "ordered dict": lambda n: collections.OrderedDict(z=n, a=-n),
    "number keys": lambda n: {2: n, 1: -n},
    "empty array": lambda n: (n, np.zeros((0, 3))),
}


def leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree with their paths, and None and empty nodes with theirs."""
    if dataclasses.is_dataclass(tree):
        names = [field.name for field in dataclasses.fields(tree)]
        children = [(name, getattr(tree, name)) for name in names]
    elif isinstance(tree, dict):
        children = sorted(tree.items())
    elif isinstance(tree, (tuple, list)):
        children = list(enumerate(tree))
    else:
        return [("", tree)]
    if not children:
        return [("", type(tree).__name__)]
    return [
        (f"{type(tree).__name__} {name} {path}", leaf)
        for name, child in children
        for path, leaf in leaves(child)
    ]


def assert_stacked(batch: Any, items: list[Any]) -> None:
    """The batch has the items, in this order, and each node as theirs."""
    expected = [leaves(item) for item in items]
    for index, (path, got) in enumerate(leaves(batch)):
        assert path == expected[0][index][0]
        if not isinstance(got, np.ndarray):
            assert got == expected[0][index][1]
            continue
        want = np.stack([np.asarray(item[index][1]) for item in expected])
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path
        np.testing.assert_array_equal(got, want, err_msg=path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_spec", [True, False], ids=["spec", "any form"])
def test_items_come_out_as_they_went_in(make_table: MakeTable, form: str, with_spec: bool) -> None:
    item = FORMS[form]
    table = make_table(item(0) if with_spec else None, sampler=selectors.Epoch())
    for n in range(1, 8):
        table.add(item(n), priority=n)
    batch = table.sample(7)
    order = [int(priority) for priority in batch.info.priorities]
    assert sorted(order) == list(range(1, 8))
    assert_stacked(batch.data, [item(n) for n in order])


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_items_is_like_one_after_the_other(make_table: MakeTable, form: str) -> None:
    item = FORMS[form]

    def stack(trees: list[Any]) -> Any:
        first = trees[0]
        if first is None:
            return None
        if dataclasses.is_dataclass(first):
            names = [field.name for field in dataclasses.fields(first)]
            return type(first)(*(stack([getattr(tree, name) for tree in trees]) for name in names))
        if isinstance(first, dict):
            return type(first)((key, stack([tree[key] for tree in trees])) for key in first)
        if isinstance(first, Pair):
            return Pair(*(stack([tree[at] for tree in trees]) for at in range(2)))
        if isinstance(first, (tuple, list)):
            return type(first)(stack([tree[at] for tree in trees]) for at in range(len(first)))
        return np.stack([np.asarray(tree) for tree in trees])

    items = [item(n) for n in range(1, 8)]
    table = make_table(item(0), sampler=selectors.Epoch())
    table.extend(stack(items), priorities=range(1, 8))
    batch = table.sample(7)
    assert_stacked(batch.data, [items[int(priority) - 1] for priority in batch.info.priorities])


@pytest.mark.parametrize(
    "dtype",
    ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "S5"],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("with_spec", [True, False], ids=["spec", "any form"])
def test_every_dtype_and_shape_keeps_its_bytes(
    make_table: MakeTable, dtype: str, shape: tuple[int, ...], with_spec: bool
) -> None:
    rng = np.random.default_rng(0)
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    table = make_table(np.zeros(shape, dtype) if with_spec else None, sampler=selectors.Fifo())
    for _ in range(3):
        bits = rng.integers(0, 2 if dtype == "?" else 256, size, np.uint8)
        value = bits.view(dtype).reshape(shape)
        table.add(value)
        data = table.sample(2).data
        assert (data.dtype, data.shape) == (value.dtype, (2, *shape))
        # By bytes: NaNs are as good as any.
        assert data.tobytes() == 2 * value.tobytes()
        table.clear()


def test_an_item_is_copied_before_insert_returns(make_table: MakeTable) -> None:
    for spec in (np.zeros(3), None):
        table = make_table(spec, sampler=selectors.Lifo())
        value = np.ones(3)
        table.add(value)
        value[:] = 2
        assert table.sample(1).data.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    "value",
    [np.arange(12).reshape(3, 4).T, np.arange(24).reshape(4, 6)[:, ::2], np.arange(12.0)],
    ids=["transposed", "strided", "float"],
)
def test_values_that_do_not_lie_as_in_a_row_are_converted_or_refused(
    make_table: MakeTable, value: np.ndarray
) -> None:
    table = make_table(np.zeros((4, 3), np.int64))
    if value.dtype == np.int64:
        table.add(value)
        table.add(value.astype(">i8"))
        assert table.sample(2).data.tolist() == [value.tolist()] * 2
    else:
        with pytest.raises(SpecError, match=r"expected int64\[4, 3\], got float64\[12\]"):
            table.add(value)
        assert len(table) == 0


def test_large_items_keep_every_byte(make_table: MakeTable) -> None:
    # Large enough that they are copied without the GIL.
    frames = np.random.default_rng(0).integers(0, 256, (12, 84, 84, 4), np.uint8)
    table = make_table(
        {"frame": frames[0], "step": np.int64(0)}, capacity=10, sampler=selectors.Epoch()
    )
    table.extend({"frame": frames[:8], "step": np.arange(8)})
    for step in range(8, 12):
        table.add({"frame": frames[step], "step": step})
    batch = table.sample(10).data
    assert sorted(batch["step"]) == list(range(2, 12))
    np.testing.assert_array_equal(batch["frame"], frames[batch["step"]])


def test_a_batch_may_be_larger_than_the_table(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), capacity=5, sampler=selectors.Epoch())
    table.extend(np.arange(10_003))
    assert sorted(table.sample(5).data) == list(range(9998, 10_003))
    assert (table.stats().inserts, table.stats().deletions) == (10_003, 9998)


def test_a_batch_of_no_items_inserts_nothing(make_table: MakeTable) -> None:
    table = make_table(np.int64(0))
    table.extend(np.zeros(0, np.int64))
    table.extend(np.zeros(0, np.int64), priorities=[])
    assert table.stats().inserts == 0


def test_what_does_not_fit_is_refused_and_the_table_lives_on(make_table: MakeTable) -> None:
    table = make_table({"obs": np.zeros(4, np.float32), "reward": np.float32(0)})
    good = {"obs": np.zeros(4, np.float32), "reward": 1.0}
    refusals = [
        ({**good, "obs": np.zeros(4)}, r"leaf `obs`: expected float32\[4\], got float64\[4\]"),
        ({**good, "obs": np.zeros(3, np.float32)}, r"expected float32\[4\], got float32\[3\]"),
        ({"obs": good["obs"]}, "missing 'reward'"),
        ({**good, "done": True}, "unexpected 'done'"),
        ((good["obs"], 1.0), "node"),
        (None, "node"),
    ]
    for item, text in refusals:
        with pytest.raises(SpecError, match=text):
            table.add(item)
        with pytest.raises(SpecError):
            table.extend(item)
    uneven = {"obs": np.zeros((4, 4), np.float32), "reward": np.zeros(3, np.float32)}
    with pytest.raises(SpecError, match=r"leaf `reward`: expected float32\[4\], got float32\[3\]"):
        table.extend(uneven)
    table.add(good)
    assert table.sample(1, timeout=0).data["reward"].tolist() == [1]
    assert table.stats().inserts == 1


# Items of any form.


def test_items_of_different_forms_make_a_list_of_trees(make_table: MakeTable) -> None:
    items = [item(3) for name, item in FORMS.items() if name != "ordered dict"]
    table = make_table(sampler=selectors.Epoch())
    for index, item in enumerate(items):
        table.add(item, priority=index + 1)
    batch = table.sample(len(items))
    assert isinstance(batch.data, list)
    assert len(batch) == len(items)
    for tree, priority in zip(batch.data, batch.info.priorities, strict=True):
        expected = items[int(priority) - 1]
        for (path, got), (name, want) in zip(leaves(tree), leaves(expected), strict=True):
            assert path == name
            np.testing.assert_array_equal(got, want)
            if isinstance(got, np.ndarray):
                assert got.dtype == np.asarray(want).dtype


def test_trees_of_one_form_stack_again_after_another_form_came_between(
    make_table: MakeTable,
) -> None:
    table = make_table(sampler=selectors.Lifo())
    table.add({"a": np.zeros(2)})
    table.add((1, 2))
    table.add({"a": np.ones(2)})
    assert table.sample(2).data["a"].tolist() == [[1, 1], [1, 1]]
    table.remove(table.sample(1).keys)
    assert [leaf.tolist() for leaf in table.sample(3).data] == [[1, 1, 1], [2, 2, 2]]


def test_a_node_is_of_its_own_class_whatever_came_after_it(make_table: MakeTable) -> None:
    items = [Pair(1, 2), Step(1, 2), collections.OrderedDict(z=1, a=2)]
    for item in items:
        table = make_table(sampler=selectors.Fifo())
        table.add(item)
        table.add(3)
        assert type(table.sample(1).data) is type(item)


def test_items_of_different_shapes_are_items_of_different_forms(make_table: MakeTable) -> None:
    table = make_table(sampler=selectors.Epoch())
    for length in (1, 3, 2):
        table.add({"tokens": np.arange(length)})
    trees = table.sample(3).data
    assert sorted(tree["tokens"].tolist() for tree in trees) == [[0], [0, 1], [0, 1, 2]]


def test_an_item_without_leaves_is_an_item(make_table: MakeTable) -> None:
    table = make_table()
    table.add({"a": None, "b": ()})
    batch = table.sample(3)
    assert (batch.data, len(batch)) == ({"a": None, "b": ()}, 3)


def test_what_can_not_be_stored_is_refused_without_a_spec_too(make_table: MakeTable) -> None:
    table = make_table()
    for item in ("text", {"a": object()}, np.array([None])):
        with pytest.raises(SpecError):
            table.add(item)
    with pytest.raises(SpecError, match=r"extend\(\) is for tables with a spec"):
        table.extend(np.zeros(3))
    assert len(table) == 0
    table.add(1)
    assert table.sample(1).data.tolist() == [1]


def test_ragged_rows_are_views_of_their_values() -> None:
    values = np.arange(12).reshape(6, 2)
    rows = echoic.Ragged(values, np.array([0, 2, 2, 6]))
    assert len(rows) == 3
    assert rows.lengths.tolist() == [2, 0, 4]
    assert [row.tolist() for row in rows] == [values[:2].tolist(), [], values[2:].tolist()]
    assert np.shares_memory(rows[-1], values)
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"expected an item below 3, got {index}"):
            rows[index]
    padded = rows.padded(-1)
    assert padded.shape == (3, 4, 2)
    assert padded[0].tolist() == [[0, 1], [2, 3], [-1, -1], [-1, -1]]
    assert (padded[1] == -1).all()
    assert (padded[2] == values[2:]).all()
    assert echoic.Ragged(values[:0], np.array([0])).padded().shape == (0, 0, 2)
