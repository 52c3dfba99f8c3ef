"""Reservations, groups and batches of a table in this process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.errors import (
    ClosedError,
    GroupNotFoundError,
    LeaseError,
    RolloutError,
    SpecError,
    WaitTimeoutError,
)
from echoic.limiters import MinSize, SampleToInsertRatio
from echoic.rollouts import Reservation, RolloutTable
from rollout_items import columns, fill

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.rollouts import RolloutStats

    from conftest import Background

    Make = Callable[..., RolloutTable]


def identity(stats: RolloutStats) -> bool:
    """Whether every group that was submitted is accounted for."""
    parts = ("running", "accepted", "rejected", "filtered")
    return stats.submitted == sum(getattr(stats, part) for part in parts)


def test_what_was_added_is_delivered(make: Make) -> None:
    table = make()
    for group in range(2):
        reservation = table.reserve(key=f"prompt-{group}", source=f"worker-{group}")
        assert fill(reservation, [group, group + 0.5], length=3 + group) == "complete"
    batch = table.sample()
    assert batch.lengths.tolist() == [3, 3, 4, 4]
    assert batch.offsets.tolist() == [0, 3, 6, 10, 14]
    assert batch["tokens"].tolist() == [0, 1, 2, 10, 11, 12, 0, 1, 2, 3, 10, 11, 12, 13]
    assert batch["logprobs"].dtype == np.float32
    assert batch["logprobs"][4] == -11 / 8
    assert batch["reward"].tolist() == [0, 0.5, 1, 1.5]
    assert batch["prompt"].tolist() == [0, 0, 1, 1]
    assert batch.group.tolist() == [0, 0, 1, 1]
    assert batch.index.tolist() == [0, 1, 0, 1]
    assert (batch.keys, batch.sources) == (["prompt-0", "prompt-1"], ["worker-0", "worker-1"])
    assert batch.versions.tolist() == [0] * 14
    assert identity(table.stats())


def test_items_of_one_call_are_those_of_many(make: Make) -> None:
    table = make(batch_groups=1)
    reservation = table.reserve()
    one, two = columns(3), columns(5, 10)
    flat = {name: np.concatenate([one[name], two[name]]) for name in one}
    rewards = np.array([0.25, 0.75], np.float32)
    fields = {"reward": rewards, "prompt": np.array([7, 7])}
    versions = [0, 0, 1, 1, 2, 2, 2, 2]
    for wrong in (versions[1:], [*versions, 2]):
        with pytest.raises(SpecError, match="each of 8 tokens"):
            reservation.add_items([3, 5], flat, fields, versions=wrong)
    assert reservation.add_items([3, 5], flat, fields, versions=versions) == "complete"
    batch = table.sample()
    assert batch.versions.tolist() == versions
    assert [item["tokens"].tolist() for item in batch] == [
        one["tokens"].tolist(),
        two["tokens"].tolist(),
    ]
    assert batch["reward"].tolist() == rewards.tolist()


def test_padded_and_packed_rows(make: Make) -> None:
    table = make(batch_groups=1, group_size=3)
    for form in ("padded", "left", "packed"):
        reservation = table.reserve()
        for length in (2, 5, 3):
            reservation.add(columns(length, 1), {"reward": 0, "prompt": 0})
        if form == "packed":
            batch = table.sample(form="packed", width=5)
            assert batch["tokens"].shape == (2, 5)
            assert sorted(batch.items_of_cells.ravel().tolist()) == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
        else:
            batch = table.sample(form="padded", left=form == "left")
            assert batch["tokens"].shape == (3, 5)
            row = [1, 2, 0, 0, 0] if form == "padded" else [0, 0, 0, 1, 2]
            assert batch["tokens"][0].tolist() == row
            assert batch.is_token[0].tolist() == [token > 0 for token in row]
            assert batch.versions[0].tolist() == [0 if token else -1 for token in row]
        for place, length in enumerate((2, 5, 3)):
            item = batch.item(place)
            assert item["tokens"].tolist() == list(range(1, length + 1))
            cells = batch.cells(place)
            assert batch.positions.reshape(-1)[cells].tolist() == list(range(length))


def test_a_row_that_is_too_narrow_is_refused_and_nothing_is_lost(make: Make) -> None:
    table = make(batch_groups=1)
    fill(table.reserve(), [0, 1], length=9)
    with pytest.raises(RolloutError, match="item 0 of the batch has 9 tokens, more than a row's 8"):
        table.sample(form="packed", width=8, lease=60)
    assert table.sample(form="packed", width=9).tokens == 18


def test_blobs_come_back(make: Make) -> None:
    table = make(batch_groups=1)
    reservation = table.reserve()
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    blobs = {"image": image, "text": "naïve", "raw": b"\x00\xff"}
    reservation.add(columns(1), {"reward": 0, "prompt": 0}, blobs=blobs)
    reservation.add(columns(2), {"reward": 0, "prompt": 0})
    batch = table.sample()
    found = batch.blobs(0)
    assert found["text"] == "naïve"
    assert found["raw"] == b"\x00\xff"
    np.testing.assert_array_equal(found["image"], image)
    assert batch.blobs(1) == {}


def test_an_object_is_no_blob(make: Make) -> None:
    reservation = make().reserve()
    with pytest.raises(TypeError, match="blob 'what' must be bytes, text or an array of numbers"):
        reservation.add(columns(1), {"reward": 0, "prompt": 0}, blobs={"what": object()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "column 'tokens' is missing"),
        ({"tokens": np.zeros(3)}, "column 'tokens': expected dtype int32, got float64"),
        ({"tokens": np.zeros((3, 1), np.int32)}, "expected one axis"),
        ({"mask": np.ones(2, np.uint8)}, "column 'mask': expected 3 values"),
        ({"other": np.ones(3)}, "there is no column 'other'"),
        ({"tokens": [0, 2**31, 1]}, "column 'tokens'"),
    ],
)
def test_columns_that_do_not_fit_change_nothing(
    make: Make, change: dict[str, Any], message: str
) -> None:
    reservation = make().reserve()
    wrong = {name: value for name, value in {**columns(3), **change}.items() if value is not None}
    with pytest.raises(SpecError, match=message):
        reservation.add(wrong, {"reward": 0, "prompt": 0})
    assert reservation.add(columns(3), {"reward": 0, "prompt": 0}, item=0) == "running"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward": 1.0}, "field 'prompt' is missing"),
        ({"reward": 1.0, "prompt": 1.5}, "field 'prompt': expected a int64, got float64"),
        ({"reward": [1.0], "prompt": 1}, "field 'reward'"),
        ({"reward": 1.0, "prompt": 1, "more": 1}, "there is no field 'more'"),
    ],
)
def test_fields_that_do_not_fit_change_nothing(
    make: Make, fields: dict[str, Any], message: str
) -> None:
    reservation = make().reserve()
    with pytest.raises(SpecError, match=message):
        reservation.add(columns(3), fields)
    assert reservation.add(columns(3), {"reward": 0, "prompt": 0}, item=0) == "running"


def test_an_end_that_is_not_the_next_is_no_duplicate(make: Make) -> None:
    table = make()
    reservation = table.reserve()
    # Two that make one item at the same time.
    other = table.reservation(reservation.ticket)
    reservation.extend(0, columns(1))
    with pytest.raises(RolloutError, match="1, the next one of item 0 of group 0"):
        other.finish(0, {"reward": 0, "prompt": 0})


def test_what_was_refused_takes_no_place(make: Make) -> None:
    reservation = make(max_tokens=4, batch_groups=1).reserve()
    with pytest.raises(RolloutError):
        reservation.add(columns(5), {"reward": 0, "prompt": 0})
    assert fill(reservation, [0, 1]) == "complete"


def test_too_many_tokens_are_refused(make: Make) -> None:
    reservation = make(max_tokens=4).reserve()
    with pytest.raises(RolloutError, match="at most max_tokens = 4, got 5"):
        reservation.add(columns(5), {"reward": 0, "prompt": 0})


def test_nobody_makes_more_than_will_be_fresh(make: Make) -> None:
    # (max_lag + V + 1) · B = 4 groups at version 0, and 6 at version 1.
    table = make(max_lag=1)
    reservations = table.reserve_many(100)
    assert len(reservations) == 4
    with pytest.raises(WaitTimeoutError, match="learner has to publish its next version") as caught:
        table.reserve(timeout=0)
    assert caught.value.reason == "STALENESS"
    for reservation in reservations:
        fill(reservation, [0, 1])
    table.sample()
    with pytest.raises(WaitTimeoutError):
        table.reserve(timeout=0.01)
    table.publish_version(1)
    assert len(table.reserve_many(100)) == 2
    assert identity(table.stats())


def test_whoever_waits_is_woken_by_a_version(make: Make, background: Background) -> None:
    table = make(max_lag=0)
    table.reserve_many(2)
    reserved = background.start_and_let_block(table.reserve)
    table.publish_version(1)
    assert reserved().group == 2


def test_a_group_that_fails_makes_room(make: Make, background: Background) -> None:
    table = make(max_lag=0)
    reservations = table.reserve_many(2)
    reserved = background.start_and_let_block(table.reserve)
    reservations[0].fail()
    assert reserved().group == 2
    assert table.stats().rejected == 1
    assert reservations[0].add(columns(1), {"reward": 0, "prompt": 0}) == "rejected"


def test_a_with_block_that_raises_gives_its_group_up(make: Make) -> None:
    table = make()
    with pytest.raises(ZeroDivisionError), table.reserve():
        raise ZeroDivisionError
    assert (table.stats().running, table.stats().rejected) == (0, 1)


def test_a_producer_that_says_nothing_loses_its_reservation(
    make: Make, background: Background
) -> None:
    table = make(max_lag=0, reservation_ttl=0.05)
    first = table.reserve()
    table.reserve(ttl=1000)
    # Nothing happens but that time passes.
    assert background.start(table.reserve)().group == 2
    assert first.add(columns(1), {"reward": 0, "prompt": 0}) == "expired"
    assert not first.renew()
    assert table.stats().expired == 1


def test_a_reservation_travels_as_its_ticket(make: Make) -> None:
    table = make(batch_groups=1)
    reservation = table.reservation(table.reserve().ticket)
    assert fill(reservation, [1, 2]) == "complete"
    assert table.reservation(reservation.ticket).status == "complete"


def test_a_reservation_that_is_opened_again_goes_on_where_its_items_are(make: Make) -> None:
    table = make(batch_groups=1)
    first = table.reserve()
    ticket = first.ticket
    first.extend(0, columns(2, 10))
    again = table.reservation(ticket)
    assert again.extend(0, columns(1, 20)) == "running"
    # And once more, at the end of an item and for the next one.
    last = table.reservation(ticket)
    last.finish(0, {"reward": 1, "prompt": 0})
    assert table.reservation(ticket).add(columns(1, 30), {"reward": 2, "prompt": 0}) == "complete"
    batch = table.sample()
    assert batch.offsets.tolist() == [0, 3, 4]
    assert batch["reward"].tolist() == [1, 2]
    assert table.stats().duplicates == 0


def test_what_comes_first_counts_when_there_are_more_than_needed(make: Make) -> None:
    table = make(redundancy=1, batch_groups=1)
    reservation = table.reserve()
    reservation.extend(0, columns(3))
    reservation.add(columns(1), {"reward": 1, "prompt": 0}, item=2)
    assert reservation.add(columns(1), {"reward": 2, "prompt": 0}, item=1) == "complete"
    batch = table.sample()
    assert batch.index.tolist() == [1, 2]
    assert table.stats().surplus == 1


def test_a_filter_lets_go_of_groups_without_a_difference(make: Make) -> None:
    table = make(filter="spread(reward) > 0 and max(length) < 10", batch_groups=1, max_lag=0)
    assert fill(table.reserve(), [1, 1]) == "filtered"
    assert fill(table.reserve(), [0, 1], length=10) == "filtered"
    assert fill(table.reserve(), [0, 1]) == "complete"
    stats = table.stats()
    assert (stats.filtered, stats.accepted) == (2, 1)
    assert identity(stats)


def test_a_filter_that_makes_no_sense_is_refused(make: Make) -> None:
    with pytest.raises(RolloutError, match="filter: "):
        make(filter="spread(rewrad) > 0")


def test_what_is_removed_is_reserved_again(make: Make) -> None:
    table = make(max_lag=0)
    reservations = table.reserve_many(2)
    for reservation in reservations:
        fill(reservation, [0, 1])
    assert table.remove([reservations[0].group, 77]) == 1
    assert table.reserve(timeout=0).group == 2
    assert identity(table.stats())


def test_versions_of_tokens_and_lags(make: Make) -> None:
    table = make(batch_groups=1, max_lag=4, max_running=8)
    table.publish_version(1)
    reservation = table.reserve(version=0)
    table.publish_version(2)
    reservation.add(columns(4), {"reward": 0, "prompt": 0}, versions=[1, 1, 2, 2])
    reservation.add(columns(2), {"reward": 1, "prompt": 0}, versions=2)
    table.publish_version(4)
    batch = table.sample()
    assert batch.target == 4
    assert batch.versions.tolist() == [1, 1, 2, 2, 2, 2]
    assert batch.lag_oldest.tolist() == [3]
    assert batch.lag_newest.tolist() == [2]
    assert batch.span.tolist() == [1]
    assert batch.lag_dispatch.tolist() == [4]
    assert (batch.publish_lag[0], batch.in_flight[0], batch.in_queue[0]) == (1, 1, 2)
    assert batch.item_lag_oldest.tolist() == [3, 2]


def test_what_is_too_old_is_dropped_and_made_again(make: Make) -> None:
    table = make(max_lag=0)
    for reservation in table.reserve_many(2):
        fill(reservation, [0, 1])
    table.publish_version(1)
    stats = table.stats()
    assert (stats.stale, stats.queued, stats.accepted) == (2, 0, 0)
    assert len(table.reserve_many(100)) == 4
    assert identity(table.stats())


def test_rows_show_nothing_of_the_batch_before(make: Make) -> None:
    table = make(batch_groups=1, group_size=1, max_tokens=8)
    table.reserve().add(
        {**columns(8), "tokens": np.full(8, 9, np.int32)}, {"reward": 0, "prompt": 0}
    )
    assert table.sample(form="padded", width=8)["tokens"].tolist() == [[9] * 8]
    table.reserve().add(
        {**columns(3), "tokens": np.full(3, 7, np.int32)}, {"reward": 0, "prompt": 0}
    )
    batch = table.sample(form="padded", left=True, width=8)
    assert batch["tokens"].tolist() == [[0] * 5 + [7] * 3]


def test_tokens_count_as_of_the_version_that_their_producer_told(make: Make) -> None:
    table = make(batch_groups=1, max_lag=3)
    table.publish_version(3)
    fill(table.reserve(version=2), [0, 1])
    batch = table.sample()
    assert (batch.versions[0], batch.lag_oldest[0], batch.lag_dispatch[0]) == (2, 1, 1)


def test_a_waiting_thread_gets_what_another_left(make: Make, background: Background) -> None:
    # Nobody is there to look at a clock but the two that wait.
    table = make(batch_groups=1)
    waits = [background.start_and_let_block(lambda: table.sample(lease=0.2)) for _ in range(2)]
    fill(table.reserve(), [0, 1])
    attempts = sorted(wait().lease for wait in waits)
    assert [attempt for _, _, attempt in attempts] == [1, 2]


def test_a_waiting_thread_sees_a_deadline(make: Make, background: Background) -> None:
    table = make(batch_groups=1, group_deadline=1.0, min_group_size=1)
    sampled = background.start_and_let_block(table.sample)
    table.reserve().add(columns(1), {"reward": 0, "prompt": 0})
    assert len(sampled()) == 1


def test_a_version_is_heard_of_though_a_reservation_ran_out(
    make: Make, background: Background
) -> None:
    table = make(reservation_ttl=0.05)
    table.reserve()
    version = background.start_and_let_block(table.wait_version, 0)
    time.sleep(0.1)
    table.publish_version(1)
    assert version() == 1


def test_an_error_in_a_block_is_not_replaced(make: Make) -> None:
    table = make(batch_groups=1)
    fill(table.reserve(), [0, 1])

    def learn_for_too_long() -> None:
        with table.sample(lease=0.001):
            table.sample(timeout=10)
            raise ZeroDivisionError

    def make_a_group_of_what_is_closed() -> None:
        with table.reserve():
            table.close()
            raise ZeroDivisionError

    for wrong in (learn_for_too_long, make_a_group_of_what_is_closed):
        with pytest.raises(ZeroDivisionError):
            wrong()


def test_a_block_may_acknowledge_by_itself(make: Make) -> None:
    table = make(batch_groups=1)
    fill(table.reserve(), [0, 1])
    with table.sample(lease=60) as batch:
        batch.ack()
    assert table.stats().acked == 1


def test_no_tokens_are_no_segment(make: Make) -> None:
    reservation = make(batch_groups=1).reserve()
    nothing = {"tokens": [], "logprobs": [], "mask": []}
    reservation.extend(0, nothing)
    reservation.add(columns(1), {"reward": 0, "prompt": 0}, item=0)
    assert reservation.add(nothing, {"reward": 0, "prompt": 0}, item=1) == "complete"


def test_old_tokens_are_masked(make: Make) -> None:
    table = make(max_lag=0, on_stale="mask", mask="mask", batch_groups=1)
    reservation = table.reserve()
    reservation.extend(0, columns(2), versions=0)
    table.publish_version(1)
    reservation.add(columns(2), {"reward": 0, "prompt": 0}, item=0, versions=1)
    reservation.add(columns(1), {"reward": 0, "prompt": 0}, item=1, versions=1)
    batch = table.sample()
    assert batch["mask"].tolist() == [0, 0, 1, 1, 1]
    assert batch["tokens"].tolist() == [0, 1, 0, 1, 0]
    assert table.stats().masked_tokens == 2


def test_another_producer_goes_on_with_what_is_there(make: Make) -> None:
    table = make(batch_groups=1, max_lag=3)
    first = table.reserve(key="long", source="a")
    first.extend(0, columns(2), versions=0)
    first.add(columns(1), {"reward": 0, "prompt": 0}, item=1)
    first.suspend()
    table.publish_version(1)
    second = Reservation.resume(table, source="b")
    assert (second.group, second.key, second.version) == (first.group, "long", 1)
    done = second.progress[0]
    assert (done.segments, done.finished) == (1, False)
    assert done.columns["tokens"].tolist() == [0, 1]
    assert second.progress[1].finished
    # The one who left it and wakes up is told, and changes nothing.
    assert first.extend(0, columns(7)) == "expired"
    assert second.add(columns(2, 2), {"reward": 1, "prompt": 0}, item=0) == "complete"
    batch = table.sample()
    assert batch.item(0)["tokens"].tolist() == [0, 1, 2, 3]
    assert batch.versions.tolist() == [0, 0, 1, 1, 0]
    assert batch.sources == ["b"]


def test_acquire_prefers_what_was_left(make: Make) -> None:
    table = make()
    left = table.reserve()
    left.suspend()
    assert table.acquire().group == left.group
    assert table.acquire().group == left.group + 1


def test_a_batch_that_is_not_acknowledged_comes_again(make: Make) -> None:
    table = make(batch_groups=1)
    fill(table.reserve(), [0, 1])
    late = table.sample(lease=0.02)
    again = table.sample(lease=60, timeout=10)
    assert again["tokens"].tolist() == late["tokens"].tolist()
    assert (again.number, again.lease[2]) == (late.number, 2)
    with pytest.raises(LeaseError, match="delivered again"):
        late.ack()
    again.ack()
    with pytest.raises(LeaseError):
        again.ack()
    stats = table.stats()
    assert (stats.redelivered, stats.fenced, stats.acked) == (1, 2, 1)


def test_at_most_once_loses_what_is_not_acknowledged(make: Make) -> None:
    table = make(batch_groups=1, delivery="at_most_once")
    fill(table.reserve(), [0, 1])
    with pytest.raises(ZeroDivisionError), table.sample(lease=60):
        raise ZeroDivisionError
    with pytest.raises(WaitTimeoutError):
        table.sample(timeout=0)
    assert table.stats().lost == 1


def test_a_with_block_acknowledges_its_batch(make: Make) -> None:
    table = make(batch_groups=1)
    fill(table.reserve(), [0, 1])
    with table.sample(lease=60) as batch:
        batch.extend(100)
    assert table.stats().acked == 1


@pytest.mark.parametrize("balance", ["count", "tokens", "squares"])
def test_ranks_get_disjoint_shares_of_one_batch(make: Make, balance: Any) -> None:
    table = make(batch_groups=4)
    for length in (1, 9, 9, 1):
        fill(table.reserve(), [0, 1], length=length)
    how: dict[str, Any] = {"ranks": 2, "balance": balance, "lease": 60}
    second = table.sample(rank=1, **how)
    second.nack()
    first, again = table.sample(rank=0, **how), table.sample(rank=1, **how)
    assert again.group_ids.tolist() == second.group_ids.tolist()
    assert len(first.group_ids) == len(again.group_ids) == 2
    assert sorted([*first.group_ids, *again.group_ids]) == [0, 1, 2, 3]
    if balance != "count":
        assert first.tokens == again.tokens == 20


def test_a_batch_by_tokens(make: Make) -> None:
    table = make(batch_groups=8, max_tokens=10)
    for length in (10, 5, 5, 10):
        fill(table.reserve(), [0, 1], length=length)
    with pytest.raises(RolloutError, match="at least max_tokens × group_size = 20"):
        table.sample(tokens=19)
    batch = table.sample(tokens=45)
    assert (batch.tokens, len(batch.group_ids)) == (40, 3)


def test_in_order_waits_for_the_first(make: Make) -> None:
    table = make(batch_groups=1, order="submission")
    first, second = table.reserve(), table.reserve()
    fill(second, [0, 1])
    with pytest.raises(WaitTimeoutError, match="group 0 has to be in this batch") as caught:
        table.sample(timeout=0)
    assert caught.value.reason == "GROUP"
    fill(first, [0, 1])
    assert [table.sample().group_ids[0] for _ in range(2)] == [0, 1]


def test_batches_wait_so_that_nothing_gets_too_old(make: Make) -> None:
    table = make(batch_groups=1, max_lag=1, on_stale="wait")
    slow, quick = table.reserve(), table.reserve()
    fill(quick, [0, 1])
    # Both were reserved at version 0: one may be in the batch for version 0, one in the next.
    assert table.sample().group_ids.tolist() == [quick.group]
    table.publish_version(1)
    fill(table.reserve(), [0, 1])
    with pytest.raises(WaitTimeoutError, match=f"group {slow.group} has to be in this batch"):
        table.sample(timeout=0)
    fill(slow, [0, 1])
    batch = table.sample()
    assert (batch.group_ids.tolist(), batch.lag_oldest.tolist()) == ([slow.group], [1])


def test_a_batch_leaves_when_those_before_were_learned_from(make: Make) -> None:
    table = make(batch_groups=1, max_lag=3, target_lag=0)
    for reservation in table.reserve_many(2):
        fill(reservation, [0, 1])
    table.sample()
    with pytest.raises(WaitTimeoutError, match="leaves at version 1") as caught:
        table.sample(timeout=0)
    assert caught.value.reason == "STALENESS"
    table.publish_version(1)
    assert table.sample().target == 1


def test_a_learner_goes_on_from_its_checkpoint(make: Make) -> None:
    table = make(batch_groups=1, max_lag=1)
    for _ in range(2):
        fill(table.reserve(), [0, 1])
    out = table.sample(lease=60)
    table.publish_version(1)
    table.restore(0)
    with pytest.raises(LeaseError):
        out.ack()
    # As if nothing had been used up: two groups are there, and (1 + 0 + 1) · 1 may be.
    with pytest.raises(WaitTimeoutError):
        table.reserve(timeout=0)
    assert {table.sample().group_ids[0] for _ in range(2)} == {0, 1}
    assert identity(table.stats())


def test_weighted_groups_are_used_again(make: Make) -> None:
    table = make(batch_groups=1, order="weighted", max_uses=2)
    reservation = table.reserve()
    fill(reservation, [0, 1])
    assert [table.sample().group_ids[0] for _ in range(2)] == [0, 0]
    with pytest.raises(WaitTimeoutError):
        table.sample(timeout=0)


def test_priorities_of_groups_count_when_they_are_drawn(make: Make) -> None:
    table = make(batch_groups=1, order="weighted", max_uses=None)
    for _ in range(2):
        fill(table.reserve(), [0, 1])
    table.update_priorities([0, 1], [0.0, 2.0])
    assert {table.sample().group_ids[0] for _ in range(20)} == {1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_lag": 3, "capacity": 7}, r"2 × 1 × \(3 \+ 1\) = 8"),
        ({"max_lag": 1, "pipeline_depth": 2}, "pipeline_depth must be from 0 to 1, got 2"),
        ({"pipeline_depth": 2}, "pipeline_depth needs max_lag"),
        ({"on_stale": "mask", "max_lag": 1}, "mask column"),
        ({"max_uses": 2}, "needs the weighted order"),
        ({"group_size": 0}, "group_size must be from 1"),
    ],
)
def test_settings_that_can_not_work_are_refused(
    make: Make, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RolloutError, match=message):
        make(**settings)


def test_settings_are_told(make: Make) -> None:
    table = make(max_lag=2, order="window", window=5, filter="count() > 1")
    settings = table.settings
    assert (settings["max_lag"], settings["order"], settings["window"]) == (2, "window", 5)
    assert settings["columns"]["tokens"] == np.dtype(np.int32)
    assert "count" in settings["filter"]
    # Random, so another for each table.
    assert make().settings["seed"] != settings["seed"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_lag": 2, "order": "window", "window": 5, "on_stale": "mask", "mask": "mask"},
        {"limiter": SampleToInsertRatio(2.0, 3, error_buffer=8.0)},
        {"limiter": MinSize(4), "filter": "spread(reward) > 0", "group_deadline": 2.5},
        {"order": "weighted", "max_uses": 3, "delivery": "at_most_once", "reservation_ttl": 0.25},
        {"redundancy": 2, "min_group_size": 1, "on_expiry": "suspend", "seed": 7},
        {
            "max_lag": 3,
            "target_lag": 1,
            "on_stale": "wait",
            "pipeline_depth": 2,
            "max_mean_lag": 1.5,
        },
    ],
)
def test_a_table_is_made_again_from_its_settings(make: Make, settings: dict[str, Any]) -> None:
    told = make(**settings).settings
    with RolloutTable(**told) as again:
        assert again.settings == told
    for name, value in settings.items():
        if name not in {"limiter", "filter"}:
            assert told[name] == value


def test_numbers_know_of_reservations_that_are_over(make: Make) -> None:
    table = make(reservation_ttl=0.01)
    table.reserve()
    # Nobody calls anything else.
    deadline = time.monotonic() + 60
    while table.stats().running and time.monotonic() < deadline:
        pass
    stats = table.stats()
    assert (stats.running, stats.expired) == (0, 1)


def test_a_group_that_never_was(make: Make) -> None:
    table = make()
    with pytest.raises(GroupNotFoundError, match="group 5 was never reserved"):
        table.reservation((5, 0)).add(columns(1), {"reward": 0, "prompt": 0})


def test_a_version_that_falls_is_refused(make: Make) -> None:
    table = make()
    table.publish_version(3)
    with pytest.raises(RolloutError, match="at least the learner's version 3, got 2"):
        table.publish_version(2)


def test_close_wakes_everyone(make: Make, background: Background) -> None:
    table = make(max_lag=0)
    table.reserve_many(2)
    waits = [
        background.start_and_let_block(call)
        for call in (table.reserve, table.sample, lambda: table.wait_version(0))
    ]
    table.close()
    for wait in waits:
        with pytest.raises(ClosedError):
            wait()


def test_waits_are_counted_by_reason(make: Make) -> None:
    table = make(max_lag=0)
    table.reserve_many(2)
    with pytest.raises(WaitTimeoutError):
        table.reserve(timeout=0.05)
    with pytest.raises(WaitTimeoutError):
        table.sample(timeout=0.05)
    stats = table.stats()
    waiting, limited, seconds = stats.producer_waits["STALENESS"]
    assert (waiting, limited) == (0, 1)
    assert seconds >= 0.03
    assert set(stats.consumer_waits) == {"GROUP"}


def test_sources_are_counted(make: Make) -> None:
    table = make()
    fill(table.reserve(source="a"), [0, 1])
    table.reserve(source="b").fail()
    table.reserve(source="b")
    by_name = table.stats().sources
    assert by_name["a"].accepted == 1
    assert by_name["a"].tokens == 6
    assert (by_name["a"].delivered, by_name["b"].delivered) == (0, 0)
    assert 0 <= by_name["a"].idle < 60
    assert (by_name["b"].submitted, by_name["b"].rejected, by_name["b"].running) == (
        2,
        1,
        1,
    )


def test_arrays_outlive_the_batch_and_the_table(make: Make) -> None:
    table = make(batch_groups=1)
    fill(table.reserve(), [0, 1])
    tokens = table.sample()["tokens"]
    for _ in range(20):
        fill(table.reserve(), [5, 6])
        table.sample()
    table.close()
    assert tokens.tolist() == [0, 1, 2, 10, 11, 12]


def test_many_threads_lose_nothing(make: Make, background: Background) -> None:
    table = make(max_lag=2, batch_groups=4, group_size=3)
    batches, groups = 60, []
    stop = threading.Event()

    def produce(worker: int) -> None:
        rng = np.random.default_rng(worker)
        while not stop.is_set():
            try:
                reservation = table.reserve(source=str(worker), timeout=0.05)
            except WaitTimeoutError:
                continue
            if rng.random() < 0.2:
                reservation.fail()
            else:
                fill(reservation, [worker, worker, worker], length=int(rng.integers(1, 20)))

    workers = [background.start(produce, worker) for worker in range(3)]
    for version in range(1, batches + 1):
        with table.sample(lease=60, timeout=20) as batch:
            assert batch.lag_oldest.max() <= 2
            assert len(batch) == 12
            groups += batch.group_ids.tolist()
        table.publish_version(version)
    stop.set()
    for worker in workers:
        worker()
    assert len(set(groups)) == len(groups) == 4 * batches
    assert identity(table.stats())


def test_waits_for_reservations_are_counted_by_name(make: Make, background: Background) -> None:
    table = make(max_running=1)
    first = table.reserve(source="quick")
    reserved = background.start_and_let_block(lambda: table.reserve(source="late"))
    deadline = time.monotonic() + 20
    while not (waits := table.stats().source_waits) or not waits["late"].waiting:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert waits["late"].oldest >= 0
    assert (waits["late"].passed, waits["late"].starving) == (0, False)
    first.fail()
    reserved()
    assert table.stats().source_waits["late"].waiting == 0
    assert "quick" not in table.stats().source_waits


def test_in_its_process_a_table_answers_at_once(make: Callable[..., RolloutTable]) -> None:
    table = make(group_size=2)
    reservation = table.reserve()
    fields = {"reward": 0, "prompt": 0}
    with pytest.raises(RolloutError, match="got 65"):
        reservation.add(columns(65), fields, wait=False)
    assert reservation.add(columns(1), fields, wait=False) == "running"
    assert reservation.add(columns(1), fields, wait=False) == "complete"
    table.flush()


def test_a_lease_of_a_table_that_is_gone_is_over() -> None:
    gone, table = (RolloutTable("t", {"tokens": "int32"}, batch_groups=1) for _ in range(2))
    gone.reserve().add({"tokens": [1]})
    batch = gone.sample(lease=60)
    batch._source = table._native
    with pytest.raises(LeaseError, match="the table never made it, and was started anew since"):
        batch.ack()
