"""Convert batches to the two dicts from which verl makes its ``DataProto``.

Neither verl nor torch is imported before tensors are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.integrations._answers import Answers

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch

__all__ = ["to_verl"]


def to_verl(
    batch: RolloutBatch,
    *,
    tokens: str = "tokens",
    logprobs: str | None = "logprobs",
    mask: str | None = "mask",
    reward: str | None = "reward",
    pad_token: int = 0,
    tensors: bool = True,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tensors and other values: ``DataProto.from_dict(tensors=…, non_tensors=…)``.

    Args:
        batch: A batch of any form.
        tokens: The column of token numbers.
        logprobs: The column of log-probabilities under the policy that drew the tokens.
        mask: The column that is not zero where the policy made a token. A prompt ends before the
            first of them.
        reward: The field of rewards.
        pad_token: The token that rows are padded with.
        tensors: Whether to return torch's tensors; else arrays.

    Returns:
        With P tokens of the longest prompt and R of the longest answer: ``prompts`` (items, P),
        padded on the left; ``responses``, ``response_mask``, ``rollout_log_probs`` and
        ``rm_scores`` (items, R), padded on the right, with the reward at the last token of the
        answer; ``input_ids``, ``attention_mask`` and ``position_ids`` (items, P + R). And, with a
        value for each item, ``uid``: its group, by which verl computes advantages; ``source``;
        ``version``, of its oldest token; and the table's other fields.
    """
    answers = Answers(batch, mask)
    prompts = answers.prompts(batch[tokens], pad_token, np.int64)
    responses = answers.answers(batch[tokens], pad_token, np.int64)
    attention = np.concatenate([answers.is_prompt(), answers.is_answer()], 1)
    found: dict[str, Any] = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": answers.is_made(),
        "input_ids": np.concatenate([prompts, responses], 1),
        "attention_mask": attention,
        # Padding of prompts has position 0, as in verl; padding of answers continues counting.
        "position_ids": np.maximum(np.cumsum(attention, 1) - 1, 0),
    }
    if logprobs is not None:
        found["rollout_log_probs"] = answers.answers(batch[logprobs], 0, np.float32)
    if reward is not None:
        scores = np.zeros(responses.shape, np.float32)
        has_answer = np.flatnonzero(answers.lengths)
        scores[has_answer, answers.lengths[has_answer] - 1] = batch[reward][has_answer]
        found["rm_scores"] = scores
    others: dict[str, Any] = {
        "uid": _objects(str(batch.group_ids[group]) for group in batch.group),
        "source": _objects(batch.sources[group] for group in batch.group),
        "version": _objects(batch.target - batch.item_lag_oldest),
    }
    others.update({name: _objects(field) for name, field in batch.fields.items() if name != reward})
    if not tensors:
        return found, others
    from echoic.integrations.torch import as_tensors

    return as_tensors(found), others


def _objects(values: Any) -> np.ndarray[Any, Any]:
    """Return an array of objects, as verl takes for values that are not tensors."""
    listed = list(values)
    array = np.empty(len(listed), object)
    array[:] = listed
    return array
