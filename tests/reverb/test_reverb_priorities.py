"""`reverb.selectors`: which item each of them samples."""

from __future__ import annotations

import collections

import pytest
from reverb_under_test import drain, reverb, sample_info, sample_values

Fifo, Lifo = reverb.selectors.Fifo, reverb.selectors.Lifo
MinHeap, MaxHeap = reverb.selectors.MinHeap, reverb.selectors.MaxHeap
Prioritized, Uniform = reverb.selectors.Prioritized, reverb.selectors.Uniform


@pytest.fixture
def filled(make_client, make_table):
    """Give a client of a table with this sampler and items 0, 1, ... of these priorities."""

    def make(sampler, priorities, **settings):
        client = make_client(make_table(sampler=sampler, **settings))
        for value, priority in enumerate(priorities):
            client.insert(value, {"table": priority})
        return client

    return make


def keys_of(client):
    """The key of each item of a table that samples all of them within a few hundred samples."""
    return {int(s[0].data[0]): s[0].info.key for s in client.sample("table", 500)}


def shares(client, count):
    """How often each item was sampled."""
    return collections.Counter(sample_values(client, "table", count))


# Construction.


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (Fifo, "FifoSelector"),
        (Lifo, "LifoSelector"),
        (Uniform, "UniformSelector"),
        (MinHeap, "HeapSelector(sign=1)"),
        (MaxHeap, "HeapSelector(sign=-1)"),
        (lambda: Prioritized(0.8), "PrioritizedSelector(priority_exponent=0.8)"),
        (lambda: Prioritized(priority_exponent=2), "PrioritizedSelector(priority_exponent=2)"),
    ],
)
def test_repr_names_the_selector(selector, text):
    assert repr(selector()) == text


@pytest.mark.parametrize("selector", [Fifo, Lifo, Uniform])
def test_plain_selectors_take_no_argument(selector):
    with pytest.raises(TypeError):
        selector(1)


@pytest.mark.parametrize("arguments", [(), ("high",), (None,)])
def test_an_exponent_is_required_and_a_number(arguments):
    with pytest.raises(TypeError):
        Prioritized(*arguments)


# Order.


def test_fifo_samples_the_oldest(filled):
    client = filled(Fifo(), [1.0, 5.0, 3.0])
    assert sample_values(client, "table", 3) == [0, 0, 0]
    assert drain(client, "table") == [0, 1, 2]


def test_lifo_samples_the_newest(filled):
    client = filled(Lifo(), [1.0, 5.0, 3.0])
    assert sample_values(client, "table", 3) == [2, 2, 2]
    assert drain(client, "table") == [2, 1, 0]


def test_min_heap_samples_the_lowest_priority(filled):
    client = filled(MinHeap(), [3.0, 1.0, 2.0])
    assert sample_values(client, "table", 3) == [1, 1, 1]
    assert drain(client, "table") == [1, 2, 0]


def test_max_heap_samples_the_highest_priority(filled):
    client = filled(MaxHeap(), [2.0, 3.0, 1.0])
    assert sample_values(client, "table", 3) == [1, 1, 1]
    assert drain(client, "table") == [1, 0, 2]


