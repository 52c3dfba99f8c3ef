"""Rollouts of `verifiers` into groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations.verifiers import add_group, add_rollout, to_columns

if TYPE_CHECKING:
    from echoic.rollouts import RolloutTable


def step(prompt: list[int], completion: list[int]) -> dict[str, Any]:
    """A request to the model, as the library's trajectories have it."""
    return {
        "prompt": [{"role": "user", "content": "?"}],
        "completion": [{"role": "assistant", "content": "!"}],
        "response": None,
        "tokens": {
            "prompt_ids": prompt,
            "prompt_mask": [0] * len(prompt),
            "completion_ids": completion,
            "completion_mask": [1] * len(completion),
            "completion_logprobs": [-token / 8 for token in completion],
            "overlong_prompt": False,
            "is_truncated": False,
        },
        "reward": None,
        "advantage": None,
    }


def state(*steps: dict[str, Any], reward: float | None = 1.0) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": "6 · 7"}],
        "completion": [{"role": "assistant", "content": "42"}],
        "trajectory": list(steps),
        "reward": reward,
        "error": None,
    }


TURNS = (step([1, 2], [3, 4]), step([1, 2, 3, 4, 90, 91], [5]))


def test_turns_become_one_sequence() -> None:
    found = to_columns(state(*TURNS))
    assert found["tokens"].tolist() == [1, 2, 3, 4, 90, 91, 5]
    assert found["mask"].tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert found["logprobs"].tolist() == [0, 0, -3 / 8, -4 / 8, 0, 0, -5 / 8]
    assert [array.dtype for array in found.values()] == [np.int32, np.float32, np.uint8]


def test_tokens_of_a_single_step_may_stand_in_the_rollout_itself() -> None:
    found = to_columns({**step([1, 2], [3])["tokens"], "reward": 1.0}, tokens="ids")
    assert found["ids"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((TURNS[0], step([1, 2, 3, 9], [5])), "step 1 .* does not begin with the 4 tokens before"),
        (({**TURNS[0], "tokens": None},), "step 0 of the rollout has no tokens"),
        (
            ({"tokens": {"prompt_ids": [1], "completion_ids": [2]}},),
            "expected 1 log-probabilities, .* got 0",
        ),
    ],
)
def test_what_is_no_sequence_is_refused(steps: Any, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        to_columns(state(*steps))


def test_a_group_is_complete_with_all_its_rollouts(table: RolloutTable) -> None:
    reservation = table.reserve()
    rollouts = [state(*TURNS), state(TURNS[0], reward=0.5), state(TURNS[0])]
    # The third one is one too many, and not added.
    assert add_group(reservation, rollouts, fields={"prompt": 7}) == "complete"
    batch = table.sample(1)
    assert batch["reward"].tolist() == [1, 0.5]
    assert batch["prompt"].tolist() == [7, 7]
    assert batch.item(1)["tokens"].tolist() == [1, 2, 3, 4]


def test_messages_come_along_if_wanted(table: RolloutTable) -> None:
    class Message:
        def model_dump(self) -> dict[str, str]:
            return {"role": "assistant", "content": "42"}

    reservation = table.reserve()
    said = {**state(TURNS[0]), "completion": [Message()]}
    add_rollout(reservation, said, {"prompt": 0}, messages=True)
    add_rollout(reservation, state(TURNS[0]), {"prompt": 0})
    messages = table.sample(1).blobs(0)["messages"]
    assert isinstance(messages, str)
    assert json.loads(messages) == {
        "prompt": [{"role": "user", "content": "6 · 7"}],
        "completion": [{"role": "assistant", "content": "42"}],
    }


@pytest.mark.parametrize(
    ("change", "message"), [({"reward": None}, "has no reward"), ({"error": "it"}, "error: 'it'")]
)
def test_a_rollout_that_failed_is_not_added(
    table: RolloutTable, change: dict[str, Any], message: str
) -> None:
    reservation = table.reserve()
    with pytest.raises(RolloutError, match=message):
        add_rollout(reservation, {**state(*TURNS), **change}, {"prompt": 0})
    assert table.stats().tokens == 0
