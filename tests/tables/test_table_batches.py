"""Batches: what is known of each item, whose memory it is, and the same draws by a seed."""

from __future__ import annotations

import collections
import gc
import weakref
from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import pytest
from echoic import selectors

pytestmark = pytest.mark.timeout(60)

MakeTable = Callable[..., echoic.Table]


def test_every_column_of_info_has_a_value_for_each_item(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Prioritized(2.0))
    for value in range(4):
        table.add(value, priority=value, version=10 + value)
    batch = table.sample(50)
    info = batch.info
    assert (len(batch), len(info), info.table_size, info.beta) == (50, 50, 4, 1.0)
    dtypes = {
        (batch, "keys"): np.uint64,
        (batch, "weights"): np.float64,
        (info, "probabilities"): np.float64,
        (info, "priorities"): np.float64,
        (info, "times_sampled"): np.uint32,
        (info, "versions"): np.uint64,
    }
    for (part, name), dtype in dtypes.items():
        column = getattr(part, name)
        assert (column.dtype, column.shape) == (dtype, (50,)), name
        assert getattr(part, name) is column
    np.testing.assert_array_equal(info.priorities, batch.data)
    np.testing.assert_array_equal(info.versions, batch.data + 10)
    np.testing.assert_allclose(info.probabilities, batch.data**2 / 14, rtol=1e-12)
    drawn: collections.Counter[int] = collections.Counter()
    for value, times in zip(batch.data.tolist(), info.times_sampled.tolist(), strict=True):
        drawn[value] += 1
        assert times == drawn[value]
    keys = dict(zip(batch.data.tolist(), batch.keys.tolist(), strict=True))
    assert len(set(keys.values())) == len(keys)
    assert repr(batch) == "Batch(len=50, data=int64[50])"
    assert repr(info) == "BatchInfo(items=50, table_size=4)"


def test_no_exponent_makes_weights_that_are_no_numbers(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Prioritized(1.0))
    table.extend(np.arange(3), np.array([1.0, 1.0, 2.0]))
    batch = table.sample(64, beta=1e308)
    # Of the rarer ones 1, of the others nothing that is left.
    drawn = set(zip(batch.info.probabilities, batch.weights, strict=True))
    assert drawn == {(0.25, 1.0), (0.5, 0.0)}


def test_a_batch_is_read_by_the_keys_of_its_data(make_table: MakeTable) -> None:
    step = {"obs": np.ones(2, np.float32), "at": np.int64(3)}
    table = make_table(step)
    table.add(step)
    batch = table.sample(4)
    assert batch["obs"] is batch.data["obs"]
    with pytest.raises(KeyError, match="the batch has no 'reward'; its data has '"):
        batch["reward"]
    listed = table.items()
    assert (listed.data, listed.keys.tolist()) == (None, [batch.keys[0]])
    with pytest.raises(TypeError, match=r"batch\['obs'\] needs data .* of type NoneType"):
        listed["obs"]
    numbers = make_table(np.int64(0))
    numbers.add(1)
    one = numbers.sample(1)
    with pytest.raises(TypeError, match=r"batch\[0\] needs data that is a dict, .* type ndarray"):
        one[0]


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_undo_the_preference_for_high_priorities(
    make_table: MakeTable, beta: float
) -> None:
    table = make_table(np.int64(0), sampler=selectors.Prioritized(0.7))
    table.extend(np.arange(20), priorities=np.linspace(0.1, 5, 20))
    batch = table.sample(256, beta=beta)
    weights = (20 * batch.info.probabilities) ** -beta
    assert batch.info.beta == beta
    assert batch.weights.max() == 1
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-12)


def test_uniform_samples_all_weigh_one(make_table: MakeTable) -> None:
    table = make_table(np.int64(0))
    table.extend(np.arange(20))
    batch = table.sample(8)
    assert batch.weights.tolist() == [1] * 8
    assert batch.info.probabilities.tolist() == [1 / 20] * 8


def test_items_have_the_learners_version_unless_they_name_their_own(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.Epoch())
    table.add(0)
    table.publish_version(5)
    table.add(1)
    table.add(2, version=3)
    table.extend(np.array([3]), version=9)
    table.publish_version(4)
    table.add(4)
    batch = table.sample(5)
    versions = dict(zip(batch.data.tolist(), batch.info.versions.tolist(), strict=True))
    assert versions == {0: 0, 1: 5, 2: 3, 3: 9, 4: 5}
    assert table.stats().version == 5


def test_hot_and_cold_items_have_their_shares(make_table: MakeTable) -> None:
    table = make_table(np.int64(0), sampler=selectors.HotCold(1, hot_fraction=0.75))
    table.extend(np.arange(10), version=0)
    table.publish_version(2)
    table.extend(np.arange(10, 15), version=1)
    # Versions 1 and 2 are hot now, and come first.
    batch = table.sample(8)
    assert (batch.data[:6] >= 10).all()
    assert (batch.data[6:] < 10).all()
    np.testing.assert_allclose(batch.info.probabilities, [0.75 / 5] * 6 + [0.25 / 10] * 2)
    table.publish_version(3)
    assert table.sample(8).info.probabilities.tolist() == [1 / 15] * 8


# Memory.


def copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: copy(leaf) for name, leaf in tree.items()}
    return np.array(tree)


