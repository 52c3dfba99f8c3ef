"""Add rollouts of ``verifiers`` to groups.

The library is not imported. Rollouts of 0.1.8 to 0.3 are dicts with a ``trajectory``, a step for
each request to the model, with the tokens that the server has read and drawn. From 0.4 on a rollout
is a trace, whose branches are sequences already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import RolloutError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from echoic.rollouts import Reservation

    Array = np.ndarray[Any, Any]

__all__ = ["add_group", "add_rollout", "to_columns"]


def to_columns(
    state: Any,
    *,
    tokens: str = "tokens",
    logprobs: str = "logprobs",
    mask: str = "mask",
) -> dict[str, Array]:
    """Return the tokens of a rollout as one sequence, with their log-probabilities and mask.

    The prompt of each step must begin with everything before it. What it adds, such as the answer
    of a tool, is in the sequence with a mask of 0.

    Args:
        state: A rollout's state, or a dict with its ``trajectory``; or a dict that has the tokens
            of a single step itself (``prompt_ids``, ``completion_ids``, ``completion_logprobs``);
            or, from 0.4 on, a trace of one branch, or a branch.
        tokens: The name of the column of token numbers (int32).
        logprobs: The name of that of log-probabilities (float32); 0 for tokens that were not drawn.
        mask: The name of that of tokens to learn from (uint8).

    Raises:
        RolloutError: If a step has no tokens, or its prompt is not what came before, or a trace has
            several branches: then the rollout is not one sequence, and has to be added as several
            items.
    """
    found = _of_trajectory(state) if isinstance(state, Mapping) else _of_trace(state)
    ids, probabilities, learned = found
    return {
        tokens: np.array(ids, np.int32),
        logprobs: np.array(probabilities, np.float32),
        mask: np.array(learned, np.uint8),
    }


def _of_trace(trace: Any) -> tuple[list[int], list[float], list[int]]:
    """Return the tokens of a trace, or of a branch of one."""
    branches = (
        [trace] if hasattr(trace, "token_ids") else [b for b in trace.branches if b.trainable]
    )
    if len(branches) != 1:
        raise RolloutError(
            f"the rollout has {len(branches)} branches to learn from, so it is not one sequence: "
            "add each branch as an item of its own"
        )
    ids, learned = branches[0].token_ids, branches[0].sampled_mask
    if not any(learned):
        raise RolloutError(
            "the rollout has no tokens that the model drew: the model's server has to return them"
        )
    return ids, branches[0].logprobs, learned


def _of_trajectory(state: Mapping[str, Any]) -> tuple[list[int], list[float], list[int]]:
    """Return the tokens of a dict's steps, one after the other."""
    steps = state.get("trajectory")
    if steps is None:
        steps = [{"tokens": state}]
    ids: list[int] = []
    probabilities: list[float] = []
    learned: list[int] = []
    for number, step in enumerate(steps):
        found = step.get("tokens")
        if found is None or found.get("completion_ids") is None:
            raise RolloutError(
                f"step {number} of the rollout has no tokens: the model's server has to return them"
            )
        prompt = list(found["prompt_ids"])
        if prompt[: len(ids)] != ids:
            raise RolloutError(
                f"step {number} of the rollout has a prompt that does not begin with the "
                f"{len(ids)} tokens before it, so the steps are not one sequence: add them as "
                "items of their own"
            )
        added = len(prompt) - len(ids)
        completion = list(found["completion_ids"])
        drawn = found.get("completion_logprobs") or []
        if len(drawn) != len(completion):
            raise RolloutError(
                f"step {number} of the rollout: expected {len(completion)} log-probabilities, one "
                f"for each token of the completion, got {len(drawn)}"
            )
        ids = prompt + completion
        probabilities += [0.0] * added + list(drawn)
        learned += [0] * added + list(found.get("completion_mask") or [1] * len(completion))
    return ids, probabilities, learned


def add_rollout(
    reservation: Reservation,
    state: Any,
    fields: Mapping[str, Any] | None = None,
    *,
    item: int | None = None,
    versions: int | Any | None = None,
    reward: str = "reward",
    messages: bool = False,
    **columns: str,
) -> str:
    """Add a rollout to a group.

    Args:
        reservation: The group's.
        state: See :func:`to_columns`.
        fields: The item's fields in the table, except its reward.
        item: As for :meth:`~echoic.rollouts.Reservation.add`.
        versions: As for :meth:`~echoic.rollouts.Reservation.add`.
        reward: The field for the rollout's ``reward``.
        messages: Whether to add the messages too, as the blob ``"messages"``: JSON of ``prompt``
            and ``completion``, or a trace's ``messages``.
        columns: As for :func:`to_columns`.

    Returns:
        Where the group has come to.

    Raises:
        RolloutError: As for :func:`to_columns`; or if the rollout has no reward yet, or an error.
    """
    is_dict = isinstance(state, Mapping)
    error = state.get("error") if is_dict else state.last_error
    # A trace also has the errors of attempts that were repeated.
    if error is not None and (is_dict or state.has_error):
        raise RolloutError(f"the rollout ended in an error: {error!r}")
    scored = state.get("reward") if is_dict else _reward(state)
    if scored is None:
        raise RolloutError("the rollout has no reward: score it before it is added")
    found = to_columns(state, **columns)
    known = {reward: float(scored), **(fields or {})}
    blobs = None
    if messages:
        names = ("prompt", "completion") if is_dict else ("messages",)
        said = {name: state.get(name) if is_dict else getattr(state, name) for name in names}
        # Messages may contain objects of a client library.
        blobs = {"messages": json.dumps(said, default=_plain)}
    return reservation.add(found, known, item=item, versions=versions, blobs=blobs)


def add_group(reservation: Reservation, states: Iterable[Any], **options: Any) -> str:
    """Add the rollouts of a group; the options are those of :func:`add_rollout`.

    Returns:
        Where the group has come to. When there is no use in going on, the rest is not added.
    """
    for state in states:
        if reservation.status != "running":
            break
        add_rollout(reservation, state, **options)
    return reservation.status


def _reward(trace: Any) -> float | None:
    """Return a trace's reward; its own property is 0 also before it was scored."""
    scored = any(part is not None for part in trace.rewards.values())
    return trace.reward if scored else None


def _plain(value: Any) -> Any:
    """Convert a model of pydantic to a dict, and anything else to text."""
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump()
