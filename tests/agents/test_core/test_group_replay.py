"""Surprise replay of a language model: what is kept, what is drawn, and that it is learned from."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from echoic.agents import checkpoint
from echoic.agents.llm import (
    GRPOConfig,
    LLMConfig,
    LLMTrainer,
    PromptTask,
    TinyConfig,
    TinyTransformer,
    TokenBatch,
)
from echoic.agents.llm.batch import join
from echoic.agents.llm.group_replay import GroupReplay
from echoic.agents.replay import PrioritizedReplayBuffer, ReplayConfig
from echoic.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)


def batch_of(rewards: list[float], *, size: int = 2, first: int = 0) -> TokenBatch:
    """Return a group of ``size`` items for each reward; its prompt is its number."""
    items = len(rewards) * size
    prompts = [first + item // size for item in range(items)]
    return TokenBatch.from_items(
        tokens=[[prompt, 1, 2] for prompt in prompts],
        logprobs=[[0, 0, -0.5]] * items,
        mask=[[0, 0, 1]] * items,
        rewards=np.repeat(rewards, size),
        group_sizes=[size] * len(rewards),
    )


def replay_of(**settings: Any) -> GroupReplay:
    seed = settings.pop("seed", 0)
    return GroupReplay(ReplayConfig(**{"min_experiences": 1, **settings}), seed=seed)


def test_groups_are_drawn_as_often_as_the_buffer_of_steps_draws_such_scores() -> None:
    rewards = np.linspace(0, 4, 20)
    replay = replay_of(surprise_weight=0.0)
    replay.add(batch_of(rewards.tolist()), version=0)
    buffer = PrioritizedReplayBuffer(ReplayConfig(min_experiences=1, surprise_weight=0.0), 4)
    zeros = np.zeros((20, 4))
    buffer.add_batch(zeros, zeros, np.zeros(20), rewards, zeros, np.zeros(20, bool))
    columns = buffer.sample_columns(2000)
    expected = np.zeros(20)
    expected[columns["timestamp"]] = columns["probability"]
    counts = np.zeros(20)
    for _ in range(500):
        drawn = replay.sample(20, version=0)
        prompts = drawn.tokens[drawn.offsets[:-1]][::2]
        counts += np.bincount(prompts, minlength=20)
        # The weight is (N · P)^-β, by the largest of the batch.
        weights = expected[prompts] ** -0.4
        assert drawn.importance[::2] == pytest.approx(weights / weights.max(), rel=1e-5)
    chi2 = float(((counts - 10_000 * expected) ** 2 / (10_000 * expected)).sum())
    assert chi2 < 36.2, "the 99 % quantile of chi-square with 19 degrees of freedom"


def test_scores_are_distances_from_the_mean_before_and_rewards() -> None:
    replay = replay_of(score_scale="sum", ema_decay=0.5)
    replay.add(batch_of([0.0, -3.0]), version=0)
    # The first mean is the first plan.
    replay.add(batch_of([1.0]), version=1)
    plans = replay._plans
    mean = plans[0]
    for plan in plans[1:]:
        mean = 0.5 * mean + 0.5 * plan
    expected = [np.square(plan - mean).sum() + r for plan, r in zip(plans, [0, 3, 1], strict=True)]
    assert replay.scores == pytest.approx(expected, rel=1e-5)


def test_groups_are_bounded_and_the_lowest_go() -> None:
    replay = replay_of(max_experiences=3, surprise_weight=0.0)
    replay.add(batch_of([1.0, 5.0, 2.0, 3.0]), version=0)
    assert sorted(replay.scores) == [2.0, 3.0, 5.0]
    replay.add(batch_of([2.0, 0.5]), version=1)
    # Of equal scores the oldest is gone.
    kept = zip(replay._added.tolist(), replay._batch.rewards[::2].tolist(), strict=True)
    assert sorted(kept) == [(0, 3.0), (0, 5.0), (1, 2.0)]
    old = replay_of(max_replay_age=2)
    for version in range(6):
        old.add(batch_of([1.0]), version)
    assert old._added.tolist() == [3, 4, 5]
    assert len(old.sample(9, version=7)) == 2
    assert old.sample(9, version=8) is None


def test_what_is_drawn_is_what_was_added_and_older() -> None:
    replay = replay_of(min_experiences=2)
    first = batch_of([1.0, 2.0], size=3)
    assert replay.sample(1, version=0) is None
    replay.add(first, version=4)
    again = replay.sample(5, version=7)
    assert len(again.group_sizes) == 2, "no more than there are"
    both = join([first, again])
    assert both.rewards.tolist() == [*first.rewards, *again.rewards]
    assert both.importance.tolist() == [1.0] * 6 + again.importance.tolist()
    assert both.group_sizes.tolist() == [3] * 4
    assert both.tokens.tolist() == [*first.tokens, *again.tokens]


def test_a_saved_replay_draws_what_the_other_would_have(tmp_path: Path) -> None:
    one, other = replay_of(seed=3), replay_of(seed=3)
    one.add(batch_of([1.0, 2.0, 5.0]), version=0)
    one.sample(2, version=1)
    one.save(tmp_path / "replay")
    other.load(tmp_path / "replay")
    for replay in (one, other):
        replay.add(batch_of([3.0], first=3), version=1)
    for _ in range(3):
        left, right = one.sample(3, version=2), other.sample(3, version=2)
        assert left.tokens.tolist() == right.tokens.tolist()
        assert left.importance.tolist() == right.importance.tolist()
    for part in ("tokens", "batch", "plans", "added", "mean", "draws"):
        state = checkpoint.load(tmp_path / "replay", kind="group replay")
        (state["batch"] if part == "tokens" else state).pop(part)
        checkpoint.save(tmp_path / "odd", state, kind="group replay")
        with pytest.raises(CheckpointError):
            other.load(tmp_path / "odd")
    for part in ("added", "draws"):
        state = checkpoint.load(tmp_path / "replay", kind="group replay")
        checkpoint.save(tmp_path / "odd", state | {part: float("inf")}, kind="group replay")
        with pytest.raises(CheckpointError):
            other.load(tmp_path / "odd")
    assert other.sample(3, version=2).tokens.tolist() == one.sample(3, version=2).tokens.tolist()


def trainer_of(**settings: Any) -> LLMTrainer:
    torch.manual_seed(0)
    model = TinyTransformer(TinyConfig(vocab_size=8, dim=16, hidden=16), device="cpu")
    task = PromptTask([[1, 2], [3, 4]], lambda answer: answer.tokens.count(5) / 3)
    config = LLMConfig(
        **{
            "steps": 12,
            "prompts_per_step": 2,
            "max_new_tokens": 3,
            "learner": GRPOConfig(learning_rate=1e-2),
            "replay": 2,
            **settings,
        }
    )
    return LLMTrainer(model, task, config, device="cpu")


def test_a_trainer_learns_with_replay_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = trainer_of()
    rows = asyncio.run(whole.train())
    assert rows[0]["items"] == 16
    assert {row["items"] for row in rows[1:]} == {32}
    assert rows[0]["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert rows[-1]["ratio_max"] > 1.01, "some were drawn by another policy"
    assert np.mean([row["reward"] for row in rows[-2:]]) > rows[0]["reward"] + 0.3
    assert len(whole.replay) == 24
    first = trainer_of(dir=tmp_path, steps=5, save_every=2)
    asyncio.run(first.train())
    second = trainer_of(dir=tmp_path)
    second.resume()
    assert len(second.replay) == 10
    again = asyncio.run(second.train())
    assert [row["reward"] for row in again] == [row["reward"] for row in rows]
    assert len(list(tmp_path.glob("*.replay-*"))) == 1
    for one, other in zip(
        whole.learner.policy.parameters(), second.learner.policy.parameters(), strict=True
    ):
        assert torch.equal(one, other)
    with pytest.raises(ArgumentError, match="replay"):
        dataclasses.replace(whole.config, replay=-1)
