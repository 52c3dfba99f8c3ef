"""Batches of rollouts as TRL, torch and tensordict take them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations.tensordict import rows, to_tensordict
from echoic.integrations.trl import to_trl
from rollout_answers import add

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch, RolloutTable


def test_prompts_end_where_answers_begin(batch: RolloutBatch) -> None:
    found = to_trl(batch, pad_token=99, tensors=False)
    assert found["prompt_ids"].tolist() == [[11, 12], [11, 12], [99, 13], [99, 13]]
    assert found["prompt_mask"].tolist() == [[1, 1], [1, 1], [0, 1], [0, 1]]
    assert found["completion_ids"].tolist() == [
        [21, 99, 99],
        [22, 91, 23],
        [24, 25, 99],
        [26, 99, 99],
    ]
    assert found["completion_mask"].tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]]


def test_tokens_of_tools_are_no_part_of_the_loss(batch: RolloutBatch) -> None:
    found = to_trl(batch, tensors=False)
    assert found["tool_mask"].tolist() == [[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 0, 0]]
    assert found["num_items_in_batch"] == 6


def test_logprobs_are_those_of_the_answer(batch: RolloutBatch) -> None:
    found = to_trl(batch, tensors=False)["old_per_token_logps"]
    assert found.dtype == np.float32
    assert found[1].tolist() == [-22 / 8, 0, -23 / 8]
    assert found[3].tolist() == [-26 / 8, 0, 0]


def test_advantages_compare_the_answers_to_one_prompt(batch: RolloutBatch) -> None:
    found = to_trl(batch, tensors=False)
    assert found["advantages"].tolist() == [-1, 1, 1, -1]
    assert found["rewards"].tolist() == [0, 1, 0.5, 0.25]
    assert to_trl(batch, scale="none", tensors=False)["advantages"].tolist() == [
        -0.5,
        0.5,
        0.125,
        -0.125,
    ]


def test_without_a_mask_there_is_no_prompt(batch: RolloutBatch) -> None:
    found = to_trl(batch, mask=None, tensors=False)
    assert found["prompt_ids"].shape == (4, 0)
    assert found["completion_mask"].sum(1).tolist() == [3, 5, 3, 2]
    assert "tool_mask" not in found


def test_a_field_is_no_column(batch: RolloutBatch) -> None:
    with pytest.raises(RolloutError, match="a field has a value for each item"):
        to_trl(batch, tokens="prompt", tensors=False)


def test_tensors_of_trl_have_the_values_of_the_arrays(batch: RolloutBatch) -> None:
    torch = pytest.importorskip("torch")
    tensors, arrays = to_trl(batch), to_trl(batch, tensors=False)
    assert tensors.keys() == arrays.keys()
    for name, tensor in tensors.items():
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


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
