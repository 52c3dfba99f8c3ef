"""Batches of rollouts as torch and tensordict take them."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations.tensordict import rows, to_tensordict
from echoic.rollouts import RolloutTable
from rollout_answers import add

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch


def test_rows_are_the_same_for_every_form(batch: RolloutBatch) -> None:
    found = rows(batch)
    assert found["tokens"].tolist() == [
        [11, 12, 21, 0, 0],
        [11, 12, 22, 91, 23],
        [13, 24, 25, 0, 0],
        [13, 26, 0, 0, 0],
    ]
    assert found["versions"].tolist()[3] == [0, 0, -1, -1, -1]
    assert found["is_token"].sum(1).tolist() == found["length"].tolist() == [3, 5, 3, 2]
    assert found["reward"].tolist() == [0, 1, 0.5, 0.25]
    assert found["group"].tolist() == batch.group_ids[batch.group].tolist()


def test_tensordict_has_a_row_for_each_item(batch: RolloutBatch) -> None:
    pytest.importorskip("tensordict")
    found = to_tensordict(batch)
    assert found.batch_size == (4,)
    assert found[1]["tokens"].tolist() == [11, 12, 22, 91, 23]
    assert found["logprobs"].shape == (4, 5)


def test_dataset_gives_a_rank_its_shares_until_the_table_is_closed(table: RolloutTable) -> None:
    torch = pytest.importorskip("torch")
    from echoic.integrations.torch import RolloutDataset

    seen: dict[int, list[list[int]]] = {0: [], 1: []}

    def consume(rank: int) -> None:
        dataset = RolloutDataset(lambda: table, rank=rank, ranks=2, lease=60)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None)
        for batch in loader:
            assert batch["reward"].dtype == torch.float32
            seen[rank].append(batch["tokens"].tolist())

    ranks = [threading.Thread(target=consume, args=(rank,)) for rank in seen]
    for rank in ranks:
        rank.start()
    for _ in range(2):
        add(table, [0, 1])
        add(table, [2, 3])
    # A share is acknowledged when the next one is asked for.
    while table.stats().acked < 4:
        threading.Event().wait(0.01)
    table.close()
    for rank in ranks:
        rank.join(timeout=30)
    assert seen[0] == [[11, 12, 21, 11, 12, 22, 91, 23]] * 2
    assert seen[1] == [[13, 24, 25, 13, 26]] * 2


def test_tensordict_carries_blobs(table: RolloutTable) -> None:
    pytest.importorskip("tensordict")
    reservation = table.reserve()
    columns = {name: [1] for name in ("tokens", "logprobs", "mask")}
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    blobs = {"image": image, "text": "a cat"}
    reservation.add(columns, {"reward": 0, "prompt": 0}, blobs=blobs)
    reservation.add(columns, {"reward": 0, "prompt": 0}, blobs={"text": "no image"})
    found = to_tensordict(table.sample(1))
    images = found["blobs", "image"]
    np.testing.assert_array_equal(images[0], image)
    assert images[1] is None
    assert list(found["blobs", "text"]) == ["a cat", "no image"]
    assert found[1]["blobs", "text"] == "no image"


@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "returned"])
def test_dataset_resumes_after_the_batches_of_its_state(is_restored: bool) -> None:
    torch = pytest.importorskip("torch")
    from echoic.integrations.torch import RolloutDataset

    table = RolloutTable("math", {"tokens": "int32"}, batch_groups=2, max_lag=100)
    for token in range(24):
        table.reserve().add({"tokens": [token]})
    datasets = [RolloutDataset(table, rank=r, ranks=2, lease=60, keep=5) for r in (0, 1)]
    loaders = [torch.utils.data.DataLoader(one, batch_size=None) for one in datasets]
    ranks = [iter(loader) for loader in loaders]

    def step() -> list[list[int]]:
        return [next(rank)["tokens"].tolist() for rank in ranks]

    first = [step() for _ in range(7)]
    states = json.loads(json.dumps([one.state_dict() for one in datasets]))
    # The learner goes on without a checkpoint, and is killed.
    lost = [step() for _ in range(3)]
    resumed = [RolloutDataset(table, rank=r, ranks=2, lease=60, keep=5) for r in (0, 1)]
    for one, state in zip(resumed, states, strict=True):
        one.load_state_dict(state)
        assert one.state_dict() == state
    if is_restored:
        # All leases end, those of batches in the state too, which the datasets leave out.
        table.restore(0)
    else:
        for rank, one in enumerate(datasets):
            for number, *_ in one.state_dict()["batches"][-3:]:
                table._native.nack((number, rank, 1))
    ranks = [iter(one) for one in resumed]
    assert [step() for _ in range(5)] == [*lost, [[20], [21]], [[22], [23]]]
    seen = [token for batch in (*first, *lost) for share in batch for token in share]
    assert seen == list(range(20))
    table.close()


def test_batches_that_a_dataset_keeps_stay_leased(table: RolloutTable) -> None:
    pytest.importorskip("torch")
    from echoic.integrations.torch import RolloutDataset

    batches = iter(RolloutDataset(table, lease=1, keep=1, groups=1))
    add(table, [0, 1])
    add(table, [2, 3])
    next(batches)
    next(batches)
    assert table.stats().acked == 0
    timer = threading.Timer(1.3, add, (table, [0, 1]))
    timer.start()
    # It waits for longer than a lease.
    assert next(batches)["tokens"].tolist() == [11, 12, 21, 11, 12, 22, 91, 23]
    timer.join()
    assert (table.stats().acked, table.stats().expired_leases) == (1, 0)
    with pytest.raises(RolloutError, match="above 0 a lease, got keep=1 and lease=None"):
        RolloutDataset(table, keep=1)


def test_unsigned_integers_become_signed_ones() -> None:
    torch = pytest.importorskip("torch")
    from echoic.integrations.torch import as_tensors

    arrays = {name: np.arange(3, dtype=name) for name in ("uint8", "uint16", "uint32", "int32")}
    found = {name: tensor.dtype for name, tensor in as_tensors(arrays).items()}
    assert found == {
        "uint8": torch.uint8,
        "uint16": torch.int32,
        "uint32": torch.int64,
        "int32": torch.int32,
    }
