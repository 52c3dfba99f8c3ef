"""What TRL's asynchronous trainer does with rollouts of a table, without TRL."""

from __future__ import annotations

import json
import math
import queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations.trl import COLUMNS, FIELDS, AsyncGRPORollouts, run_settings
from echoic.rl import Run

if TYPE_CHECKING:
    from pathlib import Path

    from echoic.integrations.trl import Sample

GROUP, BATCH = 2, 3


def new_run(**settings: Any) -> Run:
    settings = {"group": GROUP, "batch": BATCH, "max_lag": 2, **settings}
    return Run(COLUMNS, FIELDS, **settings)


def make(run: Run) -> int:
    """Make as many groups as there is room for."""
    made = 0
    while run.stats().room:
        with run.table.reserve(source="worker") as reservation:
            tokens = np.arange(4 * GROUP, dtype=np.int32)
            mask = np.array([0, 1, 1, 1] * GROUP, np.uint8)
            columns = {"tokens": tokens, "logprobs": -mask.astype(np.float32), "mask": mask}
            rewards = np.arange(GROUP, dtype=np.float32)
            reservation.add_items([4] * GROUP, columns, {"reward": rewards})
        made += 1
    return made


class Tensor:
    """What is used of a tensor."""

    def __init__(self, value: float) -> None:
        self._value = np.full(2, value, np.float32)

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> np.ndarray:
        return self._value


class Trainer:
    """Calls what TRL's trainer calls, in its order, and fetches a micro-batch ahead as it does."""

    def __init__(self, rollouts: AsyncGRPORollouts) -> None:
        self.rollouts, self.version = rollouts, 0
        self.ahead: list[Sample] = []
        #: The groups of each step, and the largest number of versions that its samples were behind.
        self.steps: list[tuple[set[int], int]] = []

    def sync(self) -> None:
        self.rollouts.pause()
        self.rollouts.send_weights(iter([("w", Tensor(self.version))]))
        self.rollouts.resume()
        self.version += 1
        self.rollouts.update_model_version(self.version)

    def begin(self) -> None:
        self.rollouts.init_weight_transfer()
        self.sync()
        self.rollouts.start()

    def fetch(self) -> list[Sample]:
        return [self.rollouts.rollout_buffer.get(timeout=5.0) for _ in range(GROUP * BATCH)]

    def step(self) -> None:
        batch, self.ahead = self.ahead or self.fetch(), self.fetch()
        lag = max(self.version - sample.model_version for sample in batch)
        self.steps.append(({sample.group_id for sample in batch}, lag))
        self.sync()


def test_a_sample_has_all_that_the_trainer_reads() -> None:
    run = Run(COLUMNS, {**FIELDS, "rewards/length": "float32"}, group=3, batch=1)
    rollouts = AsyncGRPORollouts(run)
    Trainer(rollouts).begin()
    assert (run.version, run.weights.version) == (0, 0)
    pixels = np.ones((3, 2, 2), np.float32)
    said = {"prompt": [{"role": "user", "content": "?"}], "completion": [{"role": "assistant"}]}
    with run.table.reserve(key="6 · 7") as reservation:
        for reward, blobs in (
            (0.0, {"pixel_values": pixels, "messages": json.dumps(said)}),
            (math.nan, {"messages": "no JSON"}),
            (1.0, None),
        ):
            columns = {"tokens": [5, 6, 7], "logprobs": [0, -0.5, 0], "mask": [0, 1, 0]}
            reservation.add(columns, {"reward": reward, "rewards/length": 2}, blobs=blobs)
    first, unknown, last = (rollouts.rollout_buffer.get(timeout=5.0) for _ in range(3))
    for name, values, dtype in (
        ("input_ids", [5, 6, 7], np.int64),
        ("completion_mask", [0, 1, 0], np.int64),
        ("old_log_probs", [0, -0.5, 0], np.float32),
    ):
        assert getattr(first, name).dtype == dtype
        assert getattr(first, name).tolist() == values
    assert (first.group_id, first.model_version) == (last.group_id, 1)
    assert [first.advantage, unknown.advantage, last.advantage] == pytest.approx([-1, 0, 1])
    assert first.metrics == {"reward": 0, "reward_std": 0.5, "rewards/length": 2}
    assert math.isnan(unknown.metrics["reward"])
    np.testing.assert_array_equal(first.blobs["pixel_values"], pixels)
    assert (first.prompt, first.completion) == (said["prompt"], said["completion"])
    assert (unknown.prompt, last.completion) == ([{"role": "user", "content": "6 · 7"}], [])
    with pytest.raises(queue.Empty):
        rollouts.rollout_buffer.get_nowait()
    run.close()


