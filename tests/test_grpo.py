"""The GRPO example learns, also when it is killed in part or as a whole; and what it is made of."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiers
from echoic.errors import ClosedError

from examples.grpo import compare, curve, task
from examples.grpo.settings import Settings
from examples.grpo.table import make_table

if TYPE_CHECKING:
    from echoic.rollouts import Reservation


# The task.


def test_a_prompt_follows_from_its_group_and_the_seed() -> None:
    prompts = [task.prompt(3, group) for group in range(50)]
    assert prompts == [task.prompt(3, group) for group in range(50)]
    assert prompts != [task.prompt(4, group) for group in range(50)]
    assert {len(prompt) for prompt in prompts} == {3, 4, 5}
    assert all(prompt[-1] == task.SEP for prompt in prompts)


def test_only_the_solution_earns_everything() -> None:
    prompt = [1, 2, task.SEP]
    assert task.solution(prompt) == [2, 1, task.END]
    answers = itertools.product(range(task.VOCABULARY), repeat=3)
    assert [a for a in answers if task.reward(prompt, a) == 1] == [(2, 1, task.END)]


@pytest.mark.parametrize(
    ("answer", "earned"),
    [([], 0), ([2], 1 / 3), ([1, 1, task.END], 2 / 3), ([2, 1, 5, 5, 5, 5], 2 / 6)],
)
def test_reward_is_the_share_of_places_that_are_right(answer: list[int], earned: float) -> None:
    assert task.reward([1, 2, task.SEP], answer) == pytest.approx(earned)


# Between workers and learner.


def answer(reservation: Reservation, reward: float, length: int) -> str:
    columns = {
        "tokens": np.arange(length, dtype=np.int32),
        "logprobs": np.full(length, -1, np.float32),
        "mask": (np.arange(length) >= 2).astype(np.uint8),
    }
    return reservation.add(columns, {"reward": reward})


def test_loss_sees_only_what_the_policy_made(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    learners = importlib.import_module("echoic.agents.learners")
    with make_table(Settings(tmp_path, groups=2, answers=2)) as table:
        for first, second in ((0.0, 1.0), (1.0, 0.5)):
            reservation = table.reserve()
            answer(reservation, first, 4)
            answer(reservation, second, 3)
        batch = learners.TokenBatch.from_rollouts(table.sample())
    assert batch.mask.tolist() == [0, 0, 1, 1, 0, 0, 1] * 2
    learner = learners.GRPOLearner(importlib.import_module("examples.grpo.model").Policy())
    advantages = learner.advantages(batch.rewards, batch.group_offsets)
    assert advantages.tolist() == [-1, 1, 1, -1]


def test_answers_that_all_earn_alike_teach_nothing(tmp_path: Path) -> None:
    with make_table(Settings(tmp_path, groups=1, answers=2)) as table:
        reservation = table.reserve()
        assert [answer(reservation, 0.5, 3), answer(reservation, 0.5, 4)] == ["running", "filtered"]


def test_curve_of_a_run_that_went_back_is_the_one_that_was_kept(tmp_path: Path) -> None:
    def point(version: int, reward: float) -> curve.Point:
        return curve.Point(version, 0.0, None, reward, 0.0, 0, 0.0, 0.0, {})

    for version in (1, 2, 3):
        curve.add(tmp_path, point(version, 0.0))
    with (tmp_path / curve.FILE).open("a") as file:
        file.write('{"version": 4, "ti\n')  # The learner was killed here.
    for version in (2, 3):
        curve.add(tmp_path, point(version, 1.0))
    assert [(p.version, p.reward) for p in curve.read(tmp_path)] == [(1, 0), (2, 1), (3, 1)]


# The test of two samples.


def test_samples_of_one_distribution_differ_as_often_as_the_level_says() -> None:
    rng = np.random.default_rng(0)
    found = [compare.permutation_test(rng.random(5), rng.random(5)) for _ in range(300)]
    # Of 300 such tests 15 are below 0.05 on average, with a deviation of 3.8.
    assert 2 <= sum(p < 0.05 for p in found) <= 30


def test_samples_that_lie_apart_are_told_apart() -> None:
    apart = compare.permutation_test([0, 1, 2, 3, 4], [10, 11, 12, 13, 14])
    # Two of the 252 ways to choose five have means as far apart.
    assert apart == pytest.approx(2 / 252)
    assert compare.permutation_test([1, 2], [1, 2]) == 1


# Whole runs.

RUN = Settings(Path(), versions=60, groups=8, answers=8, ttl=0.5, save_every=5)


def run(folder: Path, **how: Any) -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("rich")
    running = importlib.import_module("examples.grpo.run")
    return running.run(replace(RUN, folder=folder / "run"), **how)


def check(result: Any, *, rolled_back: int = 0) -> None:
    """What is true of every run, also of one whose learner went back at most so many versions.

    Tokens of versions that it went back from are newer than the learner for as long.
    """
    assert [point.version for point in result.points] == list(range(1, RUN.versions + 1))
    assert all(-rolled_back <= point.lag <= RUN.max_lag for point in result.points)
    assert max(point.max_lag for point in result.points) <= RUN.max_lag
    scores = [point.score for point in result.points if point.score is not None]
    # A policy that knows nothing gets less than a fifth.
    assert np.mean(scores[:2]) < 0.35 < result.score


def test_workers_in_threads_and_a_learner_learn(tmp_path: Path) -> None:
    result = run(tmp_path, transport="none")
    check(result)
    assert result.events == []


@pytest.fixture
def quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork processes from one that has imported torch, which takes each of five seconds."""
    pytest.importorskip("torch")
    if not tiers.full:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["examples.grpo.job"])
        monkeypatch.setattr(importlib.import_module("examples.grpo.job"), "SPAWN", context)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quick_starts")
def test_killed_processes_change_no_rule(tmp_path: Path) -> None:
    result = run(tmp_path, transport="shm", kill_worker=True, restart=True)
    check(result, rolled_back=RUN.save_every)
    assert len(result.events) == 2
    assert result.points[-1].counts["accepted"] >= RUN.versions * RUN.groups // 2


def test_worker_that_is_not_wanted_any_more_ends(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    worker = importlib.import_module("examples.grpo.worker")
    weights = importlib.import_module("echoic.weights")
    settings = replace(RUN, folder=tmp_path)
    with make_table(settings) as table, weights.WeightStore() as store:
        table.close()
        with pytest.raises(ClosedError):
            table.reserve()
        policy = importlib.import_module("examples.grpo.model").Policy()
        store.publish(policy.state_dict(), 0)
        worker.Worker(0, table, store.subscribe(), settings).work()
