"""Rollouts of `verifiers` into groups."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import echoic.rl
import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations import verifiers as adapters
from echoic.integrations.verifiers import add_group, add_rollout, to_columns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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


def turn(tokens: list[int], asked: float | None, content: Any = "?") -> SimpleNamespace:
    """A node of a trace; what the model was asked for at some time is sampled."""
    said = {"role": "user" if asked is None else "assistant", "content": content}
    message = SimpleNamespace(model_dump=lambda: copy.deepcopy(said))
    mask = [asked is not None] * len(tokens)
    return SimpleNamespace(token_ids=tokens, mask=mask, message=message, asked=asked)


def trace(*nodes: SimpleNamespace, **metrics: float) -> SimpleNamespace:
    calls = [
        SimpleNamespace(node=number, time=SimpleNamespace(start=node.asked))
        for number, node in enumerate(nodes)
        if node.asked is not None
    ]
    branch = SimpleNamespace(
        nodes=nodes,
        calls=calls,
        trainable=True,
        token_ids=[token for node in nodes for token in node.token_ids],
        sampled_mask=[flag for node in nodes for flag in node.mask],
        logprobs=[-1.0 if flag else 0.0 for node in nodes for flag in node.mask],
        messages=[node.message for node in nodes],
    )
    return SimpleNamespace(
        nodes=nodes,
        branches=[branch],
        rewards={"right": SimpleNamespace(value=0.5)},
        reward=0.5,
        metrics=metrics,
        agent=SimpleNamespace(trainable=True, name="agent"),
        last_error=None,
    )


class Environment:
    """What a run needs of an `Env`; the first episode fails if it is told to."""

    def __init__(self, made: Any, failures: int = 0) -> None:
        self.made, self.failures = made, failures
        self.is_serving = False

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.is_serving = True
        yield
        self.is_serving = False

    def slots(self, task: Any, count: int) -> list[Any]:
        return [task] * count

    async def run_slot(self, slot: Any, context: Any) -> SimpleNamespace:
        assert self.is_serving
        assert context == "model"
        self.failures -= 1
        error = SimpleNamespace(type="ToolsetError", message="it is gone")
        is_ok = self.failures < 0
        errors = {"ok": is_ok, "last_error": None if is_ok else error}
        found = self.made()
        found = await found if asyncio.iscoroutine(found) else found
        return SimpleNamespace(traces=[found], **errors)


@pytest.fixture
def run() -> Iterator[echoic.rl.Run]:
    columns = {"tokens": "int32", "logprobs": "float32", "mask": "uint8"}
    fields = {"reward": "float32", "turns": "int64", "right": "float32"}
    with echoic.rl.Run(columns, fields, group=2, batch=2, max_lag=9) as run:
        yield run


TASKS = [SimpleNamespace(key=key) for key in ("6 * 7", "2 + 2")]


def run_environment(run: echoic.rl.Run, environment: Any, **options: Any) -> int:
    async def go() -> int:
        async with echoic.rl.join(run) as worker:
            found = adapters.run_environment(worker, environment, TASKS, "model", **options)
            return await asyncio.wait_for(found, 30)

    return asyncio.run(go())


def test_a_turn_has_the_version_of_the_time_when_it_was_asked_for(
    run: echoic.rl.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "_LOOK", 0.005)
    served, looks = 3, 0

    def version() -> int:
        nonlocal looks
        looks += 1
        return served

    async def episode() -> SimpleNamespace:
        nonlocal served
        first = time.time()
        served += 1
        seen = looks
        while looks < seen + 3:  # noqa: ASYNC110 - it is looked at in another thread
            await asyncio.sleep(0.005)
        nodes = turn([1, 2], None), turn([3, 4], first), turn([9], None), turn([5], time.time())
        return trace(*nodes, turn([6], None), turns=2.0)

    assert run_environment(run, Environment(episode), version=version) == 2
    batch = run.sample(timeout=30)
    assert sorted(batch.keys) == ["2 + 2", "6 * 7"]
    assert batch["turns"].tolist() == [2] * 4
    assert (batch["reward"].tolist(), batch["right"].tolist()) == ([0.5] * 4, [0.5] * 4)
    for item in range(4):
        cells = batch.cells(item)
        assert batch["tokens"][cells].tolist() == [1, 2, 3, 4, 9, 5, 6]
        assert batch["mask"][cells].tolist() == [0, 0, 1, 1, 0, 1, 0]
        versions = batch.versions[cells].tolist()
        assert 3 <= versions[0] < versions[4] <= served
        assert versions == [versions[0]] * 4 + [versions[4]] * 3


def test_images_of_messages_are_blobs_of_their_own(run: echoic.rl.Run) -> None:
    data = base64.b64encode(b"PNG").decode()
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,é"}},
    ]
    asked = turn([1], None, parts)
    environment = Environment(lambda: trace(asked, turn([2], 1.0), turns=1))
    run_environment(run, environment, messages=True)
    blobs = run.sample(timeout=30).blobs(0)
    assert blobs["image0"] == b"PNG"
    said = json.loads(blobs["messages"])
    urls = [part["image_url"]["url"] for part in said[0]["content"][1:]]
    # What is no image stays as it is.
    assert urls == ["blob:image0", "https://example.org/cat.png", "data:image/png;base64,é"]


def test_a_group_with_an_episode_that_failed_is_given_up(run: echoic.rl.Run) -> None:
    good = trace(turn([1], None), turn([2], 1.0), turns=1)
    assert run_environment(run, Environment(lambda: good, failures=1)) == 1
    assert run.table.stats().rejected == 1
    with pytest.raises(
        RolloutError, match=r"2 groups in a row failed, .* ToolsetError: it is gone"
    ):
        run_environment(run, Environment(lambda: good, failures=9), max_failures=2)
    # A mistake of the program ends the run at once.
    with pytest.raises(ZeroDivisionError):
        run_environment(run, Environment(lambda: 1 / 0), concurrency=1)
    bad = trace(turn([1], None), turn([2], 1.0), steps=1)
    with pytest.raises(RolloutError, match=r"field 'turns': expected a metric .* has 'steps', 'r"):
        run_environment(run, Environment(lambda: bad), max_failures=1)
