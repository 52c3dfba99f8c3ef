"""The programs written for Reverb run, and what they say comes out of them does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiers
from reverb_under_test import UPSTREAM

from examples.reverb import dqn, quickstart, tutorial
from examples.reverb.environment import Catch

ROOT = Path(__file__).resolve().parent.parent.parent


def test_quickstart_gets_back_what_it_put_in(capsys: pytest.CaptureFixture[str]) -> None:
    quickstart.main()
    assert capsys.readouterr().out.splitlines() == [
        "my_table: 0 of 100 items",
        "in one go: [0, 1], sampled 1 time",
        "step by step: [[2, 12], [3, 13], [4, 14]]",
        "as a whole: [[2, 3, 4], [12, 13, 14]]",
    ]


@pytest.mark.parametrize("section", tutorial.SECTIONS, ids=lambda section: section.__name__)
def test_section_of_the_tutorial_shows_what_it_asserts(
    section, capsys: pytest.CaptureFixture[str]
) -> None:
    section()
    assert capsys.readouterr().out


@pytest.mark.parametrize("seed", tiers.rotating(1, 2))
def test_dqn_learns(seed: int) -> None:
    outcome = dqn.train(seed)
    # A random paddle is below the ball once in five times.
    assert np.mean(outcome.first_returns) < -0.2
    assert np.mean(outcome.evaluation) >= dqn.TARGET


def test_dqn_keeps_the_best_policy_that_it_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = dqn.Learner(seed=0)
    means = iter([-0.5, 0.7, 0.6, 0.7])
    monkeypatch.setattr(dqn.Learner, "play", lambda *_: [next(means)])
    kept = []
    for number in range(4):
        learner.params = np.full_like(learner.params, number)
        learner.try_policy(seed=1)
        kept.append(learner.best[0])
    assert kept == [0, 1, 1, 3]


def test_dqn_samples_in_its_ratio_and_learns_from_each_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dqn, "EPISODES", 60)
    outcome = dqn.train(seed=3)
    limiter = outcome.info.rate_limiter_info
    # Each step of an episode begins an item.
    inserts = dqn.ACTORS * 60 * (Catch.ROWS - 1)
    assert limiter.insert_stats.completed == inserts
    # The limiter lets nobody get ahead by more than its error buffer.
    samples = limiter.sample_stats.completed
    lead = inserts * limiter.samples_per_insert - samples
    assert limiter.min_diff <= lead <= limiter.max_diff
    # What is left over at the end of a dataset is a smaller batch.
    assert outcome.updates >= samples / dqn.BATCH > 0


def test_error_of_an_actor_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Catch):
        def step(self, action: int) -> None:
            raise LookupError("no game today")

    monkeypatch.setattr(dqn, "Catch", Broken)
    with pytest.raises(LookupError, match="no game today"):
        dqn.train(seed=0)


def test_error_of_the_learner_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LookupError("nothing learned today")

    monkeypatch.setattr(dqn.Learner, "learn", fail)
    with pytest.raises(LookupError, match="nothing learned today"):
        dqn.train(seed=0)


@pytest.mark.parametrize("name", ["quickstart", "tutorial", "dqn"])
def test_command_line(name: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", f"examples.reverb.{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout


@pytest.mark.skipif(UPSTREAM, reason="the benchmark runs it on upstream")
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_the_timed_program_gives_a_rate_for_each_workload(place):
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "migration" / "reverb_program.py"),
        "echoic.reverb",
        place,
        "40",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.stderr == ""
    rates = json.loads(ran.stdout)
    assert len(rates) == 7
    assert all(rate > 0 for rate in rates.values())
