"""Batches of rollouts in torch and tensordict."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from echoic.integrations.tensordict import rows, to_tensordict
from rollout_answers import add

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch, RolloutTable


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
    from echoic.integrations.torch import RolloutDataset  # noqa: PLC0415 - it imports torch

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
    while table.info()["acked"] < 4:
        threading.Event().wait(0.01)
    table.close()
    for rank in ranks:
        rank.join(timeout=30)
    assert seen[0] == [[11, 12, 21, 11, 12, 22, 91, 23]] * 2
    assert seen[1] == [[13, 24, 25, 13, 26]] * 2


def test_unsigned_integers_become_signed_ones() -> None:
    torch = pytest.importorskip("torch")
    from echoic.integrations.torch import as_tensors  # noqa: PLC0415 - it imports torch

    arrays = {name: np.arange(3, dtype=name) for name in ("uint8", "uint16", "uint32", "int32")}
    found = {name: tensor.dtype for name, tensor in as_tensors(arrays).items()}
    assert found == {
        "uint8": torch.uint8,
        "uint16": torch.int32,
        "uint32": torch.int64,
        "int32": torch.int32,
    }
