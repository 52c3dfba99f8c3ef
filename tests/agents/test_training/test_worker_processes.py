"""Processes that are killed do not end a run."""

import asyncio
import os

import pytest
import tiers
from echoic.agents.training import EchoRLTrainer
from echoic.agents.training.crews import ProcessCrew
from echoic.errors import CollectorError


# Five processes import torch, or seven, which takes half a minute of a processor.
@pytest.mark.timeout(400)
def test_a_run_outlives_its_actors(run, tmp_path, monkeypatch):
    mark = tmp_path / "die"
    mark.touch()
    monkeypatch.setenv("ECHOIC_TEST_DEADLY", str(mark))
    config = run(
        env_name="test-deadly",
        backend="processes",
        total_timesteps=1024,
        num_workers=tiers.size(1, 2),
        num_learners=2,
    )
    with EchoRLTrainer(config) as trainer:
        metrics = asyncio.run(trainer.train())
        pids = trainer._parts.crew.pids
    # The environment of one has killed its process, in the middle of a segment.
    assert not mark.exists()
    assert metrics.total_timesteps >= 1024
    assert metrics.execution_metrics["actor_restarts"] == 1
    assert len(metrics.policy_losses) == metrics.total_timesteps // 128
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_environment_that_hangs_is_killed_and_the_run_goes_on(run, tmp_path, monkeypatch):
    mark = tmp_path / "hang"
    mark.touch()
    monkeypatch.setenv("ECHOIC_TEST_HANGING", str(mark))
    config = run(
        env_name="test-hanging",
        environment_timeout=3.0,
        num_actors=2,
        num_workers=1,
        num_learners=1,
        evaluation_episodes=1,
        total_timesteps=64,
        replay="none",
    )
    with EchoRLTrainer(config) as trainer:
        metrics = asyncio.run(trainer.train())
        crew, evaluator = trainer._parts.crew, trainer._parts.evaluator
        environments = [seat.environment for seat in crew.groups[0]._seats]
        pids = [one.worker_pid for one in (*environments, *evaluator._environments)]
    assert not mark.exists()
    # The step that hung is lost, and no other.
    assert metrics.total_timesteps == 64
    assert metrics.execution_metrics["broken_steps"] == 1
    assert len(set(pids)) == 3
    for pid in pids:
        assert pid != os.getpid()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_that_can_not_work_end_the_run_with_their_last_words(run, tmp_path):
    config = run(worker_imports=("no_such_module",), num_workers=1, max_restarts=0)
    crew = ProcessCrew(config, 0, "", tmp_path)
    crew.start()
    try:
        assert crew.workers.members[0].wait(120)
        with pytest.raises(CollectorError, match="No module named 'no_such_module'"):
            crew.check()
    finally:
        crew.close()
