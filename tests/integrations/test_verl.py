"""Batches as what verl makes its ``DataProto`` of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from echoic.integrations.verl import to_verl

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch


def test_inputs_are_prompts_and_responses_side_by_side(batch: RolloutBatch) -> None:
    found, _ = to_verl(batch, pad_token=99, tensors=False)
    assert found["input_ids"].tolist() == [
        [11, 12, 21, 99, 99],
        [11, 12, 22, 91, 23],
        [99, 13, 24, 25, 99],
        [99, 13, 26, 99, 99],
    ]
    assert found["attention_mask"].tolist()[2:] == [[0, 1, 1, 1, 0], [0, 1, 1, 0, 0]]
    assert found["position_ids"].tolist()[2] == [0, 0, 1, 2, 2]
    np.testing.assert_array_equal(
        np.concatenate([found["prompts"], found["responses"]], 1), found["input_ids"]
    )


def test_reward_is_at_the_last_token_of_the_answer(batch: RolloutBatch) -> None:
    found, _ = to_verl(batch, tensors=False)
    assert found["rm_scores"].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0.5, 0], [0.25, 0, 0]]
    assert found["response_mask"].tolist() == [[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 0, 0]]
    assert found["rollout_log_probs"][2].tolist() == [-24 / 8, -25 / 8, 0]


def test_answers_to_one_prompt_share_a_uid(batch: RolloutBatch) -> None:
    _, others = to_verl(batch, tensors=False)
    first, second = (str(group) for group in batch.group_ids)
    assert others["uid"].tolist() == [first, first, second, second]
    assert others["source"].tolist() == ["worker"] * 4
    assert others["version"].tolist() == [0] * 4
    assert others["prompt"].tolist() == [0, 0, 1, 1]
    assert {array.dtype for array in others.values()} == {np.dtype(object)}


def test_tensors_have_the_values_of_the_arrays(batch: RolloutBatch) -> None:
    torch = pytest.importorskip("torch")
    tensors, _ = to_verl(batch)
    arrays, _ = to_verl(batch, tensors=False)
    for name, tensor in tensors.items():
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])