def test_a_step_has_the_groups_of_its_version_and_none_is_older_than_allowed() -> None:
    run = new_run()
    rollouts = AsyncGRPORollouts(run)
    trainer = Trainer(rollouts)
    trainer.begin()
    for step in range(6):
        # Workers are as far ahead as they may be: the worst case.
        make(run)
        trainer.step()
        assert run.weights.latest().tree["w"].tolist() == [trainer.version - 1] * 2
        assert run.version == run.weights.version == step + 1
    # The groups of a step are in the version that follows it, those fetched ahead in a later one.
    assert [groups for groups, _ in trainer.steps] == [
        {BATCH * step + group for group in range(BATCH)} for step in range(6)
    ]
    assert max(lag for _, lag in trainer.steps) == 2
    stats = run.stats()
    assert (stats.stale, stats.overdue, stats.delivered) == (0, 0, 7 * BATCH)
    # The last step is acknowledged when more is asked for: a checkpoint has been written by then.
    assert stats.acked == 5 * BATCH
    rollouts.stop()
    rollouts.destroy()
    assert run.stats().acked == 6 * BATCH
    # What was fetched ahead is there for the next.
    assert set(run.sample(1).group_ids) <= {s.group_id for s in trainer.ahead}
    seen: dict[str, list[Any]] = {}
    while not rollouts.metrics_queue.empty():
        for name, value in rollouts.metrics_queue.get_nowait().items():
            seen.setdefault(name, []).append(value)
    assert sum(seen["echoic/groups_total"]) == 7 * BATCH
    assert max(seen["echoic/lag_oldest_max"]) == 2
    assert sum(count for _, count in seen["echoic/lag_oldest_mean"]) == 7 * BATCH
    run.close()


def test_a_trainer_that_died_is_followed_by_one_that_loses_nothing_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    with new_run(dir=tmp_path) as run:
        trainer = Trainer(AsyncGRPORollouts(run, version=0))
        trainer.begin()
        make(run)
        # It dies when it has published a step, before its first checkpoint.
        trainer.step()
    trained: list[int] = []
    # As a checkpoint after each step keeps it.
    version = 0
    for steps in (2, 3):
        with new_run(dir=tmp_path) as run:
            trainer = Trainer(AsyncGRPORollouts(run, version=version))
            trainer.begin()
            assert (run.version, run.weights.version) == (version, version)
            for _ in range(steps):
                make(run)
                trainer.step()
                version = run.version
            make(run)
            # It dies when it has written a checkpoint and asks for more.
            trainer.rollouts.rollout_buffer.get(timeout=5.0)
            trained += sorted(group for groups, _ in trainer.steps for group in groups)
            assert trainer.version == steps + 1
    assert version == 5
    assert len(trained) == len(set(trained)) == 5 * BATCH
    with new_run(dir=tmp_path) as run:
        run.restore(version)
        left = {int(run.sample(1).group_ids[0]) for _ in range(run.stats().queued)}
        assert not left & set(trained)
        stats = run.stats()
        assert (stats.stale, len(left) + len(trained)) == (0, stats.accepted)


def test_health_says_why_no_sample_comes() -> None:
    run = new_run(target_lag=1)
    rollouts = AsyncGRPORollouts(run)
    rollouts.update_model_version(1)
    rollouts.start()
    with pytest.raises(queue.Empty):
        rollouts.rollout_buffer.get(timeout=0.001)
    rollouts.check_health(60)
    with pytest.raises(RolloutError, match=r"got none for .* No worker .* waits for GROUP: "):
        rollouts.check_health(0)
    assert make(run) == 3 * BATCH
    # Tokens came since then.
    rollouts.check_health(0.0001)
    run.pause()
    with pytest.raises(queue.Empty):
        rollouts.rollout_buffer.get(timeout=0.001)
    with pytest.raises(RolloutError, match=r"'worker' was the last .* waits for PAUSED"):
        rollouts.check_health(0)
    run.resume()
    # More groups for a version than the table was made for: no call can end that wait.
    for _ in range(2 * BATCH * GROUP):
        rollouts.rollout_buffer.get(timeout=5.0)
    with pytest.raises(queue.Empty):
        rollouts.rollout_buffer.get(timeout=0.001)
    with pytest.raises(RolloutError, match=r"3 .batch × batches_per_version.*1 versions"):
        rollouts.check_health(60)
    run.close()


def test_settings_come_from_the_trainers() -> None:
    config = SimpleNamespace(
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        world_size=3,
        weight_sync_steps=1,
        num_generations=8,
        max_staleness=4,
        token_budget=0,
    )
    assert run_settings(config) == {"group": 8, "batch": 6, "max_lag": 4}
    for change, message in (
        ({"token_budget": None}, "expected token_budget=0, got None"),
        ({"max_staleness": 0}, "at least 1, got 0"),
        ({"num_generations": 7}, "8 × 2 × 3 × 1 = 48"),
    ):
        with pytest.raises(RolloutError, match=message):
            run_settings(SimpleNamespace(**{**vars(config), **change}))
    with pytest.raises(RolloutError, match="must be at least 1"):
        AsyncGRPORollouts(new_run(max_lag=0))
    with pytest.raises(RolloutError, match=r"expected columns \['ids'\]"):
        AsyncGRPORollouts(new_run(), tokens="ids")
