"""`reverb.rate_limiters`: their arguments, and whom they let through."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from polling import until
from reverb_under_test import reverb, sample_info

limiters = reverb.rate_limiters


def settings(limiter):
    """What a table with this limiter tells about it."""
    fifo = reverb.selectors.Fifo
    info = reverb.Table("table", fifo(), fifo(), 10, limiter).info.rate_limiter_info
    return info.samples_per_insert, info.min_size_to_sample, info.min_diff, info.max_diff


# Their arguments.


def test_the_base_class_takes_all_four_numbers():
    limiter = limiters.RateLimiter(
        samples_per_insert=2.0, min_size_to_sample=3, min_diff=-1.0, max_diff=5.5
    )
    assert settings(limiter) == (2.0, 3, -1.0, 5.5)
    assert settings(limiters.RateLimiter(1.0, 1, 0.0, 4.0)) == (1.0, 1, 0.0, 4.0)


@pytest.mark.parametrize(
    "limiter",
    [
        limiters.MinSize(1),
        limiters.SampleToInsertRatio(1.0, 1, 1.0),
        limiters.Queue(1),
        limiters.Stack(1),
    ],
)
def test_every_limiter_is_a_rate_limiter(limiter):
    assert isinstance(limiter, limiters.RateLimiter)


def test_min_size_limits_nothing_else():
    largest = sys.float_info.max
    assert settings(limiters.MinSize(min_size_to_sample=3)) == (1.0, 3, -largest, largest)


@pytest.mark.parametrize("size", [0, -1])
def test_min_size_must_be_positive(size):
    message = rf"min_size_to_sample \({size}\) must be a positive integer"
    with pytest.raises(ValueError, match=message):
        limiters.MinSize(size)


def test_min_size_must_be_whole():
    with pytest.raises(TypeError):
        limiters.MinSize(1.5)


@pytest.mark.parametrize("limiter", [limiters.Queue, limiters.Stack])
def test_queues_and_stacks_sample_once_per_insert(limiter):
    assert settings(limiter(5)) == (1.0, 1, 0.0, 5.0)
    assert settings(limiter(size=7)) == (1.0, 1, 0.0, 7.0)


@pytest.mark.parametrize("buffer", [4, 4.0, np.float64(4)])
def test_a_number_is_a_buffer_around_the_ratio(buffer):
    limiter = limiters.SampleToInsertRatio(
        samples_per_insert=2.0, min_size_to_sample=3, error_buffer=buffer
    )
    assert settings(limiter) == (2.0, 3, 2.0, 10.0)


@pytest.mark.parametrize("buffer", [(1.0, 20.0), [1.0, 20.0], np.array([1.0, 20.0])])
def test_a_pair_is_the_allowed_range(buffer):
    assert settings(limiters.SampleToInsertRatio(2.0, 3, buffer)) == (2.0, 3, 1.0, 20.0)


@pytest.mark.parametrize("ratio", [0, 0.0, -1.0])
def test_a_ratio_must_be_positive(ratio):
    with pytest.raises(ValueError, match=rf"samples_per_insert \({ratio}\) must be > 0"):
        limiters.SampleToInsertRatio(ratio, 1, 10.0)


@pytest.mark.parametrize("size", [0, -1])
def test_a_ratio_needs_a_positive_size(size):
    message = rf"min_size_to_sample \({size}\) must be a positive integer"
    with pytest.raises(ValueError, match=message):
        limiters.SampleToInsertRatio(1.0, size, (-5.0, 5.0))


@pytest.mark.parametrize(
    ("ratio", "size", "buffer"),
    [
        (1.0, 1, 0.5),
        (0.5, 1, 0.9),
        (5.0, 1, 4.9),
        (5.0, 10, (45.0, 54.0)),
        (1.0, 10, (9.0, 10.0)),
        (1.0, 10, (10.0, 0.0)),
        (1.0, 10, 0),
    ],
)
def test_a_buffer_smaller_than_one_operation_is_refused(ratio, size, buffer):
    with pytest.raises(ValueError, match=r"error_buffer must be >= max\(1\.0, samples_per_insert"):
        limiters.SampleToInsertRatio(ratio, size, buffer)


@pytest.mark.parametrize(("ratio", "buffer"), [(1.0, 1.0), (0.1, 1.0), (5.0, 5.0)])
def test_the_smallest_buffer(ratio, buffer):
    limiters.SampleToInsertRatio(ratio, 1, buffer)


def test_a_range_above_the_start_is_refused():
    with pytest.raises(ValueError, match="The range covered by error_buffer is above"):
        limiters.SampleToInsertRatio(1.0, 1, (5.0, 10.0))


def test_a_range_below_the_start_is_allowed():
    assert settings(limiters.SampleToInsertRatio(1.0, 10, (0.0, 5.0))) == (1.0, 10, 0.0, 5.0)


def test_a_range_has_two_ends():
    with pytest.raises(ValueError):
        limiters.SampleToInsertRatio(1.0, 10, (0.0, 20.0, 3.0))


@pytest.mark.parametrize(
    ("limiter", "text"),
    [
        (
            limiters.Queue(4),
            "RateLimiter(samples_per_insert=1, min_diff_=0, max_diff=4, min_size_to_sample=1)",
        ),
        (
            limiters.MinSize(3),
            (
                "RateLimiter(samples_per_insert=1, min_diff_=-1.79769e+308, "
                "max_diff=1.79769e+308, min_size_to_sample=3)"
            ),
        ),
        (
            limiters.SampleToInsertRatio(2.5, 3, 4.0),
            (
                "RateLimiter(samples_per_insert=2.5, min_diff_=3.5, max_diff=11.5, "
                "min_size_to_sample=3)"
            ),
        ),
    ],
    ids=["queue", "min-size", "ratio"],
)
def test_repr_names_the_numbers(limiter, text):
    assert repr(limiter) == text


# Whom they let through.


@pytest.fixture
def limited(make_client, make_table):
    """Give a table with a limiter, and functions that insert into and sample from it."""

    def make(limiter):
        table = make_table(rate_limiter=limiter)
        client = make_client(table)
        return (
            table,
            client,
            lambda: client.insert(1, {"table": 1.0}),
            lambda: sample_info(client, "table"),
        )

    return make


def test_min_size_blocks_samples_until_there_are_enough(limited, start):
    _, _, insert, sample = limited(limiters.MinSize(3))
    insert()
    insert()
    waiting = start(sample)
    assert waiting.is_blocked()
    insert()
    assert waiting.result().table_size == 3
    for _ in range(10):
        sample()


def test_min_size_never_blocks_inserts(limited):
    table, _, insert, _ = limited(limiters.MinSize(2))
    for _ in range(20):
        insert()
    assert table.info.current_size == 20
    assert table.can_insert(10**6)


def test_min_size_counts_what_is_there_and_not_what_was(limited, start):
    table, client, insert, sample = limited(limiters.MinSize(2))
    insert()
    insert()
    client.mutate_priorities("table", deletes=[sample().key])
    assert not table.can_sample(1)
    waiting = start(sample)
    assert waiting.is_blocked()
    insert()
    assert waiting.result().table_size == 2


def test_a_ratio_blocks_inserts_that_run_ahead(limited, start):
    table, _, insert, sample = limited(limiters.SampleToInsertRatio(1.0, 1, (0.0, 2.0)))
    insert()
    insert()
    assert not table.can_insert(1)
    waiting = start(insert)
    assert waiting.is_blocked()
    assert table.info.current_size == 2
    sample()
    waiting.result()
    assert table.info.current_size == 3


def test_a_ratio_blocks_samples_that_run_ahead(limited, start):
    table, _, insert, sample = limited(limiters.SampleToInsertRatio(2.0, 1, (0.0, 10.0)))
    insert()
    sample()
    sample()
    assert not table.can_sample(1)
    waiting = start(sample)
    assert waiting.is_blocked()
    insert()
    assert waiting.result().times_sampled == 3


def test_a_ratio_lets_inserts_through_below_its_size(limited):
    # By the ratio alone the second insert would have to wait.
    table, _, insert, _ = limited(limiters.SampleToInsertRatio(1.0, 5, (0.0, 2.0)))
    for _ in range(5):
        insert()
    assert table.info.current_size == 5
    assert not table.can_insert(1)
    assert table.can_sample(5)
    assert not table.can_sample(6)


def test_a_ratio_below_its_size_blocks_samples(limited):
    table, _, insert, _ = limited(limiters.SampleToInsertRatio(10.0, 3, 100.0))
    insert()
    insert()
    assert not table.can_sample(1)
    insert()
    assert table.can_sample(1)


def test_the_buffer_is_around_the_start(limited):
    # The range is 3 * 2 +- 4, so from the start on four samples are free, and so are two inserts.
    table, _, insert, _ = limited(limiters.SampleToInsertRatio(2.0, 3, 4.0))
    for _ in range(3):
        insert()
    assert table.can_sample(4)
    assert not table.can_sample(5)
    assert table.can_insert(2)
    assert not table.can_insert(3)


def test_deletes_let_a_ratio_fall_below_its_size(limited):
    table, client, insert, sample = limited(limiters.SampleToInsertRatio(1.0, 2, (-5.0, 2.0)))
    insert()
    insert()
    assert table.can_sample(1)
    assert not table.can_insert(1)
    client.mutate_priorities("table", deletes=[sample().key])
    assert not table.can_sample(1)
    assert table.can_insert(1)


def test_inserts_count_even_when_their_item_is_evicted(make_client, make_table):
    limiter = limiters.SampleToInsertRatio(1.0, 1, (0.0, 4.0))
    table = make_table(rate_limiter=limiter, max_size=1)
    client = make_client(table)
    for value in range(4):
        client.insert(value, {"table": 1.0})
    assert not table.can_insert(1)
    assert table.can_sample(4)
    assert not table.can_sample(5)


def test_a_range_may_allow_samples_ahead_of_inserts(limited):
    table, _, insert, _ = limited(limiters.RateLimiter(1.0, 1, -3.0, 10.0))
    insert()
    assert table.can_sample(4)
    assert not table.can_sample(5)


def test_a_queue_counts_what_it_holds(make_client):
    table = reverb.Table.queue("queue", 5)
    client = make_client(table)
    for value in range(3):
        client.insert(value, {"queue": 1.0})
    assert table.can_sample(3)
    assert not table.can_sample(4)
    assert table.can_insert(2)
    assert not table.can_insert(3)


def test_deleting_is_no_sampling(limited):
    # Only samples make room by the ratio, until fewer items than the minimum are left.
    table, client, insert, sample = limited(limiters.RateLimiter(1.0, 2, -10.0, 4.0))
    for _ in range(4):
        insert()
    client.mutate_priorities("table", deletes=[sample().key])
    sample()
    assert table.can_insert(2)
    assert not table.can_insert(3)
    client.mutate_priorities("table", deletes=[sample().key])
    client.mutate_priorities("table", deletes=[sample().key])
    assert table.info.current_size == 1
    assert not table.can_sample(1)
    assert table.can_insert(4)
    assert not table.can_insert(5)


def test_blocked_inserts_go_one_by_one(limited, start):
    table, _, insert, sample = limited(limiters.SampleToInsertRatio(1.0, 1, (0.0, 2.0)))
    insert()
    insert()
    waiting = [start(insert) for _ in range(3)]
    for size in (3, 4, 5):
        sample()
        until(lambda size=size: table.info.current_size == size)
    for each in waiting:
        each.result()


def test_one_limiter_blocks_only_its_own_table(make_client, make_table):
    client = make_client(
        make_table("slow", rate_limiter=limiters.MinSize(100)),
        make_table("fast"),
    )
    client.insert(1, {"slow": 1.0, "fast": 1.0})
    assert sample_info(client, "fast").times_sampled == 1
    assert client.server_info()["slow"].rate_limiter_info.sample_stats.completed == 0
