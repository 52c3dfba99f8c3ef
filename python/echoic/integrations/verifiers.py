"""Run environments of ``verifiers`` for a run, or add their rollouts to groups.

The library is not imported. Rollouts of 0.1.8 to 0.3 are dicts with a ``trajectory``, a step for
each request to the model, with the tokens that the server has read and drawn. From 0.4 on a rollout
is a trace, whose branches are sequences already.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import EchoicError, RolloutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable

    from echoic.rl.group import Group, Item
    from echoic.rl.worker import Worker
    from echoic.rollouts import Reservation
    from echoic.rollouts.blobs import Blob

    Array = np.ndarray[Any, Any]

__all__ = ["add_group", "add_rollout", "run_environment", "to_columns"]

_log = logging.getLogger("echoic.verifiers")

# Seconds between two looks at the version that the inference server has.
_LOOK = 0.25


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
    branch = _branch(trace)
    ids, learned = branch.token_ids, branch.sampled_mask
    if not any(learned):
        raise RolloutError(
            "the rollout has no tokens that the model drew: the model's server has to return them"
        )
    return ids, branch.logprobs, learned


def _branch(trace: Any) -> Any:
    """Return the branch of a trace that is learned from, or a branch itself."""
    branches = (
        [trace] if hasattr(trace, "token_ids") else [b for b in trace.branches if b.trainable]
    )
    if len(branches) != 1:
        raise RolloutError(
            f"the rollout has {len(branches)} branches to learn from, so it is not one sequence: "
            "add each branch as an item of its own"
        )
    return branches[0]


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


class _Versions:
    """Which version the inference server has had at which time."""

    def __init__(self, current: Callable[[], int | None]) -> None:
        self._current = current
        self._seen: deque[tuple[float, int]] = deque(maxlen=4096)

    async def look(self) -> None:
        """Ask for the version; its answer holds from now on."""
        version = await asyncio.to_thread(self._current)
        if version is None:
            raise RolloutError(
                "version: expected the version that the inference server has, got None"
            )
        if not self._seen or self._seen[-1][1] != version:
            self._seen.append((time.time(), version))

    async def follow(self) -> None:
        """Ask again and again."""
        while True:
            await asyncio.sleep(_LOOK)
            try:
                await self.look()
            except EchoicError as error:
                # Tokens count as those of the version before, until it answers.
                _log.warning("%s", error)

    def at(self, when: float) -> int:
        """Return the version of that time, or the oldest that is known."""
        for since, version in reversed(self._seen):
            if since <= when:
                return version
        return self._seen[0][1]

    def of_tokens(self, trace: Any) -> Array:
        """Return the version of each token of a trace.

        A turn has the version that the server had when it was asked. Tokens of prompts and tools
        have that of the turn which read them first.
        """
        branch = _branch(trace)
        asked = {id(trace.nodes[call.node]): call.time.start for call in branch.calls}
        counts = [len(node.token_ids) for node in branch.nodes]
        versions = [self.at(asked[id(n)]) if id(n) in asked else None for n in branch.nodes]
        following = next((one for one in reversed(versions) if one is not None), self.at(0))
        for place in reversed(range(len(versions))):
            found = versions[place]
            versions[place] = following = following if found is None else found
        return np.repeat(np.array(versions, np.int64), counts)


async def run_environment(
    worker: Worker,
    environment: Any,
    tasks: Iterable[Any] | AsyncIterable[Any],
    context: Any,
    *,
    version: Callable[[], int | None] | None = None,
    concurrency: int = 64,
    reward: str = "reward",
    messages: bool = False,
    key: Callable[[Any], str] | None = None,
    max_failures: int = 8,
    **columns: str,
) -> int:
    """Run episodes of an environment for groups of a run, many at a time.

    An item is the trace of the episode's trainable agent: its tokens with log-probabilities and
    mask, as :func:`to_columns` returns them, its reward, and for each other field of the run the
    metric or the reward of that name. A group with an episode that failed is given up, so that
    another can be made. Needs verifiers 0.4.

    Args:
        worker: What :func:`echoic.rl.join` returns.
        environment: An ``Env``.
        tasks: Such as its ``taskset``: a group is made of each.
        context: A ``ModelContext``, whose client returns tokens (``TrainClientConfig``); or a
            function that returns one for each group, for an adapter whose name has the version.
        version: Returns the version of the weights that the inference server has, such as
            ``VllmServer(url).version``. Each turn has the version of the time when it was asked
            for. Without it, all tokens have that of the worker, or the learner's at the
            reservation.
        concurrency: How many groups are made at a time.
        reward: The field for the trace's reward.
        messages: Whether to add the messages as the blob ``"messages"``: JSON, in which images
            that stand in it are references to the blobs ``"image0"``, ``"image1"`` …
        key: Returns the name of a task's group in batches; by default the task's ``key``.
        max_failures: How many groups in a row may fail.
        columns: As for :func:`to_columns`.

    Returns:
        How many groups were sent.

    Raises:
        RolloutError: If too many groups failed one after the other; the message has the last error.
    """
    versions = None if version is None else _Versions(version)
    fields = {n: np.dtype(d) for n, d in worker.table.settings["fields"].items() if n != reward}
    done = failed = 0
    last: Exception | None = None

    async def fill(group: Group) -> None:
        nonlocal done, failed, last
        given = context() if callable(context) else context
        async with group:
            slots = environment.slots(group.prompt, len(group.items))
            try:
                await _all(play(*one, given) for one in zip(group.items, slots, strict=True))
            except RolloutError as error:
                group.fail()
                failed, last = failed + 1, error
                _log.warning("a group of task %r is given up: %s", group.key, error)
                return
        done, failed = done + 1, 0

    async def play(item: Item, slot: Any, given: Any) -> None:
        trace = trained_trace(await environment.run_slot(slot, given))
        found = to_columns(trace, **columns)
        values: dict[str, Any] = {name: _value(trace, name, one) for name, one in fields.items()}
        values[reward] = scored(trace)
        made = None if versions is None else versions.of_tokens(trace)
        item.write(version=made, blobs=_said(trace) if messages else None, **found)
        item.done(**values)

    async with contextlib.AsyncExitStack() as stack:
        if versions is not None:
            await versions.look()
            watch = asyncio.create_task(versions.follow())
            stack.callback(watch.cancel)
        await stack.enter_async_context(environment.serving())
        groups = worker.groups(tasks, key=_key if key is None else key)
        running: set[asyncio.Task[None]] = set()
        try:
            while failed < max_failures:
                if len(running) >= concurrency:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                ended = {task for task in running if task.done()}
                running -= ended
                for task in ended:
                    task.result()
                try:
                    group = await anext(groups)
                except StopAsyncIteration:
                    break
                running.add(asyncio.create_task(fill(group)))
            await _all(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    if failed >= max_failures:
        raise RolloutError(f"{failed} groups in a row failed, the last one by: {last}") from last
    await worker.aflush()
    return done


async def _all(awaitables: Iterable[Any]) -> None:
    """Wait for all of them; cancel the others when one fails."""
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(task: Any) -> str:
    return str(task.key)


def trained_trace(episode: Any) -> Any:
    """Return the trace of an episode that is learned from."""
    found = [trace for trace in episode.traces if trace.agent.trainable]
    if not episode.ok:
        errors = [one.last_error for one in (episode, *found) if one.last_error is not None]
        why = "; ".join(f"{error.type}: {error.message}" for error in errors)
        raise RolloutError(f"the episode failed: {why or 'it has no error'}")
    if len(found) != 1:
        names = ", ".join(trace.agent.name for trace in found)
        raise RolloutError(f"expected one trainable agent in an episode, got {len(found)}: {names}")
    return found[0]


def scored(trace: Any) -> float:
    found = _reward(trace)
    if found is None:
        raise RolloutError("the rollout has no reward: score it before it is added")
    return float(found)


def _value(trace: Any, name: str, dtype: np.dtype[Any]) -> float:
    """Return the metric or reward of a trace for a field."""
    found = trace.metrics.get(name)
    if found is None and trace.rewards.get(name) is not None:
        found = trace.rewards[name].value
    if found is None:
        known = ", ".join(map(repr, (*trace.metrics, *trace.rewards))) or "none"
        raise RolloutError(
            f"field {name!r}: expected a metric or reward of that name in the rollout; it has "
            f"{known}"
        )
    # Metrics are floats, counts too.
    if dtype.kind not in "iu":
        return float(found)
    if int(found) != found:
        raise RolloutError(f"field {name!r}: expected a whole number for {dtype}, got {found}")
    return int(found)


def _said(trace: Any) -> dict[str, Blob]:
    """Return the messages of a trace, and the images in them, as blobs."""
    blobs: dict[str, Blob] = {}
    said = [_plain(message) for message in _branch(trace).messages]
    for message in said:
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else ():
            source = part.get("image_url") or {}
            head, _, data = str(source.get("url", "")).partition(";base64,")
            if not head.startswith("data:") or not data:
                continue
            with contextlib.suppress(ValueError):
                name = f"image{len(blobs)}"
                blobs[name] = base64.b64decode(data, validate=True)
                source["url"] = f"blob:{name}"
    blobs["messages"] = json.dumps(said, default=_plain)
    return blobs


def _reward(trace: Any) -> float | None:
    """Return a trace's reward; its own property is 0 also before it was scored."""
    scored = any(part is not None for part in trace.rewards.values())
    return trace.reward if scored else None


def _plain(value: Any) -> Any:
    """Convert a model of pydantic to a dict, and anything else to text."""
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump()
