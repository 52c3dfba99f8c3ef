"""Actors of Ray act in a run, and one that dies is started again."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("ray")
import ray
from echoic.agents.training import EchoRLTrainer

# Ray leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def path_of_workers(no_shared_ray, monkeypatch):
    """Ray's processes are started with the environment of the one that begins it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Not one that other tests have begun; and a busy machine is given time to start this one.
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "120000")


@pytest.mark.nightly
def test_a_run_on_ray_outlives_an_actor_and_ends_the_ray_that_it_began(
    run, tmp_path, monkeypatch, path_of_workers
):
    mark = tmp_path / "die"
    mark.touch()
    monkeypatch.setenv("ECHOIC_TEST_DEADLY", str(mark))
    config = run(env_name="test-deadly", backend="ray", total_timesteps=1024, num_learners=1)
    with EchoRLTrainer(config) as trainer:
        metrics = asyncio.run(trainer.train())
        assert ray.is_initialized()
    # The environment of one has killed its process, in the middle of a segment.
    assert not mark.exists()
    assert metrics.total_timesteps >= 1024
    assert metrics.execution_metrics["actor_restarts"] == 1
    assert len(metrics.policy_losses) == metrics.total_timesteps // 128
    assert not ray.is_initialized()
