"""Convert batches to the dicts from which TRL's ``GRPOTrainer`` computes its loss.

Neither TRL nor torch is imported before tensors are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from echoic.integrations._answers import Answers
from echoic.primitives import compute_batch_group_advantages

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch

__all__ = ["to_trl"]


def to_trl(
    batch: RolloutBatch,
    *,
    tokens: str = "tokens",
    logprobs: str | None = "logprobs",
    mask: str | None = "mask",
    reward: str = "reward",
    scale: Literal["group", "batch", "none"] = "group",
    pad_token: int = 0,
    tensors: bool = True,
) -> dict[str, Any]:
    """Return what ``GRPOTrainer._generate_and_score_completions`` returns.

    Override that method in a subclass of the trainer, and make it return this for
    ``table.sample(…)``.

    Args:
        batch: A batch of any form.
        tokens: The column of token numbers.
        logprobs: The column of log-probabilities under the policy that drew the tokens.
        mask: The column that is not zero where the policy made a token. A prompt ends before the
            first of them.
        reward: The field of rewards.
        scale: Which standard deviation advantages are divided by: the group's, the batch's, or
            none.
        pad_token: The token that rows are padded with.
        tensors: Whether to return torch's tensors; else arrays.

    Returns:
        ``prompt_ids`` and ``prompt_mask`` (items, longest prompt), padded on the left;
        ``completion_ids``, ``completion_mask`` and ``old_per_token_logps`` (items, longest answer),
        padded on the right; ``advantages`` and ``rewards`` (items,); ``num_items_in_batch``, the
        tokens that count. ``tool_mask`` is there if some tokens of answers are not the policy's.
    """
    answers = Answers(batch, mask)
    offsets = np.concatenate([[0], np.cumsum(batch.group_sizes)])
    rewards = np.asarray(batch[reward], np.float32)
    advantages = compute_batch_group_advantages(rewards, offsets=offsets, scale=scale)
    is_answer, is_made = answers.is_answer(), answers.is_made()
    found: dict[str, Any] = {
        "prompt_ids": answers.prompts(batch[tokens], pad_token, np.int64),
        "prompt_mask": answers.is_prompt(),
        "completion_ids": answers.answers(batch[tokens], pad_token, np.int64),
        "completion_mask": is_answer,
        "advantages": np.asarray(advantages, np.float32),
        "rewards": rewards,
        "num_items_in_batch": np.array(is_made.sum()),
    }
    if logprobs is not None:
        found["old_per_token_logps"] = answers.answers(batch[logprobs], 0, np.float32)
    if (is_made != is_answer).any():
        found["tool_mask"] = is_made
    if not tensors:
        return found
    from echoic.integrations.torch import as_tensors

    return as_tensors(found)