@pytest.mark.parametrize(
    ("selector", "order"), [(MinHeap, [0, 2, 4, 1, 3, 5]), (MaxHeap, [1, 3, 5, 0, 2, 4])]
)
def test_heaps_break_ties_by_age(filled, selector, order):
    client = filled(selector(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    assert drain(client, "table") == order


@pytest.mark.parametrize("selector", [MinHeap, MaxHeap])
def test_an_updated_item_of_a_heap_goes_behind_its_equals(filled, selector):
    client = filled(selector(), [1.0, 1.0, 1.0])
    client.mutate_priorities("table", {sample_info(client, "table").key: 1.0})
    assert drain(client, "table") == [1, 2, 0]


@pytest.mark.parametrize(("selector", "order"), [(Fifo, [0, 1, 2]), (Lifo, [2, 1, 0])])
def test_an_update_does_not_move_an_item_in_time(filled, selector, order):
    client = filled(selector(), [1.0, 1.0, 1.0])
    client.mutate_priorities("table", {sample_info(client, "table").key: 9.0})
    assert drain(client, "table") == order


@pytest.mark.parametrize("selector", [Fifo, Lifo, MinHeap, MaxHeap])
def test_the_others_are_certain(filled, selector):
    client = filled(selector(), [1.0, 2.0, 3.0])
    assert sample_info(client, "table").probability == 1.0


def test_new_items_take_part_at_once(filled):
    client = filled(MaxHeap(), [1.0, 2.0])
    assert sample_values(client, "table") == [1]
    client.insert(9, {"table": 3.0})
    assert sample_values(client, "table") == [9]


# Chance. Each bound is passed by all but one of millions of runs.


def test_uniform_ignores_the_priorities(filled):
    counts = shares(filled(Uniform(), [0.0, 1.0, 100.0, 1000.0]), 2000)
    assert set(counts) == {0, 1, 2, 3}
    for count in counts.values():
        assert 380 < count < 620


def test_uniform_follows_inserts_and_deletes(filled):
    client = filled(Uniform(), [1.0, 1.0, 1.0])
    keys = keys_of(client)
    client.mutate_priorities("table", deletes=[keys[1]])
    client.insert(3, {"table": 1.0})
    client.mutate_priorities("table", deletes=[keys[0]])
    assert set(shares(client, 200)) == {2, 3}
    assert sample_info(client, "table").probability == 0.5


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_prioritized_samples_by_the_power_of_the_priority(filled, exponent):
    priorities = [1.0, 3.0, 6.0]
    total = sum(priority**exponent for priority in priorities)
    expected = [priority**exponent / total for priority in priorities]
    client = filled(Prioritized(exponent), priorities)

    counts = collections.Counter()
    for (step,) in client.sample("table", 3000):
        value = int(step.data[0])
        counts[value] += 1
        assert step.info.probability == pytest.approx(expected[value])
    for value, share in enumerate(expected):
        deviation = (3000 * share * (1 - share)) ** 0.5
        assert abs(counts[value] - 3000 * share) < 5.5 * deviation


def test_an_exponent_of_zero_ignores_the_size_of_the_priority(filled):
    client = filled(Prioritized(0.0), [1.0, 100.0])
    assert sample_info(client, "table").probability == 0.5


def test_a_priority_of_zero_is_never_sampled_among_others(filled):
    client = filled(Prioritized(1.0), [0.0, 1.0, 0.0, 3.0])
    assert set(shares(client, 300)) == {1, 3}


def test_a_priority_of_zero_is_never_sampled_even_with_an_exponent_of_zero(filled):
    client = filled(Prioritized(0.0), [0.0, 1.0, 0.0, 3.0])
    assert set(shares(client, 300)) == {1, 3}
    assert sample_info(client, "table").probability == 0.5


def test_priorities_that_are_all_zero_are_equal(filled):
    client = filled(Prioritized(1.0), [0.0, 0.0, 0.0, 0.0])
    counts = shares(client, 400)
    assert set(counts) == {0, 1, 2, 3}
    assert sample_info(client, "table").probability == 0.25


def test_an_update_changes_the_share(filled):
    client = filled(Prioritized(1.0), [1.0, 1.0])
    keys = keys_of(client)
    client.mutate_priorities("table", {keys[0]: 9.0})
    for (step,) in client.sample("table", 50):
        value = int(step.data[0])
        assert step.info.probability == pytest.approx([0.9, 0.1][value])
        assert step.info.priority == [9.0, 1.0][value]


def test_an_update_to_zero_takes_an_item_out(filled):
    client = filled(Prioritized(1.0), [1.0, 1.0])
    client.mutate_priorities("table", {keys_of(client)[0]: 0.0})
    assert set(shares(client, 100)) == {1}
    assert sample_info(client, "table").probability == 1.0


def test_a_delete_gives_its_share_to_the_others(filled):
    client = filled(Prioritized(1.0), [1.0, 2.0, 5.0])
    client.mutate_priorities("table", deletes=[keys_of(client)[2]])
    for (step,) in client.sample("table", 50):
        assert step.info.probability == pytest.approx([1 / 3, 2 / 3][int(step.data[0])])


def test_a_prioritized_table_with_many_items(filled):
    priorities = [float(value % 7) for value in range(90)]
    client = filled(Prioritized(1.0), priorities)
    total = sum(priorities)
    for (step,) in client.sample("table", 300):
        expected = priorities[int(step.data[0])] / total
        assert step.info.probability == pytest.approx(expected)


def test_the_remover_sees_updates_of_a_table_sampled_otherwise(filled):
    client = filled(Fifo(), [1.0, 2.0, 3.0], remover=MaxHeap(), max_size=3)
    client.mutate_priorities("table", {sample_info(client, "table").key: 10.0})
    client.insert(3, {"table": 0.5})
    assert drain(client, "table") == [1, 2, 3]


# Priorities that dm-reverb's table worker dies of.


@pytest.mark.upstream_differs
@pytest.mark.parametrize("priority", [-1.0, float("-inf"), float("nan")])
def test_a_bad_insert_is_an_error_and_the_table_lives(filled, priority):
    client = filled(Prioritized(1.0), [1.0])
    with pytest.raises(ValueError):
        client.insert(7, {"table": priority})
    client.insert(1, {"table": 0.0})
    assert client.server_info()["table"].current_size == 2
    assert sample_values(client, "table", 3) == [0, 0, 0]


@pytest.mark.upstream_differs
@pytest.mark.parametrize("priority", [-1.0, float("-inf"), float("nan")])
def test_a_bad_update_is_an_error_and_changes_nothing(filled, priority):
    client = filled(Prioritized(1.0), [1.0])
    key = sample_info(client, "table").key
    with pytest.raises(ValueError):
        client.mutate_priorities("table", {key: priority})
    assert sample_info(client, "table").priority == 1.0


@pytest.mark.parametrize("priority", [-1.0, float("nan")])
def test_a_bad_update_is_an_error(filled, priority):
    client = filled(Prioritized(1.0), [1.0])
    key = sample_info(client, "table").key
    with pytest.raises(ValueError):
        client.mutate_priorities("table", {key: priority})
