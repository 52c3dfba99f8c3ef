"""Processes that are killed do not end a run."""

import asyncio
import os

import echoic
import pytest
import tiers
from echoic.agents.training import EchoRLTrainer
from echoic.agents.training.segments import example_of
from echoic.agents.training.workers import ProcessWorkers
from echoic.errors import CollectorError
from echoic.weights import WeightStore


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
        pids = [one.pid for one in trainer._run.workers.processes.members]
    # The environment of one has killed its process, in the middle of a segment.
    assert not mark.exists()
    assert metrics.total_timesteps >= 1024
    assert metrics.execution_metrics["actor_restarts"] == 1
    assert len(metrics.policy_losses) == metrics.total_timesteps // 128
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@tiers.turn(0, of=2)
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
        workers, evaluator = trainer._run.workers, trainer._run.evaluator
        environments = [actor.environment for actor in workers.groups[0]._actors]
        environments.append(evaluator.seat.environment)
        pids = [one._worker.pid for one in environments]
    assert not mark.exists()
    # The step that hung is lost, and no other.
    assert metrics.total_timesteps == 64
    assert metrics.execution_metrics["broken_steps"] == 1
    assert len(set(pids)) == 3
    for pid in pids:
        assert pid != os.getpid()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@tiers.turn(1, of=2)
def test_workers_that_can_not_work_end_the_run_with_their_last_words(run):
    config = run(worker_imports=("no_such_module",), num_workers=1, max_restarts=0)
    table = echoic.Table.queue("segments", example_of(config), capacity=8)
    workers = ProcessWorkers(config, 0, 0, table, WeightStore())
    workers.start()
    try:
        assert workers.processes.members[0].wait(120)
        with pytest.raises(CollectorError, match="No module named 'no_such_module'"):
            workers.check()
    finally:
        workers.close()
