"""Batches as the dicts of TRL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations.trl import to_trl

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch


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


def test_tensors_have_the_values_of_the_arrays(batch: RolloutBatch) -> None:
    torch = pytest.importorskip("torch")
    tensors, arrays = to_trl(batch), to_trl(batch, tensors=False)
    assert tensors.keys() == arrays.keys()
    for name, tensor in tensors.items():
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])