@pytest.mark.parametrize("words", [2, 5000], ids=["small", "large"])
@pytest.mark.parametrize("with_spec", [True, False], ids=["spec", "any form"])
def test_a_batch_stays_as_it_is_whatever_happens_later(
    make_table: MakeTable, words: int, with_spec: bool
) -> None:
    def item(step: int) -> dict[str, Any]:
        return {"obs": np.full(words, step, np.int32), "step": step}

    spec = item(0) if with_spec else None
    table = make_table(spec, capacity=8, max_times_sampled=3)
    kept: list[tuple[echoic.Batch, Any]] = []
    for step in range(200):
        table.add(item(step), priority=step)
        if step > 4:
            batch = table.sample(3)
            if step % 3 == 0:
                kept.append((batch, (copy(batch.data), batch.keys)))
    table.remove(kept[-1][0].keys)
    table.clear()
    table.close()
    del table
    gc.collect()
    assert len(kept) > 50
    for batch, (data, key) in kept:
        np.testing.assert_array_equal(batch.data["step"], data["step"])
        np.testing.assert_array_equal(batch.data["obs"], data["obs"])
        assert (batch.data["obs"] == batch.data["step"][:, None]).all()
        assert batch.keys is key


def test_a_view_of_one_leaf_keeps_the_memory_of_the_batch(make_table: MakeTable) -> None:
    table = make_table({"a": np.zeros(3), "b": np.zeros(3)}, sampler=selectors.Lifo())
    table.add({"a": np.ones(3), "b": np.full(3, 2.0)})
    view = table.sample(2).data["b"][1:, :2]
    for step in range(50):
        table.add({"a": np.full(3, float(step)), "b": np.full(3, float(step))})
        table.sample(2)
    assert view.tolist() == [[2, 2]]


def test_what_is_done_to_a_batch_does_not_reach_the_table(make_table: MakeTable) -> None:
    for spec in (np.zeros(3), None):
        table = make_table(spec)
        table.add(np.ones(3))
        batch = table.sample(2)
        assert batch.data.flags.writeable
        batch.data[:] = 7
        batch.keys[:] = 0
        assert table.sample(2).data.tolist() == [[1] * 3] * 2


def test_memory_of_a_batch_that_is_gone_is_used_again(make_table: MakeTable) -> None:
    table = make_table(np.zeros(1000))
    table.add(np.ones(1000))
    addresses = {table.sample(16).data.ctypes.data for _ in range(100)}
    assert len(addresses) == 1
    held = [table.sample(16).data for _ in range(20)]
    assert len({array.ctypes.data for array in held}) == 20


def test_columns_begin_at_cache_lines(make_table: MakeTable) -> None:
    table = make_table({"a": np.uint8(0), "b": np.zeros(3, np.uint8), "c": np.float64(0)})
    table.add({"a": 1, "b": np.zeros(3, np.uint8), "c": 1.0})
    for leaf in table.sample(5).data.values():
        assert leaf.flags.c_contiguous
        assert leaf.ctypes.data % 64 == 0


def test_a_batch_that_refers_to_itself_is_collected(make_table: MakeTable) -> None:
    class Watched:
        pass

    table = make_table({"a": np.zeros(2)})
    table.add({"a": np.zeros(2)})
    batch, watched = table.sample(1), Watched()
    gone = weakref.ref(watched)
    batch.data["itself"], batch.data["watched"] = batch, watched
    del batch, watched
    gc.collect()
    assert gone() is None


# Seeds.


def draws(make_table: MakeTable, selector: selectors.Selector, seed: int | None) -> list[Any]:
    table = make_table(np.int64(0), sampler=selector, remover=selector, capacity=50, seed=seed)
    table.extend(np.arange(60), priorities=np.arange(60) % 7)
    drawn = []
    for _ in range(5):
        batch = table.sample(10)
        drawn.append(batch.data.tolist())
        drawn.append(batch.info.probabilities.tolist())
        table.update_priorities(batch.keys, batch.info.priorities + 1)
    return drawn


def test_a_seed_gives_the_same_draws_again(
    make_table: MakeTable, selector: selectors.Selector
) -> None:
    assert draws(make_table, selector, 5) == draws(make_table, selector, 5)


@pytest.mark.parametrize("other", [6, None])
def test_another_seed_gives_other_draws(make_table: MakeTable, other: int | None) -> None:
    for selector in (selectors.Uniform(), selectors.Prioritized(), selectors.Epoch()):
        assert draws(make_table, selector, 5) != draws(make_table, selector, other)


@pytest.mark.parametrize(
    ("selector", "drawn"),
    [
        (selectors.Uniform(), [0, 1, 7, 4, 9, 4, 7, 3]),
        (selectors.Prioritized(0.5), [2, 3, 8, 5, 9, 6, 8, 5]),
        (selectors.Epoch(), [0, 1, 5, 2, 7, 6, 4, 9]),
    ],
    ids=["Uniform", "Prioritized", "Epoch"],
)
def test_a_seed_gives_the_draws_that_it_gave_in_every_release(
    make_table: MakeTable, selector: selectors.Selector, drawn: list[int]
) -> None:
    # Computed by hand from xoshiro256++, seeded with SplitMix64.
    table = make_table(np.int64(0), sampler=selector, seed=7)
    table.extend(np.arange(10), priorities=np.arange(10))
    assert table.sample(8).data.tolist() == drawn
